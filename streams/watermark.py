"""How far an axis of an attempt is complete: a minimum over the processes that use it; it never goes back.

A process uses an axis from its first sample on it, and holds the watermark at its newest position. It lets go
when it ends, or when its position has not moved for the idle limit (log time); its next sample takes hold
again. A heartbeat moves positions too.

Time axis: watermark = minimum - allowed lateness. Step axis: steps have no distance in time, so a position
counts only once the allowed lateness has passed (log time) since the minimum reached it. So ranks that
start a little later, or log an older step a little later, are not late. The two rules are one: what every
process had passed an allowed lateness ago is complete.

Positions lie in arrays, one place per process; the minimum is the top of a heap whose entries are dropped
when they turn up and no longer hold. So a record costs the same among 16 processes and among 16,384.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

FREE = 1 << 62
"""Position of a process that does not hold the watermark; the first one of a process that has none."""
NOWHERE = -FREE
"""Newest position of a process that has none."""
_STALE = 8
"""Entries of the heap per process, most of which no longer hold, before it is made anew."""
_Ints = npt.NDArray[np.int64]


class Watermark:
    """One axis of one attempt; processes are numbered from 0."""

    def __init__(self, *, lateness_us: int, delayed: bool) -> None:
        self.lateness_us = lateness_us
        self.delayed = delayed
        self.value: int | None = None
        self.first = array("q")
        """Where each process began, :data:`FREE` before it does."""
        self.newest = array("q")
        """How far each process is, :data:`NOWHERE` before its first position."""
        self.moved_us = array("q")
        self._held = array("q")
        self._heap: list[tuple[int, int]] = []
        """(position, process) of all that hold, and of some that have moved on."""
        self._waiting: deque[tuple[int, int]] = deque()

    def join(self, now_us: int) -> None:
        """A new process, which does not use the axis yet."""
        self.first.append(FREE)
        self.newest.append(NOWHERE)
        self.moved_us.append(now_us)
        self._held.append(FREE)

    def uses(self, process: int) -> bool:
        return self.first[process] != FREE

    def holds(self, process: int) -> bool:
        return self._held[process] != FREE

    def held(self) -> _Ints:
        """Where each process holds the watermark, :data:`FREE` where it does not: a copy."""
        return np.array(self._held, np.int64)

    def advance(self, process: int, low: int, high: int, now_us: int) -> None:
        """The process gave samples from ``low`` to ``high``."""
        newest = self.newest[process]
        if newest == NOWHERE:
            self.first[process] = low
        if high > newest:
            self.newest[process] = high
            self.moved_us[process] = now_us
        else:
            high = newest
        before = self._held[process]
        if before == high:
            return
        if before == FREE and self._waiting:  # what waits must not pass one that takes hold
            self._waiting = deque((at, min(position, high)) for at, position in self._waiting)
        self._held[process] = high
        heapq.heappush(self._heap, (high, process))
        if len(self._heap) > _STALE * len(self._held) + _STALE:  # one that is far behind hides the rest
            self._rebuild()

    def release(self, process: int) -> None:
        """The process no longer holds the watermark."""
        self._held[process] = FREE

    def rest(self, since_us: int) -> None:
        """Processes whose position last moved before ``since_us`` no longer hold the watermark."""
        resting = np.frombuffer(self.moved_us, np.int64) < since_us
        if resting.any():
            for process in np.flatnonzero(resting).tolist():
                self._held[process] = FREE

    def forgive(self, hole_us: int, now_us: int) -> None:
        """Nobody watched for so long: no position stood still in that time."""
        if self.moved_us:
            moved = np.minimum(np.frombuffer(self.moved_us, np.int64) + hole_us, now_us)
            self.moved_us = _column(moved)

    def forget(self, process: int) -> None:
        """As if it had never used the axis."""
        self.release(process)
        self.first[process], self.newest[process] = FREE, NOWHERE

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order; the others do not hold the watermark."""
        self.first, self.newest, self.moved_us, self._held = (
            array("q", [column[at] for at in kept])
            for column in (self.first, self.newest, self.moved_us, self._held)
        )
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(position, at) for at, position in enumerate(self._held) if position != FREE]
        heapq.heapify(self._heap)

    def _minimum(self) -> int:
        """The lowest position that is held, :data:`FREE` if none is."""
        heap, held = self._heap, self._held
        while heap and held[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else FREE

    def move(self, now_us: int) -> int | None:
        """The watermark at ``now_us``, None before the first."""
        lowest = self._minimum()
        if lowest != FREE:
            if not self.delayed:
                self._raise(lowest - self.lateness_us)
            elif not self._waiting or self._waiting[-1][1] != lowest:
                if self._waiting and self._waiting[-1][0] == now_us:
                    self._waiting.pop()
                self._waiting.append((now_us, lowest))
        while self._waiting and self._waiting[0][0] <= now_us - self.lateness_us:
            self._raise(self._waiting.popleft()[1])
        return self.value

    def _raise(self, position: int) -> None:
        if self.value is None or position > self.value:
            self.value = position

    def dump(self) -> list[Any]:
        columns = (self.first, self.newest, self.moved_us, self._held)
        return [self.value, *(np.array(c, np.int64) for c in columns), [list(w) for w in self._waiting]]

    def restore(self, dumped: list[Any]) -> None:
        self.value, first, newest, moved_us, held, waiting = dumped
        self.first, self.newest, self.moved_us, self._held = map(_column, (first, newest, moved_us, held))
        self._waiting = deque((at, position) for at, position in waiting)
        self._rebuild()


def _column(values: _Ints) -> array[int]:
    return array("q", values.astype(np.int64, copy=False).tobytes())
