"""The tables in an object store, exactly once: the same commits as :mod:`.lake`, without file locks.

A commit is safe by itself: delta-rs puts the next entry of a table's log only if nobody has (a conditional
put), and refuses it if one of its application ids was committed since the handle was loaded. A compaction is
not: two of the same files would both land and double every row. So who compacts or deletes first commits the
lease of the table (its version is the instant at which it was taken, by the clock of the host), in the way in
which positions are committed: of two sinks that take it at once one is refused. Whoever is done gives it
back; what another sink has seen unchanged for ``LEASE_US`` by its own steady clock (or what is a day older by
all clocks) was left by one that is gone. No sink may stand still for longer in the middle of a compaction
and then go on: that would not be noticed.

Files that killed writers left cannot be told from those of a commit on its way, so they stay; they cost
room and nothing else. There is no ``catalog.duckdb`` (it could not be read without an extension and
credentials): readers use :func:`driftline.open` or ``driftline sql``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from driftline.clock import SECOND_US, Clock, SystemClock
from driftline.errors import Unavailable
from driftline.storage import commits
from driftline.storage.compaction.layout import writer_properties
from driftline.storage.compaction.merging import Stop, go_on
from driftline.storage.lake import COMPACT_FILES, KEEP_HOURS
from driftline.storage.objects import OPTIONS, address, connect, files_below
from driftline.storage.opening import complete
from driftline.storage.remedies import told
from driftline.storage.resume import seen_in
from driftline.storage.seen import Seen
from driftline.storage.sightings import Sightings
from driftline.storage.store import Conflict
from driftline.storage.tables import TABLES, TableName

LEASE = "rewriting"
_TRIES, _TRY_S = 20, 0.5
LEASE_US = 3600 * SECOND_US
_CONFIGURATION: Mapping[str, str | None] = {"delta.logRetentionDuration": "interval 1 hours"}
"""delta-rs lists the whole log at each commit, so it must not grow (see :mod:`.table_log`)."""


class ObjectLake:
    """The tables under one address, opened for writing; missing ones are made. Does what
    :class:`~driftline.storage.lake.Lake` does, as far as :class:`~driftline.storage.upkeep.Upkeep` needs it.

    Raises Unavailable if the store cannot be reached or written, BadData if what is there are not our tables.
    """

    def __init__(self, root: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self.root = address(root)
        self._clock = clock or SystemClock()
        self._handles: dict[TableName, DeltaTable] = {}
        self._compacted: dict[TableName, int] = dict.fromkeys(TABLES, 0)
        self._leases = {name: Sightings() for name in TABLES}
        self.reload()

    def reload(self) -> None:
        for name in TABLES:
            self._handles[name] = self._open(name)

    def refresh(self, *names: TableName) -> None:
        with self._words("read"):
            for name in names or TABLES:
                self._handles[name].update_incremental()

    def count(self, name: TableName) -> int:
        return len(self._handles[name].file_uris())

    @property
    def id(self) -> str:
        return str(self._handles["log"].metadata().id)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection that can read the files."""
        return connect(self.root)

    def files(self, name: TableName) -> list[str]:
        return sorted(self._handles[name].file_uris())

    def size(self, name: TableName) -> int:
        sizes = pa.table(self._handles[name].get_add_actions(flatten=True)).column("size_bytes")
        return sum(sizes.to_pylist())

    def version(self, name: TableName, app: str) -> int:
        return commits.position(self._handles[name], app)

    def commit(
        self, name: TableName, rows: pa.Table | None, expected: Mapping[str, int], moves: Mapping[str, int]
    ) -> None:
        """See :meth:`driftline.storage.store.Tables.commit`."""
        try:
            commits.append(self._handles[name], name, rows, expected, moves)
        except (DeltaError, OSError) as error:
            raise Unavailable(f"table {name} in {self.root} cannot be written: {told(error)}") from error

    def seen(self, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
        return seen_in(self, telemetry_uuid, starts)

    # --- upkeep ----------------------------------------------------------------------------------------

    def compact(
        self,
        name: TableName,
        *,
        at_least: int = COMPACT_FILES,
        keep_hours: int = KEEP_HOURS,
        fully: bool = False,
        stop: Stop = go_on,
    ) -> bool:
        """As :meth:`driftline.storage.lake.Lake.compact`, by delta-rs and under the lease; once begun it
        cannot be stopped."""
        self._compacted[name] = min(self._compacted[name], self.count(name))
        if self.count(name) - self._compacted[name] < at_least or stop():
            return False
        done = self._rewrite(name, lambda handle: commits.join(handle, name))
        if done is None:
            return False
        self._compacted[name] = self.count(name)
        self.vacuum(name, keep_hours=keep_hours)
        return True

    def delete(
        self,
        name: TableName,
        predicate: str,
        *,
        cutoff_us: int | None = None,
        upto: Mapping[str, int] = MappingProxyType({}),
    ) -> int | None:
        """As :meth:`driftline.storage.lake.Lake.delete`."""
        done = self._rewrite(name, lambda handle: commits.delete(handle, name, predicate, cutoff_us, upto))
        self._compacted[name] = min(self._compacted[name], self.count(name))
        return int(done.get("num_deleted_rows", 0)) if done else None

    def vacuum(
        self, name: TableName, *, keep_hours: int = KEEP_HOURS, by_clock: bool = True
    ) -> tuple[int, int]:
        """As :meth:`driftline.storage.lake.Lake.vacuum`, but always by this host's clock."""
        with self._words("rid of old files"):
            handle = self._handles[name]
            old = handle.vacuum(keep_hours, dry_run=True, enforce_retention_duration=False)
            if not old:
                return 0, 0
            files = files_below(f"{self.root}/{name}")
            sizes = [info.size or 0 for info in files.get_file_info([unquote(file) for file in old])]
            gone = handle.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False)
        return len(gone), sum(sizes)

    def forget_missing(self, name: TableName) -> None:
        """As :meth:`driftline.storage.lake.Lake.forget_missing`."""
        self._insist(name, lambda handle: {"done": handle.repair()})

    def rewind(self, name: TableName, app: str, fence: str, first: int, predicate: str) -> None:
        """As :meth:`driftline.storage.lake.Lake.rewind`. Nobody can be kept from a commit meanwhile: then
        delta-rs refuses the deletion or the move, or the position has changed, and it begins again."""

        def back(handle: DeltaTable) -> dict[str, Any]:
            end = commits.position(handle, app)
            if end >= first:
                handle.delete(predicate, writer_properties=writer_properties(name))
                if commits.position(handle, app) != end:
                    raise CommitFailedError(f"{name}: a sink stored rows meanwhile")
                moves = [Transaction(app, first - 1), Transaction(fence, commits.position(handle, fence) + 1)]
                commit = CommitProperties(app_transactions=moves)
                handle.create_write_transaction([], "append", handle.schema(), commit_properties=commit)
                handle.update_incremental()
            return {"done": True}

        self._insist(name, back)

    def _insist(self, name: TableName, rewrite: Callable[[DeltaTable], dict[str, Any]]) -> None:
        for _ in range(_TRIES):
            if self._rewrite(name, rewrite):
                return
            time.sleep(_TRY_S)
        raise Unavailable(
            f"table {name} in {self.root} is being rewritten by a sink, or one was killed while it did: try "
            f"again in a minute ({name} is free when a sink has seen its lease for an hour, or in a day)"
        )

    def trim_log(self, name: TableName, *, by_clock: bool = True) -> int:
        """Nothing: delta-rs does it by the table's own property."""
        return 0

    def set_aside(self, name: TableName) -> list[Any]:
        """Nothing: what lies there may be of a commit on its way."""
        return []

    def _rewrite(
        self, name: TableName, rewrite: Callable[[DeltaTable], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """What ``rewrite`` gives, under the lease; None if somebody else has it or was faster."""
        handle = self._handles[name] = self._open(name)
        now_us = self._clock.now_us()
        try:
            lease_us = commits.position(handle, LEASE)
            if lease_us > 0 and not self._given_up(name, lease_us):
                return None
            now_us = max(now_us, lease_us + 1)
            self._move_lease(handle, now_us)
            try:
                return rewrite(handle)
            finally:
                self._handles[name] = handle = self._open(name)
                if commits.position(handle, LEASE) == now_us:
                    self._move_lease(handle, 0)
        except CommitFailedError:
            self._handles[name] = self._open(name)
            return None
        except (Conflict, DeltaError, OSError) as error:  # of a log that was just loaded
            raise Unavailable(f"table {name} in {self.root} cannot be rewritten: {told(error)}") from error

    def _given_up(self, name: TableName, lease_us: int) -> bool:
        """Whether this lease has been taken for so long that its owner must be gone; clocks of hosts may
        differ, so this lake must have seen it that long (see :mod:`.sightings`)."""
        ages = {str(lease_us): (self._clock.now_us() - lease_us) / SECOND_US}
        steady_s = self._clock.steady_us() / SECOND_US
        return bool(self._leases[name].settled(ages, steady_s=steady_s, for_s=LEASE_US / SECOND_US))

    @staticmethod
    def _move_lease(handle: DeltaTable, to: int) -> None:
        commit = CommitProperties(app_transactions=[Transaction(LEASE, to)])
        handle.create_write_transaction([], "append", handle.schema(), commit_properties=commit)
        handle.update_incremental()

    def _open(self, name: TableName) -> DeltaTable:
        place, table = f"{self.root}/{name}", TABLES[name]
        with self._words("reached"):
            try:
                handle = DeltaTable(place, storage_options=OPTIONS)
            except TableNotFoundError:
                DeltaTable.create(
                    place,
                    schema=table.schema,
                    mode="ignore",
                    description=table.row,
                    configuration=_CONFIGURATION,
                    storage_options=OPTIONS,
                )
                handle = DeltaTable(place, storage_options=OPTIONS)
            complete(PurePosixPath(place), table, handle)
        return handle

    @contextmanager
    def _words(self, what: str) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise Unavailable(f"{self.root} cannot be {what}: {told(error)}") from error
