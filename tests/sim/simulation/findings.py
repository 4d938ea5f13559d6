"""What the checks look at, made once: the recorded log, and what the pure cores make of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from driftline import records, window_rows
from driftline.errors import BadRecord
from driftline.records import Output, OutputId, Record
from driftline.streams.core import Core, beginning, is_configuration
from driftline.streams.pipeline import Pipeline
from driftline.streams.scheduler import Scheduler
from driftline.streams.shell.snapshots import Collected, Source
from driftline.topics import TopicName

from .broker import Recorded, Stored

if TYPE_CHECKING:
    from .world import World

Problems = Iterator[str]
FEW = 3
"""Of each kind so many are told one by one."""


class Judged(NamedTuple):
    """One recorded partition of an input topic, what the pure core makes of it, and how far it had to
    come."""

    place: Recorded
    log: list[Record]
    outputs: list[Output]
    current: bool
    """The incarnation that exists now."""
    reached: int
    """Offset of the highest complete snapshot: what lies below was worked on."""
    configured: bool
    """Whether a configuration is in the log. There is none where the topic was deleted before any worker came
    to it: then the defaults hold, and nothing came of the log."""


class Findings:
    """Everything that the checks look at, made once."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def telemetry(self) -> list[Judged]:
        return [self._judge(Pipeline(), place) for place in self._places("telemetry")]

    @cached_property
    def evals(self) -> list[Judged]:
        return [self._judge(Scheduler(), place) for place in self._places("evals")]

    @cached_property
    def judged(self) -> dict[tuple[str, int], Judged]:
        return {(j.place.uuid, j.place.partition): j for j in (*self.telemetry, *self.evals)}

    def _places(self, topic: TopicName) -> list[Recorded]:
        return [place for place in self.world.broker.recorded if place.topic == topic]

    def _judge(self, core: Core[Any], place: Recorded) -> Judged:
        log = [
            Record(place.partition, r.offset, r.timestamp, r.value) for r in self.world.broker.recorded[place]
        ]
        outputs = core.step(beginning(core, place.uuid, place.partition, log), log)
        current = place.uuid in self.world.broker.uuids().values()
        role = "streams" if place.topic == "telemetry" else "scheduler"
        found = Collected(Source(f"{self.world.settings.kafka.prefix}{role}", place.uuid, place.partition))
        reached = 0
        for place_of_state, appended in self.world.broker.recorded.items():
            if place_of_state.topic == "state" and place_of_state.partition == place.partition:
                for record in appended:
                    if record.value is not None:
                        found.add(record.key, record.value)
                        reached = max([reached, *(s.offset for s in found.complete)])
        configured = any(is_configuration(record.value) for record in log)
        return Judged(place, log, outputs, current, reached, configured)

    def recorded(self, topic: TopicName) -> Iterator[tuple[Recorded, Stored]]:
        for place, appended in self.world.broker.recorded.items():
            if place.topic == topic:
                for record in appended:
                    yield place, record


def id_of(topic: TopicName, value: bytes | None) -> OutputId | None:
    """The output id that a record carries, None if it carries none."""
    try:
        if topic == "windows":
            return window_rows.decode(value or b"")[0]
        event = records.decode(value)
        return OutputId.parse(event.id)  # type: ignore[union-attr]
    except (BadRecord, AttributeError):
        return None


def few(what: str, things: Any) -> Problems:
    listed = sorted(map(str, things))
    for thing in listed[:FEW]:
        yield f"{thing} {what}"
    if len(listed) > FEW:
        yield f"... {what}: {len(listed)} in all"
