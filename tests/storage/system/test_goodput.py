"""The ledger of a run's wall time adds up to it, and books each second where a plain count books it."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytest

from driftline.storage.views.goodput import CATEGORIES

MS = 1000
"""Microseconds."""


class Life(NamedTuple):
    """A made-up run: what to log, and the microseconds of each category by a plain count."""

    attempts: list[dict[str, Any]]
    expected: dict[str, int]
    wall_us: int


def parts_of(rng: np.random.Generator, ranks: int) -> dict[int, dict[str, int]]:
    """Milliseconds in spans of each rank in one step; rank 0 alone evaluates and saves, now and then."""
    made = {
        rank: {"data": int(rng.integers(0, 50)), "forward": int(rng.integers(200, 400))}
        for rank in range(ranks)
    }
    if rng.random() < 0.2:
        made[0]["evaluation"] = int(rng.integers(100, 3000))
    if rng.random() < 0.2:
        made[0]["save_checkpoint"] = int(rng.integers(10, 500))
    return made


def life(seed: int) -> Life:
    rng = np.random.default_rng(seed)
    ranks, now, first = int(rng.integers(1, 5)), 0, 0
    attempts, booked = [], dict.fromkeys(CATEGORIES, 0)
    total = int(rng.integers(1, 5))
    for number in range(total):
        began, startup = now, int(rng.integers(0, 5000))
        now += startup
        steps, stalls = [], rng.random() < 0.3
        for at in range(int(rng.integers(1, 15))):
            parts = parts_of(rng, ranks)
            length = max(sum(p.values()) for p in parts.values()) + int(rng.integers(0, 60))
            if at == 0:  # all that is known of the beginning of the first step is what its spans took
                startup += length - sum(parts[0].values())
            if stalls and at == 9:
                length += 60_000
            now += length
            steps.append((first + at, now, length, parts))
        if steps:
            covered = sum(steps[0][3][0].values())
            steps[0] = (steps[0][0], steps[0][1], covered, steps[0][3])
        tail = int(rng.integers(0, 3000))
        now += tail
        outcome = rng.choice(["finished", "exception", ""]) if number < total - 1 else "finished"
        gap = int(rng.integers(0, 20_000))
        attempts.append(
            {
                "began": began,
                "steps": steps,
                "ended": now,
                "outcome": outcome,
                "ranks": ranks,
                "startup": startup,
            }
        )
        attempts[-1]["tail"] = tail if outcome else 0
        if not outcome:  # killed: nobody heard of it after its last step
            gap += tail
        if number < total - 1:
            booked["downtime"] += gap
            now += gap - (0 if outcome else tail)
        first = int(rng.integers(0, first + len(steps) + 1))
    for number, attempt in enumerate(attempts):
        book(booked, attempt, [later["steps"][0][0] for later in attempts[number + 1 :]])
    return Life(attempts, {name: ms * MS for name, ms in booked.items()}, now * MS)


def book(booked: dict[str, int], attempt: dict[str, Any], later: list[int]) -> None:
    booked["start-up"] += attempt["startup"]
    lengths = [length for _, _, length, _ in attempt["steps"]]
    usual = 5 * median(lengths)
    for step, _, length, parts in attempt["steps"]:
        if later and step >= min(later):
            booked["redone"] += length
            continue
        path = max(parts, key=lambda rank: (sum(parts[rank].values()), -rank))
        left = length
        for category, span in (
            ("evaluation", "evaluation"),
            ("checkpoint", "save_checkpoint"),
            ("data", "data"),
        ):
            taken = min(left, parts[path].get(span, 0))
            booked[category] += taken
            left -= taken
        work = [p["forward"] for p in parts.values()]
        behind = min(left, max(0, parts[path]["forward"] - median(work)))
        booked["straggler"] += behind
        left -= behind
        told = max(sum(p.values()) for p in parts.values())
        lost = max(0, min(left, length - max(usual, told)))
        booked["unknown"] += lost
        booked["productive"] += left - lost
    unfinished = later and attempt["outcome"] != "finished"
    booked["redone" if unfinished else "unknown"] += attempt["tail"]


def tell(tables: Any, made: Life, skews: list[int], silent: bool = False) -> None:
    """Logs it; each rank by the clock of its own host."""
    for number, attempt in enumerate(made.attempts):
        for rank in range(attempt["ranks"]):
            process, skew = f"a{number}r{rank}", skews[rank]
            tables.process("r", process, at=0, attempt=number, rank=rank, host=f"host-{rank}",
                           time=tables.t0 + attempt["began"] * MS + skew)  # fmt: skip
            for step, end, _, parts in attempt["steps"]:
                if silent and rank and step % 2:
                    continue
                at, rows = (end * MS + skew) / 1e6, []
                for name, ms in reversed(parts[rank].items()):
                    rows.append((f"span/{name}", step, at, ms / 1000))
                    at -= ms / 1000
                tables.samples("r", process, reversed(rows), rank=rank)
                if rank == 0:
                    tables.samples("r", process, [("loss", step, (end * MS + skew) / 1e6, 1.0)], rank=rank)
            if attempt["outcome"]:
                tables.ended(
                    "r", process, at=(attempt["ended"] * MS + skew) / 1e6, outcome=attempt["outcome"]
                )


def ledger(tables: Any) -> dict[str, int]:
    return {c: round(s * 1e6) for c, s in tables.rows("SELECT category, seconds FROM goodput_ledger('r')")}


@pytest.mark.parametrize("seed", range(8))
def test_the_ledger_of_any_life_is_a_plain_count_of_it(tables: Any, seed: int) -> None:
    """Restarts from any step, kills, gaps, stalls, evaluations; hosts whose clocks differ by minutes."""
    made = life(seed)
    skews = [0, *np.random.default_rng(seed).integers(-300_000_000, 300_000_000, 9).tolist()]
    tell(tables, made, skews)
    assert ledger(tables) == pytest.approx(made.expected, abs=len(made.attempts) * 20)
    ((wall, goodput, attempts),) = tables.rows("SELECT wall_seconds, goodput, attempts FROM goodput('r')")
    assert round(wall * 1e6) == sum(ledger(tables).values()) == made.wall_us
    assert goodput == pytest.approx(made.expected["productive"] / made.wall_us, abs=1e-4)
    assert attempts == len(made.attempts)
    assert tables.rows("SELECT sum(share) FROM goodput_ledger('r')") == [(pytest.approx(1.0),)]


@pytest.mark.parametrize("seed", range(12, 16))
def test_the_ledger_adds_up_with_no_negative_entry_whatever_the_clocks(tables: Any, seed: int) -> None:
    """The lead's own clock jumps between attempts and inside one, ranks are silent for every second step."""
    made = life(seed)
    rng = np.random.default_rng(seed)
    for attempt in made.attempts:
        jump = int(rng.integers(-600_000, 600_000))
        attempt["steps"] = [
            (step, end + (jump if at > len(attempt["steps"]) // 2 else 0), length, parts)
            for at, (step, end, length, parts) in enumerate(attempt["steps"])
        ]
    tell(tables, made, [0] * 10, silent=True)
    booked = ledger(tables)
    assert min(booked.values()) >= 0
    ((wall,),) = tables.rows("SELECT wall_seconds FROM goodput('r')")
    assert sum(booked.values()) == round(wall * 1e6)
    by_step = "took_us - evaluation_us - checkpoint_us - data_us - straggler_us - unknown_us - productive_us"
    assert tables.rows(f"SELECT DISTINCT {by_step} FROM step_times('r')") == [(0,)]


def steps_of(
    tables: Any, process: str, ends: dict[int, float], attempt: int = 0, at: int = 0, rank: int = 0
) -> None:
    tables.process("r", process, attempt=attempt, at=at, rank=rank)
    tables.samples("r", process, [("loss", step, end, 1.0) for step, end in ends.items()], rank=rank)


def test_one_sample_of_a_clock_that_jumped_a_day_ahead_moves_nothing(tables: Any) -> None:
    """Case 23."""
    ends = {step: 10.0 + step for step in range(9)} | {4: 86_400.0}
    steps_of(tables, "p", ends)
    found = {name: us for name, us in ledger(tables).items() if us}
    assert found == {"start-up": 10_000_000, "productive": 8_000_000}


def test_samples_that_speak_of_older_steps_end_no_step(tables: Any) -> None:
    """An evaluation of step 0 that was logged at step 2."""
    tables.process("r", "p")
    rows = [(0, 1.0), (1, 2.0), (2, 3.0), (0, 3.4), (3, 4.0)]
    tables.samples("r", "p", [("loss", step, at, 1.0) for step, at in rows])
    assert tables.rows("SELECT step, took_us FROM step_times('r') ORDER BY 1") == [
        (0, 0), (1, 1_000_000), (2, 1_000_000), (3, 1_000_000),
    ]  # fmt: skip


def test_a_run_that_is_still_going_ends_with_its_last_sample(tables: Any) -> None:
    steps_of(tables, "p", {0: 5.0, 1: 6.0, 2: 7.0})
    (row,) = tables.dicts("FROM goodput('r')")
    assert (row["wall_seconds"], row["productive_seconds"], row["steps"]) == (7.0, 2.0, 3)


def test_after_a_rewind_the_steps_that_were_left_are_lost_without_downtime(tables: Any) -> None:
    """Steps 0..3 until 4 s, rewound to 2 at 5 s, steps 2 and 3 again until 9 s."""
    steps_of(tables, "p", {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    where = {"topic_uuid": tables.uuid, "partition": 0, "offset": tables.next_offset()}
    rewound = {"run": "r", "process": "p", "event": "rewound", "step": 2, "time": tables.t0 + 5_000_000}
    tables.add("processes", [rewound | where])
    told = {"run": "r", "attempt": 1, "what": "process_joined", "ordinal": 0, "time": tables.t0 + 5_000_000}
    told["process"] = "p"
    tables.add("facts", [told | where])
    tables.samples("r", "p", [("loss", step, 7.0 + 2 * (step - 2), 1.0) for step in (2, 3)])
    found = {name: us / 1e6 for name, us in ledger(tables).items() if us}
    assert found == {"start-up": 3.0, "productive": 3.0, "redone": 3.0}


def test_a_rank_that_is_replaced_while_the_others_go_on_does_not_lead(tables: Any) -> None:
    """Rank 0 dies after step 1 and another one goes on in its place: steps 0..3, 4 s, nothing is lost."""
    for process, rank, steps in (("p0", 0, (0, 1)), ("new", 0, (2, 3)), ("p1", 1, (0, 1, 2, 3))):
        steps_of(tables, process, {step: 1.0 + step for step in steps}, rank=rank)
    (row,) = tables.dicts("FROM goodput('r')")
    assert (row["wall_seconds"], row["steps"]) == (4.0, 4)


def test_an_attempt_that_made_no_step_is_all_start_up(tables: Any) -> None:
    tables.process("r", "p0")
    tables.ended("r", "p0", at=30, outcome="exception")
    steps_of(tables, "p1", {0: 50.0, 1: 52.0}, attempt=1, at=40)
    found = {name: us / 1e6 for name, us in ledger(tables).items() if us}
    assert found == {"start-up": 40.0, "downtime": 10.0, "productive": 2.0}


def test_one_step_and_no_run_are_told_as_such(tables: Any) -> None:
    steps_of(tables, "p", {7: 5.0})
    assert {name: us for name, us in ledger(tables).items() if us} == {"start-up": 5_000_000}
    assert len(ledger(tables)) == 9
    assert tables.rows("FROM goodput_ledger('nobody')") == tables.rows("FROM goodput('nobody')") == []
    assert tables.rows("FROM step_times('nobody')") == []


def test_a_run_is_found_by_its_name_in_any_time_zone(tables: Any) -> None:
    tables.process("r", "p", name='it\'s; "my" run')
    tables.samples("r", "p", [("loss", step, 5.0 + step, 1.0) for step in range(4)])
    question = "SELECT run, wall_seconds, goodput, epoch_us(started) FROM goodput(?)"
    at_home = tables.rows(question, ['it\'s; "my" run'])
    tables.db.execute("SET TimeZone = 'America/New_York'")
    assert tables.rows(question, ['it\'s; "my" run']) == at_home == [("r", 8.0, 0.375, tables.t0)]


def test_a_checkpoint_of_untrained_weights_is_no_step(tables: Any) -> None:
    """It is saved at step 0 and training begins at step 1: ten steps are ten."""
    tables.process("r", "p")
    saved = [("checkpoint_save_time", 0, 1.0, 0.5), ("checkpoint_call_time", 0, 1.0, 0.1)]
    tables.samples("r", "p", [*saved, *(("loss", step, 1.0 + step, 1.0) for step in range(1, 11))])
    assert tables.dicts("FROM goodput('r')")[0]["steps"] == 10


def odd_runs(tables: Any) -> None:
    """Runs that end, start and log as runs do when things go wrong, each under the name of what is odd."""
    steps = [("loss", step, 2.0 + step, 1.0) for step in range(10)]
    tables.process("no evaluations", "a")
    tables.samples("no evaluations", "a", steps)
    tables.ended("no evaluations", "a", at=14.0)
    for attempt, (began, first) in enumerate([(0, 0), (30, 5), (60, 3)]):
        tables.process("killed twice", f"k{attempt}", attempt=attempt, at=began)
        tables.samples("killed twice", f"k{attempt}",
                       [("loss", first + at, began + 2.0 + at, 1.0) for at in range(8)])  # fmt: skip
    for rank in range(3):
        tables.process("ranks end early", f"e{rank}", rank=rank)
        tables.samples("ranks end early", f"e{rank}", steps[: 10 if rank == 2 else 4], rank=rank)
    tables.ended("ranks end early", "e0", at=7.0, outcome="exception")
    tables.process("still live", "l")
    tables.samples("still live", "l", steps)
    tables.samples("no events", "n", steps)  # nobody said that it started: an import, or a lost record
    tables.process("no steps", "s")
    tables.samples("no steps", "s", [("cpu_utilization", None, 9.0, 50.0)])
    tables.process("one moment", "m")
    tables.samples("one moment", "m", [("loss", step, 5.0, 1.0) for step in range(10)])
    tables.process("clock set back", "b")
    tables.samples("clock set back", "b", [("loss", step, 50.0 - 3 * step, 1.0) for step in range(10)])
    tables.process("never logged", "q")
    tables.process("evaluates for longer than a step", "v")
    tables.samples("evaluates for longer than a step", "v",
                   [*steps, *[("span/eval", step, 2.0 + step, 5.0) for step in range(10)]])  # fmt: skip


def test_the_ledger_of_odd_runs_adds_up_to_their_wall_time(tables: Any) -> None:
    odd_runs(tables)
    walls = {
        "no evaluations": 14.0, "killed twice": 69.0, "ranks end early": 7.0, "still live": 11.0,
        "no events": 9.0, "no steps": 9.0, "one moment": 5.0, "clock set back": 50.0, "never logged": 0.0,
        "evaluates for longer than a step": 11.0,
    }  # fmt: skip
    found = {}
    for run in walls:
        rows = dict(tables.rows("SELECT category, seconds FROM goodput_ledger(?)", [run]))
        assert all(seconds >= 0 for seconds in rows.values()), (run, rows)
        (row,) = tables.dicts("FROM goodput(?)", [run])
        assert row["wall_seconds"] == pytest.approx(sum(rows.values())), run
        found[run] = row["wall_seconds"]
    assert found == pytest.approx(walls)
