"""Reports of odd runs: 500 metrics, three steps, only NaN, still running, imported without times."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from driftline.analysis.report import page
from driftline.cli.app import app
from driftline.storage.open import Catalog, open_catalog

MADE = {"command": "driftline report", "when": "2026-11-30 12:00", "version": "0"}
NAN = float("nan")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, stores: Any) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("odd")
    store, make = stores.Store(folder / "data"), stores.Make()
    runs: dict[str, dict[str, list[float]]] = {
        "many": {f"layer_{at:03}/norm": [1.0 + at, 2.0, 3.0, 2.5] for at in range(500)},
        "short": {"loss": [3.0, 2.0, 1.0]},
        "nothing but NaN": {"loss": [NAN] * 40, "norm": [NAN] * 40},
    }
    for name, values in runs.items():
        store.put(
            "telemetry",
            make.started(run=name, process=name, rank=0, name=name),
            make.frame(1, values, run=name, process=name),
        )
    two = folder / "two.csv", folder / "also.csv"
    for at, path in enumerate(two):
        with path.open("w") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "aaa/lr", "bbb/time", "val/test_score", "zzz/loss"])
            writer.writerows((s, 0.1, 1 + s % 3, s / 100 + at, 5 - s / 50) for s in range(60))
    for path in two:
        result = CliRunner().invoke(app, ["import", str(path), "--root", str(store.root)])
        assert result.exit_code == 0, result.output
    with open_catalog(store.root) as opened:
        yield opened


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("many", ["494 more metrics have curves"]),
        ("short", ["Still running, or ended without a word after", "at step 2", "loss is 1 at step 2"]),
        ("nothing but NaN", ["No value of loss is a finite number.", "of 40 samples 40 are NaN"]),
        ("two", ["imported without times", "val/test_score"]),
    ],
)
def test_a_page_is_made_and_says_what_there_is(
    run: str, says: list[str], odd: Catalog, pages_checked: Any
) -> None:
    text = page(odd, [run], [], **MADE)
    pages_checked(text)
    assert [each for each in says if each not in text] == []
    assert "no evaluation was accepted yet" in text


def test_of_made_up_times_nothing_is_told(odd: Catalog) -> None:
    """Each step stands for a second there: no wall time, no throughput, no share of it."""
    text = page(odd, ["two"], [], **MADE)
    assert [
        each for each in ("advanced the training", "Throughput", "after 59 s", "1 min") if each in text
    ] == []
    assert text.index("val/test_score") < text.index("zzz/loss") < text.index("aaa/lr"), (
        "the score comes first"
    )


def test_runs_without_goals_are_compared_by_the_metric_that_was_named(odd: Catalog) -> None:
    text = page(odd, ["two", "also"], ["val/test_score"], **MADE)
    assert "Compared" in text
    assert "is higher" in text
    assert "Their settings are not known: imported." in text
    assert "import.name" not in text
