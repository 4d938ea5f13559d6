"""``driftline import`` and ``driftline export`` as commands."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from driftline.cli.app import app


def driftline(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def test_an_imported_run_is_replayed_row_by_row_as_it_is_stored(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "run.csv"
    rows = [
        f"{step},{rank},{1 / (step + 1)},{'nan' if step == 60 else 1}"
        for step in range(90)
        for rank in (0, 1)
    ]
    rows += [f"{step},{rank},0.5,2" for step in range(70, 80) for rank in (0, 1)]
    path.write_text("\n".join(["step,rank,loss,x", *rows, ""]))
    evals = tmp_path / "evals.csv"
    evals.write_text("step,task,metric,value,stderr\n10,arc,acc,0.5,0.1\n")
    assert driftline("import", path, evals, "--root", root).exit_code == 0
    done = driftline("replay", "--root", root)
    assert done.exit_code == 0, done.output
    assert "Identical" in done.output


def test_a_file_and_the_same_file_packed_are_one_source_and_the_way_out_is_said(
    tmp_path: Path, root: Path
) -> None:
    plain, packed = tmp_path / "run.csv", tmp_path / "run.csv.gz"
    plain.write_text("step,loss\n1,2\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    done = driftline("import", plain, packed, "--root", root)
    assert (done.exit_code, root.exists()) == (2, False)
    assert "packed or not: name one of them" in done.stderr


def test_a_dry_run_says_what_would_come_and_writes_nothing(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss,note\n1,0.5,a\n2,nan,b\n")
    done = driftline("import", path, "--root", root, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["samples"], said["rows_added"], said["refused"]) == (2, {}, {"text": 2})
    assert said["refused_examples"][0]["line"] == 2
    assert not root.exists()


def test_the_summary_names_runs_guesses_refusals_and_rows(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("Step,time,loss,note\n1,2024-01-01 00:00,0.5,\x1b[31mred\n2,2024-01-01 00:01,0.4,b,c\n")
    done = driftline("import", path, "--root", root, "--name", "first")
    assert done.exit_code == 0, done.output
    for words in (
        "first",
        "1 samples",
        "step: column 'Step'",
        "time: column 'time', dates, UTC",
        "text 1",
        "run.csv:3: fields: 5 fields, the header has 4",
        "samples 1",
    ):
        assert words in done.output
    assert "\x1b[31m" not in done.output
    again = driftline("import", path, "--root", root, "--name", "first")
    assert "already there" in again.output


def test_wrong_options_are_one_line_and_exit_code_2(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss\n1,0.5\n")
    for wrong in (
        ["--format", "xlsx"],
        ["--time-unit", "h"],
        ["--start", "soon"],
        ["--step-column", "nothing"],
        ["--time-zone", "Nowhere"],
    ):
        done = driftline("import", path, "--root", root, *wrong)
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1
        assert wrong[0] in done.stderr
    assert driftline("import", tmp_path / "nothing", "--root", root).exit_code == 2


def test_what_will_expire_is_said(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("time,loss\n2001-01-01,0.5\n")
    settings = tmp_path / "driftline.yaml"
    settings.write_text(f"storage: {{root: {root}, retention: 30d}}\n")
    done = driftline("import", path, "--config", settings)
    assert "storage.retention is set" in done.output


def test_an_export_says_how_many_rows_it_wrote(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,loss,acc\n1,0.5,1\n2,0.25,0\n")
    driftline("import", path, "--root", root, "--name", "one")
    out = tmp_path / "out.csv"
    done = driftline("export", out, "--root", root, "--view", "curves", "--run", "one", "--metric", "loss")
    assert done.exit_code == 0, done.output
    assert "2 rows" in done.output
    assert len(out.read_text().splitlines()) == 3
    done = driftline("export", out, "--root", root, "--query", "SELECT 1 AS one", "--run", "one")
    assert done.exit_code == 2
