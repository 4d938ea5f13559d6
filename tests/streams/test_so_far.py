"""The window "whole run so far": grows with the attempt, in a state that does not grow."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from driftline import events
from driftline.config import Derived, PipelineConfig, WindowSpec
from driftline.streams import attempts, so_far
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
RUN_TIME, RUN_STEP = WindowSpec("time", 0, 3 * SECOND), WindowSpec("step", 0, 4)
CONFIG = PipelineConfig(
    windows=[RUN_TIME, WindowSpec("time", 2 * SECOND, SECOND), RUN_STEP, WindowSpec("step", 6, 2)],
    derived=[
        Derived(name="loss_per_lr", kind="ratio", of="loss", per="lr"),
        Derived(name="reward_rate", kind="rate", of="reward"),
    ],
    per_rank=["loss"],
    quantiles={"loss": [0.9]},
    allowed_lateness_us=SECOND,
    idle_us=8 * SECOND,
    start_grace_us=10 * SECOND,
    detectors=[],
)
ALONE = PipelineConfig(windows=[RUN_STEP], allowed_lateness_us=SECOND, detectors=[], start_grace_us=0)


def spans(log: Any, **where: Any) -> list[tuple[int, int, int, float | None]]:
    rows = log.rows(span="run", **where)
    return [(row["start"], row["end"], row["count"], row["mean"]) for row in rows]


def feed(log: Any, steps: range, metric: str = "loss") -> None:
    for step in steps:
        log.frame([(metric, step, step * SECOND, float(step), 1.0)], at_us=step * SECOND)


@pytest.mark.parametrize("few", [2, so_far.PENDING_MIN])
@pytest.mark.parametrize("seed", range(3))
def test_growing_windows_equal_the_oracles(
    log: Any, naive: ModuleType, seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged again and again, also inside of hops, they are what all samples give at once."""
    monkeypatch.setattr(so_far, "PENDING_MIN", few)
    monkeypatch.setattr(naive, "ODD_VALUES", [float("nan"), float("inf"), 0.0, -0.0, 3.0, -2.5])
    records = naive.make_log(seed, ranks=3, seconds=9)
    log.configure(CONFIG)
    outputs = log.pipeline.step(log.state, [r._replace(offset=r.offset + 1) for r in records])
    wanted = naive.run(records, CONFIG)
    assert sum(row["span"] == "run" for row in wanted) > 20
    assert naive.differences(wanted, outputs) == []


def test_any_cut_of_the_log_gives_the_same_growing_bytes(log: Any, any_cut: Any, naive: ModuleType) -> None:
    """Batches of 1, 20 and 500, random cuts with dump and load between: one result."""
    log.configure(CONFIG)
    moved = [record._replace(offset=record.offset + 1) for record in naive.make_log(60, seconds=9)]
    records = [*log.records, *moved]
    any_cut(records, 1)


def test_it_grows_from_the_first_pane_and_comes_only_with_something_new(log: Any) -> None:
    """Every 4 steps; a hop without a sample gives none; what is left at the end is put out too."""
    log.configure(msgspec.structs.replace(ALONE, windows=[RUN_STEP, WindowSpec("step", 1, 1)]))
    feed(log, range(3, 10))
    feed(log, range(20, 22))
    log.event(events.ProcessEnded)
    assert spans(log) == [(3, 4, 1, 3.0), (3, 8, 5, 5.0), (3, 12, 7, 6.0), (3, 24, 9, 83 / 9)]


def test_a_series_without_a_new_sample_is_not_repeated(log: Any) -> None:
    """Of a metric that is logged once at the start there is one row, not one per hop of a week."""
    log.configure(ALONE)
    feed(log, range(1), "once")
    feed(log, range(20))
    log.event(events.ProcessEnded)
    assert spans(log, metric="once") == [(0, 4, 1, 0.0)]
    assert [end for _, end, _, _ in spans(log, metric="loss")] == [4, 8, 12, 16, 20]


def test_what_comes_after_the_run_seemed_over_is_in_the_next_window(log: Any) -> None:
    """The window that the end put out early is not put out again."""
    log.configure(msgspec.structs.replace(ALONE, windows=[RUN_STEP, WindowSpec("step", 1, 1)]))
    feed(log, range(6))
    log.event(events.ProcessEnded)
    feed(log, range(6, 10))
    log.event(events.ProcessEnded)
    assert [(end, count) for _, end, count, _ in spans(log)] == [(4, 4), (8, 6), (12, 10)]


def test_the_state_does_not_grow_with_the_run(log: Any) -> None:
    """One cell per series and the buckets of its values, after 40 steps as after 400."""
    log.pipeline = Pipeline()
    log.configure(msgspec.structs.replace(ALONE, windows=[WindowSpec("step", 0, 8)]))
    sizes = []
    for part in (range(40), range(40, 400)):
        for step in part:
            log.frame([("loss", step, step * SECOND, float(step % 4), 1.0)], at_us=step * SECOND)
        sizes.append(len(log.pipeline.dump(log.state)))
    assert sizes[1] < sizes[0] + 200
    assert spans(log)[-1] == (0, 392, 392, 1.5)


def test_a_change_of_other_windows_does_not_cut_it(log: Any) -> None:
    """Panes get another width; the window of the whole run goes on with what it has."""
    log.configure(ALONE)
    feed(log, range(6))
    log.configure(msgspec.structs.replace(ALONE, windows=[RUN_STEP, WindowSpec("step", 6, 2)]))
    feed(log, range(6, 14))
    log.event(events.ProcessEnded)
    assert [window[:3] for window in spans(log)] == [(0, 4, 4), (0, 8, 6), (0, 12, 12), (0, 16, 14)]


def test_each_attempt_begins_anew(log: Any) -> None:
    """A rewind opens an attempt: its window has its own samples only."""
    log.configure(ALONE)
    feed(log, range(8))
    log.event(events.RunRewound, step=2)
    feed(log, range(2, 6))
    log.event(events.ProcessEnded)
    assert [window[:3] for window in spans(log, attempt=1)] == [(0, 4, 2), (0, 8, 4)]


def test_an_axis_has_one_window_of_the_whole_run(log: Any) -> None:
    """Two would share their rows at common multiples; the configuration before stays."""
    log.configure(msgspec.structs.replace(ALONE, windows=[RUN_STEP, WindowSpec("step", 0, 6)]))
    assert "keep one" in log.of("dead-letter")[0].reason


def test_it_survives_that_processes_are_numbered_anew(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that expired leave room: their samples stay in the window, they count as present no longer."""
    monkeypatch.setattr(attempts, "COMPACT_FROM", 3)
    settings = msgspec.structs.replace(ALONE, idle_us=2 * SECOND, expire_us=60 * SECOND)
    log.configure(settings)
    for number in range(8):
        log.frame([("loss", number, 0, 1.0, 1.0)], process=f"short{number}", rank=number, at_us=0)
    for second in range(300):
        sample = ("loss", 10 + second, second * SECOND, 2.0, 1.0)
        log.frame([sample], process="long", rank=9, at_us=second * SECOND)
        log.tick(second * SECOND)
    assert len(log.state.runs["r"].attempt.processes) < 9
    newest = log.rows(span="run")[-1]
    assert newest["count"] > 200
    assert (newest["min"], newest["present"], newest["expected"]) == (1.0, 1, 1)
