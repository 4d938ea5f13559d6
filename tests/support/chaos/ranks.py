"""The raw ranks as one program: runs of a few ranks, small frames at a steady rate unless a file says "hold".

    python ranks.py FRAMES_PER_S FILE

Ends when its standard input does; then prints as JSON how many frames of each process the broker took. The
values of a frame follow from its process and seq (:func:`values_of`).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

METRICS = ("load", "pressure", "loss")
STEPS = 2
SAMPLES = len(METRICS) * STEPS
RANKS = 3
RUNS = ("raw-c", "raw-a", "raw-f", "raw-e")
"""One on each of four partitions (checked at start)."""
_METRIC = np.tile(np.arange(len(METRICS), dtype=np.int16), STEPS)


class Rank(NamedTuple):
    run: str
    rank: int
    number: int
    """Among all raw ranks."""

    @property
    def process(self) -> str:
        return f"{self.run}-p{self.rank}"


ALL = [Rank(run, rank, at * RANKS + rank) for at, run in enumerate(RUNS) for rank in range(RANKS)]
BY_PROCESS = {rank.process: rank for rank in ALL}


def values_of(number: int, seq: int) -> npt.NDArray[np.float64]:
    """The values of a frame: noise, one in 4,000 a NaN, and a loss that falls.

    >>> values_of(3, 5).shape
    (6,)
    """
    ordinal = np.arange(SAMPLES, dtype=np.uint64)
    mixed = (np.uint64(seq * 1_000 + number) * np.uint64(97) + ordinal) * np.uint64(0x9E3779B97F4A7C15)
    noise = (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    falling = 1.0 + 3.0 / (1.0 + seq / 2_000)
    values = np.where(METRICS.index("loss") == _METRIC, falling + 0.1 * noise, noise)
    return np.where(mixed % np.uint64(4_000) == 0, np.nan, values)


def steps_of(seq: int) -> npt.NDArray[np.int64]:
    """Frame 1 has the first steps."""
    first = (seq - 1) * STEPS
    return np.repeat(np.arange(first, first + STEPS, dtype=np.int64), len(METRICS))


def frame_of(rank: Rank, seq: int, now_us: int) -> bytes:
    from driftline import frames

    return frames.encode(
        frames.Frame(
            run=rank.run,
            process=rank.process,
            rank=rank.rank,
            seq=seq,
            names=list(METRICS),
            metric=_METRIC,
            step=steps_of(seq),
            time_us=np.full(SAMPLES, now_us, np.int64),
            value=values_of(rank.number, seq),
            weight=np.ones(SAMPLES),
        )
    )


class Sender:
    """All raw ranks in turn through one producer."""

    def __init__(self) -> None:
        from kafka import KafkaProducer

        from driftline.connection import kafka_python
        from driftline.settings import load
        from driftline.topics import partition_of

        kafka = load().kafka
        self.topic = kafka.topics["telemetry"]
        self.partitions = {run: partition_of(run, kafka.partitions) for run in RUNS}
        assert len(set(self.partitions.values())) == kafka.partitions, (
            f"runs share partitions: {self.partitions}"
        )
        self.producer = KafkaProducer(
            acks="all",
            compression_type="lz4",
            linger_ms=5,
            batch_size=128 * 1024,
            delivery_timeout_ms=86_400_000,
            allow_auto_create_topics=False,
            **kafka_python(kafka),
        )
        self.taken = dict.fromkeys(BY_PROCESS, 0)
        self.failed: list[BaseException] = []

    def send(self, rank: Rank, value: bytes, *, frame: bool = True) -> None:
        future = self.producer.send(
            self.topic, value, key=rank.run.encode(), partition=self.partitions[rank.run]
        )
        future.add_errback(self.failed.append)
        if frame:
            future.add_callback(self._took, rank.process)

    def _took(self, process: str, _: Any) -> None:
        self.taken[process] += 1

    def close(self) -> None:
        self.producer.flush()
        self.producer.close()
        if self.failed:
            raise self.failed[0]


def main() -> None:
    from driftline import events

    rate, gate = int(sys.argv[1]), Path(sys.argv[2])
    sender = Sender()
    for rank in ALL:
        begun = events.ProcessStarted(
            run=rank.run,
            process=rank.process,
            seq=0,
            time_us=time.time_ns() // 1000,
            rank=rank.rank,
            world_size=RANKS,
        )
        sender.send(rank, events.encode(begun), frame=False)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    seq = 0
    due = time.monotonic()
    while not ended.is_set():
        if gate.read_text() == "hold":
            ended.wait(0.05)
            due = time.monotonic()
            continue
        seq += 1
        now_us = time.time_ns() // 1000
        for rank in ALL:
            sender.send(rank, frame_of(rank, seq, now_us))
        due += len(ALL) / rate
        ended.wait(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic() - 1.0)
    for rank in ALL:
        bye = events.ProcessEnded(
            run=rank.run, process=rank.process, seq=seq + 1, time_us=time.time_ns() // 1000
        )
        sender.send(rank, events.encode(bye), frame=False)
    sender.close()
    print(json.dumps({"frames": sender.taken}))


if __name__ == "__main__":
    main()
