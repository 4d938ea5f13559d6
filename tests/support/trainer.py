"""A training in a process of its own, which does what its standard input says and times every ``log``.

Lines in: ``pace SECONDS`` between steps (0: as fast as it goes, ``inf``: none), ``phase NAME`` (times from
now on belong to it), ``tell`` (a line of counters), ``finish`` (ends the run), ``exit CODE``; each is
answered with one line of JSON. Times are of ``log`` alone, in microseconds; memory is resident bytes.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any

import msgspec

import driftline
from driftline.connection import KafkaSettings
from driftline.settings import SdkSettings, Settings


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Training:
    """Steps from 0 on, of a few metrics each."""

    def __init__(self, run: driftline.Run, metrics: int) -> None:
        self.run = run
        self.names = [f"metric/{at}" for at in range(metrics)]
        self.step = 0
        self.phase = "start"
        self.pace_s = float("inf")
        self.taken: dict[str, list[int]] = {}
        self.memory: dict[str, int] = {}

    def one(self) -> None:
        values = {name: float(self.step + at) for at, name in enumerate(self.names)}
        before = time.perf_counter_ns()
        self.run.log(values, step=self.step)
        self.taken.setdefault(self.phase, []).append((time.perf_counter_ns() - before) // 1000)
        self.step += 1
        if self.step % 64 == 0:
            self.memory[self.phase] = max(self.memory.get(self.phase, 0), resident_bytes())

    def told(self) -> dict[str, Any]:
        times = {}
        for phase, taken in self.taken.items():
            ordered = sorted(taken)
            p99 = ordered[len(ordered) * 99 // 100]
            times[phase] = {"calls": len(ordered), "p99_us": p99, "max_us": ordered[-1]}
        outbox = self.run._worker.outbox if self.run._worker else None
        return {
            "run": self.run.id,
            "step": self.step,
            "counters": self.run.counters(),
            "times": times,
            "memory": self.memory,
            "resident": resident_bytes(),
            "buffer": outbox.size_bytes if outbox else 0,
        }


def main(sdk: dict[str, Any], kafka: dict[str, Any], metrics: int) -> None:
    settings = Settings(sdk=msgspec.convert(sdk, SdkSettings), kafka=msgspec.convert(kafka, KafkaSettings))
    training = Training(driftline.init("outages", settings=settings, rank=0), metrics)
    orders: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line.split())

    threading.Thread(target=listen, daemon=True).start()
    print(json.dumps(training.told()), flush=True)
    while True:
        try:
            wait = training.pace_s if orders.empty() else 0
            order = orders.get(timeout=min(wait, 3600)) if wait else orders.get_nowait()
        except queue.Empty:
            training.one()
            continue
        match order:
            case ["pace", seconds]:
                training.pace_s = float(seconds)
            case ["phase", name]:
                training.phase = name
            case ["finish"]:
                training.run.finish()
            case ["exit", code]:
                sys.exit(int(code))
        print(json.dumps(training.told()), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
