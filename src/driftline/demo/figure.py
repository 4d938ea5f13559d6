"""The curves of a run as one picture: PNG bytes, or SVG that takes its ink from the page around it.

Marks on the curves are what the detectors said (``alerts``), not what the demonstration knows to have caused.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from driftline.analysis.ink import Ink, as_png, as_svg
from driftline.demo.findings import AlertFound, Findings, Score, Series

LOSS, MATCH, ACCURACY, LENGTH, PERPLEXITY = "#2f7ed8", "#8aa4bf", "#1f9d74", "#8a63c9", "#b8772f"
RANKS = ("#7aa6d6", "#5aa88f", "#c98a3c", "#9c83c4", "#7d8c99", "#b07a8c", "#8f9a4b", "#4f9aa8")
ALERT, BUSY = "#d1495b", "#c9a227"
Place = Literal["upper right", "lower left", "lower right"]


def png(found: Findings) -> bytes:
    """The picture on white, 150 dots per inch."""
    return as_png(lambda ink: draw(found, ink))


def svg(found: Findings) -> str:
    """An ``<svg>`` element that takes its ink from the page."""
    return as_svg(lambda ink: draw(found, ink), says="Curves over training steps")


def draw(found: Findings, ink: Ink) -> Figure:
    """Six panels over the training steps."""
    figure = Figure(figsize=(12.5, 11.4), layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1))
    grid = figure.subplots(3, 2, sharex=True)
    _loss(grid[0][0], found)
    _accuracy(grid[0][1], found)
    _forward(grid[1][0], found)
    _length(grid[1][1], found)
    _step_time(grid[2][0], found)
    _perplexity(grid[2][1], found)
    for axes in grid.flat:
        axes.grid(color=ink.faint, linewidth=0.6, alpha=0.7)
        axes.set_axisbelow(True)
        axes.set_xlim(0, max(found.last_step, 1) * 1.01)
    for axes in grid[-1]:
        axes.set_xlabel("training step")
    return figure


def _loss(axes: Axes, found: Findings) -> None:
    curve = found.curves["loss"]
    axes.set_title("Loss, mean over ranks weighted by tokens")
    axes.set_yscale("log")
    if not len(curve.step):
        return
    axes.fill_between(curve.step, curve.low, curve.high, color=LOSS, alpha=0.18, linewidth=0)
    axes.plot(curve.step, curve.mean, color=LOSS, linewidth=1.2, label="mean; band: lowest to highest rank")
    for alert in found.alerts:
        if alert.metric == "loss":
            _mark(axes, found, alert)
    _legend(axes, "lower left")


def _accuracy(axes: Axes, found: Findings) -> None:
    axes.set_title("Accuracy on held-out sums, 95 % interval")
    curve = found.curves["exact_match"]
    if len(curve.step):
        smooth = _smooth(curve.mean, 15)
        axes.plot(curve.step, smooth, color=MATCH, linewidth=1.2, label="training batches, teacher-forced")
    _scored(axes, found.scores.get("accuracy", []), ACCURACY, "held-out sums, generated")
    axes.set_ylim(-0.03, 1.05)
    _legend(axes, "lower right")


def _length(axes: Axes, found: Findings) -> None:
    axes.set_title("Response length on held-out sums, tokens")
    scores = found.scores.get("response_length", [])
    _scored(axes, scores, LENGTH, "mean, 95 % interval")
    axes.set_ylim(bottom=0)
    _legend(axes, "upper right")


def _perplexity(axes: Axes, found: Findings) -> None:
    axes.set_title("Perplexity of the right answers, held-out")
    _scored(axes, found.scores.get("perplexity", []), PERPLEXITY, "by token, 95 % interval")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    _legend(axes, "upper right")


def _forward(axes: Axes, found: Findings) -> None:
    axes.set_title("Forward pass by rank, median of 10 steps, ms")
    alerts = [a for a in found.alerts if a.detector == "slow_rank" and a.rank is not None]
    top = 0.0
    for rank, (step, seconds) in found.forward_by_rank.items():
        at, median = _medians(step, seconds * 1000, 10)
        top = max(top, float(np.quantile(median, 0.995)) if len(median) else 0.0)
        colour = RANKS[rank % len(RANKS)]
        axes.plot(at, median, color=colour, linewidth=1.1, label=f"rank {rank}")
        for alert in alerts:
            if alert.rank == rank and alert.step is not None:
                slow = (at >= alert.step - 10) & (at <= (alert.last_step or alert.step) + 10)
                axes.plot(at[slow], median[slow], color=ALERT, linewidth=2.4, zorder=3)
    axes.set_ylim(0, top * 1.3 or 1)
    for alert in alerts:
        _mark(axes, found, alert, f"rank {alert.rank}, ")
    _legend(axes, "upper right", ncols=2)


def _step_time(axes: Axes, found: Findings) -> None:
    axes.set_title("Time of a step on rank 0, median of 10 steps, ms")
    step, seconds = found.step_seconds
    at, median = _medians(step, seconds * 1000, 10)
    axes.plot(at, median, color=LOSS, linewidth=1.2, label="step")
    if len(median):
        axes.set_ylim(0, float(np.quantile(median, 0.99)) * 1.35)
    for index, (first, last) in enumerate(found.toll.during):
        label = "an evaluation was running" if index == 0 else None
        axes.axvspan(first - 0.5, last + 0.5, color=BUSY, alpha=0.3, linewidth=0, label=label)
    _legend(axes, "upper right")


def _legend(axes: Axes, place: Place, ncols: int = 1) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place, ncols=ncols)


def _scored(axes: Axes, scores: list[Score], colour: str, label: str) -> None:
    if not scores:
        return
    step, value, low, high = (np.array(column, dtype=float) for column in zip(*scores, strict=True))
    below, above = np.nan_to_num(value - low).clip(min=0), np.nan_to_num(high - value).clip(min=0)
    axes.errorbar(
        step, value, yerr=[below, above], color=colour, marker="o", markersize=4.5, capsize=3, label=label
    )


def _mark(axes: Axes, found: Findings, alert: AlertFound, whose: str = "") -> None:
    """Shades the steps of an alert and names it at their side, on the side where there is more room."""
    if alert.step is None:
        return
    last = max(alert.last_step or alert.step, alert.step + 3)
    axes.axvspan(alert.step, last, color=ALERT, alpha=0.16, linewidth=0)
    left = last > 0.75 * found.last_step
    axes.annotate(
        f"{alert.rule}\n{whose}step {alert.step}",
        (alert.step if left else last, 0.97),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-5 if left else 5, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        fontsize=9,
        color=ALERT,
    )


def _smooth(values: Series, width: int) -> Series:
    """Mean over the last ``width`` values."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    starts = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    ends = np.arange(1, len(values) + 1)
    smooth: Series = (sums[ends] - sums[starts]) / (ends - starts)
    return smooth


def _medians(step: Series, values: Series, width: int) -> tuple[Series, Series]:
    """Medians of groups of ``width`` steps, at their middles."""
    if not len(step):
        return step, values
    group = step // width
    places = np.unique(group)
    return places * width + width / 2, np.array([np.median(values[group == place]) for place in places])
