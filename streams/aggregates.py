"""The mergeable aggregate of many cells at once, one row each.

A cell is one series in one open pane. :meth:`Cells.fold` folds samples into their rows **one after the
other**, in log order: the result is that of a plain loop over the log, so it cannot depend on how the log was
cut into batches or frames.

Mean and variance are sums around a centre that the row's first weighted sample gives: constants give exactly
0, and as the centre is one of the samples, cancellation is bounded by the total weight over its weight.
Rows that saw a value of 2**400 or more keep their sums scaled by a power of two, so squares cannot overflow.
Values with NaN or infinity count, and stay out of everything but ``first`` and ``last``. A weight that is
negative, not finite or from 2**150 on counts as 0. ``sum`` is the plain sum of finite values, without
weights, in log order; infinite beyond the largest float.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from driftline.streams import histogram
from driftline.streams.bits import pick
from driftline.streams.kernels import fold as kernel

I64 = npt.NDArray[np.int64]
I16 = npt.NDArray[np.int16]
F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]

NO_RANK = -1
_FEWEST = 32
_ELSEWHERE = ("head", "packed", "fill", "singles", "pairs", "many")
DUMPED = tuple(name for name in kernel.ROW.names or () if name not in _ELSEWHERE)
"""What a row is made of, beside its histogram."""


class Batch(NamedTuple):
    """Samples of several frames in log order, for one kind of group."""

    starts: I64
    """Where the samples of each frame begin, and the end of the last."""
    ranks: I64
    """Per frame; :data:`NO_RANK` where there is none."""
    processes: I64
    """Per frame, counted from 0."""
    metric: I16
    value: F64
    weight: F64
    offsets: I64
    """Per frame: where its part of ``maps`` begins."""
    maps: I64
    """Series by ``metric``, -1 where there is none."""


class Placed(NamedTuple):
    """Where the samples of a batch lie on one axis."""

    pane: I64
    flags: U8
    wanted: int
    """The flag of samples that lie on the axis."""
    before: I64
    """Per frame: samples of panes below it are late."""


class Cells:
    """Rows of aggregates with room for more; freed rows are used again."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.rows: Rows = np.zeros(_FEWEST, kernel.ROW)
        self.many: U64 = np.zeros((_FEWEST, 1), np.uint64)
        """Which processes gave a sample, for rows with more than one: bit p of the words."""
        self.free: I64 = np.arange(_FEWEST - 1, -1, -1, dtype=np.int64)
        self._free_many: I64 = self.free.copy()
        self._wide: I64 = np.zeros((_FEWEST, 8), np.int64)
        self._heads: I64 = np.array([0, 0, -1, 0, 0], np.int64)

    @property
    def used(self) -> int:
        return int(self._heads[kernel.USED_ROWS])

    def allocate(self, count: int) -> I64:
        """Row numbers of ``count`` empty rows."""
        while len(self.free) - self.used < count:
            self._grow()
        rows = self.free[self.used : self.used + count].copy()
        self._heads[kernel.USED_ROWS] += count
        kernel.clear(self.rows, rows)
        return rows

    def release(self, rows: I64) -> None:
        """Rows that are free again, with their buckets."""
        kernel.let_go(rows, self.rows, self._wide, self._free_many, self._heads)
        self.free[self.used - len(rows) : self.used] = rows
        self._heads[kernel.USED_ROWS] -= len(rows)
        if not self.used and len(self.free) > 64 * _FEWEST:
            self._clear()  # what a flood has taken is given back

    def _grow(self) -> None:
        old = len(self.free)
        self.rows = np.concatenate([self.rows, np.zeros(old, kernel.ROW)])
        self.free = np.concatenate([self.free, np.arange(2 * old - 1, old - 1, -1, dtype=np.int64)])

    def _grow_many(self) -> None:
        old = len(self._free_many)
        self.many = np.concatenate([self.many, np.zeros_like(self.many)])
        more = np.arange(2 * old - 1, old - 1, -1, dtype=np.int64)
        self._free_many = np.concatenate([self._free_many, more])

    def widen(self, words: int) -> None:
        """Makes room for 64 * ``words`` processes."""
        more = words - self.many.shape[1]
        if more > 0:
            self.many = np.pad(self.many, ((0, 0), (0, more)))

    def _make_room(self, lines: int) -> None:
        """For so many more lines of buckets."""
        missing = lines - int(self._heads[kernel.FREE_LINES])
        missing -= len(self._wide) - int(self._heads[kernel.USED_LINES])
        if missing > 0:
            more = np.zeros((max(missing, len(self._wide)), 8), np.int64)
            self._wide = np.concatenate([self._wide, more])

    def fold(self, batch: Batch, placed: Placed, *, low: int, lookup: I64, table: I64) -> tuple[int, int]:
        """Folds samples (in log order) into their rows; how many were late, how many had no series.

        The row of a sample is ``table[lookup[pane - low], series]``, made where that is -1.
        """
        told = np.zeros(2, np.int64)
        raw, end, at = batch.value.view(np.int64), int(batch.starts[-1]), 0
        while True:
            at = kernel.fold(
                *(at, batch.starts, placed.before, batch.ranks, batch.processes, batch.offsets, batch.maps),
                *(batch.metric, placed.pane, placed.flags, placed.wanted, batch.value, raw, batch.weight),
                *(low, lookup, table, self.rows, self.free, self.many, self._free_many),
                *(self._wide, self._wide.view(np.int32), self._heads),
                *(histogram.BELOW, histogram.INSIDE, told),
            )
            if at >= end:
                return int(told[0]), int(told[1])
            if self.used == len(self.free):
                self._grow()
            elif int(self._heads[kernel.USED_MANY]) == len(self._free_many):
                self._grow_many()
            else:
                self._make_room(len(self._wide))

    def present(self, rows: I64) -> U64:
        """Which processes gave each of ``rows`` a sample: bit p of its words."""
        out = np.zeros((len(rows), self.many.shape[1]), np.uint64)
        kernel.present(rows, self.rows, self.many, out)
        return out

    def put_many(self, rows: I64, bits: U64) -> None:
        """The bits of those of ``rows`` whose ``only`` says that they have more than one process."""
        number = len(bits)
        while len(self._free_many) < number:
            self._grow_many()
        self.widen(max(bits.shape[1], int(self.rows["only"][rows].max(initial=0) // 64) + 1))
        places = self._free_many[:number]
        self._heads[kernel.USED_MANY] = number
        self.many[places, : bits.shape[1]] = bits
        self.rows["many"][rows[self.rows["only"][rows] == kernel.MANY]] = places

    def renumber(self, rows: I64, kept: I64) -> None:
        """Keeps these processes, in this order; ``rows`` are those in use."""
        only = self.rows["only"][rows]
        self.rows["only"][rows] = np.where(only >= 0, np.searchsorted(kept, only), only)
        self.many = pick(self.many, kept)

    def buckets(self, rows: I64) -> tuple[I64, I64, I64]:
        """Buckets of ``rows``: (position in ``rows``, bucket, count), in order of both."""
        out = np.empty((3, kernel.size_of(rows, self.rows)), np.int64)
        used = kernel.gather(rows, self.rows, self._wide, self._wide.view(np.int32), out)
        return out[0, :used], out[1, :used], out[2, :used]

    def put_buckets(self, rows: I64, place: I64, bucket: I64, count: I64) -> None:
        """What :meth:`buckets` gave, into rows without any."""
        self._make_room(len(place))
        kernel.fill(rows, place, bucket, count, self.rows, self._wide, self._heads)

    def read(self, rows: I64) -> tuple[I64, F64]:
        """What ``rows`` hold, beside histograms and processes: see ``kernel.read``."""
        whole, floats = np.empty((5, len(rows)), np.int64), np.empty((8, len(rows)))
        kernel.read(rows, self.rows, whole, floats)
        return whole, floats
