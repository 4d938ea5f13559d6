"""Looks at what is appended, to tell when nothing is left to do, and how far snapshots reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftline import events, records

from .broker import Stored, Topic

if TYPE_CHECKING:
    from .world import World


class Watch:
    """Hears of every record that is appended."""

    _RESTLESS = (b'"kind":"tick"', b'"kind":"evaluator_present"')

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._last_us = 0
        self.open: set[tuple[str, str]] = set()
        """Requests of runs without an answer."""
        self._answered: set[tuple[str, str]] = set()
        self.snapshots: dict[tuple[str, int], int] = {}
        """Offset of the highest snapshot, by topic UUID and partition."""
        world.broker.appended.append(self._appended)

    def silent_us(self) -> int:
        """Since something other than the passing of time was written."""
        return self._loop.now_us - self._last_us

    def _appended(self, topic: Topic, _partition: int, record: Stored) -> None:
        if topic.name == "state" and record.value is not None and (record.key or b"").endswith(b"/manifest"):
            _, uuid, partition, offset, *_ = (record.key or b"").decode().split("/")
            where = uuid, int(partition)
            self.snapshots[where] = max(self.snapshots.get(where, 0), int(offset))
        head = (record.value or b"")[:48]
        if topic.name == "state" or any(kind in head for kind in self._RESTLESS):
            return
        self._last_us = self._loop.now_us
        if b'"kind":"eval_requested"' in head or b'"kind":"eval_accepted"' in head:
            event = records.decode(record.value)
            if isinstance(event, events.EvalRequested):
                self.open |= {(event.request, event.run)} - self._answered
            elif isinstance(event, events.EvalAccepted):
                self._answered.add((event.request, event.run))
                self.open.discard((event.request, event.run))
