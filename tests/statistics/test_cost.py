"""``cost`` and ``config_diff``: what a change bought, to the hour and the cent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def two(answers: Any) -> Any:
    """Run b has four devices for one, is 0.5 better at the end, and takes 3 hours for 2."""
    steps = np.arange(0, 201)
    noise = np.random.default_rng(1).normal(size=(2, 201)) * 0.01
    curves = [("a", "loss", steps, 3 - steps / 100 + noise[0]), ("a", "tok", steps, [100.0] * 201)]
    curves += [("b", "loss", steps, 2.5 - steps / 100 + noise[1]), ("b", "tok", steps, [300.0] * 201)]
    answers.curves(*curves, seconds=36)
    slower = (
        """CASE WHEN run = 'b' THEN make_timestamptz(1700000000000000 + step * 54000000) ELSE "time" END"""
    )
    answers.db.execute(f"""
        CREATE OR REPLACE VIEW samples AS SELECT * REPLACE ({slower} AS "time") FROM "rows of samples"
    """)
    config = '{"lr": 0.1, "model": {"layers": 2, "act": "gelu"}, "seeds": [1, 2]}'
    other = '{"lr": "0.1", "model": {"layers": 4, "act": "gelu"}, "warmup": 5, "seeds": [1, 3], "none": null}'
    started = [
        {"run": "a", "process": "a", "event": "started", "time": 1, "world_size": 1, "config": config},
        {"run": "b", "process": "b", "event": "started", "time": 1, "world_size": 4, "config": other},
    ]
    answers.table("processes", started)
    answers.table("log", [{"run": run, "received": 1, "kind": "process_started"} for run in "ab"])
    accepted = {"run": "b", "status": "done", "suite": "s", "seconds": 1800.0, "request": "q"}
    answers.table(
        "evals", [accepted | {"metric": "x", "value": 1.0}, accepted | {"metric": "y", "value": 1.0}]
    )
    return answers


def test_the_gain_is_set_against_hours_tokens_and_money(two: Any) -> None:
    found = two.one("FROM cost('a', 'b', 'loss', price := 2, token_metric := 'tok', better := 'min')")
    assert found["gain"] == pytest.approx(0.5, abs=0.01)
    assert found["gain_low"] < 0.5 < found["gain_high"]
    assert (found["hours_a"], found["hours_b"]) == pytest.approx((2.0, 3.0))
    assert (found["devices_a"], found["devices_b"]) == (1, 4)
    assert (found["eval_hours_a"], found["eval_hours_b"]) == (None, 0.5)
    assert (found["tokens_a"], found["tokens_b"]) == (20_100, 60_300)
    assert (found["money_a"], found["money_b"]) == pytest.approx((4.0, 2 * (3 * 4 + 0.5)))
    assert found["gain_per_hour"] == pytest.approx(found["gain"])
    assert found["gain_per_money"] == pytest.approx(found["gain"] / 21)
    # a ends at 1, about 2 h in; b is there at step 150, 2.25 h in
    assert found["hours_to_level_b"] == pytest.approx(2.25, abs=0.1)
    assert found["speed_up"] == pytest.approx(found["hours_to_level_a"] / found["hours_to_level_b"])
    assert found["verdict"] == "b is better"


def test_without_a_direction_or_a_price_nothing_is_made_up(two: Any) -> None:
    found = two.one("FROM cost('a', 'b', 'loss')")
    assert (found["gain"], found["money_a"], found["tokens_a"], found["speed_up"]) == (None,) * 4
    assert found["why"].startswith("no direction")
    assert found["verdict"] == "b is lower"
    turned = two.one("FROM cost('b', 'a', 'loss', better := 'min')")
    assert turned["gain"] == pytest.approx(-0.5, abs=0.01)
    assert (turned["gain_per_hour"], turned["hours_to_level_b"]) == (None, None)
    assert two.one("FROM cost('a', 'nobody', 'loss')")["why"] == "the runs have no common part of this metric"


def test_settings_that_differ_are_listed_as_json(two: Any) -> None:
    """A number and the same number as text are different settings."""
    found = {
        row["setting"]: (row["a"], row["b"], row["what"]) for row in two.ask("FROM config_diff('a', 'b')")
    }
    assert found == {
        "model.layers": ("2", "4", "changed"),
        "seeds[1]": ("2", "3", "changed"),
        "warmup": (None, "5", "only in b"),
        "none": (None, "null", "only in b"),
        "lr": ("0.1", '"0.1"', "changed"),
    }
    assert two.ask("FROM config_diff('a', 'a')") == []
