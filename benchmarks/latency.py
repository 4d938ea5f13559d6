"""Milliseconds from a NaN that a trainer logs to its alert in the hands of a consumer.

    .venv/bin/python benchmarks/latency.py [--quick] [--nans N]

8 ranks, each a process with the SDK as users have it (default settings), log 20 metrics at 10 Hz to Apache
Kafka. About five times a second in all, at random moments, one of them also logs a NaN under a name of its
own, so that each opens an alert and none is held back (the SDK hurries for the first NaN of a name; the
detector tells the first of a metric on a rank). One stream worker, default settings but for the number of
alerts that may be open at once. The clock starts before ``run.log`` and stops when a kafka-python consumer
of ``alerts`` returns the alert from ``poll``; all on this machine, so on one clock.

The last line is one JSON object: ``p50_ms``, ``p99_ms``, ``max_ms``, ``nans`` (logged), ``alerts`` (seen;
``lost`` must be 0), and where the time goes, as medians and 99th percentiles: ``to_log_...`` from
``run.log`` to the broker's time of the frame (the SDK), ``to_alert_...`` from there to the worker's time of
the alert record (Faust, the pipeline), ``to_consumer_...`` from there to the consumer. Record times are
whole milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from windows import kafka

RANKS = 8
METRICS = 20
STEP_S = 0.1
NANS_PER_S = 5.0
RUN = "01latency"
SETTLE_S = 5.0
LIMIT_S = 30.0


def trainer(rank: int, nans: int, seed: int) -> None:
    """One rank: says when each NaN was logged (JSON lines: metric, wall clock in ns)."""
    import driftline

    chance = random.Random(f"{seed}/{rank}")
    run = driftline.init("latency", run_id=RUN, rank=rank, world_size=RANKS)
    print(json.dumps({"ready": rank}), flush=True)
    sys.stdin.readline()
    names = [f"metric/{at:02d}" for at in range(METRICS)]
    begin = time.monotonic()
    due = [begin + SETTLE_S + (at + chance.random()) * RANKS / NANS_PER_S for at in range(nans)]
    end = (due[-1] if due else begin) + 1.0
    step = 0
    while (now := time.monotonic()) < end:
        next_step = begin + step * STEP_S
        next_nan = due[0] if due else end
        if now < min(next_step, next_nan):
            time.sleep(max(0.0, min(next_step, next_nan, end) - now))
        elif next_nan <= next_step:
            due.pop(0)
            metric = f"probe/{rank}/{len(due)}"
            logged_ns = time.time_ns()
            run.log({metric: float("nan")}, step=step)
            print(json.dumps({"metric": metric, "logged_ns": logged_ns}), flush=True)
        else:
            run.log({name: chance.gauss(1.0, 0.1) for name in names}, step=step)
            step += 1
    run.finish()


class Consumer(threading.Thread):
    """Reads ``alerts`` (and the frames' record times) as anyone would; keeps when each NaN's alert came."""

    def __init__(self, bootstrap: str, topics: dict[str, str]) -> None:
        super().__init__(daemon=True)
        from kafka import KafkaConsumer

        self.seen: dict[str, tuple[int, int]] = {}
        """By metric: when it came (ns) and the time of its record (ms)."""
        self._consumer = KafkaConsumer(topics["alerts"], bootstrap_servers=[bootstrap], group_id=None)
        self._ended = threading.Event()

    def run(self) -> None:
        from driftline import events

        while not self._ended.is_set():
            for records in self._consumer.poll(500).values():
                now_ns = time.time_ns()
                for record in records:
                    alert = events.decode(record.value)
                    if isinstance(alert, events.Alert) and alert.state == "open" and alert.metric:
                        self.seen.setdefault(alert.metric, (now_ns, record.timestamp))

    def close(self) -> None:
        self._ended.set()
        self.join(5)
        self._consumer.close()


def frame_times(bootstrap: str, topic: str) -> dict[str, int]:
    """The broker's time (ms) of the frame that brought each probe."""
    from kafka import KafkaConsumer, TopicPartition

    from driftline import frames
    from driftline.errors import BadRecord
    from driftline.topics import DEFAULT_PARTITIONS, partition_of

    place = TopicPartition(topic, partition_of(RUN, DEFAULT_PARTITIONS))
    found: dict[str, int] = {}
    with contextlib.closing(KafkaConsumer(bootstrap_servers=[bootstrap])) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            for record in (r for records in consumer.poll(500).values() for r in records):
                with contextlib.suppress(BadRecord):
                    for name in frames.decode(record.value).names:
                        if name.startswith("probe/"):
                            found.setdefault(name, record.timestamp)
    return found


def measure(bootstrap: str, nans: int) -> dict[str, Any]:
    from driftline.admin import ensure_topics
    from driftline.connection import KafkaSettings

    prefix = f"latency{os.getpid()}."
    settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix)
    ensure_topics(settings)
    each = -(-nans // RANKS)
    with tempfile.TemporaryDirectory(prefix="driftline-latency-") as folder, contextlib.ExitStack() as stack:
        file = Path(folder) / "driftline.yaml"
        file.write_text(json.dumps({"detectors": [{"kind": "non_finite", "params": {"max_alerts": 1000}}]}))
        environ = os.environ | {
            "DRIFTLINE_BOOTSTRAP": bootstrap,
            "DRIFTLINE_PREFIX": prefix,
            "DRIFTLINE_CONFIG": str(file),
            "DRIFTLINE_STORAGE__ROOT": str(Path(folder) / "data"),
        }
        worker = subprocess.Popen([sys.executable, "-m", "driftline.streams.worker", "streams"], env=environ)
        stack.callback(_end, worker)
        consumer = Consumer(bootstrap, {"alerts": settings.topics["alerts"]})
        consumer.start()
        stack.callback(consumer.close)
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--trainer", str(rank), "--nans", str(each)],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        for rank in ranks:
            stack.callback(_end, rank)
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        time.sleep(SETTLE_S)
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
        logged: dict[str, int] = {}
        for rank in ranks:
            text, _ = rank.communicate()
            logged |= {one["metric"]: one["logged_ns"] for one in map(json.loads, text.splitlines())}
        end = time.monotonic() + LIMIT_S
        while len(consumer.seen) < len(logged) and time.monotonic() < end:
            time.sleep(0.1)
        return _fields(logged, consumer.seen, frame_times(bootstrap, settings.topics["telemetry"]))


def _fields(
    logged: dict[str, int], seen: dict[str, tuple[int, int]], framed: dict[str, int]
) -> dict[str, Any]:
    names = [name for name in logged if name in seen]
    whole = np.array([(seen[name][0] - logged[name]) / 1e6 for name in names])
    parts = {
        "to_log": [framed[name] - logged[name] / 1e6 for name in names],
        "to_alert": [seen[name][1] - framed[name] for name in names],
        "to_consumer": [seen[name][0] / 1e6 - seen[name][1] for name in names],
    }
    fields: dict[str, Any] = {
        "p50_ms": round(float(np.percentile(whole, 50)), 1),
        "p99_ms": round(float(np.percentile(whole, 99)), 1),
        "max_ms": round(float(whole.max()), 1),
        "nans": len(logged),
        "alerts": len(seen),
        "lost": len(logged) - len(names),
    }
    for name, values in parts.items():
        fields[f"{name}_p50_ms"] = round(float(np.percentile(values, 50)), 1)
        fields[f"{name}_p99_ms"] = round(float(np.percentile(values, 99)), 1)
    return fields | {"load_before": round(os.getloadavg()[1], 1), "cores": os.cpu_count()}


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 NaNs, under 50 s")
    parser.add_argument("--nans", type=int, default=0, help="how many NaNs (default 400, quick 100)")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.trainer is not None:
        trainer(asked.trainer, asked.nans, seed=1)
        return
    with kafka() as bootstrap:
        print(json.dumps(measure(bootstrap, asked.nans or (100 if asked.quick else 400))))


if __name__ == "__main__":
    main()
