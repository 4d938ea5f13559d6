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

from driftline.streams.aggregates import DUMPED, F64, I32, I64, U64, Batch, Cells, Placed, Rows
from driftline.streams.kernels import fold, merge
from driftline.streams.kernels.fold import POSITION_LIMIT as POSITION_LIMIT

MAX_OPEN_PANES = 8_192
_SPAN = 1 << 16
_ROOM = 64


class ClosedCells(NamedTuple):
    """Closed cells; one entry each. ``mean`` and ``std`` are NaN without a weighted finite sample."""

    pane: I64
    series: I64
    samples: I64
    nan: I64
    inf: I64
    weight: F64
    sum: F64
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


_SAME = ("nan", "inf", "weight", "sum", "min", "min_rank", "max", "max_rank", "first", "last")
"""Columns that closing copies as they are."""
_INT, _FLOAT, _RANK = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int32)
NO_CELLS = ClosedCells(
    *(_INT, _INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _FLOAT, _FLOAT),
    *(_FLOAT, _RANK, _FLOAT, _RANK, _FLOAT, _FLOAT, np.empty((0, 1), np.uint64)),
)
NO_BUCKETS = Buckets(_INT, _INT, _INT, _INT)
_KEPT = tuple(name for name in merge.CLOSED.names or () if name not in ("begin", "number"))


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

    def fits(self, number: int, any_ahead: bool) -> bool:
        """Whether so many more panes may be open; ``any_ahead``: whether one of them is dated ahead."""
        return len(self.slots) + number <= (MAX_OPEN_PANES // 2 if any_ahead else MAX_OPEN_PANES)

    def room(self, panes: I64, any_ahead: bool) -> bool:
        """Whether samples of these panes fit, whatever is open by then."""
        new = set(np.unique(panes).tolist()) - self.slots.keys()
        return not new or self.fits(len(new), any_ahead)

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

    def add(
        self, batch: Batch, placed: Placed, span: tuple[int, int], *, series_count: int, words: int
    ) -> tuple[int, int]:
        """Folds samples in log order into their cells; how many were late, how many had no series.

        ``span``: the lowest and highest pane of samples that lie on the axis.
        """
        self.cells.widen(words)
        low, high = span
        if high - low < _SPAN:
            seen = np.zeros(high - low + 1, np.bool_)
            fold.mark(*_marks(batch, placed), low, seen)
            lookup = np.zeros(high - low + 1, np.int64)
            for at in np.flatnonzero(seen).tolist():
                lookup[at] = self._slot(low + at)
        else:  # far apart: numbered anew, in the same order
            distinct, inverse = np.unique(placed.pane, return_inverse=True)
            near = placed._replace(
                pane=inverse.astype(np.int64, copy=False),
                before=np.searchsorted(distinct, placed.before),
            )
            seen = np.zeros(len(distinct), np.bool_)
            fold.mark(*_marks(batch, near), 0, seen)
            lookup = np.zeros(len(distinct), np.int64)
            for at in np.flatnonzero(seen).tolist():
                lookup[at] = self._slot(int(distinct[at]))
            placed, low = near, 0
        self._reserve(series_count)
        return self.cells.fold(batch, placed, low=low, lookup=lookup, table=self.table)

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
        get = self.cells.rows[rows]
        mean, std = self.cells.mean_and_std(rows)
        place, bucket, count = self.cells.buckets(rows)
        closed = ClosedCells(
            pane=pane,
            series=series.astype(np.int64, copy=False),
            samples=get["count"].copy(),
            mean=mean,
            std=std,
            bits=self.cells.bits[rows],
            **{name: get[name].copy() for name in _SAME},
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
        place, bucket, number = self.cells.buckets(rows)
        return {
            "pane": np.array(panes, np.int64)[at],
            "series": series,
            "columns": {name: self.cells.rows[name][rows] for name in DUMPED},
            "bits": self.cells.bits[rows],
            "place": place,
            "bucket": bucket,
            "number": number,
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        pane, series = dumped["pane"], dumped["series"]
        if not len(pane):
            return
        slots = np.array([self._slot(p) for p in pane.tolist()], np.int64)
        self._reserve(int(series.max()) + 1)
        self.cells.widen(dumped["bits"].shape[1])
        rows = self.cells.allocate(len(pane))
        self.table[slots, series] = rows
        for name in DUMPED:
            self.cells.rows[name][rows] = dumped["columns"][name]
        self.cells.bits[rows] = dumped["bits"]
        self.cells.put_buckets(rows, dumped["place"], dumped["bucket"], dumped["number"])


def _marks(batch: Batch, placed: Placed) -> tuple[Any, ...]:
    return (
        *(batch.starts, placed.before, batch.offsets, batch.maps, batch.metric),
        *(placed.pane, placed.flags, placed.wanted),
    )


class ClosedLog:
    """Closed panes that windows still need, by pane, then series; the oldest leave in front."""

    def __init__(self) -> None:
        self._cells = np.zeros(_ROOM, merge.CLOSED)
        self._bits: U64 = np.zeros((_ROOM, 1), np.uint64)
        self._buckets = np.zeros(_ROOM, merge.BUCKET)
        self._first = self._end = 0
        """Which of the cells are held."""
        self._bucket_first = self._bucket_end = 0

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def cells(self) -> Rows:
        """Records of ``merge.CLOSED``; ``begin`` counts in :attr:`buckets`."""
        return self._cells[self._first : self._end]

    @property
    def bits(self) -> U64:
        """Which processes gave a sample, per cell."""
        return self._bits[self._first : self._end]

    @property
    def buckets(self) -> Rows:
        """Records of ``merge.BUCKET``."""
        return self._buckets[: self._bucket_end]

    def panes(self) -> I64:
        """The panes that are held, in order."""
        pane = self.cells["pane"]
        return pane[np.flatnonzero(np.diff(pane, prepend=pane[:1] - 1))]

    def add(self, cells: ClosedCells, buckets: Buckets) -> None:
        """Takes newer panes, in order of pane and series."""
        count, number = len(cells.pane), len(buckets.pane)
        if not count:
            return
        self._make_room(count, number, cells.bits.shape[1])
        to = self._cells[self._end : self._end + count]
        for name in _KEPT:
            to[name] = getattr(cells, name)
        self._bits[self._end : self._end + count, : cells.bits.shape[1]] = cells.bits
        self._bits[self._end : self._end + count, cells.bits.shape[1] :] = 0
        merge.entries_of(cells.pane, cells.series, buckets.pane, buckets.series, to, self._bucket_end)
        held = self._buckets[self._bucket_end : self._bucket_end + number]
        held["code"], held["count"] = buckets.bucket, buckets.number
        self._end += count
        self._bucket_end += number

    def _make_room(self, count: int, number: int, words: int) -> None:
        if words > self._bits.shape[1]:
            self._bits = widen(self._bits, words)
        if self._end + count <= len(self._cells) and self._bucket_end + number <= len(self._buckets):
            return
        cells, bits = self.cells.copy(), self.bits.copy()
        buckets = self._buckets[self._bucket_first : self._bucket_end].copy()
        cells["begin"] -= self._bucket_first
        size, entries = max(_ROOM, 2 * (len(cells) + count)), max(_ROOM, 2 * (len(buckets) + number))
        self._cells, self._bits = np.zeros(size, merge.CLOSED), np.zeros((size, bits.shape[1]), np.uint64)
        self._buckets = np.zeros(entries, merge.BUCKET)
        self._cells[: len(cells)], self._bits[: len(cells)] = cells, bits
        self._buckets[: len(buckets)] = buckets
        self._first, self._end, self._bucket_first, self._bucket_end = 0, len(cells), 0, len(buckets)

    def trim(self, first: int) -> None:
        """Forgets panes below ``first``."""
        gone = int(np.searchsorted(self.cells["pane"], first))
        if gone:
            self._first += gone
            at_end = self._first == self._end
            self._bucket_first = self._bucket_end if at_end else int(self._cells["begin"][self._first])

    def present(self) -> set[int]:
        """Processes that gave a sample of a pane that is kept."""
        return named(self.bits)

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order."""
        self._bits = pick(self._bits, kept)

    def dump(self) -> dict[str, Any]:
        cells = self.cells
        return {
            "cells": {name: cells[name].copy() for name in (*_KEPT, "number")},
            "bits": self.bits,
            "code": self._buckets["code"][self._bucket_first : self._bucket_end],
            "count": self._buckets["count"][self._bucket_first : self._bucket_end],
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        columns = dumped["cells"]
        count, number = len(columns["pane"]), len(dumped["code"])
        self._make_room(count, number, dumped["bits"].shape[1])
        for name in (*_KEPT, "number"):
            self._cells[name][:count] = columns[name]
        self._cells["begin"][:count] = np.cumsum(columns["number"]) - columns["number"]
        self._bits[:count, : dumped["bits"].shape[1]] = dumped["bits"]
        self._buckets["code"][:number], self._buckets["count"][:number] = dumped["code"], dumped["count"]
        self._end, self._bucket_end = count, number
