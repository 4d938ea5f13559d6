"""The live view of the demonstration fits the terminal that it is drawn on."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console, Group

from driftline import events
from driftline.cli.watch_state import Evaluation, News, RunView, WatchState
from driftline.cli.watch_view import render
from driftline.demo.screen import LineScreen, LiveScreen

T0 = 1_700_000_000_000_000


@pytest.fixture
def full() -> WatchState:
    """A run with all that the view can show."""
    state = WatchState()
    run = state.runs["01r"] = RunView("01r", name="addition", first_us=T0, last_us=T0, step=700, world_size=4)
    names = ("loss", "exact_match", "grad_norm", "learning_rate", "tokens", "a", "b", "cpu_utilization")
    for name in (*names, *(f"span/{part}" for part in ("data", "forward", "backward", "optimizer"))):
        for at in range(30):
            run.curves.setdefault(name, _curve()).add(at, np.array([1.0 / (at + 1)]))
    for suite in ("addition", "answers"):
        for step in range(0, 700, 100):
            metric = events.Metric(name="accuracy", value=0.5, low=0.4, high=0.6)
            run.evaluations[f"{suite}{step}"] = Evaluation(
                f"{suite}{step}", suite, step, None, "steps", "done", accepted_us=T0, metrics=[metric]
            )
    for index in range(4):
        run.alerts[str(index)] = events.Alert(
            id="t/0/1/0", alert=str(index), run="01r", attempt=0, rule="slow-rank", detector="slow_rank",
            severity="error", state="open", time_us=T0, opened_us=T0, explanation="rank 2 is slow",
        )  # fmt: skip
    for index in range(20):
        state._news.append(News(T0 + index, "01r", "checkpoint", f"checkpoint saved at step {index}"))
    return state


def _curve() -> object:
    from driftline.cli.watch_state import Curve

    return Curve()


@pytest.mark.parametrize("height", [24, 30, 40, 60])
def test_evaluations_and_alerts_are_in_sight_at_any_usual_height(full: WatchState, height: int) -> None:
    console = Console(width=120, height=height, file=io.StringIO(), force_terminal=True)
    lines = console.render_lines(Group("progress", render(full, now_us=T0, run="01r", height=height - 1)))
    text = ["".join(segment.text for segment in line) for line in lines[:height]]
    assert any("evaluations:" in line for line in text)
    assert sum("rank 2 is slow" in line for line in text) >= 2, "\n".join(text)
    assert ("host" in "".join(text)) == (height >= 47)


def test_a_pipe_gets_a_line_for_each_event_and_no_control_characters(full: WatchState) -> None:
    out = io.StringIO()
    full._untold = 20
    with LineScreen(Console(file=out, width=80), "01r", 1200) as screen:
        screen.say("starting [all] parts")
        screen.show(full, steps=700)
    assert "starting [all] parts" in out.getvalue()
    assert out.getvalue().count("checkpoint saved at step") == 20
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_clock_is_whole_while_the_parts_start(width: int) -> None:
    out = io.StringIO()
    screen = LiveScreen(Console(width=width, height=40, file=out, force_terminal=True), "01r", 1200)
    with screen:
        screen.say("starting stream worker, scheduler, sink, evaluator and four training ranks")
        screen.show(WatchState(), steps=0)
    assert "0:00:00" in out.getvalue()
    assert "four training ranks" in out.getvalue()
