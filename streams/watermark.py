"""How far an axis of an attempt is complete: a minimum over the processes that use it; it never goes back.

A process uses an axis from its first sample on it, and holds the watermark at its newest position. It lets go
when it ends, or when its position has not moved for the idle limit (log time); its next sample takes hold
again. A heartbeat moves positions too.

Time axis: watermark = minimum - allowed lateness. Step axis: steps have no distance in time, so a position
counts only once the allowed lateness has passed (log time) since the minimum reached it. So ranks that
start a little later, or log an older step a little later, are not late. The two rules are one: what every
process had passed an allowed lateness ago is complete.
"""

from __future__ import annotations

from collections import deque
from typing import Any

_FREE = 1 << 62
"""Position of a process that does not hold the watermark."""


class Watermark:
    """One axis of one attempt; processes are numbered from 0."""

    def __init__(self, *, lateness_us: int, delayed: bool) -> None:
        self.lateness_us = lateness_us
        self.delayed = delayed
        self.value: int | None = None
        self.first: list[int | None] = []
        self.newest: list[int | None] = []
        self.moved_us: list[int] = []
        self._held: list[int] = []
        self._min = _FREE
        self._at_min = 0
        self._waiting: deque[tuple[int, int]] = deque()

    def join(self, now_us: int) -> None:
        """A new process, which does not use the axis yet."""
        self.first.append(None)
        self.newest.append(None)
        self.moved_us.append(now_us)
        self._held.append(_FREE)

    def uses(self, process: int) -> bool:
        return self.first[process] is not None

    def holds(self, process: int) -> bool:
        return self._held[process] != _FREE

    def advance(self, process: int, low: int, high: int, now_us: int) -> None:
        """The process gave samples from ``low`` to ``high``."""
        newest = self.newest[process]
        if newest is None:
            self.first[process] = low
        if newest is None or high > newest:
            self.newest[process] = high
            self.moved_us[process] = now_us
        else:
            high = newest
        if self._held[process] == _FREE and self._waiting:  # what waits must not pass one that takes hold
            self._waiting = deque((at, min(position, high)) for at, position in self._waiting)
        self._hold(process, high)

    def release(self, process: int) -> None:
        """The process no longer holds the watermark."""
        self._hold(process, _FREE)

    def forget(self, process: int) -> None:
        """As if it had never used the axis."""
        self.release(process)
        self.first[process] = self.newest[process] = None

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order; the others do not hold the watermark."""
        self.first = [self.first[at] for at in kept]
        self.newest = [self.newest[at] for at in kept]
        self.moved_us = [self.moved_us[at] for at in kept]
        self._held = [self._held[at] for at in kept]

    def _hold(self, process: int, position: int) -> None:
        before = self._held[process]
        if before == position:
            return
        self._held[process] = position
        if position < self._min:
            self._min, self._at_min = position, 1
        elif position == self._min:
            self._at_min += 1
        if before == self._min and before != _FREE and before != position:
            self._at_min -= 1
            if self._at_min <= 0:
                self._recount()

    def _recount(self) -> None:
        self._min = min(self._held, default=_FREE)
        self._at_min = self._held.count(self._min) if self._min != _FREE else 0

    def move(self, now_us: int) -> int | None:
        """The watermark at ``now_us``, None before the first."""
        if self._min != _FREE:
            if not self.delayed:
                self._raise(self._min - self.lateness_us)
            elif not self._waiting or self._waiting[-1][1] != self._min:
                if self._waiting and self._waiting[-1][0] == now_us:
                    self._waiting.pop()
                self._waiting.append((now_us, self._min))
        while self._waiting and self._waiting[0][0] <= now_us - self.lateness_us:
            self._raise(self._waiting.popleft()[1])
        return self.value

    def _raise(self, position: int) -> None:
        if self.value is None or position > self.value:
            self.value = position

    def dump(self) -> list[Any]:
        return [
            self.value,
            self.first,
            self.newest,
            self.moved_us,
            self._held,
            [list(w) for w in self._waiting],
        ]

    def restore(self, dumped: list[Any]) -> None:
        self.value, self.first, self.newest, self.moved_us, self._held, waiting = dumped
        self._waiting = deque((at, position) for at, position in waiting)
        self._recount()
