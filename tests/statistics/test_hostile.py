"""Every macro on what runs hold: nothing, one point, constants, NaN, huge steps, odd names, any zone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

CALLS = {
    "curve": "curve($run, $metric)",
    "curve smoothed": "curve($run, $metric, smooth := 0.9, points := 10)",
    "curve windowed": "curve($run, $metric, smooth := 5, of_attempt := 0)",
    "trend": "trend($run, $metric, horizon := 10, target := 1)",
    "compare by time": "compare($run, $run, $metric, along := 'time')",
    "compare_summary": "compare_summary($run, $run, $metric)",
    "finals": "finals([$run], $metric)",
    "compare_final": "compare_final([$run], [$run], $metric)",
    "correlate": "correlate($run, $metric, max_lag := 3)",
    "drivers": "drivers($run, $metric)",
    "eval_best": "eval_best($run)",
    "eval_noise": "eval_noise($run)",
    "eval_mismatch": "eval_mismatch($run, $metric, $metric)",
    "cost": "cost($run, $run, $metric, price := 1, token_metric := $metric, better := 'max')",
    "config_diff": "config_diff($run, $run)",
}
BIG = 2**62
SERIES: dict[str, tuple[list[int], list[float]]] = {
    "nothing": ([], []),
    "one point": ([5], [1.0]),
    "two points": ([5, 6], [1.0, 2.0]),
    "constant": (list(range(100)), [3.0] * 100),
    "all NaN": (list(range(20)), [math.nan] * 20),
    "NaN and infinities": (list(range(60)), [math.nan, math.inf, -math.inf, 1.0, 2.0, 3.0] * 10),
    "duplicate steps": ([1, 1, 1, 2, 2, 3] * 5, [float(k) for k in range(30)]),
    "huge steps": ([-BIG, *range(0, BIG, BIG // 30), BIG], [float(k) for k in range(33)]),
    "huge values": (list(range(40)), [1e308, -1e308, 1e160, 5.0] * 10),
    "tiny values": (list(range(40)), [5e-324, 1e-310, -1e-320, 0.0] * 10),
    "a step": (list(range(100)), [0.0] * 50 + [1.0] * 50),
    "two levels": (list(range(100)), [0.0, 1.0] * 50),
}
ODD = ["it's; DROP VIEW samples; --\"$1 ?损失 🚀%_" + "x" * 600, "", "1e5"]


def call(name: str, run: str, metric: str) -> str:
    quoted = {"$run": run, "$metric": metric}
    text = CALLS[name]
    for place, value in quoted.items():
        text = text.replace(place, "'" + value.replace("'", "''") + "'")
    return text


@pytest.mark.parametrize("series", SERIES)
def test_every_macro_answers_every_kind_of_series_without_an_error(answers: Any, series: str) -> None:
    """No error, no NaN or infinity where a statistic is answered, and never more than a bounded answer."""
    steps, values = SERIES[series]
    answers.curves(("r", "m", steps, values), ("r", "other", steps, values[::-1]))
    for name in CALLS:
        rows = answers.ask(f"FROM {call(name, 'r', 'm')}")
        assert len(rows) <= 400, name
        for row in rows if not name.startswith("curve") else []:
            for column, value in row.items():
                assert not isinstance(value, float) or math.isfinite(value), (name, column, value)


@pytest.mark.parametrize("odd", ODD)
def test_any_name_of_run_and_metric_is_only_text(answers: Any, odd: str) -> None:
    """A run or metric whose name looks like SQL, a pattern or a number is found by its exact name alone."""
    values = np.random.default_rng(0).normal(size=40)
    answers.curves(
        (odd, odd, range(40), values), ("r", odd, range(40), values), (odd, "m", range(40), values)
    )
    assert len(answers.ask(f"FROM {call('curve', odd, odd)}")) == 40
    for name in ("trend", "compare_summary", "compare_final", "drivers", "eval_mismatch", "cost"):
        answers.ask(f"FROM {call(name, odd, odd)}")
    (found,) = answers.ask(f"FROM {call('correlate', odd, odd)}")
    assert (found["metric_a"], found["metric_b"]) == (odd, "m")
    assert len(answers.ask(f"FROM {call('curve', odd + ' ', odd)}")) == 0


def test_answers_are_the_same_in_every_time_zone(answers: Any) -> None:
    """Case S1: also along time, over the hour that a zone skips or repeats."""
    random = np.random.default_rng(1)
    answers.curves(*[(run, "m", range(300), random.normal(size=300)) for run in "ab"], seconds=3_600 * 24)
    asked = ["curve('a', 'm')", "compare('a', 'b', 'm', along := 'time')", "trend('a', 'm', target := 1)"]
    asked += ["cost('a', 'b', 'm', price := 1, better := 'max')", "levels('a', 'm')"]
    told = []
    for zone in ("UTC", "America/New_York", "Asia/Tehran"):
        answers.db.execute(f"SET TimeZone = '{zone}'")
        told.append([[rounded(row) for row in answers.ask(f"FROM {question}")] for question in asked])
    answers.db.execute("SET TimeZone = 'UTC'")
    assert told[0] == told[1] == told[2]


def rounded(row: dict[str, Any]) -> list[Any]:
    """The values of a row; sums may differ in the last bits by the order in which threads came."""
    return [float(f"{value:.9g}") if isinstance(value, float) else value for value in row.values()]


def test_the_newest_attempt_counts_and_an_older_one_can_be_asked_for(answers: Any) -> None:
    """Case 1, for the macros: attempt 1 goes on from step 20 with other values."""
    answers.curves(("r", "m", [*range(30), *range(20, 40)], [1.0] * 30 + [2.0] * 20))
    joined = {"run": "r", "topic_uuid": "u", "what": "process_joined"}
    answers.table("facts", [joined | {"process": "p", "attempt": 0, "offset": 0}])
    answers.db.execute(
        """CREATE OR REPLACE VIEW samples AS SELECT * REPLACE (
        CASE WHEN value = 2 THEN 'q' ELSE 'p' END AS process) FROM "rows of samples" """
    )
    answers.table("facts", [joined | {"process": p, "attempt": a, "offset": a} for a, p in enumerate("pq")])
    newest = answers.ask("SELECT step, value FROM curve('r', 'm')")
    assert [row["value"] for row in newest] == [1.0] * 20 + [2.0] * 20
    oldest = answers.ask("SELECT step, value FROM curve('r', 'm', of_attempt := 0)")
    assert [row["value"] for row in oldest] == [1.0] * 30
    assert answers.one("SELECT value FROM finals(['r'], 'm')") == {"value": 2.0}
