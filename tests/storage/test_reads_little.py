"""What queries read: samples of other runs lie in row groups of their own and are passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from driftline.storage import catalog
from driftline.storage.tables import TABLE_NAMES, TableName
from driftline.storage.views import VIEWS
from driftline.storage.views.view import View

RUNS, METRICS, STEPS = 12, 4, 300
ASKED = {
    "of_run": "'name3'",
    "run_a": "'name3'",
    "run_b": "'name7'",
    "of_metric": "'m1'",
    "metric_a": "'m1'",
    "metric_b": "'m2'",
    "train_metric": "'m2'",
    "of_step": "5",
}
"""What macros need to be told; runs by their names, as people do."""
OF_A_RUN = [
    view for view in VIEWS if view.macro is not None and {"of_run", "run_a"} & {*view.macro.split(", ")}
]


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """Runs with names, in one sorted file of samples, each in row groups of its own."""
    folder = tmp_path_factory.mktemp("runs")
    samples, started = folder / "samples.parquet", folder / "processes.parquet"
    db = duckdb.connect()
    files: dict[TableName, list[str]] = {name: [] for name in TABLE_NAMES}
    catalog.define_tables(db, files)
    of_run = METRICS * STEPS
    db.execute(f"""
        COPY (FROM samples UNION ALL BY NAME
            SELECT printf('run%03d', i // {of_run}) AS run, 'p' AS process, 0 AS rank,
                'm' || i // {STEPS} % {METRICS} AS metric, i % {STEPS} AS step,
                make_timestamptz(1764460800000000 + i * 1000) AS time, sin(i) + i % {STEPS} AS value,
                1 AS weight, 'u' AS topic_uuid, 0 AS "partition", i AS "offset", 0 AS ordinal
            FROM range({RUNS * of_run}) AS t(i) ORDER BY i)
        TO '{samples}' (ROW_GROUP_SIZE {STEPS // 2})""")
    db.execute(f"""
        COPY (FROM process_events UNION ALL BY NAME
            SELECT printf('run%03d', i) AS run, 'p' AS process, 'started' AS event, 0 AS rank,
                1 AS world_size, 'trainer' AS role, 'name' || i AS name, 'u' AS topic_uuid,
                0 AS "partition", i AS "offset",
                make_timestamptz(1764460800000000 + i * 1000) AS time
            FROM range({RUNS}) AS t(i)) TO '{started}'""")
    catalog.define(db, {**files, "samples": [str(samples)], "processes": [str(started)]})
    return db


def most_read(db: duckdb.DuckDBPyConnection, sql: str, folder: Path) -> int:
    """Rows that the greediest of the query's scans of samples read."""
    profile = folder / "profile.json"
    db.execute(f"SET enable_profiling = 'json'; SET profiling_output = '{profile}'")
    db.execute(sql).fetchall()
    db.execute("PRAGMA disable_profiling")
    found = []

    def look(node: dict[str, Any]) -> None:
        if "samples.parquet" in node.get("extra_info", {}).get("Filename(s)", ""):
            found.append(int(node["rows_scanned"]))
        for child in (*node.get("children", ()), *node.get("operator", ())):
            look(child)

    look(json.loads(profile.read_text()))
    return max(found, default=0)


@pytest.mark.parametrize("macro", OF_A_RUN, ids=lambda macro: macro.name)
def test_a_macro_that_is_asked_for_one_run_reads_samples_of_no_other(
    many_runs: duckdb.DuckDBPyConnection, tmp_path: Path, macro: View
) -> None:
    needed = ", ".join(ASKED[name] for name in str(macro.macro).split(", ") if ":=" not in name)
    assert most_read(many_runs, f"FROM {macro.name}({needed})", tmp_path) <= METRICS * STEPS


def test_the_measure_sees_a_scan_of_all_runs(many_runs: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """The form that macros must not have: DuckDB groups all runs, then looks for the one asked for."""
    form = "FROM curves WHERE run = {} AND metric = 'm1'"
    assert most_read(many_runs, form.format("(SELECT run_id('name3'))"), tmp_path) == RUNS * STEPS
    assert most_read(many_runs, form.format("'run003'"), tmp_path) == STEPS
