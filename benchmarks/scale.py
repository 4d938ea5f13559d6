"""16,384 ranks with 20 metrics at 1 Hz through one stream worker on real Kafka; what a sample costs by world.

    .venv/bin/python benchmarks/scale.py [--quick] [--seconds N] [--ranks N]

First the pipeline alone, each world in a process of its own: CPU time per sample at 16, 256, 4,096 and 16,384
ranks, decoding included (``us_per_sample_N``: frames of eight seconds for all worlds, so that they are
comparable; ``us_as_sent_N``: frames as the SDK cuts them for that world, from one second up to eight), the
snapshot's size and the time to make it.

Then real Kafka (``DRIFTLINE_TEST_BOOTSTRAP``, else a JVM): frames made ahead are sent as the SDK would send
them, with all default detectors: all ranks start, and after a while log for so many seconds.
``offered_per_s`` and ``processed_per_s`` are samples; ``max_lag_s`` is the longest time from a record's
arrival at the broker to that of the windows that it closed, ``lag_p50_s`` the median; ``behind_s``: how long
after the last frame the worker had worked on all (it is read from snapshots, every 3 s); ``rss_mib``: the
worker's peak. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import world
from pipeline import _cpu_s, _kafka, _role

WORLDS = (16, 256, 4_096, 16_384)
BATCH = 500
STEPS = 8
HEAD = struct.Struct("<qi")
START_S = 6.0
"""From the start of the ranks until they log."""


def records_of(made: Iterable[world.Made]) -> tuple[list[Any], int]:
    """A log with a tick each second; the samples in it."""
    from driftline import events
    from driftline.records import Record

    records: list[Any] = []
    tick_us, samples = world.BASE_US, 0
    for one in made:
        while tick_us + 1_000_000 <= one.time_us:
            tick_us += 1_000_000
            tick = events.encode(events.Tick(worker="w", time_us=tick_us))
            records.append(Record(0, len(records), tick_us // 1000, tick))
        records.append(Record(0, len(records), one.time_us // 1000, one.value))
        samples += one.samples
    return records, samples


def pure(ranks: int, samples: int, steps: int | None) -> dict[str, float]:
    """The pipeline alone: the first frames of all ranks, then about so many samples, which are timed."""
    from driftline.streams.pipeline import Pipeline

    each_s = steps or max(1, round(world.flush_us(ranks) / 1e6))
    seconds = 2 + each_s + max(2 * each_s, samples // (ranks * len(world.METRICS)))
    base_us = world.BASE_US + (1 + each_s) * 1_000_000
    pipeline = Pipeline()
    state = pipeline.fresh("bench", 0)
    frames = list(world.frames_of(ranks, seconds, steps_per_frame=steps))
    first, _ = records_of([*world.starts(ranks), *(m for m in frames if m.time_us <= base_us)])
    log, _ = records_of([*world.starts(ranks), *frames])
    timed = sum(m.samples for m in frames if m.time_us > base_us)
    begin = time.process_time()
    for at in range(0, len(first), BATCH):
        pipeline.step(state, log[at : min(len(first), at + BATCH)])
    started = time.process_time()
    for at in range(len(first), len(log), BATCH):
        pipeline.step(state, log[at : at + BATCH])
    ended = time.process_time()
    snapshot = pipeline.dump(state)
    assert not any(name.startswith(("late", "refused")) for name in state.counters), state.counters
    return {
        "us_per_sample": (ended - started) / timed * 1e6,
        "us_per_frame": (ended - started) / (len(log) - len(first)) * 1e6,
        "start_us_per_rank": (started - begin) / ranks * 1e6,
        "snapshot_mib": len(snapshot) / 2**20,
        "snapshot_ms": (time.process_time() - ended) * 1e3,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def write(path: Path, ranks: int, seconds: int) -> int:
    """The frames of a world, ahead; how many samples they have."""
    samples = 0
    with path.open("wb") as file:
        base_us = time.time_ns() // 1000
        for made in world.frames_of(ranks, seconds, base_us=base_us):
            file.write(HEAD.pack(made.time_us - base_us, len(made.value)))
            file.write(made.value)
            samples += made.samples
    return samples


def read(path: Path) -> Iterator[tuple[int, bytes]]:
    """What :func:`write` wrote: when to send it, and its bytes."""
    with path.open("rb", buffering=1 << 20) as file:
        while head := file.read(HEAD.size):
            at_us, size = HEAD.unpack(head)
            yield at_us, file.read(size)


def produce(path: Path, ranks: int) -> None:
    """Sends starts, then frames when they are due; says when it began and ended, and where the log ends."""
    from kafka import KafkaProducer

    from driftline.topics import DEFAULT_PARTITIONS, partition_of

    producer = KafkaProducer(
        bootstrap_servers=[os.environ["DRIFTLINE_BOOTSTRAP"]],
        acks="all",
        compression_type="lz4",
        linger_ms=5,
        batch_size=256 * 1024,
        allow_auto_create_topics=False,
    )
    topic = os.environ["DRIFTLINE_PREFIX"] + "telemetry"
    partition = partition_of(world.RUN, DEFAULT_PARTITIONS)
    failed: list[BaseException] = []

    def send(value: bytes) -> Any:
        sent = producer.send(topic, value, key=world.RUN.encode(), partition=partition)
        return sent.add_errback(failed.append)

    for start in world.starts(ranks, base_us=time.time_ns() // 1000):
        send(start.value)
    producer.flush()
    time.sleep(START_S)
    begin, late_s, last = time.time(), 0.0, None
    for at_us, value in read(path):
        wait_s = begin + at_us / 1e6 - time.time()
        if wait_s > 0.002:
            time.sleep(wait_s)
        late_s = max(late_s, -wait_s)
        last = send(value)
    producer.flush()
    assert last is not None
    if failed:
        raise failed[0]
    print(json.dumps({"begin": begin, "end": time.time(), "late_s": late_s, "last": last.get(60).offset}))


def lags(settings: Any, partition: int) -> list[float]:
    """For each input record that closed windows: seconds from its arrival until they were sent."""
    from kafka import KafkaConsumer, TopicPartition

    from driftline import window_rows
    from driftline.connection import kafka_python

    consumer = KafkaConsumer(enable_auto_commit=False, **kafka_python(settings))
    made = TopicPartition(settings.topics["windows"], partition)
    source = TopicPartition(settings.topics["telemetry"], partition)
    consumer.assign([made])
    consumer.seek_to_beginning(made)
    end = consumer.end_offsets([made])[made]
    sent_ms: dict[int, int] = {}
    while consumer.position(made) < end:
        for batch in consumer.poll(500).values():
            for record in batch:
                sent_ms.setdefault(window_rows.decode(record.value)[0].offset, record.timestamp)
    consumer.assign([source])
    found = []
    for offset, at_ms in sorted(sent_ms.items()):
        consumer.seek(source, offset)
        record = None
        while record is None:
            record = next((r for batch in consumer.poll(500, max_records=1).values() for r in batch), None)
        found.append((at_ms - record.timestamp) / 1000)
    consumer.close()
    return found


def measure(bootstrap: str, broker: psutil.Process | None, ranks: int, seconds: int) -> dict[str, Any]:
    """The world through one worker."""
    from driftline import admin
    from driftline.connection import KafkaSettings
    from driftline.topics import partition_of

    settings = KafkaSettings(bootstrap=bootstrap, prefix=f"scale{os.getpid()}.")
    admin.ensure_topics(settings)
    partition = partition_of(world.RUN, settings.partitions)
    with tempfile.TemporaryDirectory(prefix="driftline-bench-") as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "frames"
        samples = write(path, ranks, seconds)
        environ = os.environ | {
            "DRIFTLINE_BOOTSTRAP": bootstrap,
            "DRIFTLINE_PREFIX": settings.prefix,
            "DRIFTLINE_STREAMS__STATE_DIR": str(Path(folder) / "state"),
        }
        worker = stack.enter_context(_role("driftline.streams.worker", "run_streams", environ))
        client = admin.connect(settings)
        stack.callback(client.close)
        while _applied(client, settings, partition) < 0:
            assert worker.poll() is None, "the worker ended"
            time.sleep(0.3)
        process = psutil.Process(worker.pid)
        parts = {"worker": process} | ({} if broker is None else {"broker": broker})
        before = {name: _cpu_s(part) for name, part in parts.items()}
        command = [sys.executable, __file__, "--produce", str(path), "--ranks", str(ranks)]
        producer = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        rss, told = 0, ""
        while producer.poll() is None:
            rss = max(rss, process.memory_info().rss)
            time.sleep(0.2)
        told = producer.stdout.read() if producer.stdout else ""
        sent = json.loads(told)
        while _applied(client, settings, partition) <= sent["last"]:
            assert worker.poll() is None, "the worker ended"
            rss = max(rss, process.memory_info().rss)
            time.sleep(0.2)
        done = time.time()
        spent = {name: _cpu_s(part) - before[name] for name, part in parts.items()}
        lag = lags(settings, partition)
        return {
            "ranks": ranks,
            "offered_per_s": round(samples / (sent["end"] - sent["begin"])),
            "processed_per_s": round(samples / (done - sent["begin"])),
            "max_lag_s": round(max(lag), 2),
            "lag_p50_s": round(float(np.median(lag)), 2),
            "closings": len(lag),
            "behind_s": round(done - sent["end"], 1),
            "rss_mib": round(rss / 2**20),
            "samples": samples,
            "seconds": round(sent["end"] - sent["begin"], 1),
            "sender_late_s": round(sent["late_s"], 2),
            **{f"cpu_{name}_s": round(cpu, 1) for name, cpu in spent.items()},
        }


def _applied(client: Any, settings: Any, partition: int) -> int:
    """Records below the worker's newest snapshot; -1 while it has none."""
    from kafka.errors import KafkaError

    try:
        found = client.list_group_offsets({f"{settings.prefix}streams": None})
    except KafkaError:  # no group yet
        return -1
    for offsets in found.values():
        for at, offset in offsets.items():
            if (at.topic, at.partition) == (settings.topics["telemetry"], partition):
                return int(offset.offset)
    return -1


def table(samples: int) -> dict[str, float]:
    """:func:`pure` for each world, each in a process of its own."""
    result: dict[str, float] = {}
    for ranks in WORLDS:
        for steps, name in ((STEPS, "us_per_sample"), (0, "us_as_sent")):
            command = [sys.executable, __file__, "--pure", f"{ranks},{samples},{steps}"]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            result[f"{name}_{ranks}"] = round(found["us_per_sample"], 2)
        for name in ("start_us_per_rank", "snapshot_mib", "snapshot_ms", "peak_rss_mib"):
            result[f"{name}_{ranks}"] = round(found[name], 1)
        print(f"{ranks} ranks: {found}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute on free cores")
    parser.add_argument("--seconds", type=int, default=0, help="how long the ranks log (60, quick 20)")
    parser.add_argument("--ranks", type=int, default=WORLDS[-1])
    parser.add_argument("--produce", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.pure:
        ranks, samples, steps = map(int, asked.pure.split(","))
        print(json.dumps(pure(ranks, samples, steps or None)))
        return
    if asked.produce is not None:
        produce(asked.produce, asked.ranks)
        return
    result: dict[str, Any] = table(600_000 if asked.quick else 3_000_000)
    with _kafka() as (bootstrap, broker):
        seconds = asked.seconds or (20 if asked.quick else 60)
        result = measure(bootstrap, broker, asked.ranks, seconds) | result
    print(json.dumps(result))


if __name__ == "__main__":
    main()
