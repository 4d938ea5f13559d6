"""How sure a number is: standard errors and 95 % intervals, without scipy.

Sources: Wilson (1927), "Probable inference, the law of succession, and statistical inference", JASA 22;
Student's t quantiles from the usual table (97.5 %), beyond 30 degrees of freedom by the Cornish-Fisher
expansion (Abramowitz and Stegun 26.7.5); standard error of a ratio over clusters as in Miller (2024),
arXiv 2411.00640. Sums are exact (``math.fsum``), so the order of items does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Z95 = 1.959963984540054
_T95 = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
    *(2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272),
)


class Estimate(NamedTuple):
    """A value, its standard error and 95 % interval; None where one observation cannot tell."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    size: int


def wilson(successes: int, count: int, *, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion.

    >>> tuple(round(x, 4) for x in wilson(30, 30))
    (0.8865, 1.0)
    """
    if not 0 <= successes <= count or count == 0:
        raise ValueError(f"{successes} of {count} is no proportion")
    p, z2 = successes / count, z * z
    centre = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(p * (1 - p) / count + z2 / (4 * count * count))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == count else min(1.0, centre + half)
    return low, high


def t95(degrees: int) -> float:
    """The 97.5 % quantile of Student's t (two-sided 95 %)."""
    if degrees < 1:
        raise ValueError("Student's t needs at least one degree of freedom")
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z, n = Z95, degrees
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + (z**3 + z) / (4 * n) + second + third


def proportion(successes: int, count: int) -> Estimate:
    """A proportion with sample standard error and Wilson's interval; NaN of nothing."""
    if count == 0:
        return Estimate(math.nan, None, None, None, 0)
    p = successes / count
    stderr = math.sqrt(p * (1 - p) / (count - 1)) if count > 1 else None
    return Estimate(p, stderr, *wilson(successes, count), count)


def mean(values: Sequence[float]) -> Estimate:
    """A mean with standard error sd(ddof=1)/sqrt(n) and the t interval; NaN of nothing."""
    count = len(values)
    if count == 0:
        return Estimate(math.nan, None, None, None, 0)
    centre = _sum(values) / count
    if count == 1:
        return Estimate(centre, None, None, None, 1)
    stderr = math.sqrt(_sum([(v - centre) ** 2 for v in values]) / (count - 1) / count)
    half = t95(count - 1) * stderr
    return Estimate(centre, stderr, centre - half, centre + half, count)


def ratio(totals: Sequence[float], sizes: Sequence[int]) -> Estimate:
    """Sum of totals over sum of sizes, where each pair is one cluster (a text and its tokens).

    The standard error is clustered, sqrt(C/(C-1) sum_c (total_c - value size_c)^2) / sum of sizes, since the
    tokens of one text are not independent; ``size`` is the sum of sizes.
    """
    size, clusters = sum(sizes), len(totals)
    if size == 0:
        return Estimate(math.nan, None, None, None, 0)
    value = _sum(totals) / size
    if clusters == 1:
        return Estimate(value, None, None, None, size)
    spread = _sum([(t - value * n) ** 2 for t, n in zip(totals, sizes, strict=True)])
    stderr = math.sqrt(clusters / (clusters - 1) * spread) / size
    half = t95(clusters - 1) * stderr
    return Estimate(value, stderr, value - half, value + half, size)


def _sum(values: Sequence[float]) -> float:
    """Exact sum; like float addition where ``fsum`` raises (infinities of both signs, overflow)."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)
