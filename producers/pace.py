"""How often a process speaks: frames that are not full, and heartbeats. Pure.

A sample waits at most ``sdk.flush`` (``flush_us``) in a small world. In a large one all ranks together make
at most about :data:`FRAMES_PER_SECOND_MAX` frames a second: a process sends one per interval, which grows
with the world. The first after a quiet time still leaves within ``flush_us``: so the pipeline learns at once
of every process whose position it must wait for; else the first steps after a start or a pause would be late
for ranks that speak an interval after the first. Ranks that began together then spread over the interval.

Frames that are full, a NaN, a checkpoint and ``run.flush()`` are apart: they leave at once.
"""

from __future__ import annotations

FRAMES_PER_SECOND_MAX = 2_000
INTERVAL_MAX_US = 10_000_000
"""A process that is silent for 30 s counts as idle. Worlds of over 20,000 ranks make more frames."""


def world_us(world_size: int | None) -> int:
    """How far apart the frames of one of so many ranks are.

    >>> world_us(8), world_us(16_384), world_us(1_000_000)
    (4000, 8192000, 10000000)
    """
    return min(INTERVAL_MAX_US, (world_size or 1) * 1_000_000 // FRAMES_PER_SECOND_MAX)


def interval_us(flush_us: int, world_size: int | None) -> int:
    """How long a sample waits for its frame at most.

    >>> interval_us(200_000, 8), interval_us(200_000, 4096)
    (200000, 2048000)
    """
    return max(flush_us, world_us(world_size))


class Pace:
    """When one process sends what waits."""

    def __init__(self, *, flush_us: int, rank: int | None, world_size: int | None, now_us: int) -> None:
        self.interval_us = interval_us(flush_us, world_size)
        self._flush_us = flush_us
        world = max(1, world_size or 1)
        self._place_us = self.interval_us * ((rank or 0) % world) // world
        """Where in the interval this rank sends, counted from the first frame after a quiet time."""
        self._looked_us = now_us
        self._sent_us = now_us - 2 * self.interval_us

    @property
    def next_us(self) -> int:
        """When to look again."""
        return self._looked_us + self._flush_us

    def due(self, now_us: int, waits: bool) -> bool:
        """Whether what waits (if anything does) is to be sent now; it counts as sent then."""
        if now_us < self.next_us:
            return False
        self._looked_us = now_us
        since_us = now_us - self._sent_us
        if not waits or since_us < self.interval_us:
            return False
        after_quiet = since_us >= 2 * self.interval_us
        self._sent_us = now_us - (self._place_us if after_quiet else 0)
        return True

    def sent(self, now_us: int) -> None:
        """What waited was sent for another reason."""
        self._looked_us = self._sent_us = now_us
