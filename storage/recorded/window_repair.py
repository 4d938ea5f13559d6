"""Writes windows that were computed again to the table ``windows``, with the next revision.

A window that there is no more (of the whole run so far, say, which late data begin elsewhere) gets a revision
without samples: ``count`` is 0, which no live row has, and views leave such windows out.

The rows keep the position that caused the live row (their ordinal is -1), so that a sink's marks stay what
they were. The transaction has an id of its own, ``repair/<topic uuid>/<partition>``, counted up: of two
repairs at once one is refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from driftline.errors import BadData
from driftline.storage import catalog
from driftline.storage.lakes import open_lake
from driftline.storage.listing import read_files
from driftline.storage.objects import connect, place
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.source import Part
from driftline.storage.relations import identifier, path, source
from driftline.storage.tables import TABLES

_KEYS = ("run", "attempt", "axis", "span", "group", "metric", "start", "end")
_PLACE = ("topic_uuid", "partition", "offset", "ordinal", "revision")
_OF_NONE = dict.fromkeys(("count", "weight", "nan", "inf", "present", "expected"), "0")
"""Columns that are never null, of a window without samples."""
SHOWN = 20


class Change(NamedTuple):
    """A window that is another one with the late data: its samples and mean before (None: there was none)
    and after (0 samples: there is none)."""

    run: str
    attempt: int
    axis: str
    start: int
    end: int
    group: str
    metric: str
    revision: int
    samples: int | None
    mean: float | None
    new_samples: int
    new_mean: float | None


class Changes(NamedTuple):
    """Rows to be committed, and the first of them as changes."""

    rows: pa.Table
    shown: list[Change]
    seen: int
    """How many repairs the tables had seen when the rows were computed."""


class WindowRepair:
    """The table ``windows`` under ``root``. Raises BadData."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = place(root)

    def reached(self, part: Part) -> int:
        """The last offset that caused a stored row: what comes behind is left to the stream worker."""
        stored = Stored(self.root)
        try:
            return stored.reached(part.topic_uuid, part.partition)
        finally:
            stored.close()

    def runs_with_late_data(self) -> list[str]:
        """Runs of which a fact tells that data came late."""
        query = f"""SELECT DISTINCT run FROM {source("facts", read_files(self.root)["facts"])}
            WHERE what = 'late' ORDER BY run"""
        with connect(self.root) as db:
            return [run for (run,) in self._run(db, query).fetchall()]

    def changes(self, part: Part, before: Path, after: Path) -> Changes:
        """Windows that two files of rows differ in, and that are not stored like that yet; and those that
        are stored and there are no more."""
        seen = open_lake(self.root).version("windows", _app(part))  # before the files: see commit
        columns = [c.name for c in TABLES["windows"].columns]
        values = [name for name in columns if name not in (*_KEYS, *_PLACE, "expected")]
        listed = ", ".join(f"a.{identifier(name)}" for name in columns if name not in _PLACE)
        gone = ", ".join(
            f"s.{identifier(name)}"
            if name in _KEYS
            else f"{_OF_NONE.get(name, 'NULL')} AS {identifier(name)}"
            for name in columns
            if name not in _PLACE
        )
        query = f"""
            WITH stored AS (
                FROM {source("windows", read_files(self.root)["windows"])}
                QUALIFY revision = max(revision) OVER (PARTITION BY {", ".join(map(identifier, _KEYS))})),
            before AS (FROM read_parquet({path(str(before))})),
            after AS (FROM read_parquet({path(str(after))})),
            touched AS (
                SELECT a.* FROM after AS a LEFT JOIN before AS b ON {_same("a", "b", _KEYS)}
                LEFT JOIN stored AS s ON {_same("a", "s", _KEYS)}
                WHERE b.run IS NULL OR s.revision > 0 OR NOT ({_same("a", "b", values)})),
            newest AS (SELECT run, max(attempt) AS attempt FROM after GROUP BY run),
            closed AS (SELECT run, attempt, axis, max("end") AS "end" FROM after GROUP BY ALL),
            gone AS (
                SELECT s.* FROM stored AS s JOIN newest AS n ON s.run = n.run
                LEFT JOIN closed AS c ON s.run = c.run AND s.attempt = c.attempt AND s.axis = c.axis
                LEFT JOIN before AS b ON {_same("s", "b", _KEYS)}
                ANTI JOIN after AS a ON {_same("s", "a", _KEYS)}
                WHERE s."count" > 0 AND (b.run IS NOT NULL OR s.revision > 0)
                  AND (c."end" >= s."end" OR n.attempt > s.attempt)  -- else it is only not closed yet
                  AND s.topic_uuid = '{part.topic_uuid}' AND s."partition" = {part.partition})
            SELECT {listed}, coalesce(s.revision, 0) + 1 AS revision, a.topic_uuid, a."partition",
                coalesce(s."offset", a."offset") AS "offset", -1 AS ordinal,
                nullif(s.count, 0) AS old_count, s.mean AS old_mean
            FROM touched AS a LEFT JOIN stored AS s ON {_same("a", "s", _KEYS)}
            WHERE s.run IS NULL OR NOT ({_same("a", "s", values)})
            UNION ALL BY NAME
            SELECT {gone}, s.revision + 1 AS revision, s.topic_uuid, s."partition", s."offset",
                -1 AS ordinal, s.count AS old_count, s.mean AS old_mean
            FROM gone AS s
            ORDER BY run, metric, axis, "start", "end" """
        with connect(self.root) as db:
            db.execute("SET TimeZone = 'UTC'")
            found = self._run(db, query).to_arrow_table()
        shown = [
            Change(
                *(row[name] for name in ("run", "attempt", "axis", "start", "end", "group", "metric")),
                *(row[name] for name in ("revision", "old_count", "old_mean", "count", "mean")),
            )
            for row in found.slice(0, SHOWN).to_pylist()
        ]
        bare = pa.schema([pa.field(c.name, c.type) for c in TABLES["windows"].columns])
        return Changes(found.select(columns).cast(bare), shown, seen)

    def commit(self, part: Part, changes: Changes) -> int:
        """Commits the rows, all or none; returns how many. Raises Conflict (another repair committed since
        they were computed), Unavailable."""
        if not changes.rows.num_rows:
            return 0
        app = _app(part)
        order = [(name, "ascending") for name in TABLES["windows"].order]
        rows = changes.rows.sort_by(order)
        open_lake(self.root).commit("windows", rows, {app: changes.seen}, {app: changes.seen + 1})
        catalog.renew(self.root)
        return int(changes.rows.num_rows)

    def _run(self, db: duckdb.DuckDBPyConnection, query: str) -> duckdb.DuckDBPyRelation:
        try:
            return db.sql(query)
        except duckdb.Error as error:
            raise BadData(
                f"the tables in {self.root} cannot be read: {str(error).splitlines()[0]}"
            ) from error


def _app(part: Part) -> str:
    return f"repair/{part.topic_uuid}/{part.partition}"


def _same(one: str, other: str, names: tuple[str, ...] | list[str]) -> str:
    return " AND ".join(
        f"{one}.{identifier(name)} IS NOT DISTINCT FROM {other}.{identifier(name)}" for name in names
    )
