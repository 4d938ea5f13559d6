"""The formulas of docs/analysis.md in numpy, written from the text and not from the SQL.

Each takes many series at once, one a row, so that a calibration of thousands of them takes a second.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def t_p(t: float, df: float) -> float:
    """Two-sided p of Student's t: the density integrated numerically in x = tan(u)."""
    u = np.linspace(math.atan(abs(t)), math.pi / 2, 400_001)[:-1]
    x = np.tan(u)
    log = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    density = np.exp(log - (df + 1) / 2 * np.log1p(x * x / df)) * (1 + x * x)
    return float(min(1.0, 2 * np.sum((density[1:] + density[:-1]) / 2 * np.diff(u))))


def t_95(df: Floats) -> Floats:
    """97.5th percentile of Student's t by bisection on a grid of 1/df, between them straight."""
    grid, ends = _quantiles()
    return np.interp(1 / df, grid, ends)


@functools.cache
def _quantiles() -> tuple[Floats, list[float]]:
    grid = np.linspace(1e-6, 1.0, 60)
    ends = []
    for one in grid:
        low, high = 1.9, 13.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _tail(middle, 1 / one) > 0.05 else (low, middle)
        ends.append(low)
    return grid, ends


def _tail(t: float, df: float) -> float:
    u = np.linspace(math.atan(t / math.sqrt(df)), math.pi / 2, 2001)
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2)) / 2
    return float(np.trapezoid(np.cos(u) ** (df - 1), u) / whole)


def blocks(series: Floats, count: int = 20, middle: Callable[..., Floats] = np.mean) -> Floats:
    """Means (or medians) of ``count`` blocks of neighbours (of each point where there are fewer)."""
    n = series.shape[1]
    count = min(count, n)
    at = np.arange(n) * count // n
    return np.stack([middle(series[:, at == block], axis=1) for block in range(count)], 1)


class Mean(NamedTuple):
    mean: Floats
    se: Floats
    effective: Floats


def mean_of_difference(series: Floats) -> Mean:
    """The mean, its standard error and the effective number of blocks."""
    b = blocks(series)
    m = b.shape[1]
    x = np.arange(m) - (m - 1) / 2
    slope = (b * x).sum(1) / (x * x).sum()
    e = b - b.mean(1, keepdims=True) - slope[:, None] * x
    rest = (e * e).sum(1)
    lag1 = (e[:, 1:] * e[:, :-1]).sum(1) / rest
    rho = np.clip((m * lag1 + 3) / (m - 4), 0, 0.999)
    effective = np.maximum(1.2, m * (1 - rho) / (1 + rho))
    se = np.sqrt(rest / (m - np.minimum(2 * m / effective, 0.75 * m)) / effective)
    return Mean(series.mean(1), se, effective)


class Slope(NamedTuple):
    slope: Floats
    low: Floats
    high: Floats
    level: Floats
    variance: Floats


def theil_sen(series: Floats) -> Slope:
    """Slope per point with its interval, and the line at the last point, for up to 400 points a row."""
    b = blocks(series, middle=np.median)
    m, n = b.shape[1], series.shape[1]
    x = blocks(np.arange(n, dtype=float)[None, :])[0]
    i, j = np.triu_indices(m, 1)
    slopes = np.sort((b[:, j] - b[:, i]) / (x[j] - x[i]), axis=1)
    pairs, slope = slopes.shape[1], np.median(slopes, axis=1)
    e = b - slope[:, None] * x
    middle = np.median(e, axis=1)
    spread = 1.4826 * np.median(np.abs(e - middle[:, None]), axis=1)
    clipped = np.clip(e - middle[:, None], -3 * spread[:, None], 3 * spread[:, None])
    c = clipped - clipped.mean(1, keepdims=True)
    rest = (c * c).sum(1)
    rho = np.clip((m * (c[:, 1:] * c[:, :-1]).sum(1) / rest + 2) / (m - 4), 0, 0.97)
    wide = (1 + rho) / (1 - rho)
    reach = 1.96 * np.sqrt(m * (m - 1) * (2 * m + 5) / 18 * wide)
    normal = 1.96 * np.sqrt(wide * rest / np.maximum(m - 2 * wide, m / 4) / ((x - x.mean()) ** 2).sum())
    rows = np.arange(len(b))
    low = slopes[rows, np.floor(np.maximum(0, (pairs - reach) / 2)).astype(int)]
    high = slopes[rows, np.ceil(np.minimum(pairs - 1, (pairs + reach) / 2)).astype(int)]
    enough = reach < pairs - 2
    low, high = np.where(enough, low, slope - normal), np.where(enough, high, slope + normal)
    return Slope(slope, low, high, middle + slope * (n - 1), rest / m * wide / m)


def forecast(series: Floats, ahead: int) -> tuple[Floats, Floats]:
    """The line ``ahead`` points after the last one, and half its 95 % interval (no bend)."""
    s, n = theil_sen(series), series.shape[1]
    fitted = s.level[:, None] + s.slope[:, None] * (np.arange(n) - (n - 1))
    noise = 1.4826 * np.median(np.abs(series - fitted), axis=1)
    far = (n - 1 + ahead) - (n - 1) / 2
    within = np.sqrt((1.96 * noise) ** 2 + 1.96**2 * s.variance + ((s.high - s.low) / 2 * far) ** 2)
    return s.level + s.slope * ahead, within


def fallen(series: Floats) -> NDArray[np.bool_]:
    """Whether the level is below its best one, where more is better."""
    b = blocks(series, 40, np.median)
    levels = np.stack([b[:, at - 3 : at + 1].mean(1) for at in range(3, b.shape[1])], 1)
    change = np.diff(b, axis=1)
    off = np.abs(change - np.median(change, axis=1, keepdims=True))
    noise = np.maximum(1.4826 * np.median(off, axis=1), 0.5 * np.quantile(off, 0.9, axis=1)) / math.sqrt(2)
    se, top = noise * math.sqrt(2 / 4), levels.max(1)
    lately = levels[:, -(max(4, b.shape[1] // 4) - 3) :].max(1)
    return np.asarray((top - levels[:, -1] > 8 * se) | (top - lately > 4 * se))


class Related(NamedTuple):
    r: Floats
    effective: Floats
    t: Floats


def related(a: Floats, b: Floats) -> Related:
    """Rank correlation of the changes, with the effective number of changes and Student's t."""
    x, y = (_centered_ranks(np.diff(series, axis=1)) for series in (a, b))
    n = x.shape[1]
    sx, sy = (x * x).sum(1), (y * y).sum(1)
    r = (x * y).sum(1) / np.sqrt(sx * sy)
    wide = np.ones(len(x))
    for k in range(1, min(21, n)):
        rx, ry = (x[:, k:] * x[:, :-k]).sum(1) / sx, (y[:, k:] * y[:, :-k]).sum(1) / sy
        wide += 2 * (1 - k / n) * rx * ry
    effective = np.maximum(4, n / np.maximum(1, wide))
    return Related(r, effective, r * np.sqrt((effective - 2) / (1 - r * r)))


def _centered_ranks(rows: Floats) -> Floats:
    """Ranks of each row's values (no ties expected), minus their mean."""
    return np.argsort(np.argsort(rows, axis=1), axis=1) - (rows.shape[1] - 1) / 2


def ar1(random: np.random.Generator, rows: int, n: int, rho: float) -> Floats:
    """AR(1) noise of unit variance, begun in its stationary state."""
    noise = random.normal(size=(rows, n))
    series = np.empty_like(noise)
    series[:, 0] = noise[:, 0]
    for at in range(1, n):
        series[:, at] = rho * series[:, at - 1] + math.sqrt(1 - rho * rho) * noise[:, at]
    return series
