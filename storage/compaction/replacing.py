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
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from driftline.errors import Unavailable
from driftline.storage.compaction.layout import bare_schema
from driftline.storage.compaction.merging import DAY, Stop, Stopped, go_on, merge
from driftline.storage.compaction.plan import DAY_US, Job, Piece, next_job
from driftline.storage.remedies import told
from driftline.storage.tables import TABLES, TIME, TableName, sorts_well

_TRIES = 1_000
_CHECKPOINT_EVERY = 100
"""Commits, as delta-rs does."""
_LONGEST_TEXT = 256
"""Longer smallest and largest texts are not told."""


def can_compact(handle: DeltaTable, name: TableName) -> bool:
    """Whether the table has our columns and no others, whose values would be lost."""
    known = set(bare_schema(name).names)
    return {field.name for field in handle.schema().fields} <= known


def compact(
    handle: DeltaTable, folder: Path, name: TableName, *, fully: bool = False, stop: Stop = go_on
) -> bool:
    """Merges files of the table until :func:`~driftline.storage.compaction.plan.next_job` finds no more to
    do, or ``stop()`` holds; says if anything changed.

    ``handle`` must be fresh, and no other compaction or deletion may run in this folder (the caller's
    locks); it does not show the new files afterwards. Appends of others are no obstacle, however many.
    Raises OSError, Unavailable or DeltaError; what was not finished leaves nothing behind."""
    changed = False
    pieces = pieces_of(handle, folder, name)
    while (job := next_job(pieces, fully=fully)) and not stop():
        try:
            new = _do(folder, name, job, stop)
        except Stopped:
            break
        if not new:
            break
        changed = True
        taken = {piece.path for piece in job.pieces}
        names = {file.name for file in new} if len(new) < len(taken) else set()  # else cut by days: enough
        known = {piece.path for piece in pieces} - taken | names  # what others appended meanwhile can wait
        now = pieces_of(DeltaTable(str(folder)), folder, name)
        pieces = [piece for piece in now if piece.path in known]
    return changed


def rewrite(handle: DeltaTable, folder: Path, name: TableName, files: Collection[str]) -> bool:
    """Writes files of the table anew, each for itself, with what ours have and nothing else; says if
    anything changed. As :func:`compact` otherwise."""
    pieces = [piece for piece in pieces_of(handle, folder, name) if piece.path in files]
    done = [_do(folder, name, Job((piece,), stays=True), go_on) for piece in pieces]
    return any(done)


def pieces_of(handle: DeltaTable, folder: Path, name: TableName) -> list[Piece]:
    """The table's files that lie in its folder, oldest first."""
    actions = pa.table(handle.get_add_actions(flatten=True))
    day = DAY.get(name)
    days = [f"{end}.{day}" for end in ("min", "max")]
    columns = ["path", "num_records", "size_bytes", "modification_time"]
    told_days = [end for end in days if end in actions.column_names]
    chosen = actions.select([*columns, *told_days])
    for end in told_days:
        at = chosen.schema.get_field_index(end)
        chosen = chosen.set_column(at, end, chosen.column(end).cast(TIME).cast(pa.int64()))
    found = chosen.to_pylist()
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


def _day(instant_us: int | None) -> int | None:
    return None if instant_us is None else instant_us // DAY_US


def _do(folder: Path, name: TableName, job: Job, stop: Stop) -> list[Path]:
    """Merges and commits; gives the new files, none if somebody else removed one of the old ones."""
    asked: list[Path] = []

    def new_file() -> Path:
        asked.append(folder / f"part-00000-{uuid.uuid4()}-c000.zstd.parquet")
        return asked[-1]

    try:
        sources = [folder / piece.path for piece in job.pieces]
        files = merge(name, sources, new_file, stays=job.stays, stop=stop)
        staged = _staged(folder, name, job.pieces, files)
    except BaseException as error:
        _remove(asked)
        if isinstance(error, pa.ArrowException | duckdb.Error):
            line = f"table {name} in {folder.parent} cannot be compacted: {told(error)}"
            raise Unavailable(line) from error
        raise
    # From here on an error or a signal may come after the commit: then only the log can tell whose files
    # these are, and whoever called asks it.
    if replace_files(folder, staged, job.pieces, files):
        return files
    _remove(asked)
    return []


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _staged(folder: Path, name: TableName, old: Sequence[Piece], new: Sequence[Path]) -> Path:
    """The commit that ``new`` files hold the rows of the ``old`` ones, beside the log and on the disk. Raises
    OSError."""
    now_ms = time.time_ns() // 1_000_000
    lines: list[dict[str, Any]] = [_info(now_ms, old, new)]
    lines += [_removal(piece, now_ms) for piece in old]
    lines += [_add(file, name, now_ms) for file in new]
    body = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
    temporary = folder / "_delta_log" / f".compaction-{uuid.uuid4()}.tmp"
    try:
        _write(temporary, body.encode())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def replace_files(folder: Path, staged: Path, old: Sequence[Piece], new: Sequence[Path]) -> bool:
    """Commits what is staged; False if the table no longer has all of the ``old`` files.

    Raises OSError, DeltaError or Unavailable, perhaps after the commit."""
    log = folder / "_delta_log"
    # Loaded now: while the merge ran, the log may have been trimmed beyond where it began, and a version
    # that was trimmed looks free.
    handle = DeltaTable(str(folder))
    try:
        for _ in range(_TRIES):
            if not {piece.path for piece in old} <= set(_active(handle)):
                return False
            version = handle.version() + 1
            _settle(folder, handle)
            try:
                os.link(staged, log / f"{version:020d}.json")
                break
            except FileExistsError:
                if staged.stat().st_nlink > 1:
                    break  # a file server did it, and was asked again since its answer was lost
                handle.update_incremental()
        else:
            return False
    finally:
        staged.unlink(missing_ok=True)
    handle = DeltaTable(str(folder))
    if {file.name for file in new}.isdisjoint(_active(handle)):
        raise Unavailable(f"the log of {folder} went on while a merge stood still: nothing was merged")
    if (version + 1) % _CHECKPOINT_EVERY == 0:
        with contextlib.suppress(DeltaError, OSError):  # the next one will do
            handle.create_checkpoint()
    return True


def _settle(folder: Path, handle: DeltaTable) -> None:
    """Brings to the disk what others committed lately and delta-rs did not wait for.

    Our commit waits for the disk. If it came there before an older one, a power cut would leave a torn commit
    below a whole one: not the end of the log, which can be given up, but a hole, which cannot. Of what is on
    the disk already this costs next to nothing, so no clock is asked."""
    log = folder / "_delta_log"
    version = handle.version()
    recent = [log / f"{at:020d}.json" for at in range(max(0, version - _CHECKPOINT_EVERY), version + 1)]
    for file in [*(folder / unquote(path) for path in _active(handle)), *recent, log, folder]:
        try:
            _sync(file)
        except FileNotFoundError:
            continue  # behind a checkpoint, or missing for long


def _active(handle: DeltaTable) -> Iterable[str]:
    return (str(path) for path in pa.table(handle.get_add_actions()).column("path").to_pylist())


def _write(file: Path, body: bytes) -> None:
    with file.open("xb") as out:
        out.write(body)
        out.flush()
        os.fsync(out.fileno())


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _removal(piece: Piece, now_ms: int) -> dict[str, Any]:
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
    kinds = {column.name: column.type for column in TABLES[name].columns if sorts_well(column)}
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(found.num_columns):
        column = found.schema.column(at).path
        if column not in kinds:
            continue
        parts = [found.row_group(group).column(at).statistics for group in range(found.num_row_groups)]
        if any(part is None for part in parts):
            continue
        if all(part.has_null_count for part in parts):
            nulls[column] = sum(part.null_count for part in parts)
        ends = [part for part in parts if part.has_min_max]
        whole = all(part.has_min_max or part.num_values == 0 for part in parts)
        if ends and whole:
            low = _plain(min(part.min_raw for part in ends), kinds[column])
            high = _plain(max(part.max_raw for part in ends), kinds[column])
            if low is not None and high is not None:
                lows[column], highs[column] = low, high
    return {"numRecords": found.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A raw value as Delta's JSON has it; None for a text that is too long and an instant that has no date.

    >>> _plain(b"a", pa.utf8()), _plain(-1, TIME), _plain(2**63 - 1, TIME)
    ('a', '1969-12-31T23:59:59.999999Z', None)
    """
    if isinstance(value, bytes):
        text = value.decode()
        return text if len(text) <= _LONGEST_TEXT else None
    if kind.equals(TIME):
        try:
            moment = datetime(1970, 1, 1) + timedelta(microseconds=value)
        except OverflowError:
            return None
        return moment.isoformat(timespec="microseconds") + "Z"
    return value
