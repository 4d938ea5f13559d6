"""What is normal, from recent finite values: median and a noise that outliers do not move.

The noise is the larger of the scaled median absolute deviation (1.4826 MAD, the standard deviation of normal
noise) and the same from the upper tail (90th percentile less median, over 1.2816), since losses have a long
upper tail. Half of the values may be outliers before the median moves (Rousseeuw and Croux, 1993).
Sums in the order of the values only; no result depends on anything but the list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_LARGEST = 1e308


class Normal(NamedTuple):
    """The level and the noise of some values."""

    level: float
    noise: float


def median(values: Sequence[float]) -> float:
    """The middle value; no overflow near the largest floats.

    >>> median([3.0, 1.0, 2.0, 10.0])
    2.5
    """
    return median_sorted(sorted(values))


def median_sorted(ordered: Sequence[float]) -> float:
    """As :func:`median`, of values already in order."""
    size = len(ordered)
    half = size // 2
    if size % 2:
        return ordered[half]
    return middle(ordered[half - 1], ordered[half])


def middle(first: float, second: float) -> float:
    """The mean of two values, exact for equal ones, finite for finite ones."""
    total = first + second
    return total / 2 if -1.7e308 < total < 1.7e308 else first / 2 + second / 2


def normal(values: Sequence[float]) -> Normal:
    """Level and noise of at least one finite value.

    >>> normal([1.0, 1.0, 1.0, 50.0])
    Normal(level=1.0, noise=0.0)
    """
    ordered = sorted(values)
    level = median_sorted(ordered)
    deviation = 1.4826 * median([abs(value - level) for value in ordered])  # may be infinite near the largest
    upper = ordered[max(0, math.ceil(0.9 * len(ordered)) - 2)]
    return Normal(level, clamp(max(deviation, clamp(upper - level) / 1.2816)))


def clamp(value: float) -> float:
    """A finite float: state is dumped as plain numbers, which JSON has no infinities for."""
    return max(-_LARGEST, min(_LARGEST, value))


def keep(history: list[float], value: float, size: int) -> None:
    """Learns a value; the oldest leaves when there are more than ``size``."""
    history.append(value)
    if len(history) > size:
        del history[: len(history) - size]
