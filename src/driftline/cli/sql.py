"""Prints the answer to an SQL query: a table for people, JSON lines or CSV for programs.

Non-finite numbers are "NaN", "Infinity" and "-Infinity" (text in JSON, which has none), times ISO 8601 in
UTC, bytes hexadecimal; null is null in JSON and empty in CSV.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from typing import Any, Literal

from rich.console import Console

from driftline.analysis.terminal import CELL_MAX, print_rows
from driftline.analysis.values import csv_cell, jsonable, plain
from driftline.errors import BadData
from driftline.storage.answers import rows_of
from driftline.storage.sql import query
from driftline.visible import visible

Form = Literal["table", "json", "csv"]
BATCH_ROWS = 10_000


def print_answer(root: str, sql: str, *, form: str, max_rows: int) -> int:
    """Answers ``sql`` from the tables under ``root``; returns the exit code.

    Raises:
        BadData: no tables there, or the SQL is wrong.
    """
    if not sql.strip():
        raise BadData('the query is empty; try: driftline sql "show tables"')
    answer = query(root, sql)
    # On a terminal what is stored must not steer it; a pipe gets the bytes as they are.
    shown = visible if sys.stdout.isatty() else str
    if form == "json":
        names = _distinct(answer.column_names)
        for row in _rows(answer):
            print(shown(json.dumps(dict(zip(names, map(jsonable, row), strict=True)), ensure_ascii=False)))
    elif form == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(answer.column_names)
        out.writerows(
            [shown(cell) if isinstance(cell := csv_cell(value), str) else cell for value in row]
            for row in _rows(answer)
        )
    else:
        _print_table(answer, max_rows)
    return 0


def _distinct(names: list[str]) -> list[str]:
    """Names of columns as keys: the second "a" becomes "a_2".

    >>> _distinct(["a", "b", "a"])
    ['a', 'b', 'a_2']
    """
    made: list[str] = []
    for at, name in enumerate(names):
        key, number = name, 2
        while key in made or (key != name and key in names[at:]):
            key, number = f"{name}_{number}", number + 1
        made.append(key)
    return made


def _rows(answer: Any) -> Iterator[tuple[Any, ...]]:
    for batch in answer.to_batches(max_chunksize=BATCH_ROWS):
        yield from rows_of(batch)


def _print_table(answer: Any, max_rows: int) -> None:
    """A table; on a terminal too narrow for it, each row as a list of its values. A pipe has no width."""
    console = Console(soft_wrap=False)
    if not answer.num_columns:
        console.print("done, no rows")
        return
    names = list(answer.column_names)
    rows = [[_cell(value) for value in row] for row in _rows(answer.slice(0, max_rows))]
    right = [
        str(kind).startswith(("int", "uint", "float", "double", "decimal")) for kind in answer.schema.types
    ]
    print_rows(console, names, rows, right)
    left = answer.num_rows - max_rows
    if left > 0:
        console.print(f"{left:,} more rows: limit the query, or use --max-rows, --csv or --json", style="dim")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(plain(value), CELL_MAX)
