"""The tables on disk: Delta Lake tables written with delta-rs, exactly once.

Each commit carries, for each topic partition that it moves on, a Delta transaction: application id = topic
UUID and partition, version = last offset. The rule that keeps two writers apart: the handle that a commit is
made with must show the expected version before, and delta-rs refuses a commit if one of its application ids
was committed since that handle was loaded. A handle moves on with each own commit, also past the commits of
others, so the check comes before every commit.

Only local folders so far.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import deltalake
import duckdb
import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from driftline.errors import BadData, SettingsError, Unavailable
from driftline.storage.alone import alone
from driftline.storage.relations import source
from driftline.storage.resume import READ, read_seen
from driftline.storage.seen import Seen
from driftline.storage.store import Conflict
from driftline.storage.tables import TABLES, TIME, TableName, sorts_well

COMPACT_FILES = 32
"""A table is compacted when it has so many more files than after the last compaction: each file in a table
costs every commit about 0.25 ms [measured], so without it the 200th flush took six times the first."""
KEEP_HOURS = 1
"""Files that compaction or deletion replaced stay so long for readers that still use them."""
_TARGET_BYTES = 128 * 1024 * 1024
_ROW_GROUP = 256 * 1024
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
            raise Unavailable(f"the tables in {self.root} cannot be read: {error}") from error

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
        handle = self._handles[name]
        for app, offset in expected.items():
            if self.version(name, app) != offset:
                raise Conflict(f"{name}: {app} is at {self.version(name, app)}, not at {offset}")
        transactions = [Transaction(app, offset) for app, offset in moves.items()]
        properties = CommitProperties(app_transactions=transactions)
        try:
            if rows is None:
                handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)
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
        except CommitFailedError as error:
            raise Conflict(f"{name}: {error}") from error
        except (DeltaError, OSError) as error:
            raise Unavailable(f"table {name} in {self.root} cannot be written: {error}") from error

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
        self.vacuum(name, keep_hours=keep_hours)
        self._compacted[name] = len(self._handles[name].file_uris())
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
        """Removes files that the table has not used for ``keep_hours``. Raises Unavailable if it cannot."""
        handle = self._handles[name]
        try:
            if handle.vacuum(keep_hours, dry_run=True, enforce_retention_duration=False):
                handle.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)
        except CommitFailedError:
            self._handles[name] = self._open(name)
        except (DeltaError, OSError) as error:
            raise Unavailable(f"table {name} in {self.root} cannot be rid of old files: {error}") from error

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
                return rewrite(handle)
        except CommitFailedError:
            self._handles[name] = self._open(name)  # someone else changed the files: fine
            return {}
        except (DeltaError, OSError) as error:
            raise Unavailable(f"table {name} in {self.root} cannot be {what}: {error}") from error

    def _open(self, name: TableName) -> DeltaTable:
        path = self.root / name
        table = TABLES[name]
        try:
            try:
                handle = DeltaTable(str(path))
            except TableNotFoundError:
                DeltaTable.create(str(path), schema=table.schema, mode="ignore", description=table.row)
                handle = DeltaTable(str(path))
        except (DeltaError, OSError) as error:
            raise BadData(
                f"{path} cannot be opened as a table: {error}; move the folder away or choose another root "
                "(storage.root, DRIFTLINE_STORAGE__ROOT)"
            ) from error
        found = {field.name for field in handle.schema().fields}
        missing = [column.name for column in table.columns if column.name not in found]
        if missing:
            raise BadData(f"{path} lacks the columns {', '.join(missing)}: it was made by another version")
        return handle


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
            found[name] = file_paths(path / name, DeltaTable(str(path / name)))
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            raise BadData(f"the log of table {path / name} cannot be read: {error}") from error
    if not found:
        raise BadData(f"no tables in {path}: name the storage root that a sink wrote (storage.root)")
    return {name: found.get(name, []) for name in TABLES}


def file_paths(folder: Path, handle: DeltaTable) -> list[str]:
    """Absolute local paths of a table's files, in order. (delta-rs percent-encodes the folder in URIs.)"""
    return sorted(str(folder / unquote(uri.rpartition("/")[2])) for uri in handle.file_uris())


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
