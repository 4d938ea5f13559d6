"""Aggregates that come with driftline, by name; each keeps the contract of ``driftline.aggregate``.

    geometric_mean      exp of the weighted mean of logarithms; 0 with a zero, none with a negative value
    trimmed_mean        unweighted mean without the lowest and highest ``part`` of the samples (default 0.1)

Trimming works on the histogram's buckets (0.55 % wide), so its state is bounded by the buckets in use.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from driftline.aggregate import Floats
from driftline.streams import histogram
from driftline.streams.aggregates import I64

BUILT_IN = {
    "geometric_mean": "driftline.streams.named_aggregates:GeometricMean",
    "trimmed_mean": "driftline.streams.named_aggregates:TrimmedMean",
}
"""Short names of targets."""


class GeometricMean:
    """exp(sum(w * log(x)) / sum(w))."""

    version = "1"

    def __init__(self) -> None:
        self._weight = self._logs = 0.0
        self._zero = self._negative = False

    def update(self, values: Floats, weights: Floats) -> None:
        counted = weights > 0
        values, weights = values[counted], weights[counted]
        self._zero |= bool((values == 0).any())
        self._negative |= bool((values < 0).any())
        above = values > 0
        self._weight += math.fsum(weights.tolist())
        self._logs += math.fsum((weights[above] * np.log(values[above])).tolist())

    def merge(self, other: GeometricMean) -> None:
        self._weight += other._weight
        self._logs += other._logs
        self._zero |= other._zero
        self._negative |= other._negative

    def value(self) -> float | None:
        if self._negative or not self._weight:
            return None
        return 0.0 if self._zero else math.exp(self._logs / self._weight)

    def dump(self) -> Any:
        return [self._weight, self._logs, self._zero, self._negative]

    def load(self, data: Any) -> None:
        self._weight, self._logs, self._zero, self._negative = data


class _Buckets:
    """Sums by histogram bucket, in the order of buckets."""

    def __init__(self) -> None:
        self.codes: I64 = np.empty(0, np.int64)
        self.sums: Floats = np.empty((0, 2))

    def add(self, codes: I64, sums: Floats) -> None:
        """Rows of ``sums`` are added to those of their bucket, in order."""
        self.add_all([(codes, sums)])

    def add_all(self, parts: list[tuple[I64, Floats]]) -> None:
        """The same for many at once."""
        codes = np.concatenate([self.codes, *(codes for codes, _ in parts)])
        self.codes, at = np.unique(codes, return_inverse=True)
        added = np.zeros((len(self.codes), 2))
        np.add.at(added, at, np.concatenate([self.sums, *(sums for _, sums in parts)]))
        self.sums = added


class TrimmedMean:
    """Mean of what is left when ``part`` of the samples is cut off at either end."""

    version = "1"

    def __init__(self, part: float = 0.1) -> None:
        if not 0 <= part < 0.5:
            raise ValueError(f"part is {part!r}: write at least 0 and less than 0.5")
        self._part = part
        self._buckets = _Buckets()

    def update(self, values: Floats, weights: Floats) -> None:
        self._buckets.add(histogram.bucket(values), np.stack([np.ones(len(values)), values], axis=1))

    def merge(self, other: TrimmedMean) -> None:
        self.merge_all([other])

    def merge_all(self, others: list[TrimmedMean]) -> None:
        """Many at once: a window may have hundreds of panes."""
        self._buckets.add_all([(other._buckets.codes, other._buckets.sums) for other in others])

    def value(self) -> float | None:
        counts, sums = self._buckets.sums[:, 0], self._buckets.sums[:, 1]
        total = float(counts.sum())
        if not total:
            return None
        high = np.cumsum(counts)
        cut = self._part * total
        left = np.clip(np.minimum(high, total - cut) - np.maximum(high - counts, cut), 0.0, None)
        some = left > 0
        return float((sums[some] / counts[some] * left[some]).sum() / left.sum())

    def dump(self) -> Any:
        return [self._buckets.codes, self._buckets.sums]

    def load(self, data: Any) -> None:
        self._buckets.codes, self._buckets.sums = data


class WeightedQuantiles:
    """Nearest-rank quantiles by weight: the least bucket below which lies ``q`` of all weight.

    Within the histogram's 0.55 %, inside the smallest and largest value with a weight. Gives several values;
    that is why it is asked for by the setting ``weighted_quantiles`` and not as an aggregate.
    """

    def __init__(self, quantiles: list[float]) -> None:
        self._quantiles = quantiles
        self._buckets = _Buckets()
        self._least, self._most = math.inf, -math.inf

    def update(self, values: Floats, weights: Floats) -> None:
        counted = weights > 0
        values, weights = values[counted], weights[counted]
        if len(values):
            self._buckets.add(histogram.bucket(values), np.stack([weights, weights], axis=1))
            self._least = min(self._least, float(values.min()))
            self._most = max(self._most, float(values.max()))

    def merge(self, other: WeightedQuantiles) -> None:
        self.merge_all([other])

    def merge_all(self, others: list[WeightedQuantiles]) -> None:
        """Many at once: a window may have hundreds of panes."""
        self._buckets.add_all([(other._buckets.codes, other._buckets.sums) for other in others])
        self._least = min([self._least, *(other._least for other in others)])
        self._most = max([self._most, *(other._most for other in others)])

    def values(self) -> list[float | None]:
        if not len(self._buckets.codes):
            return [None for _ in self._quantiles]
        below = np.cumsum(self._buckets.sums[:, 0])
        targets = np.array(self._quantiles) * below[-1] * (1 - 1e-12)
        at = np.minimum(np.searchsorted(below, targets), len(below) - 1)
        middle = histogram.middle(self._buckets.codes[at])
        return [float(value) for value in np.clip(middle, self._least, self._most)]

    def value(self) -> float | None:
        """The first quantile."""
        return self.values()[0]

    def dump(self) -> Any:
        return [self._buckets.codes, self._buckets.sums, self._least, self._most]

    def load(self, data: Any) -> None:
        self._buckets.codes, self._buckets.sums, self._least, self._most = data
