"""``drivers``: what left its course before a change comes first, with its lead; what did not, does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def changed(answers: Any) -> Any:
    """The loss jumps at 1500; norm leaves at 1450, the rate changes at 1420, one metric follows at 1530."""
    random, n = np.random.default_rng(0), 2000
    steps = np.arange(n)
    curves = [
        ("loss", 2 + 0.05 * random.normal(size=n) + 3 * (steps >= 1500)),
        ("norm", 1 + 0.1 * random.normal(size=n) + np.clip((steps - 1450) * 0.05, 0, 9)),
        ("rate", np.where(steps < 1420, 0.001, 0.002)),
        ("cosine", np.cos(steps / 700)),
        ("walk", np.cumsum(random.normal(size=n))),
        ("late", random.normal(size=n) + 30 * (steps >= 1530)),
        ("spike", random.normal(size=n) + 40 * (steps == 1490)),
        *[(f"noise {k:02}", random.normal(size=n)) for k in range(30)],
    ]
    answers.curves(*[("r", name, steps, values) for name, values in curves])
    return answers


@pytest.mark.parametrize("arguments", ["", ", at_step := 1500", ", at_step := 1500, look_back := 150"])
def test_what_moved_before_comes_first_with_its_lead(changed: Any, arguments: str) -> None:
    found = changed.ask(f"FROM drivers('r', 'loss'{arguments})")
    by_name = {row["metric"]: row for row in found}
    change = found[0]["change_step"]
    assert found[0]["metric"] == "loss"
    assert found[0]["verdict"] == "the change itself"
    assert abs(change - 1500) <= 5
    before = [row["metric"] for row in found if row["verdict"] == "moved before"]
    assert set(before) == {"rate", "norm"}
    assert [row["metric"] for row in found[1:3]] == before
    assert by_name["rate"]["lead"] == pytest.approx(change - 1420, abs=6)
    assert by_name["norm"]["lead"] == pytest.approx(change - 1455, abs=15)
    assert by_name["late"]["verdict"] in ("moved after", "did not move")
    for name in ("cosine", "walk", *(f"noise {k:02}" for k in range(30))):
        assert by_name[name]["verdict"] in ("did not move", "moved after"), name


def test_few_points_are_named_as_such(answers: Any) -> None:
    answers.curves(("r", "m", range(6), [1, 1, 1, 5, 5, 5]), ("r", "n", range(40), [0] * 20 + [1] * 20))
    assert answers.ask("FROM drivers('r', 'm')") == []
    found = answers.ask("FROM drivers('r', 'n')")
    assert [(row["metric"], row["verdict"]) for row in found][-1] == ("m", "too few points")
    assert found[0]["change_step"] == 20


def test_nothing_moves_before_in_noise(answers: Any) -> None:
    """Forty unrelated metrics, at five places: a false driver is rare."""
    random = np.random.default_rng(9)
    answers.curves(*[("r", f"m{k:02}", np.arange(2000), random.normal(size=2000)) for k in range(40)])
    found = 0
    for step in range(900, 1900, 200):
        rows = answers.ask("FROM drivers('r', 'm00', at_step := ?)", [step])
        found += sum(row["verdict"] == "moved before" for row in rows)
    assert found <= 2
