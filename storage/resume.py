"""Reads back from the tables what a sink had seen, so that a restart drops the same duplicates.

Only what lies before the position from which a partition is read again counts: a record after it comes again,
and must not be taken for a copy of itself.

Marks span the identities of a topic that was deleted and made again, since senders go on counting: what was
stored from the old topic and is sent again to the new one is known. Nothing of an old topic is read again. So
where a sink was killed between two tables, what ``log`` has of it and the record's own table lacks
(``ROWS_OF``) is not taken for stored, and is new if it comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa

from driftline.errors import BadData, BadRecord
from driftline.records import OutputId
from driftline.storage.relations import identifier, source
from driftline.storage.seen import MAX_LEASES, Seen
from driftline.storage.store import App
from driftline.storage.tables import FEEDS, OUTPUT_TABLES, ROWS_OF, TableName

READ: tuple[TableName, ...] = ("log", "evals", *OUTPUT_TABLES, "eval_items")
"""The tables that marks are read from."""
Version = Callable[[TableName, str], int]
"""The last offset of an application id (:class:`~driftline.storage.store.App`) that a table has."""


class Readable(Protocol):
    """Tables whose files DuckDB can read."""

    @property
    def root(self) -> Path | str: ...

    def files(self, name: TableName) -> list[str]: ...

    def version(self, name: TableName, app: str) -> int: ...

    def connect(self) -> duckdb.DuckDBPyConnection: ...


def seen_in(lake: Readable, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
    """The marks of what is stored in the partitions that ``starts`` maps to the offset from which their
    telemetry is read again. Raises BadData if a file of a table is missing or broken."""
    try:
        return _read(lake, telemetry_uuid, starts)
    except duckdb.Error as error:
        line = str(error).partition("\n")[0]
        raise BadData(
            f"what is stored in {lake.root} cannot be read, a file is missing or broken: {line}"
        ) from error


def _read(lake: Readable, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
    seen = Seen()
    with lake.connect() as db:
        for name in READ:
            db.execute(f"CREATE VIEW {identifier(name)} AS FROM {source(name, lake.files(name))}")
        positions = pa.table(
            {"partition": pa.array(starts.keys(), pa.int32()), "start": pa.array(starts.values(), pa.int64())}
        )
        db.register("starts", positions)
        _earlier(db, telemetry_uuid, lake.version)
        _processes(db, seen)
        _accepted(db, seen, telemetry_uuid)
        for name in OUTPUT_TABLES:
            _outputs(db, seen, name)
        _items(db, seen)
    return seen


def _earlier(db: duckdb.DuckDBPyConnection, uuid: str, version: Version) -> None:
    """Makes ``earlier``: how far each table is in each partition of telemetry topics that are gone."""
    query = 'SELECT DISTINCT topic_uuid, "partition" FROM log WHERE topic_uuid <> ?'
    found = [
        (gone, partition, name, version(name, App.id(gone, partition)))
        for gone, partition in db.execute(query, [uuid]).fetchall()
        for name in FEEDS["telemetry"]
    ]
    types = (pa.utf8(), pa.int32(), pa.utf8(), pa.int64())
    names = ("topic_uuid", "partition", "own", "upto")
    columns = [pa.array([row[at] for row in found], kind) for at, kind in enumerate(types)]
    db.register("earlier", pa.table(dict(zip(names, columns, strict=True))))
    db.register("rows_of", pa.table({"kind": list(ROWS_OF), "own": list(ROWS_OF.values())}))


def _processes(db: duckdb.DuckDBPyConnection, seen: Seen) -> None:
    """All partitions of a topic that is gone count: it may have had another number of them."""
    db.execute(
        """
        CREATE TEMP VIEW numbered AS
        SELECT run, process, seq, l.received,
            CASE WHEN earlier.upto IS NULL THEN l."offset" < starts.start ELSE l."offset" <= earlier.upto END
                AS stored
        FROM log AS l LEFT JOIN rows_of USING (kind)
        LEFT JOIN earlier ON l.topic_uuid = earlier.topic_uuid AND l."partition" = earlier."partition"
            AND coalesce(rows_of.own, 'log') = earlier.own
        LEFT JOIN starts ON earlier.upto IS NULL AND l."partition" = starts."partition"
        WHERE seq IS NOT NULL AND outcome = 'stored' AND stored IS NOT NULL"""
    )
    marks = """
        SELECT run, process, max(seq) FILTER (stored) AS high FROM numbered
        GROUP BY run, process HAVING high IS NOT NULL ORDER BY max(received)"""
    for run, process, seq in db.execute(marks).fetchall():
        seen.processes.is_new(run, process, seq)
    lacking = "SELECT run, process, seq FROM numbered GROUP BY ALL HAVING NOT bool_or(stored)"
    seen.processes.lacking.update(db.execute(lacking).fetchall())


def _accepted(db: duckdb.DuckDBPyConnection, seen: Seen, uuid: str) -> None:
    query = """
        SELECT DISTINCT e."partition", id FROM evals AS e
        JOIN starts ON e."partition" = starts."partition"
            AND (topic_uuid <> ? OR e."offset" < starts.start)"""
    for partition, text in db.execute(query, [uuid]).fetchall():
        try:
            seen.outputs.is_new(f"telemetry/{partition}", OutputId.parse(text))
        except BadRecord:  # cannot be: rows checks ids before it stores them
            continue


def _outputs(db: duckdb.DuckDBPyConnection, seen: Seen, name: TableName) -> None:
    query = f"""
        SELECT topic_uuid, "partition", max(("offset", ordinal)) FROM {identifier(name)}
        SEMI JOIN starts USING ("partition") GROUP BY ALL"""
    for uuid, partition, (offset, ordinal) in db.execute(query).fetchall():
        seen.outputs.is_new(name, OutputId(uuid, partition, offset, ordinal))


def _items(db: duckdb.DuckDBPyConnection, seen: Seen) -> None:
    """Positions of the newest leases, as ranges without holes."""
    query = f"""
        WITH items AS (
            SELECT lease, position, "offset" FROM eval_items SEMI JOIN starts USING ("partition")),
        newest AS (SELECT lease FROM items GROUP BY lease ORDER BY max("offset") DESC LIMIT {MAX_LEASES}),
        runs AS (
            SELECT lease, position,
                position - row_number() OVER (PARTITION BY lease ORDER BY position) AS island
            FROM items SEMI JOIN newest USING (lease))
        SELECT lease, min(position), count(*) FROM runs GROUP BY lease, island ORDER BY lease, island"""
    for lease, first, count in db.execute(query).fetchall():
        seen.items.new(lease, first, count)
