"""The tables on disk: Delta Lake tables written with delta-rs, exactly once.

Each commit carries, for each topic partition that it moves on, a Delta transaction: application id = topic
UUID and partition, version = last offset. The rule that keeps two writers apart: the handle that a commit is
made with must show the expected version before, and delta-rs refuses a commit if one of its application ids
was committed since that handle was loaded. A handle moves on with each own commit, also past the commits of
others, so the check comes before every commit.

Only local folders so far.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import deltalake
import duckdb
import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from driftline.errors import BadData, SettingsError, Unavailable
from driftline.storage.alone import alone, together
from driftline.storage.relations import source
from driftline.storage.resume import READ, read_seen
from driftline.storage.seen import Seen
from driftline.storage.store import Conflict
from driftline.storage.table_log import empty_commit, fault, set_aside_torn_end
from driftline.storage.tables import TABLES, TIME, Table, TableName, sorts_well

COMPACT_FILES = 32
"""A table is compacted when it has so many more files than after the last compaction: each file in a table
costs every commit about 0.25 ms [measured], so without it the 200th flush took six times the first."""
KEEP_HOURS = 1
"""Files that compaction or deletion replaced stay so long for readers that still use them."""
_TARGET_BYTES = 128 * 1024 * 1024
_ROW_GROUP = 256 * 1024
_WRITING = "_writing"
"""A lock file in each table's folder: many may write, or one may remove what nobody has committed."""
_OUR_FILES = "part-*-c000.zstd.parquet"
_FULL_PASSES = 60
_FULL_BYTES = 256 * 1024 * 1024
"""A disk with more than that was full for another reason (inodes, a quota)."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_REMEDIES = {
    "No space left": "free some space on that disk",
    "Disk quota exceeded": "free some space or raise the quota",
    "Read-only file system": "mount it for writing",
    "Permission denied": "mend the folder's permissions",
}
_BAD_CHARACTERS = frozenset("[]^|\\%?\n\r\0")


class Lake:
    """The tables under one root, opened for writing; missing ones are made. Implements
    :class:`~driftline.storage.store.Tables`.

    Raises:
        SettingsError: the root cannot be written.
        BadData: a folder there is not one of our tables.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = writable(root)
        self._handles: dict[TableName, DeltaTable] = {}
        self._compacted: dict[TableName, int] = {}
        self._full: _Full | None = None
        self.reload()

    def reload(self) -> None:
        """Loads every table anew, with all that other writers committed."""
        for name in TABLES:
            self._handles[name] = self._open(name)
            self._compacted.setdefault(name, 0)

    def refresh(self) -> None:
        """Shows what others committed since, faster than :meth:`reload`. Raises Unavailable."""
        try:
            for handle in self._handles.values():
                handle.update_incremental()
        except (DeltaError, OSError) as error:
            raise Unavailable(f"the tables in {self.root} cannot be read: {told(error)}") from error

    @property
    def id(self) -> str:
        """Made with the tables, the same for all who open them."""
        return str(self._handles["log"].metadata().id)

    def files(self, name: TableName) -> list[str]:
        """Absolute paths of the Parquet files that make up the table now."""
        return file_paths(self.root / name, self._handles[name])

    def size(self, name: TableName) -> int:
        """Bytes of the table's files; a missing one counts nothing."""
        return sum(path.stat().st_size for path in map(Path, self.files(name)) if path.exists())

    def version(self, name: TableName, app: str) -> int:
        """Last offset of ``app`` whose rows the table has, -1 before the first."""
        version = self._handles[name].transaction_version(app)
        return -1 if version is None else version

    def commit(
        self, name: TableName, rows: pa.Table | None, expected: Mapping[str, int], moves: Mapping[str, int]
    ) -> None:
        """See :meth:`driftline.storage.store.Tables.commit`."""
        if self._full is not None:
            self._full.check(self.root)
        handle = self._handles[name]
        for app, offset in expected.items():
            if self.version(name, app) != offset:
                raise Conflict(f"{name}: {app} is at {self.version(name, app)}, not at {offset}")
        transactions = [Transaction(app, offset) for app, offset in moves.items()]
        properties = CommitProperties(app_transactions=transactions)
        try:
            with together(self.root / name / _WRITING):
                if rows is None:
                    handle.create_write_transaction(
                        [], "append", handle.schema(), commit_properties=properties
                    )
                    handle.update_incremental()
                else:
                    deltalake.write_deltalake(
                        handle,
                        rows,
                        mode="append",
                        writer_properties=writer_properties(name),
                        target_file_size=_TARGET_BYTES,
                        commit_properties=properties,
                    )
            self._full = None
        except CommitFailedError as error:
            raise Conflict(f"{name}: {error}") from error
        except (DeltaError, OSError) as error:
            line = f"table {name} in {self.root} cannot be written: {told(error)}"
            self._remove_orphans(name)
            self._full = _Full(line, _free_bytes(self.root)) if "No space left" in line else None
            raise Unavailable(line) from error

    def seen(self, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
        """The marks of what is stored; raises BadData if a file of a table is missing or broken."""
        try:
            relations = {name: source(name, self.files(name)) for name in READ}
            return read_seen(relations, telemetry_uuid, starts, self.version)
        except duckdb.Error as error:
            line = str(error).partition("\n")[0]
            raise BadData(
                f"what is stored in {self.root} cannot be read, a file is missing or broken: {line}"
            ) from error

    def compact(
        self, name: TableName, *, at_least: int = COMPACT_FILES, keep_hours: int = KEEP_HOURS
    ) -> bool:
        """Merges small files if there are ``at_least`` more than after the last time; says if it did.

        Rows and positions stay, and for ``keep_hours`` the old files of running readers. Does nothing while
        another process compacts the table. Raises Unavailable if the folder cannot be written.
        """
        if len(self._handles[name].file_uris()) - self._compacted[name] < at_least:
            return False
        properties = writer_properties(name)
        done = self._rewrite(
            name,
            "compacted",
            lambda handle: handle.optimize.compact(target_size=_TARGET_BYTES, writer_properties=properties),
        )
        if done is None:
            return False
        self._compacted[name] = len(self._handles[name].file_uris())
        self.vacuum(name, keep_hours=keep_hours)
        self._remove_orphans(name)
        return True

    def delete(self, name: TableName, predicate: str) -> int:
        """Deletes the rows for which the SQL ``predicate`` holds; returns how many.

        Files that lose all their rows go, files that lose some are written anew; positions stay, and the old
        files until :meth:`vacuum`. Does nothing while another process compacts the table or deletes from it,
        or if it commits meanwhile. Raises Unavailable if the folder cannot be written; then all rows stay.
        """
        properties = writer_properties(name)
        done = self._rewrite(
            name, "rid of old rows", lambda handle: handle.delete(predicate, writer_properties=properties)
        )
        self._compacted[name] = min(self._compacted[name], len(self._handles[name].file_uris()))
        return int((done or {}).get("num_deleted_rows", 0))

    def vacuum(self, name: TableName, *, keep_hours: int = KEEP_HOURS) -> None:
        """Removes files that the table has not used for ``keep_hours``. Raises Unavailable if it cannot.

        delta-rs only says which: its own vacuum writes to the table's log first, so on a full disk it could
        not free what would end the trouble.
        """
        try:
            self._unlink(name, self._old(name, keep_hours))
        except (DeltaError, OSError) as error:
            raise Unavailable(
                f"table {name} in {self.root} cannot be rid of old files: {told(error)}"
            ) from error

    def _old(self, name: TableName, keep_hours: int) -> list[str]:
        """Names of files that were part of the table and have not been for so long."""
        old = self._handles[name].vacuum(keep_hours, dry_run=True, enforce_retention_duration=False)
        return [unquote(file) for file in old]

    def _unlink(self, name: TableName, files: Iterable[str]) -> None:
        for file in files:
            if Path(file).name == file:  # our files lie in the folder itself
                (self.root / name / file).unlink(missing_ok=True)

    def _remove_orphans(self, name: TableName) -> None:
        """Removes data files that were written and never became part of the table, if nobody writes now.

        delta-rs leaves the file of a write that failed: a compaction that found too little room would keep
        the disk full for ever [seen]. A writer that was killed leaves one too. What fails here, the next
        failure or compaction does.
        """
        with contextlib.suppress(DeltaError, OSError), alone(self.root / name / _WRITING) as mine:
            if mine:
                self._handles[name].update_incremental()
                known = {*(Path(file).name for file in self.files(name)), *self._old(name, 0)}
                here = (path.name for path in (self.root / name).glob(_OUR_FILES))
                self._unlink(name, [file for file in here if file not in known])

    def _rewrite(
        self, name: TableName, what: str, rewrite: Callable[[DeltaTable], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """What ``rewrite`` gives of the table as it is now, while nobody else may rewrite it.

        delta-rs 1.6.6 lets two compactions of the same files both land, and then every row is there twice;
        nor does it keep a compaction's application transactions [measured]. So each takes a lock and then
        loads the table. None if somebody else does so now, empty if somebody's commit came in between.
        """
        try:
            with alone(self.root / name / "_compacting") as mine:
                if not mine:
                    return None
                handle = self._handles[name] = DeltaTable(str(self.root / name))
                with together(self.root / name / _WRITING):
                    return rewrite(handle)
        except CommitFailedError:
            self._handles[name] = self._open(name)  # someone else changed the files: fine
            return {}
        except (DeltaError, OSError) as error:
            self._remove_orphans(name)
            raise Unavailable(f"table {name} in {self.root} cannot be {what}: {told(error)}") from error

    def _open(self, name: TableName) -> DeltaTable:
        path = self.root / name
        table = TABLES[name]
        try:
            torn = set_aside_torn_end(path)
            try:
                handle = DeltaTable(str(path))
            except TableNotFoundError:
                if torn:
                    raise
                DeltaTable.create(str(path), schema=table.schema, mode="ignore", description=table.row)
                handle = DeltaTable(str(path))
        except (DeltaError, OSError) as error:
            raise BadData(
                f"{path} cannot be opened as a table: {_fault(path, error)}; or move the folder away or "
                "choose another root (storage.root, DRIFTLINE_STORAGE__ROOT)"
            ) from error
        if empty := empty_commit(path, handle.version()):
            raise BadData(_EMPTY.format(empty))
        self._complete(path, table, handle)
        return handle

    def _complete(self, path: Path, table: Table, handle: DeltaTable) -> None:
        """Adds columns that an earlier version did not have; other tables are refused."""
        found = {field.name for field in handle.schema().fields}
        missing = [column for column in table.columns if column.name not in found]
        foreign = [column.name for column in missing if not column.later]
        if foreign:
            raise BadData(f"{path} lacks the columns {', '.join(foreign)}: it was made by another program")
        if not missing:
            return
        schema = Schema.from_arrow(pa.schema([pa.field(column.name, column.type) for column in missing]))
        try:
            handle.alter.add_columns(schema.fields)
        except CommitFailedError:  # another sink was first
            handle.update_incremental()
            self._complete(path, table, handle)


class _Full:
    """A disk that had no room for a commit. As long as it has no more room than then, trying again is
    pointless, and delta-rs 1.6.6 prints a panic of one of its threads each time [seen]."""

    def __init__(self, line: str, free: int) -> None:
        self._line = line
        self._free = free
        self._passes = _FULL_PASSES if free < _FULL_BYTES else 0

    def check(self, root: Path) -> None:
        """Raises Unavailable if nothing has changed; now and then it lets one try pass."""
        if self._passes and _free_bytes(root) <= self._free:
            self._passes -= 1
            raise Unavailable(self._line)


def _free_bytes(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize


def told(error: Exception) -> str:
    r"""What a library says of a file as one line, with what to do where that is known.

    delta-rs draws its errors over several lines, in colours.

    >>> told(OSError("Unable to copy\n  \x1b[31m-\x1b[0m No space left on device (os error 28)\n"))
    'Unable to copy - No space left on device (os error 28): free some space on that disk'
    """
    line = " ".join(_COLOUR.sub("", str(error)).split())
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in line), "")
    return line if line.endswith(remedy) else f"{line}: {remedy}"


def writer_properties(name: TableName) -> WriterProperties:
    """How files of the table are written: no statistics on float columns, whoever writes them."""
    columns = {}
    for column in TABLES[name].columns:
        statistics: Literal["CHUNK", "NONE"] = "CHUNK" if sorts_well(column) else "NONE"
        if column.type.equals(TIME) or column.name == "offset":
            columns[column.name] = ColumnProperties(
                dictionary_enabled=False, encoding="DELTA_BINARY_PACKED", statistics_enabled=statistics
            )
        elif column.name == "value":
            columns[column.name] = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
        else:
            columns[column.name] = ColumnProperties(statistics_enabled=statistics)
    return WriterProperties(
        compression="ZSTD",
        max_row_group_size=_ROW_GROUP,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties=columns,
    )


def writable(root: str | os.PathLike[str]) -> Path:
    """The root as an absolute path, made if missing. Raises SettingsError if nothing can be written there."""
    path = _local(root)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = "free some space" if error.errno == errno.ENOSPC else "mend its permissions"
        raise SettingsError(
            "storage.root",
            str(root),
            f"the folder cannot be written ({reason}); {remedy}, or name another one "
            "(storage.root in the YAML file, or DRIFTLINE_STORAGE__ROOT)",
        ) from error
    return path


def read_files(root: str | os.PathLike[str]) -> dict[TableName, list[str]]:
    """The current Parquet files of each table under ``root``, for readers; a missing table has none.

    Raises:
        BadData: there is no table at all, or a table's log cannot be read.
    """
    path = _local(root)
    found: dict[TableName, list[str]] = {}
    for name in TABLES:
        try:
            handle = DeltaTable(str(path / name))
            found[name] = file_paths(path / name, handle)
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            raise BadData(f"table {path / name} cannot be read: {_fault(path / name, error)}") from error
        if empty := empty_commit(path / name, handle.version()):
            raise BadData(_EMPTY.format(empty))
    if not found:
        raise BadData(f"no tables in {path}: name the storage root that a sink wrote (storage.root)")
    return {name: found.get(name, []) for name in TABLES}


def file_paths(folder: Path, handle: DeltaTable) -> list[str]:
    """Absolute local paths of a table's files, in order. (delta-rs percent-encodes the folder in URIs.)"""
    return sorted(str(folder / unquote(uri.rpartition("/")[2])) for uri in handle.file_uris())


_EMPTY = (
    "{} is empty, so rows are missing; bring it back from a copy, or if it is the newest one there, start a "
    "sink, which stores them again"
)


def _fault(folder: Path, error: Exception) -> str:
    """Which file of the table's log is broken, or what delta-rs says if none looks so."""
    try:
        return fault(folder) or told(error)
    except OSError:
        return told(error)


def _local(root: str | os.PathLike[str]) -> Path:
    """The absolute path of a root that delta-rs and DuckDB can both use. Raises SettingsError."""
    text = os.fspath(root)
    if "://" in text:
        raise SettingsError("storage.root", text, "object stores are not supported yet: name a local folder")
    path = Path(text).absolute()
    bad = sorted(set(str(path)) & _BAD_CHARACTERS)
    if bad:
        shown = " ".join(repr(character)[1:-1] for character in bad)
        raise SettingsError("storage.root", text, f"no table can be below a folder with {shown} in its name")
    return path
