"""What ``run.log`` costs the training thread, beside an honest JSON line, and whether all of it arrives.

    .venv/bin/python benchmarks/hotpath.py [--quick] [--calls N]

A dict of 20 floats per step, 100,000 calls back to back, each timed with ``perf_counter_ns``: first the JSON
line (``json.dumps``, ``write``, ``flush`` to a file), then the SDK with its real thread and a real broker,
without a disk spool (``unspooled``) and with it (``ours``). The broker is the one of ``DRIFTLINE_BOOTSTRAP``,
else the embedded one, else (``broker`` "memory") none. Every variant runs in its own process, alternated and
repeated; the median of the repetitions is reported, and ``*_runs`` has all. Afterwards the topic is read back
with a plain consumer and the samples in its frames are counted: ``sent`` and ``arrived`` must be equal.

Back to back is the worst case for a queue: 100,000 calls are 2 million samples in a fraction of a second,
more than the default queue of 1 million, so ``queue_samples`` and ``buffer_bytes`` are raised here; nothing
else is changed. ``paced_*`` is the friendlier case of a trainer: one call per millisecond (caches are cold
then, so a call takes longer).

The last line is one flat JSON object. Fields in microseconds: ``ours_p50_us``, ``ours_p99_us``,
``ours_p999_us``, ``ours_max_us``, ``jsonl_p50_us``, ``jsonl_p99_us``, ``paced_p50_us``, ``paced_p99_us``,
``unspooled_p50_us``, ``unspooled_p99_us``, ``timer_p50_us`` (an empty call, contained in all of them);
``ratio`` is JSON line over ours, at p50; ``deliver_s`` is the time from the last call until the broker had
everything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from driftline.broker import EmbeddedBroker
from driftline.errors import DriftlineError

KEYS = 20
CALLS = 100_000
PACED_CALLS = 2_000


def metrics(step: int) -> dict[str, float]:
    """20 floats with full mantissas that change with the step."""
    return {f"train/metric_{at:02d}": (step + 1) / (at + 3) for at in range(KEYS)}


def percentiles(name: str, ns: list[int]) -> dict[str, float]:
    ns = sorted(ns)
    points = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {f"{name}_{label}_us": ns[int(len(ns) * share)] / 1000 for label, share in points.items()}
    return found | {f"{name}_max_us": ns[-1] / 1000}


def timed(call: Callable[[dict[str, float], int], None], calls: int, pause_s: float = 0.0) -> list[int]:
    """Nanoseconds of each call; the dict is made outside the measured part."""
    clock = time.perf_counter_ns
    taken = [0] * calls
    for step in range(calls):
        values = metrics(step)
        start = clock()
        call(values, step)
        taken[step] = clock() - start
        if pause_s:
            time.sleep(pause_s)
    return taken


def run_jsonl(calls: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:

        def write(values: dict[str, float], step: int) -> None:
            file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
            file.flush()

        taken = timed(write, calls)
    return percentiles("jsonl", taken) | percentiles("timer", timed(lambda values, step: None, calls))


def run_ours(calls: int, bootstrap: str, prefix: str, *, spool: bool) -> dict[str, Any]:
    import driftline
    from driftline.connection import KafkaSettings
    from driftline.producers.transport import MemoryTransport
    from driftline.settings import SdkSettings, Settings

    settings = Settings(
        kafka=KafkaSettings(bootstrap=bootstrap or "127.0.0.1:1", prefix=prefix),
        sdk=SdkSettings(queue_samples=3 * KEYS * calls, buffer_bytes=512 << 20, exit_us=60_000_000),
    )
    if not spool:
        settings = msgspec.structs.replace(settings, sdk=msgspec.structs.replace(settings.sdk, spool_bytes=0))
    transport = None if bootstrap else MemoryTransport()
    run = driftline.init("hotpath", settings=settings, transport=transport)
    run.log({"warm": 1.0}, step=0)
    run.flush(10)
    taken = timed(run.log, calls)
    start = time.monotonic()
    run.flush(60)
    deliver_s = time.monotonic() - start
    paced = timed(run.log, PACED_CALLS, pause_s=0.001)
    run.finish()
    counters = run.counters()
    return {
        **percentiles("ours", taken),
        **percentiles("paced", paced),
        "deliver_s": round(deliver_s, 3),
        "run": run.id,
        "process": run.process,
        "sent": counters["samples_logged"],
        "acknowledged": counters["samples_delivered"],
        "dropped": sum(count for name, count in counters.items() if name.startswith("dropped_")),
    }


def count_arrived(bootstrap: str, prefix: str, run: str, process: str) -> int:
    """Samples in the topic's frames of this process, each (process, seq) once."""
    from kafka import KafkaConsumer, TopicPartition

    from driftline import events, records
    from driftline.topics import DEFAULT_PARTITIONS, Topics, partition_of

    place = TopicPartition(Topics(prefix)["telemetry"], partition_of(run, DEFAULT_PARTITIONS))
    consumer = KafkaConsumer(
        bootstrap_servers=[bootstrap],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=20_000,
        max_partition_fetch_bytes=16 << 20,
    )
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    seen: set[int] = set()
    samples = 0
    for message in consumer:
        record = records.decode(message.value)
        if getattr(record, "process", None) != process or record.seq in seen:
            continue
        seen.add(record.seq)
        if isinstance(record, events.ProcessEnded):
            break
        samples += len(getattr(record, "value", ()))
    consumer.close()
    assert seen == set(range(len(seen))), "the sequence numbers have holes"
    return samples


@contextlib.contextmanager
def broker() -> Iterator[tuple[str, str]]:
    """(kind, bootstrap); the embedded broker ends with the block."""
    if os.environ.get("DRIFTLINE_BOOTSTRAP"):
        yield "kafka", os.environ["DRIFTLINE_BOOTSTRAP"]
        return
    try:
        embedded = EmbeddedBroker()
    except DriftlineError as error:  # the extra `local` is not installed
        print(f"no broker ({error}); set DRIFTLINE_BOOTSTRAP", file=sys.stderr)
        yield "memory", ""
        return
    with embedded:
        yield "embedded", embedded.bootstrap


def child(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    sys.stderr.write(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition instead of three")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--variant", choices=["ours", "unspooled", "jsonl"], help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.variant == "jsonl":
        print(json.dumps(run_jsonl(asked.calls)))
    elif asked.variant:
        spool = asked.variant == "ours"
        print(json.dumps(run_ours(asked.calls, asked.bootstrap, asked.prefix, spool=spool)))
    else:
        print(json.dumps(compare(asked.calls, 1 if asked.quick else 3)))


def compare(calls: int, repetitions: int) -> dict[str, Any]:
    """The variants in turn; the medians over the repetitions."""
    jsonl: list[dict[str, Any]] = []
    ours: list[dict[str, Any]] = []
    unspooled: list[dict[str, Any]] = []
    with broker() as (kind, bootstrap):
        prefix = f"hotpath-{os.getpid()}."
        if bootstrap:
            from driftline.admin import ensure_topics
            from driftline.connection import KafkaSettings

            ensure_topics(msgspec.structs.replace(KafkaSettings(), bootstrap=bootstrap, prefix=prefix))
        for _ in range(repetitions):
            jsonl.append(child("--variant", "jsonl", "--calls", str(calls)))
            where = ("--calls", str(calls), "--bootstrap", bootstrap, "--prefix", prefix)
            without = child("--variant", "unspooled", *where)
            unspooled.append(
                {f"unspooled_{field}": without[f"ours_{field}"] for field in ("p50_us", "p99_us")}
            )
            found = child("--variant", "ours", *where)
            found["arrived"] = (
                count_arrived(bootstrap, prefix, found.pop("run"), found.pop("process"))
                if bootstrap
                else found["acknowledged"]
            )
            ours.append(found)
            print(f"jsonl {jsonl[-1]}\nunspooled {unspooled[-1]}\nours  {found}", file=sys.stderr)
    result: dict[str, Any] = {"calls": calls, "keys": KEYS, "repetitions": repetitions, "broker": kind}
    for rows in (ours, unspooled, jsonl):
        for field in rows[0]:
            if field.endswith(("_us", "_s")):
                result[field] = round(statistics.median(row[field] for row in rows), 3)
    for field in ("sent", "arrived", "dropped"):
        result[field] = sum(row[field] for row in ours)
    result["ratio"] = round(result["jsonl_p50_us"] / result["ours_p50_us"], 2)
    result["all_arrived"] = result["sent"] == result["arrived"] and not result["dropped"]
    result["ours_p50_runs"] = ",".join(str(row["ours_p50_us"]) for row in ours)
    result["ours_p99_runs"] = ",".join(str(row["ours_p99_us"]) for row in ours)
    return result


if __name__ == "__main__":
    main()
