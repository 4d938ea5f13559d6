"""How long a sink stands still while its tables are merged: in a thread of its own, and in the sink's loop.

    .venv/bin/python benchmarks/upkeep.py [--quick]

A sink's core, its tables and their upkeep, without Kafka: evaluated items with long answers and samples come
in turns, a commit each, as fast as they are taken; then few samples, a commit every two seconds, until
nothing is left to merge. ``loop``: merged in the sink's loop; ``ours``: by a merger beside it, as a sink
does. Each in a process of its own, one after the other.

``..._blocked_ms_max``, ``_p99``, ``_p50``: of the turns (taking records, commit, what upkeep does in the
sink's own thread); ``..._own_cpu_ms_max``: what such a turn costs that thread. ``..._wake_ms_max``: how
late a second thread was at worst that wants to run every 10 ms, as the group's heartbeats do.
``..._merge_cpu_s_per_million_rows``: CPU time of the thread that merges, by rows stored. ``..._close_ms``:
told to stop half a second into one more merge. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from driftline import events, frames
from driftline.clock import SystemClock
from driftline.records import Record
from driftline.settings import StorageSettings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.merger import Merger
from driftline.storage.tables import TABLE_NAMES
from driftline.storage.upkeep import Upkeep

UUID = "11111111-1111-1111-1111-111111111111"
T0 = 1_700_000_000_000_000
ITEMS, SAMPLES = 2_000, 50_000
"""Of one commit."""
RECORD = 100
"""Items of one record."""


class Timed(Lake):
    """Knows what merging cost the thread that did it."""

    merge_cpu_s = 0.0

    def compact(self, *arguments: Any, **options: Any) -> bool:
        began = time.thread_time()
        try:
            return super().compact(*arguments, **options)
        finally:
            Timed.merge_cpu_s += time.thread_time() - began


class Sink:
    """One, with what it is sent."""

    def __init__(self, root: Path, *, thread: bool) -> None:
        clock, self.lines = SystemClock(), list[str]()
        self.lake = Timed(root)
        self.core = SinkCore(self.lake)
        self.merger = Merger(lambda: Timed(root), clock=clock) if thread else None
        counts, settings = self.core.counts, StorageSettings(root=str(root))
        self.upkeep = Upkeep(
            self.lake, settings, counts=counts, say=self.lines.append, clock=clock, merger=self.merger
        )
        self._items, self._samples = Spot("eval-items", UUID, 0), Spot("telemetry", UUID, 0)
        self.core.resume({self._items: 0, self._samples: 0})
        self._offsets = {self._items: 0, self._samples: 0}
        self._random = random.Random(1)
        self.turns_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self.rows = 0

    def turn(self, *, items: int, samples: int) -> None:
        """Takes so much and commits; only that is timed."""
        sent = [(self._items, self._answers(at)) for at in range(items // RECORD)]
        sent += [(self._samples, self._frame(samples))]
        began, cpu = time.perf_counter(), time.thread_time()
        for spot, body in sent:
            self.core.take(spot, [Record(0, self._offsets[spot], T0 // 1000, body)])
            self._offsets[spot] += 1
        self.rows += sum(committed.rows for committed in self.core.commits())
        self.upkeep.compact()
        self.upkeep.trim()
        self.turns_ms.append((time.perf_counter() - began) * 1000)
        self.cpu_ms.append((time.thread_time() - cpu) * 1000)

    def _answers(self, at: int) -> bytes:
        """Each answer a kilobyte that cannot be compressed."""
        first = self._offsets[self._items] * RECORD + at * RECORD
        made = [
            events.Item(
                item=f"question-{self._random.randrange(10**9)}",
                status="correct",
                score=1.0,
                response=self._random.randbytes(1_000).hex(),
                expected=str(self._random.randrange(10**6)),
            )
            for _ in range(RECORD)
        ]
        lease = f"lease-{first // 100_000}"
        return events.encode(events.EvalItems(run="run", request="q", lease=lease, first=first, items=made))

    def _frame(self, samples: int) -> bytes:
        seq = self._offsets[self._samples]
        at = np.arange(samples, dtype=np.int64)
        values = np.random.default_rng(seq).normal(size=samples)
        frame = frames.Frame(
            run="run",
            process="p0",
            rank=0,
            seq=seq,
            names=[f"metric{number}" for number in range(50)],
            metric=(at % 50).astype(np.int16),
            step=seq * samples + at // 50,
            time_us=T0 + (seq * samples + at) * 100,
            value=values,
            weight=np.ones(samples),
        )
        return frames.encode(frame)

    @property
    def merging(self) -> bool:
        return self.merger is not None and (self.merger.merging is not None or bool(self.merger._wanted))


class Waker(threading.Thread):
    """Wants to run every 10 ms; how late it was at worst."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.late_ms, self.over = 0.0, False

    def run(self) -> None:
        while not self.over:
            due = time.perf_counter() + 0.01
            time.sleep(0.01)
            self.late_ms = max(self.late_ms, (time.perf_counter() - due) * 1000)


def variant(root: Path, *, thread: bool, commits: int) -> dict[str, float]:
    sink, waker = Sink(root, thread=thread), Waker()
    waker.start()
    for _ in range(commits):
        sink.turn(items=ITEMS, samples=SAMPLES)
    while sink.merging:
        time.sleep(2)
        sink.turn(items=0, samples=100)
    merge_cpu_s = Timed.merge_cpu_s
    rows, turns = sink.rows, sorted(sink.turns_ms)
    before = {name: len(sink.lake.files(name)) for name in TABLE_NAMES}
    while thread and not sink.merging:
        sink.turn(items=ITEMS, samples=SAMPLES)
    waker.over = True
    time.sleep(0.5)
    began = time.perf_counter()
    sink.upkeep.close()
    if sink.lines:
        raise SystemExit(f"not as it should be: {sink.lines}")
    return {
        "blocked_ms_max": turns[-1],
        "blocked_ms_p99": turns[len(turns) * 99 // 100],
        "blocked_ms_p50": turns[len(turns) // 2],
        "wake_ms_max": waker.late_ms,
        "merge_cpu_s_per_million_rows": merge_cpu_s / rows * 1e6,
        "close_ms": (time.perf_counter() - began) * 1000,
        "own_cpu_ms_max": max(sink.cpu_ms),
        "commits": float(len(turns)),
        "merges": float(sink.core.counts["merges"]),
        "files": float(before["eval_items"] + before["samples"]),
        "rows": float(rows),
        "mb_of_items": sink.lake.size("eval_items") / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--variant", choices=("ours", "loop"))
    args = parser.parse_args()
    commits = 33 if args.quick else 132
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="driftline-upkeep-") as folder:
        if args.variant:
            print(json.dumps(variant(Path(folder) / "data", thread=args.variant == "ours", commits=commits)))
            return
    for name in ("loop", "ours"):
        command = [sys.executable, __file__, "--variant", name, *(["--quick"] if args.quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        result |= {f"{name}_{field}": round(value, 1) for field, value in found.items()}
        print(name, found, file=sys.stderr, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
