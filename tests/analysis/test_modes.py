"""What an option makes of a question: groups of runs, evaluation beside training, ranks beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from driftline.analysis.ask import ask
from driftline.analysis.questions import QUESTIONS
from driftline.cli.app import app
from driftline.errors import BadData
from driftline.storage.open import Catalog

runner = CliRunner()
ASKED = {
    "final": ["compare", "01a-first", "01b-again", "loss", "--final", "--first", "digits"],
    "mismatch": ["evals", "01a-first", "exact_match", "--mismatch", "loss", "--train-better", "min"],
    "ranks": ["curve", "01a-first", "loss", "--ranks"],
}


@pytest.mark.parametrize("form", ["text", "--json", "--csv"])
@pytest.mark.parametrize("name", ASKED)
def test_each_prints_and_writes_files_as_any_question_does(
    name: str, form: str, root: Path, tmp_path: Path, pages_checked: Any
) -> None:
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    options = ["--html", str(page), "--png", str(picture)] if form == "text" else [form]
    result = runner.invoke(app, [*ASKED[name], "--root", str(root), *options])
    assert result.exit_code == 0, result.output
    if form == "text":
        pages_checked(page.read_text())
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert "in SQL: " in result.stdout
    elif form == "--json":
        shape = json.loads(result.stdout)
        assert (shape["question"], shape["empty"]) == (ASKED[name][0], None)
        assert all(shape["tables"].values())
    else:
        assert len(result.stdout.splitlines()) >= 2


@pytest.mark.parametrize(
    ("question", "words", "options"),
    [
        ("compare", ["01a-first", "01b-again", "loss"], {"final": True, "first": ["digits"]}),
        ("evals", ["01a-first", "exact_match"], {"mismatch": "loss"}),
        ("curve", ["01a-first", "loss"], {"ranks": True}),
    ],
)
def test_their_sql_gives_their_rows_again(
    question: str, words: list[str], options: dict[str, Any], catalog: Catalog
) -> None:
    _, answer = ask(catalog, QUESTIONS[question], words, options)
    assert catalog.query(answer.sql[0]).num_rows == len(answer.tables[0].rows)


def test_a_name_stands_for_all_its_runs_and_an_id_for_itself(catalog: Catalog) -> None:
    """Two runs are named digits: as a group they are two, by their ids one and one."""
    _, named = ask(catalog, QUESTIONS["compare"], ["digits", "01a-first", "loss"], {"final": True})
    row = named.tables[0].rows[0]
    assert (row["n_a"], row["n_b"]) == (2, 1)
    assert "no verdict" in named.says[0]
    assert "each group needs two runs" in named.says[0]
    _, single = ask(catalog, QUESTIONS["compare"], ["01a-first", "01b-again", "loss"], {"final": True})
    assert (single.tables[0].rows[0]["n_a"], single.tables[0].rows[0]["n_b"]) == (1, 1)
    both = {"final": True, "first": ["01b-again"], "second": ["digits"]}
    _, added = ask(catalog, QUESTIONS["compare"], ["01a-first", "01b-again", "loss"], both)
    row = added.tables[0].rows[0]
    assert (row["n_a"], row["n_b"], row["difference"], row["verdict"]) == (2, 2, 0, "no difference shown")
    assert "four times of five" in added.says[1]


def test_the_rank_at_the_edge_and_the_step_where_ranks_are_farthest_apart_are_named(catalog: Catalog) -> None:
    _, answer = ask(catalog, QUESTIONS["curve"], ["01a-first", "span/forward"], {"ranks": True})
    assert (
        "Rank 2 is the highest in 100 % of 120 steps where ranks differ (25.0 % if by chance)." in answer.says
    )
    _, thinned = ask(catalog, QUESTIONS["curve"], ["01a-first", "loss"], {"ranks": True, "points": 10})
    rows = thinned.tables[0].rows
    assert len(rows) == 10
    assert max(row["max"] for row in rows) == 6.0, "a spike is not thinned away"
    assert sum(row["nonfinite"] for row in rows) == 1
    assert "up to 12 steps are one row" in " ".join(thinned.notes)


def test_what_one_rank_alone_logs_is_not_called_equal_on_all_ranks(catalog: Catalog) -> None:
    (run, metric, *_) = catalog.rows(
        """SELECT run, metric FROM samples WHERE step IS NOT NULL GROUP BY run, metric
        HAVING count(DISTINCT process) = 1 AND count(*) = count(DISTINCT step) ORDER BY ALL"""
    )[0]
    _, answer = ask(catalog, QUESTIONS["curve"], [run, metric], {"ranks": True})
    assert answer.says == (f"At each step one rank alone logged {metric}: there is nothing to be apart.",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("compare 01a-first 01b-again loss --second digits", "--second belongs to --final"),
        ("compare 01a-first 01b-again loss --last-points 3", "--last-points belongs to --final"),
        ("compare 01a-first 01b-again loss --final --better max", "--better means nothing with --final"),
        ("compare 01a-first 01b-again loss --final --last 0", "--last means nothing with --final"),
        ("evals 01a-first --train-better min", "--train-better belongs to --mismatch"),
        ("curve 01a-first loss --ranks --smooth 5", "--smooth means nothing with --ranks"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(root: Path, arguments: str, words: str) -> None:
    result = runner.invoke(app, [*arguments.split(), "--root", str(root)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_names_of_runs_are_not_listed_as_metrics(catalog: Catalog) -> None:
    with pytest.raises(BadData, match="evaluated metrics there are: none"):
        ask(catalog, QUESTIONS["evals"], ["bare", "accurate"], {})


def test_the_metrics_of_a_mismatch_must_be_there(catalog: Catalog) -> None:
    with pytest.raises(BadData, match="name the evaluated metric, too: driftline evals 01a-first METRIC"):
        ask(catalog, QUESTIONS["evals"], ["01a-first"], {"mismatch": "loss"})
    _, answer = ask(catalog, QUESTIONS["evals"], ["01a-first", "exact_match"], {"mismatch": "los"})
    assert answer.empty == "the run has no samples of los with a step"
