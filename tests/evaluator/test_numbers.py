"""Numbers carry how sure they are, and merging parts gives the whole."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from driftline.evaluator import statistics
from driftline.evaluator.metrics import ExactMatch, ItemOutcome, Perplexity, ResponseLength
from driftline.events import Metric, to_float


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # R: binom::binom.confint(x, n, methods="wilson"), and the values of evaluation-facts (AIME24)
        (15, 30, 0.3315, 0.6685),
        (30, 30, 0.8865, 1.0),
        (0, 10, 0.0, 0.2775),
        (1, 10, 0.0179, 0.4042),
        (8, 10, 0.4902, 0.9433),
        (81, 263, 0.2553, 0.3662),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson(successes: int, count: int, low: float, high: float) -> None:
    assert statistics.wilson(successes, count) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("successes", "count"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_of_no_proportion(successes: int, count: int) -> None:
    with pytest.raises(ValueError):
        statistics.wilson(successes, count)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (10, 2.2281), (30, 2.0423), (31, 2.0395), (60, 2.0003), (1000, 1.9623)],
)
def test_student(degrees: int, quantile: float) -> None:
    assert statistics.t95(degrees) == pytest.approx(quantile, abs=5e-5)


def test_mean_with_its_interval() -> None:
    got = statistics.mean([2, 4, 4, 4, 5, 5, 7, 9])
    assert got.value == 5
    assert got.stderr == pytest.approx(math.sqrt(32 / 7 / 8))
    assert got.high == pytest.approx(5 + 2.364624 * math.sqrt(32 / 7 / 8))


@pytest.mark.parametrize("values", [[], [3.0]])
def test_too_little_to_tell(values: list[float]) -> None:
    got = statistics.mean(values)
    assert (got.stderr, got.low, got.high) == (None, None, None)


def outcome(status: Any = "correct", **more: Any) -> ItemOutcome:
    return ItemOutcome(item="i", status=status, **more)


def filled(accumulator: Any, outcomes: list[ItemOutcome]) -> Metric:
    for one in outcomes:
        accumulator.update(one)
    return accumulator.compute()  # type: ignore[no-any-return]


def test_perplexity_is_weighted_by_tokens() -> None:
    """Two texts, losses 3 over 12 tokens and 3 over 4: exp(6/16), not the mean of both perplexities."""
    outcomes = [
        outcome("scored", loglikelihood=-3.0, tokens=12),
        outcome("scored", loglikelihood=-3.0, tokens=4),
    ]
    got = filled(Perplexity(), outcomes)
    assert got.value == pytest.approx(math.exp(6 / 16))
    assert got.count == 16
    assert to_float(got.low or 0) < to_float(got.value) < to_float(got.high or 0)


def test_perplexity_interval_is_clustered_by_text() -> None:
    """C/(C-1) sum (nll_c - L n_c)^2, worked by hand for two texts."""
    outcomes = [
        outcome("scored", loglikelihood=-3.0, tokens=12),
        outcome("scored", loglikelihood=-3.0, tokens=4),
    ]
    got = filled(Perplexity(), outcomes)
    loss = 6 / 16
    wanted = math.sqrt(2 * ((3 - loss * 12) ** 2 + (3 - loss * 4) ** 2)) / 16
    assert got.stderr == pytest.approx(math.exp(loss) * wanted)


@pytest.mark.parametrize(
    ("loglikelihood", "value"), [(math.nan, "NaN"), (-math.inf, "Infinity"), (-1e9, "Infinity")]
)
def test_a_broken_model_has_a_broken_perplexity_not_none(loglikelihood: float, value: str) -> None:
    outcomes = [
        outcome("scored", loglikelihood=loglikelihood, tokens=1),
        outcome("scored", loglikelihood=-1.0, tokens=1),
    ]
    assert filled(Perplexity(), outcomes).value == value


def test_items_without_a_verdict_are_not_counted_as_wrong() -> None:
    statuses = [
        "correct",
        "wrong",
        "no_answer",
        "truncated",
        "grader_error",
        "grader_timeout",
        "gold_unparseable",
    ]
    got = filled(ExactMatch(), [outcome(status) for status in statuses])
    assert (got.value, got.count) == (0.25, 4)


def test_nothing_judged_is_nan_not_zero() -> None:
    got = filled(ExactMatch(), [outcome("grader_error")])
    assert (got.value, got.count, got.low) == ("NaN", 0, None)


def test_response_length_counts_truncated_responses() -> None:
    got = filled(ResponseLength(), [outcome(response_length=2), outcome("truncated", response_length=6)])
    assert (got.value, got.count, got.unit) == (4.0, 2, "tokens")


@pytest.mark.parametrize("make", [ExactMatch, ResponseLength, Perplexity])
@pytest.mark.parametrize("seed", range(5))
def test_parts_merged_in_any_order_are_the_whole(make: Any, seed: int) -> None:
    randomness = random.Random(seed)
    outcomes = [
        outcome(
            randomness.choice(["correct", "wrong", "grader_error"]),
            response_length=randomness.randrange(50),
            loglikelihood=-randomness.expovariate(1),
            tokens=randomness.randrange(1, 40),
        )
        for _ in range(50)
    ]
    whole = filled(make(), outcomes)
    cuts = sorted(randomness.sample(range(50), 3))
    parts = [outcomes[a:b] for a, b in zip([0, *cuts], [*cuts, 50], strict=True)]
    randomness.shuffle(parts)
    merged = make()
    for part in parts:
        accumulator = make()
        filled(accumulator, part)
        merged.merge(accumulator)
    assert merged.compute() == whole
    merged.reset()
    assert merged.compute().count == 0
