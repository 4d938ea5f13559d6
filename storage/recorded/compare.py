"""What the tables have of the pipeline's outputs, for replays to compare with; and where two lists differ.

Rows that a repair wrote (revision above 0) are left out: they are not what the stream worker said.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import duckdb
import pyarrow as pa

from driftline.errors import BadData
from driftline.storage.objects import connect, place
from driftline.storage.recorded.snapshot import Snapshot
from driftline.storage.relations import identifier, path, source, text
from driftline.storage.tables import TABLES, Column, TableName

OutputTable = Literal["windows", "alerts", "facts"]
OUTPUTS: tuple[OutputTable, ...] = get_args(OutputTable)
_BATCH_ROWS = 100_000
DIFFER_MEMORY = "1GB"
_KEYS: dict[OutputTable, tuple[str, ...]] = {
    "windows": ("run", "attempt", "axis", "span", "group", "metric", "start", "end", "offset"),
    "alerts": ("run", "offset", "place"),
    "facts": ("run", "offset", "place"),
}
_NEVER_NULL = {"span": "''"}


class Reach(NamedTuple):
    """Rows of one partition of a telemetry topic that certain records caused: offsets [start, end)."""

    topic_uuid: str
    partition: int
    start: int
    end: int


class Evaluation(NamedTuple):
    """One metric of one accepted evaluation (or none, where it gave none)."""

    run: str
    attempt: int
    suite: str
    request: str
    checkpoint: str
    step: int | None
    metric: str | None
    value: float | None
    low: float | None
    high: float | None
    seconds: float | None


class Difference(NamedTuple):
    """A row that only one side has, or that both have with other values (stored, replayed)."""

    table: str
    what: Literal["only stored", "only replayed", "other values"]
    run: str
    offset: int
    row: dict[str, Any]
    """The row as stored, or as replayed where it is not stored."""
    columns: dict[str, tuple[Any, Any]]
    """Of other values: column -> stored, replayed."""


class Counts(NamedTuple):
    """How many rows differ, by how."""

    only_stored: int
    only_replayed: int
    other_values: int


class Differences(NamedTuple):
    """All differences counted, and the first of them in the order of the log."""

    counts: Counts
    first: list[Difference]
    runs: frozenset[str]
    """Those that have any."""


class Stored:
    """The output tables under ``root`` as they are now; ``runs`` limits them. Raises BadData."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        runs: Sequence[str] = (),
        snapshot: Snapshot | None = None,
    ) -> None:
        self.root = place(root)
        self.runs = runs
        self.snapshot = snapshot or Snapshot(root)
        self._files = self.snapshot.files
        self._db = connect(root)
        self._db.execute("SET TimeZone = 'UTC'")
        self._db.register("chosen", pa.table({"run": pa.array(runs, pa.utf8())}))
        mine = "run IN (FROM chosen)" if runs else "true"
        names: tuple[TableName, ...] = (*OUTPUTS, "evals")
        # no views: each would read the footers of all files
        self._all = {name: f"(FROM {source(name, self._files[name])} WHERE {_live(name)})" for name in names}
        self._mine = {name: f"(FROM {every} WHERE {mine})" for name, every in self._all.items()}

    def close(self) -> None:
        self._db.close()

    def anew(self) -> Stored:
        """The tables as they are by now."""
        self.close()
        return Stored(self.root, self.runs)

    def reached(self, topic_uuid: str, partition: int, tables: Sequence[OutputTable] = OUTPUTS) -> int:
        """The last offset that caused a stored row, of whatever run; -1 where none did."""
        each = (
            f'SELECT max("offset") AS top FROM {self._all[name]}'
            ' WHERE topic_uuid = $uuid AND "partition" = $partition'
            for name in tables
        )
        query = f"SELECT coalesce(max(top), -1) FROM ({' UNION ALL '.join(each)})"
        return int(self._do(query, {"uuid": topic_uuid, "partition": partition}).fetchall()[0][0])

    def batches(self, name: OutputTable, reaches: Sequence[Reach]) -> Iterator[pa.RecordBatch]:
        """All rows that these records caused."""
        if reaches:
            found = self._do(f"FROM {self._mine[name]} AS t WHERE {_within(reaches)}")
            yield from found.to_arrow_reader(_BATCH_ROWS)

    def requests(self, reaches: Sequence[Reach]) -> pa.Table:
        """Evaluations that the pipeline asked for and whose answers lie there; none of ``driftline
        import``."""
        where = _within(reaches) or "false"
        query = f"""SELECT DISTINCT run, request, attempt, "trigger", suite, suite_version, checkpoint, step
            FROM {self._mine["evals"]} WHERE ({where}) AND "trigger" IS DISTINCT FROM 'import' ORDER BY ALL"""
        return self._do(query).to_arrow_table()

    def evaluations(self) -> list[Evaluation]:
        """All accepted evaluations; of runs that were not chosen too, if there is no better guide to cost."""
        columns = ", ".join(identifier(name) for name in Evaluation._fields)
        relation = source("evals", self._files["evals"])
        found = self._do(f"SELECT {columns} FROM {relation} WHERE status = 'done' ORDER BY ALL")
        return [Evaluation(*row) for row in found.fetchall()]

    def goals(self) -> dict[tuple[str, str], str]:
        """(run, metric) -> "max" or "min", as declared last."""
        relation = source("metrics", self._files["metrics"])
        query = f"""SELECT run, metric, arg_max(goal, "offset") FROM {relation}
            WHERE goal IS NOT NULL GROUP BY ALL"""
        return {(run, metric): goal for run, metric, goal in self._do(query).fetchall()}

    def log_seconds(self) -> dict[str, float]:
        """From the first record of a run to its last one."""
        relation = source("log", self._files["log"])
        query = f"""SELECT run, epoch_us(max(received)) - epoch_us(min(received)) FROM {relation}
            WHERE run IS NOT NULL GROUP BY run"""
        return {run: us / 1e6 for run, us in self._do(query).fetchall()}

    def differences(
        self, name: OutputTable, replayed: Sequence[Path], reaches: Sequence[Reach], *, first: int
    ) -> Differences:
        """All differences counted, and the ``first`` of them; ``replayed``: Parquet files of the rows.

        A null is no difference in columns that earlier versions did not store. Memory is bounded
        (``DIFFER_MEMORY``): what the comparison needs beyond it lies beside these files.
        """
        keys = _KEYS[name]
        columns = [c for c in TABLES[name].columns if c.name not in _left_out(name)]
        compared = [c for c in columns if c.name not in keys]
        files = ", ".join(path(str(file)) for file in replayed)
        stored = _side(name, f"(FROM {self._mine[name]} AS t WHERE {_within(reaches)})", columns)
        made = _side(name, f"read_parquet([{files}])", columns)
        on = ", ".join(identifier(key) for key in keys)
        changed = " OR ".join(
            f"stored.{identifier(c.name)} IS DISTINCT FROM replayed.{identifier(c.name)}"
            + (f" AND stored.{identifier(c.name)} IS NOT NULL" if c.later else "")
            for c in compared
        )
        joined = f"""FROM ({stored}) AS stored FULL JOIN ({made}) AS replayed USING ({on})
            WHERE stored.there IS NULL OR replayed.there IS NULL OR {changed or "false"}"""
        listed = ", ".join(
            f"{side}.{identifier(c.name)} AS {identifier(side[0] + '_' + c.name)}"
            for side in ("stored", "replayed")
            for c in compared
        )
        with tempfile.TemporaryDirectory(dir=replayed[0].parent) as folder:
            self._db.execute(f"SET memory_limit = '{DIFFER_MEMORY}'")
            self._db.execute(f"SET temp_directory = {text(folder)}")
            self._db.execute("SET preserve_insertion_order = false")
            counts = self._do(
                f"""SELECT run, count(*) FILTER (replayed.there IS NULL),
                    count(*) FILTER (stored.there IS NULL),
                    count(*) FILTER (stored.there AND replayed.there) {joined} GROUP BY run"""
            ).fetchall()
            rows = self._do(
                f"""SELECT {on}, stored.there AS s_there, replayed.there AS r_there, {listed}
                {joined} ORDER BY "offset", {on} LIMIT {first}"""
            ).to_arrow_table()
        found = [_difference(name, row, keys, compared) for row in rows.to_pylist()]
        summed = Counts(*(sum(row[at] for row in counts) for at in (1, 2, 3)))
        return Differences(summed, found, frozenset(row[0] for row in counts))

    def _do(self, sql: str, parameters: object = None) -> Any:
        try:
            return self._db.sql(sql, params=parameters)
        except duckdb.Error as error:
            raise BadData(
                f"the tables in {self.root} cannot be read: {str(error).splitlines()[0]}"
            ) from error


def _live(name: TableName) -> str:
    return "coalesce(revision, 0) = 0" if name == "windows" else "true"


def _within(reaches: Sequence[Reach]) -> str:
    return " OR ".join(
        f"(topic_uuid = '{reach.topic_uuid}' AND \"partition\" = {reach.partition} "
        f'AND "offset" >= {reach.start} AND "offset" < {reach.end})'
        for reach in reaches
    )


def _left_out(name: OutputTable) -> frozenset[str]:
    """Columns by which rows are not compared here: their place among the outputs of a record counts."""
    return frozenset({"topic_uuid", "partition", "ordinal"} | ({"id"} if name == "facts" else set()))


def _side(name: OutputTable, relation: str, columns: Sequence[Column]) -> str:
    chosen = ", ".join(
        f"coalesce({identifier(c.name)}, {_NEVER_NULL[c.name]}) AS {identifier(c.name)}"
        if c.name in _NEVER_NULL
        else identifier(c.name)
        for c in columns
    )
    if name != "windows":
        chosen += ', row_number() OVER (PARTITION BY run, "offset" ORDER BY ordinal) AS place'
    return f"SELECT {chosen}, true AS there FROM {relation}"


def _difference(
    name: OutputTable, row: dict[str, Any], keys: Sequence[str], compared: Sequence[Column]
) -> Difference:
    stored = {c.name: row[f"s_{c.name}"] for c in compared}
    replayed = {c.name: row[f"r_{c.name}"] for c in compared}
    shown = {key: row[key] for key in keys if key != "place"}
    if row["r_there"] is None:
        return Difference(name, "only stored", row["run"], row["offset"], shown | stored, {})
    if row["s_there"] is None:
        return Difference(name, "only replayed", row["run"], row["offset"], shown | replayed, {})
    later = {c.name for c in compared if c.later}
    other = {
        column: (stored[column], replayed[column])
        for column in stored
        if not _same(stored[column], replayed[column]) and not (stored[column] is None and column in later)
    }
    return Difference(name, "other values", row["run"], row["offset"], shown | stored, other)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


class WindowCounts(NamedTuple):
    """Windows of one axis and size (None: the whole run so far) on two sides."""

    axis: str
    size: int | None
    same: int
    changed: int
    lost: int
    gained: int
    example: str


def window_counts(before: Path, after: Path) -> list[WindowCounts]:
    """How many windows of two files of rows agree, differ, or are on one side only, and an example of each
    kind that differs."""
    keys = ("run", "attempt", "axis", "span", "group", "metric", "start", "end")
    values = [
        c.name
        for c in TABLES["windows"].columns
        if c.name not in (*keys, "revision", "topic_uuid", "partition")
    ]
    values = [name for name in values if name not in ("offset", "ordinal")]
    on = " AND ".join(f"b.{identifier(k)} IS NOT DISTINCT FROM a.{identifier(k)}" for k in keys)
    changed = " OR ".join(f"b.{identifier(v)} IS DISTINCT FROM a.{identifier(v)}" for v in values)
    query = f"""
        WITH joined AS (
            SELECT coalesce(b.axis, a.axis) AS axis,
                CASE WHEN coalesce(b.span, a.span) IS NULL
                    THEN coalesce(b."end", a."end") - coalesce(b."start", a."start") END AS size,
                CASE WHEN a.axis IS NULL THEN 'lost' WHEN b.axis IS NULL THEN 'gained'
                    WHEN {changed} THEN 'changed' ELSE 'same' END AS outcome,
                coalesce(b.run, a.run) AS run, coalesce(b.metric, a.metric) AS metric,
                coalesce(b."start", a."start") AS first, b.count AS count_b, a.count AS count_a,
                b.mean AS mean_b, a.mean AS mean_a
            FROM read_parquet({path(str(before))}) AS b
                FULL JOIN read_parquet({path(str(after))}) AS a ON {on})
        SELECT axis, size, count(*) FILTER (outcome = 'same'), count(*) FILTER (outcome = 'changed'),
            count(*) FILTER (outcome = 'lost'), count(*) FILTER (outcome = 'gained'),
            coalesce(arg_min(
                format('{{}} of {{}} at {{}}: {{}} samples, mean {{}} -> {{}} samples, mean {{}}',
                metric, run, first, coalesce(count_b, 0), coalesce(mean_b::VARCHAR, '-'),
                coalesce(count_a, 0), coalesce(mean_a::VARCHAR, '-')), first)
                FILTER (outcome <> 'same'), '')
        FROM joined GROUP BY ALL ORDER BY axis, size NULLS LAST"""
    with duckdb.connect() as db:
        return [WindowCounts(*row) for row in db.execute(query).fetchall()]
