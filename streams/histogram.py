"""Exponential histogram buckets, as OpenTelemetry defines them, at one fixed scale.

Bucket ``i`` of a positive value x holds 2**(i/64) < x <= 2**((i+1)/64) (scale 6). The index comes from the
bits of the float (what ``frexp`` gives) and a table of exact integer boundaries: no logarithm, so it is
the same on every machine. A bucket's middle is within 0.55 % of its values for any distribution: the scale
never coarsens. Negative values mirror positive ones, zero has a bucket of its own. Codes grow with the value,
so that quantiles are a search in running counts, and histograms merge by adding counts, exactly.

Bounds: codes lie in [0, 2**19); a series of n finite samples has at most n buckets.

>>> float(middle(bucket(np.array([0.0])))[0])
0.0
>>> int(bucket(np.array([2.0]))[0]) + 1 == int(bucket(np.array([2.0000001]))[0])
True
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from driftline.streams.kernels.fold import codes_of

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

SCALE = 6
PER_OCTAVE = 1 << SCALE
CODE_BITS = 19
_ZERO = 1 << (CODE_BITS - 1)
_OFFSET = 1100 * PER_OCTAVE  # makes every index positive, denormals too
_SLICE_BITS = 40  # a slice of 2**40 mantissas (1/4096 of an octave) holds at most one boundary
_MANTISSA = (1 << 52) - 1


def _boundary(k: int) -> int:
    """floor(2**52 * (2**(k/64) - 1)): the exact boundary as 52 mantissa bits."""
    power = 1 << (k + 52 * PER_OCTAVE)
    for _ in range(SCALE):
        power = math.isqrt(power)
    return power - (1 << 52)


def _tables() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    bounds = [_boundary(k) for k in range(PER_OCTAVE)]
    below = np.zeros(4096, np.int64)
    inside = np.full(4096, _MANTISSA, np.int64)
    for at in range(4096):
        low, high = at << _SLICE_BITS, (at + 1) << _SLICE_BITS
        below[at] = sum(b < low for b in bounds)
        for b in bounds:
            if low <= b < high:
                inside[at] = b
    return below, inside


BELOW, INSIDE = _tables()
MIDDLE: F64 = np.array([2.0 ** ((j + 0.5) / PER_OCTAVE) for j in range(PER_OCTAVE)])


def bucket(values: F64) -> I64:
    """Bucket codes of finite values."""
    held = np.ascontiguousarray(values, np.float64)
    return np.asarray(codes_of(held, held.view(np.int64), BELOW, INSIDE), np.int64)


def middle(codes: I64) -> F64:
    """A value in the middle of each bucket (geometric mean of its ends)."""
    signed: I64 = codes - _ZERO
    index = np.abs(signed) - _OFFSET
    size = np.ldexp(MIDDLE[index & (PER_OCTAVE - 1)], (index >> SCALE).astype(np.int32))
    return np.asarray(np.where(signed == 0, 0.0, np.where(signed < 0, -size, size)))


def rank_of(quantile: float, count: int) -> int:
    """Which of ``count`` sorted samples (from 1) is the quantile: nearest rank, no interpolation.

    >>> rank_of(0.5, 4), rank_of(0.95, 20), rank_of(0.0, 3)
    (2, 19, 1)
    """
    return min(max(math.ceil(quantile * count - 1e-9), 1), count)


def ranks_of(quantile: float, counts: I64) -> I64:
    """:func:`rank_of` for many counts at once."""
    ranks: I64 = np.clip(np.ceil(quantile * counts - 1e-9).astype(np.int64), 1, np.maximum(counts, 1))
    return ranks
