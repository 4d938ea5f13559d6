"""What the evaluation macros say of checkpoints: best and last, fluctuation, mismatch with training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def result(step: int | None, value: float, stderr: float | None = 0.01, **changes: Any) -> dict[str, Any]:
    whole = {"run": "r", "attempt": 0, "suite": "s", "metric": "acc", "value": value, "stderr": stderr}
    whole |= {"step": step, "status": "done", "checkpoint": f"c{step}", "uri": f"/c/{step}", "count": 400}
    return whole | {"request": f"q{step}", "accepted": step or 0} | changes


def test_a_late_result_of_an_older_checkpoint_is_the_best_with_its_path(answers: Any) -> None:
    """Case 33: training at step 14; checkpoint 12 gave 0.45, then checkpoint 10 gives 0.47."""
    answers.table("evals", [result(12, 0.45, accepted=1), result(10, 0.47, accepted=2)])
    found = answers.one("FROM eval_best('r')")
    assert (found["best"], found["best_step"], found["checkpoint"], found["uri"]) == (
        0.47,
        10,
        "c10",
        "/c/10",
    )
    assert (found["last"], found["last_step"], found["best_is_last"]) == (0.45, 12, False)
    assert found["lead_over_last"] == pytest.approx(0.02)
    assert found["lead_over_last_in_se"] == pytest.approx(0.02 / (0.01 * 2**0.5))
    assert found["p_value"] == pytest.approx(0.0786496, rel=1e-3)  # 1 - Phi(1.41421)
    assert (found["runner_up_step"], found["verdict"]) == (12, "best is not last, within noise")


def test_the_best_of_many_needs_a_larger_lead(answers: Any) -> None:
    """The same lead of 2.5 standard errors is enough among 2 checkpoints and not among 20."""
    lead = 2.5 * 0.01 * 2**0.5
    answers.table("evals", [result(1, 0.5 + lead), result(2, 0.5)])
    assert answers.one("FROM eval_best('r')")["verdict"] == "best is not last"
    answers.table("evals", [result(1, 0.5 + lead), *[result(step, 0.5) for step in range(2, 21)]])
    assert answers.one("FROM eval_best('r')")["verdict"] == "best is not last, within noise"


def test_without_error_bars_with_ties_or_one_point_the_verdict_says_so(answers: Any) -> None:
    answers.table("evals", [
        result(1, 0.5, None), result(2, 0.4, None),
        result(1, 0.5, metric="tie"), result(2, 0.5, metric="tie"), result(1, 0.5, metric="one"),
        result(1, 0.5, metric="low"), result(2, 0.1, metric="low"), result(3, float("nan"), metric="low"),
    ])  # fmt: skip
    found = {row["metric"]: row for row in answers.ask("FROM eval_best('r')")}
    assert found["acc"]["verdict"] == "best is not last, no error bars"
    assert (found["acc"]["p_value"], found["acc"]["lead_over_last_in_se"]) == (None, None)
    assert (found["tie"]["verdict"], found["tie"]["best_step"]) == ("last is as good", 1)
    assert found["one"]["verdict"] == "only one point"
    assert (found["low"]["verdict"], found["low"]["last_step"]) == ("best is not last", 2)
    assert answers.one("FROM eval_best('r', better := 'min') WHERE metric = 'low'")["best_is_last"] is True
    assert answers.ask("FROM eval_best('nobody')") == []


def test_real_rewards_collapse_after_a_good_checkpoint(answers: Any, csv_rows: Any) -> None:
    """Two A2C runs: the best is far before the last; a TD3 run has a deep dip and recovers."""
    rows = []
    for run in ("a2c_Ant-v3_1", "a2c_LunarLanderContinuous-v2_1", "td3_Ant-v3_1"):
        for row in csv_rows(f"rl_curves/sb3_eval_{run}.csv"):
            stderr = float(row["std_reward"]) / (int(row["n_episodes"]) - 1) ** 0.5
            rows.append(
                result(int(row["timestep"]), float(row["mean_reward"]), stderr, run=run, metric="reward")
            )
    answers.table("evals", rows)
    ant = answers.one("FROM eval_best('a2c_Ant-v3_1')")
    assert (round(ant["best"], 1), round(ant["last"], 1), ant["verdict"]) == (
        1006.6,
        -22.4,
        "best is not last",
    )
    lander = answers.one("FROM eval_best('a2c_LunarLanderContinuous-v2_1')")
    assert (round(lander["best"], 1), round(lander["last"], 1)) == (237.8, 32.4)
    assert lander["verdict"] == "best is not last"
    assert answers.one("FROM eval_best('td3_Ant-v3_1')")["verdict"] != "best is not last"


def test_fluctuation_is_measured_beside_what_the_items_explain(answers: Any) -> None:
    random = np.random.default_rng(0)
    rows = []
    for metric, spread in (("noisy", 0.03), ("quiet", 0.01), ("short", 0.01)):
        for step in range(5 if metric == "short" else 60):
            rows.append(result(step, 0.5 + step / 200 + spread * random.normal(), metric=metric))
    answers.table("evals", rows)
    found = {row["metric"]: row for row in answers.ask("FROM eval_noise('r')")}
    assert found["noisy"]["verdict"] == "more than the items explain"
    assert found["noisy"]["observed"] == pytest.approx(0.03, rel=0.25)
    assert found["noisy"]["unexplained"] == pytest.approx((found["noisy"]["observed"] ** 2 - 0.01**2) ** 0.5)
    assert found["quiet"]["verdict"] == "as the items explain"
    assert found["quiet"]["expected"] == pytest.approx(0.01)
    assert (found["short"]["verdict"], found["short"]["why"]) == (None, "fewer than 8 points")
    values = np.array([row["value"] for row in rows if row["metric"] == "quiet"])
    bends = values[:-2] - 2 * values[1:-1] + values[2:]
    assert found["quiet"]["observed"] == pytest.approx(np.sqrt((bends**2).mean() / 6))


def test_the_real_ppo_wiggles_are_what_1319_questions_explain(answers: Any, verl: Any) -> None:
    (curve,) = [c for c in verl if c[1].startswith("val/test_score")]
    answers.table(
        "evals", [result(s, v, (v * (1 - v) / 1319) ** 0.5) for s, v in zip(*curve[2:], strict=True)]
    )
    found = answers.one("FROM eval_noise('r')")
    assert found["expected"] == pytest.approx(0.0135, abs=0.0005)
    assert found["robust"] < found["expected"]
    late = [result(s, v, (v * (1 - v) / 1319) ** 0.5) for s, v in zip(*curve[2:], strict=True) if s > 150]
    answers.table("evals", late)
    assert answers.one("FROM eval_noise('r')")["verdict"] == "as the items explain"


def test_over_fitting_is_warned_of_where_evaluation_falls_and_training_does_not(answers: Any) -> None:
    steps = np.arange(100)
    answers.curves(("r", "train", steps, 0.5 + steps / 250))
    values = {10: 0.5, 30: 0.6, 50: 0.7, 70: 0.695, 90: 0.6}
    answers.table("evals", [result(step, value) for step, value in values.items()])
    found = answers.ask("FROM eval_mismatch('r', 'acc', 'train')")
    assert [row["step"] for row in found] == list(values)
    assert [bool(row["warning"]) for row in found] == [False, False, False, False, True]
    assert found[0]["train"] == pytest.approx(0.5 + np.arange(11).mean() / 250)
    assert found[1]["train"] == pytest.approx(0.5 + np.arange(11, 31).mean() / 250)
    assert (found[1]["n_train"], found[4]["best_step"]) == (20, 50)
    assert found[4]["gap"] == pytest.approx(found[4]["train"] - 0.6)
    assert found[4]["gap_change"] == pytest.approx(found[4]["gap"] - found[0]["gap"])
    assert found[4]["behind_in_se"] == pytest.approx(0.1 / (0.01 * 2**0.5))
    gaps = [row["gap"] for row in found]
    assert found[4]["gap_slope"] == pytest.approx(np.polyfit(list(values), gaps, 1)[0])
    loss = answers.ask("FROM eval_mismatch('r', 'acc', 'train', train_better := 'min')")
    assert not any(row["warning"] for row in loss)
    assert answers.ask("FROM eval_mismatch('r', 'acc', 'no such metric')")[4]["warning"] is None
    assert answers.ask("FROM eval_mismatch('r', 'nothing', 'train')") == []
