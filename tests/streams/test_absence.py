"""Time in which nobody watched: all workers away for hours while training goes on, or begins."""

from __future__ import annotations

from typing import Any

import pytest

from driftline import events
from driftline.config import PipelineConfig, WindowSpec
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
HOUR = 3_600 * SECOND
CONFIG = PipelineConfig(
    windows=[WindowSpec("time", 60 * SECOND, 60 * SECOND), WindowSpec("step", 20, 20)], expire_us=HOUR
)
PERIOD = 20
"""Seconds between the frames of a rank, one step a second: never silent for the 30 s of the detector."""


@pytest.fixture
def real(silent: Any) -> Any:
    """A log with the package's own detectors."""
    log = silent.log(Pipeline())
    log.configure(PipelineConfig(windows=CONFIG.windows, expire_us=HOUR, idle_us=120 * SECOND))
    return log


def train(log: Any, seconds: range, *, watched: bool, ranks: int = 2) -> None:
    """Frames of each rank; ticks where somebody watches."""
    for second in seconds:
        for rank in range(ranks if second % PERIOD == 0 else 0):
            if second:
                steps = range(second - PERIOD, second)
                log.frame(
                    [("loss", s, s * SECOND, 1.0 + s % 7 / 10, 1.0) for s in steps],
                    process=f"p{rank}",
                    rank=rank,
                    at_us=second * SECOND,
                )
        if watched:
            log.tick(second * SECOND)


def start(log: Any, at: int, ranks: int = 2) -> None:
    for rank in range(ranks):
        log.event(events.ProcessStarted, process=f"p{rank}", rank=rank, world_size=ranks, at_us=at * SECOND)


def end(log: Any, ranks: int = 2) -> None:
    for rank in range(ranks):
        log.event(events.ProcessEnded, process=f"p{rank}")


def quiet(log: Any) -> None:
    """Nobody was called silent, ahead, idle, missing or late; nothing was refused."""
    assert [f.text for f in log.facts() if f.what in ("process_idle", "future", "missing", "late")] == []
    assert log.of("alerts") == []
    odd = {"future", "late_time", "late_step", "refused_time", "refused_step", "runs_expired"}
    assert odd & log.state.counters.keys() == set()


@pytest.mark.parametrize("hours", [1, 3])
def test_workers_away_for_hours_while_training_goes_on(real: Any, hours: int) -> None:
    """The windows are those of a log that was watched all the time; the hole is one fact."""
    away = range(600, 600 + hours * 3_600)
    start(real, 0)
    train(real, range(away.start), watched=True)
    train(real, away, watched=False)
    train(real, range(away.stop, away.stop + 300), watched=True)
    end(real)
    quiet(real)
    (hole,) = real.facts("hole")
    assert (hole.end - hole.start) // SECOND in (away.stop - away.start, away.stop - away.start + 1)
    rows = {(r["axis"], r["start"]): r["count"] for r in real.rows()}
    for at in range(0, away.stop + 240, 60):
        assert rows[("time", at * SECOND)] == 120
        assert rows[("step", at)] == 40


def test_a_run_that_begins_while_nobody_watches(real: Any) -> None:
    """Nothing at all for two hours, then a run without a tick for two more: as if somebody had watched."""
    real.tick(0)
    begin, stop = 2 * 3_600, 4 * 3_600
    start(real, begin)
    train(real, range(begin + PERIOD, stop), watched=False)
    train(real, range(stop, stop + 101), watched=True)
    end(real)
    quiet(real)
    assert sum(row["count"] for row in real.rows(axis="time")) == 2 * (stop + 100 - begin)


def test_who_dies_while_nobody_watches_is_called_silent_after_the_hole_and_not_at_its_end(real: Any) -> None:
    start(real, 0)
    train(real, range(600), watched=True)
    train(real, range(600, 4_200), watched=False, ranks=1)
    train(real, range(4_200, 4_205), watched=True, ranks=1)
    quiet(real)
    train(real, range(4_205, 4_400), watched=True, ranks=1)
    assert [fact.process for fact in real.facts("process_idle")] == ["p1"]
    alerts = [a for a in real.of("alerts") if a.state == "open"]
    assert [(a.detector, a.rank) for a in alerts] == [("silent_rank", 1)]


def test_nothing_expires_because_nobody_watched(real: Any) -> None:
    """Ten hours without a record of any kind: afterwards the run is still there, and goes on."""
    start(real, 0)
    train(real, range(601), watched=True)
    real.tick(601 * SECOND + 10 * HOUR)
    assert list(real.state.runs) == ["r"]
    assert len(real.state.runs["r"].processes) == 2
    quiet(real)


@pytest.mark.parametrize("append_time", [True, False])
def test_random_logs_with_holes_agree_with_the_oracle_whoever_stamps_records(
    log: Any, naive: Any, append_time: bool
) -> None:
    for seed in (0, 5):
        records = naive.make_log(seed, ranks=2, seconds=12, append_time=append_time)
        outputs = log.pipeline.step(log.pipeline.fresh("uuid", 0), records)
        assert naive.differences(naive.run(records), outputs) == []
