"""Samples per second of a whole replay: tables -> log -> pipeline -> rows -> compared with the stored ones.

    .venv/bin/python benchmarks/replay.py [--quick] [--profile]

64 ranks, 20 metrics, 20 steps a second (25,600 samples/s), default configuration: the log of ``pure.py``,
stored as the sink stores it with a commit every 2 seconds of the log, then compacted. Frames of 2,000 samples
and of 200; and the usual rate, one step a second (1,280 samples/s) in the frames that the SDK makes of it, a
step of a rank each. CPU time of the process, all threads; the best of three turns. The last line is one JSON
object.

``samples_per_s``: the whole command with frames of 2,000; ``wall_samples_per_s``: by the clock, the log being
read by a thread ahead; ``times_real_time``: log time by CPU time; ``identical``: every window, alert and fact
came out as stored. ``source_...``: only the log given back from the tables; ``play_...``: with the pipeline,
nothing compared; ``from_bytes_...``: the pipeline over the recorded bytes, for comparison. ``_compacted``:
after compaction. ``_200``: frames of 200, ``_1hz``: the usual rate.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pure

from driftline.records import Output, Record
from driftline.replay.player import Player
from driftline.replay.proof import Proof, log_us, prove
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.snapshot import Snapshot
from driftline.storage.recorded.source import TableLog
from driftline.storage.tables import TABLE_NAMES
from driftline.streams.pipeline import Pipeline

COMMIT_MS = 2_000


def store(root: Path, records: list[Record], outputs: list[Output]) -> None:
    """As a sink would: commits in turn, each with what came in a while."""
    telemetry = Spot("telemetry", "bench", 0)
    core = SinkCore(Lake(root))
    said = {topic: Spot(topic, f"{topic}-uuid", 0) for topic in ("windows", "facts", "alerts")}
    core.resume(dict.fromkeys([telemetry, *said.values()], 0))
    places = dict.fromkeys(said, 0)
    first = at = 0
    while first < len(records):
        last = first
        while last < len(records) and records[last].time_ms < records[first].time_ms + COMMIT_MS:
            last += 1
        core.take(telemetry, records[first:last])
        some = []
        while at < len(outputs) and outputs[at].id.offset < last:
            some.append(outputs[at])
            at += 1
        for topic, spot in said.items():
            mine = [o.value for o in some if o.topic == topic]
            core.take(spot, [Record(0, places[topic] + n, 0, value) for n, value in enumerate(mine)])
            places[topic] += len(mine)
        for _ in core.commits(empty=True):
            pass
        first = last


class Took(NamedTuple):
    cpu_s: float
    wall_s: float


def took(task: Callable[[], object], times: int = 3) -> Took:
    """The least CPU seconds of some turns, and the least by the clock."""
    found = []
    for _ in range(times):
        begin = time.process_time(), time.perf_counter()
        task()
        found.append((time.process_time() - begin[0], time.perf_counter() - begin[1]))
    return Took(*map(min, zip(*found, strict=True)))


def whole(root: Path) -> Proof:
    """What the command does."""
    snapshot = Snapshot(root)
    return prove(TableLog(root, (), snapshot), Stored(root, (), snapshot))


def source(root: Path) -> None:
    log = TableLog(root)
    for part in log.parts():
        for _ in log.stretches(part):
            pass


def play(root: Path) -> None:
    log = TableLog(root)
    for part in log.parts():
        player = Player(part, log.configurations(part))
        for item in log.stretches(part):
            player.play(item)


def measure(
    per_frame: int, samples: int, options: argparse.Namespace, step_us: int = pure.STEP_US
) -> dict[str, object]:
    records = pure.make_records(samples, per_frame, step_us=step_us)
    count = sum(r.value is not None and r.value[:1] == b"\xff" for r in records) * per_frame
    core = Pipeline()
    outputs = core.step(core.fresh("bench", 0), records)
    result: dict[str, object] = {"samples": count}
    with tempfile.TemporaryDirectory(prefix="driftline-replay-bench-") as folder:
        root = Path(folder)
        store(root, records, outputs)
        for state in ("", "_compacted"):
            if state:
                lake = Lake(root)
                for name in TABLE_NAMES:
                    lake.compact(name, at_least=1, keep_hours=0)
            proofs: list[Proof] = []
            proof_took = took(lambda proofs=proofs: proofs.append(whole(root)))
            result[f"samples_per_s{state}"] = round(count / proof_took.cpu_s)
            result[f"wall_samples_per_s{state}"] = round(count / proof_took.wall_s)
            result[f"identical{state}"] = all(proof.identical and not proof.beyond for proof in proofs)
            result[f"source_samples_per_s{state}"] = round(count / took(lambda: source(root)).cpu_s)
            result[f"play_samples_per_s{state}"] = round(count / took(lambda: play(root)).cpu_s)
            span_s = log_us(TableLog(root).parts()) / 1e6
            result[f"times_real_time{state}"] = round(span_s / proof_took.cpu_s)
        bytes_took = took(lambda: Pipeline().step(core.fresh("bench", 0), records))
        result["from_bytes_samples_per_s"] = round(count / bytes_took.cpu_s)
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            whole(root)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    samples = 600_000 if options.quick else 4_000_000
    result = measure(2_000, samples, options)
    result |= {f"{name}_200": value for name, value in measure(200, samples // 2, options).items()}
    usual = measure(len(pure.METRICS), samples // 4 if options.quick else samples // 2, options, 1_000_000)
    result |= {f"{name}_1hz": value for name, value in usual.items()}
    result["peak_rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
