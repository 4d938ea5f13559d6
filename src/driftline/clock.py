"""Time as an argument: microseconds since 1970 in UTC (``now_us``) and a steady clock (``steady_us``).

Pure modules take times as values; shells take a :class:`Clock`. Integer microseconds everywhere.
"""

from __future__ import annotations

import time
from typing import Protocol

SECOND_US = 1_000_000


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch, UTC."""
        ...

    def steady_us(self) -> int:
        """Microseconds on a clock that never goes back; only differences mean something."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def steady_us(self) -> int:
        return time.monotonic_ns() // 1000


class ManualClock:
    """A clock that moves only when told, for tests and simulation.

    >>> clock = ManualClock(now_us=5)
    >>> clock.advance(10); clock.now_us()
    15
    """

    def __init__(self, *, now_us: int = 0) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def steady_us(self) -> int:
        return self._now_us

    def advance(self, by_us: int) -> None:
        self._now_us += by_us
