"""Panes of one axis of one attempt: open ones as cells in arrays, closed ones as a log sorted for windows.

A pane is [p * width, (p + 1) * width) on the axis, p by floor division. A cell is one series in one pane.
Panes below ``closed`` are closed: their content never changes again, and a sample of theirs is late. Closed
panes are kept as long as a window that is not yet out can contain them.

Bounds: ``MAX_OPEN_PANES`` open panes after each record (beyond it the oldest are closed, see ``arrivals``),
pane numbers within 2**43 and positions within 2**62 of zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftline.streams import histogram
from driftline.streams.aggregates import F64, I32, I64, U64, Cells, Samples

MAX_OPEN_PANES = 8_192
PANE_LIMIT = 1 << 43
POSITION_LIMIT = 1 << 62
"""So that the ends of windows fit 64 bits."""
_SPAN = 1 << 16


class ClosedCells(NamedTuple):
    """Closed cells; one entry each. ``mean`` and ``std`` are NaN without a weighted finite sample."""

    pane: I64
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

    def take(self, chosen: npt.NDArray[np.bool_] | I64 | slice) -> ClosedCells:
        columns: list[Any] = [column[chosen] for column in self]
        return ClosedCells(*columns)

    def join(self, other: ClosedCells) -> ClosedCells:
        words = max(self.bits.shape[1], other.bits.shape[1])
        mine, theirs = (
            self._replace(bits=widen(self.bits, words)),
            other._replace(bits=widen(other.bits, words)),
        )
        columns: list[Any] = [np.concatenate(pair) for pair in zip(mine, theirs, strict=True)]  # type: ignore[arg-type]
        return ClosedCells(*columns)


class Buckets(NamedTuple):
    """Histogram entries of closed cells, sorted by pane, series, bucket."""

    pane: I64
    series: I64
    bucket: I64
    number: I64

    def take(self, chosen: npt.NDArray[np.bool_] | I64 | slice) -> Buckets:
        return Buckets(*(column[chosen] for column in self))

    def join(self, other: Buckets) -> Buckets:
        return Buckets(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


_SAME = ("nan", "inf", "weight", "min", "min_rank", "max", "max_rank", "first", "last")
"""Columns that closing copies as they are."""
_INT, _FLOAT, _RANK = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int32)
NO_CELLS = ClosedCells(
    *(_INT, _INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _FLOAT),
    *(_FLOAT, _RANK, _FLOAT, _RANK, _FLOAT, _FLOAT, np.empty((0, 1), np.uint64)),
)
NO_BUCKETS = Buckets(_INT, _INT, _INT, _INT)


def widen(bits: U64, words: int) -> U64:
    more = words - bits.shape[1]
    return np.pad(bits, ((0, 0), (0, more))) if more > 0 else bits


def pick(bits: U64, kept: list[int]) -> U64:
    """The bits of these processes, in this order, as the first ones."""
    flat = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), axis=1, bitorder="little")
    words = max(1, (len(kept) + 63) // 64)
    out = np.zeros((len(bits), words * 64), np.uint8)
    known = np.array([at for at in kept if at < flat.shape[1]], np.int64)
    places = np.array([to for to, at in enumerate(kept) if at < flat.shape[1]], np.int64)
    out[:, places] = flat[:, known]
    return np.packbits(out, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def named(bits: U64) -> set[int]:
    """The processes that any of the rows names."""
    if not len(bits):
        return set()
    every = np.bitwise_or.reduce(bits, axis=0, keepdims=True)
    return set(np.flatnonzero(np.unpackbits(every.view(np.uint8), bitorder="little")).tolist())


class OpenPanes:
    """The open panes of one axis."""

    def __init__(self) -> None:
        self.cells = Cells()
        self.slots: dict[int, int] = {}
        """Pane number -> row of ``table``."""
        self.free: list[int] = []
        self.table: I64 = np.full((8, 32), -1, np.int64)
        """[slot, series] -> row of ``cells``, -1 where there is none."""
        self._next = 0

    def room(self, panes: I64, ahead: npt.NDArray[np.bool_]) -> bool:
        """Whether samples of these panes fit, whatever is open by then; ``ahead``: which are dated ahead."""
        if not len(panes):
            return True
        limit = MAX_OPEN_PANES // 2 if ahead.any() else MAX_OPEN_PANES
        if len(self.slots) + len(panes) <= limit:
            return True
        if int(panes.max()) - int(panes.min()) + 1 + len(self.slots) <= limit:
            return True
        new = set(np.unique(panes).tolist()) - self.slots.keys()
        return not new or len(self.slots) + len(new) <= limit

    def fitting(self, panes: I64, ahead: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which samples fit: all but those dated ahead, once half of the bound is used.

        Else one host whose clock runs hours ahead would push out the panes of the honest ones.
        """
        known = set(self.slots)
        fits = np.ones(len(panes), np.bool_)
        for at, (pane, is_ahead) in enumerate(zip(panes.tolist(), ahead.tolist(), strict=True)):
            if is_ahead and pane not in known and len(known) >= MAX_OPEN_PANES // 2:
                fits[at] = False
            else:
                known.add(pane)
        return fits

    def crowd(self, boundary: int) -> int | None:
        """The boundary that leaves as many panes as may be open, if more are, at and above ``boundary``."""
        kept = [pane for pane in self.slots if pane >= boundary]
        return None if len(kept) <= MAX_OPEN_PANES else sorted(kept)[-MAX_OPEN_PANES]

    def add(self, pane: I64, series: I64, samples: Samples, *, series_count: int, words: int) -> None:
        """Folds samples in log order into their cells."""
        if not len(pane):
            return
        self.cells.widen(words)
        slots = self._slots_of(pane)
        self._reserve(series_count)
        width = self.table.shape[1]
        cell = slots * width + series
        flat = self.table.reshape(-1)
        rows = flat[cell]
        new = rows < 0
        if new.any():
            fresh = np.unique(cell[new])
            flat[fresh] = self.cells.allocate(len(fresh))
            rows = flat[cell]
        self.cells.fold(rows, samples)

    def _slots_of(self, pane: I64) -> I64:
        low, high = int(pane.min()), int(pane.max())
        if high - low < _SPAN:
            at = pane - low
            seen = np.zeros(high - low + 1, np.bool_)
            seen[at] = True
            lookup = np.zeros(high - low + 1, np.int64)
            for found in np.flatnonzero(seen).tolist():
                lookup[found] = self._slot(low + found)
            return lookup[at]
        distinct, inverse = np.unique(pane, return_inverse=True)
        return np.array([self._slot(p) for p in distinct.tolist()], np.int64)[inverse]

    def _slot(self, pane: int) -> int:
        slot = self.slots.get(pane)
        if slot is None:
            if self.free:
                slot = self.free.pop()
            else:
                slot = self._next
                self._next += 1
            self.slots[pane] = slot
        return slot

    def _reserve(self, series_count: int) -> None:
        slots, width = self.table.shape
        more = max(slots, self._next - slots) if self._next > slots else 0
        wider = max(width, series_count - width) if series_count > width else 0
        if more or wider:
            self.table = np.pad(self.table, ((0, more), (0, wider)), constant_values=-1)

    def highest(self) -> int | None:
        return max(self.slots, default=None)

    def close(self, boundary: int) -> tuple[ClosedCells, Buckets]:
        """Takes out the panes below ``boundary``, sorted by pane and series."""
        panes = sorted(p for p in self.slots if p < boundary)
        if not panes:
            return NO_CELLS, NO_BUCKETS
        slots = np.array([self.slots.pop(p) for p in panes], np.int64)
        part = self.table[slots]
        at, series = np.nonzero(part >= 0)
        rows = part[at, series]
        self.table[slots] = -1
        self.free.extend(slots.tolist())
        pane = np.array(panes, np.int64)[at]
        get = self.cells.columns
        mean, std = self.cells.mean_and_std(rows)
        place, bucket, count = self.cells.take_buckets(rows)
        closed = ClosedCells(
            pane=pane,
            series=series.astype(np.int64, copy=False),
            samples=get["count"][rows],
            mean=mean,
            std=std,
            bits=self.cells.bits[rows],
            **{name: get[name][rows] for name in _SAME},
        )
        self.cells.release(rows)
        return closed, Buckets(pane[place], closed.series[place], bucket, count)

    def present(self) -> set[int]:
        """Processes that gave a sample of an open pane."""
        return named(self.cells.bits[self._rows()])

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order."""
        self.cells.bits = pick(self.cells.bits, kept)

    def _rows(self) -> I64:
        slots = np.array(sorted(self.slots.values()), np.int64)
        part = self.table[slots]
        return part[part >= 0]

    def dump(self) -> dict[str, Any]:
        """Cells in order of pane and series, their buckets by place in that order."""
        panes = sorted(self.slots)
        slots = np.array([self.slots[p] for p in panes], np.int64)
        at, series = np.nonzero(self.table[slots] >= 0)
        rows = self.table[slots][at, series]
        place = np.zeros(len(self.cells.free), np.int64)
        place[rows] = np.arange(len(rows))
        self.cells.pack()
        keys, counts = self.cells.pending()
        return {
            "pane": np.array(panes, np.int64)[at],
            "series": series,
            "columns": {name: column[rows] for name, column in self.cells.columns.items()},
            "bits": self.cells.bits[rows],
            "place": place[keys >> histogram.CODE_BITS],
            "bucket": keys & ((1 << histogram.CODE_BITS) - 1),
            "number": counts if counts is not None else np.ones(len(keys), np.int64),
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        pane, series = dumped["pane"], dumped["series"]
        if not len(pane):
            return
        slots = self._slots_of(pane)
        self._reserve(int(series.max()) + 1)
        self.cells.widen(dumped["bits"].shape[1])
        rows = self.cells.allocate(len(pane))
        self.table[slots, series] = rows
        for name, column in dumped["columns"].items():
            self.cells.columns[name][rows] = column
        self.cells.bits[rows] = dumped["bits"]
        self.cells.scaled = bool(dumped["columns"]["shift"].any())
        if len(dumped["place"]):
            keys = (rows[dumped["place"]] << histogram.CODE_BITS) | dumped["bucket"]
            self.cells.push(keys, dumped["number"])


class ClosedLog:
    """Closed panes that windows still need."""

    def __init__(self) -> None:
        self.cells = NO_CELLS
        """Sorted by series, then pane."""
        self.buckets = NO_BUCKETS

    def add(self, cells: ClosedCells, buckets: Buckets) -> None:
        joined = self.cells.join(cells)
        self.cells = joined.take(np.lexsort((joined.pane, joined.series)))
        self.buckets = self.buckets.join(buckets)

    def trim(self, first: int) -> None:
        """Forgets panes below ``first``."""
        if len(self.cells.pane) and int(self.cells.pane.min()) < first:
            self.cells = self.cells.take(self.cells.pane >= first)
            self.buckets = self.buckets.take(slice(int(np.searchsorted(self.buckets.pane, first)), None))

    def present(self) -> set[int]:
        """Processes that gave a sample of a pane that is kept."""
        return named(self.cells.bits)

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order."""
        self.cells = self.cells._replace(bits=pick(self.cells.bits, kept))

    def dump(self) -> list[Any]:
        return [list(self.cells), list(self.buckets)]

    def restore(self, dumped: list[Any]) -> None:
        cells, buckets = dumped
        self.cells, self.buckets = ClosedCells(*cells), Buckets(*buckets)
