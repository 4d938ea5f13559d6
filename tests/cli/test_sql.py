"""Answers to SQL queries as tables, JSON and CSV."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from driftline.cli import sql
from driftline.errors import BadData

ANSWER = pa.table(
    {
        "name": ["a,b", 'quote"', None],
        "value": [1.5, float("nan"), float("-inf")],
        "count": pa.array([1, None, 2**60], pa.int64()),
        "time": [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None, None],
        "map": pa.array([[("p90", 1.0)], [], None], pa.map_(pa.utf8(), pa.float64())),
        "decimal": pa.array([Decimal("1.25"), None, None]),
        "bytes": [b"\x00\xff", None, b""],
    }
)


@pytest.fixture(autouse=True)
def _answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "query", lambda root, text: ANSWER)


def test_json_has_one_object_per_row_that_any_program_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert sql.print_answer("root", "select", form="json", max_rows=1) == 0
    rows = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert [row["value"] for row in rows] == [1.5, "NaN", "-Infinity"]
    assert rows[0]["time"] == "2026-01-02T03:04:05+00:00"
    assert rows[0]["map"] == [["p90", 1.0]]
    assert rows[0]["decimal"] == 1.25
    assert rows[0]["bytes"] == "00ff"
    assert rows[2]["count"] == 2**60
    assert rows[1]["time"] is None


def test_csv_has_a_header_and_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    sql.print_answer("root", "select", form="csv", max_rows=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name,value,count,time,map,decimal,bytes"
    assert lines[1].startswith('"a,b",1.5,1,2026-01-02 03:04:05+00:00,')
    assert lines[2] == '"quote""",NaN,,,[],,'
    assert lines[3] == f",-Infinity,{2**60},,,,"


def test_a_table_is_cut_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    sql.print_answer("root", "select", form="table", max_rows=2)
    out = capsys.readouterr().out
    assert 'quote"' in out
    assert "1 more rows" in out
    assert "-inf" not in out


def test_no_columns_and_no_query(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "query", lambda root, text: pa.table({}))
    sql.print_answer("root", "create table x(a int)", form="table", max_rows=2)
    assert "done" in capsys.readouterr().out
    with pytest.raises(BadData, match="empty"):
        sql.print_answer("root", "  ", form="table", max_rows=2)


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "from driftline.cli import sql, outcome; import pyarrow as pa; "
        "sql.query = lambda root, text: pa.table({'x': list(range(300000))}); "
        "outcome.finish(lambda: sql.print_answer('r', 'q', form='json', max_rows=1), name='sql', debug=False)"
    )
    command = f'{sys.executable} -c "{code}" 2>&1 | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith('{"x": 0}')
    assert "BrokenPipe" not in done.stdout


def test_columns_of_one_name_are_all_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join often gives two columns of one name: an object of JSON has room for both."""
    answer = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "a_2"])
    monkeypatch.setattr(sql, "query", lambda root, text: answer)
    sql.print_answer("root", "select", form="json", max_rows=1)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "a_3": 2, "a_2": 3}


def test_whole_decimals_are_whole_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's sum of integers is one (HUGEINT): it must not become a float, which rounds."""
    answer = pa.table({"sum": pa.array([Decimal(2**53 + 1)], pa.decimal128(38, 0))})
    monkeypatch.setattr(sql, "query", lambda root, text: answer)
    sql.print_answer("root", "select", form="json", max_rows=1)
    assert capsys.readouterr().out == '{"sum": 9007199254740993}\n'


WIDE = pa.table({f"column_{at:02}": [f"value-{at:02}-" + "x" * 16, "y"] for at in range(14)})


def test_a_pipe_gets_every_row_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "query", lambda root, text: WIDE)
    sql.print_answer("root", "select", form="table", max_rows=9)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "value-00-" in lines[1]
    assert "value-13-" in lines[1]


@pytest.mark.parametrize(("columns", "as_records"), [(80, True), (120, True), (400, False)])
def test_on_a_terminal_too_narrow_for_the_columns_a_row_is_a_list_of_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, as_records: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sql, "query", lambda root, text: WIDE)
    sql.print_answer("root", "select", form="table", max_rows=1)
    out = capsys.readouterr().out
    assert ("row 1" in out) == as_records
    assert "value-13-" + "x" * 16 in out
    assert " more rows" in out
