"""``trend`` against numpy, on known lines and on real curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracles
import pytest


@pytest.mark.parametrize(("rho", "n"), [(0.0, 400), (0.9, 400), (0.98, 100), (0.5, 30), (0.0, 7)])
def test_the_trend_is_what_the_formulas_say(answers: Any, rho: float, n: int) -> None:
    series = oracles.ar1(np.random.default_rng(n), 1, n, rho)
    answers.curves(("r", "m", np.arange(n), series[0]))
    found = answers.one("FROM trend('r', 'm', over_steps := ?, horizon := 50)", [n])
    want = oracles.theil_sen(series)
    for name, value in (("slope", want.slope), ("low", want.low), ("high", want.high), ("level", want.level)):
        assert found[name] == pytest.approx(value[0], rel=1e-9), name
    assert (found["fallen_since"] is not None) == (
        n >= 12 and bool(oracles.fallen(series if found["direction"] == "max" else -series)[0])
    )
    line, within = oracles.forecast(series, 50)
    assert found["forecast"] == pytest.approx(line[0])
    assert found["forecast_step"] == n - 1 + 50
    if not found["curved"]:
        assert found["forecast_high"] - found["forecast"] == pytest.approx(within[0])


def test_a_line_is_found_exactly_with_its_time_to_the_target(answers: Any) -> None:
    steps = np.arange(0, 1000, 5)
    answers.curves(("r", "m", steps, 10 - 0.002 * steps), seconds=2)
    found = answers.one("FROM trend('r', 'm', target := 5, horizon := 100)")
    assert found["slope"] == pytest.approx(-0.002)
    assert (found["low"], found["high"]) == pytest.approx((-0.002, -0.002))
    assert found["forecast"] == pytest.approx(10 - 0.002 * 1095)
    assert found["target_step"] == pytest.approx(2500)
    assert found["target_seconds"] == pytest.approx((2500 - 995) * 2)
    assert (found["verdict"], found["direction"], found["plateau_since"]) == ("improving", "min", None)
    assert answers.one("FROM trend('r', 'm', target := 9)")["why"] == "the target is reached"
    away = answers.one("FROM trend('r', 'm', target := 11, better := 'max')")
    assert (away["target_step"], away["verdict"]) == (None, "worsening")
    assert away["why"] == "the curve does not move towards the target"


def test_spikes_do_not_bend_the_trend(answers: Any) -> None:
    random = np.random.default_rng(5)
    values = 3 - 0.001 * np.arange(1000) + 0.01 * random.normal(size=1000)
    values[random.choice(1000, 40, replace=False)] += 50
    values[[500, 900]] = math.nan, math.inf
    answers.curves(("r", "m", np.arange(1000), values))
    found = answers.one("FROM trend('r', 'm')")
    assert found["low"] < -0.001 < found["high"]
    assert found["slope"] == pytest.approx(-0.001, rel=0.05)
    assert found["noise"] < 0.02
    assert (found["n"], found["left_out"]) == (498, 2)


def test_the_declared_goal_says_which_way_is_better(answers: Any) -> None:
    answers.curves(("r", "m", np.arange(40), np.arange(40.0)))
    assert answers.one("FROM trend('r', 'm')")["verdict"] == "improving"
    answers.table("metrics", [{"run": "r", "metric": "m", "goal": "min", "offset": 1}])
    assert answers.one("FROM trend('r', 'm')")["verdict"] == "worsening"
    assert answers.one("FROM trend('r', 'm', better := 'max')")["verdict"] == "improving"


def test_a_plateau_begins_where_the_improvement_ends(answers: Any) -> None:
    steps = np.arange(1000)
    values = np.minimum(steps, 400) / 100 + 0.05 * np.random.default_rng(7).normal(size=1000)
    answers.curves(
        ("r", "m", steps, values), ("r", "worse", steps, values - np.maximum(0, steps - 600) / 200)
    )
    found = answers.one("FROM trend('r', 'm')")
    assert found["verdict"] == "plateau"
    assert 350 <= found["plateau_since"] <= 450
    fallen = answers.one("FROM trend('r', 'worse', better := 'max')")
    assert (fallen["verdict"], fallen["plateau_since"]) == ("worsening", None)
    assert 350 <= fallen["fallen_since"] <= 600


def test_a_loss_that_went_on_falling_after_a_spike_is_on_no_plateau(answers: Any) -> None:
    """As in the demonstration: the learning rate slips at step 386, the loss is back below in 60 steps."""
    steps = np.arange(700)
    values = 2.2 * np.exp(-steps / 90) + 0.9 * (1 - steps / 900) ** 2
    values[386:] = 0.1 + 0.3 * np.exp(-(steps[386:] - 386) / 90) + 2.8 * np.exp(-(steps[386:] - 386) / 12)
    values = values * (1 + 0.08 * np.random.default_rng(3).normal(size=700))
    answers.curves(("r", "m", steps, values))
    found = answers.one("FROM trend('r', 'm', better := 'min')")
    assert found["plateau_since"] is None
    assert found["verdict"] != "plateau"


def test_the_real_ppo_run_is_on_its_plateau_from_about_step_150(answers: Any, verl: Any) -> None:
    answers.curves(*verl)
    found = answers.one("FROM trend('verl', 'val/test_score/openai/gsm8k', target := 0.9)")
    assert found["verdict"] == "plateau"
    assert 120 <= found["plateau_since"] <= 200
    assert 0.54 < found["level"] < 0.57
    assert found["target_high"] is None


def test_real_losses_still_improve_and_real_rewards_collapse(answers: Any, csv_rows: Any) -> None:
    """A loss goes down to its end, with 108 spikes; two rewards have a good checkpoint long before it."""
    curves = []
    for name in ("nanogpt_1B_spiky_87bd51fd", "nanogpt_124M_muon_eb5659d0"):
        rows = [row for row in csv_rows(f"train_curves/{name}.csv") if row["train_loss"]]
        points = [int(row["step"]) for row in rows], [float(row["train_loss"]) for row in rows]
        curves.append((name, "loss", *points))
    for name in ("a2c_Ant-v3_1", "td3_Ant-v3_1"):
        rows = csv_rows(f"rl_curves/sb3_eval_{name}.csv")
        points = [int(r["timestep"]) for r in rows], [float(r["mean_reward"]) for r in rows]
        curves.append((name, "reward", *points))
    answers.curves(*curves)
    for name in {curve[0] for curve in curves if curve[1] == "loss"}:
        found = answers.one("FROM trend(?, 'loss')", [name])
        assert (found["verdict"], found["plateau_since"]) == ("improving", None)
    ant = answers.one("FROM trend('a2c_Ant-v3_1', 'reward', better := 'max')")
    assert ant["verdict"] == "worsening"
    assert (ant["plateau_since"], ant["best"], ant["best_step"]) == (None, 1006.603, 200_000)
    assert ant["fallen_since"] <= 200_000
    dip = answers.one("FROM trend('td3_Ant-v3_1', 'reward', better := 'max')")
    assert dip["verdict"] == "plateau"
    assert dip["plateau_since"] >= 300_000, "from 4,000 at step 210,000 it went on to 5,900, with a deep dip"


@pytest.mark.parametrize(
    ("name", "better", "verdict", "best", "last", "fallen"),
    [
        ("a2c_LunarLanderContinuous-v2_1", "max", "fallen", (237.804, 1_700_000), 32.413, True),
        ("a2c_Ant-v3_1", "max", "worsening", (1006.603, 200_000), -22.439, True),
        ("td3_Ant-v3_1", "max", "plateau", (5949.334, 960_000), 5945.292, False),
    ],
)
def test_a_real_reward_that_fell_after_its_best_is_on_no_plateau(
    answers: Any, csv_rows: Any, name: str, better: str, verdict: str, best: Any, last: float, fallen: bool
) -> None:
    """As the labels of the data say: best is not last; and a deep dip that came back is no fall."""
    rows = csv_rows(f"rl_curves/sb3_eval_{name}.csv")
    answers.curves(("r", "m", [int(r["timestep"]) for r in rows], [float(r["mean_reward"]) for r in rows]))
    found = answers.one("FROM trend('r', 'm', better := ?)", [better])
    assert (found["verdict"], found["plateau_since"] is None) == (verdict, fallen)
    assert ((found["best"], found["best_step"]), found["last"]) == (best, last)
    assert (found["fallen_since"] is not None) == fallen
    assert (found["fallen_in_se"] > 4) == fallen


def test_real_divergences_fell_and_a_spike_that_came_back_did_not(answers: Any, csv_rows: Any) -> None:
    """Of the losses that still improve at their end nothing is said to have fallen, whatever their spikes."""
    for name in (
        "nanogpt_1B_spiky_87bd51fd",
        "nanogpt_124M_muon_eb5659d0",
        "nanogpt_124M_soap_periodic_slow_5bdc3988",
    ):
        rows = [row for row in csv_rows(f"train_curves/{name}.csv") if row["train_loss"]]
        answers.curves(
            (name, "loss", [int(row["step"]) for row in rows], [float(r["train_loss"]) for r in rows])
        )
        found = answers.one("FROM trend(?, 'loss', better := 'min')", [name])
        assert (found["verdict"], found["fallen_since"]) == ("improving", None), name


@pytest.mark.parametrize("level", [0.0, 5.0, -3e6])
def test_a_fall_from_a_constant_is_seen_and_a_constant_has_not_fallen(answers: Any, level: float) -> None:
    values = np.full(200, level)
    answers.curves(
        ("r", "same", range(200), values), ("r", "fell", range(200), values - 3 * (np.arange(200) > 150))
    )
    same, fell = (answers.one(f"FROM trend('r', '{name}', better := 'max')") for name in ("same", "fell"))
    assert (same["fallen"], same["fallen_in_se"], same["fallen_since"]) == (0, 0, None)
    assert (fell["verdict"], fell["fallen"], fell["best"], fell["best_step"], fell["last"]) == (
        "fallen", 3, level, 0, level - 3,
    )  # fmt: skip
    assert fell["fallen_in_se"] == 1e6


def test_few_points_have_a_best_but_no_fall(answers: Any) -> None:
    answers.curves(("r", "m", range(4), [1.0, math.nan, 3.0, 2.0]))
    found = answers.one("FROM trend('r', 'm', better := 'max')")
    assert (found["best"], found["best_step"], found["last"], found["fallen"]) == (3.0, 2, 2.0, None)


def test_a_forecast_of_a_real_loss_covers_what_came(answers: Any, csv_rows: Any) -> None:
    """From 60 % and 80 % of the run, an eighth of that ahead: most points are inside."""
    rows = [row for row in csv_rows("train_curves/nanogpt_124M_muon_eb5659d0.csv") if row["train_loss"]]
    loss = np.array([float(row["train_loss"]) for row in rows])
    for share in (0.6, 0.8):
        n = int(share * len(loss))
        answers.curves(("r", "loss", np.arange(n), loss[:n]))
        found = answers.one("FROM trend('r', 'loss', horizon := ?)", [n // 8])
        came = loss[n + n // 8 - 25 : n + n // 8 + 25]
        inside = (came >= found["forecast_low"]) & (came <= found["forecast_high"])
        assert inside.mean() >= 0.8
