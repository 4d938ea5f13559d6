"""The stream of ``windows.py`` in the forms that the tools read, and what they put out as rows to check.

64 ranks log 20 metrics at 10 Hz, in order. A warm-up comes first (compilers that work while a program runs
are then through), a pause of 30 s of event time closes its windows, and what is measured follows. In the
warm-up and after it the times are a whole number of seconds.

    frames     driftline's own: frames of 200 samples (20 metrics of 10 steps), warm-up and rest as two runs
    messages   one Kafka message per sample: key "rank/metric", value one big-endian double, its own time
    wide       one Kafka message per rank and step: key "rank", value 20 doubles
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from window_check import ROW

RANKS = 64
METRICS = 20
SERIES = RANKS * METRICS
STEP_MS = 100
STEPS_A_FRAME = 10
PAUSE_MS = 30_000
NAMES = [f"metric/{at:02d}" for at in range(METRICS)]
CLOSER = b"closer"
"""Key of the messages that only move event time on, so that the last windows close."""


class Stream(NamedTuple):
    """``times_ms`` of all steps and ``values`` (step x rank x metric); the first ``warm`` steps warm up."""

    times_ms: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    warm: int

    @property
    def measured(self) -> int:
        """Samples after the warm-up."""
        return (len(self.times_ms) - self.warm) * SERIES

    @property
    def measured_from_ms(self) -> int:
        return int(self.times_ms[self.warm])

    def first(self, *, warm: int, measured: int) -> Stream:
        """A shorter one: the first ``measured`` samples after the last ``warm`` steps of the warm-up."""
        begin, end = self.warm - warm, self.warm + -(-measured // SERIES)
        return Stream(self.times_ms[begin:end], self.values[begin:end], warm)


def moved(stream: Stream, later_s: float) -> Stream:
    """Dated so that its first window ends so many seconds from now."""
    begin_ms = (time.time_ns() // 1_000_000 // 1000 + int(later_s)) * 1000
    return stream._replace(times_ms=stream.times_ms - stream.times_ms[0] + begin_ms)


def make(*, warm: int, measured: int, last_ms: int, seed: int = 1) -> Stream:
    """At least so many samples, whole frames, all dated before ``last_ms``."""
    samples = STEPS_A_FRAME * SERIES
    warm_steps, steps = (-(-number // samples) * STEPS_A_FRAME for number in (warm, measured))
    at = np.arange(warm_steps + steps, dtype=np.int64) * STEP_MS
    at[warm_steps:] += PAUSE_MS
    begin = (last_ms - int(at[-1])) // 1000 * 1000
    values = np.random.default_rng(seed).normal(2.0, 0.1, (len(at), RANKS, METRICS))
    return Stream(begin + at, values * (1 + np.arange(METRICS)), warm_steps)


# --- driftline's records --------------------------------------------------------------------------------


class Timed(NamedTuple):
    """A record of the log and when the broker took it."""

    time_ms: int
    value: bytes


def records(stream: Stream, warm_run: str, run: str) -> tuple[list[Timed], list[Timed]]:
    """The log of two runs, one after the other, each ended in order, as if it had come in live: frames when
    they are full, a tick a second.

    Heartbeats between the runs, so that no batch of the worker has samples of both.
    """
    from driftline import events

    warm = list(_run(stream, warm_run, 0, stream.warm))
    for now_ms in range(warm[-1].time_ms, stream.measured_from_ms, 1000):
        warm.append(_tick(now_ms))
    for seq in range(600):
        beat = events.Heartbeat(run=warm_run, process="late", seq=seq, time_us=now_ms * 1000)
        warm.append(Timed(now_ms, events.encode(beat)))
    return warm, list(_run(stream, run, stream.warm, len(stream.times_ms)))


def _run(stream: Stream, run: str, begin: int, end: int) -> Iterator[Timed]:
    from driftline import events, frames

    times_us = stream.times_ms * 1000
    begin_ms = int(stream.times_ms[begin])
    for rank in range(RANKS):
        started = events.ProcessStarted(
            run=run,
            process=f"p{rank}",
            seq=0,
            time_us=begin_ms * 1000,
            rank=rank,
            world_size=RANKS,
            host=f"h{rank // 8}",
        )
        yield Timed(begin_ms, events.encode(started))
    metric = np.tile(np.arange(METRICS, dtype=np.int16), STEPS_A_FRAME)
    ones = np.ones(len(metric))
    now_ms = begin_ms
    for seq, first in enumerate(range(begin, end, STEPS_A_FRAME), start=1):
        steps = np.arange(first, first + STEPS_A_FRAME)
        now_ms = int(stream.times_ms[steps[-1]]) + STEP_MS
        for rank in range(RANKS):
            frame = frames.Frame(
                *(run, f"p{rank}", rank, seq, NAMES, metric),
                *(np.repeat(steps - begin, METRICS), np.repeat(times_us[steps], METRICS)),
                *(stream.values[steps, rank].ravel(), ones),
            )
            yield Timed(now_ms, frames.encode(frame))
        yield _tick(now_ms)
    last = (end - begin) // STEPS_A_FRAME + 1
    for rank in range(RANKS):
        ended = events.ProcessEnded(run=run, process=f"p{rank}", seq=last, time_us=now_ms * 1000)
        yield Timed(now_ms, events.encode(ended))


def _tick(now_ms: int) -> Timed:
    from driftline import events

    return Timed(now_ms, events.encode(events.Tick(worker="before", time_us=now_ms * 1000)))


# --- the peers' messages --------------------------------------------------------------------------------


def messages(stream: Stream, *, wide: bool) -> Iterator[tuple[int, bytes, bytes]]:
    """Time, key and value of each message."""
    values = stream.values.astype(">f8")
    ranks = [str(rank).encode() for rank in range(RANKS)]
    keys = [[f"{rank}/{metric}".encode() for metric in range(METRICS)] for rank in range(RANKS)]
    for at, time_ms in enumerate(stream.times_ms.tolist()):
        for rank in range(RANKS):
            whole = values[at, rank].tobytes()
            if wide:
                yield time_ms, ranks[rank], whole
                continue
            for metric in range(METRICS):
                yield time_ms, keys[rank][metric], whole[metric * 8 : metric * 8 + 8]


async def load(
    bootstrap: str, topic: str, partition: int, items: Iterator[tuple[int | None, bytes | None, bytes]]
) -> None:
    """Writes the items (time, key, value) in order, in batches of up to 512 KiB."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_batch_size=512 * 1024, compression_type="lz4"
    )
    await producer.start()
    waiting: list[asyncio.Future[Any]] = []
    try:
        batch = producer.create_batch()
        for time_ms, key, value in items:
            if batch.append(key=key, value=value, timestamp=time_ms) is None:
                waiting.append(await producer.send_batch(batch, topic, partition=partition))
                batch = producer.create_batch()
                batch.append(key=key, value=value, timestamp=time_ms)
        waiting.append(await producer.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()


# --- what came out --------------------------------------------------------------------------------------


def rows_of_driftline(values: list[bytes]) -> npt.NDArray[np.void]:
    """The windows per rank."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from driftline import window_rows

    table = pa.Table.from_batches([window_rows.decode(value)[1] for value in values])
    table = table.filter(pc.starts_with(table["group"], "rank="))
    rows = np.empty(len(table), ROW)
    rank = pc.cast(pc.replace_substring(table["group"], "rank=", ""), pa.int32()).to_numpy()
    metric = pc.cast(pc.replace_substring(table["metric"], "metric/", ""), pa.int32()).to_numpy()
    rows["series"] = rank * METRICS + metric
    rows["start_ms"] = table["start"].to_numpy() // 1000
    for name in ("count", "min", "max", "mean"):
        rows[name] = table[name].to_numpy()
    if "sum" in table.column_names:
        rows["sum"] = table["sum"].to_numpy()
    else:
        rows["sum"] = rows["mean"] * table["weight"].to_numpy()
    return rows


def rows_of_peer(items: list[tuple[bytes, bytes]], *, wide: bool) -> npt.NDArray[np.void]:
    """Key and value of each message: "rank/metric" (or "rank"), the start in 8 bytes behind the key or before
    the numbers, and five doubles for each metric."""
    per_item = METRICS if wide else 1
    rows = np.empty(len(items) * per_item, ROW)
    keep = np.ones(len(rows), bool)
    for at, (key, value) in enumerate(items):
        if len(value) == per_item * 40:
            name, start, numbers = key[:-8], key[-8:], value
        else:
            name, start, numbers = key, value[:8], value[8:]
        part = slice(at * per_item, (at + 1) * per_item)
        if name == CLOSER:
            keep[part] = False
            continue
        rank, _, metric = name.partition(b"/")
        rows["series"][part] = int(rank) * METRICS + (np.arange(METRICS) if wide else int(metric))
        rows["start_ms"][part] = struct.unpack(">q", start)[0]
        table = np.frombuffer(numbers, ">f8").reshape(per_item, 5)
        for column, field in enumerate(("count", "sum", "min", "max", "mean")):
            rows[field][part] = table[:, column]
    return rows[keep]
