"""Trainings for the tests of the real pipeline in worker processes, and what its outputs must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from driftline import events, frames, window_rows
from driftline.records import OutputId
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline

METRICS = ["loss", "grad_norm", "tokens", "step_time"]
STEPS_PER_FRAME = 10


def frames_of(run: str, steps: range) -> list[bytes]:
    """Frames of two ranks of a run: noisy, with a NaN now and then."""
    payloads = []
    for first in steps[::STEPS_PER_FRAME]:
        for rank in range(2):
            rng = np.random.default_rng([sum(run.encode()), first, rank])
            count = STEPS_PER_FRAME * len(METRICS)
            value = rng.normal(2.0, 0.3, count)
            value[rng.random(count) < 0.01] = np.nan
            now_us = time.time_ns() // 1000
            frame = frames.Frame(
                run=run,
                process=f"{run}-{rank}",
                rank=rank,
                seq=1 + first // STEPS_PER_FRAME,
                names=METRICS,
                metric=np.tile(np.arange(len(METRICS), dtype=np.int16), STEPS_PER_FRAME),
                step=np.repeat(np.arange(first, first + STEPS_PER_FRAME, dtype=np.int64), len(METRICS)),
                time_us=np.full(count, now_us, np.int64),
                value=value,
                weight=np.ones(count),
            )
            payloads.append(frames.encode(frame))
    return payloads


def starts_of(run: str) -> list[bytes]:
    """The two ranks start."""
    now_us = time.time_ns() // 1000
    return [
        events.encode(
            events.ProcessStarted(
                run=run, process=f"{run}-{rank}", seq=0, time_us=now_us, rank=rank, world_size=2
            )
        )
        for rank in range(2)
    ]


def id_of(topic: str, value: bytes) -> OutputId:
    """The id of an output."""
    if topic == "windows":
        return window_rows.decode(value)[0]
    event = events.decode(value)
    return OutputId.parse(event.id)  # type: ignore[union-attr]


class Compared(NamedTuple):
    """What was found: outputs with windows, and records that a reader with a high-water mark drops."""

    windows: int
    repeats: int


def compare(uuid: str, partition: int, log: Sequence[Any], sent: Callable[[str], Sequence[Any]]) -> Compared:
    """Holds that what a reader keeps of a partition is what the pure pipeline gives for its log."""
    core = Pipeline()
    state = beginning(core, uuid, partition, log)
    wanted: dict[str, list[bytes]] = {"windows": [], "facts": [], "alerts": []}
    for output in core.step(state, log):
        wanted[output.topic].append(output.value)
    repeats = 0
    for topic, values in wanted.items():
        kept, mark = [], (-1, -1)
        for record in sent(topic):
            this = id_of(topic, record.value)
            if (this.offset, this.ordinal) > mark:
                kept.append(record.value)
                mark = (this.offset, this.ordinal)
            else:
                repeats += 1
                assert record.value in values, f"{topic} {this} was sent with another content"
        assert kept == values, f"{topic} of partition {partition} differ from the oracle"
    return Compared(len(wanted["windows"]), repeats)
