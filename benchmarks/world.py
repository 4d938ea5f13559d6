"""The log of a training of many ranks, made ahead: frames as the SDK cuts them for a world of that size.

Each rank logs 20 metrics once a second. The SDK's flush interval grows with the world (``interval_us``), so
that a run makes at most about 2,000 frames a second: one rank's frame holds one second at 16 ranks, eight at
16,384. All ranks send their first second at once; from then on the moments are spread over the interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from driftline import events, frames
from driftline.producers.pace import interval_us
from driftline.settings import SdkSettings

METRICS = [f"train/metric_{at}" for at in range(17)] + ["loss", "span/forward", "grad_norm"]
BASE_US = 1_700_000_000_000_000
RUN = "01scale"


class Made(NamedTuple):
    """A record of the log: when it is sent, its bytes, its samples."""

    time_us: int
    value: bytes
    samples: int


def flush_us(ranks: int) -> int:
    """How long a sample of such a world waits for its frame."""
    return interval_us(SdkSettings().flush_us, ranks)


def starts(ranks: int, *, run: str = RUN, base_us: int = BASE_US) -> Iterator[Made]:
    """All ranks of a world start."""
    for rank in range(ranks):
        start = events.ProcessStarted(
            run=run,
            process=f"{run}-p{rank:05d}",
            seq=0,
            time_us=base_us,
            rank=rank,
            world_size=ranks,
            host=f"h{rank // 8:04d}",
        )
        yield Made(base_us, events.encode(start), 0)


def frames_of(
    ranks: int, seconds: int, *, run: str = RUN, base_us: int = BASE_US, steps_per_frame: int | None = None
) -> Iterator[Made]:
    """The frames of ``seconds`` seconds, in the order in which they are sent.

    ``steps_per_frame``: so many seconds in each frame, instead of what the SDK would send together.
    """
    each_us = flush_us(ranks) if steps_per_frame is None else steps_per_frame * 1_000_000
    chance = np.random.default_rng(ranks)
    count = len(METRICS)
    level = 1.0 + np.arange(count)
    noise = chance.normal(1.0, 0.05, (257, 16 * count))
    first_us = 1_000_000 + SdkSettings().flush_us
    done, seq = [0] * ranks, [0] * ranks
    for turn in itertools.count():
        for at in range(ranks):
            rank = at if not turn else ranks - 1 - at
            now_us = first_us + turn * each_us - (each_us * rank // ranks if turn else 0)
            if now_us > seconds * 1_000_000:
                if at == 0:
                    return
                break
            first, until = done[rank], now_us // 1_000_000  # step s is logged at second s + 1
            steps = int(until - first)
            if not steps:
                continue
            done[rank] = until
            seq[rank] += 1
            step = np.repeat(np.arange(first, until, dtype=np.int64), count)
            size = len(step)
            row = noise[(rank * 31 + turn * 7) % 257]
            value = np.tile(level, steps) * np.resize(row, size)
            frame = frames.Frame(
                run=run,
                process=f"{run}-p{rank:05d}",
                rank=rank,
                seq=seq[rank],
                names=METRICS,
                metric=np.tile(np.arange(count, dtype=np.int16), steps),
                step=step,
                time_us=base_us + (step + 1) * 1_000_000 - 500 + rank % 500,
                value=value,
                weight=np.ones(size),
            )
            yield Made(base_us + now_us, frames.encode(frame), size)
