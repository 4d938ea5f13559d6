"""What goes on for days stays bounded, and one odd clock takes nothing from the others."""

from __future__ import annotations

from typing import Any

import pytest

from driftline import events
from driftline.config import PipelineConfig, WindowSpec
from driftline.streams import panes

SECOND = 1_000_000


def test_a_clock_that_runs_ahead_leaves_room_for_honest_samples(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is ahead by more panes than may be open: its own samples are refused, nobody else's."""
    monkeypatch.setattr(panes, "MAX_OPEN_PANES", 40)
    log.configure(PipelineConfig(windows=[WindowSpec("time", SECOND, SECOND)]))
    whole: list[Any] = []
    for second in range(100):
        log.frame([("x", None, (second + 1_000) * SECOND, 1.0, 1.0)], process="ahead", at_us=second * SECOND)
        log.frame([("x", None, second * SECOND, 1.0, 1.0)], process="honest", rank=1)
        whole += log.tick(second * SECOND)
    for process in ("ahead", "honest"):
        log.event(events.ProcessEnded, process=process)
    honest = [row for row in log.rows(axis="time") if row["start"] < 1_000 * SECOND]
    assert [row["count"] for row in honest] == [1] * 100
    assert 0 < log.state.counters["refused_time"] < 100
    state = log.pipeline.fresh("uuid", 0)
    assert log.pipeline.step(state, log.records) == log.outputs


@pytest.mark.parametrize("hours", [2, 5, 30])
def test_a_clock_that_is_behind_delays_windows_up_to_a_bound_and_costs_nobody_else_a_sample(
    log: Any, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A host whose clock is hours behind holds the watermark: at the bound the oldest panes close, and a
    note names it. Honest samples are all in their windows; the odd host's own until their panes are closed.
    """
    monkeypatch.setattr(panes, "MAX_OPEN_PANES", 40)
    log.configure(PipelineConfig(windows=[WindowSpec("time", SECOND, SECOND)]))
    behind_us = hours * 3_600 * SECOND
    start = 10**6
    for second in range(start, start + 100):
        odd = [("x", None, second * SECOND - behind_us, 1.0, 1.0)]
        log.frame(odd, process="behind", rank=3, at_us=second * SECOND)
        log.frame([("x", None, second * SECOND, 1.0, 1.0)])
        log.tick(second * SECOND)
    log.event(events.ProcessEnded)
    log.event(events.ProcessEnded, process="behind")
    counts = {row["start"] // SECOND: row["count"] for row in log.rows(axis="time")}
    assert [counts.get(second) for second in range(start, start + 100)] == [1] * 100
    assert "refused_time" not in log.state.counters
    odd_windows = sum(second < start for second in counts)
    assert odd_windows + log.state.counters["late_time"] == 100
    assert odd_windows > 10
    (note,) = log.facts("note")
    assert (note.process, note.rank, note.axis) == ("behind", 3, "time")
    assert f"{hours * 3_600} s ago" in note.text


def test_attempts_that_rewinds_leave_behind_are_let_go(log: Any) -> None:
    for second in range(30):
        log.frame([("loss", second, second * SECOND, 1.0, 1.0)], at_us=second * SECOND)
        log.event(events.RunRewound, step=0)
        log.tick(second * SECOND)
    assert len(log.state.runs["r"].attempts) <= 3
    assert len(log.facts("attempt_started")) == 30
    assert {row["attempt"] for row in log.rows()} == set(range(30))


def test_groups_follow_what_a_process_says_whenever_its_state_was_saved(log: Any) -> None:
    """A rank that changes, or a host that is told late, gives the same series with and without a restart."""
    log.configure(PipelineConfig(windows=[WindowSpec("step", 1, 1)], per_rank=["x"], per_host=["x"]))
    log.frame([("x", 0, 0, 1.0, 1.0)], rank=0)
    log.frame([("x", 1, 0, 1.0, 1.0)], rank=1)
    log.event(events.ProcessStarted, rank=1, host="a")
    log.frame([("x", 2, 0, 1.0, 1.0)], rank=1)
    log.event(events.ProcessEnded)
    groups = sorted((row["start"], row["group"]) for row in log.rows() if row["group"])
    assert groups == [(0, "rank=0"), (1, "rank=1"), (2, "host=a"), (2, "rank=1")]
    state, outputs = log.pipeline.fresh("uuid", 0), []
    for record in log.records:
        outputs += log.pipeline.step(state, [record])
        state = log.pipeline.load(log.pipeline.dump(state))
    assert outputs == log.outputs
