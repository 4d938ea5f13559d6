"""The tables in memory, filled row by row: what the analyses say of a small made-up life of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from driftline.storage.relations import SQL_TYPES, identifier
from driftline.storage.tables import TABLES, TableName
from driftline.storage.views import BASE_VIEW, VIEWS, statement

T0 = 1_700_000_000_000_000
UUID = "11111111-1111-1111-1111-111111111111"
SECOND = 1_000_000


class Tables:
    """All tables, views and macros in a DuckDB of its own."""

    t0 = T0
    uuid = UUID

    def __init__(self) -> None:
        self.db = duckdb.connect()
        self.db.execute("SET TimeZone = 'UTC'")
        self._offset = 0
        for name, table in TABLES.items():
            columns = ", ".join(f"{identifier(c.name)} {SQL_TYPES[c.type]}" for c in table.columns)
            self.db.execute(f"CREATE TABLE {identifier(BASE_VIEW.get(name, name))} ({columns})")
        for view in VIEWS:
            self.db.execute(statement(view))

    def add(self, name: TableName, rows: Iterable[dict[str, Any]]) -> None:
        """Rows by column; what they leave out is null. Times are microseconds."""
        filled = pa.Table.from_pylist(list(rows), schema=TABLES[name].schema)
        self.db.register("new_rows", filled)
        self.db.execute(f"INSERT INTO {identifier(BASE_VIEW.get(name, name))} FROM new_rows")
        self.db.unregister("new_rows")

    def clear(self) -> None:
        self.db.execute("SET TimeZone = 'UTC'")
        self._offset = 0
        for name in TABLES:
            self.db.execute(f"DELETE FROM {identifier(BASE_VIEW.get(name, name))}")

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    def process(
        self, run: str, process: str, *, at: int = 0, attempt: int = 0, rank: int | None = 0, **started: Any
    ) -> None:
        """A process started ``at`` seconds, and the pipeline said which attempt it joined."""
        where = {"topic_uuid": UUID, "partition": 0, "offset": self.next_offset()}
        row = {"run": run, "process": process, "event": "started", "time": T0 + at * SECOND, "rank": rank}
        row |= {"role": "trainer", "name": run, "config": "{}", "host": "node-a", "seq": 0}
        self.add("processes", [row | started | where])
        joined = {"run": run, "process": process, "attempt": attempt, "what": "process_joined", "ordinal": 0}
        self.add("facts", [joined | where | {"time": T0 + at * SECOND, "rank": rank, "text": "joined"}])
        self.record(run, process, "process_started", where["offset"], at=at, rank=rank)

    def ended(self, run: str, process: str, *, at: float, outcome: str = "finished") -> None:
        where = {"topic_uuid": UUID, "partition": 0, "offset": self.next_offset()}
        row = {"run": run, "process": process, "event": "ended", "time": T0 + round(at * SECOND)}
        self.add("processes", [row | {"outcome": outcome} | where])

    def record(self, run: str, process: str, kind: str, offset: int, *, at: float, **more: Any) -> None:
        row = {"run": run, "process": process, "kind": kind, "outcome": "stored", "seq": offset}
        row |= {"topic_uuid": UUID, "partition": 0, "offset": offset, "received": T0 + round(at * SECOND)}
        self.add("log", [row | more])

    def samples(self, run: str, process: str, rows: Iterable[tuple[Any, ...]], rank: int | None = 0) -> int:
        """One frame of (metric, step, seconds since T0, value); its offset."""
        offset = self.next_offset()
        plain = {"run": run, "process": process, "rank": rank, "weight": 1.0}
        plain |= {"topic_uuid": UUID, "partition": 0, "offset": offset}
        self.add(
            "samples",
            [
                plain
                | {"metric": m, "step": s, "time": T0 + round(t * SECOND), "value": v, "ordinal": ordinal}
                for ordinal, (m, s, t, v) in enumerate(rows)
            ],
        )
        return offset

    def rows(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        return self.db.execute(sql, parameters).fetchall()

    def dicts(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        answer = self.db.execute(sql, parameters)
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def trace(self, path: Path, run: str) -> None:
        """A published trace: each operation a span that ended when it did; steps one after the other."""
        self.db.execute(
            f"""
            INSERT INTO samples BY NAME
            WITH x AS (FROM read_parquet(?)),
            lengths AS (SELECT step, max(start_ts + duration)::DOUBLE + 1 AS seconds FROM x GROUP BY step),
            begun AS (SELECT step, coalesce(sum(seconds) OVER (
                ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS at FROM lengths),
            ended AS (
                SELECT x.*, begun.at + start_ts::DOUBLE + duration::DOUBLE AS until
                FROM x JOIN begun USING (step))
            SELECT ? AS run, 'p' || rank AS process, rank::INTEGER AS rank, 'span/' || optype AS metric, step,
                make_timestamptz(({T0} + until * 1e6  -- its times are floats: ends coincide that did not
                    + row_number() OVER (PARTITION BY rank, step, until))::BIGINT) AS time,
                duration::DOUBLE AS value, 1.0 AS weight, '{UUID}' AS topic_uuid, 0 AS "partition",
                rank::BIGINT AS "offset", (row_number() OVER ())::INTEGER AS ordinal
            FROM ended
            """,
            [str(path), run],
        )


@pytest.fixture(scope="session")
def defined() -> Tables:
    return Tables()


@pytest.fixture
def tables(defined: Tables) -> Tables:
    """Empty tables; the views are made once for all tests."""
    defined.clear()
    return defined


@pytest.fixture(scope="session")
def timings() -> Path:
    """Where the published timings of ranks lie."""
    beside = Path(__file__).parents[4] / "shared" / "realdata"
    folder = Path(os.environ.get("DRIFTLINE_REALDATA", beside)) / "rank_timing"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set DRIFTLINE_REALDATA")
    return folder
