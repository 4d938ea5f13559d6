"""Which windows are complete, and their content: merges of whole closed panes.

Windows of a spec are [k * every, k * every + size), half-open, for every integer k, negative ones too: the
first windows of a run are partial. A window is out once, when the last of its panes is closed, and only if it
has a sample. Each window is computed by itself from its panes in order, so its bytes depend on nothing else.
A spec of size 0 is the whole run so far: see ``so_far``.

``first`` and ``last`` are by pane, then by log order. Quantiles are nearest-rank on finite samples,
unweighted: a bucket's middle (see ``histogram``), kept within the window's minimum and maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from driftline.config import Axis, WindowSpec
from driftline.streams import histogram
from driftline.streams.aggregates import F64, I64, U64
from driftline.streams.kernels import merge as kernel
from driftline.streams.panes import ClosedLog

DEFAULT_PANE: dict[Axis, int] = {"time": 1_000_000, "step": 1}
STANDARD_QUANTILES = (0.5, 0.95, 0.99)
_BLOCK = 1 << 18
"""Rows that are computed at a time, at most (of one window, there may be more)."""


class AxisPlan(NamedTuple):
    """What the configuration says of one axis."""

    axis: Axis
    pane: int
    specs: tuple[WindowSpec, ...]

    @property
    def keep(self) -> int:
        """Panes below the boundary that a window to come can contain."""
        return max((spec.size // self.pane for spec in self.specs), default=0)


def plan(axis: Axis, windows: Sequence[WindowSpec]) -> AxisPlan:
    """Pane width = greatest common divisor of all sizes and hops of the axis.

    >>> plan("step", [WindowSpec("step", 50, 10), WindowSpec("step", 15, 15)]).pane
    5
    """
    specs = tuple(dict.fromkeys(spec for spec in windows if spec.axis == axis))
    sizes = [n for spec in specs for n in (spec.size, spec.every) if n]
    return AxisPlan(axis, math.gcd(*sizes) if sizes else DEFAULT_PANE[axis], specs)


class WindowCells(NamedTuple):
    """Content of windows, one entry per window and series, sorted by window, then series."""

    start: I64
    end: I64
    series: I64
    samples: I64
    nan: I64
    inf: I64
    weight: F64
    sum: F64
    mean: F64
    std: F64
    min: F64
    min_rank: I64
    max: F64
    max_rank: I64
    first: F64
    last: F64
    bits: U64
    quantiles: dict[float, F64]
    """NaN where there is no finite sample (or where it was not asked for)."""


def due(log: ClosedLog, spec: WindowSpec, pane: int, *, after: int | None, until: int | None) -> I64:
    """Starts of windows that contain a closed cell, ``after`` < end <= ``until`` (None: no bound)."""
    panes = log.panes()
    if not len(panes):
        return panes
    low, high = panes * pane, panes * pane + pane
    first = -((spec.size - high) // spec.every)  # ceil((high - size) / every)
    last = low // spec.every
    if after is not None:
        first = np.maximum(first, (after - spec.size) // spec.every + 1)
    if until is not None:
        last = np.minimum(last, (until - spec.size) // spec.every)
    number = np.maximum(last - first + 1, 0)
    return np.unique(_ranges(first, number)) * spec.every


def compute(
    log: ClosedLog, spec: WindowSpec, pane: int, starts: I64, asked: dict[float, np.ndarray | None]
) -> list[WindowCells]:
    """The windows with these starts, in blocks; ``asked`` maps a quantile to a mask of series (None: all)."""
    cells = log.cells
    place = np.full(int(cells["series"].max(initial=-1)) + 1, -1, np.int64)
    series = kernel.number_series(cells, place)
    wanted = sorted(asked)
    wants = np.ones((len(wanted), len(place)), np.bool_)
    for at, quantile in enumerate(wanted):
        mask = asked[quantile]
        if mask is not None:
            wants[at] = mask[: len(place)]
    blocks: list[WindowCells] = []
    each = max(1, _BLOCK // max(1, len(series)))
    for at in range(0, len(starts), each):
        part = starts[at : at + each]
        spans = kernel.spans_of(cells, part // pane, spec.size // pane)
        room = min(len(part) * len(series), int((spans[1] - spans[0]).sum()))
        whole, floats = np.empty((7, room), np.int64), np.empty((8, room))
        bits = np.empty((room, log.many.shape[1]), np.uint64)
        used = kernel.merge(cells, log.many, spans, series, place, whole, floats, bits)
        found = np.empty((len(wanted), used))
        kernel.quantiles(
            *(cells, log.buckets, spans, series, place, whole, floats, used),
            *(np.array(wanted), wants, histogram.MIDDLE, found),
        )
        start = part[whole[kernel.WINDOW, :used]]
        found_by = dict(zip(wanted, found, strict=True))
        blocks.append(_cells(start, spec.size, whole[:, :used], floats[:, :used], bits[:used], found_by))
    return blocks


def _cells(
    start: I64, size: int, whole: I64, floats: F64, bits: U64, quantiles: dict[float, F64]
) -> WindowCells:
    return WindowCells(
        start=start,
        end=start + size,
        series=whole[kernel.SERIES],
        samples=whole[kernel.SAMPLES],
        nan=whole[kernel.NAN],
        inf=whole[kernel.INF],
        weight=floats[kernel.WEIGHT],
        sum=floats[kernel.SUM],
        mean=floats[kernel.MEAN],
        std=floats[kernel.STD],
        min=floats[kernel.MIN],
        min_rank=whole[kernel.MIN_RANK],
        max=floats[kernel.MAX],
        max_rank=whole[kernel.MAX_RANK],
        first=floats[kernel.FIRST],
        last=floats[kernel.LAST],
        bits=bits,
        quantiles=quantiles,
    )


def _ranges(first: I64, number: I64) -> I64:
    """first[0], first[0] + 1, ... (number[0] of them), then the next."""
    ends = np.cumsum(number)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(first - (ends - number), number) + np.arange(total)
