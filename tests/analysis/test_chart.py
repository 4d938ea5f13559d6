"""Charts as text and as pictures: gaps, bands, marks, widths; no library needed to say what they show."""

from __future__ import annotations

import math

import pytest
from rich.console import Console

from driftline.analysis.chart import Axis, Bars, Chart, Heat, Mark, Part, Plot, frame, line, ticks
from driftline.analysis.terminal import drawn

NAN = math.nan
BANDED = Plot(
    "loss",
    Axis("training step"),
    Axis("loss", "nats"),
    (line("mean", range(6), [3, 2, NAN, 1, 1, 0], [2, 1, NAN, 0, 0, -1], [4, 3, NAN, 2, 2, 1]),),
    (Mark(3.0, "loss-spike", "alert", 4.0), Mark(1.0, "", "checkpoint")),
)
TWO = Plot("two", Axis("x"), Axis("y"), (line("up", [0, 1], [0, 1]), line("down", [0, 1], [1, 0])))
BARS = Bars("time", Axis("time", "s"), ("mean", "slowest"), (Part("a", (1.0, 2.0)), Part("b", (1.0, 1.0))))
HEAT = Heat(
    "skew", Axis("step"), Axis("rank"), Axis("ratio"), tuple(map(str, range(300))), ("0", "1"),
    ((1.0,) * 300, (1.0,) * 100 + (2.0,) * 200), middle=1.0,
)  # fmt: skip


def text(chart: Chart, width: int = 60, *, colour: bool = False) -> str:
    return "\n".join(each.plain for each in drawn(chart, width, colour=colour))


@pytest.mark.parametrize("width", [30, 60, 100])
@pytest.mark.parametrize("chart", [BANDED, TWO, BARS, HEAT], ids=lambda chart: chart.title)
def test_a_chart_is_never_wider_than_it_may_be(chart: Chart, width: int) -> None:
    assert max(len(each) for each in text(chart, width).split("\n")) <= width


def test_a_value_that_is_no_number_is_a_gap_with_a_sign() -> None:
    shown = text(BANDED)
    row = next(each for each in shown.split("\n") if "!" in each)
    assert row.count("!") == 1
    assert "! 1 point is NaN or infinite" in shown


def test_alerts_are_named_below_and_checkpoints_counted() -> None:
    assert "▲ 3-4 loss-spike" in text(BANDED)
    assert "◆ 1 checkpoint" in text(BANDED)


def test_lines_without_colours_are_told_apart_by_their_signs() -> None:
    assert {"•", "×"} <= set(text(TWO))
    assert not {"•", "×"} & set(text(TWO, colour=True))


def test_a_pipe_gets_no_colours() -> None:
    console = Console(file=None, width=60, no_color=True, force_terminal=False)
    with console.capture() as captured:
        for each in drawn(BANDED, 60, colour=False):
            console.print(each)
    assert "\x1b" not in captured.get()


def test_what_is_normal_in_a_heat_map_is_light_and_what_is_slow_is_dark() -> None:
    rows = [each for each in text(HEAT, 40).split("\n") if "│" in each]
    assert set(rows[0].split("│")[1]) == {"░"}
    assert set(rows[1].split("│")[1]) == {"░", "█"}


def test_bars_are_as_long_as_their_sums() -> None:
    mean, slowest = (each for each in text(BARS, 40).split("\n") if each.startswith(("mean", "slowest")))
    assert slowest.count("█") + slowest.count("▓") > 1.4 * (mean.count("█") + mean.count("▓"))
    assert (mean.endswith("2 s"), slowest.endswith("3 s")) == (True, True)


@pytest.mark.parametrize(
    "values",
    [[], [NAN, NAN], [1e308, -1e308], [5.0], [math.inf, 1.0, -math.inf], [0.0] * 3, [1e-300, 2e-300]],
)
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    chart = Plot("any", Axis("x"), Axis("y"), (line("l", list(range(len(values))), values),))
    assert len(text(chart).split("\n")) > 14
    assert frame(chart).y[1] > frame(chart).y[0]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1e-9, 2e-9), (-1e300, 1e300), (7, 7), (0.13, 0.31)])
def test_ticks_lie_inside_and_are_few(low: float, high: float) -> None:
    found = ticks(low, high)
    assert len(found) <= 6
    room = abs(high - low) * 1e-6
    assert all(low - room <= tick <= high + room for tick in found)


def test_what_a_chart_shows_is_also_said_in_words() -> None:
    assert "mean: 6 points from 3 to 0, between 0 and 3, 1 without a number." in BANDED.says
    assert "loss, nats by training step" in BANDED.says
    assert "2 ranks" in HEAT.says
