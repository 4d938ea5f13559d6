"""Aggregates: exact where they must be, bounded where they may not, whatever the values are."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from driftline.streams import histogram
from driftline.streams.aggregates import DUMPED, I64, Batch, Cells, Placed
from driftline.streams.kernels import fold as fold_kernels
from driftline.streams.kernels import merge as merge_kernels

DENORMAL = 5e-324
HARD = [
    [1.0] * 50,
    [0.1] * 1000,
    [1e300, -1e300, 1.0],
    [1.7e308, 1.7e308, -1.7e308],
    [1e308] * 100,
    [DENORMAL, 2 * DENORMAL, 1e-310],
    [1e9 + n % 2 for n in range(100)],
    [1e15, 1e15 + 1, 1e15 + 2],
    [1e-8, 1e8, -1e8],
    [0.0, -0.0],
    [2.0**k for k in range(-1070, 1023, 7)],
]


def fold(cells: Cells, rows: I64, values: list[float], which: list[int] | None = None) -> None:
    """Folds values of one frame; ``which`` names the row of each by its place in ``rows``."""
    count = len(values)
    metric = np.zeros(count, np.int16) if which is None else np.array(which, np.int16)
    one, none = np.zeros(1, np.int64), np.zeros(1, np.int64)
    batch = Batch(
        starts=np.array([0, count]),
        ranks=one,
        processes=one,
        metric=metric,
        value=np.array(values),
        weight=np.ones(count),
        offsets=one,
        maps=np.arange(len(rows)),
    )
    placed = Placed(np.zeros(count, np.int64), np.ones(count, np.uint8), 1, none)
    assert cells.fold(batch, placed, low=0, lookup=one, table=rows[None, :]) == (0, 0)


@pytest.mark.parametrize("values", HARD)
def test_mean_and_deviation_of_hard_values(naive: ModuleType, values: list[float]) -> None:
    """Constants give 0, large offsets do not cancel, 1e308 does not overflow."""
    cells = Cells()
    row = cells.allocate(1)
    fold(cells, row, values)
    mean, std = cells.read(row)[1][2:4]
    exact = naive.aggregate([naive.Sample(v, 1.0, 0, "p") for v in values])
    largest = max(map(abs, values))
    assert abs(mean[0] - exact["mean"]) <= 4e-16 * largest
    assert std[0] == pytest.approx(exact["std"], rel=1e-9, abs=1e-300)


def test_folding_in_parts_gives_the_same_bits() -> None:
    """Any cut of the samples, one result; the sum is that of a plain loop."""
    chance = random.Random(5)
    values = [chance.choice([chance.gauss(0, 1), 1e300, -3e299, math.nan, 0.0, -0.0]) for _ in range(500)]
    whole = Cells()
    rows = whole.allocate(2)
    which = [chance.randrange(2) for _ in values]
    fold(whole, rows, values, which)
    buckets = whole.buckets(rows)
    for size in (1, 3, 77):
        parts = Cells()
        parts.allocate(2)
        for at in range(0, len(values), size):
            fold(parts, rows, values[at : at + size], which[at : at + size])
        for name in DUMPED:
            assert whole.rows[name][rows].tobytes() == parts.rows[name][rows].tobytes(), name
        for mine, theirs in zip(buckets, parts.buckets(rows), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e300])
def test_bucket_middle_is_within_the_bound(scale: float) -> None:
    chance = np.random.default_rng(3)
    values = np.exp(chance.normal(0, 3, 5000)) * scale * chance.choice([-1, 1], 5000)
    values = values[np.isfinite(values) & (np.abs(values) > 1e-305)]
    middle = histogram.middle(histogram.bucket(values))
    assert np.max(np.abs(middle / values - 1)) < 0.0055


def test_buckets_are_those_of_opentelemetry() -> None:
    """(2**(i/64), 2**((i+1)/64)]: upper end in, by exact arithmetic; order of codes is order of values."""
    values = np.array([1.0, np.nextafter(1.0, 2.0), 2.0, 1.5, 3.75, 0.3, DENORMAL, 1.7e308])
    codes = histogram.bucket(values) - histogram.bucket(np.array([2.0])) + 63
    for value, code in zip(values.tolist(), codes.tolist(), strict=True):
        power = Fraction(value) ** 64
        assert Fraction(2) ** code < power <= Fraction(2) ** (code + 1)
    order = np.array([-1e300, -1.0, -DENORMAL, 0.0, DENORMAL, 1.0, 1e300])
    assert (np.diff(histogram.bucket(order)) > 0).all()


def test_rows_are_used_again_and_grow() -> None:
    cells = Cells()
    first = cells.allocate(3)
    fold(cells, first, [1.0, 2.0, 3.0], [0, 1, 2])
    cells.release(first)
    many = cells.allocate(300)
    assert len(set(many.tolist())) == 300
    assert not cells.rows["count"][many].any()
    assert not len(cells.buckets(many)[0])


def test_a_long_list_of_buckets_is_shortened_without_a_change() -> None:
    """A row that takes 100,000 samples holds their distinct buckets only, and gives the same counts."""
    chance = np.random.default_rng(4)
    values = np.exp(chance.normal(0, 2, 100_000))
    cells = Cells()
    row = cells.allocate(1)
    for part in np.array_split(values, 40):
        fold(cells, row, part.tolist())
    codes, counts = np.unique(histogram.bucket(values), return_counts=True)
    place, bucket, number = cells.buckets(row)
    np.testing.assert_array_equal(bucket, codes)
    np.testing.assert_array_equal(number, counts)
    assert not place.any()
    held = cells.rows[row[0]]
    assert held["singles"] + held["pairs"] <= 2048 + 2500 + 3 * len(codes)


def test_what_a_flood_took_is_given_back() -> None:
    """After thousands of cells are closed, the arrays are small again."""
    cells = Cells()
    cells.release(cells.allocate(10_000))
    assert len(cells.rows) < 100
    assert len(cells.many) < 100


def test_the_kernels_mean_the_same_by_their_constants() -> None:
    """Each file has its own (numba's cache would not notice a change in another's): they must be equal."""
    for name in ("BIG", "SHIFT", "TINY", "LIFT", "_PER_OCTAVE", "_OFFSET", "_ZERO"):
        assert getattr(fold_kernels, name) == getattr(merge_kernels, name), name
    assert fold_kernels._PER_OCTAVE == histogram.PER_OCTAVE
    assert (fold_kernels._OFFSET, fold_kernels._ZERO) == (histogram._OFFSET, histogram._ZERO)
