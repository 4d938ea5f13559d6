"""Samples into cells, and cells out: the loops of ``aggregates``, ``panes`` and ``arrivals``.

Rows are records of :data:`ROW`. The histogram of a row is a list of lines of 64 bytes (those of the
processor's cache) in two views, ``wide`` (8 numbers of 64 bits) and ``narrow`` (16 of 32): number 0 of
``wide`` is the next line, -1 for none. Lines from ``head`` on hold single codes, 14 in a line, ``fill``
of them in the first; lines from ``packed`` on hold distinct codes with their counts, 7 in a line.

Which processes gave a row a sample: none (``only`` is :data:`NOBODY`), one (its number), or :data:`MANY`:
bits in row ``many`` of an array of their own. A series of one rank has one process, and there are thousands.

``heads`` holds what all rows share: how many row numbers of ``free`` are used, how many lines were ever used,
the first free line, how many are free, how many numbers of ``free_many`` are used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from driftline.streams.kernels import compiled

BIG = 2.0**400
"""Rows with a value from here on hold sums of x * 2**-SHIFT."""
WEIGHT_MAX = 2.0**150
"""Weights from here on count as 0: below, w * x * x of small or scaled values cannot overflow."""
SHIFT = 700
TINY = 2.0**-300
LIFT = 700
LONG = 2048
"""A row with more single codes, and more than twice those it has packed, is packed."""
SINGLES, PAIRS = 14, 7
"""How many fit a line."""
_COUNT_BITS = 44

ROW = np.dtype(
    [
        *((name, "i8") for name in ("count", "nan", "inf")),
        *((name, "f8") for name in ("weight", "sum", "centre", "sum1", "sum2", "sum2_tiny")),
        *((name, "f8") for name in ("min", "max", "first", "last")),
        *((name, "i8") for name in ("head", "packed")),
        *((name, "i4") for name in ("fill", "singles", "pairs")),
        *((name, "i4") for name in ("shift", "min_rank", "max_rank", "only", "many")),
    ]
)
USED_ROWS, USED_LINES, FREE_LINE, FREE_LINES, USED_MANY = range(5)
NOBODY, MANY = -1, -2
VALID_TIME, VALID_STEP, AHEAD = 1, 2, 4
LOW_TIME, HIGH_TIME, LOW_STEP, HIGH_STEP, ANY_AHEAD, ANY_ODD, OFF_TIME, OFF_STEP = range(8)
_NONE = np.iinfo(np.int64).min
_EDGE = np.iinfo(np.int64).max
POSITION_LIMIT = 1 << 62
"""So that the ends of windows fit 64 bits."""
PANE_LIMIT = 1 << 43
_PER_OCTAVE = 64
_OFFSET = 1100 * _PER_OCTAVE
_ZERO = 1 << 18
_MANTISSA = (1 << 52) - 1
_SCRATCH = 4096
"""Codes that lie so close together are counted, others sorted."""


@compiled
def survey(
    starts: Any,
    time_us: Any,
    step: Any,
    value: Any,
    limit_us: Any,
    width_us: int,
    width_steps: int,
    pane_time: Any,
    pane_step: Any,
    flags: Any,
    reach: Any,
) -> Any:
    """Panes and flags of samples; lowest and highest position of each frame; what there is over all.

    ``starts``: where each frame begins, and the end. ``reach``: [4, frames], low > high where a frame has
    none; times of samples dated ahead (beyond ``limit_us`` of their frame) do not count there.
    """
    found: Any = np.zeros(8, np.int64)
    found[LOW_TIME] = found[LOW_STEP] = _EDGE
    found[HIGH_TIME] = found[HIGH_STEP] = _NONE
    cut_t = end_t = cut_s = end_s = np.int64(0)
    at_t = at_s = np.int64(0)
    for frame in range(len(starts) - 1):
        low_t = low_s = np.int64(_EDGE)
        high_t = high_s = np.int64(_NONE)
        limit = limit_us[frame]
        for at in range(starts[frame], starts[frame + 1]):
            flag = 0
            place = time_us[at]
            if not cut_t <= place < end_t:
                at_t = place // width_us
                cut_t, end_t = at_t * width_us, at_t * width_us + width_us
            pane_time[at] = at_t
            if -PANE_LIMIT < at_t < PANE_LIMIT and -POSITION_LIMIT < place < POSITION_LIMIT:
                flag = VALID_TIME
                found[LOW_TIME] = min(found[LOW_TIME], at_t)
                found[HIGH_TIME] = max(found[HIGH_TIME], at_t)
                if place > limit:
                    flag |= AHEAD
                    found[ANY_AHEAD] += 1
                else:
                    low_t, high_t = min(low_t, place), max(high_t, place)
            else:
                found[OFF_TIME] += 1
            place = step[at]
            if place != _NONE:
                if not cut_s <= place < end_s:
                    at_s = place // width_steps
                    cut_s, end_s = at_s * width_steps, at_s * width_steps + width_steps
                pane_step[at] = at_s
                if -PANE_LIMIT < at_s < PANE_LIMIT and -POSITION_LIMIT < place < POSITION_LIMIT:
                    flag |= VALID_STEP
                    found[LOW_STEP] = min(found[LOW_STEP], at_s)
                    found[HIGH_STEP] = max(found[HIGH_STEP], at_s)
                    low_s, high_s = min(low_s, place), max(high_s, place)
                else:
                    found[OFF_STEP] += 1
            else:
                pane_step[at] = 0
            number = value[at]
            if number - number != 0.0:
                found[ANY_ODD] += 1
            flags[at] = flag
        reach[0, frame], reach[1, frame] = low_t, high_t
        reach[2, frame], reach[3, frame] = low_s, high_s
    return found


@compiled
def _code(number: float, bits: int, below: Any, inside: Any) -> Any:
    """The bucket of a finite value; ``bits`` are those of the float."""
    if number == 0.0:
        return _ZERO
    bits &= 0x7FFFFFFFFFFFFFFF
    exponent = bits >> 52
    if exponent == 0:  # denormals have no hidden bit
        part, power = math.frexp(abs(number))
        exponent, bits = power + 1022, int(part * 2.0**53)
    mantissa = bits & _MANTISSA
    at = mantissa >> 40
    index = (exponent - 1023) * _PER_OCTAVE + below[at] - 1 + _OFFSET
    if mantissa > inside[at]:
        index += 1
    return _ZERO + index if number > 0.0 else _ZERO - index


@compiled
def codes_of(value: Any, raw: Any, below: Any, inside: Any) -> Any:
    """Bucket codes of finite values; ``raw`` is ``value`` seen as 64-bit integers."""
    out = np.empty(len(value), np.int64)
    for at in range(len(value)):
        out[at] = _code(value[at], raw[at], below, inside)
    return out


@compiled
def _line(wide: Any, heads: Any, after: int) -> Any:
    """A line that is free, in front of ``after``."""
    at = heads[FREE_LINE]
    if at >= 0:
        heads[FREE_LINE] = wide[at, 0]
        heads[FREE_LINES] -= 1
    else:
        at = heads[USED_LINES]
        heads[USED_LINES] += 1
    wide[at, 0] = after
    return at


@compiled
def _put(row: Any, wide: Any, narrow: Any, heads: Any, code: int) -> Any:
    if row.fill == SINGLES or row.head < 0:
        row.head, row.fill = _line(wide, heads, row.head), 0
    narrow[row.head, 2 + row.fill] = code
    row.fill += 1
    row.singles += 1


@compiled
def _put_pairs(row: Any, wide: Any, heads: Any, codes: Any, counts: Any, number: int) -> Any:
    """Packed codes of a row without any."""
    for at in range(number):
        place = at % PAIRS
        if place == 0:
            row.packed = _line(wide, heads, row.packed)
        wide[row.packed, 1 + place] = (codes[at] << _COUNT_BITS) | counts[at]
    row.pairs = number


@compiled
def _sum_up(row: Any, wide: Any, narrow: Any, codes: Any, counts: Any, totals: Any) -> Any:
    """The distinct codes of a row in order with their counts, into the first places of two arrays.

    ``totals`` is a scratch of zeros, and is so again afterwards.
    """
    number, at, filled = 0, row.head, row.fill
    while at >= 0:
        for place in range(filled):
            codes[number], counts[number] = narrow[at, 2 + place], 1
            number += 1
        at, filled = wide[at, 0], SINGLES
    at, filled = row.packed, row.pairs - (row.pairs - 1) // PAIRS * PAIRS
    while at >= 0:
        for place in range(filled):
            pair = wide[at, 1 + place]
            codes[number], counts[number] = pair >> _COUNT_BITS, pair & ((1 << _COUNT_BITS) - 1)
            number += 1
        at, filled = wide[at, 0], PAIRS
    if number == 0:
        return 0
    low = high = codes[0]
    for place in range(1, number):
        low, high = min(low, codes[place]), max(high, codes[place])
    if high - low < len(totals):
        return _count_codes(codes, counts, number, low, high, totals)
    return _sort_codes(codes, counts, number)


@compiled
def _count_codes(codes: Any, counts: Any, number: int, low: int, high: int, totals: Any) -> Any:
    for place in range(number):
        totals[codes[place] - low] += counts[place]
    kept = 0
    for code in range(high - low + 1):
        if totals[code]:
            codes[kept], counts[kept] = code + low, totals[code]
            kept += 1
            totals[code] = 0
    return kept


@compiled
def _sort_codes(codes: Any, counts: Any, number: int) -> Any:
    order = np.argsort(codes[:number], kind="mergesort")
    sorted_codes, sorted_counts = codes[:number][order], counts[:number][order]
    kept = -1
    for place in range(number):
        if kept >= 0 and codes[kept] == sorted_codes[place]:
            counts[kept] += sorted_counts[place]
        else:
            kept += 1
            codes[kept], counts[kept] = sorted_codes[place], sorted_counts[place]
    return kept + 1


@compiled
def _let_go(row: Any, wide: Any, heads: Any) -> Any:
    """Gives the lines of a row back."""
    for first in (row.head, row.packed):
        at = first
        while at >= 0:
            after = wide[at, 0]
            wide[at, 0] = heads[FREE_LINE]
            heads[FREE_LINE] = at
            heads[FREE_LINES] += 1
            at = after
    row.head = row.packed = -1
    row.fill = row.singles = row.pairs = 0


@compiled
def _pack(row: Any, wide: Any, narrow: Any, heads: Any) -> Any:
    size = row.singles + row.pairs
    codes, counts = np.empty(size, np.int64), np.empty(size, np.int64)
    kept = _sum_up(row, wide, narrow, codes, counts, np.zeros(_SCRATCH, np.int64))
    _let_go(row, wide, heads)
    _put_pairs(row, wide, heads, codes, counts, kept)


@compiled
def _weigh(row: Any, number: float, weight: float) -> Any:
    """One finite sample into the sums around the row's centre."""
    if row.weight == 0.0:
        row.centre = number
    if row.shift == 0 and abs(number) >= BIG:
        row.sum1 = math.ldexp(row.sum1, -SHIFT)
        row.sum2 = math.ldexp(row.sum2, -2 * SHIFT)
        row.shift = SHIFT
    if row.shift != 0:
        apart = math.ldexp(number, -row.shift) - math.ldexp(row.centre, -row.shift)
    else:
        apart = number - row.centre
    row.weight += weight
    moved = weight * apart
    row.sum1 += moved
    row.sum2 += moved * apart
    far = abs(apart)
    if 0.0 < far < TINY:
        lifted = math.ldexp(apart, LIFT)
        row.sum2_tiny += weight * lifted * lifted


@compiled
def _take(row: Any, number: float, raw: int, weight: float, rank: int) -> Any:
    """One sample into everything but the histogram; whether it is finite."""
    if row.count == 0:
        row.first = number
    row.count += 1
    row.last = number
    if number - number != 0.0:
        if number != number:
            row.nan += 1
        else:
            row.inf += 1
        return False
    row.sum += number
    if number < row.min:
        row.min, row.min_rank = number, rank
    if number > row.max:
        row.max, row.max_rank = number, rank
    if 0.0 < weight < WEIGHT_MAX:
        _weigh(row, number, weight)
    return True


@compiled
def clear(rows: Any, chosen: Any) -> Any:
    """Makes rows empty."""
    for number in chosen:
        _clear(rows[number])


@compiled
def _clear(row: Any) -> Any:
    row.count = row.nan = row.inf = 0
    row.weight = row.sum = row.centre = row.sum1 = row.sum2 = row.sum2_tiny = 0.0
    row.first = row.last = 0.0
    row.min, row.max = np.inf, -np.inf
    row.head = row.packed = -1
    row.fill = row.singles = row.pairs = row.shift = 0
    row.min_rank = row.max_rank = row.many = -1
    row.only = NOBODY


@compiled
def fold(
    begin: int,
    starts: Any,
    before: Any,
    ranks: Any,
    processes: Any,
    offsets: Any,
    maps: Any,
    metric: Any,
    pane: Any,
    flags: Any,
    wanted: int,
    value: Any,
    raw: Any,
    weight: Any,
    low: int,
    lookup: Any,
    table: Any,
    rows: Any,
    free: Any,
    many: Any,
    free_many: Any,
    wide: Any,
    narrow: Any,
    heads: Any,
    below: Any,
    inside: Any,
    told: Any,
) -> Any:
    """Folds samples into their rows one after the other; returns where it ran out of room, or the end.

    The series of a sample is ``maps[offsets[frame] + metric]``, its row
    ``table[lookup[pane - low], series]``. ``before``: boundary before each frame's record; what lies below it
    is late. ``told`` counts late samples and those without a series.
    """
    for frame in range(len(starts) - 1):
        rank, process, offset, boundary = ranks[frame], processes[frame], offsets[frame], before[frame]
        word, bit = process >> 6, np.uint64(1) << np.uint64(process & 63)
        for at in range(max(begin, starts[frame]), starts[frame + 1]):
            if flags[at] & wanted == 0:
                continue
            place = pane[at]
            if place < boundary:
                told[0] += 1
                continue
            series = maps[offset + metric[at]]
            if series < 0:
                told[1] += 1
                continue
            slot = lookup[place - low]
            number = table[slot, series]
            if number < 0:
                if heads[USED_ROWS] >= len(free):
                    return at
                number = free[heads[USED_ROWS]]
                heads[USED_ROWS] += 1
                table[slot, series] = number
                _clear(rows[number])
            row = rows[number]
            left = heads[FREE_LINES] + len(wide) - heads[USED_LINES]
            if left == 0:
                return at
            if row.singles > LONG and row.singles > 2 * row.pairs:
                if left < (row.singles + row.pairs) // PAIRS + 2:
                    return at
                _pack(row, wide, narrow, heads)
            if row.only != process:
                if row.only >= 0:
                    if heads[USED_MANY] >= len(free_many):
                        return at
                    row.many = free_many[heads[USED_MANY]]
                    heads[USED_MANY] += 1
                    many[row.many, :] = 0
                    many[row.many, row.only >> 6] = np.uint64(1) << np.uint64(row.only & 63)
                    row.only = MANY
                if row.only == MANY:
                    many[row.many, word] |= bit
                else:
                    row.only = process
            if _take(row, value[at], raw[at], weight[at], rank):
                _put(row, wide, narrow, heads, _code(value[at], raw[at], below, inside))
    return int(starts[-1])


@compiled
def mark(
    starts: Any,
    before: Any,
    offsets: Any,
    maps: Any,
    metric: Any,
    pane: Any,
    flags: Any,
    wanted: int,
    low: int,
    seen: Any,
) -> Any:
    """Notes in ``seen`` which panes (counted from ``low``) get a sample; arguments as of :func:`fold`."""
    for frame in range(len(starts) - 1):
        boundary, offset = before[frame], offsets[frame]
        for at in range(starts[frame], starts[frame + 1]):
            if flags[at] & wanted and pane[at] >= boundary and maps[offset + metric[at]] >= 0:
                seen[pane[at] - low] = True


@compiled
def gather(chosen: Any, rows: Any, wide: Any, narrow: Any, out: Any) -> Any:
    """Buckets of rows in order, without a change: (position in ``chosen``, bucket, count) into ``out``."""
    longest = 1
    for number in chosen:
        longest = max(longest, rows[number].singles + rows[number].pairs)
    codes, counts = np.empty(longest, np.int64), np.empty(longest, np.int64)
    totals = np.zeros(_SCRATCH, np.int64)
    at = 0
    for place in range(len(chosen)):
        kept = _sum_up(rows[chosen[place]], wide, narrow, codes, counts, totals)
        for some in range(kept):
            out[0, at], out[1, at], out[2, at] = place, codes[some], counts[some]
            at += 1
    return at


@compiled
def let_go(chosen: Any, rows: Any, wide: Any, free_many: Any, heads: Any) -> Any:
    """Gives back the lines of rows, and their bits."""
    for number in chosen:
        _let_go(rows[number], wide, heads)
        if rows[number].only == MANY:
            heads[USED_MANY] -= 1
            free_many[heads[USED_MANY]] = rows[number].many
            rows[number].only = NOBODY


@compiled
def present(chosen: Any, rows: Any, many: Any, out: Any) -> Any:
    """The processes of rows as bits, into rows of ``out`` that are 0."""
    for at in range(len(chosen)):
        row = rows[chosen[at]]
        if row.only == MANY:
            out[at, :] = many[row.many, :]
        elif row.only >= 0:
            out[at, row.only >> 6] = np.uint64(1) << np.uint64(row.only & 63)


@compiled
def fill(chosen: Any, places: Any, codes: Any, counts: Any, rows: Any, wide: Any, heads: Any) -> Any:
    """Puts buckets, as :func:`gather` gave them, into rows without any, packed."""
    at = 0
    while at < len(places):
        end = at
        while end < len(places) and places[end] == places[at]:
            end += 1
        row = rows[chosen[places[at]]]
        _put_pairs(row, wide, heads, codes[at:end], counts[at:end], end - at)
        at = end


@compiled
def read(chosen: Any, rows: Any, whole: Any, floats: Any) -> Any:
    """Columns of rows. ``whole``: count, NaN, infinities, ranks of extremes. ``floats``: weight, sum, mean,
    deviation (both NaN without a weighted finite sample), extremes, first and last."""
    for at in range(len(chosen)):
        row = rows[chosen[at]]
        whole[0, at], whole[1, at], whole[2, at] = row.count, row.nan, row.inf
        whole[3, at], whole[4, at] = row.min_rank, row.max_rank
        floats[0, at], floats[1, at] = row.weight, row.sum
        floats[2, at], floats[3, at] = _moments(row)
        floats[4, at], floats[5, at] = row.min, row.max
        floats[6, at], floats[7, at] = row.first, row.last


@compiled
def _moments(row: Any) -> Any:
    total = row.weight
    if not total > 0.0:
        return np.nan, np.nan
    shift = row.shift
    moved = row.sum1 / total
    variance = max(row.sum2 / total - moved * moved, 0.0)
    if shift != 0:
        mean = math.ldexp(math.ldexp(row.centre, -shift) + moved, shift)
        return mean, math.ldexp(math.sqrt(variance), shift)
    std = math.sqrt(variance)
    lifted = row.sum2_tiny / total
    if lifted > 0.0 and math.sqrt(row.sum2 / total) < TINY:
        apart = math.ldexp(moved, LIFT)
        std = math.ldexp(math.sqrt(max(lifted - apart * apart, 0.0)), -LIFT)
    return row.centre + moved, std


@compiled
def size_of(chosen: Any, rows: Any) -> Any:
    """Codes that the histograms of rows hold, at most."""
    total = 0
    for number in chosen:
        total += rows[number].singles + rows[number].pairs
    return total
