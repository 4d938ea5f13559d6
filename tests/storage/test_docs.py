"""docs/sql.md says every table, view and column, with examples whose answers are real.

The page is made by this module: ``DRIFTLINE_WRITE_DOCS=1 pytest tests/storage/test_docs.py`` writes it anew.
"""

# ruff: noqa: E501  the page's prose and SQL stand here as they stand there

from __future__ import annotations

import importlib.util
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from driftline.storage.open import Catalog, open_catalog
from driftline.storage.relations import SQL_TYPES
from driftline.storage.tables import TABLES
from driftline.storage.views import BASE_VIEW, VIEWS, View

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"

INTRO = """# Tables and views

What driftline stores lies under one folder (`storage.root`, by default `./driftline-data`): a folder for each
table, each a [Delta Lake](https://delta.io) table of Parquet files, and `catalog.duckdb`, a small DuckDB
database of views over them. Three ways to ask:

    driftline sql "select * from run_summary"
    duckdb -readonly driftline-data/catalog.duckdb
    python -c "import driftline; print(driftline.open('./driftline-data').rows('from runs'))"

The first and the third read the tables' own logs and so always show what is committed; they also work after the
folder was moved. `catalog.duckdb` is renewed by the sink every few seconds, names files by absolute paths and
needs nothing of driftline. Polars, Spark, pandas and others read the tables as Delta Lake tables
(`deltalake.DeltaTable("driftline-data/samples")`). Do not read `*.parquet` of a folder directly: files that a
compaction or deletion replaced lie there for an hour, and their rows would count twice.

Tables in an object store (`storage.root: s3://bucket/prefix`, `pip install 'driftline[objects]'`) are asked in the first and the
third way; endpoint and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`; `AWS_ALLOW_HTTP=true` for a store without TLS). The store must honour conditional
puts (`If-None-Match`), as Amazon S3, MinIO and others do. There is no `catalog.duckdb` there.

Times are UTC instants (`TIMESTAMPTZ`, microseconds): the same in every reader's time zone; `utc_day(time)` is the
UTC date of one. NaN and infinities are data: `isnan(value)` finds them, means leave them out, and in comparisons
DuckDB takes NaN for the largest number. `topic_uuid`, `partition`, `offset` say from which record a row comes;
in `windows`, `facts` and `alerts`, with `ordinal`, which telemetry record caused it. `end`, `group`, `offset` and
`partition` are SQL words: write them in double quotes.

Rows appear at most `storage.commit` after they reached the broker, exactly once, also after kill -9 of the sink.
What a process sent twice is in `log`, marked `duplicate`, and nowhere else. Deleting a topic and making it anew
keeps the old rows: positions speak of the topic's UUID, and what is sent again to the new one is known.

What a topic deletes by its own retention before the sink has stored it is lost. The sink warns every minute when
what it has to read is older than half of `retention.ms`, or larger than half of `retention.bytes`; what was lost
all the same has a row in `gaps` (also what went before the first sink of these tables came), and counts as
`records lost` in the sink's line.

With `storage.retention` the sink deletes, soon after its start and then every hour, the rows of `samples` whose
`time`, of `log` whose `received` and of `eval_items` whose evaluation's acceptance is longer ago (but no item that
was sent after one that stays). Of `log` the newest stored row of each process stays, so that what
it sends again is still known and its run stays in `runs`.
"Ago" counts from the newest record in `log`, or from the sink's clock if that is behind it: a clock that jumps
ahead deletes nothing young, and while nothing comes nothing is deleted.
All other tables are kept. `curves`, `best`, `slowest_ranks` and the samples of `run_summary` and `metrics` speak of
what is left; `trends` and `eval_curves` stay whole.

What the statistical macros compute, their limits and how often their intervals were right: [analysis.md](analysis.md).
A run is named by its id or, for its newest run, by its name.

The examples below are answered from a small run of two ranks, made by `tests/storage/docs_runs.py`;
`tests/storage/test_docs.py` checks this page.
"""

TABLE_QUERIES = {
    "samples": "SELECT rank, metric, step, value, weight FROM samples WHERE metric = 'loss' ORDER BY step, rank LIMIT 4",
    "log": "SELECT kind, outcome, count(*) AS records, sum(samples) AS samples FROM log WHERE run = '01k4-digits' GROUP BY ALL ORDER BY 1, 2",
    "windows": 'SELECT metric, start, "end", "count", mean, std, p95, present, expected FROM windows',
    "alerts": "SELECT rule, state, step, rank, value, expected, explanation FROM alerts ORDER BY time",
    "facts": 'SELECT what, attempt, process, rank, text FROM facts ORDER BY run, "offset" LIMIT 4',
    "checkpoints": "SELECT step, epoch, format, files, bytes, uri FROM checkpoints ORDER BY step",
    "evals": 'SELECT step, metric, value, low, high, "count", status, seconds FROM evals ORDER BY step, metric',
    "eval_items": "SELECT lease, position, item, status, score, response_length FROM eval_items ORDER BY lease, position LIMIT 3",
    "gaps": 'SELECT topic, "partition", first, last, tables FROM gaps',
    "metrics": 'SELECT process, metric, goal, unit, reduce, description FROM metric_definitions ORDER BY "offset"',
    "processes": 'SELECT process, event, time, rank, world_size, outcome FROM process_events ORDER BY run, "offset" LIMIT 4',
}


@pytest.fixture
def examples(store: Any, make: Any) -> Any:
    """A storage root with all runs of the examples."""
    path = Path(__file__).parent / "docs_runs.py"
    spec = importlib.util.spec_from_file_location("driftline_tests_docs_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for run in module.RUNS:
        run(store, make)
    return store


def answer(catalog: Catalog, sql: str) -> list[str]:
    """The query and its answer as lines of text."""
    table = catalog.query(sql)
    rows = [
        table.column_names,
        *([shown(v) for v in row] for row in zip(*(c.to_pylist() for c in table.columns), strict=True)),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(table.column_names))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return ["```sql", sql, "```", "```", *lines, "```"]


def shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00") + "Z"
    return str(value)


def columns_of(catalog: Catalog, view: View) -> str:
    described = catalog.rows(f'DESCRIBE "{view.name}"')
    return ", ".join(f"`{row[0]}` {short(row[1])}" for row in described)


def answered(catalog: Catalog, view: View) -> dict[str, str]:
    """The columns that the view, or the macro as its example calls it, answers with, and their types."""
    source = f'"{view.name}"' if view.macro is None else called(view)
    return {row[0]: short(row[1]) for row in catalog.rows(f"DESCRIBE FROM {source}")}


def called(view: View) -> str:
    """The call of a macro in its own example."""
    start = view.example.index(view.name + "(")
    for end in range(start, len(view.example) + 1):
        part = view.example[start:end]
        if part.endswith(")") and part.count("(") == part.count(")"):
            return part
    raise AssertionError(view.example)


def short(sql_type: str) -> str:
    return sql_type.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")


def page(catalog: Catalog) -> str:
    lines = [INTRO, "## Tables", ""]
    for name, table in TABLES.items():
        lines += [
            f"### {name}",
            "",
            f"One row: {table.row}. Each commit's rows are sorted by {', '.join(table.order)}.",
        ]
        if name in BASE_VIEW:
            lines += [
                f"In DuckDB these rows are the view `{BASE_VIEW[name]}`; `{name}` there is the view below."
            ]
        lines += ["", "| column | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{c.name}` | {SQL_TYPES[c.type]} | {c.says.replace('|', chr(92) + '|')} |"
            for c in table.columns
        ]
        lines += ["", *answer(catalog, TABLE_QUERIES[name]), ""]
    lines += ["## Views and macros", ""]
    for view in VIEWS:
        call = f"{view.name}({view.macro})" if view.macro else view.name
        lines += [
            f"### {call}",
            "",
            f"One row: {view.says}." if not view.macro else f"{view.says[0].upper()}{view.says[1:]}.",
        ]
        if view.columns:
            lines += ["", "| column | type | meaning |", "|---|---|---|"]
            types = answered(catalog, view)
            lines += [f"| `{name}` | {types[name]} | {says} |" for name, says in view.columns]
        elif view.macro is None:
            lines += ["", f"Columns: {columns_of(catalog, view)}."]
        lines += ["", *answer(catalog, view.example), ""]
    return "\n".join(lines).rstrip() + "\n"


def test_the_page_is_what_the_tables_and_views_are(examples: Any) -> None:
    with open_catalog(examples.root) as catalog:
        text = page(catalog)
    if os.environ.get("DRIFTLINE_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "run: DRIFTLINE_WRITE_DOCS=1 .venv/bin/pytest tests/storage/test_docs.py"


def test_every_column_has_a_meaning_in_words() -> None:
    for table in TABLES.values():
        for column in table.columns:
            assert re.search(r"[a-z]", column.says), (table.name, column.name)


def test_documented_columns_are_the_columns_of_the_answer(examples: Any) -> None:
    with open_catalog(examples.root) as catalog:
        for view in VIEWS:
            if view.columns:
                assert list(answered(catalog, view)) == [name for name, _ in view.columns], view.name
            assert all(re.search(r"[a-z]", says) for _, says in view.columns), view.name
