"""A partition's state and the offset that comes next: records go in once, in order, or not at all.

The consumer group's position is never trusted: a record below ``next`` was applied before and is dropped, one
above it shows that records were skipped, and nothing is applied until the caller has read the missing range
from the log itself (:meth:`Cursor.feed` with ``plain=True``), where a higher offset only means a hole of the
log's own (compaction, transaction markers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from driftline.records import Output, Record
from driftline.streams.core import Core

S = TypeVar("S")


class Fed(NamedTuple):
    """What became of some records."""

    outputs: list[Output]
    applied: int
    repeated: int
    """Records below ``next``, dropped."""
    ahead: Sequence[Record]
    """Not applied, since offsets before the first of them are missing; empty if all went well."""


class Cursor(Generic[S]):
    """``state`` is the core's state after all records below ``next``."""

    def __init__(self, core: Core[S], state: S, next_offset: int) -> None:
        self.core = core
        self.state = state
        self.next = next_offset

    def feed(self, records: Sequence[Record], *, plain: bool = False) -> Fed:
        """Applies what follows; ``plain``: read from the log by offset, so that holes are the log's own."""
        run: list[Record] = []
        repeated = 0
        following = self.next
        ahead: Sequence[Record] = ()
        for at, record in enumerate(records):
            if record.offset < following:
                repeated += 1
            elif record.offset == following or plain:
                run.append(record)
                following = record.offset + 1
            else:
                ahead = records[at:]
                break
        outputs = self.core.step(self.state, run) if run else []
        self.next = following
        return Fed(outputs, len(run), repeated, ahead)

    def gap(self, end: int) -> list[Output]:
        """The log no longer has what lies below ``end``: the core notes it, and the cursor goes on there."""
        assert end > self.next, "a gap lies ahead of the cursor"
        outputs = self.core.gap(self.state, self.next, end)
        self.next = end
        return outputs
