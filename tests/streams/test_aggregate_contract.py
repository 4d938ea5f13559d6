"""Custom aggregates keep one contract: those that come with driftline do, and what breaks it is named."""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from driftline.streams.named_aggregates import GeometricMean, TrimmedMean, WeightedQuantiles
from driftline.testing import check_aggregate

BUILT_IN: list[tuple[Callable[[], Any], float]] = [
    (GeometricMean, 1e-9),
    (TrimmedMean, 1e-6),  # what is far apart cancels when buckets are added
    (functools.partial(TrimmedMean, part=0.0), 1e-6),
    (functools.partial(WeightedQuantiles, [0.5]), 1e-9),
    (functools.partial(WeightedQuantiles, [0.99, 0.5]), 1e-9),
]


@pytest.mark.parametrize(("make", "tolerance"), BUILT_IN)
def test_those_that_come_with_driftline_keep_it(make: Callable[[], Any], tolerance: float) -> None:
    """Halves merged are the whole, in any grouping; dumped and loaded it goes on; empty has no value."""
    check_aggregate(make, tolerance=tolerance)


class Mean:
    """A right one; each class below breaks one promise."""

    def __init__(self) -> None:
        self.sum, self.weight = 0.0, 0.0

    def update(self, values: Any, weights: Any) -> None:
        self.sum += float((values * weights).sum())
        self.weight += float(weights.sum())

    def merge(self, other: Any) -> None:
        self.sum, self.weight = self.sum + other.sum, self.weight + other.weight

    def value(self) -> Any:
        return self.sum / self.weight if self.weight else None

    def dump(self) -> Any:
        return {"sum": self.sum, "weight": self.weight}

    def load(self, data: Any) -> None:
        self.sum, self.weight = data["sum"], data["weight"]


class ForgetsTheOther(Mean):
    def merge(self, other: Any) -> None: ...


class AverageOfAverages(Mean):
    def merge(self, other: Any) -> None:
        values = [v for v in (self.value(), other.value()) if v is not None]
        self.sum, self.weight = sum(values), float(len(values))


class ZeroWhenEmpty(Mean):
    def value(self) -> Any:
        return self.sum / self.weight if self.weight else 0.0


class DumpsHalf(Mean):
    def load(self, data: Any) -> None:
        self.sum, self.weight = data["sum"], 1.0


class DumpsNumPy(Mean):
    def dump(self) -> Any:
        return {"sum": np.float64(self.sum), "weight": self.weight}


class TakesTheOtherApart(Mean):
    def merge(self, other: Any) -> None:
        super().merge(other)
        other.sum = 0.0


class ChangesItsArguments(Mean):
    def update(self, values: Any, weights: Any) -> None:
        super().update(values, weights)
        values *= 2.0


class RemembersCalls(Mean):
    calls = 0

    def value(self) -> Any:
        type(self).calls += 1
        return self.calls


class KeepsTheOthers(Mean):
    """Its parts are shared with those that were merged into it."""

    def __init__(self) -> None:
        self.parts: list[list[float]] = []

    def update(self, values: Any, weights: Any) -> None:
        if not self.parts:
            self.parts.append([])
        self.parts[-1] += (values * 1.0).tolist()

    def merge(self, other: Any) -> None:
        self.parts += other.parts

    def value(self) -> Any:
        every = [value for part in self.parts for value in part]
        return max(every) if every else math.nan

    def dump(self) -> Any:
        return [list(part) for part in self.parts]

    def load(self, data: Any) -> None:
        self.parts = [list(part) for part in data]


class SaysText(Mean):
    def value(self) -> Any:
        return None if not self.weight else str(super().value())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (ForgetsTheOther, "merged, gave"),
        (AverageOfAverages, "merged, gave"),
        (ZeroWhenEmpty, "without a sample"),
        (DumpsHalf, "load"),
        (DumpsNumPy, "numpy.float64"),
        (TakesTheOtherApart, "merged into another one changed"),
        (ChangesItsArguments, "changed its arguments"),
        (RemembersCalls, "without a sample"),
        (KeepsTheOthers, "merged into another one changed"),
        (SaysText, "float or None"),
    ],
)
def test_what_breaks_the_contract_is_named(broken: Callable[[], Any], words: str) -> None:
    """Each class breaks one promise, and the check says which."""
    with pytest.raises(AssertionError, match=words):
        check_aggregate(broken)


def test_the_class_that_the_broken_ones_come_from_keeps_it() -> None:
    """So what is named above is what they broke. (Values far apart cancel in a weighted sum.)"""
    check_aggregate(Mean, tolerance=1e-6)


def test_a_trimmed_mean_leaves_out_what_lies_far_out() -> None:
    """A fifth at either end, within the histogram's bound, against the sorted values."""
    values = np.array([float(n) for n in range(1, 101)] + [1e9] * 3)
    made = TrimmedMean(0.2)
    made.update(values, np.ones(len(values)))
    cut = 0.2 * len(values)
    inner = statistics.fmean(sorted(values)[math.ceil(cut) : len(values) - math.ceil(cut)])
    assert made.value() == pytest.approx(inner, rel=0.01)


def test_a_geometric_mean_is_that_of_growth() -> None:
    """2 and 8 are on average 4; a zero makes it 0, what is negative makes it none; weights count."""
    made = GeometricMean()
    made.update(np.array([2.0, 8.0]), np.ones(2))
    assert made.value() == pytest.approx(4.0)
    made.update(np.array([2.0]), np.array([1e9]))
    assert made.value() == pytest.approx(2.0)
    made.update(np.array([0.0]), np.ones(1))
    assert made.value() == 0.0
    made.update(np.array([-1.0]), np.ones(1))
    assert made.value() is None


def test_the_example_of_the_page_keeps_the_contract() -> None:
    """What is copied from docs/windows.md works."""
    page = (Path(__file__).parents[2] / "docs" / "windows.md").read_text()
    (code,) = re.findall(r"```python\n(class Gini:.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    check_aggregate(names["Gini"])
    made = names["Gini"]()
    made.update(np.array([1.0, 1.0, 1.0, 5.0]), np.ones(4))
    assert made.value() == pytest.approx(0.375)
