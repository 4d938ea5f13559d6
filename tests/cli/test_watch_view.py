"""What the live view draws of a state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from driftline import events
from driftline.analysis.values import sparkline
from driftline.cli import watch_view
from driftline.cli.watch_state import Curve, Evaluation, News, ProcessView, RunView, WatchState

T0 = 1_700_000_000_000_000


def drawn(state: WatchState, width: int = 110, **options: Any) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(watch_view.render(state, now_us=T0 + 60_000_000, **options))
    console.file.close()
    return console.export_text()


def curve(*values: float) -> Curve:
    made = Curve()
    for at, value in enumerate(values):
        made.newest = value
        made.by_rank[at] = value
        if math.isfinite(value):
            made.add(at, np.array([value]))
    return made


@pytest.fixture
def state() -> WatchState:
    made = WatchState()
    run = made.runs["01r"] = RunView("01r", name="[bold]odd[/] name", first_us=T0, last_us=T0, step=7)
    run.curves["loss"] = curve(3.0, 2.0, 1.0)
    run.curves["span/forward"] = curve(0.01, 0.01, 0.04)
    run.curves["gpu_utilization"] = curve(97.0)
    run.curves["bad"] = curve(1.0, float("nan"))
    return made


def test_names_are_shown_as_they_are_typed(state: WatchState) -> None:
    assert "[bold]odd[/] name" in drawn(state)


def test_curves_spans_and_host_readings_have_units_and_the_slowest_rank(state: WatchState) -> None:
    text = drawn(state)
    assert "█▅▁" in text
    assert "rank 2: 40 ms" in text
    assert "97.0 %" in text
    assert "nan" in text


def test_evaluations_show_interval_length_progress_and_failure(state: WatchState) -> None:
    metrics = [
        events.Metric(name="accuracy", value=0.4123, low=0.35, high=0.48),
        events.Metric(name="response_length", value=4.25),
    ]
    entries = [
        Evaluation("q1", "addition", 10, None, "steps", "done", metrics=metrics, accepted_us=T0, seconds=1.5),
        Evaluation("q2", "addition", 20, None, "steps", "running", done=30, total=90),
        Evaluation(
            "q3", "addition", 30, None, "end", "failed", why="suite raised ValueError", accepted_us=T0
        ),
    ]
    state.runs["01r"].evaluations = {entry.request: entry for entry in entries}
    text = drawn(state)
    for expected in (
        "0.412 [0.350, 0.480]",
        "4.2",
        "30 of 90 items",
        "suite raised ValueError",
        "2 done, 1 to come",
    ):
        assert expected in text


def test_without_a_run_it_says_what_it_waits_for() -> None:
    assert "waiting for the first record of a run" in drawn(WatchState())
    assert "waiting for the first record of x" in drawn(WatchState(), run="x")
    assert "the broker is away" in drawn(WatchState(), trouble="the broker is away")


def test_what_could_not_be_read_or_shown_is_said(state: WatchState) -> None:
    state.bad_records, state.unknown_records, state.left_out = 1, 2, 3
    text = drawn(state, trouble="waiting for the broker")
    assert "1 undecodable records, 2 records of unknown kinds, 3 things that did not fit this view" in text
    assert "waiting for the broker" in text


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_any_width_can_be_drawn(state: WatchState, width: int) -> None:
    assert all(len(line) <= width for line in drawn(state, width=width).splitlines())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_names_and_values_keep_their_width_and_sparklines_give_way(state: WatchState, width: int) -> None:
    """F34: at 80 columns names shrank to one letter."""
    run = state.runs["01r"]
    run.world_size = 64
    names = ("train/grad_norm", "rollout/response_length", "learning_rate", "reward_mean")
    for name in names:
        run.curves[name] = curve(*[1.0 + math.sin(at) for at in range(200)], 123.456)
    for name in ("span/backward", "span/optimizer_step", "cpu_utilization", "memory_used"):
        run.curves[name] = curve(0.5, 0.25)
    lines = drawn(state, width=width).splitlines()
    for name in (*names, "loss"):
        (line,) = [line for line in lines if f"{name} " in line and "│" in line]
        value = "1" if name == "loss" else "123"
        assert f" {value}" in line.split(name)[1]
        assert any(block in line for block in "▁▂▃▄▅▆▇█")
    for text in ("step 7", "samples/s", "frames/s", "optimizer_step", "memory_used"):
        assert sum(text in line for line in lines) == 1, text
    longest = max(sum(line.count(block) for block in "▁▂▃▄▅▆▇█") for line in lines)
    assert longest <= 41
    assert longest >= (4 if width == 80 else 15)


def test_the_plain_form_is_one_line_each(state: WatchState) -> None:
    said = watch_view.summary(state.runs["01r"], now_us=T0)
    assert "step 7" in said
    assert "loss 1" in said
    told = watch_view.line(News(T0, "01r", "alert", "alert opened: x", True), name="mine")
    assert told.endswith(" mine alert opened: x")
    assert "\n" not in said + told


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([0, 7], 2, "▁█"),
        ([float("nan"), 1, 2], 5, "▁█"),
        (range(100), 4, "▁▃▆█"),
    ],
)
def test_sparklines(values: Any, width: int, expected: str) -> None:
    assert sparkline(list(values), width) == expected


def test_declared_metrics_are_shown_before_the_usual_ones(state: WatchState) -> None:
    text = drawn(state, first=["bad", "absent"])
    assert text.index("bad") < text.index("loss")
    assert drawn(state).index("loss") < drawn(state).index("bad")


def test_the_slowest_rank_is_never_below_the_mean_beside_it(state: WatchState) -> None:
    """The mean is over the ranks' newest values, not over a bucket of older steps."""
    span = state.runs["01r"].curves["span/forward"] = curve(0.9, 0.9, 0.9)
    span.by_rank = {0: 0.01, 1: 0.02, 2: 0.03}
    assert "forward 20 ms rank 2: 30 ms" in drawn(state)


def test_a_run_without_ranks_is_told_by_its_processes(state: WatchState) -> None:
    run = state.runs["01r"]
    run.processes["p"] = ProcessView(None)
    assert "processes 1" in drawn(state)
    assert "processes 1" in watch_view.summary(run, now_us=T0)
    run.processes["q"] = ProcessView(3)
    run.world_size = 4
    assert "ranks 1 of 4" in drawn(state)
