"""Compaction of a table in a local folder: small files become few large ones, sorted throughout.

    files of the log -> next_job -> merge -> one Delta commit that removes the old and adds the new files

The commit says ``dataChange: false``: its rows are the same. It is written by us, since delta-rs has no
call that replaces files by ours, and lands as delta-rs's own do: the whole file under the next free
version, or not at all. A version that somebody else took meanwhile is read, and the next one tried, as long
as the table still has all the files that were merged; else ours are removed and nothing has happened.
Positions (transactions) are not touched.

A killed compaction leaves files that no log names; :meth:`~driftline.storage.lake.Lake.compact` removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from driftline.errors import Unavailable
from driftline.storage.compaction.layout import bare_schema
from driftline.storage.compaction.merging import DAY, merge
from driftline.storage.compaction.plan import DAY_US, Job, Piece, next_job
from driftline.storage.remedies import told
from driftline.storage.tables import TABLES, TableName, sorts_well

_TRIES = 1_000
_CHECKPOINT_EVERY = 100
"""Commits, as delta-rs does."""
_LONGEST_TEXT = 256
"""Longer smallest and largest texts are not told."""


def can_compact(handle: DeltaTable, name: TableName) -> bool:
    """Whether the table has our columns and no others, whose values would be lost."""
    known = set(bare_schema(name).names)
    return {field.name for field in handle.schema().fields} <= known


def compact(handle: DeltaTable, folder: Path, name: TableName, *, fully: bool = False) -> bool:
    """Merges files of the table until :func:`~driftline.storage.compaction.plan.next_job` finds no more to
    do; says if anything changed.

    ``handle`` must be fresh, and no other compaction or deletion may run in this folder (the caller's
    locks); it shows the new files afterwards. Appends of others are no obstacle. Raises OSError,
    Unavailable or DeltaError; then what was not finished leaves nothing behind."""
    changed = False
    pieces = pieces_of(handle, folder, name)
    while job := next_job(pieces, fully=fully):
        new = _do(handle, folder, name, job)
        if not new:
            break
        changed = True
        taken = {piece.path for piece in job.pieces}
        names = {file.name for file in new} if len(new) < len(taken) else set()  # else cut by days: enough
        known = {piece.path for piece in pieces} - taken | names  # what others appended meanwhile can wait
        pieces = [piece for piece in pieces_of(handle, folder, name) if piece.path in known]
    return changed


def pieces_of(handle: DeltaTable, folder: Path, name: TableName) -> list[Piece]:
    """The table's files that lie in its folder, oldest first."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    day = DAY.get(name)
    days = [f"{end}.{day}" for end in ("min", "max")]
    columns = ["path", "num_records", "size_bytes", "modification_time"]
    found = actions.select([*columns, *(end for end in days if end in actions.column_names)]).to_pylist()
    made = []
    for action in sorted(found, key=lambda action: (action["modification_time"], action["path"])):
        file = str(action["path"])
        if Path(file).name != file or "%" in file or not (folder / file).is_file():
            continue
        rows = action["num_records"]
        if rows is None:
            rows = pq.read_metadata(folder / file).num_rows
        first, last = (_day(action.get(end)) for end in days)
        made.append(Piece(file, rows, action["size_bytes"], first, last))
    return made


def _day(instant: datetime | None) -> int | None:
    return None if instant is None else int(instant.timestamp() * 1_000_000) // DAY_US


def _do(handle: DeltaTable, folder: Path, name: TableName, job: Job) -> list[Path]:
    """Merges and commits; gives the new files, none if somebody else removed one of the old ones."""
    asked: list[Path] = []

    def new_file() -> Path:
        asked.append(folder / f"part-00000-{uuid.uuid4()}-c000.zstd.parquet")
        return asked[-1]

    landed = False
    try:
        sources = [folder / piece.path for piece in job.pieces]
        files = merge(name, sources, new_file, stays=job.stays)
        landed = replace_files(handle, folder, name, job.pieces, files)
        return files if landed else []
    except (pa.ArrowException, duckdb.Error) as error:
        raise Unavailable(f"table {name} in {folder.parent} cannot be compacted: {told(error)}") from error
    finally:
        if not landed:
            for file in asked:
                file.unlink(missing_ok=True)


def replace_files(
    handle: DeltaTable, folder: Path, name: TableName, old: Sequence[Piece], new: Sequence[Path]
) -> bool:
    """Commits that ``new`` files hold the rows of the ``old`` ones; False if the table no longer has all of
    these.

    Raises OSError if the log cannot be written."""
    now_ms = time.time_ns() // 1_000_000
    lines: list[dict[str, Any]] = [_info(now_ms, old, new)]
    lines += [_remove(piece, now_ms) for piece in old]
    lines += [_add(file, name, now_ms) for file in new]
    body = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    log = folder / "_delta_log"
    temporary = log / f".compaction-{uuid.uuid4()}.tmp"
    try:
        _write(temporary, body.encode())
        for _ in range(_TRIES):
            if not {piece.path for piece in old} <= set(_active(handle)):
                return False
            try:
                version = handle.version() + 1
                os.link(temporary, log / f"{version:020d}.json")
                break
            except FileExistsError:
                handle.update_incremental()
        else:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    handle.update_incremental()
    if (version + 1) % _CHECKPOINT_EVERY == 0:
        with contextlib.suppress(DeltaError, OSError):  # the next one will do
            handle.create_checkpoint()
    return True


def _active(handle: DeltaTable) -> Iterable[str]:
    return (str(path) for path in pa.table(handle.get_add_actions()).column("path").to_pylist())


def _write(file: Path, body: bytes) -> None:
    with file.open("xb") as out:
        out.write(body)
        out.flush()
        os.fsync(out.fileno())


def _info(now_ms: int, old: Sequence[Piece], new: Sequence[Path]) -> dict[str, Any]:
    metrics = {"numFilesAdded": len(new), "numFilesRemoved": len(old)}
    return {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]"},
            "engineInfo": "driftline",
            "operationMetrics": metrics,
        }
    }


def _remove(piece: Piece, now_ms: int) -> dict[str, Any]:
    return {
        "remove": {
            "path": piece.path,
            "dataChange": False,
            "deletionTimestamp": now_ms,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": piece.bytes,
        }
    }


def _add(file: Path, name: TableName, now_ms: int) -> dict[str, Any]:
    return {
        "add": {
            "path": file.name,
            "partitionValues": {},
            "size": file.stat().st_size,
            "modificationTime": now_ms,
            "dataChange": False,
            "stats": json.dumps(_statistics(file, name), separators=(",", ":"), ensure_ascii=False),
            "tags": None,
        }
    }


def _statistics(file: Path, name: TableName) -> dict[str, Any]:
    """What Delta tells readers of a file: rows, smallest and largest values, nulls; of no float column."""
    found = pq.read_metadata(file)
    told_of = {column.name for column in TABLES[name].columns if sorts_well(column)}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(found.num_columns):
        column = found.schema.column(at).path
        if column not in told_of:
            continue
        parts = [found.row_group(group).column(at).statistics for group in range(found.num_row_groups)]
        if any(part is None for part in parts):
            continue
        if all(part.has_null_count for part in parts):
            nulls[column] = sum(part.null_count for part in parts)
        ends = [part for part in parts if part.has_min_max]
        whole = all(part.has_min_max or part.num_values == 0 for part in parts)
        if ends and whole:
            low, high = min(part.min for part in ends), max(part.max for part in ends)
            if not any(isinstance(end, str) and len(end) > _LONGEST_TEXT for end in (low, high)):
                lows[column], highs[column] = _plain(low), _plain(high)
    return {"numRecords": found.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _plain(value: Any) -> Any:
    """A value as Delta's JSON has it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value
