"""Reads back from the tables what a sink had seen, so that a restart drops the same duplicates.

Only what lies before the position from which a partition is read again counts: a record after it comes again,
and must not be taken for a copy of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from driftline.errors import BadData, BadRecord
from driftline.records import OutputId
from driftline.storage.lake import Lake
from driftline.storage.relations import source
from driftline.storage.seen import MAX_LEASES, Seen
from driftline.storage.tables import TableName

_OUTPUT_TABLES: tuple[TableName, ...] = ("windows", "facts", "alerts")


def read_seen(lake: Lake, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
    """The marks of everything stored; ``starts`` maps a telemetry partition to the offset it is read from.

    Raises BadData if a file of a table is missing or broken.
    """
    seen = Seen()
    try:
        with duckdb.connect() as db:
            _processes(db, lake, seen, telemetry_uuid, starts)
            _accepted(db, lake, seen, telemetry_uuid, starts)
            for name in _OUTPUT_TABLES:
                _outputs(db, lake, seen, name)
            _items(db, lake, seen)
    except duckdb.Error as error:
        line = str(error).partition("\n")[0]
        raise BadData(
            f"what is stored in {lake.root} cannot be read, a file is missing or broken: {line}"
        ) from error
    return seen


def _processes(
    db: duckdb.DuckDBPyConnection, lake: Lake, seen: Seen, uuid: str, starts: Mapping[int, int]
) -> None:
    query = f"""
        SELECT run, process, max(seq) FROM {source("log", lake.files("log"))} AS l
        JOIN starts ON l."partition" = starts."partition" AND l."offset" < starts.start
        WHERE topic_uuid = ? AND seq IS NOT NULL AND outcome = 'stored'
        GROUP BY run, process ORDER BY max(l.received)"""
    for run, process, seq in _rows(db, query, [uuid], starts):
        seen.processes.is_new(run, process, seq)


def _accepted(
    db: duckdb.DuckDBPyConnection, lake: Lake, seen: Seen, uuid: str, starts: Mapping[int, int]
) -> None:
    query = f"""
        SELECT DISTINCT e."partition", id FROM {source("evals", lake.files("evals"))} AS e
        JOIN starts ON e."partition" = starts."partition" AND e."offset" < starts.start
        WHERE topic_uuid = ?"""
    for partition, text in _rows(db, query, [uuid], starts):
        try:
            seen.outputs.is_new(f"{uuid}/{partition}", OutputId.parse(text))
        except BadRecord:  # cannot be: rows checks ids before it stores them
            continue


def _outputs(db: duckdb.DuckDBPyConnection, lake: Lake, seen: Seen, name: TableName) -> None:
    query = f"""
        SELECT topic_uuid, "partition", max(("offset", ordinal)) FROM {source(name, lake.files(name))}
        GROUP BY ALL"""
    for uuid, partition, (offset, ordinal) in _rows(db, query, [], {}):
        seen.outputs.is_new(name, OutputId(uuid, partition, offset, ordinal))


def _items(db: duckdb.DuckDBPyConnection, lake: Lake, seen: Seen) -> None:
    """Positions of the newest leases, as ranges without holes."""
    query = f"""
        WITH items AS (
            SELECT lease, position, "offset" FROM {source("eval_items", lake.files("eval_items"))}),
        newest AS (SELECT lease FROM items GROUP BY lease ORDER BY max("offset") DESC LIMIT {MAX_LEASES}),
        runs AS (
            SELECT lease, position,
                position - row_number() OVER (PARTITION BY lease ORDER BY position) AS island
            FROM items SEMI JOIN newest USING (lease))
        SELECT lease, min(position), count(*) FROM runs GROUP BY lease, island ORDER BY lease, island"""
    for lease, first, count in _rows(db, query, [], {}):
        seen.items.new(lease, first, count)


def _rows(
    db: duckdb.DuckDBPyConnection, query: str, parameters: list[Any], starts: Mapping[int, int]
) -> list[Any]:
    positions = pa.table(
        {"partition": pa.array(starts.keys(), pa.int32()), "start": pa.array(starts.values(), pa.int64())}
    )
    db.register("starts", positions)
    return db.execute(query, parameters).fetchall()
