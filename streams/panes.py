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

from driftline.streams.aggregates import DUMPED, F64, I64, U64, Batch, Cells, Placed, Rows
from driftline.streams.bits import named, pick, trimmed, widen
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
    min_rank: I64
    max: F64
    max_rank: I64
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
        columns: list[Any] = [np.concatenate(pair) for pair in zip(mine, theirs, strict=True)]
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


_INT, _FLOAT = np.empty(0, np.int64), np.empty(0)
NO_CELLS = ClosedCells(
    *(_INT, _INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _FLOAT, _FLOAT),
    *(_FLOAT, _INT, _FLOAT, _INT, _FLOAT, _FLOAT, np.empty((0, 1), np.uint64)),
)
NO_BUCKETS = Buckets(_INT, _INT, _INT, _INT)
_KEPT = tuple(name for name in merge.CLOSED.names or () if name not in ("begin", "number", "only", "many"))


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
        (samples, nan, inf, min_rank, max_rank), floats = self.cells.read(rows)
        weight, total, mean, std, least, most, first, last = floats
        place, bucket, count = self.cells.buckets(rows)
        closed = ClosedCells(
            *(pane, np.ascontiguousarray(series, np.int64), samples, nan, inf),
            *(weight, total, mean, std, least, min_rank, most, max_rank, first, last),
            bits=self.cells.present(rows),
        )
        self.cells.release(rows)
        return closed, Buckets(pane[place], closed.series[place], bucket, count)

    def present(self) -> set[int]:
        """Processes that gave a sample of an open pane."""
        rows = self.cells.rows[self._rows()]
        several = rows["only"] == fold.MANY
        return named(self.cells.many[rows["many"][several]]) | set(rows["only"][~several].tolist())

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order; all that :meth:`present` gives are among them."""
        self.cells.renumber(self._rows(), np.array(kept, np.int64))

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
        only = self.cells.rows["only"][rows]
        return {
            "pane": np.array(panes, np.int64)[at],
            "series": series,
            "columns": {name: self.cells.rows[name][rows] for name in DUMPED},
            "many": trimmed(self.cells.many[self.cells.rows["many"][rows[only == fold.MANY]]]),
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
        rows = self.cells.allocate(len(pane))
        self.table[slots, series] = rows
        for name in DUMPED:
            self.cells.rows[name][rows] = dumped["columns"][name]
        self.cells.put_many(rows, dumped["many"])
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
        self._many: U64 = np.zeros((_ROOM, 1), np.uint64)
        """Which processes gave a sample, for cells with more than one."""
        self._buckets = np.zeros(_ROOM, merge.BUCKET)
        self._first = self._end = 0
        """Which of the cells are held."""
        self._many_first = self._many_end = 0
        self._bucket_first = self._bucket_end = 0

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def cells(self) -> Rows:
        """Records of ``merge.CLOSED``; ``begin`` counts in :attr:`buckets`."""
        return self._cells[self._first : self._end]

    @property
    def many(self) -> U64:
        """Where ``many`` of a cell points: its processes, if ``only`` says that it has several."""
        return self._many[: self._many_end]

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
        several = merge.popcount(cells.bits) > 1
        bits = cells.bits[several]
        self._make_room(count, number, len(bits), bits.shape[1])
        to = self._cells[self._end : self._end + count]
        for name in _KEPT:
            to[name] = getattr(cells, name)
        to["only"] = merge.one_of(cells.bits, several)
        to["many"] = self._many_end + np.cumsum(several) - several
        self._many[self._many_end : self._many_end + len(bits)] = widen(bits, self._many.shape[1])
        merge.entries_of(cells.pane, cells.series, buckets.pane, buckets.series, to, self._bucket_end)
        held = self._buckets[self._bucket_end : self._bucket_end + number]
        held["code"], held["count"] = buckets.bucket, buckets.number
        self._end += count
        self._many_end += len(bits)
        self._bucket_end += number

    def _make_room(self, count: int, number: int, several: int, words: int) -> None:
        self._many = widen(self._many, words)
        if self._many_end + several > len(self._many):
            many = self._many[self._many_first : self._many_end]
            self._cells["many"] -= self._many_first
            self._many_first, self._many_end = 0, len(many)
            room = max(_ROOM, 2 * (len(many) + several)) - len(many)
            self._many = np.concatenate([many, np.zeros((room, many.shape[1]), np.uint64)])
        if self._end + count <= len(self._cells) and self._bucket_end + number <= len(self._buckets):
            return
        cells = self.cells.copy()
        buckets = self._buckets[self._bucket_first : self._bucket_end].copy()
        cells["begin"] -= self._bucket_first
        size, entries = max(_ROOM, 2 * (len(cells) + count)), max(_ROOM, 2 * (len(buckets) + number))
        self._cells, self._buckets = np.zeros(size, merge.CLOSED), np.zeros(entries, merge.BUCKET)
        self._cells[: len(cells)], self._buckets[: len(buckets)] = cells, buckets
        self._first, self._end, self._bucket_first, self._bucket_end = 0, len(cells), 0, len(buckets)

    def trim(self, first: int) -> None:
        """Forgets panes below ``first``."""
        gone = int(np.searchsorted(self.cells["pane"], first))
        if gone:
            self._first += gone
            at_end = self._first == self._end
            self._bucket_first = self._bucket_end if at_end else int(self._cells["begin"][self._first])
            self._many_first = self._many_end if at_end else int(self._cells["many"][self._first])

    def present(self) -> set[int]:
        """Processes that gave a sample of a pane that is kept."""
        only = self.cells["only"]
        return named(self._many[self._many_first : self._many_end]) | set(only[only >= 0].tolist())

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order; all that :meth:`present` gives are among them."""
        numbers = np.array(kept, np.int64)
        only = self.cells["only"]
        self.cells["only"] = np.where(only >= 0, np.searchsorted(numbers, only), only)
        self._many = pick(self._many, numbers)

    def dump(self) -> dict[str, Any]:
        cells = self.cells
        return {
            "cells": {name: cells[name].copy() for name in (*_KEPT, "number", "only")},
            "many": trimmed(self._many[self._many_first : self._many_end]),
            "code": self._buckets["code"][self._bucket_first : self._bucket_end],
            "count": self._buckets["count"][self._bucket_first : self._bucket_end],
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        columns = dumped["cells"]
        count, number = len(columns["pane"]), len(dumped["code"])
        many = dumped["many"]
        words = max(many.shape[1], int(columns["only"].max(initial=0) // 64) + 1)
        self._make_room(count, number, len(many), words)
        for name in (*_KEPT, "number", "only"):
            self._cells[name][:count] = columns[name]
        self._cells["begin"][:count] = np.cumsum(columns["number"]) - columns["number"]
        several = columns["only"] == merge.MANY
        self._cells["many"][:count] = np.cumsum(several) - several
        self._many[: len(many), : many.shape[1]] = many
        self._buckets["code"][:number], self._buckets["count"][:number] = dumped["code"], dumped["count"]
        self._end, self._many_end, self._bucket_end = count, len(many), number
