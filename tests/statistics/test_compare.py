"""``compare`` and its summaries against numpy, against scipy's numbers, and on real repeated runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracles
import pytest


def test_student_is_right(answers: Any) -> None:
    """Expected: 2 * scipy.stats.t.sf(t, df) and scipy.stats.t.ppf(0.975, df), scipy 1.18."""
    for t, df, p in [(2, 1, 0.29516723530), (1, 2.5, 0.40406102705), (2.5, 5, 0.05449009934),
                     (2.045, 29, 0.05002407592), (4, 30, 0.00038184564), (1.96, 1000, 0.05027318496),
                     (3, 1e5, 0.00270046084), (0, 10, 1.0), (-2, 1, 0.29516723530)]:  # fmt: skip
        found = answers.one("SELECT student_p(?::DOUBLE, ?::DOUBLE) AS p", [t, df])["p"]
        assert found == pytest.approx(p, rel=2e-5)
    for df, end in [
        (1, 12.706204736),
        (2, 4.302652730),
        (3.5, 2.939886),
        (10, 2.228138852),
        (1e9, 1.959963985),
    ]:
        found = answers.one("SELECT student_95(?::DOUBLE) AS e", [df])["e"]
        assert found == pytest.approx(end, rel=3e-4 if df == 3.5 else 3e-5)
    assert answers.one("SELECT student_p(NULL, 5) AS p, student_95(NULL) AS e") == {"p": None, "e": None}


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("n", [8, 60, 500])
def test_the_summary_is_what_the_formulas_say(answers: Any, rho: float, n: int) -> None:
    random = np.random.default_rng(n)
    a, b = oracles.ar1(random, 2, n, rho)
    b = b + 0.3
    answers.curves(("a", "m", np.arange(n), a), ("b", "m", np.arange(n), b))
    bins = min(n, 200)
    at = np.arange(n) * bins // (n - 1) if n > bins else np.arange(n)
    at = np.minimum(bins - 1, at)
    difference = np.array([(b - a)[at == bin_].mean() for bin_ in range(bins)])
    place = np.array([np.arange(n)[at == bin_].mean() for bin_ in range(bins)])
    chosen = difference[place >= place.max() - 0.5 * (place.max() - place.min())]
    found = answers.one("FROM compare_summary('a', 'b', 'm')")
    assert found["n"] == len(chosen)
    assert found["difference"] == pytest.approx(chosen.mean())
    if len(chosen) < 6:
        assert (found["low"], found["p_value"], found["why"]) == (None, None, "fewer than 6 common points")
        return
    want = oracles.mean_of_difference(chosen[None, :])
    df = max(want.effective[0] - 1, 1)
    assert found["n_effective"] == pytest.approx(want.effective[0])
    half = (found["high"] - found["low"]) / 2
    assert half == pytest.approx(float(oracles.t_95(np.array([df]))[0]) * want.se[0], rel=2e-3)
    assert found["p_value"] == pytest.approx(oracles.t_p(chosen.mean() / want.se[0], df), rel=1e-3)
    assert (found["verdict"] == "no difference shown") == (found["low"] <= 0 <= found["high"])


def test_a_run_does_not_differ_from_itself(answers: Any) -> None:
    answers.curves(("a", "m", np.arange(50), np.random.default_rng(0).normal(size=50)))
    found = answers.one("FROM compare_summary('a', 'a', 'm', better := 'max')")
    assert (found["difference"], found["low"], found["high"], found["p_value"]) == (0, 0, 0, 1)
    assert found["verdict"] == "no difference shown"


def test_curves_are_aligned_by_step_time_or_tokens(answers: Any) -> None:
    """Run b logs half as often and takes twice the tokens for a step."""
    a, b = np.arange(0, 100), np.arange(0, 100, 2)
    tokens = ("a", "tok", a, [10.0] * 100), ("b", "tok", b, [40.0] * 50)
    answers.curves(("a", "m", a, 1.0 * a), ("b", "m", b, 1.0 * b), *tokens)
    by_step = answers.ask("FROM compare('a', 'b', 'm', bins := 1000)")
    assert {row["difference"] for row in by_step} == {0.0}
    assert [row["place"] for row in by_step] == [*range(0, 99, 2)]
    by_time = answers.ask("FROM compare('a', 'b', 'm', along := 'time', bins := 7)")
    assert sum(row["n_a"] for row in by_time) == 99
    assert all(abs(row["difference"]) <= 0.5 for row in by_time)
    by_tokens = answers.ask("FROM compare('a', 'b', 'm', along := 'tok', running := true, bins := 9)")
    # at T tokens a is at step T / 10 - 1, b at step T / 20 - 2: common from 40 to 1000
    assert by_tokens[0]["place"] >= 40
    assert by_tokens[-1]["place"] <= 1000
    for row in by_tokens:
        assert row["difference"] == pytest.approx(row["place"] / 20 - 2 - (row["place"] / 10 - 1), abs=3)


def test_a_difference_that_shrinks_steadily_is_seen(answers: Any) -> None:
    steps, noise = np.arange(400), np.random.default_rng(3).normal(size=(2, 400)) * 0.05
    answers.curves(("a", "m", steps, noise[0]), ("b", "m", steps, noise[1] + 0.6 - steps / 1000))
    found = answers.one("FROM compare_summary('a', 'b', 'm', better := 'min')")
    assert found["verdict"] == "b is worse"
    assert found["low"] < 0.3 < found["high"]
    assert found["high"] - found["low"] < 0.05


def test_runs_without_a_common_part_say_so(answers: Any) -> None:
    answers.curves(
        ("a", "m", range(10), [1.0] * 10), ("b", "m", range(50, 60), [1.0] * 10), ("c", "x", [1], [1])
    )
    for other in ("b", "c", "nobody"):
        found = answers.one("FROM compare_summary('a', ?, 'm')", [other])
        assert found["why"] == "the runs have no common part of this metric"
        assert found["verdict"] is None


def test_repeated_runs_of_one_recipe_show_no_difference(answers: Any, csv_rows: Any) -> None:
    """Expected: scipy.stats.ttest_ind(b, a, equal_var=False), scipy 1.18."""
    rows = csv_rows("train_curves/nanogpt_repeated_runs_final.csv")
    groups: dict[str, list[str]] = {"baseline": [], "pr299": []}
    curves = []
    for row in rows:
        day, _, kind = row["record_dir"].partition("_BigramsSignTrick/")
        if day == "2026-05-20":
            groups[kind].append(row["run"])
            curves.append((row["run"], "val_loss", [int(row["final_step"])], [float(row["final_val_loss"])]))
    answers.curves(*curves)
    found = answers.one("FROM compare_final(?, ?, 'val_loss')", [groups["baseline"], groups["pr299"]])
    assert (found["n_a"], found["n_b"], found["verdict"]) == (10, 20, "no difference shown")
    assert found["p_value"] == pytest.approx(0.70075807, rel=1e-5)
    assert found["t"] == pytest.approx(-0.39136748, rel=1e-6)
    assert found["df"] == pytest.approx(15.784896677)
    assert found["low"] == pytest.approx(-0.00125242007, rel=1e-4)
    assert found["high"] == pytest.approx(0.00086242007, rel=1e-4)


def test_a_group_is_named_by_ids_or_by_a_name_of_many_runs(answers: Any) -> None:
    started = [
        {"run": f"r{n}", "event": "started", "name": "base" if n < 3 else "new", "time": n} for n in range(6)
    ]
    answers.table("processes", started)
    answers.curves(*[(f"r{n}", "m", [0, 1], [math.nan if n == 5 else 0.0, float(n)]) for n in range(6)])
    found = answers.one("FROM compare_final(['base'], ['new'], 'm')")
    assert (found["n_a"], found["n_b"], found["mean_a"], found["mean_b"]) == (3, 3, 1.0, 4.0)
    assert found["p_value"] == pytest.approx(0.0213118, rel=1e-5)  # t = 3.674, 4 degrees of freedom
    assert found["verdict"] == "b is higher"
    alone = answers.one("FROM compare_final(['r0'], ['r3', 'r4', 'nobody'], 'm')")
    assert (alone["n_a"], alone["n_b"], alone["p_value"]) == (1, 2, None)
    assert alone["why"] == "each group needs two runs with this metric"
    assert answers.one("SELECT value, n FROM finals(['r4'], 'm', last_points := 2)") == {"value": 2.0, "n": 2}
