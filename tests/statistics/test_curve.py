"""``curve``: smoothed rightly, thinned without losing a spike or a NaN, whatever the run is called."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


def test_thinning_a_million_points_keeps_the_spike_and_the_nan(answers: Any) -> None:
    """Case S15: 1,000,000 points with one spike and one NaN, 1,000 asked."""
    values = np.sin(np.arange(1_000_000) / 9_000)
    values[123_456], values[777_777], values[3], values[999_990] = 50.0, math.nan, -math.inf, -40.0
    answers.curves(("r", "loss", np.arange(1_000_000), values))
    kept = answers.ask("FROM curve('r', 'loss', points := 1000)")
    assert 300 <= len(kept) <= 1000
    by_step = {row["step"]: row for row in kept}
    assert by_step[123_456]["value"] == 50.0
    assert math.isnan(by_step[777_777]["value"])
    assert by_step[777_777]["nan"] == 1
    assert by_step[3]["value"] == -math.inf
    assert by_step[999_990]["value"] == -40.0
    assert [row["step"] for row in kept] == sorted(by_step)
    assert kept[0]["step"] == 0
    assert kept[-1]["step"] == 999_999
    assert sum(row["bucket_nan"] for row in kept if row["nan"]) == 1
    ends = {row["step"]: row["bucket_points"] for row in kept}
    assert all(6_000 < points < 7_000 for points in ends.values())


def test_every_bucket_keeps_its_extremes(answers: Any) -> None:
    values = np.random.default_rng(1).normal(size=5_000)
    answers.curves(("r", "m", np.arange(5_000) * 10, values))
    kept = answers.ask("SELECT step, value FROM curve('r', 'm', points := 100)")
    shown = {row["step"] // 10 for row in kept}
    at = np.arange(5_000) * 25 // 5_000
    for bucket in range(25):
        (inside,) = np.nonzero(at == bucket)
        want = {inside[0], inside[-1], inside[values[inside].argmin()], inside[values[inside].argmax()]}
        assert want <= shown
    assert len(kept) <= 100


def test_few_points_are_not_thinned(answers: Any) -> None:
    answers.curves(("r", "m", [1, 5, 9], [1.0, math.nan, 3.0]))
    kept = answers.ask("SELECT step, value, bucket_points FROM curve('r', 'm', points := 3)")
    assert [(row["step"], row["bucket_points"]) for row in kept] == [(1, 1), (5, 1), (9, 1)]


@pytest.mark.parametrize("weight", [0.01, 0.5, 0.9, 0.99, 0.9999])
def test_exponential_smoothing_is_debiased_and_skips_nan(answers: Any, weight: float) -> None:
    values = np.random.default_rng(2).normal(size=3_000) + 5
    values[100], values[2_000] = math.nan, math.inf
    answers.curves(("r", "m", np.arange(3_000) * 7, values))
    found = answers.ask("SELECT smoothed FROM curve('r', 'm', smooth := ?)", [weight])
    above = below = 0.0
    for row, value in zip(found, values, strict=True):
        if not math.isfinite(value):
            assert row["smoothed"] is None
            continue
        above, below = weight * above + value, weight * below + 1
        assert row["smoothed"] == pytest.approx(above / below, rel=1e-9)


def test_a_window_of_steps_is_the_mean_of_the_finite_points_in_it(answers: Any) -> None:
    answers.curves(("r", "m", [0, 1, 2, 10, 11], [1.0, 3.0, math.nan, 7.0, 9.0]))
    found = answers.ask("SELECT smoothed FROM curve('r', 'm', smooth := 3)")
    assert [row["smoothed"] for row in found] == [1.0, 2.0, None, 7.0, 8.0]


def test_a_name_stands_for_its_newest_run_and_an_id_for_itself(answers: Any) -> None:
    """Case 3: two launches under one name; and a run whose name is the id of another."""
    answers.table("processes", [
        {"run": "r1", "event": "started", "name": "exp", "time": 10, "process": "a"},
        {"run": "r2", "event": "started", "name": "exp", "time": 20, "process": "b"},
        {"run": "r1", "event": "started", "name": "exp", "time": 30, "process": "c"},
        {"run": "r3", "event": "started", "name": "r1", "time": 40, "process": "d"},
    ])  # fmt: skip
    answers.curves(("r1", "m", [0], [1.0]), ("r2", "m", [0], [2.0]), ("r3", "m", [0], [3.0]))
    for asked, value in (("exp", 2.0), ("r1", 1.0), ("r2", 2.0), ("r3", 3.0)):
        assert answers.one("SELECT value FROM curve(?, 'm')", [asked])["value"] == value
    assert answers.ask("FROM curve('nobody', 'm')") == []
