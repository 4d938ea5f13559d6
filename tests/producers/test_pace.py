"""Large worlds send few frames, early ones at once, and no heartbeat overtakes a sample."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest

from driftline import events, frames, records
from driftline.producers.counters import Counters, Notes
from driftline.producers.pace import FRAMES_PER_SECOND_MAX, Pace, interval_us
from driftline.producers.transport import MemoryTransport
from driftline.producers.worker import Worker
from driftline.settings import SdkSettings

SECOND = 1_000_000
FLUSH = SdkSettings().flush_us


def sent_at(rank: int, world: int, logged: list[int], until: int) -> list[tuple[int, int]]:
    """When a rank sends a frame, and the oldest sample in it; the thread looks every 10 ms."""
    pace = Pace(flush_us=FLUSH, rank=rank, world_size=world, now_us=0)
    waiting: list[int] = []
    found = []
    for now in range(0, until, 10_000):
        waiting += [at for at in logged if now - 10_000 < at <= now]
        if pace.due(now, bool(waiting)):
            found.append((now, waiting[0]))
            waiting = []
    return found


@pytest.mark.parametrize(
    ("world", "interval"),
    [(None, FLUSH), (1, FLUSH), (400, FLUSH), (1_000, 500_000), (16_384, 8_192_000), (65_536, 10_000_000)],
)
def test_the_interval_grows_with_the_world(world: int | None, interval: int) -> None:
    """At most about 2,000 frames a second up to 20,000 ranks; never longer than a third of the idle limit."""
    assert interval_us(FLUSH, world) == interval


@pytest.mark.parametrize("world", [1, 400, 4_096, 16_384])
def test_a_world_makes_few_frames_and_no_sample_waits_longer_than_the_interval(world: int) -> None:
    """One sample a second: the first of a rank leaves within the flush time, whatever the world's size."""
    logged = [second * SECOND for second in range(3, 60)]
    each = interval_us(FLUSH, world)
    total = 0
    for rank in range(0, world, max(1, world // 16)):
        found = sent_at(rank, world, logged, 60 * SECOND)
        assert found[0][0] - logged[0] <= FLUSH + 10_000
        assert max(at - oldest for at, oldest in found) <= each + FLUSH + 10_000
        total += len([at for at, _ in found if at > 20 * SECOND])
    ranks = len(range(0, world, max(1, world // 16)))
    assert total / ranks * world / 40 <= max(world, FRAMES_PER_SECOND_MAX * 1.05)


def test_ranks_that_begin_together_spread_over_the_interval() -> None:
    """After the first frame, which all send at once, no tenth of the interval has more than its share."""
    world, each = 16_384, interval_us(FLUSH, 16_384)
    logged = [second * SECOND for second in range(3, 40)]
    ranks = range(0, world, 256)
    places = [0] * 10
    for rank in ranks:
        third = sent_at(rank, world, logged, 40 * SECOND)[2][0]
        places[third % each * 10 // each] += 1
    assert max(places) <= 2 * len(ranks) / 10


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def steady_us(self) -> int:
        return self.now

    def now_us(self) -> int:
        return 1_700_000_000 * SECOND + self.now


@pytest.mark.parametrize(
    ("world", "flush"), [(1, FLUSH), (1, 8 * SECOND), (4_096, FLUSH), (16_384, FLUSH), (65_536, FLUSH)]
)
def test_no_heartbeat_overtakes_a_sample_and_nobody_is_silent_for_long(world: int, flush: int) -> None:
    """A heartbeat moves the watermark to its time and step: what was logged before is in the log by then."""
    clock, queue = Clock(), deque[Any]()
    started = events.ProcessStarted(
        run="r", process="p", seq=0, time_us=clock.now_us(), rank=world - 1, world_size=world
    )
    way = MemoryTransport()
    worker = Worker(
        queue=queue,
        drained=lambda count: None,
        started=started,
        settings=SdkSettings(flush_us=flush),
        transport=way,
        counters=Counters(),
        notes=Notes(),
        clock=clock,
        broker="memory",
    )
    worker.begin()
    logged: list[int] = []
    seen: list[int] = []
    spoke = 0
    for now in range(0, 90 * SECOND, 100_000):
        clock.now = now
        if now % (2 * SECOND) == 0 and not 30 * SECOND < now < 60 * SECOND:
            logged.append(clock.now_us())
            queue.append((clock.now_us() * 1000, len(logged), None, {"a": 1.0}))
        if now == 40 * SECOND:
            queue.append((clock.now_us() * 1000, 99, None, {"a": math.nan}))
            logged.append(clock.now_us())
        worker.round()
        for _, payload in way.log[len(seen) :]:
            content = records.decode(payload)
            spoke = now
            seen.append(0)
            if isinstance(content, frames.Frame):
                del logged[: len(content.metric)]
            elif isinstance(content, events.Heartbeat):
                assert not [at for at in logged if at <= content.time_us]
        assert now - spoke <= 10 * SECOND + FLUSH
        if now == 40 * SECOND:
            assert not logged, "a NaN leaves at once"
