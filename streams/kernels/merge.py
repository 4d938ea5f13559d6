"""Closed cells into windows: the loops of ``windowing``.

Cells are records of :data:`CLOSED`, sorted by pane, then series; buckets lie in the same order, those of a
cell from ``begin`` on, ``number`` of them, sorted by code. ``only`` is the one process that gave the cell a
sample, :data:`NOBODY`, or :data:`MANY`: then row ``many`` of an array of bits has them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from driftline.streams.kernels import compiled

BIG = 2.0**400
SHIFT = 700
TINY = 2.0**-300
LIFT = 700
CLOSED = np.dtype(
    [
        *((name, "i8") for name in ("pane", "series", "samples", "nan", "inf")),
        *((name, "f8") for name in ("weight", "sum", "mean", "std", "min", "max", "first", "last")),
        *((name, "i8") for name in ("begin", "number", "only", "many")),
        *((name, "i4") for name in ("min_rank", "max_rank")),
    ]
)
BUCKET = np.dtype([("code", "i8"), ("count", "i8")])
WINDOW, SERIES, SAMPLES, NAN, INF, MIN_RANK, MAX_RANK = range(7)
"""Whole numbers of a window."""
WEIGHT, SUM, MEAN, STD, MIN, MAX, FIRST, LAST = range(8)
"""Floats of a window."""
NOBODY, MANY = -1, -2
_PER_OCTAVE = 64
_OFFSET = 1100 * _PER_OCTAVE
_ZERO = 1 << 18
_DENSE = 1 << 14


@compiled
def popcount(bits: Any) -> Any:
    """Set bits per row of 64-bit words."""
    out = np.zeros(len(bits), np.int64)
    for at in range(len(bits)):
        total = np.uint64(0)
        for word in bits[at]:
            x = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
            x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
            x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
            total += (x * np.uint64(0x0101010101010101)) >> np.uint64(56)
        out[at] = total
    return out


@compiled
def one_of(bits: Any, several: Any) -> Any:
    """The process of each row that has one; :data:`NOBODY`, or :data:`MANY` for rows in ``several``."""
    out = np.full(len(bits), NOBODY, np.int64)
    for at in range(len(bits)):
        if several[at]:
            out[at] = MANY
            continue
        for word in range(bits.shape[1]):
            some = bits[at, word]
            if some != 0:
                place = 0
                while some > np.uint64(1):
                    some >>= np.uint64(1)
                    place += 1
                out[at] = word * 64 + place
    return out


@compiled
def entries_of(pane: Any, series: Any, bucket_pane: Any, bucket_series: Any, cells: Any, base: int) -> Any:
    """Sets ``begin`` and ``number`` of cells from buckets in the same order."""
    at = 0
    for cell in range(len(pane)):
        cells[cell].begin = base + at
        first = at
        while at < len(bucket_pane) and bucket_pane[at] == pane[cell] and bucket_series[at] == series[cell]:
            at += 1
        cells[cell].number = at - first


@compiled
def _first_of(cells: Any, pane: int) -> Any:
    """Where cells of ``pane`` or a later one begin."""
    low, high = 0, len(cells)
    while low < high:
        middle = (low + high) // 2
        if cells[middle].pane < pane:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def spans_of(cells: Any, first: Any, panes: int) -> Any:
    """For windows that begin at these panes: [low, high) of their cells."""
    out = np.empty((2, len(first)), np.int64)
    for at in range(len(first)):
        out[0, at] = _first_of(cells, first[at])
        out[1, at] = _first_of(cells, first[at] + panes)
    return out


@compiled
def number_series(cells: Any, place: Any) -> Any:
    """The series of the cells in order; ``place`` (-1 everywhere) gets the place of each in that order."""
    count = 0
    found = np.empty(len(cells), np.int64)
    for cell in cells:
        if place[cell.series] < 0:
            place[cell.series] = 0
            found[count] = cell.series
            count += 1
    found = np.sort(found[:count])
    for at in range(count):
        place[found[at]] = at
    return found


@compiled
def merge(
    cells: Any, many: Any, spans: Any, series: Any, place: Any, whole: Any, floats: Any, out: Any
) -> Any:
    """Merges the cells of windows: one column of ``whole``, ``floats`` and row of ``out`` (processes) each.

    Windows in order, then series. Returns how many there are.
    """
    number = len(series)
    at = np.empty(number, np.int64)
    shift, seen = np.empty(number, np.int32), np.empty(number, np.bool_)
    centre, moved, peak = np.empty(number), np.empty(number), np.empty(number)
    used = 0
    for window in range(spans.shape[1]):
        low, high = spans[0, window], spans[1, window]
        seen[:] = False
        for some in range(low, high):
            seen[place[cells[some].series]] = True
        for s in range(number):
            if seen[s]:
                at[s], seen[s], shift[s] = used, False, 0
                whole[WINDOW, used], whole[SERIES, used] = window, series[s]
                used += 1
        _count(cells, many, low, high, place, at, seen, shift, whole, floats, out)
        _average(cells, low, high, place, at, seen, shift, centre, moved, floats)
        _spread(cells, low, high, place, at, shift, moved, peak, floats)
    return used


@compiled
def _count(
    cells: Any,
    many: Any,
    low: int,
    high: int,
    place: Any,
    at: Any,
    seen: Any,
    shift: Any,
    whole: Any,
    floats: Any,
    out: Any,
) -> Any:
    """All but mean and deviation; which windows hold big values. Leaves ``seen`` False."""
    for some in range(low, high):
        cell = cells[some]
        s = place[cell.series]
        to = at[s]
        if not seen[s]:
            seen[s] = True
            whole[SAMPLES, to], whole[NAN, to], whole[INF, to] = cell.samples, cell.nan, cell.inf
            whole[MIN_RANK, to], whole[MAX_RANK, to] = cell.min_rank, cell.max_rank
            floats[WEIGHT, to], floats[SUM, to] = 0.0, cell.sum
            floats[MIN, to], floats[MAX, to], floats[FIRST, to] = cell.min, cell.max, cell.first
            out[to, :] = 0
        else:
            whole[SAMPLES, to] += cell.samples
            whole[NAN, to] += cell.nan
            whole[INF, to] += cell.inf
            floats[SUM, to] += cell.sum
            if cell.min < floats[MIN, to]:
                floats[MIN, to], whole[MIN_RANK, to] = cell.min, cell.min_rank
            if cell.max > floats[MAX, to]:
                floats[MAX, to], whole[MAX_RANK, to] = cell.max, cell.max_rank
        if cell.only >= 0:
            out[to, cell.only >> 6] |= np.uint64(1) << np.uint64(cell.only & 63)
        elif cell.only == MANY:
            for word in range(many.shape[1]):
                out[to, word] |= many[cell.many, word]
        floats[LAST, to] = cell.last
        if cell.weight > 0.0:
            floats[WEIGHT, to] += cell.weight
            if abs(cell.mean) >= BIG or cell.std >= BIG:
                shift[s] = SHIFT
    for some in range(low, high):
        seen[place[cells[some].series]] = False


@compiled
def _average(
    cells: Any,
    low: int,
    high: int,
    place: Any,
    at: Any,
    seen: Any,
    shift: Any,
    centre: Any,
    moved: Any,
    floats: Any,
) -> Any:
    """Means, around that of the first cell; ``moved`` then holds the mean in units of 2**shift."""
    for some in range(low, high):
        cell = cells[some]
        if not cell.weight > 0.0:
            continue
        s = place[cell.series]
        mean = cell.mean if shift[s] == 0 else math.ldexp(cell.mean, -shift[s])
        if not seen[s]:
            seen[s] = True
            centre[s], moved[s] = mean, 0.0
        moved[s] += cell.weight * (mean - centre[s])
    for some in range(low, high):
        s = place[cells[some].series]
        to = at[s]
        if seen[s]:
            seen[s] = False
            moved[s] = centre[s] + moved[s] / floats[WEIGHT, to]
            floats[MEAN, to] = moved[s] if shift[s] == 0 else math.ldexp(moved[s], shift[s])
        elif not floats[WEIGHT, to] > 0.0:
            floats[MEAN, to] = np.nan


@compiled
def _spread(
    cells: Any, low: int, high: int, place: Any, at: Any, shift: Any, mean: Any, peak: Any, floats: Any
) -> Any:
    """Deviations around the mean; lifted where the squares of all distances would vanish."""
    tiny = False
    for some in range(low, high):
        s = place[cells[some].series]
        peak[s], floats[STD, at[s]] = 0.0, 0.0
    for some in range(low, high):
        cell = cells[some]
        if cell.weight > 0.0:
            s = place[cell.series]
            std, apart = _distances(cell, shift[s], mean[s])
            floats[STD, at[s]] += cell.weight * (std * std + apart * apart)
            size = max(std, abs(apart))
            peak[s] = max(peak[s], size)
            tiny |= 0.0 < size < TINY
    if tiny:
        _lift(cells, low, high, place, at, shift, mean, peak, floats)
    for some in range(low, high):
        s = place[cells[some].series]
        to = at[s]
        if peak[s] < 0.0:
            continue
        total = floats[WEIGHT, to]
        std = math.sqrt(floats[STD, to] / total) if total > 0.0 else np.nan
        if total > 0.0 and tiny and peak[s] < TINY:
            std = math.ldexp(std, -LIFT)
        floats[STD, to] = std if shift[s] == 0 else math.ldexp(std, shift[s])
        peak[s] = -1.0


@compiled
def _distances(cell: Any, shift: int, mean: float) -> Any:
    if shift == 0:
        return cell.std, cell.mean - mean
    return math.ldexp(cell.std, -shift), math.ldexp(cell.mean, -shift) - mean


@compiled
def _lift(
    cells: Any, low: int, high: int, place: Any, at: Any, shift: Any, mean: Any, peak: Any, floats: Any
) -> Any:
    """The squares once more, lifted, of windows in which all distances are tiny."""
    for some in range(low, high):
        s = place[cells[some].series]
        if peak[s] < TINY:
            floats[STD, at[s]] = 0.0
    for some in range(low, high):
        cell = cells[some]
        s = place[cell.series]
        if cell.weight > 0.0 and peak[s] < TINY:
            std, apart = _distances(cell, shift[s], mean[s])
            std, apart = math.ldexp(std, LIFT), math.ldexp(apart, LIFT)
            floats[STD, at[s]] += cell.weight * (std * std + apart * apart)


@compiled
def _value(code: int, middle: Any) -> Any:
    """A value in the middle of a bucket."""
    if code == _ZERO:
        return 0.0
    index = abs(code - _ZERO) - _OFFSET
    size = math.ldexp(middle[index & (_PER_OCTAVE - 1)], index >> 6)
    return -size if code < _ZERO else size


@compiled
def quantiles(
    cells: Any,
    buckets: Any,
    spans: Any,
    series: Any,
    place: Any,
    whole: Any,
    floats: Any,
    used: int,
    wanted: Any,
    asked: Any,
    middle: Any,
    out: Any,
) -> Any:
    """Nearest-rank quantiles of finite samples, kept within minimum and maximum; NaN where there are none.

    ``wanted`` go up; ``asked[q, series]`` says which series want each. For each series, running counts over
    its buckets follow the windows: cells that enter are added, cells that leave taken away.
    """
    windows = spans.shape[1]
    rows = np.full((len(series), windows), -1, np.int64)
    for row in range(used):
        rows[place[whole[SERIES, row]], whole[WINDOW, row]] = row
    begins, order = _by_series(cells, spans[0, 0], spans[1, windows - 1], place, len(series))
    for s in range(len(series)):
        mine = order[begins[s] : begins[s + 1]]
        codes, dense = _codes(cells, buckets, mine)
        counts = np.zeros(codes[1] - codes[0] + 1 if dense else len(codes), np.int64)
        entered = left = 0
        for window in range(windows):
            while entered < len(mine) and mine[entered] < spans[1, window]:
                _add(cells[mine[entered]], buckets, codes, dense, counts, 1)
                entered += 1
            while left < entered and mine[left] < spans[0, window]:
                _add(cells[mine[left]], buckets, codes, dense, counts, -1)
                left += 1
            row = rows[s, window]
            if row >= 0:
                finite = whole[SAMPLES, row] - whole[NAN, row] - whole[INF, row]
                least, most = floats[MIN, row], floats[MAX, row]
                _pick(
                    finite,
                    least,
                    most,
                    wanted,
                    asked[:, series[s]],
                    codes,
                    dense,
                    counts,
                    middle,
                    out[:, row],
                )


@compiled
def _by_series(cells: Any, low: int, high: int, place: Any, number: int) -> Any:
    """Cells [low, high) by series, in order of panes: where those of each begin, and which they are."""
    begins = np.zeros(number + 1, np.int64)
    for at in range(low, high):
        begins[place[cells[at].series] + 1] += 1
    for s in range(number):
        begins[s + 1] += begins[s]
    order, free = np.empty(high - low, np.int64), begins[:number].copy()
    for at in range(low, high):
        s = place[cells[at].series]
        order[free[s]] = at
        free[s] += 1
    return begins, order


@compiled
def _codes(cells: Any, buckets: Any, mine: Any) -> Any:
    """The range of codes of some cells where counts of all of it cost little (True), else the codes."""
    total: Any = 0
    least: Any = np.int64(0)
    most: Any = np.int64(-1)
    for at in mine:
        cell = cells[at]
        if cell.number > 0:
            first, last = buckets[cell.begin].code, buckets[cell.begin + cell.number - 1].code
            least = first if total == 0 else min(least, first)
            most = last if total == 0 else max(most, last)
            total += cell.number
    if most - least < 4 * total + 256:
        return np.array([least, most]), True
    codes = np.empty(total, np.int64)
    put = 0
    for at in mine:
        cell = cells[at]
        for some in range(cell.begin, cell.begin + cell.number):
            codes[put] = buckets[some].code
            put += 1
    codes = np.sort(codes)
    kept = 1
    for at in range(1, total):
        if codes[at] != codes[kept - 1]:
            codes[kept] = codes[at]
            kept += 1
    return codes[:kept].copy(), False


@compiled
def _add(cell: Any, buckets: Any, codes: Any, dense: bool, counts: Any, sign: int) -> Any:
    at = 0
    for some in range(cell.begin, cell.begin + cell.number):
        code = buckets[some].code
        if dense:
            counts[code - codes[0]] += sign * buckets[some].count
        else:
            at += np.searchsorted(codes[at:], code)
            counts[at] += sign * buckets[some].count


@compiled
def _pick(
    finite: int,
    least: float,
    most: float,
    wanted: Any,
    asked: Any,
    codes: Any,
    dense: bool,
    counts: Any,
    middle: Any,
    out: Any,
) -> Any:
    """The quantiles of one window."""
    at = 0
    seen = counts[0] if len(counts) else 0
    for q in range(len(wanted)):
        if finite == 0 or not asked[q]:
            out[q] = np.nan
            continue
        rank = min(max(math.ceil(wanted[q] * finite - 1e-9), 1), finite)
        while seen < rank:
            at += 1
            seen += counts[at]
        code = codes[0] + at if dense else codes[at]
        out[q] = min(max(_value(code, middle), least), most)
