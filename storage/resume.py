"""Reads back from the tables what a sink had seen, so that a restart drops the same duplicates.

Only what lies before the position from which a partition is read again counts: a record after it comes again,
and must not be taken for a copy of itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from driftline.errors import BadRecord
from driftline.records import OutputId
from driftline.storage.relations import identifier
from driftline.storage.seen import MAX_LEASES, Seen
from driftline.storage.tables import OUTPUT_TABLES, TableName

READ: tuple[TableName, ...] = ("log", "evals", *OUTPUT_TABLES, "eval_items")
"""The tables that marks are read from."""


def read_seen(relations: Mapping[TableName, str], telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
    """The marks of what is stored in the partitions that ``starts`` maps to the offset from which their
    telemetry is read again. ``relations``: each table of ``READ``, as SQL.

    Raises duckdb.Error if a file of a table is missing or broken.
    """
    seen = Seen()
    with duckdb.connect() as db:
        for name, relation in relations.items():
            db.execute(f"CREATE VIEW {identifier(name)} AS FROM {relation}")
        positions = pa.table(
            {"partition": pa.array(starts.keys(), pa.int32()), "start": pa.array(starts.values(), pa.int64())}
        )
        db.register("starts", positions)
        _processes(db, seen, telemetry_uuid)
        _accepted(db, seen, telemetry_uuid)
        for name in OUTPUT_TABLES:
            _outputs(db, seen, name)
        _items(db, seen)
    return seen


def _processes(db: duckdb.DuckDBPyConnection, seen: Seen, uuid: str) -> None:
    query = """
        SELECT run, process, max(seq) FROM log AS l
        JOIN starts ON l."partition" = starts."partition" AND l."offset" < starts.start
        WHERE topic_uuid = ? AND seq IS NOT NULL AND outcome = 'stored'
        GROUP BY run, process ORDER BY max(l.received)"""
    for run, process, seq in db.execute(query, [uuid]).fetchall():
        seen.processes.is_new(run, process, seq)


def _accepted(db: duckdb.DuckDBPyConnection, seen: Seen, uuid: str) -> None:
    query = """
        SELECT DISTINCT e."partition", id FROM evals AS e
        JOIN starts ON e."partition" = starts."partition" AND e."offset" < starts.start
        WHERE topic_uuid = ?"""
    for partition, text in db.execute(query, [uuid]).fetchall():
        try:
            seen.outputs.is_new(f"{uuid}/{partition}", OutputId.parse(text))
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
