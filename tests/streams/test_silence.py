"""A run that dies at once, all of it, is an alert: nobody is left who could say that it ended."""

from __future__ import annotations

from typing import Any

import pytest

from driftline import events
from driftline.config import PipelineConfig
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("then", ["nothing", "ends", "starts again"])
def test_a_run_that_was_killed_opens_one_alert(silent: Any, ranks: int, then: str) -> None:
    """By default a process is silent, and the run ended, after the same 30 s; it must not hide the alert."""
    log = silent.log(Pipeline())
    log.configure(PipelineConfig(expire_us=200 * SECOND))
    for second in range(20):
        for rank in range(ranks):
            process = f"p{rank}"
            if not second:
                log.event(events.ProcessStarted, process=process, rank=rank, world_size=ranks, at_us=0)
            log.frame(
                [("loss", second, second * SECOND, 1.0, 1.0)],
                process=process,
                rank=rank,
                at_us=second * SECOND,
            )
        log.tick(second * SECOND)
    for second in range(20, 100):
        log.tick(second * SECOND)
    changes = log.of("alerts")
    assert {(a.rule, a.opened_us) for a in changes} == {("silent-rank", 50 * SECOND)}
    assert [a.state for a in changes if a.state != "update"] == ["open"]
    for rank in range(ranks):
        if then == "ends":
            log.event(events.ProcessEnded, process=f"p{rank}")
        elif then == "starts again":
            log.event(events.ProcessStarted, process=f"new{rank}", rank=rank, world_size=ranks)
            log.event(events.ProcessEnded, process=f"new{rank}")
    for second in range(100, 102 if then != "nothing" else 240):
        log.tick(second * SECOND)
    states = [a.state for a in log.of("alerts") if a.state != "update"]
    assert states == ["open", "resolved"]
    assert [f.what for f in log.facts("run_ended")]


@pytest.mark.parametrize("ends", [False, True])
def test_a_killed_child_of_a_rank_that_lives_is_no_silent_rank(silent: Any, ends: bool) -> None:
    """A worker of a loader may be killed at any time; its rank is alive, and its run ends as others do."""
    log = silent.log(Pipeline())
    log.event(events.ProcessStarted, process="p0", rank=0, world_size=1, at_us=0)
    log.event(events.ProcessStarted, process="child", rank=0, parent="p0")
    log.frame([("loss", 0, 0, 1.0, 1.0)], process="child", rank=0)
    for second in range(100):
        sample = ("loss", second, second * SECOND, 1.0, 1.0)
        log.frame([sample], process="p0", rank=0, at_us=second * SECOND)
        log.tick(second * SECOND)
    if ends:
        log.event(events.ProcessEnded, process="p0")
        for second in range(100, 200):
            log.tick(second * SECOND)
        (fact,) = log.facts("run_ended")
        assert fact.detail["silent"] is False
    assert log.of("alerts") == []


def test_a_rank_that_dies_while_its_child_lives_is_silent(silent: Any) -> None:
    """The child that goes on does not stand for it."""
    log = silent.log(Pipeline())
    log.event(events.ProcessStarted, process="p0", rank=0, world_size=1, at_us=0)
    log.event(events.ProcessStarted, process="child", rank=0, parent="p0")
    for second in range(100):
        sample = ("loss", second, second * SECOND, 1.0, 1.0)
        log.frame([sample], process="child", rank=0, at_us=second * SECOND)
        log.tick(second * SECOND)
    assert [alert.state for alert in log.of("alerts") if alert.state != "update"] == ["open"]
