"""Aggregates: exact where they must be, bounded where they may not, whatever the values are."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from driftline.streams import histogram
from driftline.streams.aggregates import Cells, Samples

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


def samples(values: list[float], weights: list[float] | None = None) -> Samples:
    count = len(values)
    return Samples(
        np.array(values),
        np.ones(count) if weights is None else np.array(weights),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
    )


@pytest.mark.parametrize("values", HARD)
def test_mean_and_deviation_of_hard_values(naive: ModuleType, values: list[float]) -> None:
    """Constants give 0, large offsets do not cancel, 1e308 does not overflow."""
    cells = Cells()
    row = cells.allocate(1)
    cells.fold(np.repeat(row, len(values)), samples(values))
    mean, std = cells.mean_and_std(row)
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
    which = np.array([chance.randrange(2) for _ in values])
    whole.fold(rows[which], samples(values))
    buckets = whole.take_buckets(rows)
    for size in (1, 3, 77):
        parts = Cells()
        parts.allocate(2)
        for at in range(0, len(values), size):
            parts.fold(rows[which[at : at + size]], samples(values[at : at + size]))
        for name, column in whole.columns.items():
            assert column[rows].tobytes() == parts.columns[name][rows].tobytes(), name
        for mine, theirs in zip(buckets, parts.take_buckets(rows), strict=True):
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
    cells = Cells(capacity=4)
    first = cells.allocate(3)
    cells.fold(first, samples([1.0, 2.0, 3.0]))
    cells.take_buckets(first)
    cells.release(first)
    many = cells.allocate(300)
    assert len(set(many.tolist())) == 300
    assert not cells.columns["count"][many].any()
