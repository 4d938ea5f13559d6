"""An answer for programs: one JSON object, or its first table as CSV.

The object: ``question``, ``title``, ``asked`` (what was asked: runs, metric, options), ``says`` and ``notes``
(lists of sentences), ``empty`` (why there is nothing, else null), ``tables`` (for each table a list of
objects with the columns of the SQL), ``sql``. Non-finite numbers are "NaN", "Infinity", "-Infinity", as in
``driftline sql --json``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from driftline.analysis.answer import Answer
from driftline.analysis.values import csv_cell, jsonable


def as_json(answer: Answer, asked: Mapping[str, Any]) -> str:
    """The object, on one line."""
    whole = {
        "question": answer.question,
        "title": answer.title,
        "asked": jsonable(dict(asked)),
        "says": list(answer.says),
        "notes": list(answer.notes),
        "empty": answer.empty or None,
        "tables": {table.name: [jsonable(dict(row)) for row in table.rows] for table in answer.tables},
        "sql": list(answer.sql),
    }
    return json.dumps(whole, ensure_ascii=False)


def write_csv(answer: Answer, out: TextIO, *, shown: Callable[[str], str] = str) -> None:
    """The first table with all columns of its SQL; nothing but an empty file where there is none."""
    rows = answer.tables[0].rows if answer.tables else ()
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names and answer.tables:
        names = [column.name for column in answer.tables[0].columns]
    writer = csv.writer(out, lineterminator="\n")
    if names:
        writer.writerow(names)
    for row in rows:
        cells = [csv_cell(row.get(name)) for name in names]
        writer.writerow([shown(cell) if isinstance(cell, str) else cell for cell in cells])
