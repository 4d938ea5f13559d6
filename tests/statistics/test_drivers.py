"""``drivers``: what left its course before a change comes first, with its lead; what did not, does not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "analysis.md"
BEGIN, END = "<!-- drivers -->\n", "<!-- end of drivers -->\n"


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


UNRELATED: dict[str, Any] = {
    "white noise": lambda random, n: random.normal(size=(50, n)),
    "AR(1) 0.9": lambda random, n: oracles.ar1(random, 50, n, 0.9),
    "AR(1) 0.99": lambda random, n: oracles.ar1(random, 50, n, 0.99),
    "random walk": lambda random, n: np.cumsum(random.normal(size=(50, n)), axis=1),
    "falling trend": lambda random, n: 5 * np.exp(-4 * np.arange(n) / n) + 0.3 * random.normal(size=(50, n)),
    "heavy tails (t, 2 df)": lambda random, n: random.standard_t(2, size=(50, n)),
    "rounded to a few values": lambda random, n: np.round(0.7 * random.normal(size=(50, n))),
    "nearly always 0, else 1": lambda random, n: 1.0 * (random.random((50, n)) < 0.02),
}


def test_unrelated_metrics_seldom_move_before_as_the_page_says(answers: Any) -> None:
    """Fifty metrics of each kind at two places; ``DRIFTLINE_WRITE_DOCS=1`` writes the table anew."""
    random, n, found = np.random.default_rng(9), 1000, {}
    for kind, made in UNRELATED.items():
        others = [("r", f"m{at:02}", np.arange(n), values) for at, values in enumerate(made(random, n))]
        answers.curves(("r", "asked", np.arange(n), random.normal(size=n)), *others)
        verdicts: list[str] = []
        for step in (500, 800):
            rows = answers.ask("FROM drivers('r', 'asked', at_step := ?)", [step])
            verdicts += [row["verdict"] for row in rows if row["metric"] != "asked"]
            assert all(abs(row["sigmas"] or 0) > 5 for row in rows if row["verdict"] == "moved before")
        found[kind] = verdicts.count("moved before") / len(verdicts)
    lines = ["| unrelated metrics | of 100 'moved before' |", "|---|---|"]
    lines += [f"| {kind} | {round(100 * share)} |" for kind, share in found.items()]
    text, table = PAGE.read_text(), BEGIN + "\n" + "\n".join(lines) + "\n\n" + END
    now = text[: text.index(BEGIN)] + table + text[text.index(END) + len(END) :]
    if os.environ.get("DRIFTLINE_WRITE_DOCS"):
        PAGE.write_text(now)
    assert PAGE.read_text() == now
    for kind, share in found.items():
        assert share <= (0.10 if kind in ("random walk", "AR(1) 0.99", "heavy tails (t, 2 df)") else 0.05), (
            kind
        )


def test_what_is_constant_copied_or_made_of_the_metric_is_named_as_such(answers: Any) -> None:
    """None of them is a driver, and none has a number of sigmas that comes from no noise."""
    random, n = np.random.default_rng(4), 1200
    steps = np.arange(n)
    loss = 3 - steps / 900 + 0.1 * random.normal(size=n) + 2 * (steps >= 900)
    answers.curves(*[
        ("r", name, steps, values)
        for name, values in {
            "loss": loss, "copy": loss, "perplexity": np.exp(loss), "accuracy": 1 - loss / 10,
            "lr": np.full(n, 0.1), "zero": np.zeros(n), "world_size": np.where(steps < 860, 64.0, 32.0),
            "restarts": 1.0 * (random.random(n) < 0.004), "clipfrac": np.round(0.0015 * random.random(n), 3),
            "other": random.normal(size=n), "huge": np.full(n, 1e12) + np.round(random.random(n)),
        }.items()
    ])  # fmt: skip
    found = {row["metric"]: row for row in answers.ask("FROM drivers('r', 'loss')")}
    verdicts = {name: row["verdict"] for name, row in found.items()}
    assert verdicts == {
        "loss": "the change itself", "world_size": "moved before", "copy": "a copy of it",
        "perplexity": "a function of it", "accuracy": "a function of it",
        "lr": "constant", "zero": "constant", "restarts": "constant",
        "clipfrac": "did not move", "other": "did not move", "huge": "constant",
    }  # fmt: skip
    assert list(found)[:2] == ["loss", "world_size"]
    assert (found["world_size"]["sigmas"], found["world_size"]["moved_step"]) == (None, 860)
    assert all(found[name]["sigmas"] is None for name in ("lr", "zero", "restarts", "huge"))
    assert all(abs(found[name]["sigmas"] or 0) <= 5 for name in verdicts if verdicts[name] == "did not move")


def test_of_the_real_ppo_run_its_learning_is_no_sudden_change(answers: Any, verl: Any) -> None:
    """The test score rises in its first 30 steps, before it has a course that it could leave."""
    answers.curves(*verl)
    found = answers.ask("FROM drivers('verl', 'val/test_score/openai/gsm8k')")
    assert (found[0]["metric"], found[0]["verdict"]) == ("val/test_score/openai/gsm8k", "did not move")
    assert found[0]["change_step"] >= 150
    assert not [row["metric"] for row in found if row["verdict"] == "moved before"]
    assert all(abs(row["sigmas"] or 0) < 100 for row in found)
    constant = {row["metric"] for row in found if row["verdict"] == "constant"}
    assert {"actor/lr(1e-4)", "critic/kl_coeff", "critic/score/max", "response_length/max"} <= constant
