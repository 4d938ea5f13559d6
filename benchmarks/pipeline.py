"""Samples per second from producer processes through real Kafka, the Faust worker and the sink to Parquet.

    .venv/bin/python benchmarks/pipeline.py [--quick] [--seconds N]

One run of 64 ranks, all on this machine: producer processes encode frames of 200 samples (20 metrics of 10
steps), in a second measurement of 2,000 (100 steps), and send them as fast as the broker takes them, at most
``--ahead`` frames before the worker (a tenth of that where frames are large). One stream worker (windows on
both axes, all default detectors, snapshots) and one sink work beside them, as processes, with default
settings (but a snapshot each second, since it tells the progress). The clock runs from the first frame until
the worker has applied and the sink has committed every frame. The broker is ``DRIFTLINE_TEST_BOOTSTRAP``,
else Apache Kafka in a JVM.

The last line is one flat JSON object: ``samples_per_s`` (samples stored over that time), ``samples_in``
(accepted by the broker), ``samples_stored`` (rows committed), ``window_rows``, ``seconds``; where the time
goes: ``cpu_<process>_s`` of broker, producers, worker and sink, and ``cores``; ``worker_queued_s``: how long
the worker was ready to run and had no core; ``worker_s``, ``sink_s``: when each of the two was done. With
frames of 2,000 the same names end in ``_2000``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support import load

RANKS = 64
PRODUCERS = 2
METRICS = 20
STEPS = (10, 100)
"""Per frame."""
RUN = "01benchmark"
HERE = Path(__file__).resolve().parent
DRAIN_S = 25.0
FEW = 10
"""So many records at the end may wait for a later snapshot, from which the worker's progress is read."""


def produce(bootstrap: str, prefix: str, first: int, seconds: float, allowance: str, per: int) -> None:
    """Sends frames of half of the ranks until the time is over; prints how many were accepted."""
    from kafka import KafkaProducer

    from driftline import events, frames
    from driftline.topics import DEFAULT_PARTITIONS, partition_of

    producer = KafkaProducer(
        bootstrap_servers=[bootstrap],
        acks="all",
        compression_type="lz4",
        linger_ms=5,
        batch_size=256 * 1024,
        allow_auto_create_topics=False,
    )
    partition = partition_of(RUN, DEFAULT_PARTITIONS)
    ranks = range(first, RANKS, PRODUCERS)
    failed: list[BaseException] = []
    sent = 0

    def send(value: bytes) -> None:
        producer.send(f"{prefix}telemetry", value, key=RUN.encode(), partition=partition).add_errback(
            failed.append
        )

    for rank in ranks:
        start = events.ProcessStarted(
            run=RUN, process=f"p{rank}", seq=0, time_us=_now_us(), rank=rank, world_size=RANKS
        )
        send(events.encode(start))
    names = [f"metric/{at:02d}" for at in range(METRICS)]
    size = METRICS * per
    metric = np.tile(np.arange(METRICS, dtype=np.int16), per)
    values = np.random.default_rng(first).normal(1.0, 0.1, (97, size))
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    step = 0
    while time.monotonic() < end:
        while sent > int(Path(allowance).read_text() or 0):
            time.sleep(0.01)
            if time.monotonic() > end:
                break
        steps = np.repeat(np.arange(step, step + per, dtype=np.int64), METRICS)
        for rank in ranks:
            frame = frames.Frame(
                run=RUN,
                process=f"p{rank}",
                rank=rank,
                seq=1 + step // per,
                names=names,
                metric=metric,
                step=steps,
                time_us=np.full(size, _now_us(), np.int64),
                value=values[sent % 97],
                weight=np.ones(size),
            )
            send(frames.encode(frame))
            sent += 1
        step += per
    producer.flush()
    producer.close()
    if failed:
        raise failed[0]
    print(sent)


def measure(
    bootstrap: str, broker: psutil.Process | None, seconds: float, ahead: int, per: int
) -> dict[str, Any]:
    """All parts for so long, with frames of ``per`` steps; ``ahead`` frames may wait for the worker."""
    from driftline.admin import ensure_topics
    from driftline.connection import KafkaSettings

    samples = METRICS * per
    prefix = f"bench{os.getpid()}-{per}."
    settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix)
    ensure_topics(settings)
    with tempfile.TemporaryDirectory(prefix="driftline-bench-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder) / "data"
        environ = os.environ | {
            "DRIFTLINE_BOOTSTRAP": bootstrap,
            "DRIFTLINE_PREFIX": prefix,
            "DRIFTLINE_STORAGE__ROOT": str(root),
            "DRIFTLINE_STREAMS__SNAPSHOT": "1s",
        }
        worker = stack.enter_context(_role("driftline.streams.worker", "run_streams", environ))
        sink = stack.enter_context(_role("driftline.storage.sink", "run_sink", environ))
        progress = _Progress(settings, root)
        stack.callback(progress.close)
        while not progress.started():
            _check(worker, sink)
            time.sleep(0.2)
        parts = {"worker": psutil.Process(worker.pid), "sink": psutil.Process(sink.pid)}
        if broker is not None:
            parts["broker"] = broker
        allowance = Path(folder) / "allowance"
        allowance.write_text(str(ahead // PRODUCERS))
        producers = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--produce",
                    str(at),
                    "--seconds",
                    str(seconds),
                    "--steps",
                    str(per),
                ],
                env=environ | {"BENCH_ALLOWANCE": str(allowance)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for at in range(PRODUCERS)
        ]
        for process in producers:
            _say(process, "")
        parts |= {f"producer{at}": psutil.Process(process.pid) for at, process in enumerate(producers)}
        before = {name: _cpu_s(process) for name, process in parts.items()}
        queued = _queued_s(worker.pid)
        begin = time.monotonic()
        for process in producers:
            _say(process, "go\n")
        spent: dict[str, float] = {}
        while any(process.poll() is None for process in producers):
            _check(worker, sink)
            spent |= {name: cpu for name in parts if (cpu := _cpu_s(parts[name]) - before[name]) > 0}
            allowance.write_text(str((progress.applied() + ahead) // PRODUCERS))
            time.sleep(0.1)
        frames_in = sum(int((process.stdout.read() if process.stdout else "") or 0) for process in producers)
        done = {"worker_s": 0.0, "sink_s": 0.0}
        while not all(done.values()) and time.monotonic() < begin + seconds + DRAIN_S:
            _check(worker, sink)
            if not done["worker_s"] and progress.applied() >= frames_in + RANKS - FEW:
                done["worker_s"] = time.monotonic() - begin
            if not done["sink_s"] and progress.stored() >= frames_in * samples:
                done["sink_s"] = time.monotonic() - begin
            time.sleep(0.1)
        elapsed = time.monotonic() - begin
        queued = _queued_s(worker.pid) - queued
        stored = progress.stored()
        for name in ("worker", "sink", "broker"):
            if name in parts:
                spent[name] = _cpu_s(parts[name]) - before[name]
        producing = sum(spent.pop(f"producer{at}", 0.0) for at in range(PRODUCERS))
        return {
            "samples_per_s": round(stored / elapsed),
            "samples_in": frames_in * samples,
            "samples_stored": stored,
            "window_rows": progress.window_rows(),
            "frames_applied": progress.applied(),
            "seconds": round(elapsed, 2),
            **{name: round(value, 2) for name, value in done.items()},
            "cpu_producers_s": round(producing, 2),
            **{f"cpu_{name}_s": round(cpu, 2) for name, cpu in spent.items()},
            "worker_queued_s": round(queued, 2),
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[1], 1),
        }


class _Progress:
    """How far worker and sink are, as anyone can see it: the group's offsets and the tables."""

    def __init__(self, settings: Any, root: Path) -> None:
        from driftline import admin
        from driftline.topics import partition_of

        self._client = admin.connect(settings)
        self._group = f"{settings.prefix}streams"
        self._topic = settings.topics["telemetry"]
        self._partition = partition_of(RUN, settings.partitions)
        self._root = root
        self._first: int | None = None

    def started(self) -> bool:
        """The worker has the partition, and the sink its tables."""
        return self._offset() > 0 and (self._root / "samples" / "_delta_log").exists()

    def applied(self) -> int:
        """Records below the worker's newest snapshot, ticks left out as well as can be told (under 1 %)."""
        return self._offset()

    def _offset(self) -> int:
        from kafka.errors import KafkaError

        try:
            found = self._client.list_group_offsets({self._group: None})
        except KafkaError:  # no group yet
            return 0
        for offsets in found.values():
            for at, offset in offsets.items():
                if (at.topic, at.partition) == (self._topic, self._partition):
                    return int(offset.offset)
        return 0

    def stored(self) -> int:
        return self._rows("samples")

    def window_rows(self) -> int:
        return self._rows("windows")

    def _rows(self, table: str) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(self._root / table).count())

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def _role(module: str, function: str, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A role as a process of its own, ended with SIGTERM."""
    code = f"import sys; from driftline.settings import load; from {module} import {function} as run; "
    process = subprocess.Popen([sys.executable, "-c", code + "sys.exit(run(load()))"], env=environ)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with {process.returncode}")


def _cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process; 0 once it has ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _say(process: subprocess.Popen[str], line: str) -> None:
    """Waits for the producer's "ready", or lets it go."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        process.stdin.write(line)
        process.stdin.flush()
    else:
        process.stdout.readline()


def _queued_s(pid: int) -> float:
    """How long the main thread of a process was ready to run and had no core."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _now_us() -> int:
    return time.time_ns() // 1000


@contextlib.contextmanager
def _kafka() -> Iterator[tuple[str, psutil.Process | None]]:
    if bootstrap := os.environ.get("DRIFTLINE_TEST_BOOTSTRAP"):
        yield bootstrap, None
        return
    with load("jvm_kafka").JvmKafka(quick_start=False) as broker:
        yield broker.bootstrap, psutil.Process(broker.process.pid)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="how long to produce (default 40, quick 8)"
    )
    parser.add_argument("--ahead", type=int, default=20_000, help="frames that may wait for the worker")
    parser.add_argument("--produce", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help="only frames of so many steps")
    asked = parser.parse_args()
    seconds = asked.seconds or (8.0 if asked.quick else 40.0)
    if asked.produce is not None:
        produce(
            os.environ["DRIFTLINE_BOOTSTRAP"],
            os.environ["DRIFTLINE_PREFIX"],
            asked.produce,
            seconds,
            os.environ["BENCH_ALLOWANCE"],
            asked.steps,
        )
        return
    with _kafka() as (bootstrap, broker):
        result: dict[str, Any] = {}
        for per in (asked.steps,) if asked.steps else STEPS:
            ending = "" if per == STEPS[0] else f"_{per * METRICS}"
            found = measure(bootstrap, broker, seconds, asked.ahead * STEPS[0] // per, per)
            result |= {f"{name}{ending}": value for name, value in found.items()}
            print({name: value for name, value in result.items() if name.endswith(ending)}, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
