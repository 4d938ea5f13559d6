"""The mergeable aggregate of many cells at once, one row each, in arrays.

A cell is one series in one open pane. :meth:`Cells.fold` takes samples in log order and folds each into its
row **one after the other** (``ufunc.at`` adds in index order), starting from the row's state: the result is
that of a plain loop over the log, so it cannot depend on how the log was cut into batches or frames.

Mean and variance are sums around a centre that the row's first weighted sample gives: constants give exactly
0, and as the centre is one of the samples, cancellation is bounded by the total weight over its weight.
Rows that saw a value of 2**480 or more keep their sums scaled by a power of two, so squares cannot overflow.
Values with NaN or infinity count, and stay out of everything but ``first`` and ``last``. A weight that is
negative, not finite or beyond 2**480 counts as 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftline.streams import histogram

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

BIG = 2.0**480
SHIFT = 700
"""Rows with big values hold sums of x * 2**-SHIFT."""
TINY = 2.0**-300
LIFT = 700
"""Squares of distances below TINY would vanish: their sum is kept lifted by 2**(2 * LIFT) as well."""
NO_RANK = -1
_DENSE_BITS = 1 << 24

_FIELDS: tuple[tuple[str, type[np.generic]], ...] = (
    ("count", np.int64),
    ("nan", np.int64),
    ("inf", np.int64),
    ("weight", np.float64),
    ("centre", np.float64),
    ("sum1", np.float64),
    ("sum2", np.float64),
    ("sum2_tiny", np.float64),
    ("shift", np.int32),
    ("min", np.float64),
    ("min_rank", np.int32),
    ("max", np.float64),
    ("max_rank", np.int32),
    ("first", np.float64),
    ("last", np.float64),
)
_EMPTY: dict[str, float] = {"min": np.inf, "max": -np.inf, "min_rank": NO_RANK, "max_rank": NO_RANK}


class Samples(NamedTuple):
    """Samples in log order; ``rank`` is :data:`NO_RANK` where there is none, ``process`` counts from 0."""

    value: F64
    weight: F64
    rank: I32
    process: I64

    def take(self, chosen: Bool | I64) -> Samples:
        return Samples(self.value[chosen], self.weight[chosen], self.rank[chosen], self.process[chosen])


class Cells:
    """Rows of aggregates with room for more; freed rows are used again."""

    def __init__(self, capacity: int = 256) -> None:
        self.columns: dict[str, npt.NDArray[Any]] = {
            name: np.full(capacity, _EMPTY.get(name, 0), dtype) for name, dtype in _FIELDS
        }
        self.bits: U64 = np.zeros((capacity, 1), np.uint64)
        """Which processes gave a sample: bit p of the row's words."""
        self.free: I64 = np.arange(capacity - 1, -1, -1, dtype=np.int64)
        self.used = 0
        self.scaled = False
        self._local: I64 = np.zeros(capacity, np.int64)
        self._flag: Bool = np.zeros(capacity, np.bool_)
        self._keys: list[I64] = []
        self._counts: list[I64 | None] = []
        self._pending = 0
        self._packed = 0

    # --- rows ----------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> I64:
        """Row numbers of ``count`` empty rows."""
        while len(self.free) - self.used < count:
            self._grow()
        rows = self.free[self.used : self.used + count].copy()
        self.used += count
        for name, column in self.columns.items():
            column[rows] = _EMPTY.get(name, 0)
        self.bits[rows] = 0
        return rows

    def release(self, rows: I64) -> None:
        self.free[self.used - len(rows) : self.used] = rows
        self.used -= len(rows)

    def _grow(self) -> None:
        old = len(self.free)
        for name, dtype in _FIELDS:
            self.columns[name] = np.concatenate(
                [self.columns[name], np.full(old, _EMPTY.get(name, 0), dtype)]
            )
        self.bits = np.concatenate([self.bits, np.zeros_like(self.bits)])
        self.free = np.concatenate([self.free, np.arange(2 * old - 1, old - 1, -1, dtype=np.int64)])
        self._local = np.zeros(2 * old, np.int64)
        self._flag = np.zeros(2 * old, np.bool_)

    def widen(self, words: int) -> None:
        """Makes room for 64 * ``words`` processes."""
        more = words - self.bits.shape[1]
        if more > 0:
            self.bits = np.pad(self.bits, ((0, 0), (0, more)))

    # --- folding -------------------------------------------------------------------------------------------

    def fold(self, rows: I64, samples: Samples) -> None:
        """Folds samples (in log order) into their rows."""
        if not len(rows):
            return
        self._flag[rows] = True
        touched = np.flatnonzero(self._flag)
        self._flag[touched] = False
        self._local[touched] = np.arange(len(touched))
        code = self._local[rows]
        self._fold_ends(touched, code, samples.value)
        self._fold_presence(touched, code, samples.process)
        finite = np.isfinite(samples.value)
        if not finite.all():
            self._fold_non_finite(touched, code, samples.value)
            rows, code, samples = rows[finite], code[finite], samples.take(finite)
        if not len(rows):
            return
        self._fold_extreme("min", np.minimum, touched, code, samples)
        self._fold_extreme("max", np.maximum, touched, code, samples)
        self._fold_moments(touched, code, samples.value, samples.weight)
        self.push((rows << histogram.CODE_BITS) | histogram.bucket(samples.value), None)

    def _fold_ends(self, touched: I64, code: I64, value: F64) -> None:
        size = len(touched)
        before = self.columns["count"][touched]
        ends = np.empty(size)
        ends[code[::-1]] = value[::-1]
        new = before == 0
        self.columns["first"][touched[new]] = ends[new]
        ends[code] = value
        self.columns["last"][touched] = ends
        self.columns["count"][touched] = before + np.bincount(code, minlength=size)

    def _fold_presence(self, touched: I64, code: I64, process: I64) -> None:
        words = self.bits.shape[1]
        width = words * 64
        if len(touched) * width <= _DENSE_BITS:
            seen = np.zeros(len(touched) * width, np.bool_)
            seen[code * width + process] = True
            packed = np.packbits(seen.reshape(len(touched), width), axis=1, bitorder="little")
            self.bits[touched] |= packed.view("<u8").astype(np.uint64, copy=False)
            return
        pairs = np.unique(code * width + process)
        cell, bit = pairs // width, pairs % width
        np.bitwise_or.at(self.bits, (touched[cell], bit >> 6), np.uint64(1) << (bit & 63).astype(np.uint64))

    def _fold_non_finite(self, touched: I64, code: I64, value: F64) -> None:
        for name, mask in (("nan", np.isnan(value)), ("inf", np.isinf(value))):
            self.columns[name][touched] += np.bincount(code[mask], minlength=len(touched))

    def _fold_extreme(self, name: str, ufunc: np.ufunc, touched: I64, code: I64, samples: Samples) -> None:
        """The first sample in log order that reaches the extreme gives value (sign of zero too) and rank."""
        before = self.columns[name][touched]
        after = before.copy()
        ufunc.at(after, code, samples.value)
        better = after != before
        hits = np.flatnonzero(better[code] & (samples.value == after[code]))
        if not len(hits):
            return
        chosen = np.zeros(len(touched), np.int64)
        chosen[code[hits[::-1]]] = hits[::-1]
        chosen, rows = chosen[better], touched[better]
        self.columns[name][rows] = samples.value[chosen]
        self.columns[name + "_rank"][rows] = samples.rank[chosen]

    def _fold_moments(self, touched: I64, code: I64, value: F64, weight: F64) -> None:
        counts = weight > 0
        counts &= weight < BIG
        if not counts.all():
            code, value, weight = code[counts], value[counts], weight[counts]
            if not len(code):
                return
        columns = self.columns
        total = columns["weight"][touched]
        first = np.zeros(len(touched))
        first[code[::-1]] = value[::-1]
        centre = np.where(total > 0, columns["centre"][touched], first)
        sum1, sum2 = columns["sum1"][touched], columns["sum2"][touched]
        if self.scaled or max(value.max(), -value.min()) >= BIG:
            shift = self._rescale(touched, code, value, sum1, sum2)
            apart = np.ldexp(value, -shift[code]) - np.ldexp(centre, -shift)[code]
        else:
            apart = value - centre[code]
        np.add.at(total, code, weight)
        moved = weight * apart
        np.add.at(sum1, code, moved)
        np.add.at(sum2, code, moved * apart)
        far = np.abs(apart)
        tiny = (far < TINY) & (far > 0)
        if tiny.any():
            lifted = np.ldexp(apart[tiny], LIFT)
            sums = columns["sum2_tiny"][touched]
            np.add.at(sums, code[tiny], weight[tiny] * lifted * lifted)
            columns["sum2_tiny"][touched] = sums
        columns["weight"][touched], columns["centre"][touched] = total, centre
        columns["sum1"][touched], columns["sum2"][touched] = sum1, sum2

    def _rescale(self, touched: I64, code: I64, value: F64, sum1: F64, sum2: F64) -> I32:
        """Moves rows that now see a big value to scaled sums; the factor is a power of two, so exact."""
        self.scaled = True
        shift: I32 = self.columns["shift"][touched]
        big = np.zeros(len(touched), np.bool_)
        big[code[np.abs(value) >= BIG]] = True
        big &= shift == 0
        sum1[big] = np.ldexp(sum1[big], -SHIFT)
        sum2[big] = np.ldexp(sum2[big], -2 * SHIFT)
        shift[big] = SHIFT
        self.columns["shift"][touched] = shift
        return shift

    # --- buckets of open cells: keys row << CODE_BITS | bucket, packed when many ---------------------------

    def push(self, keys: I64, counts: I64 | None) -> None:
        self._keys.append(keys)
        self._counts.append(counts)
        self._pending += len(keys)
        if self._pending > max(1_000_000, 2 * self._packed):
            self.pack()

    def pack(self) -> None:
        """Adds up equal buckets."""
        keys, counts = self.pending()
        keys, counts = count_keys(keys, counts)
        self._keys, self._counts = ([keys], [counts]) if len(keys) else ([], [])
        self._pending = self._packed = len(keys)

    def pending(self) -> tuple[I64, I64 | None]:
        """All buckets of open cells; counts are None where each stands for one sample."""
        if not self._keys:
            return np.empty(0, np.int64), None
        keys = self._keys[0] if len(self._keys) == 1 else np.concatenate(self._keys)
        if all(counts is None for counts in self._counts):
            return keys, None
        parts = [
            np.ones(len(k), np.int64) if c is None else c
            for k, c in zip(self._keys, self._counts, strict=True)
        ]
        return keys, np.concatenate(parts)

    def take_buckets(self, rows: I64) -> tuple[I64, I64, I64]:
        """Removes the buckets of ``rows``: (position in ``rows``, bucket, count), in order of both."""
        keys, counts = self.pending()
        self._flag[rows] = True
        chosen = self._flag[keys >> histogram.CODE_BITS]
        self._flag[rows] = False
        kept = ~chosen
        rest = keys[kept]
        self._keys = [rest] if len(rest) else []
        self._counts = [None if counts is None else counts[kept]] if len(rest) else []
        self._pending = len(rest)
        self._packed = min(self._packed, len(rest))
        self._local[rows] = np.arange(len(rows))
        taken = keys[chosen]
        mask = (1 << histogram.CODE_BITS) - 1
        placed = (self._local[taken >> histogram.CODE_BITS] << histogram.CODE_BITS) | (taken & mask)
        placed, number = count_keys(placed, None if counts is None else counts[chosen])
        return placed >> histogram.CODE_BITS, placed & mask, number

    # --- results -------------------------------------------------------------------------------------------

    def mean_and_std(self, rows: I64) -> tuple[F64, F64]:
        """Weighted mean and population deviation; NaN without a weighted finite sample."""
        get = self.columns
        weight, shift = get["weight"][rows], get["shift"][rows]
        some = weight > 0
        total = np.where(some, weight, 1.0)
        moved = get["sum1"][rows] / total
        mean = np.ldexp(np.ldexp(get["centre"][rows], -shift) + moved, shift)
        variance = np.maximum(get["sum2"][rows] / total - moved * moved, 0.0)
        std = np.ldexp(np.sqrt(variance), shift)
        lifted = get["sum2_tiny"][rows] / total
        tiny = (lifted > 0) & (np.sqrt(get["sum2"][rows] / total) < TINY) & (shift == 0)
        if tiny.any():
            mean_lifted = np.ldexp(moved[tiny], LIFT)
            variance = np.maximum(lifted[tiny] - mean_lifted * mean_lifted, 0.0)
            std[tiny] = np.ldexp(np.sqrt(variance), -LIFT)
        return np.where(some, mean, np.nan), np.where(some, std, np.nan)


def count_keys(keys: I64, counts: I64 | None) -> tuple[I64, I64]:
    """Sorted distinct keys with the sum of their counts (1 each where ``counts`` is None)."""
    if not len(keys):
        return keys, np.empty(0, np.int64)
    if counts is None:
        keys = np.sort(keys)
    else:
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    if counts is None:
        return keys[starts], np.diff(np.append(starts, len(keys)))
    return keys[starts], np.add.reduceat(counts, starts)


def popcount(bits: U64) -> I64:
    """Set bits per row of words."""
    return np.asarray(_POPCOUNT[bits.view(np.uint8)].sum(axis=1, dtype=np.int64))


_POPCOUNT = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)
