"""What comes after its process, attempt or run expired counts once or is late, and opens no attempt."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import msgspec
import pytest

from driftline import events, frames
from driftline import records as wire
from driftline.config import PipelineConfig, WindowSpec
from driftline.records import Record
from driftline.streams import attempts, memory

SECOND = 1_000_000
CONFIG = PipelineConfig(
    windows=[WindowSpec("time", 2 * SECOND, SECOND), WindowSpec("step", 4, 2)],
    allowed_lateness_us=SECOND,
    idle_us=4 * SECOND,
    expire_us=7 * SECOND,
    start_grace_us=3 * SECOND,
)


def spooled(log: list[Record], seed: int) -> list[Record]:
    """From a record on, what some processes send comes much later, after some of it that came before."""
    chance = random.Random(seed)
    cuts: dict[str, int] = {}
    kept: list[tuple[int, int, bytes | None]] = []
    count: dict[str, int] = {}
    for record in log:
        content = wire.decode(record.value)
        at_ms = record.time_ms
        if isinstance(content, frames.Frame | events.FromProcess):
            name = content.process
            if name not in cuts:
                cuts[name] = chance.choice([10**9, 10**9, 0, 3, 8])
                count[name] = 0
            count[name] += 1
            if count[name] > cuts[name]:
                at_ms += 30_000
            elif count[name] > cuts[name] - 2:
                kept.append((at_ms + 30_000, len(kept), record.value))
        kept.append((at_ms, len(kept), record.value))
    kept.sort()
    return [Record(0, offset, at_ms, value) for offset, (at_ms, _, value) in enumerate(kept)]


@pytest.mark.parametrize("seed", range(6))
def test_late_spools_and_expired_processes_agree_with_the_oracle(
    log: Any, naive: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random logs in which processes and runs expire all the time and come back; any cut, numbers reused."""
    monkeypatch.setattr(attempts, "COMPACT_FROM", 1)
    records = naive.make_log(seed, ranks=3, seconds=12)
    records = spooled(records, seed)
    log.configure(CONFIG)
    records = [record._replace(offset=record.offset + 1) for record in records]
    outputs = log.pipeline.step(log.state, records)
    assert naive.differences(naive.run(records, CONFIG), outputs) == []
    assert log.state.counters["runs_expired"] > 0
    assert log.state.counters["duplicates"] > 0
    chance = random.Random(seed)
    state, at = log.pipeline.fresh("uuid", 0), 0
    cut = log.pipeline.step(state, log.records)
    while at < len(records):
        size = chance.choice([1, 3, 30])
        cut += log.pipeline.step(state, records[at : at + size])
        state = log.pipeline.load(log.pipeline.dump(state))
        at += size
    assert cut[len(cut) - len(outputs) :] == outputs


def steps(first: int, last: int, at: int) -> list[Any]:
    return [("loss", s, at * SECOND, 1.0, 1.0) for s in range(first, last)]


def ticks(log: Any, first: int, last: int, every: int = 5) -> None:
    for second in range(first, last, every):
        log.tick(second * SECOND)


def windows_once(log: Any) -> dict[tuple[str, int, int], int]:
    """Count by (axis, attempt, start) of windows; none may come twice."""
    keys = [(r["axis"], r["attempt"], r["start"], r["end"]) for r in log.rows()]
    assert len(keys) == len(set(keys)), "a window came twice"
    return {(r["axis"], r["attempt"], r["start"]): r["count"] for r in log.rows()}


ONE = PipelineConfig(windows=[WindowSpec("step", 1, 1)], expire_us=60 * SECOND, idle_us=10 * SECOND)


def a_dead_rank_of(log: Any, naive: ModuleType) -> list[bytes]:
    """Two ranks; rank 1 dies at step 6 with steps 6 to 9 in its spool, which is returned with an overlap."""
    log.configure(ONE)
    log.tick(0)
    for rank in (0, 1):
        log.event(events.ProcessStarted, process=f"a{rank}", rank=rank, world_size=2)
    spool = []
    for at in range(10):
        log.frame(steps(at, at + 1, at), process="a0", rank=0, at_us=at * SECOND)
        if at < 6:
            log.frame(steps(at, at + 1, at), process="a1", rank=1)
            spool.append(log.records[-1].value)
        else:
            seq = log.seq("r", "a1")
            spool.append(naive.make_frame("r", "a1", seq, 1, steps(at, at + 1, at)))
        log.tick(at * SECOND)
    return spool[3:]


@pytest.mark.parametrize("gone", ["idle", "process", "attempt", "run"])
def test_the_spool_of_a_dead_process_comes_late(log: Any, naive: ModuleType, gone: str) -> None:
    """After its rank fell idle, expired, was replaced in a new attempt, or the whole run expired.

    What was there before is dropped, the rest is late and told; no window twice, no attempt more.
    """
    spool = a_dead_rank_of(log, naive)
    until = {"idle": 40, "process": 200, "attempt": 400, "run": 400}[gone]
    if gone == "attempt":
        for rank in (0, 1):
            log.event(events.ProcessStarted, process=f"b{rank}", rank=rank, world_size=2)
    living = {"idle": ["a0"], "process": ["a0"], "attempt": ["b0", "b1"], "run": []}[gone]
    for second in range(10, until):
        for rank, process in enumerate(living):
            log.frame(steps(second, second + 1, second), process=process, rank=rank, at_us=second * SECOND)
        log.tick(second * SECOND)
    assert ("r" in log.state.runs) == (gone != "run")
    started = len(log.facts("attempt_started"))
    counted = windows_once(log)
    for value in spool:
        log.put(value, until * SECOND)
    ticks(log, until, until + 200)
    assert log.state.counters["duplicates"] == 3
    assert len(log.facts("attempt_started")) == started
    after = windows_once(log)
    assert {key: after[key] for key in counted} == counted
    late = log.facts("late")
    assert sum(fact.count for fact in late if fact.axis == "step" or gone == "attempt") == 4
    assert {fact.attempt for fact in late} == {0}
    assert log.facts("gap") == []


def test_a_run_that_is_resumed_after_it_expired_goes_on_counting_attempts(log: Any) -> None:
    """The next day's launch with the same run id is attempt 1, and its windows are nobody else's."""
    log.configure(ONE)
    for day in range(3):
        at = day * 86_400
        log.tick(at * SECOND)
        log.event(events.ProcessStarted, process=f"p{day}", rank=0, world_size=1, at_us=at * SECOND)
        log.frame(steps(day * 5, day * 5 + 10, at), process=f"p{day}")
        ticks(log, at, at + 300)
        assert log.state.runs == {}
        log.state = log.pipeline.load(log.pipeline.dump(log.state))
    assert {r["attempt"]: r["count"] for r in log.rows()} == {0: 1, 1: 1, 2: 1}
    assert sorted((r["attempt"], r["start"]) for r in log.rows()) == [
        (day, day * 5 + step) for day in range(3) for step in range(10)
    ]
    assert [fact.attempt for fact in log.facts("attempt_started")] == [1, 2]


def test_a_machine_that_slept_longer_than_the_expiry_goes_on(log: Any) -> None:
    """A laptop that was closed for hours: the run goes on in its attempt, and its new steps are windowed."""
    log.configure(ONE)
    log.tick(0)
    log.event(events.ProcessStarted, rank=0, world_size=1)
    log.frame(steps(0, 5, 0))
    ticks(log, 1, 10_000, 9)
    assert log.state.runs == {}
    log.frame(steps(5, 9, 10_000), at_us=10_000 * SECOND)
    log.frame(steps(9, 12, 10_001), at_us=10_001 * SECOND)
    log.event(events.ProcessEnded)
    assert sorted(windows_once(log)) == [("step", 0, step) for step in range(12)]
    assert log.facts("late") == []
    assert log.facts("attempt_started") == []


def test_a_launch_whose_start_comes_after_a_newer_one_opens_no_attempt(log: Any, naive: ModuleType) -> None:
    """It ran while no broker was there and died; its successor sends its spool: its samples are late."""
    log.configure(ONE)
    log.tick(1_000 * SECOND)
    log.event(events.ProcessStarted, process="new", rank=0, world_size=1, at_us=1_000 * SECOND)
    log.frame(steps(0, 3, 1_000), process="new")
    log.now_us = 100 * SECOND
    old = [
        events.encode(events.ProcessStarted(run="r", process="old", seq=0, time_us=100 * SECOND, rank=0)),
        naive.make_frame("r", "old", 1, 0, steps(0, 7, 100)),
    ]
    for value in old:
        log.put(value, 1_001 * SECOND)
    log.frame(steps(3, 6, 1_002), process="new", at_us=1_002 * SECOND)
    log.tick(1_003 * SECOND)
    log.event(events.ProcessEnded, process="new")
    assert log.facts("attempt_started") == []
    assert sorted(windows_once(log).values()) == [1] * 6
    (late,) = log.facts("late")
    assert (late.count, late.attempt) == (7, 0)
    assert "after a newer launch" in log.facts("process_joined")[-1].text


def test_a_start_on_a_clock_that_is_behind_is_no_older_launch(log: Any) -> None:
    """A first start on such a host takes a free seat; a restart there follows one with the same clock."""
    log.configure(ONE)
    log.tick(9_000 * SECOND)
    for restart in range(2):
        for rank, behind in ((0, 0), (1, 5_000)):
            now_us = (9_000 + restart * 20) * SECOND
            seq = log.seq("r", f"p{restart}{rank}")
            event = events.ProcessStarted(
                run="r", process=f"p{restart}{rank}", seq=seq, time_us=now_us - behind * SECOND, rank=rank
            )
            log.put(events.encode(event), now_us)
    assert [fact.attempt for fact in log.facts("attempt_started")] == [1]
    assert [len(attempt.seats) for attempt in log.state.runs["r"].attempts.values()] == [2, 2]


# --- bounds ------------------------------------------------------------------------------------------------


def test_thousands_of_runs_leave_a_bounded_memory_that_ends(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case S5: 300 runs, the worker started again from its snapshot, then only ticks: no run is left.

    What is remembered stays within its bounds, and is gone in the end: the state is as small as a fresh one.
    """
    monkeypatch.setattr(memory, "MAX_REMEMBERED", 100)
    log.configure(PipelineConfig(expire_us=60 * SECOND, idle_us=5 * SECOND, hole_us=10**15))
    log.tick(0)
    empty = len(log.pipeline.dump(log.state))
    for number in range(300):
        log.frame([("x", 1, 0, 1.0, 1.0)], run=f"r{number}", process=f"p{number}")
    full = len(log.pipeline.dump(log.state))
    log.state = log.pipeline.load(log.pipeline.dump(log.state))
    ticks(log, 10, 100, 30)
    assert log.state.runs == {}
    assert len(log.state.remembered) == 100
    assert log.state.counters["runs_expired"] == 300
    assert len(log.pipeline.dump(log.state)) < full / 5
    log.tick(memory.REMEMBER_US + 200 * SECOND)
    assert log.state.remembered == {}
    assert len(log.pipeline.dump(log.state)) < empty + 500


def test_a_forgotten_process_may_have_counted_so_its_old_samples_are_late(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_REMEMBERED", 1)
    log.configure(ONE)
    log.tick(0)
    for start, run in ((0, "old"), (100, "newer")):
        log.frame(steps(0, 5, start), run=run, process="p", at_us=start * SECOND)
        ticks(log, start, start + 100)
    value = next(r.value for r in log.records if isinstance(wire.decode(r.value), frames.Frame))
    log.put(value, 200 * SECOND)
    log.tick(201 * SECOND)
    assert log.state.runs == {}
    assert [(f.run, f.count) for f in log.facts("late")] == [("old", 5)]
    log.frame(steps(5, 8, 202), run="old", process="q", at_us=202 * SECOND)
    assert list(log.state.runs) == ["old"]


def test_an_attempt_of_many_short_processes_keeps_few_numbers(log: Any) -> None:
    """A helper process for each evaluation, for weeks: arrays of processes stay as wide as the living."""
    log.configure(msgspec.structs.replace(ONE, expire_us=50 * SECOND))
    log.event(events.ProcessStarted, process="main", rank=0, world_size=1)
    for number in range(300):
        at = number * 10
        log.frame(steps(number, number + 1, at), process="main", at_us=at * SECOND)
        log.event(events.ProcessStarted, process=f"h{number}", rank=0, parent="main")
        log.frame([("eval", number, at * SECOND, 1.0, 1.0)], process=f"h{number}")
        log.event(events.ProcessEnded, process=f"h{number}")
        log.tick(at * SECOND)
    attempt = log.state.runs["r"].attempt
    assert len(attempt.processes) < 4 * attempts.COMPACT_FROM
    assert attempt.series.bits.shape[1] <= 4
    assert attempt.axes["step"].log.many.shape[1] <= 4
    rows = log.rows(metric="eval")
    assert {row["present"] for row in rows} == {1}
    assert {row["expected"] for row in rows} == {1}


def test_parked_processes_make_room_for_new_ones(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.streams.processes.MAX_PROCESSES", 20)
    log.configure(ONE)
    for number in range(100):
        log.frame(steps(0, 1, number), process=f"p{number}", rank=None, at_us=number * 100 * SECOND)
        ticks(log, number * 100, number * 100 + 100, 9)
    assert "records_of_refused_processes" not in log.state.counters
    assert all(len(run.processes) <= 20 for run in log.state.runs.values())
    assert sum(len(known.processes) for known in log.state.remembered.values()) <= 20
