"""After every record of random logs of odd trainings, windows and what is told of them are the oracle's."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest

from driftline import events
from driftline.config import Derived, PipelineConfig, WindowSpec
from driftline.records import Output, Record

SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
CONFIG = PipelineConfig(
    windows=[
        WindowSpec("time", 6 * SECOND, 2 * SECOND),
        WindowSpec("time", 0, 4 * SECOND),
        WindowSpec("step", 8, 2),
        WindowSpec("step", 1, 1),
        WindowSpec("step", 0, 16),
    ],
    per_rank=["loss"],
    per_host=["huge"],
    per_role=["tiny"],
    quantiles={"loss": [0.01, 0.9], "tiny": [0.25]},
    weighted_quantiles={"loss": [0.5, 0.9], "huge": [0.3], "lr": [0.5]},
    derived=[
        Derived(name="lr/s", kind="rate", of="lr"),
        Derived(name="lr per a.b", kind="ratio", of="lr", per="准确率/a.b"),
        Derived(name="a.b smooth", kind="ema", of="准确率/a.b", half_life_steps=5),
        Derived(name="loss spread", kind="spread", of="loss"),
    ],
    allowed_lateness_us=2 * SECOND,
    idle_us=9 * SECOND,
    start_grace_us=12 * SECOND,
    future_skew_us=3 * SECOND,
    hole_us=4 * SECOND,
    expire_us=60 * SECOND,
)
SEEDS = range(20)
VALUES = {
    "loss": lambda chance: chance.choice([math.nan, math.inf, -math.inf, 0.5, chance.lognormvariate(0, 3)]),
    "lr": lambda chance: 0.1,
    "huge": lambda chance: chance.choice([1e300, -1e300, 1.7e308, 3.0]),
    "tiny": lambda chance: chance.choice([5e-324, -5e-324, 1e-310, 2e-308, 0.0, -0.0]),
    "准确率/a.b": lambda chance: 1e9 + chance.randrange(3),
}
WEIGHTS = {
    "ones": lambda chance: 1.0,
    "tokens": lambda chance: float(chance.randrange(1, 4096)),
    "odd": lambda chance: chance.choice([0.0, -3.0, math.nan, math.inf, 1e200, 1000.0, 2.0, 0.125]),
}
STEPS = {
    "goes on": lambda chance, step: step + 1,
    "repeats": lambda chance, step: step + chance.choice([0, 0, 1]),
    "skips": lambda chance, step: step + 3,
    "jumps": lambda chance, step: step + chance.choice([1, 1, 1, 40, 10**9]),
    "falls": lambda chance, step: max(0, step + chance.choice([1, 1, 1, -5])),
    "below zero": lambda chance, step: step + 1 if step < 0 else step - 40,
    "none": lambda chance, step: None,
}


class Training:
    """Writes the log of one run: attempts of changing numbers of ranks, each with habits of its own."""

    def __init__(self, seed: int, *, run: str = "a", seconds: int = 20) -> None:
        self.chance = random.Random(seed)
        self.run, self.seconds = run, seconds
        self.records: list[tuple[int, int, bytes]] = []

    def put(self, at_us: int, value: bytes) -> None:
        self.records.append((at_us, len(self.records), value))

    def write(self, naive: ModuleType) -> list[tuple[int, int, bytes]]:
        chance = self.chance
        begin = BASE
        for attempt in range(chance.choice([1, 2, 3])):
            world = chance.randrange(1, 5)
            for rank in range(world):
                if rank == 0 or chance.random() < 0.9:  # one may never start
                    self.rank(naive, f"{self.run}{attempt}.{rank}", rank, world, begin)
            begin += self.seconds * SECOND // 3
        return self.records

    def event(self, kind: Any, at: int, process: str, seq: int, **fields: Any) -> None:
        self.put(at, events.encode(kind(run=self.run, process=process, seq=seq, time_us=at, **fields)))

    def rank(self, naive: ModuleType, process: str, rank: int, world: int, begin: int) -> None:
        chance = self.chance
        now = begin + chance.choice([0, 0, 1, 9]) * SECOND + chance.randrange(SECOND)  # may join late
        last = begin + chance.choice([2, 3, 3]) * self.seconds * SECOND // 3  # may leave early
        moves = STEPS[chance.choice(list(STEPS))]
        weigh = WEIGHTS[chance.choice(list(WEIGHTS))]
        names = chance.sample(list(VALUES), chance.randrange(1, 4))
        step, seq = 0, 0
        if chance.random() < 0.9:
            fields = {"rank": rank, "world_size": world, "host": f"h{rank % 2}"}
            self.event(events.ProcessStarted, now, process, 0, **fields)
        while now < last:
            now += chance.randrange(200_000, 1_500_000)
            seq += chance.choice([1] * 20 + [2])  # a record is lost
            place = moves(chance, step)
            step = step if place is None else place
            dated = now
            if chance.random() < 0.06:
                dated += chance.choice([2, 4, 30, 86_400, -20]) * SECOND  # a clock that is wrong
            samples = []
            for name in names:
                for _ in range(chance.choice([0, 1, 1, 2])):
                    older = dated - chance.randrange(900_000)
                    samples.append((name, place, older, VALUES[name](chance), weigh(chance)))
            said = rank if chance.random() < 0.8 else None
            frame = naive.make_frame(self.run, process, seq, said, samples)
            arrives = now + (chance.randrange(8) * SECOND if chance.random() < 0.1 else 0)  # may come late
            self.put(arrives, frame)
            if chance.random() < 0.05:
                self.put(arrives + chance.randrange(SECOND), frame)  # comes twice
            if chance.random() < 0.03:
                now += chance.choice([3, 12, 70]) * SECOND  # falls silent
            if chance.random() < 0.05:
                seq += 1
                self.event(events.Heartbeat, now, process, seq, step=place)
            if chance.random() < 0.015:
                seq += 1
                step = max(0, step - 3)
                self.event(events.RunRewound, now, process, seq, step=step)
        if chance.random() < 0.7:
            self.event(events.ProcessEnded, now, process, seq + 1)


def odd_log(naive: ModuleType, seed: int) -> list[Record]:
    """One or two runs of a partition, with ticks, and a time in which nobody watches in every third log."""
    written = Training(seed).write(naive)
    if seed % 4 == 3:
        written += Training(seed + 1000, run="b", seconds=12).write(naive)
    until = max(at for at, _, _ in written) + 80 * SECOND
    for second in range((until - BASE) // SECOND):
        if not (seed % 3 == 2 and 6 < second < 15):
            at = BASE + second * SECOND
            written.append((at, -1, events.encode(events.Tick(worker="w", time_us=at))))
    written.sort()
    return [Record(0, offset, at // 1000, value) for offset, (at, _, value) in enumerate(written, 1)]


def by_record(outputs: list[Output]) -> dict[int, list[Output]]:
    found: dict[int, list[Output]] = defaultdict(list)
    for output in outputs:
        found[output.id.offset].append(output)
    return found


def told(outputs: list[Output]) -> list[tuple[Any, ...]]:
    facts = [events.decode(output.value) for output in outputs if output.topic == "facts"]
    return sorted(
        (f.what, f.run, f.attempt, f.axis or "", f.metric or "", f.start, f.end, f.count, f.process or "")
        for f in facts
        if isinstance(f, events.Fact) and f.what in ("late", "future") and f.axis is not None
    )


def wanted(facts: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("what", "run", "attempt", "axis", "metric", "start", "end", "count", "process")
    return sorted(tuple("" if fact[name] is None else fact[name] for name in names) for fact in facts)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_every_record_windows_and_facts_are_the_oracles(log: Any, naive: ModuleType, seed: int) -> None:
    """Steps that jump, repeat, fall or lack, odd values, weights and clocks, ranks that come and go."""
    log.configure(CONFIG)
    records = odd_log(naive, seed)
    found = by_record(log.pipeline.step(log.state, records))
    windows = 0
    for offset, rows, facts in naive.follow(records, CONFIG):
        here = found.get(offset, [])
        assert naive.differences(rows, here) == [], f"record {offset}"
        assert told(here) == wanted(facts), f"record {offset}"
        windows += len(rows)
    assert windows


def test_the_odd_logs_contain_what_they_promise(log: Any, naive: ModuleType) -> None:
    """Among the seeds are late and future-dated samples, new attempts, lost records, changes of the world."""
    log.configure(CONFIG)
    lacking = {"late", "future", "attempt_started", "world_changed", "gap", "hole", "missing", "process_idle"}
    lacking |= {"late_time", "late_step", "duplicates", "runs_expired", "runs_back"}
    for seed in SEEDS:
        state = log.pipeline.load(log.pipeline.dump(log.state))
        outputs = log.pipeline.step(state, odd_log(naive, seed))
        lacking -= {events.decode(output.value).what for output in outputs if output.topic == "facts"}
        lacking -= state.counters.keys()
        if not lacking:
            return
    assert not lacking


def test_no_weight_that_counts_overflows(log: Any, naive: ModuleType) -> None:
    """A weight is either absurd, and counts as 0, or every value with it gives a right mean and deviation."""
    below, mixed = [1e120, -1e120, 3e119], [1e119, 1e140, 1e300, -1e300]
    for number, weight in enumerate([1e30, 1e44, 1.4e45, 1e60, 1e140, 1e300]):
        process = f"p{number}"
        samples = [(name, 0, 0, v, weight) for name, some in (("x", below), ("y", mixed)) for v in some]
        log.frame(samples, process=process, rank=0, run=process)
        log.event(events.ProcessEnded, process=process, run=process)
    assert naive.differences(naive.run(log.records), log.outputs) == []
