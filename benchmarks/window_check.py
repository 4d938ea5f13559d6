"""Recomputes every window that a tool put out: an oracle of plain NumPy that knows none of the tools.

A stream is ``times_ms`` (when each step was logged) and ``values`` (step x rank x metric). Windows are
``[k*every, k*every + size)``, for every integer k, per rank and metric. What a tool put out is an array of
:data:`ROW`, one for each window as it came.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SIZE_MS = 10_000
EVERY_MS = 1_000
ROW = np.dtype(
    [
        ("series", "i4"),  # rank * metrics + metric
        ("start_ms", "i8"),
        ("count", "i8"),
        ("sum", "f8"),
        ("min", "f8"),
        ("max", "f8"),
        ("mean", "f8"),
    ]
)
RELATIVE = 1e-9
"""Sums may be added in another order; counts and extremes must be the same."""


class Verdict(NamedTuple):
    """``wrong``: of the windows that were put out, those with another number, or that should not be.
    ``doubled``: rows beyond the first of their window. ``missing``: windows that never came."""

    expected: int
    wrong: int
    missing: int
    doubled: int


class Windows(NamedTuple):
    """What is right: for each start the five numbers of every series (the last axis)."""

    start_ms: npt.NDArray[np.int64]
    numbers: dict[str, npt.NDArray[np.float64]]


def expected(times_ms: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> Windows:
    """Every window that has a sample; ``times_ms`` never falls."""
    flat = values.reshape(len(times_ms), -1)
    starts, numbers = [], {name: [] for name in ("count", "sum", "min", "max", "mean")}
    first = (int(times_ms[0]) - SIZE_MS) // EVERY_MS * EVERY_MS
    for start in range(first, int(times_ms[-1]) + 1, EVERY_MS):
        inside = flat[(times_ms >= start) & (times_ms < start + SIZE_MS)]
        if not len(inside):
            continue
        starts.append(start)
        numbers["count"].append(np.full(flat.shape[1], len(inside), np.float64))
        numbers["sum"].append(inside.sum(axis=0))
        numbers["min"].append(inside.min(axis=0))
        numbers["max"].append(inside.max(axis=0))
        numbers["mean"].append(inside.sum(axis=0) / len(inside))
    return Windows(np.array(starts, np.int64), {name: np.stack(rows) for name, rows in numbers.items()})


def check(right: Windows, rows: npt.NDArray[np.void]) -> Verdict:
    """Judges the rows of :data:`ROW` that a tool put out."""
    windows, series = right.numbers["count"].shape
    at = np.searchsorted(right.start_ms, rows["start_ms"])
    at_known = np.minimum(at, windows - 1)
    known = (right.start_ms[at_known] == rows["start_ms"]) & (rows["series"] >= 0) & (rows["series"] < series)
    where = at_known[known], rows["series"][known]
    same = np.ones(int(known.sum()), bool)
    for name, numbers in right.numbers.items():
        tolerance = RELATIVE if name in ("sum", "mean") else 0.0
        same &= np.isclose(rows[name][known], numbers[where], rtol=tolerance, atol=0.0)
    came = np.zeros((windows, series), np.int64)
    np.add.at(came, where, 1)
    return Verdict(
        expected=windows * series,
        wrong=int((~same).sum() + (~known).sum()),
        missing=int((came == 0).sum()),
        doubled=int(np.maximum(came - 1, 0).sum()),
    )
