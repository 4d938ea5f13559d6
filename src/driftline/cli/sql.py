"""Prints the answer to an SQL query: a table for people, JSON lines or CSV for programs.

Non-finite numbers are "NaN", "Infinity" and "-Infinity" (text in JSON, which has none), times ISO 8601 in
UTC, bytes hexadecimal; null is null in JSON and empty in CSV.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftline.errors import BadData
from driftline.events import number
from driftline.storage.sql import query
from driftline.visible import visible

Form = Literal["table", "json", "csv"]
BATCH_ROWS = 10_000
_CELL_MAX = 100_000
FOLD_WIDTH = 24
"""Where columns are folded to fit a terminal, none becomes narrower than this."""


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
            print(shown(json.dumps(dict(zip(names, map(_jsonable, row), strict=True)), ensure_ascii=False)))
    elif form == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(answer.column_names)
        out.writerows(
            [shown(cell) if isinstance(cell := _csv(value), str) else cell for value in row]
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
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _print_table(answer: Any, max_rows: int) -> None:
    """A table; on a terminal too narrow for it, each row as a list of its values. A pipe has no width."""
    console = Console(soft_wrap=False)
    if not answer.num_columns:
        console.print("done, no rows")
        return
    names = list(answer.column_names)
    rows = [[_cell(value) for value in row] for row in _rows(answer.slice(0, max_rows))]
    widths = [max(cell_len(text) for text in column) for column in zip(names, *rows, strict=True)]
    if not console.is_terminal:
        console.width = max(console.width, sum(widths) + 2 * len(widths))
    if rows and sum(min(width, FOLD_WIDTH) + 2 for width in widths) > console.width:
        for number_of_row, row in enumerate(rows, start=1):
            console.print(Text(f"row {number_of_row}", style="bold"))
            record = Table(box=None, padding=(0, 1), show_header=False)
            record.add_column(style="dim", overflow="fold")
            record.add_column(overflow="fold")
            for name, text in zip(names, row, strict=True):
                record.add_row(Text(visible(name)), Text(text))
            console.print(record)
    else:
        table = Table(box=None, padding=(0, 1), header_style="bold")
        for name, kind in zip(names, answer.schema.types, strict=True):
            right = str(kind).startswith(("int", "uint", "float", "double", "decimal"))
            table.add_column(Text(visible(name)), justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    left = answer.num_rows - max_rows
    if left > 0:
        console.print(f"{left:,} more rows: limit the query, or use --max-rows, --csv or --json", style="dim")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(_plain(value), _CELL_MAX)


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict | list | tuple):
        return json.dumps(_jsonable(value), ensure_ascii=False)
    return str(value)


def _csv(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return number(value)
    return value if isinstance(value, int | float) else "" if value is None else _plain(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
