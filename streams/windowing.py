"""Which windows are complete, and their content: merges of whole closed panes.

Windows of a spec are [k * every, k * every + size), half-open, for every integer k, negative ones too: the
first windows of a run are partial. A window is out once, when the last of its panes is closed, and only if it
has a sample. Each window is computed by itself from its panes in order, so its bytes depend on nothing else.

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
from driftline.streams.aggregates import BIG, F64, I32, I64, LIFT, SHIFT, TINY, U64
from driftline.streams.panes import Buckets, ClosedCells, ClosedLog

DEFAULT_PANE: dict[Axis, int] = {"time": 1_000_000, "step": 1}
STANDARD_QUANTILES = (0.5, 0.95, 0.99)
_KEY_BITS = 44
_BLOCK = 1 << 21


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
    sizes = [n for spec in specs for n in (spec.size, spec.every)]
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
    mean: F64
    std: F64
    min: F64
    min_rank: I32
    max: F64
    max_rank: I32
    first: F64
    last: F64
    bits: U64
    quantiles: dict[float, F64]
    """NaN where there is no finite sample (or where it was not asked for)."""


def due(log: ClosedLog, spec: WindowSpec, pane: int, *, after: int | None, until: int | None) -> I64:
    """Starts of windows that contain a closed cell, ``after`` < end <= ``until`` (None: no bound)."""
    panes = np.unique(log.cells.pane)
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
    blocks: list[WindowCells] = []
    for part in _blocks(log, spec, pane, starts):
        a, b = part // pane, (part + spec.size) // pane
        segment, window, series = _segments(log.cells, a, b)
        if not len(window):
            continue
        merged = _merge(log.cells, segment, part, spec.size, window, series)
        finite = merged.samples - merged.nan - merged.inf
        wanted = list(asked)
        values = _quantiles(log.buckets, a, b, window, series, finite, wanted)
        for q, column in zip(wanted, values, strict=True):
            held = np.clip(column, merged.min, merged.max)
            mask = asked[q]
            skip = finite == 0 if mask is None else (finite == 0) | ~mask[series]
            held[skip] = np.nan
            merged.quantiles[q] = held
        blocks.append(merged)
    return blocks


def _blocks(log: ClosedLog, spec: WindowSpec, pane: int, starts: I64) -> list[I64]:
    """Cuts a large flush so that memory stays bounded."""
    width = len(log.buckets.pane) + len(log.cells.pane) + 1
    each = max(1, min(len(starts), _BLOCK // width))
    return [starts[at : at + each] for at in range(0, len(starts), each)]


def _ranges(first: I64, number: I64) -> I64:
    """first[0], first[0] + 1, ... (number[0] of them), then the next."""
    ends = np.cumsum(number)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(first - (ends - number), number) + np.arange(total)


class _Segment(NamedTuple):
    """Slices [low, high) of the closed log, one per (window, series)."""

    low: I64
    high: I64
    entries: I64
    """Entries of all slices, one after the other."""
    of: I64
    """The slice of each entry of ``entries``."""

    def reduce(self, ufunc: np.ufunc, column: np.ndarray) -> np.ndarray:
        pairs = np.stack([self.low, self.high], axis=1).reshape(-1)
        padded = np.concatenate([column, column[:1]])
        return np.asarray(ufunc.reduceat(padded, pairs, axis=0)[::2])


def _segments(cells: ClosedCells, a: I64, b: I64) -> tuple[_Segment, I64, I64]:
    present = cells.series[np.flatnonzero(np.diff(cells.series, prepend=-1))]
    key = (cells.series << _KEY_BITS) + cells.pane
    base = present << _KEY_BITS
    low = np.searchsorted(key, (base[None, :] + a[:, None]).reshape(-1))
    high = np.searchsorted(key, (base[None, :] + b[:, None]).reshape(-1))
    some = np.flatnonzero(high > low)
    low, high = low[some], high[some]
    number = high - low
    segment = _Segment(low, high, _ranges(low, number), np.repeat(np.arange(len(some)), number))
    return segment, some // len(present), present[some % len(present)]


def _merge(
    cells: ClosedCells, segment: _Segment, starts: I64, size: int, window: I64, series: I64
) -> WindowCells:
    weight, mean, std = _moments(cells, segment)
    least, least_rank = _extreme(np.minimum, cells.min, cells.min_rank, segment)
    most, most_rank = _extreme(np.maximum, cells.max, cells.max_rank, segment)
    return WindowCells(
        start=starts[window],
        end=starts[window] + size,
        series=series,
        samples=segment.reduce(np.add, cells.samples),
        nan=segment.reduce(np.add, cells.nan),
        inf=segment.reduce(np.add, cells.inf),
        weight=weight,
        mean=mean,
        std=std,
        min=least,
        min_rank=least_rank,
        max=most,
        max_rank=most_rank,
        first=cells.first[segment.low],
        last=cells.last[segment.high - 1],
        bits=segment.reduce(np.bitwise_or, cells.bits),
        quantiles={},
    )


def _moments(cells: ClosedCells, segment: _Segment) -> tuple[F64, F64, F64]:
    """Weight, mean and deviation of merged cells: a mean around the first, then squares around that mean."""
    weights, means, stds = (
        cells.weight[segment.entries],
        cells.mean[segment.entries],
        cells.std[segment.entries],
    )
    some = weights > 0
    of = segment.of
    if not some.all():
        weights, means, stds, of = weights[some], means[some], stds[some], of[some]
    count = len(segment.low)
    total = np.zeros(count)
    np.add.at(total, of, weights)
    shift = np.zeros(count, np.int32)
    big = (np.abs(means) >= BIG) | (stds >= BIG)
    if big.any():
        shift[of[big]] = SHIFT
        means, stds = np.ldexp(means, -shift[of]), np.ldexp(stds, -shift[of])
    centre = np.zeros(count)
    centre[of[::-1]] = means[::-1]
    divisor = np.where(total > 0, total, 1.0)
    moved = np.zeros(count)
    np.add.at(moved, of, weights * (means - centre[of]))
    mean = centre + moved / divisor
    apart = means - mean[of]
    lift = _lift(count, of, stds, apart)
    if lift is not None:
        stds, apart = np.ldexp(stds, lift[of]), np.ldexp(apart, lift[of])
    squares = np.zeros(count)
    np.add.at(squares, of, weights * (stds * stds + apart * apart))
    std = np.sqrt(squares / divisor)
    if lift is not None:
        std = np.ldexp(std, -lift)
    if big.any():
        mean, std = np.ldexp(mean, shift), np.ldexp(std, shift)
    empty = total <= 0
    mean[empty] = np.nan
    std[empty] = np.nan
    return total, mean, std


def _lift(count: int, of: I64, stds: F64, apart: F64) -> I32 | None:
    """A power of two for windows whose squares would vanish."""
    size = np.maximum(stds, np.abs(apart))
    if not len(size) or not ((size > 0) & (size < TINY)).any():
        return None
    peak = np.zeros(count)
    np.maximum.at(peak, of, size)
    return np.where(peak < TINY, LIFT, 0).astype(np.int32)


def _extreme(ufunc: np.ufunc, column: F64, ranks: I32, segment: _Segment) -> tuple[F64, I32]:
    value = segment.reduce(ufunc, column)
    hits = np.flatnonzero(column[segment.entries] == value[segment.of])[::-1]
    chosen = np.zeros(len(value), np.int64)
    chosen[segment.of[hits]] = segment.entries[hits]
    return column[chosen], ranks[chosen]


def _quantiles(
    buckets: Buckets, a: I64, b: I64, window: I64, series: I64, finite: I64, wanted: Sequence[float]
) -> list[F64]:
    """Quantiles of each (window, series) by running counts over (series, bucket) columns."""
    low, high = np.searchsorted(buckets.pane, [int(a[0]), int(b[-1])])
    part = buckets.take(slice(int(low), int(high)))
    if not len(part.pane) or not wanted:
        return [np.full(len(window), np.nan) for _ in wanted]
    column, width, column_series, column_bucket = _columns(part)
    enters = np.searchsorted(b, part.pane, side="right")
    leaves = np.searchsorted(a, part.pane, side="right")
    windows = len(a)
    counts = np.zeros((windows + 1) * width, np.int64)
    np.add.at(counts, enters * width + column, part.number)
    np.subtract.at(counts, leaves * width + column, part.number)
    running = np.cumsum(counts.reshape(windows + 1, width)[:windows], axis=0)
    running = np.cumsum(running, axis=1)
    running += np.arange(windows)[:, None] * (int(part.number.sum()) + 1)  # one sorted line for all windows
    line = running.reshape(-1)
    begin = window * width + np.searchsorted(column_series, series)
    base = np.where(begin % width == 0, window * (int(part.number.sum()) + 1), line[np.maximum(begin - 1, 0)])
    values = []
    for quantile in wanted:
        target = base + histogram.ranks_of(quantile, finite)
        at = np.searchsorted(line, target)
        at = np.minimum(at, len(line) - 1)
        values.append(histogram.middle(column_bucket[at % width]))
    return values


def _columns(part: Buckets) -> tuple[I64, int, I64, I64]:
    """Numbers (series, bucket) pairs in order: column of each entry, how many, series and bucket of each."""
    count = int(part.series.max()) + 1
    least = np.full(count, 1 << histogram.CODE_BITS, np.int64)
    most = np.full(count, -1, np.int64)
    np.minimum.at(least, part.series, part.bucket)
    np.maximum.at(most, part.series, part.bucket)
    spans = np.maximum(most - least + 1, 0)
    width = int(spans.sum())
    if width <= 8 * len(part.series) + 1024:
        begin = np.cumsum(spans) - spans
        column = begin[part.series] + part.bucket - least[part.series]
        return column, width, np.repeat(np.arange(count), spans), _ranges(least, spans)
    keys, column = np.unique((part.series << histogram.CODE_BITS) | part.bucket, return_inverse=True)
    return column, len(keys), keys >> histogram.CODE_BITS, keys & ((1 << histogram.CODE_BITS) - 1)
