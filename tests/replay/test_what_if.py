"""Another evaluation frequency: what it would have evaluated, cost and missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from driftline import config
from driftline.cli.app import app
from driftline.errors import SettingsError
from driftline.replay import what_if
from driftline.replay.backtest import Trigger
from driftline.storage.recorded.compare import Evaluation
from driftline.storage.recorded.source import TableLog


def picked(*steps: int, run: str = "a") -> list[Trigger]:
    return [Trigger(run, 0, "sums", f"d{step}", step, "steps", step) for step in steps]


def known(values: dict[int, float], run: str = "a") -> list[Evaluation]:
    return [
        Evaluation(run, 0, "sums", f"q{step}", f"d{step}", step, "accuracy", v, v - 0.02, v + 0.02, 6.0)
        for step, v in values.items()
    ]


CURVE = known({100: 0.3, 200: 0.5, 300: 0.7, 400: 0.4, 500: 0.42, 600: 0.72})


def test_a_rarer_schedule_costs_less_misses_the_best_and_sees_a_drop_later() -> None:
    (one,) = what_if.compare(picked(100, 200, 300, 400, 500, 600), picked(100, 500), CURVE, {}, {"a": 360.0})
    assert (one.asked, one.answered, one.would_ask, one.both) == (6, 6, 2, 2)
    assert (one.seconds_each, one.seconds, one.would_seconds) == (6.0, 36.0, 12.0)
    (metric,) = one.metrics
    assert (metric.best_step, metric.would_best_step, metric.would_best) == (600, 500, 0.42)
    assert [(d.step, d.seen_step, d.steps_later) for d in metric.drops] == [(400, 500, 100)]


def test_a_drop_that_nobody_would_have_seen_and_one_within_the_error() -> None:
    (one,) = what_if.compare(picked(100, 400), picked(100), CURVE, {}, {})
    assert [d.seen_step for d in one.metrics[0].drops] == [None]
    noise = known({1: 0.5, 2: 0.48})
    (one,) = what_if.compare(picked(1, 2), picked(1), noise, {}, {})
    assert one.metrics[0].drops == []


def test_of_a_metric_that_shall_fall_the_lowest_is_best() -> None:
    (one,) = what_if.compare(picked(100, 200), picked(200), CURVE, {("a", "accuracy"): "min"}, {})
    metric = one.metrics[0]
    assert (metric.best_step, metric.would_best_step, metric.declared) == (100, 200, True)


def test_a_denser_schedule_says_what_it_would_cost_and_nothing_that_nobody_knows() -> None:
    """The cost of a suite comes from other runs where this one has no result."""
    others = known({1: 0.5}, run="b")
    (one,) = what_if.compare(picked(100), picked(50, 100, 150), others, {}, {})
    assert (one.would_seconds, one.metrics) == (18.0, [])
    (one,) = what_if.compare(picked(100), picked(50), [], {}, {})
    assert (one.would_seconds, one.answered) == (None, 0)


@pytest.mark.parametrize("text", ["", "steps", "steps=0", "steps=x", "every=3", "epochs=nan", "seconds=-5"])
def test_a_frequency_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--what-if"):
        what_if.triggers_of(text)


def test_frequencies_are_read_as_the_settings_have_them() -> None:
    found = what_if.triggers_of("steps=200, epochs=0.5, seconds=10m, start, end")
    assert found == config.Triggers(steps=200, epochs=0.5, every_us=600_000_000, at_start=True, at_end=True)


def test_the_log_says_what_would_have_been_asked_for(whole: tuple[Any, Path]) -> None:
    root = whole[1]
    own = what_if.asked(TableLog(root), None, ())
    assert {one.reason for one in own} == {"start", "end"}
    rare = what_if.asked(TableLog(root), config.Triggers(steps=150, at_end=False), ())
    assert [(one.run, one.step) for one in rare] == [("a", 199)]
    answer = CliRunner().invoke(app, ["replay", "a", "--root", str(root), "--what-if", "steps=50", "--json"])
    assert answer.exit_code == 0, answer.output
    (suite,) = json.loads(answer.stdout)["suites"]
    assert (suite["suite"], suite["would_ask"]) == ("sums", 3)
    plain = CliRunner().invoke(app, ["replay", "--root", str(root), "--what-if", "steps=50"]).output
    assert "with steps=50" in plain
    assert "3 of those asked for have no result" in plain, "and nothing proves that they were asked for"
