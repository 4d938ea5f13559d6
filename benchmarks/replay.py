"""Samples per second of a whole replay: tables -> log -> pipeline -> rows -> compared with the stored ones.

    .venv/bin/python benchmarks/replay.py [--quick] [--profile]

64 ranks, 20 metrics, 20 steps a second (25,600 samples/s), default configuration: the log of ``pure.py``,
stored as the sink stores it with a commit every 2 seconds of the log, then compacted. Frames of 2,000 samples
and of 200. CPU time of the process, all threads; the best of three turns. The last line is one JSON object.

``samples_per_s``: the whole command with frames of 2,000; ``times_real_time``: log time by that CPU time;
``identical``: every window, alert and fact came out as stored. ``source_...``: only the log given back from
the tables; ``play_...``: with the pipeline, nothing compared; ``from_bytes_...``: the pipeline over the
recorded bytes, for comparison. ``_compacted``: after compaction. ``_200``: frames of 200.
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

import pure

from driftline.records import Output, Record
from driftline.replay.player import Player
from driftline.replay.proof import log_us, prove
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.recorded.compare import Stored
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


def cpu(task: Callable[[], object], times: int = 3) -> float:
    """The least CPU seconds of some turns."""
    found = []
    for _ in range(times):
        begin = time.process_time()
        task()
        found.append(time.process_time() - begin)
    return min(found)


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


def measure(per_frame: int, samples: int, options: argparse.Namespace) -> dict[str, object]:
    records = pure.make_records(samples, per_frame)
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
            proofs = []
            whole = cpu(lambda proofs=proofs: proofs.append(prove(TableLog(root), Stored(root))))
            result[f"samples_per_s{state}"] = round(count / whole)
            result[f"identical{state}"] = all(proof.identical and not proof.beyond for proof in proofs)
            result[f"source_samples_per_s{state}"] = round(count / cpu(lambda: source(root)))
            result[f"play_samples_per_s{state}"] = round(count / cpu(lambda: play(root)))
            span_s = log_us(TableLog(root).parts()) / 1e6
            result[f"times_real_time{state}"] = round(span_s / whole)
        bytes_s = cpu(lambda: Pipeline().step(core.fresh("bench", 0), records))
        result["from_bytes_samples_per_s"] = round(count / bytes_s)
        if options.profile:
            profile = cProfile.Profile()
            profile.enable()
            prove(TableLog(root), Stored(root))
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    samples = 1_000_000 if options.quick else 4_000_000
    result = measure(2_000, samples, options)
    result |= {f"{name}_200": value for name, value in measure(200, samples // 2, options).items()}
    result["peak_rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
