"""How a derived metric's values come of the cells of closed panes: rate, ratio, moving average, spread.

Each formula gets the cells of its metrics with the series that each value belongs to, and gives at most one
value per series and pane. What is not finite gives none. Sums are of finite samples, unweighted. All are
pure; :class:`Memory` is what rates and averages keep from one closing to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from driftline.streams.aggregates import F64, I64, NO_RANK, U64, Bool
from driftline.streams.bits import widen
from driftline.streams.kernels.fold import WEIGHT_MAX
from driftline.streams.kernels.merge import BIG
from driftline.streams.panes import ClosedCells

MAX_GAP = 3_600
"""Panes without a sample that a rate fills with 0 at once; in a longer gap the run was away, not slow."""
MAX_FILLED = 1 << 18
"""Panes with 0 of all series of one rate that one closing may add."""
_NEVER = -(1 << 62)
_KEY_BITS = 44


class Made(NamedTuple):
    """Values of one derived metric, one per pane and series."""

    pane: I64
    series: I64
    value: F64
    weight: F64
    rank: I64
    """The rank that the value speaks of, :data:`NO_RANK` where there is none."""
    bits: U64

    def finite(self) -> Made:
        chosen = np.isfinite(self.value)
        columns: list[Any] = [column[chosen] for column in self]
        return Made(*columns)


class Memory:
    """What is kept of each series, by its number: where it stands, and an average with its weight."""

    def __init__(self) -> None:
        self.at: I64 = np.empty(0, np.int64)
        self.value: F64 = np.empty(0)
        self.weight: F64 = np.empty(0)

    def reserve(self, count: int) -> None:
        more = count - len(self.at)
        if more > 0:
            self.at = np.pad(self.at, (0, more), constant_values=_NEVER)
            self.value, self.weight = np.pad(self.value, (0, more)), np.pad(self.weight, (0, more))

    def dump(self) -> list[Any]:
        known = np.flatnonzero(self.at != _NEVER)
        return [len(self.at), known, self.at[known], self.value[known], self.weight[known]]

    def restore(self, dumped: list[Any]) -> None:
        count, known, at, value, weight = dumped
        self.reserve(count)
        self.at[known], self.value[known], self.weight[known] = at, value, weight


def sums(cells: ClosedCells) -> F64:
    """Plain sums of the finite samples; NaN where there is none."""
    return np.asarray(np.where(cells.samples > cells.nan + cells.inf, cells.sum, np.nan))


def ratio(above: ClosedCells, below: ClosedCells, above_to: I64, below_to: I64, factor: float) -> Made:
    """sum / sum, with the lower sum's size as weight: so the mean of a window is the ratio of its sums."""
    keys = (above_to << _KEY_BITS) + above.pane, (below_to << _KEY_BITS) + below.pane
    _, a, b = np.intersect1d(*keys, assume_unique=True, return_indices=True)
    top, bottom = sums(above)[a], sums(below)[b]
    size = np.abs(bottom)
    usable = (size > 0) & (size < WEIGHT_MAX)
    with np.errstate(all="ignore"):
        value = np.where(usable, top / np.where(usable, bottom, 1.0) * factor, np.nan)
    words = max(above.bits.shape[1], below.bits.shape[1])
    bits = widen(above.bits[a], words) | widen(below.bits[b], words)
    ranks = np.full(len(a), NO_RANK, np.int64)
    return Made(above.pane[a], above_to[a], value, size, ranks, bits).finite()


class Span(NamedTuple):
    """The panes that close now, [begin, boundary), and of which series a process is live."""

    begin: int
    boundary: int
    alive: Callable[[I64], Bool]
    """By number of the series."""


def rate(cells: ClosedCells, to: I64, factor: F64, memory: Memory, span: Span) -> tuple[Made, int]:
    """sum * factor (by number of the series), and 0 for panes without a sample since the series' first one.

    That is: between two samples, and up to the boundary where a process that takes part is live. A pane gets
    its value when it closes, or never. Also returns how many panes were in gaps too long to be filled.
    """
    total = sums(cells)
    given = np.flatnonzero(np.isfinite(total))
    given = given[np.lexsort((cells.pane[given], to[given]))]
    pane, series = cells.pane[given], to[given]
    starts, ends, owners = _gaps(pane, series, memory, span)
    number = ends - starts
    each = min(MAX_GAP, max(1, MAX_FILLED // max(1, len(number))))
    filled = np.where(number <= each, number, 0)
    zero_pane = np.repeat(ends - np.cumsum(filled), filled) + np.arange(int(filled.sum()))
    zero_series = np.repeat(owners, filled)
    words = cells.bits.shape[1]
    with np.errstate(all="ignore"):
        value = total[given] * factor[series]
    made = Made(
        np.concatenate([pane, zero_pane]),
        np.concatenate([series, zero_series]),
        np.concatenate([value, np.zeros(len(zero_pane))]),
        np.ones(len(pane) + len(zero_pane)),
        np.full(len(pane) + len(zero_pane), NO_RANK, np.int64),
        np.concatenate([cells.bits[given], np.zeros((len(zero_pane), words), np.uint64)]),
    )
    return made.finite(), int((number - filled).sum())


def _gaps(pane: I64, series: I64, memory: Memory, span: Span) -> tuple[I64, I64, I64]:
    """Starts and ends of runs of panes without a sample, and their series; notes the last samples."""
    first = np.diff(series, prepend=-1) != 0
    before = np.concatenate([[0], pane[:-1] + 1]) if len(pane) else pane
    begin = np.where(memory.at[series] == _NEVER, pane, np.maximum(memory.at[series], span.begin))
    starts = np.where(first, begin, before)
    memory.at[series] = pane + 1  # sorted by series, then pane: the last one stays
    known = np.flatnonzero(memory.at != _NEVER)
    known = known[span.alive(known)]
    starts = np.concatenate([starts, np.maximum(memory.at[known], span.begin)])
    ends = np.concatenate([pane, np.full(len(known), span.boundary, np.int64)])
    owners = np.concatenate([series, known])
    some = np.flatnonzero(ends > starts)
    return starts[some], ends[some], owners[some]


def ema(cells: ClosedCells, to: I64, half_life: float, memory: Memory) -> Made:
    """Average of pane means, each counting 2 ** (-age / half_life); ``half_life`` in panes.

    The weights are normalised by their sum, so the first value is the first mean and nothing pulls to 0.
    """
    given = np.flatnonzero(np.isfinite(cells.mean))
    given = given[np.lexsort((to[given], cells.pane[given]))]
    pane, series, mean = cells.pane[given], to[given], cells.mean[given]
    value = np.empty(len(given))
    bounds = np.flatnonzero(np.diff(pane, prepend=_NEVER, append=1 << 62))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        some = series[low:high]
        value[low:high] = _average(int(pane[low]), some, mean[low:high], half_life, memory)
    ones, ranks = np.ones(len(given)), np.full(len(given), NO_RANK, np.int64)
    return Made(pane, series, value, ones, ranks, cells.bits[given])


def _average(pane: int, series: I64, mean: F64, half_life: float, memory: Memory) -> F64:
    """One pane of several series; the step towards a value is halved where it could overflow."""
    new = memory.at[series] == _NEVER
    age = np.where(new, 0, pane - memory.at[series])
    weight = np.where(new, 0.0, memory.weight[series] * np.exp2(-age / half_life)) + 1.0
    before = np.where(new, mean, memory.value[series])
    part = 1.0 / weight
    large = np.maximum(np.abs(before), np.abs(mean)) > BIG
    with np.errstate(over="ignore"):
        near = before + (mean - before) * part
    after = np.where(large, before * (1.0 - part) + mean * part, near)
    memory.at[series], memory.value[series], memory.weight[series] = pane, after, weight
    return np.asarray(after)


def spread(ranks: ClosedCells, rank: I64, whole: ClosedCells, to: I64) -> Made:
    """Largest mean of a rank minus the median of all, where at least two ranks have one.

    ``rank`` is the rank of each cell of ``ranks``; ``whole`` (of the whole run, with its series ``to``) says
    who is present. The value speaks of the rank with the largest mean, the lowest of equal ones.
    """
    given = np.flatnonzero(np.isfinite(ranks.mean))
    given = given[np.lexsort((-rank[given], ranks.mean[given], ranks.pane[given]))]
    pane, mean = ranks.pane[given], ranks.mean[given]
    starts = np.flatnonzero(np.diff(pane, prepend=_NEVER))
    counts = np.diff(starts, append=len(pane))
    starts, counts = starts[counts > 1], counts[counts > 1]
    low, high = mean[starts + (counts - 1) // 2], mean[starts + counts // 2]
    last = starts + counts - 1
    with np.errstate(over="ignore"):
        value = mean[last] - np.where(low == high, low, low / 2 + high / 2)
    _, a, b = np.intersect1d(pane[starts], whole.pane, assume_unique=True, return_indices=True)
    worst = rank[given][last[a]].astype(np.int64)
    return Made(whole.pane[b], to[b], value[a], np.ones(len(a)), worst, whole.bits[b]).finite()
