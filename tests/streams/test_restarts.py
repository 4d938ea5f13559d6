"""Attempts: what is a restart of the run and what of a seat, in whatever order the processes are heard."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftline import events
from driftline.config import PipelineConfig, WindowSpec
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
STEPS = PipelineConfig(windows=[WindowSpec("step", 1, 1)], allowed_lateness_us=SECOND)


class Start(NamedTuple):
    """A process that starts, and the attempt that it must end up in."""

    process: str
    rank: int | None
    at_s: float
    attempt: int
    world: int | None = None
    hint: int | None = None
    role: str = "trainer"


def begin(log: Any, start: Start, heard_s: float | None = None) -> None:
    log.now_us = int(SECOND * (start.at_s if heard_s is None else heard_s))
    event = events.ProcessStarted(
        run="r",
        process=start.process,
        seq=log.seq("r", start.process),
        time_us=int(SECOND * start.at_s),
        rank=start.rank,
        world_size=start.world,
        restart_hint=start.hint,
        role=start.role,
    )
    log.put(events.encode(event))


def told(log: Any) -> dict[str, int]:
    """The attempt of each process, as tables have it: the last word, no rewind being in between."""
    return {fact.process: fact.attempt for fact in log.facts("process_joined")}


def world(names: str, at_s: float, attempt: int, size: int, hint: int | None = None) -> list[Start]:
    return [Start(f"{names}{rank}", rank, at_s + rank / 8, attempt, size, hint) for rank in range(size)]


ELASTIC = [each._replace(hint=int(each.rank == 2)) for each in world("b", 100, 1, 4)]
"""Only the agent whose worker failed counts a restart."""
WITHOUT_COUNTS = [each._replace(world=None) for each in world("b", 100, 1, 4)]
CASES = {
    "all seats start again": (world("a", 0, 0, 4), world("b", 100, 1, 4)),
    "nobody says how large the world is": (
        [each._replace(world=None) for each in world("a", 0, 0, 4)],
        WITHOUT_COUNTS,
    ),
    "a larger world": (world("a", 0, 0, 4), world("b", 100, 1, 7)),
    "a smaller world": (world("a", 0, 0, 4), world("b", 100, 1, 3)),
    "agents disagree about the count": (world("a", 0, 0, 4, hint=0), ELASTIC),
    "every agent counts": (world("a", 0, 0, 4, hint=0), world("b", 20, 1, 4, hint=1)),
    "a rank that was not heard before": (world("a", 0, 0, 4, hint=0)[:3], world("b", 20, 1, 4, hint=1)),
    "one rank": (world("a", 0, 0, 1), world("b", 100, 1, 1)),
    "two ranks": (world("a", 0, 0, 2), world("b", 100, 1, 2)),
    "with workers that go on": (
        [*world("a", 0, 0, 4), *(Start(f"w{n}", n, 1, 0, role="rollout") for n in range(3))],
        world("b", 100, 1, 4),
    ),
    "with a seat that started again long before": (
        [*world("a", 0, 0, 4), Start("c", 2, 30, 0, 4)],
        world("b", 200, 1, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_restart_of_the_run_is_the_same_attempt_in_every_order(
    silent: Any, name: str, data: st.DataObject
) -> None:
    """The processes of each launch are heard in any order; those of before ended, or were killed."""
    log = silent.log(Pipeline(silent, silent))
    before, after = CASES[name]
    for start in data.draw(st.permutations(before)) if len(before) == 4 else before:
        begin(log, start)
    if data.draw(st.booleans(), label="ended"):
        for start in before:
            log.event(events.ProcessEnded, process=start.process, at_us=int(after[0].at_s - 5) * SECOND)
    for start in data.draw(st.permutations(after)):
        begin(log, start, heard_s=after[-1].at_s)
    wanted = {start.process: start.attempt for start in (*before, *after)}
    assert told(log) == wanted
    assert {name: process.attempt for name, process in log.state.runs["r"].processes.items()} == wanted
    assert [fact.attempt for fact in log.facts("attempt_started")] == [1]


@pytest.mark.parametrize("role", ["rollout", "trainer"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_seat_that_starts_again_is_no_restart_of_the_run(
    silent: Any, role: str, data: st.DataObject
) -> None:
    """F2: rewards 1.5 over four workers in one attempt, whoever is replaced, whatever is heard first."""
    log = silent.log(Pipeline(silent, silent))
    log.configure(STEPS)
    seats = data.draw(st.permutations(range(4)))
    size = 4 if role == "trainer" else None
    first = [Start(f"p{rank}", rank, 0, 0, size, role=role) for rank in seats]
    second = Start("new", seats[0], 10, 0, size, role=role)
    for start in first:
        begin(log, start)
    for step in range(20):
        if step == 10:
            begin(log, second)
        for start in first:
            process = "new" if start.rank == seats[0] and step >= 10 else start.process
            value = 1.0 + (start.rank or 0) / 3
            log.frame([("reward", step, step * SECOND, value, 1.0)], process=process, at_us=step * SECOND)
    for process in ("new", *(f"p{rank}" for rank in seats[1:])):
        log.event(events.ProcessEnded, process=process, at_us=20 * SECOND)
    assert set(told(log).values()) == {0}
    rows = log.rows(metric="reward")
    assert [row["start"] for row in rows] == list(range(20))
    assert {(row["attempt"], row["present"], row["expected"]) for row in rows} == {(0, 4, 4)}
    assert {round(row["mean"], 12) for row in rows} == {1.5}
    (left,) = [fact for fact in log.facts("process_left") if fact.process == f"p{seats[0]}"]
    assert "new started in its place" in left.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lives=st.lists(st.one_of(st.integers(1, 6), st.tuples(st.integers(0, 5))), min_size=1, max_size=8),
    data=st.data(),
)
def test_a_life_of_elastic_restarts_and_seats_that_start_again(
    silent: Any, lives: list[int | tuple[int]], data: st.DataObject
) -> None:
    """A number: a launch of so many ranks, heard in any order. (n,): the n-th seat starts again."""
    log = silent.log(Pipeline(silent, silent))
    size, attempt, wanted = 3, 0, {}
    for start in world("first", 0, 0, size):
        begin(log, start)
        wanted[start.process] = 0
    for number, life in enumerate(lives, 1):
        at_s = 200.0 * number
        if isinstance(life, int):
            size, attempt = life, attempt + 1
            starts = data.draw(st.permutations(world(f"l{number}-", at_s, attempt, size)))
        else:
            attempt += size == 1  # the only seat is the run
            starts = [Start(f"s{number}", life[0] % size, at_s, attempt, size)]
        for start in starts:
            begin(log, start, heard_s=at_s + 2)
            wanted[start.process] = attempt
    assert told(log) == wanted


def test_a_seat_that_starts_again_may_be_heard_before_who_had_it(silent: Any) -> None:
    log = silent.log(Pipeline(silent, silent))
    for start in (Start("a0", 0, 0, 0, 4), Start("b1", 1, 12, 0, 4), Start("a1", 1, 0, 0, 4)):
        begin(log, start, heard_s=12)
    assert set(told(log).values()) == {0}
    assert log.state.runs["r"].attempts[0].seats == {"trainer/0": "a0", "trainer/1": "b1"}


def test_seats_that_start_again_one_by_one_over_days_are_no_restart(silent: Any) -> None:
    log = silent.log(Pipeline(silent, silent))
    for start in world("a", 0, 0, 4):
        begin(log, start)
    for day in range(1, 9):
        begin(log, Start(f"d{day}", day % 4, 86_400.0 * day, 0, 4))
        for rank in range(4):
            log.event(events.Heartbeat, process=f"a{rank}", step=day)
    assert set(told(log).values()) == {0}


@pytest.mark.parametrize("size", [None, 1, 6])
def test_workers_may_all_be_replaced_or_more_while_the_trainers_go_on(silent: Any, size: int | None) -> None:
    log = silent.log(Pipeline(silent, silent))
    for start in world("a", 0, 0, 2):
        begin(log, start)
    for generation in range(3):
        for rank in range(4 + generation):
            name, at_s = f"w{generation}{rank}", 5.0 + 30 * generation + rank / 8
            world_size = None if size is None else size + generation
            begin(log, Start(name, rank, at_s, 0, world_size, generation, role="rollout"))
    assert set(told(log).values()) == {0}


@pytest.mark.parametrize("size", [None, 3])
def test_ranks_that_run_one_after_the_other_are_one_attempt(silent: Any, size: int | None) -> None:
    log = silent.log(Pipeline(silent, silent))
    for rank in range(3):
        begin(log, Start(f"p{rank}", rank, 10 * rank, 0, size))
        log.event(events.ProcessEnded, process=f"p{rank}", at_us=(10 * rank + 5) * SECOND)
    assert set(told(log).values()) == {0}


def test_without_a_rank_whoever_starts_when_all_had_left_is_the_next_attempt(silent: Any) -> None:
    """Two at once are one attempt; a script that is run again under the same id is the next."""
    log = silent.log(Pipeline(silent, silent))
    for start in (Start("a", None, 0, 0), Start("b", None, 1, 0)):
        begin(log, start)
    log.event(events.ProcessEnded, process="a", at_us=5 * SECOND)
    begin(log, Start("c", None, 6, 0))
    for process in "bc":
        log.event(events.ProcessEnded, process=process, at_us=7 * SECOND)
    begin(log, Start("d", None, 9, 1))
    begin(log, Start("late", None, 2, 1), heard_s=9)
    assert told(log) == {"a": 0, "b": 0, "c": 0, "d": 1, "late": 1}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ranks_rewind_to_the_same_attempts_in_every_order(silent: Any, data: st.DataObject) -> None:
    """Each rank rewinds twice, to the same step or another: in every order there are two further attempts."""
    log = silent.log(Pipeline(silent, silent))
    steps = data.draw(st.sampled_from([(3, 3), (5, 2)]))
    for start in world("p", 0, 0, 3):
        begin(log, start)
    said = dict.fromkeys(range(3), 0)
    for rank in data.draw(st.permutations([rank for rank in range(3) for _ in steps])):
        log.event(events.RunRewound, process=f"p{rank}", step=steps[said[rank]], at_us=(log.now_us + SECOND))
        said[rank] += 1
    assert [fact.attempt for fact in log.facts("attempt_started")] == [1, 2]
    assert {process.attempt for process in log.state.runs["r"].processes.values()} == {2}
    assert told(log) == {f"p{rank}": 2 for rank in range(3)}


def test_whoever_goes_on_in_an_older_attempt_is_watched(silent: Any) -> None:
    """F3: only one rank rewinds; another one falls silent. And nobody asks for those who were replaced."""
    log = silent.log(Pipeline())
    log.configure(PipelineConfig())
    for start in world("a", 0, 0, 4):
        begin(log, start)
        log.frame([("loss", 0, 0, 1.0, 1.0)], process=start.process, rank=start.rank)
    log.event(events.RunRewound, process="a0", step=0, at_us=2 * SECOND)
    begin(log, Start("new", 2, 3, 0, 4))
    for second in range(4, 80):
        log.tick(second * SECOND)
        for process in ("a0", "new", *(["a1"] if second < 20 else []), "a3"):
            log.event(events.Heartbeat, process=process, step=second)
    opened = [alert for alert in log.of("alerts") if alert.state == "open"]
    assert [(alert.detector, alert.rank) for alert in opened] == [("silent_rank", 1)]
