"""Cases of the public record that are about windows, as golden scenarios."""

from __future__ import annotations

import math
from typing import Any

import pytest

from driftline import events
from driftline.config import PipelineConfig, WindowSpec

SECOND = 1_000_000


def five(log: Any, rank: int = 3) -> None:
    values = [0.9, 0.8, math.nan, 0.7, 0.6]
    log.frame([("loss", s, s * 100_000, v, 1.0) for s, v in enumerate(values)], rank=rank)
    log.event(events.ProcessEnded)


def test_case_7_nan_is_counted_and_told_once(log: Any) -> None:
    """A NaN is seen once with its rank and step, counted in the window, and kept out of the mean."""
    five(log)
    assert [seen for seen in log.detection() if seen[0] == "non_finite"] == [["non_finite", "loss", 3, 2]]
    row = log.rows(axis="step", start=0, end=50)[0]
    assert (row["count"], row["nan"], row["inf"]) == (5, 1, 0)
    assert row["mean"] == pytest.approx(0.75, abs=1e-15)


def test_case_19_mean_is_weighted_across_ranks(log: Any) -> None:
    """Sum 3 over 12 tokens and sum 3 over 4 tokens: 0.375, and each rank's own mean stays readable."""
    log.configure(PipelineConfig(windows=[WindowSpec("step", 1, 1)], per_rank=["loss"]))
    log.frame([("loss", 0, 0, 0.25, 12.0)], process="a", rank=0)
    log.frame([("loss", 0, 0, 0.75, 4.0)], process="b", rank=1)
    log.event(events.ProcessEnded, process="a")
    log.event(events.ProcessEnded, process="b")
    rows = {row["group"]: row for row in log.rows()}
    assert (rows[""]["mean"], rows[""]["weight"], rows[""]["present"]) == (0.375, 16.0, 2)
    assert (rows["rank=0"]["mean"], rows["rank=1"]["mean"]) == (0.25, 0.75)
    assert rows[""]["min_rank"] == 0
    assert rows[""]["max_rank"] == 1


def test_case_25_membership_of_hopping_windows(log: Any) -> None:
    """
    Half-open, every hop handed over:

        t     0  2  4  6  8 10 12 14 16 18 20 22 24 26 28
        [0,10)-------------
              [5,15)--------------
                       [10,20)-------------
    """
    log.configure(PipelineConfig(windows=[WindowSpec("time", 10 * SECOND, 5 * SECOND)]))
    for t in range(0, 30, 2):
        log.frame(
            [("x", None, t * SECOND, 1.0, 1.0), (f"at{t}", None, t * SECOND, 1.0, 1.0)], at_us=t * SECOND
        )
    log.event(events.ProcessEnded)
    counts = {row["start"] // SECOND: row["count"] for row in log.rows(metric="x")}
    assert counts == {-5: 3, 0: 5, 5: 5, 10: 5, 15: 5, 20: 5, 25: 2}
    assert [row["start"] // SECOND for row in log.rows(metric="at10")] == [5, 10]
    assert all(row["end"] - row["start"] == 10 * SECOND for row in log.rows())


def test_steps_below_zero_lie_in_windows_of_their_own(log: Any) -> None:
    """Panes are cut by floor division: step -1 belongs to [-2, 0), not to [0, 2)."""
    log.configure(PipelineConfig(windows=[WindowSpec("step", 2, 2)]))
    log.frame([("x", step, step + 5, float(step), 1.0) for step in range(-3, 3)])
    log.event(events.ProcessEnded)
    found = {row["start"]: (row["count"], row["mean"]) for row in log.rows(axis="step")}
    assert found == {-4: (1, -3.0), -2: (2, -1.5), 0: (2, 0.5), 2: (1, 2.0)}


def test_case_1_steps_that_go_back_in_a_new_attempt_are_windowed(log: Any) -> None:
    """A restart from step 200 makes a new attempt in which nothing is late; both keep all samples."""
    log.configure(PipelineConfig(windows=[WindowSpec("step", 1, 1)]))
    for process, first, last in (("a", 0, 212), ("b", 200, 220)):
        log.event(events.ProcessStarted, process=process, rank=0, world_size=1)
        log.frame(
            [("loss", s, s, 1 / (s + 1) if process == "a" else 0.5, 1.0) for s in range(first, last + 1)],
            process=process,
        )
        log.event(events.ProcessEnded, process=process)
    assert len(log.rows()) == 213 + 21
    assert {row["mean"] for row in log.rows(attempt=1)} == {0.5}
    assert log.facts("late") == []
    assert [fact.attempt for fact in log.facts("attempt_started")] == [1]


def test_case_21_world_size_changes(log: Any) -> None:
    """Eight ranks, then six: one new attempt for all six, whatever their restart counts say; one note."""
    log.configure(PipelineConfig(windows=[WindowSpec("step", 1, 1)]))
    for rank in range(8):
        log.event(events.ProcessStarted, process=f"a{rank}", rank=rank, world_size=8)
    for rank in range(8):
        log.frame(
            [("loss", s, s, 1.0, 1.0) for s in range(490, 500)],
            process=f"a{rank}",
            rank=rank,
            at_us=10 * SECOND,
        )
    for rank in range(6):
        log.event(
            events.ProcessStarted, process=f"b{rank}", rank=rank, world_size=6, restart_hint=int(rank == 0)
        )
    for rank in range(6):
        log.frame(
            [("loss", s, s, 1.0, 1.0) for s in range(480, 500)],
            process=f"b{rank}",
            rank=rank,
            at_us=20 * SECOND,
        )
    for rank in range(6):
        log.event(events.ProcessEnded, process=f"b{rank}")
    assert [f.attempt for f in log.facts("attempt_started")] == [1]
    assert [f.text for f in log.facts("world_changed")] == ["8 to 6"]
    rows = log.rows(attempt=1)
    assert len(rows) == 20
    assert {(row["present"], row["expected"]) for row in rows} == {(6, 6)}
    for second in range(20, 100):
        log.tick(second * SECOND)
    assert log.facts("missing") == []
    assert {(row["present"], row["expected"]) for row in log.rows(attempt=0)} == {(8, 8)}


def test_case_23_a_clock_that_runs_ahead_makes_nobody_late(log: Any) -> None:
    """One sample dated a day ahead: told with its offset, moves no watermark, no honest sample is late."""
    log.configure(
        PipelineConfig(
            windows=[WindowSpec("time", 60 * SECOND, 60 * SECOND)], allowed_lateness_us=60 * SECOND
        )
    )
    for second in range(0, 600, 10):
        now = second * SECOND
        log.tick(now)
        for host in range(4):
            at = now + 86_400 * SECOND if (host, second) == (3, 100) else now
            log.frame([("x", None, at, 1.0, 1.0)], process=f"h{host}", rank=host, at_us=now)
    assert "late_time" not in log.state.counters
    assert log.state.counters["future"] == 1
    (fact,) = log.facts("future")
    assert (fact.process, fact.detail["offset_us"]) == ("h3", 86_400 * SECOND)
    assert all(row["count"] == 24 for row in log.rows() if row["start"] >= 0 and row["start"] != 60 * SECOND)
    for host in range(4):
        log.event(events.ProcessEnded, process=f"h{host}")
    assert sum(row["count"] for row in log.rows()) == 240


def test_case_s5_state_of_silent_runs_expires_after_a_restart(log: Any) -> None:
    """1000 runs, the state dumped and loaded, then only ticks: nothing is left after the expiry time."""
    log.configure(PipelineConfig(expire_us=60 * SECOND, idle_us=5 * SECOND, hole_us=1000 * SECOND))
    log.tick(0)
    for number in range(1000):
        log.frame([("x", 1, 0, 1.0, 1.0)], run=f"r{number}", process=f"p{number}")
    log.state = log.pipeline.load(log.pipeline.dump(log.state))
    assert len(log.state.runs) == 1000
    for second in (10, 40, 70):
        log.tick(second * SECOND)
    assert log.state.runs == {}
    assert len({row["run"] for row in log.rows()}) == 1000
