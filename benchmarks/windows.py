"""Sliding windows beside other stream processors: samples per second, memory, and whether they are right.

    .venv/bin/python benchmarks/windows.py [--quick] [--only NAME ...] [--samples N] [--repeat N]

The same stream for all (64 ranks, 20 metrics at 10 Hz), sliding windows of 10 s every 1 s per rank and
metric, closed windows only, with at least count, sum, min, max and mean, from Apache Kafka to Apache Kafka.
Each tool is one worker process, alone beside the broker; its input is written before it starts. A warm-up
of the same shape comes first in the same input and does not count. The clock runs from the first sample
after it until the broker has stamped the last window; driftline's from the last window of the warm-up.

driftline's worker is the role as users run it: default detectors, alerts, facts, snapshots, all columns of
``windows``; every metric in ``per_rank``, beside the windows of the whole run. Peers: ``benchmarks/peers``.

The last line is one JSON object: ``ours_samples_per_s``, ``pure_samples_per_s`` (the pipeline alone on the
same records, of CPU time), ``best_peer``, ``best_peer_samples_per_s``, ``times_best_peer``; for each tool
``..._samples_per_s``, ``..._samples`` (how many it got), ``..._rss_mib`` (peak), ``..._cpu_us_per_sample``
(of the whole process while the clock ran, which other work on the machine disturbs less), ``..._windows``
and ``..._wrong``, ``..._missing``, ``..._doubled`` as ``window_check.py`` recomputes them. With
``--repeat`` the tools take turns and the run with the median rate of each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import window_stream
from support import load
from window_check import Verdict, check, expected
from window_peers import PEERS, Missing, Peer
from window_run import Topics, Worker, closing_messages, peak_rss_mib, role_environment, until_quiet
from window_stream import CLOSER, METRICS, SERIES, Stream

SAMPLES = 1_000_000
QUICK_SAMPLES = 400_000
WARM = 200_000
AGO_MS = 2_000
"""The stream ends so long before now."""
QUIET_S = 3.0
"""Without a new record for so long the output is read, to see whether it is whole."""
PATIENCE = 10
START_S, SLOWEST_PER_S = 12.0, 120.0
"""A tool that closes windows by the wall clock gets so long until the first one would close."""
LIMIT_S = 400.0
BATCH = 500
RUN = "01windows"
QUICK = ("ours", "pure", "faust_hopping", "kafka_streams", "kafka_streams_20")


class Measured(NamedTuple):
    """What one tool did. ``seconds`` and ``cpu_s`` are for ``samples``, the warm-up apart."""

    samples: int
    seconds: float
    cpu_s: float
    rss_mib: int
    verdict: Verdict

    def fields(self, name: str) -> dict[str, Any]:
        """Flat, each name beginning with the tool's."""
        found = {
            "samples_per_s": round(self.samples / self.seconds),
            "samples": self.samples,
            "rss_mib": self.rss_mib,
            "cpu_us_per_sample": round(self.cpu_s / self.samples * 1e6, 3),
            "windows": self.verdict.expected,
            "wrong": self.verdict.wrong,
            "missing": self.verdict.missing,
            "doubled": self.verdict.doubled,
        }
        return {f"{name}_{field}": value for field, value in found.items()}


# --- driftline ------------------------------------------------------------------------------------------


def settings_file(folder: Path) -> Path:
    """Windows as the peers make them, per rank for every metric; the rest is default."""
    path = folder / "driftline.yaml"
    windows = [{"axis": "time", "size": "10s", "every": "1s"}]
    path.write_text(json.dumps({"windows": windows, "streams": {"per_rank": window_stream.NAMES}}))
    return path


def warm_run(partitions: int) -> str:
    """The name of a run in the partition of :data:`RUN`."""
    from driftline.topics import partition_of

    names = (f"01warm{at}" for at in itertools.count())
    return next(name for name in names if partition_of(name, partitions) == partition_of(RUN, partitions))


def ours(topics: Topics, stream: Stream, folder: Path) -> Measured:
    """The stream role, a process of its own, on real frames that wait in the topic.

    They have the record times of a live run, as after a time without a worker: written before the topic was
    told to stamp.
    """
    from driftline.admin import ensure_topics
    from driftline.connection import KafkaSettings
    from driftline.topics import partition_of

    prefix = f"windows{time.time_ns()}."
    settings = KafkaSettings(bootstrap=topics.bootstrap, prefix=prefix)
    source, target = settings.topics["telemetry"], settings.topics["windows"]
    topics.make(target, append_time=True, partitions=settings.partitions)
    topics.make(source, append_time=False, partitions=settings.partitions)
    partition, warm = partition_of(RUN, settings.partitions), warm_run(settings.partitions)
    log = (
        (one.time_ms, None, one.value) for part in window_stream.records(stream, warm, RUN) for one in part
    )
    asyncio.run(window_stream.load(topics.bootstrap, source, partition, log))
    topics.stamp_from_now_on(source)
    ensure_topics(settings)
    environ = role_environment(topics.bootstrap, prefix, settings_file(folder), folder / "data")
    worker = Worker([sys.executable, "-m", "driftline.streams.worker", "streams"], environ, folder / "log")
    try:
        for _ in range(PATIENCE):
            until_quiet(topics, worker, target, partition, wanted=None, quiet_s=QUIET_S, limit_s=LIMIT_S)
            items = topics.read(target, partition)
            rows = window_stream.rows_of_driftline([item.value for item in items])
            if not judged(stream, rows).missing:
                break
        begin_ms = max(item.time_ms for item in items if item.key == warm.encode())
        return measured(worker, stream, begin_ms, items[-1].time_ms, rows)
    finally:
        worker.close()


def pure(stream: Stream, folder: Path) -> Measured:
    """The pipeline alone on the same records, in this process; seconds are those of CPU."""
    from driftline import config, events, settings
    from driftline.records import Record
    from driftline.streams.pipeline import Pipeline

    core = Pipeline()
    state = core.fresh("windows", 0)
    now_ms = int(stream.times_ms[0])
    body = config.encode(settings.load(settings_file(folder), {}).pipeline)
    change = events.ConfigChanged(
        worker="w", time_us=now_ms * 1000, digest=config.digest(body), body=msgspec.Raw(body)
    )
    kept: list[bytes] = []
    offset = 0

    def feed(records: list[window_stream.Timed]) -> float:
        """CPU seconds for these records, made before."""
        nonlocal offset
        log = [Record(0, offset + at, one.time_ms, one.value) for at, one in enumerate(records)]
        offset += len(log)
        begin = time.process_time()
        for at in range(0, len(log), BATCH):
            outputs = core.step(state, log[at : at + BATCH])
            kept.extend(output.value for output in outputs if output.topic == "windows")
        return time.process_time() - begin

    warm, rest = window_stream.records(stream, "01warm", RUN)
    feed([window_stream.Timed(now_ms, events.encode(change)), *warm])
    spent_s = feed(rest)
    verdict = judged(stream, window_stream.rows_of_driftline(kept))
    return Measured(stream.measured, spent_s, spent_s, peak_rss_mib(os.getpid()), verdict)


# --- peers ----------------------------------------------------------------------------------------------


def peer(topics: Topics, tool: Peer, stream: Stream, folder: Path) -> Measured:
    """A peer on messages that wait in its topic. Raises Missing."""
    command = tool.command()
    source, target = (f"{tool.name}-{what}-{time.time_ns()}" for what in ("in", "out"))
    topics.make(source, append_time=False)
    topics.make(target, append_time=True)
    if tool.wall_clock:
        stream = window_stream.moved(stream, START_S + stream.measured / SLOWEST_PER_S)
    items = window_stream.messages(stream, wide=tool.wide)
    asyncio.run(window_stream.load(topics.bootstrap, source, 0, items))
    arguments = [topics.bootstrap, source, target, str(folder / "state"), *tool.arguments(stream)]
    last = int(stream.times_ms[-1])
    value = bytes(8 * (METRICS if tool.wide else 1))
    closers = closing_messages(topics.bootstrap, source, CLOSER, value, last + 15_000)
    right = expected(stream.times_ms, stream.values)
    wanted = len(right.start_ms) * SERIES // (METRICS if tool.wide else 1)
    worker = Worker([*command, *arguments], dict(os.environ), folder / "log")
    try:
        with contextlib.nullcontext() if tool.wall_clock else closers:
            until_quiet(topics, worker, target, 0, wanted=wanted, quiet_s=tool.quiet_s, limit_s=LIMIT_S)
        found = topics.read(target, 0)
        rows = window_stream.rows_of_peer([(item.key, item.value) for item in found], wide=tool.wide)
        begin_ms = worker.told["began_ms"]
        end_ms = worker.told.get("ended_ms", found[-1].time_ms)
        return measured(worker, stream, begin_ms, end_ms, rows)
    finally:
        worker.close()
        topics.drop(source, target)


# --- all of them ----------------------------------------------------------------------------------------


def judged(stream: Stream, rows: Any) -> Verdict:
    return check(expected(stream.times_ms, stream.values), rows)


def measured(worker: Worker, stream: Stream, begin_ms: float, end_ms: float, rows: Any) -> Measured:
    """What a worker did between two moments of the wall clock."""
    spent_s = worker.cpu_s(begin_ms, end_ms)
    seconds = (end_ms - begin_ms) / 1000
    return Measured(stream.measured, seconds, spent_s, worker.rss_mib, judged(stream, rows))


def run(name: str, samples: int, quick: bool, topics: Topics) -> dict[str, Any]:
    """One tool on its stream, or on the part of it that it gets."""
    stream = window_stream.make(warm=WARM, measured=samples, last_ms=time.time_ns() // 1_000_000 - AGO_MS)
    with tempfile.TemporaryDirectory(prefix="driftline-windows-") as folder:
        if name == "ours":
            return ours(topics, stream, Path(folder)).fields(name)
        tool = PEERS[name]
        fewer = tool.quick_samples if quick else tool.samples
        if fewer is not None and fewer < samples:
            warm = 0 if tool.wall_clock else min(stream.warm, fewer // SERIES)
            stream = stream.first(warm=warm, measured=fewer)
        return peer(topics, tool, stream, Path(folder)).fields(name)


def alone(samples: int) -> dict[str, Any]:
    """The pure pipeline in a process of its own."""
    command = [sys.executable, __file__, "--pure", "--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The run with the median rate of each tool, and who is the fastest peer."""
    fields: dict[str, Any] = {}
    for name, found in results.items():
        rate = f"{name}_samples_per_s"
        fields |= sorted(found, key=lambda one: one[rate])[len(found) // 2]
    rates = {name: fields[f"{name}_samples_per_s"] for name in results if name in PEERS}
    if rates:
        best = max(rates, key=lambda name: rates[name])
        head = {"best_peer": best, "best_peer_samples_per_s": rates[best]}
        if "ours" in results:
            head["times_best_peer"] = round(fields["ours_samples_per_s"] / rates[best], 2)
        fields = head | fields
    return fields


@contextlib.contextmanager
def kafka() -> Iterator[str]:
    if bootstrap := os.environ.get("DRIFTLINE_TEST_BOOTSTRAP"):
        yield bootstrap
        return
    with load("jvm_kafka").JvmKafka(quick_start=False) as broker:
        yield broker.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["ours", "pure", *PEERS]
    parser.add_argument("--quick", action="store_true", help="less of the stream, without Quix Streams")
    parser.add_argument("--samples", type=int, default=0, help="measured ones (default 1,000,000)")
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help=", ".join(names))
    parser.add_argument("--repeat", type=int, default=1, help="rounds; the median of each tool counts")
    parser.add_argument("--pure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    samples = asked.samples or (QUICK_SAMPLES if asked.quick else SAMPLES)
    if asked.pure:
        stream = window_stream.make(warm=WARM, measured=samples, last_ms=1_700_000_000_000)
        with tempfile.TemporaryDirectory(prefix="driftline-windows-") as folder:
            print(json.dumps(pure(stream, Path(folder)).fields("pure")))
        return
    results: dict[str, list[dict[str, Any]]] = {}
    wanted = asked.only or [name for name in names if not asked.quick or name in QUICK]
    with kafka() as bootstrap, contextlib.closing(Topics(bootstrap)) as topics:
        for name in wanted * asked.repeat:
            try:
                found = alone(samples) if name == "pure" else run(name, samples, asked.quick, topics)
            except Missing as error:
                print(f"{name}: left out: {error}", file=sys.stderr)
                continue
            print(json.dumps(found), file=sys.stderr, flush=True)
            results.setdefault(name, []).append(found)
    print(
        json.dumps(summary(results) | {"load_before": round(os.getloadavg()[1], 1), "cores": os.cpu_count()})
    )


if __name__ == "__main__":
    main()
