"""One change of a table, wherever it lies: rows and positions together, or refused.

The rule that keeps two writers apart stands in design 003: the handle that a commit is made with must show
the expected positions before, and delta-rs refuses it if one of them was committed since it was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from driftline.storage.compaction.layout import writer_properties
from driftline.storage.remedies import told
from driftline.storage.store import App, Conflict
from driftline.storage.tables import TableName

TARGET_BYTES = 128 * 1024 * 1024
"""Of a file that delta-rs writes."""


def position(handle: DeltaTable, app: str) -> int:
    """The version of an application id that the handle shows, -1 without one. Raises Conflict if the log
    that the handle rests on is gone."""
    try:
        version = handle.transaction_version(app)
    except DeltaError as error:
        raise Conflict(f"the log has moved on: {told(error)}") from error
    return -1 if version is None else version


def append(
    handle: DeltaTable,
    name: TableName,
    rows: pa.Table | None,
    expected: Mapping[str, int],
    moves: Mapping[str, int],
) -> None:
    """See :meth:`driftline.storage.store.Tables.commit`. Raises Conflict; DeltaError or OSError if the table
    cannot be written."""
    for app, offset in expected.items():
        if (found := position(handle, app)) != offset:
            raise Conflict(f"{name}: {app} is at {found}, not at {offset}")
    properties = CommitProperties(app_transactions=[Transaction(app, at) for app, at in moves.items()])
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
                target_file_size=TARGET_BYTES,
                commit_properties=properties,
            )
    except CommitFailedError as error:
        raise Conflict(f"{name}: {error}") from error


def delete(
    handle: DeltaTable, name: TableName, predicate: str, cutoff_us: int | None, upto: Mapping[str, int]
) -> dict[str, Any]:
    """Deletes the rows for which ``predicate`` holds, and says with ``cutoff_us`` and ``upto`` what has
    expired, never less than was said before; what delta-rs tells of it. Raises DeltaError or OSError."""
    told = dict(upto) if cutoff_us is None else {App.RETENTION: cutoff_us, **upto}
    cutoff = [Transaction(app, max(at, position(handle, app))) for app, at in told.items()] or None
    done: dict[str, Any] = handle.delete(
        predicate,
        writer_properties=writer_properties(name),
        commit_properties=CommitProperties(app_transactions=cutoff),
    )
    return done


def join(handle: DeltaTable, name: TableName) -> dict[str, Any]:
    """delta-rs's own compaction: joins small files, without sorting. Raises DeltaError or OSError."""
    done: dict[str, Any] = handle.optimize.compact(
        target_size=TARGET_BYTES, writer_properties=writer_properties(name)
    )
    return done
