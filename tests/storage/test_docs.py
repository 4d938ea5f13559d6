"""docs/tables.md says every table, view and column, with examples whose answers are real.

The page is made by this module: ``DRIFTLINE_WRITE_DOCS=1 pytest tests/storage/test_docs.py`` writes it anew.
"""

# ruff: noqa: E501  the page's prose and SQL stand here as they stand there

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.storage.core import SinkCore, Spot
from driftline.storage.open import Catalog, open_catalog
from driftline.storage.relations import SQL_TYPES
from driftline.storage.tables import TABLES
from driftline.storage.views import BASE_VIEW, VIEWS, View

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"

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
`time`, of `log` whose `received` and of `eval_items` whose evaluation's acceptance is longer ago. Of `log` the
newest stored row of each process stays, so that what it sends again is still known and its run stays in `runs`.
"Ago" counts from the newest record in `log`, or from the sink's clock if that is behind it: a clock that jumps
ahead deletes nothing young, and while nothing comes nothing is deleted.
All other tables are kept. `curves`, `best`, `slowest_ranks` and the samples of `run_summary` and `metrics` speak of
what is left; `trends` and `eval_curves` stay whole.

The examples below are answered from a small run of two ranks, made by `tests/storage/test_docs.py`, which also
checks this page.
"""

TABLE_QUERIES = {
    "samples": "SELECT rank, metric, step, value, weight FROM samples WHERE metric = 'loss' ORDER BY step, rank LIMIT 4",
    "log": "SELECT kind, outcome, count(*) AS records, sum(samples) AS samples FROM log GROUP BY ALL ORDER BY 1, 2",
    "windows": 'SELECT metric, start, "end", "count", mean, std, p95, present, expected FROM windows',
    "alerts": "SELECT rule, state, step, rank, value, expected, explanation FROM alerts ORDER BY time",
    "facts": 'SELECT what, attempt, process, rank, text FROM facts ORDER BY "offset"',
    "checkpoints": "SELECT step, epoch, format, files, bytes, uri FROM checkpoints ORDER BY step",
    "evals": 'SELECT step, metric, value, low, high, "count", status, seconds FROM evals ORDER BY step, metric',
    "eval_items": "SELECT lease, position, item, status, score, response_length FROM eval_items ORDER BY lease, position LIMIT 3",
    "gaps": 'SELECT topic, "partition", first, last, tables FROM gaps',
    "metrics": 'SELECT process, metric, goal, unit, reduce, description FROM metric_definitions ORDER BY "offset"',
    "processes": 'SELECT process, event, time, rank, world_size, outcome FROM process_events ORDER BY "offset"',
}
VIEW_QUERIES = {
    "utc_day": "SELECT utc_day(time) AS day, count(*) AS samples FROM samples GROUP BY day",
    "attempts": "SELECT process, attempt, from_offset FROM attempts ORDER BY process",
    "sample_attempts": "SELECT attempt, count(*) AS samples FROM sample_attempts GROUP BY attempt",
    "curves_all": "SELECT attempt, step, mean FROM curves_all WHERE metric = 'loss' ORDER BY step LIMIT 2",
    "curves": "SELECT step, value, mean, min, max, n, nan FROM curves WHERE metric = 'loss' ORDER BY step",
    "best": "SELECT metric, goal, best, best_step, newest, newest_step FROM best",
    "metrics": "SELECT metric, goal, unit, reduce, samples, last_step FROM metrics ORDER BY metric",
    "trends": "SELECT metric, window_start, mean, p95, n FROM trends WHERE \"group\" = ''",
    "eval_curves": "SELECT suite, metric, step, value, low, high, n FROM eval_curves ORDER BY metric, step",
    "eval_answers": "SELECT step, item, status, response, expected FROM eval_answers ORDER BY step, position LIMIT 2",
    "alerts_latest": "SELECT rule, state, step, rank FROM alerts_latest ORDER BY rule",
    "alerts_open": "SELECT rule, severity, step, rank, explanation FROM alerts_open",
    "slowest_ranks": "SELECT span, rank, mean, median_of_ranks, ratio FROM slowest_ranks",
    "processes": "SELECT process, attempt, rank, role, host, started, ended, outcome FROM processes ORDER BY rank",
    "runs": "SELECT run, name, started, ended, outcome, attempts, world_size, config FROM runs",
    "eval_cost": "SELECT suite, evaluations, failed, seconds, latency_seconds, wall_seconds, share FROM eval_cost",
    "run_summary": "SELECT name, ranks, last_step, samples, metrics, checkpoints, evaluations, alerts FROM run_summary",
    "correlation": "FROM correlation('01k4-digits', 'loss', 'grad_norm', max_lag := 1)",
}
RUN = "01k4-digits"


@pytest.fixture
def digits(store: Any, make: Any) -> Any:
    """A small run of two ranks; rank 1 is slow, the loss has one NaN."""
    telemetry, eval_metrics = [], {4: (0.25, 0.18, 0.33), 8: (0.75, 0.66, 0.83)}
    for rank in (0, 1):
        telemetry.append(
            make.started(
                run=RUN, process=f"p{rank}", rank=rank, name="digits", world_size=2, local_rank=rank,
                host="node-a", pid=100 + rank, config={"lr": 0.001}, sdk="0.1.0",
            )
        )  # fmt: skip
    for rank in (0, 1):
        loss = [4.0 / (step + 1) + 0.01 * rank for step in range(8)]
        values = {"loss": loss, "grad_norm": [value / 2 for value in loss]}
        values["loss"] = [float("nan") if (rank, at) == (1, 5) else value for at, value in enumerate(loss)]
        values["span/forward"] = [0.010 if rank == 0 else 0.025] * 8
        frame = make.frame(1, values, run=RUN, process=f"p{rank}", rank=rank)
        telemetry += [frame, frame] if rank == 0 else [frame]
    for seq, (metric, said) in enumerate([("loss", "nats per token"), ("grad_norm", None)], 7):
        reduce: Any = "max" if said is None else None
        defined = events.MetricDefined(
            run=RUN, process="p1", seq=seq, time_us=make.t0, metric=metric, goal="min" if said else None,
            unit=said, reduce=reduce,
        )  # fmt: skip
        telemetry.append(events.encode(defined))
    for number, (step, (value, low, high)) in enumerate(eval_metrics.items()):
        files = [events.FileEntry("model.safetensors", 440_000), events.FileEntry("config.json", 300)]
        saved = events.Checkpoint(
            digest=f"c{step}", uri=f"/runs/digits/{step}", step=step, epoch=step / 4, files=files
        )
        telemetry.append(
            events.encode(
                events.CheckpointSaved(
                    run=RUN, process="p0", seq=2 + number, time_us=make.t0 + step * 1_000_000,
                    checkpoint=saved, rank=0,
                )
            )
        )  # fmt: skip
        metric = events.Metric(name="exact_match", value=value, stderr=0.04, low=low, high=high, count=100)
        length = events.Metric(name="response_length", value=3.0, count=100, unit="tokens")
        outcome = events.EvalOutcome(
            status="done", metrics=[metric, length], items=2, cost=events.Cost(seconds=1.5, tokens=300)
        )
        now = make.t0 + step * 1_000_000
        telemetry.append(
            make.accepted(
                number, run=RUN, step=step, checkpoint=saved, outcome=outcome, requested_us=now,
                accepted_us=now + 2_000_000,
            )
        )  # fmt: skip
    for rank in (0, 1):
        ended = events.ProcessEnded(run=RUN, process=f"p{rank}", seq=9, time_us=make.t0 + 20_000_000)
        telemetry.append(events.encode(ended))
    store.put("telemetry", *telemetry)
    store.put("facts", *[
        make.fact(at, run=RUN, what="process_joined", process=f"p{at}", rank=at, text=f"process p{at} joined")
        for at in (0, 1)
    ])  # fmt: skip
    one = {"run": [RUN], "count": [16], "weight": [15.0], "nan": [1], "mean": [1.31], "std": [1.15]}
    one |= {"min": [0.5], "max": [4.01], "p50": [0.8], "p95": [4.0], "p99": [4.0], "present": [2]}
    store.put("windows", make.windows(2, **one, expected=[2]))
    spike = {"run": RUN, "alert": "nan/loss/1", "rule": "non-finite", "metric": "loss", "rank": 1, "step": 5}
    text = "loss is NaN on rank 1 at step 5"
    store.put(
        "alerts",
        make.alert(3, **spike, value="NaN", severity="page", explanation=text),
        make.alert(
            4, "resolved", **spike, value=0.58, severity="page", resolved_us=make.t0 + 9,
            explanation="loss is finite again on rank 1",
        ),
        make.alert(
            5, run=RUN, alert="slow/1", rule="slow-rank", rank=1, step=0, value=0.025, expected=0.01,
            severity="error", explanation="rank 1 computes 2.5 times longer than the others",
        ),
    )  # fmt: skip
    for number in (0, 1):
        items = [
            events.Item(
                item=f"{left}+7", status="correct" if number or left == 3 else "wrong",
                score=float(number or left == 3), response=str(left + 7 if number or left == 3 else 11),
                response_length=3, expected=str(left + 7),
            )
            for left in (3, 5)
        ]  # fmt: skip
        sent = events.EvalItems(
            run=RUN, request=f"request-{number}", lease=f"lease-{number}", first=0, items=items
        )
        store.put("eval-items", events.encode(sent))
    oldest = {Spot("alerts", make.uuid, 1): 12}
    SinkCore(store.lake).resume(oldest, now_us=make.t0)
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
        if view.macro is None:
            lines += ["", f"Columns: {columns_of(catalog, view)}."]
        lines += ["", *answer(catalog, VIEW_QUERIES[view.name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def test_the_page_is_what_the_tables_and_views_are(digits: Any) -> None:
    with open_catalog(digits.root) as catalog:
        text = page(catalog)
    if os.environ.get("DRIFTLINE_WRITE_DOCS"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "run: DRIFTLINE_WRITE_DOCS=1 .venv/bin/pytest tests/storage/test_docs.py"


def test_every_column_has_a_meaning_in_words() -> None:
    for table in TABLES.values():
        for column in table.columns:
            assert re.search(r"[a-z]", column.says), (table.name, column.name)
