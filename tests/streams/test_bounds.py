"""The state of a partition stays within the bounds that docs/windows.md gives, and goes when it is over."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from driftline import config, events, frames
from driftline.config import WindowSpec
from driftline.records import Record
from driftline.streams import warm
from driftline.streams.attempts import PartitionState
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
MIB = 1 << 20


class Writer:
    """Writes a log and applies it in batches; counts the largest memory that the state took meanwhile."""

    def __init__(self) -> None:
        self.pipeline = Pipeline()
        self.state: PartitionState = self.pipeline.fresh("uuid", 0)
        self.records: list[Record] = []
        self.offset = 0

    def add(self, at_us: int, value: bytes) -> None:
        self.records.append(Record(0, self.offset, at_us // 1000, value))
        self.offset += 1

    def configure(self, **fields: Any) -> None:
        body = config.encode(config.PipelineConfig(**fields))
        digest = config.digest(body)
        event = events.ConfigChanged(worker="w", time_us=BASE, digest=digest, body=msgspec.Raw(body))
        self.add(BASE, events.encode(event))

    def frame(self, run: str, seq: int, at_us: int, names: list[str], rank: int = 0) -> None:
        count = len(names)
        frame = frames.Frame(
            run=run,
            process=f"{run}-p{rank}",
            rank=rank,
            seq=seq,
            names=names,
            metric=np.arange(count, dtype=np.int16),
            step=np.full(count, seq, np.int64),
            time_us=np.full(count, at_us, np.int64),
            value=np.linspace(1.0, 2.0, count),
            weight=np.ones(count),
        )
        self.add(at_us, frames.encode(frame))

    def tick(self, at_us: int) -> None:
        self.add(at_us, events.encode(events.Tick(worker="w", time_us=at_us)))

    def apply(self) -> int:
        outputs = self.pipeline.step(self.state, self.records)
        self.records = []
        return len(outputs)


@pytest.fixture
def writer() -> Writer:
    warm.up()  # what kernels take is none of the state
    return Writer()


def used_mib() -> float:
    """Of this process, once garbage is away."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / MIB


def test_ten_thousand_names_stay_within_200_mib(writer: Writer) -> None:
    """10,000 metric names in a frame, each second; in windows of 4 s and 4 steps."""
    writer.configure(windows=[WindowSpec("time", 4 * SECOND, SECOND), WindowSpec("step", 4, 1)])
    names = [f"layer_{number:05d}/grad_norm" for number in range(10_000)]
    before = used_mib()
    sizes = []
    for second in range(14):
        at_us = BASE + second * SECOND
        writer.frame("wide", second, at_us, names)
        writer.tick(at_us)
        writer.apply()
        sizes.append(used_mib() - before)
    assert max(sizes) < 200, sizes
    assert "refused_time" not in writer.state.counters


def test_a_thousand_runs_stay_within_200_mib_and_go_in_the_end(writer: Writer) -> None:
    """1,000 runs of 20 metrics in one partition; the worker starts again, nothing comes any more: 0 keys."""
    writer.configure(expire_us=40 * SECOND)
    names = [f"m{number}" for number in range(20)]
    before = used_mib()
    for second in range(2):
        at_us = BASE + second * SECOND
        for run in range(1_000):
            writer.frame(f"run-{run}", second, at_us, names)
        writer.apply()
    assert len(writer.state.runs) == 1_000
    assert used_mib() - before < 200
    writer.state = writer.pipeline.load(writer.pipeline.dump(writer.state))
    for second in range(3, 60, 9):
        writer.tick(BASE + second * SECOND)
    writer.apply()
    assert len(writer.state.runs) == 0
    assert len(writer.pipeline.dump(writer.state)) < MIB, "what is remembered of each run"
