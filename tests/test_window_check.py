"""The checker of ``benchmarks/windows.py``: what it says of a tool must be true."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "window_check.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("window_check", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


checker = load()
TIMES_MS = np.array([0, 9_999, 10_000, 25_000], np.int64)
VALUES = np.array([[[1.0], [5.0]], [[2.0], [6.0]], [[4.0], [-3.0]], [[8.0], [7.0]]])
"""Four steps of two ranks with one metric."""


def by_hand() -> Any:
    """All windows of the stream, sample by sample."""
    rows = []
    for start in range(-9_000, 26_000, 1_000):
        for rank in range(2):
            inside = [
                values[rank][0]
                for at, values in zip(TIMES_MS.tolist(), VALUES.tolist(), strict=True)
                if start <= at < start + 10_000
            ]
            if inside:
                five = (len(inside), sum(inside), min(inside), max(inside), sum(inside) / len(inside))
                rows.append((rank, start, *five))
    return np.array(rows, checker.ROW)


def verdict(rows: Any) -> tuple[int, int, int]:
    """Wrong, missing, doubled."""
    found = checker.check(checker.expected(TIMES_MS, VALUES), rows)
    return found.wrong, found.missing, found.doubled


def test_windows_that_are_all_right_are_found_right_in_any_order() -> None:
    """Nothing is said of a tool that put out each window once, whatever the order."""
    rows = by_hand()
    assert len(rows) == 2 * (20 + 10)  # starts -9 s to 10 s, and 16 s to 25 s
    assert verdict(rows) == (0, 0, 0)
    assert verdict(rows[::-1]) == (0, 0, 0)


@pytest.mark.parametrize("field", ["count", "sum", "min", "max", "mean"])
def test_each_number_of_a_window_counts(field: str) -> None:
    """One number off in one window makes one wrong window."""
    rows = by_hand()
    rows[field][7] += 1
    assert verdict(rows) == (1, 0, 0)


def test_sums_in_another_order_are_right_and_nan_is_wrong() -> None:
    """Rounding is forgiven in sums and means, never in extremes; NaN is never right."""
    rows = by_hand()
    rows["sum"] *= 1 + 1e-14
    assert verdict(rows) == (0, 0, 0)
    rows["max"][3] *= 1 + 1e-14
    rows["mean"][4] = np.nan
    assert verdict(rows) == (2, 0, 0)


def test_missing_doubled_and_unknown_windows_are_counted() -> None:
    """One that never came is missing; a second row of one is doubled; one that should not be is wrong."""
    rows = by_hand()
    assert verdict(rows[:-3]) == (0, 3, 0)
    assert verdict(np.concatenate([rows, rows[:2], rows[:1]])) == (0, 0, 3)
    odd = rows[:3].copy()
    odd["start_ms"][0] = 500  # no window begins there
    odd["start_ms"][1] = 99_000
    odd["series"][2] = 2
    assert verdict(np.concatenate([rows, odd])) == (3, 0, 0)
    assert verdict(rows[:0]) == (0, len(rows), 0)
