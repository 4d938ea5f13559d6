"""The statistical macros over curves given as arrays, in a DuckDB of their own: no files, no sink."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from driftline.storage import catalog
from driftline.storage.relations import identifier
from driftline.storage.tables import TABLES, TableName
from driftline.storage.views import BASE_VIEW

sys.path.insert(0, str(Path(__file__).parent))

T0 = 1_700_000_000_000_000


class Answers:
    """All views and macros over tables that a test fills itself."""

    def __init__(self) -> None:
        self.db = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'")
        catalog.define(self.db, {name: [] for name in TABLES})

    def reset(self) -> None:
        catalog.define_tables(self.db, {name: [] for name in TABLES})

    def table(self, name: TableName, rows: Sequence[dict[str, Any]]) -> None:
        """Replaces a table by these rows; columns that they lack are null."""
        columns = {f.name: [row.get(f.name) for row in rows] for f in TABLES[name].schema}
        self._replace(name, pa.table(columns, schema=TABLES[name].schema))

    def curves(self, *curves: tuple[str, str, Any, Any], seconds: float = 1.0) -> None:
        """Replaces samples by (run, metric, steps, values); steps last so many seconds."""
        parts = []
        for run, metric, steps, values in curves:
            n, at = len(steps), np.asarray(steps, np.int64)
            times = T0 + (np.clip(at, -(10**9), 10**9) * (seconds * 1e6)).astype(np.int64)
            same = {"run": run, "process": "p", "rank": 0, "metric": metric, "weight": 1.0, "topic_uuid": "u"}
            same |= {"partition": 0, "offset": 0, "ordinal": 0}
            given = {"step": at, "value": np.asarray(values, np.float64)}
            given |= {"time": times.astype("datetime64[us]")}
            columns = [
                pa.array(given[f.name], f.type)
                if f.name in given
                else pa.repeat(pa.scalar(same[f.name], f.type), n)
                for f in TABLES["samples"].schema
            ]
            parts.append(pa.table(columns, schema=TABLES["samples"].schema))
        self._replace("samples", pa.concat_tables(parts))

    def ask(self, sql: str, parameters: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        answer = self.db.sql(sql, params=list(parameters) if parameters else None)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.fetchall()]

    def one(self, sql: str, parameters: Sequence[Any] | None = None) -> dict[str, Any]:
        (row,) = self.ask(sql, parameters)
        return row

    def _replace(self, name: TableName, rows: pa.Table) -> None:
        self.db.register("given", rows)
        self.db.execute(f"CREATE OR REPLACE TABLE {identifier('rows of ' + name)} AS FROM given")
        view = identifier(BASE_VIEW.get(name, name))
        self.db.execute(f"CREATE OR REPLACE VIEW {view} AS FROM {identifier('rows of ' + name)}")


@pytest.fixture(scope="session")
def database() -> Answers:
    return Answers()


@pytest.fixture
def answers(database: Answers) -> Answers:
    """All macros, over empty tables."""
    database.reset()
    return database


@pytest.fixture
def realdata() -> Path:
    """The folder of real data, or a skip."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "realdata"
    folder = Path(os.environ.get("DRIFTLINE_REALDATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set DRIFTLINE_REALDATA")
    return folder


@pytest.fixture
def csv_rows(realdata: Path) -> Any:
    """Reads a CSV file of the real data as dictionaries."""
    return lambda name: list(csv.DictReader((realdata / name).read_text().splitlines()))


@pytest.fixture
def verl(realdata: Path) -> list[tuple[str, str, Any, Any]]:
    """A real PPO run as curves: about 45 metrics over 435 steps."""
    path = realdata / "rl_curves/verl_ppo_qwen0.5b_gsm8k.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    curves = []
    for name in sorted({name for line in lines for name in line["data"]}):
        points = [(line["step"], line["data"][name]) for line in lines if name in line["data"]]
        curves.append(("verl", name, [p[0] for p in points], [p[1] for p in points]))
    return curves
