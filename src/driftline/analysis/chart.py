"""What a picture shows, without how: lines with bands, points with error bars, bars, heat maps, marks.

Coordinates are floats; NaN in ``y`` is a gap, and the renderers put a mark where it is. Every axis has a
title and, where it has one, a unit. A chart is small: who makes it has down-sampled what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

NAN = float("nan")
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Axis:
    """A direction, its unit and scale."""

    title: str
    unit: str = ""
    scale: Scale = "linear"

    @property
    def label(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit not in ("", self.title) else self.title


@dataclass(frozen=True)
class Line:
    """One series. ``low`` and ``high`` are a band around a line, error bars on points."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    form: Literal["line", "points", "both"] = "line"
    faint: bool = False
    """Drawn behind the others, e.g. the values beside their smoothed line."""

    @property
    def gaps(self) -> list[float]:
        """Where there is a point without a number."""
        return [x for x, y in zip(self.x, self.y, strict=True) if not math.isfinite(y)]


@dataclass(frozen=True)
class Mark:
    """Something that happened at ``x``, or from there to ``until``."""

    x: float
    label: str
    kind: Literal["alert", "checkpoint", "note"] = "note"
    until: float | None = None


@dataclass(frozen=True)
class Plot:
    """Lines over a common axis."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    level: float | None = None
    """A horizontal line to compare with, e.g. a target or no difference."""

    @property
    def says(self) -> str:
        """The picture in words, for who cannot see it."""
        many = f" {len(self.marks)} marks." if self.marks else ""
        return f"{self.title}: {self.y.label} by {self.x.label}. " + " ".join(map(_spoken, self.lines)) + many


@dataclass(frozen=True)
class Part:
    """One colour of bars: a value for each label."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, one for each label; several parts are stacked."""

    title: str
    axis: Axis
    labels: tuple[str, ...]
    parts: tuple[Part, ...]

    @property
    def says(self) -> str:
        spoken = [
            f"{label}: " + ", ".join(f"{part.name} {part.values[at]:.4g}" for part in self.parts)
            for at, label in enumerate(self.labels[:12])
        ]
        return f"{self.title}, {self.axis.label}. " + "; ".join(spoken) + "."


@dataclass(frozen=True)
class Heat:
    """A field of colours: ``cells[row][column]``; NaN is unknown. ``middle`` is normal."""

    title: str
    x: Axis
    y: Axis
    value: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[float, ...], ...]
    middle: float | None = None

    @property
    def says(self) -> str:
        low, high = span(value for row in self.cells for value in row)
        return (
            f"{self.title}: {self.value.label} of {len(self.rows)} {self.y.title}s by {self.x.label}, "
            f"from {low:.4g} to {high:.4g}."
        )


Chart = Plot | Bars | Heat


@dataclass(frozen=True)
class Frame:
    """The finite range of a plot, as wide as it must be to be drawn."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = field(default=False)


def frame(plot: Plot) -> Frame:
    """What a plot spans: all finite values, bands and error bars."""
    xs = span([*(x for line in plot.lines for x in line.x), *(mark.x for mark in plot.marks)])
    values = [value for line in plot.lines for side in (line.y, line.low, line.high) for value in side or ()]
    if plot.level is not None:
        values.append(plot.level)
    log = plot.y.scale == "log" and all(value > 0 for value in values if math.isfinite(value))
    if log:
        values = [math.log10(value) for value in values if math.isfinite(value)]
    return Frame(x=widened(*xs), y=widened(*span(values)), log=log)


def span(values: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest finite value; (0, 1) where there is none.

    >>> span([1.0, float("nan"), 3.0]), span([])
    ((1.0, 3.0), (0.0, 1.0))
    """
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def widened(low: float, high: float) -> tuple[float, float]:
    """A range that is not empty, and whose width is a number.

    >>> widened(2.0, 2.0), widened(0.0, 0.0), widened(0.0, 5.0)
    ((1.8, 2.2), (-0.5, 0.5), (0.0, 5.0))
    """
    low, high = max(low, -1e300), min(high, 1e300)
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 0.5
    return low - room, high + room


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within a range, at most ``most``.

    >>> ticks(0, 100), ticks(0.13, 0.31, 3)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.2, 0.3])
    """
    width = high - low
    if not (math.isfinite(width) and width > 0) or most < 1:
        return []
    power = 10.0 ** math.floor(math.log10(width / most))
    step = next((power * m for m in (1, 2, 5, 10) if width / (power * m) <= most), power * 20)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    found = [float(f"{at * step:.12g}") for at in range(first, last + 1)]
    return found if len(found) <= most else found[:: math.ceil(len(found) / most)]


def line(
    name: str,
    x: Sequence[float | None],
    y: Sequence[float | None],
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
    *,
    form: Literal["line", "points", "both"] = "line",
    faint: bool = False,
) -> Line:
    """A line from columns of rows: null is a gap, a point without a place is left out."""
    kept = [at for at, place in enumerate(x) if place is not None and math.isfinite(place)]

    def taken(values: Sequence[float | None]) -> tuple[float, ...]:
        return tuple(NAN if (value := values[at]) is None else float(value) for at in kept)

    sides = (None if low is None else taken(low), None if high is None else taken(high))
    return Line(name, taken(x), taken(y), *sides, form=form, faint=faint)


def _spoken(series: Line) -> str:
    finite = [value for value in series.y if math.isfinite(value)]
    gaps = f", {len(series.gaps)} without a number" if series.gaps else ""
    if not finite:
        return f"{series.name}: no numbers{gaps}."
    return (
        f"{series.name}: {len(series.y)} points from {finite[0]:.4g} to {finite[-1]:.4g}, between "
        f"{min(finite):.4g} and {max(finite):.4g}{gaps}."
    )
