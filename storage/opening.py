"""Opens tables for writing: makes what is missing, mends a torn end of a log, adds later columns."""

from __future__ import annotations

import time
from pathlib import Path, PurePath

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from driftline.errors import BadData, Unavailable
from driftline.storage.listing import EMPTY
from driftline.storage.remedies import fault_of, told
from driftline.storage.table_log import KEEP_LOG_S, empty_commit, set_aside_torn_end
from driftline.storage.tables import TABLES, Table, TableName

RELOAD_S = KEEP_LOG_S / 2


class Handles:
    """The tables under one root as this process knows them. A handle reads the table's log again and again
    and must not rest on entries that others have trimmed: it is loaded anew every ``RELOAD_S``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._handles: dict[TableName, DeltaTable] = {}
        self._loaded: dict[TableName, float] = {}

    def __getitem__(self, name: TableName) -> DeltaTable:
        if time.monotonic() - self._loaded.get(name, -RELOAD_S) >= RELOAD_S:
            self.load(name)
        return self._handles[name]

    def load(self, name: TableName) -> DeltaTable:
        """Loads it now, as :func:`open_table`; Unavailable if it was there before and the system refuses."""
        self._loaded[name] = time.monotonic()
        try:
            self._handles[name] = open_table(self._root, name)
        except BadData as error:
            if name in self._handles and isinstance(error.__cause__, OSError):
                raise Unavailable(f"{self._root / name} cannot be read: {told(error.__cause__)}") from error
            raise
        return self._handles[name]


def open_table(root: Path, name: TableName) -> DeltaTable:
    """The table ``name`` under ``root``, loaded anew. Raises BadData if it is not one of ours."""
    path = root / name
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
            f"{path} cannot be opened as a table: {fault_of(path, error)}; or move the folder away or "
            "choose another root (storage.root, DRIFTLINE_STORAGE__ROOT)"
        ) from error
    if empty := empty_commit(path, handle.version()):
        raise BadData(EMPTY.format(empty))
    complete(path, table, handle)
    return handle


def complete(path: PurePath, table: Table, handle: DeltaTable) -> None:
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
        complete(path, table, handle)
