"""Charts as pictures, by matplotlib (extra ``plots``): each as SVG for a page, or all as one PNG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from driftline.analysis.chart import Bars, Chart, Heat, Line, Plot, frame
from driftline.analysis.ink import Ink, as_png, as_svg
from driftline.visible import visible

COLOURS = ("#2f7ed8", "#1f9d74", "#c98a3c", "#8a63c9", "#4f9aa8", "#b07a8c", "#8f9a4b", "#7d8c99")
ALERT, CHECKPOINT, NOTE = "#d1495b", "#1f9d74", "#c9a227"
KINDS = {"alert": ALERT, "checkpoint": CHECKPOINT, "note": NOTE}
WIDTH, HEIGHT = 5.3, 3.1
"""Inches of one chart: at the width of a telephone its text can still be read."""
NAMED_MAX = 4
"""Marks named in a picture; the others are drawn."""
LEAST_SKEW = 0.3
TITLE_MAX = 300
_LETTERS_AN_INCH = 8.5
"""Of a title: wider letters would leave the picture."""
_NAME_MAX = 34
_LABELS_MAX = 24


def svg(chart: Chart, *, prefix: str, wide: bool = False) -> str:
    """One chart for a page; ``wide`` is for one that stands alone in its row."""
    size = (WIDTH * (1.5 if wide else 1), _height(chart))
    return as_svg(lambda ink: _figure([chart], ink, size), says=chart.says, prefix=prefix)


def png(charts: Sequence[Chart], title: str) -> bytes:
    """All charts below each other, or two a row where there are more than two."""
    across = 1 if len(charts) <= 2 else 2
    rows = math.ceil(len(charts) / across)
    size = (7.5 if across == 1 else 12.5, max(_height(chart) for chart in charts) * 1.15 * rows + 0.5)
    return as_png(lambda ink: _figure(charts, ink, size, across=across, title=title))


def _height(chart: Chart) -> float:
    if isinstance(chart, Bars):
        return min(8.0, 1.15 + 0.27 * len(chart.labels))
    if isinstance(chart, Heat):
        return min(6.0, 1.6 + 0.2 * len(chart.rows))
    return HEIGHT


def _figure(
    charts: Sequence[Chart], ink: Ink, size: tuple[float, float], *, across: int = 1, title: str = ""
) -> Figure:
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))
    if title:
        lines = textwrap.wrap(visible(title, TITLE_MAX), int(size[0] * _LETTERS_AN_INCH), max_lines=3)
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=12, fontweight="bold")
    grid = figure.subplots(math.ceil(len(charts) / across), across, squeeze=False)
    for axes, chart in zip(grid.flat, charts, strict=False):
        axes.set_title(visible(chart.title, 64), fontsize=10)
        axes.tick_params(labelsize=8.5)
        if isinstance(chart, Plot):
            _plot(axes, chart, ink)
        elif isinstance(chart, Bars):
            _bars(axes, chart, ink, figure)
        else:
            _heat(axes, chart, figure)
    for axes in list(grid.flat)[len(charts) :]:
        axes.set_axis_off()
    return figure


def _plot(axes: Axes, chart: Plot, ink: Ink) -> None:
    seen = frame(chart)
    if seen.log:
        axes.set_yscale("log")
    colours = iter(COLOURS * (len(chart.lines) // len(COLOURS) + 1))
    for series, colour in zip(chart.lines, colours, strict=False):
        _line(axes, series, colour)
    if chart.level is not None:
        axes.axhline(chart.level, color=ink.strong, linewidth=0.8, linestyle=":")
    room = (seen.x[1] - seen.x[0]) * 0.02
    axes.set_xlim(seen.x[0] - room, seen.x[1] + room)
    if not seen.log:
        rise = (seen.y[1] - seen.y[0]) * 0.06
        axes.set_ylim(seen.y[0] - rise, seen.y[1] + rise)
    _marks(axes, chart, seen.x)
    gaps = [x for series in chart.lines for x in series.gaps]
    if gaps:
        axes.plot(
            gaps, [0.02] * len(gaps), "x", color=ALERT, markersize=6, transform=axes.get_xaxis_transform(),
            clip_on=False, label="NaN or infinite", zorder=5,
        )  # fmt: skip
    axes.set_xlabel(visible(chart.x.label, 60), fontsize=9)
    axes.set_ylabel(visible(chart.y.label, 40), fontsize=9)
    axes.grid(color=ink.faint, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    if len(chart.lines) > 1 or gaps or any(series.low for series in chart.lines):
        axes.legend(loc="best", fontsize=8)


def _line(axes: Axes, series: Line, colour: str) -> None:
    x, y = np.array(series.x), np.array(series.y)
    y = np.where(np.isfinite(y), y, np.nan)
    name = visible(series.name, _NAME_MAX)
    alpha = 0.35 if series.faint else 1.0
    if series.low and series.high:
        low, high = np.array(series.low), np.array(series.high)
        if series.form == "line":
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        else:
            error = np.nan_to_num([y - low, high - y]).clip(min=0)
            axes.errorbar(x, y, yerr=error, fmt="none", ecolor=colour, capsize=3, linewidth=1.1)
    style = {"line": "-", "points": "o", "both": "o-"}[series.form]
    axes.plot(x, y, style, color=colour, linewidth=1.3, markersize=4, alpha=alpha, label=name)


def _marks(axes: Axes, chart: Plot, x: tuple[float, float]) -> None:
    """Alerts as shaded stretches with their names, checkpoints as ticks at the top."""
    saved = [mark.x for mark in chart.marks if mark.kind == "checkpoint"]
    if saved:
        axes.plot(
            saved, [1.0] * len(saved), "v", color=CHECKPOINT, markersize=4, clip_on=False,
            transform=axes.get_xaxis_transform(), label="checkpoint",
        )  # fmt: skip
    named = [mark for mark in chart.marks if mark.kind != "checkpoint"]
    for at, mark in enumerate(named):
        colour = KINDS[mark.kind]
        end = max(mark.until if mark.until is not None else mark.x, mark.x + (x[1] - x[0]) * 0.004)
        axes.axvspan(mark.x, end, color=colour, alpha=0.2, linewidth=0)
        if at >= NAMED_MAX:
            continue
        left = end > x[0] + 0.7 * (x[1] - x[0])
        axes.annotate(
            visible(mark.label, 30), (mark.x if left else end, 0.96 - 0.1 * at),
            xycoords=axes.get_xaxis_transform(), xytext=(-4 if left else 4, 0), textcoords="offset points",
            ha="right" if left else "left", va="top", fontsize=8, color=colour,
        )  # fmt: skip


def _bars(axes: Axes, chart: Bars, ink: Ink, figure: Figure) -> None:
    labels = [visible(label, _LABELS_MAX) for label in chart.labels]
    places = np.arange(len(labels))
    start = np.zeros(len(labels))
    for at, part in enumerate(chart.parts):
        values = np.nan_to_num(np.array(part.values, dtype=float))
        name = visible(part.name, _NAME_MAX)
        axes.barh(places, values, left=start, color=COLOURS[at % len(COLOURS)], height=0.66, label=name)
        start = start + values
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel(visible(chart.axis.label, 60), fontsize=9)
    axes.grid(axis="x", color=ink.faint, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    if len(chart.parts) > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)


def _heat(axes: Axes, chart: Heat, figure: Figure) -> None:
    cells = np.ma.masked_invalid(np.array(chart.cells, dtype=float))
    norm = None
    if chart.middle is not None and cells.count():
        away = max(abs(float(cells.max()) - chart.middle), abs(float(cells.min()) - chart.middle), LEAST_SKEW)
        norm = Normalize(chart.middle - away, chart.middle + away)
        colours = LinearSegmentedColormap.from_list("skew", ["#2f7ed8", "#e9edf1", ALERT])
    else:
        colours = LinearSegmentedColormap.from_list("level", ["#e9edf1", "#2f7ed8", "#123a6b"])
    image = axes.imshow(cells, aspect="auto", cmap=colours, norm=norm, interpolation="nearest")
    _labels(axes, chart)
    axes.set_xlabel(visible(chart.x.label, 60), fontsize=9)
    axes.set_ylabel(visible(chart.y.label, 40), fontsize=9)
    bar = figure.colorbar(image, ax=axes, pad=0.015, fraction=0.05)
    bar.set_label(visible(chart.value.label, 40), fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if cells.count() and cells.max() > cells.min():
        bar.ax.set_ylim(float(cells.min()), float(cells.max()))


def _labels(axes: Axes, chart: Heat) -> None:
    columns = range(0, len(chart.columns), max(1, math.ceil(len(chart.columns) / 8)))
    rows = range(0, len(chart.rows), max(1, math.ceil(len(chart.rows) / 16)))
    axes.set_xticks(list(columns), [visible(chart.columns[at], 12) for at in columns])
    axes.set_yticks(list(rows), [visible(chart.rows[at], _LABELS_MAX) for at in rows])
