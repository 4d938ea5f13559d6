"""Every question on known runs: what it prints, its JSON, its errors, and that hostile names stay names.

``DRIFTLINE_WRITE_DOCS=1 pytest tests/analysis`` writes the golden texts anew.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from driftline.analysis import machine, terminal
from driftline.analysis.answer import Answer
from driftline.analysis.ask import ask
from driftline.analysis.page import page_of
from driftline.analysis.questions import QUESTIONS, cost
from driftline.cli.app import app
from driftline.errors import BadData
from driftline.storage.open import Catalog, open_catalog

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "<script>alert('run')</script>"
STEERING = "\x07\x1b\x9b\u202e\u2028"
runner = CliRunner()


def printed(answer: Answer, width: int) -> str:
    out = io.StringIO()
    terminal.show(answer, Console(file=out, width=width), max_rows=20)
    return "\n".join(each.rstrip() for each in out.getvalue().split("\n"))


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_reads_as_it_did(name: str, width: int, answered: Any) -> None:
    _, answer = answered(name)
    path = GOLDEN / f"{name}-{width}.txt"
    text = printed(answer, width)
    if os.environ.get("DRIFTLINE_WRITE_DOCS"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", QUESTIONS)
def test_json_has_the_documented_shape(name: str, answered: Any) -> None:
    asked, answer = answered(name)
    shape = json.loads(machine.as_json(answer, asked.as_data()), parse_constant=pytest.fail)
    assert list(shape) == ["question", "title", "asked", "says", "notes", "empty", "tables", "sql"]
    assert shape["question"] == name
    assert shape["asked"]["runs"][0] == {"run": "01a-first", "name": "digits"}
    assert shape["empty"] is None
    assert shape["says"]
    for table in answer.tables:
        assert len(shape["tables"][table.name]) == len(table.rows)
        assert not table.rows or {column.name for column in table.columns} <= set().union(*table.rows)
    assert all("$" not in sql for sql in shape["sql"])


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_sql_of_an_answer_gives_its_rows_again(name: str, catalog: Catalog, answered: Any) -> None:
    _, answer = answered(name)
    assert len(answer.sql) == 1
    given = catalog.query(answer.sql[0])
    assert given.num_rows == len(answer.tables[0].rows)
    assert not answer.tables[0].rows or set(given.column_names) == set(answer.tables[0].rows[0])


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_run_that_says_nothing_gets_a_reason_or_an_error_but_no_number(name: str, catalog: Catalog) -> None:
    if QUESTIONS[name].runs[0] > 1:
        _, answer = ask(catalog, QUESTIONS[name], ["01a-first", "bare", "loss"], {})
        assert (bool(answer.empty), answer.charts) == (True, ())
        return
    if QUESTIONS[name].metrics[0]:
        with pytest.raises(BadData, match="has no samples: log some"):
            ask(catalog, QUESTIONS[name], ["bare"], {})
        return
    _, answer = ask(catalog, QUESTIONS[name], ["bare"], {})
    assert answer.empty or "bare" in answer.title
    assert answer.charts == () or answer.says
    printed(answer, 80)


@pytest.mark.parametrize("name", QUESTIONS)
def test_hostile_names_steer_no_terminal_and_are_no_markup(name: str, catalog: Catalog) -> None:
    question = QUESTIONS[name]
    metric = ["\x1b]0;owned\x07\x1b[2J\x1b[31mred"] if question.metrics[0] else []
    runs = [HOSTILE, "01a-first"][: max(1, question.runs[0])]
    try:
        asked, answer = ask(catalog, question, [*runs, *metric], {})
    except BadData:
        assert question.runs[0] > 1
        return
    assert not set(printed(answer, 100)) & set(STEERING)
    page = page_of(answer)
    assert not set(page) & set(STEERING)
    assert "<script" not in page
    assert "<img" not in page
    json.loads(machine.as_json(answer, asked.as_data()))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["digitz"], "did you mean digits"),
        (["digits", "los"], "has no metric 'los': did you mean loss?"),
        (["01a-frist", "loss"], "no run '01a-frist': did you mean 01a-first"),
        (["digits", "exact_match"], "exact_match is a metric of evaluations: driftline evals"),
        (["digits", "qqq"], "metrics there are: grad_norm, loss, span/backward, span/forward"),
        (["bare"], "has no samples: log some"),
    ],
)
def test_an_unknown_run_or_metric_lists_near_names(words: Sequence[str], says: str, catalog: Catalog) -> None:
    with pytest.raises(BadData, match=r".") as caught:
        ask(catalog, QUESTIONS["curve"], words, {})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "run", "metrics"),
    [
        (["01a-first", "loss"], "01a-first", ("loss",)),
        (["digits"], "01b-again", ("loss",)),
        (["digits", "grad_norm"], "01b-again", ("grad_norm",)),
    ],
)
def test_words_name_a_run_then_a_metric_with_defaults(
    words: Sequence[str], run: str, metrics: tuple[str, ...], catalog: Catalog
) -> None:
    asked, answer = ask(catalog, QUESTIONS["curve"], words, {})
    assert (asked.run.run, asked.metrics) == (run, metrics)
    assert ("2 runs are named digits" in " ".join(answer.notes)) == (words[0] == "digits")


def test_a_single_word_that_names_no_run_is_a_metric_of_the_newest_run(catalog: Catalog) -> None:
    with pytest.raises(BadData, match=r"run bare \(bare\) has no metric 'loss'"):
        ask(catalog, QUESTIONS["curve"], ["loss"], {})


def test_thinning_keeps_the_spike_and_the_nan(catalog: Catalog) -> None:
    _, answer = ask(catalog, QUESTIONS["curve"], ["01a-first", "loss"], {"points": 40})
    values = [row["high"] for row in answer.tables[0].rows]
    assert max(values) == 6.0
    assert any(row["nan"] for row in answer.tables[0].rows)
    assert "1 are NaN" in " ".join(answer.notes)
    assert "thinned" in " ".join(answer.notes)


@pytest.mark.parametrize("form", ["text", "--json", "--csv"])
def test_the_command_prints_and_writes_files(form: str, root: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    options = [] if form == "text" else [form]
    if form == "text":
        options += ["--html", str(page), "--png", str(picture)]
    result = runner.invoke(app, ["curve", "01a-first", "loss", "--root", str(root), *options])
    assert result.exit_code == 0, result.output
    if form == "text":
        assert page.read_text().startswith("<!doctype html>")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert "in SQL: FROM curve('01a-first', 'loss'" in result.stdout
    elif form == "--json":
        assert json.loads(result.stdout)["tables"]["points"][0]["step"] == 0
    else:
        assert result.stdout.startswith("step,time,value,")
        assert len(result.stdout.splitlines()) == 121


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["curve", "01a-first", "loss", "--html", "/nonexistent/a.html"], "cannot write /nonexistent/a.html"),
        (["curve", "nonsense", "x"], "no run 'nonsense'"),
        (["report", "nonsense"], "no run 'nonsense'"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: list[str], says: str, root: Path) -> None:
    result = runner.invoke(app, [*arguments, "--root", str(root)])
    assert result.exit_code == 1
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["curve 01a-first loss", "evals 01a-first", "sql 'FROM runs'"])
def test_a_question_loads_only_what_it_needs(command: str, root: Path) -> None:
    code = f"""
import sys, typer.testing
from driftline.cli.app import app
assert typer.testing.CliRunner().invoke(app, {[*shlex.split(command), "--root", str(root)]!r}).exit_code == 0
others = {{"torch", "faust", "aiokafka", "kafka", "numba", "matplotlib", "pandas", "asyncio", "fsspec"}}
parts = {{"pyarrow.compute", "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset", "typer.rich_utils"}}
print(sorted((others | parts) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"


def test_there_is_a_command_for_every_question() -> None:
    commands: set[Any] = {command.name for command in app.registered_commands}
    assert set(QUESTIONS) <= commands


def test_metrics_that_are_exactly_proportional_are_related(answered: Any) -> None:
    """Their correlation is 1 but for rounding, which may put it above 1."""
    _, answer = answered("correlate")
    pair = answer.tables[0].rows[0]
    assert (pair["metric_a"], pair["metric_b"], pair["verdict"]) == ("grad_norm", "loss", "related")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two imported runs: ``timed`` has a column of times, ``untimed`` has none."""
    folder = tmp_path_factory.mktemp("imported")
    (folder / "timed.csv").write_text(
        "step,passed_ms,loss\n" + "".join(f"{step},{step * 250},{4 / (step + 1)}\n" for step in range(40))
    )
    (folder / "untimed.csv").write_text(
        "step,loss\n" + "".join(f"{step},{4 / (step + 1)}\n" for step in range(40))
    )
    root = folder / "data"
    for name, more in (("timed", ["--elapsed-column", "passed_ms"]), ("untimed", [])):
        given = ["import", str(folder / f"{name}.csv"), "--run", name, "--root", str(root), *more]
        result = runner.invoke(app, given)
        assert result.exit_code == 0, result.output
    return root


@pytest.mark.parametrize(
    ("name", "words", "options"),
    [
        ("goodput", [], {}),
        ("utilisation", [], {}),
        ("trend", ["loss"], {"target": 0.01, "better": "min"}),
        ("compare", ["timed", "loss"], {"axis": "time"}),
        ("cost", ["timed", "loss"], {"better": "min"}),
    ],
)
def test_what_rests_on_made_up_times_says_so(
    name: str, words: list[str], options: dict[str, Any], imported: Path
) -> None:
    with open_catalog(imported) as catalog:
        _, answer = ask(catalog, QUESTIONS[name], ["untimed", *words], options)
        notes = [note for note in answer.notes if "imported without times" in note]
        assert notes == [
            "untimed was imported without times: each step stands for a second, so what comes of the clock "
            "(wall time, throughput) means nothing"
        ]
        if "timed" not in words:
            _, answer = ask(catalog, QUESTIONS[name], ["timed", *words], options)
            assert not any("without times" in note for note in answer.notes)


def test_what_does_not_rest_on_times_says_nothing_of_them(imported: Path) -> None:
    with open_catalog(imported) as catalog:
        _, compared = ask(catalog, QUESTIONS["compare"], ["untimed", "timed", "loss"], {})
        assert not any("without times" in note for note in compared.notes)
        assert "their settings are not known: imported" in compared.notes
        assert [series.name for series in compared.charts[0].lines] == ["untimed", "timed"]
        result = runner.invoke(
            app, ["report", "untimed", "--root", str(imported), "--out", str(imported / "r.html")]
        )
    assert result.exit_code == 0, result.output
    assert "imported without times" in (imported / "r.html").read_text()


@pytest.mark.parametrize(("span_s", "total", "note"), [(0.5, "40.5 s", None), (1.5, "1 min 2 s", "32.5 %")])
def test_waiting_is_in_one_step_only_and_spans_that_reach_into_the_step_before_are_said(
    tmp_path: Path, span_s: float, total: str, note: str | None
) -> None:
    """Two ranks take turns to be late by 100 ms: each of their clocks sees a second a step. Spans of 1.5 s
    are in the step before for half a second, in 40 steps of 41: 20 s of 61.5."""
    rows = [
        f"{step},{rank},{step + 0.05 * (-1) ** (step + rank)},{span_s}\n"
        for step in range(41)
        for rank in range(2)
    ]
    (tmp_path / "two.csv").write_text("step,rank,passed,span/forward\n" + "".join(rows))
    given = ["import", str(tmp_path / "two.csv"), "--elapsed-column", "passed", "--root"]
    result = runner.invoke(app, [*given, str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    with open_catalog(tmp_path / "data") as catalog:
        _, answer = ask(catalog, QUESTIONS["steps"], [], {})
    assert total in answer.says[0]
    said = "spans of a step begin before the step before has ended: {} of the time is in two steps"
    assert answer.notes == (() if note is None else (said.format(note),))


def test_runs_are_compared_along_the_running_sum_of_a_metric(catalog: Catalog) -> None:
    words = ["01a-first", "01b-again", "loss"]
    asked, answer = ask(catalog, QUESTIONS["compare"], words, {"axis": "tokens_per_second", "running": True})
    assert answer.charts[0].x.title == "tokens_per_second so far"
    assert asked.options["running"]


def test_a_way_to_be_better_is_max_or_min(root: Path) -> None:
    result = runner.invoke(app, ["trend", "01a-first", "loss", "--better", "up", "--root", str(root)])
    assert result.exit_code == 2
    assert "'up' is not one of 'max', 'min'" in result.output


def test_a_change_without_a_past_has_no_drivers(catalog: Catalog) -> None:
    _, answer = ask(catalog, QUESTIONS["drivers"], ["01a-first", "loss"], {"at": 2})
    assert answer.says[0] == "Looked at is loss at step 2."
    assert "No metric has enough points" in answer.says[1]


@pytest.mark.parametrize(
    ("hours", "says"),
    [((1.0, 3.0), "b took 3 h, 2 h more than a."), ((3.0, 1.0), "b took 1 h, 2 h less than a.")],
)
def test_the_slower_run_is_said_to_have_taken_more_time(hours: tuple[float, float], says: str) -> None:
    """What a change cost has the right sign."""
    spent = {"hours_a": hours[0], "hours_b": hours[1], "money_a": None, "money_b": None}
    assert cost._spent(spent, "a", "b") == says
