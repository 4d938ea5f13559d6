"""What is normal: a noise in standard deviations, which outliers do not move."""

from __future__ import annotations

import random

import pytest

from driftline.streams.detectors.robust import normal


@pytest.mark.parametrize("outliers", [0, 20])
def test_the_noise_of_normal_values_is_their_standard_deviation(outliers: int) -> None:
    """Thresholds in "robust sigmas" mean sigmas; a tenth of wild values below does not change that."""
    chance = random.Random(7)
    values = [chance.gauss(5.0, 2.0) for _ in range(400)]
    values[:outliers] = [-1e6] * outliers
    found = normal(values)
    assert found.level == pytest.approx(5.0, abs=0.3)
    assert found.noise == pytest.approx(2.0, rel=0.15)


def test_the_noise_of_values_that_are_flat_above_is_that_of_their_spread() -> None:
    """The median deviation, scaled: 1.4826 for values one apart on both sides."""
    assert normal([4.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0, 6.0]).noise == pytest.approx(1.4826)
