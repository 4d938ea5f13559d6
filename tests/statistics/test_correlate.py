"""``correlate``: the formulas, lags, gaps, and that what only drifts together is not "related"."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracles
import pytest


@pytest.mark.parametrize("n", [12, 50, 300])
def test_the_test_of_two_metrics_is_what_the_formulas_say(answers: Any, n: int) -> None:
    random = np.random.default_rng(n)
    a = np.cumsum(random.normal(size=(1, n)), axis=1)
    b = 0.5 * a + oracles.ar1(random, 1, n, 0.9)
    answers.curves(("r", "a", np.arange(n), a[0]), ("r", "b", np.arange(n), b[0]))
    found = answers.one("FROM correlate('r')")
    want = oracles.related(a, b)
    assert (found["metric_a"], found["metric_b"], found["lag"], found["n"]) == ("a", "b", 0, n - 1)
    assert found["change_correlation"] == pytest.approx(want.r[0])
    assert found["n_effective"] == pytest.approx(want.effective[0])
    assert found["p_value"] == pytest.approx(oracles.t_p(want.t[0], want.effective[0] - 2), rel=1e-4)
    assert found["q_value"] == found["p_value"]
    assert found["pearson"] == pytest.approx(np.corrcoef(a[0], b[0])[0, 1])
    ranks = [np.argsort(np.argsort(series[0])) for series in (a, b)]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_the_lag_says_which_metric_moves_first(answers: Any) -> None:
    random = np.random.default_rng(1)
    cause = np.cumsum(random.normal(size=305))
    effect = cause[:300] * -2 + random.normal(size=300) * 0.5
    curves = [("r", "cause", np.arange(300), cause[5:]), ("r", "effect", np.arange(300), effect)]
    answers.curves(*curves, ("r", "other", np.arange(300), np.cumsum(random.normal(size=300))))
    found = answers.ask("FROM correlate('r', max_lag := 10)")
    assert (found[0]["metric_a"], found[0]["metric_b"], found[0]["lag"]) == ("cause", "effect", 5)
    assert found[0]["verdict"] == "related"
    assert found[0]["change_correlation"] < -0.8
    assert {row["verdict"] for row in found[1:]} <= {"not shown", "drift only"}
    turned = answers.ask("FROM correlate('r', 'effect', max_lag := 10)")
    assert (turned[0]["metric_b"], turned[0]["lag"], len(turned)) == ("cause", -5, 2)
    assert answers.ask("FROM correlate('r', 'effect')")[0]["verdict"] != "related"


def test_thirty_random_walks_and_falling_losses_are_not_related(answers: Any) -> None:
    """435 pairs whose levels agree by chance or by drift: hardly one is called related."""
    random = np.random.default_rng(4)
    steps = np.arange(400)
    walks = [("r", f"walk {k}", steps, np.cumsum(random.normal(size=400))) for k in range(20)]
    drifts = [
        ("r", f"loss {k}", steps, (k + 1) * np.exp(-steps / 100) + 0.1 * random.normal(size=400))
        for k in range(10)
    ]
    answers.curves(*walks, *drifts)
    found = answers.ask("FROM correlate('r', max_lag := 5)")
    assert len(found) == 30 * 29 // 2
    assert sum(abs(row["spearman"]) >= 0.5 for row in found) > 100
    assert sum(row["verdict"] == "related" for row in found) <= 1
    assert sum(row["p_value"] < 0.05 for row in found) / len(found) < 0.07


def test_false_discoveries_are_corrected_as_benjamini_and_hochberg_say(answers: Any) -> None:
    random = np.random.default_rng(8)
    base = random.normal(size=120)
    curves = [
        ("r", f"m{k}", np.arange(120), base * (k < 3) * 0.4 + random.normal(size=120)) for k in range(6)
    ]
    answers.curves(*curves)
    found = answers.ask("SELECT p_value, q_value FROM correlate('r') ORDER BY p_value")
    p = np.array([row["p_value"] for row in found])
    want = np.minimum.accumulate((p * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1]
    assert [row["q_value"] for row in found] == pytest.approx(list(want))


def test_a_metric_logged_every_tenth_step_is_compared_over_tens(answers: Any) -> None:
    random = np.random.default_rng(2)
    walk = np.cumsum(random.normal(size=600))
    rare = np.arange(0, 600, 10)
    answers.curves(
        ("r", "often", np.arange(600), walk), ("r", "rare", rare, walk[rare] + 0.1 * random.normal(size=60))
    )
    found = answers.one("FROM correlate('r', until_step := 390)")
    assert (found["n"], found["verdict"]) == (39, "related")
    assert found["change_correlation"] > 0.9


def test_a_constant_or_short_metric_has_no_verdict_and_says_why(answers: Any) -> None:
    curves = [("r", "a", range(50), np.random.default_rng(0).normal(size=50))]
    curves += [("r", "flat", range(50), [3.0] * 50), ("r", "nan", range(50), [math.nan] * 50)]
    answers.curves(*curves, ("r", "short", range(5), [1.0, 2.0, 4.0, 3.0, 5.0]))
    found = answers.ask("FROM correlate('r', 'a')")
    assert {row["metric_b"] for row in found} == {"flat", "short"}
    for row in found:
        assert (row["verdict"], row["q_value"]) == (None, None)
        assert row["why"] == "fewer than 8 common changes, or one does not change"


def test_many_metrics_are_bounded_and_the_answer_says_so(answers: Any) -> None:
    random = np.random.default_rng(3)
    answers.curves(*[("r", f"m{k:02}", np.arange(30), random.normal(size=30)) for k in range(50)])
    found = answers.ask("FROM correlate('r')")
    assert len(found) == 40 * 39 // 2
    assert {row["metrics_left_out"] for row in found} == {10}
    assert {row["metric_a"] for row in answers.ask("FROM correlate('r', 'm49')")} == {"m49"}


def test_in_the_real_ppo_run_reward_and_score_are_related_and_drift_is_only_drift(
    answers: Any, verl: Any
) -> None:
    answers.curves(*verl)
    found = {row["metric_b"]: row for row in answers.ask("FROM correlate('verl', 'critic/score/mean')")}
    assert found["critic/rewards/mean"]["verdict"] == "related"
    assert found["critic/rewards/mean"]["change_correlation"] > 0.99
    assert abs(found["critic/vpred_mean"]["pearson"]) > 0.8
    assert found["actor/lr(1e-4)"]["verdict"] is None
