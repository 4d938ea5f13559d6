"""What the demonstration must know beyond the live view: which parts are at work, and what must be stored."""

from __future__ import annotations

from collections import Counter

from driftline import events, frames
from driftline.cli.watch_state import WatchState
from driftline.errors import BadRecord
from driftline.records import decode
from driftline.topics import TopicName


class Seen(WatchState):
    """The live view's state, and counts of the records behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work: set[str] = set()
        self.alert_ids: dict[str, set[str]] = {}
        """Ids of the alert changes of each run."""
        self.records: Counter[str] = Counter()
        """Records of each run on ``telemetry`` that its processes sent."""

    def see(self, topic: TopicName, value: bytes | None, time_us: int) -> Seen:
        super().see(topic, value, time_us)
        try:
            record = decode(value)
        except BadRecord:
            return self
        match record:
            case events.Tick() | events.ConfigChanged():
                self.at_work.add("streams" if topic == "telemetry" else "scheduler")
            case events.EvaluatorPresent():
                self.at_work.add("evaluator")
            case events.Alert():
                self.alert_ids.setdefault(record.run, set()).add(record.id)
            case frames.Frame() | events.ProcessStarted() | events.ProcessEnded() | events.CheckpointSaved():
                self.records[record.run] += 1
            case _:
                pass
        return self

    def not_ready(self) -> list[str]:
        """Parts that have not shown themselves yet (the sink writes to no topic)."""
        return [name for name in ("streams", "scheduler", "evaluator") if name not in self.at_work]
