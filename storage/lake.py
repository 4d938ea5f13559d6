"""The tables on disk: Delta Lake tables written with delta-rs, exactly once.

Each commit carries, for each topic partition that it moves on, a Delta transaction: application id = topic
UUID and partition, version = last offset. The rule that keeps two writers apart: the handle that a commit is
made with must show the expected version before, and delta-rs refuses a commit if one of its application ids
was committed since that handle was loaded. A handle moves on with each own commit, also past the commits of
others, so the check comes before every commit.

Of local folders; :mod:`.object_lake` does the same in an object store.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from driftline.clock import Clock, SystemClock
from driftline.errors import BadData, Unavailable
from driftline.storage import commits
from driftline.storage.alone import alone, together
from driftline.storage.checking.strays import Stray
from driftline.storage.compaction import replacing as compaction
from driftline.storage.compaction.layout import writer_properties
from driftline.storage.compaction.merging import Stop, go_on
from driftline.storage.leftovers import WRITING, Leftovers
from driftline.storage.listing import file_paths
from driftline.storage.opening import Handles
from driftline.storage.remedies import told
from driftline.storage.resume import seen_in
from driftline.storage.room import Full, free_bytes
from driftline.storage.root import writable
from driftline.storage.seen import Seen
from driftline.storage.store import Conflict
from driftline.storage.tables import TABLES, TableName

COMPACT_FILES = 32
"""A table is compacted when it has so many more files than after the last compaction: each file in a table
costs every commit about 0.25 ms [measured], so without it the 200th flush took six times the first."""
KEEP_HOURS = 1
"""Files that compaction or deletion replaced stay so long for readers that still use them."""
_TRIES, _TRY_S = 200, 0.05
_TRIMMED = re.compile(r"Invalid table version|not found: \S+_delta_log")


class Lake:
    """The tables under one root, opened for writing; missing ones are made. Implements
    :class:`~driftline.storage.store.Tables`.

    Raises:
        SettingsError: the root cannot be written.
        BadData: a folder there is not one of our tables.
    """

    def __init__(self, root: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self.root = writable(root)
        self._handles = Handles(self.root)
        self._leftovers = Leftovers(self.root, clock or SystemClock())
        self._compacted: dict[TableName, int] = {}
        self._full: Full | None = None
        self.reload()

    def reload(self) -> None:
        """Loads every table anew, with all that other writers committed."""
        for name in TABLES:
            self._handles.load(name)
            self._compacted.setdefault(name, 0)

    def refresh(self, *names: TableName) -> None:
        """Shows what others committed to these tables (all) since, faster than :meth:`reload`. Raises
        Unavailable."""
        for name in names or TABLES:
            try:
                try:
                    self._handles[name].update_incremental()
                except DeltaError:  # what it rests on may have been trimmed
                    self._handles.load(name)
            except (BadData, DeltaError, OSError) as error:
                raise Unavailable(f"table {name} in {self.root} cannot be read: {told(error)}") from error

    @property
    def id(self) -> str:
        """Made with the tables, the same for all who open them."""
        return str(self._handles["log"].metadata().id)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection that can read the files."""
        return duckdb.connect()

    def files(self, name: TableName) -> list[str]:
        """Absolute paths of the Parquet files that make up the table now."""
        return file_paths(self.root / name, self._handles[name])

    def size(self, name: TableName) -> int:
        """Bytes of the table's files; a missing one counts nothing."""
        return sum(path.stat().st_size for path in map(Path, self.files(name)) if path.exists())

    def version(self, name: TableName, app: str) -> int:
        """Last offset of ``app`` whose rows the table has, -1 before the first."""
        return commits.position(self._handles[name], app)

    def commit(
        self, name: TableName, rows: pa.Table | None, expected: Mapping[str, int], moves: Mapping[str, int]
    ) -> None:
        """See :meth:`driftline.storage.store.Tables.commit`."""
        if self._full is not None:
            self._full.check(self.root)
        try:
            with together(self.root / name / WRITING):
                commits.append(self._handles[name], name, rows, expected, moves)
            self._full = None
        except (DeltaError, OSError) as error:
            if _TRIMMED.search(str(error)):
                raise Conflict(f"{name}: others went on while this sink stood still") from error
            line = f"table {name} in {self.root} cannot be written: {told(error)}"
            self._leftovers.remove_orphans(name)
            self._full = Full(line, free_bytes(self.root)) if "No space left" in line else None
            raise Unavailable(line) from error

    def seen(self, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
        """The marks of what is stored; raises BadData if a file of a table is missing or broken."""
        return seen_in(self, telemetry_uuid, starts)

    def count(self, name: TableName) -> int:
        """How many files make up the table, as this lake last saw it."""
        return len(self._handles[name].file_uris())

    def compact(
        self,
        name: TableName,
        *,
        at_least: int = COMPACT_FILES,
        keep_hours: int = KEEP_HOURS,
        fully: bool = False,
        stop: Stop = go_on,
    ) -> bool:
        """Merges small files if there are ``at_least`` more than after the last time; says if it did.

        Rows and positions stay, and for ``keep_hours`` the old files of running readers. ``fully``: into as
        few as can be (see :mod:`.compaction.plan`). Does nothing while another process compacts the table.
        As soon as ``stop()`` holds, what is not finished is given up. Raises Unavailable if the folder cannot
        be written."""
        self._compacted[name] = min(self._compacted[name], self.count(name))
        if self.count(name) - self._compacted[name] < at_least:
            return False
        done = self._rewrite(
            name, "compacted", lambda handle: self._merge(name, handle, fully=fully, stop=stop)
        )
        if done is None:
            return False
        self._handles.load(name)
        if stop():
            return bool(done.get("changed"))
        self._compacted[name] = self.count(name)
        self.vacuum(name, keep_hours=keep_hours)
        self._leftovers.remove_orphans(name)
        return True

    def _merge(self, name: TableName, handle: DeltaTable, *, fully: bool, stop: Stop) -> dict[str, Any]:
        if compaction.can_compact(handle, name):
            changed = compaction.compact(handle, self.root / name, name, fully=fully, stop=stop)
            return {"changed": changed}
        return commits.join(handle, name)

    def delete(
        self,
        name: TableName,
        predicate: str,
        *,
        cutoff_us: int | None = None,
        upto: Mapping[str, int] = MappingProxyType({}),
    ) -> int | None:
        """Deletes the rows for which the SQL ``predicate`` holds; returns how many, None if somebody else
        rewrites the table or committed meanwhile: then it did nothing, and may be tried again.

        ``cutoff_us``: what is older has expired; the table then says so (:attr:`App.RETENTION`), and so of
        the offsets ``upto`` (:meth:`App.expired`). Files that lose all their rows go, files that lose some
        are written anew; positions stay, and the old files until :meth:`vacuum`. Raises Unavailable if the
        folder cannot be written; then all rows stay.
        """
        done = self._rewrite(
            name, "rid of old rows", lambda handle: commits.delete(handle, name, predicate, cutoff_us, upto)
        )
        self._compacted[name] = min(self._compacted[name], self.count(name))
        return int(done.get("num_deleted_rows", 0)) if done else None

    def forget_missing(self, name: TableName) -> None:
        """Takes the files that are missing out of the table; positions stay. Raises Unavailable if somebody
        compacts it all the time, or if it cannot be written."""
        for _ in range(_TRIES):
            if self._rewrite(name, "rid of missing files", lambda handle: handle.repair()):
                return
            time.sleep(_TRY_S)
        raise Unavailable(f"table {name} in {self.root} is being rewritten by a sink: try again in a minute")

    def write_anew(self, name: TableName, files: Collection[str]) -> None:
        """Writes these files (their names) anew as compaction does. Raises as :meth:`forget_missing`."""

        def again(handle: DeltaTable) -> dict[str, Any]:
            return {"changed": compaction.rewrite(handle, self.root / name, name, files)}

        for _ in range(_TRIES):
            if self._rewrite(name, "written anew", again):
                return
            time.sleep(_TRY_S)
        raise Unavailable(f"table {name} in {self.root} is being rewritten by a sink: try again in a minute")

    def rewind(self, name: TableName, app: str, fence: str, first: int, predicate: str) -> None:
        """Takes the table back to before offset ``first`` of ``app``: deletes the rows that ``predicate``
        selects, which must be all from there on, and then moves the position. Nobody commits in between; a
        sink that has read on finds both and begins again. Raises Unavailable, perhaps between the two."""
        properties = writer_properties(name)

        def back(handle: DeltaTable) -> dict[str, Any]:
            if commits.position(handle, app) < first:
                return {"done": True}
            handle.delete(predicate, writer_properties=properties)
            moves = [Transaction(app, first - 1), Transaction(fence, commits.position(handle, fence) + 1)]
            commit = CommitProperties(app_transactions=moves)
            handle.create_write_transaction([], "append", handle.schema(), commit_properties=commit)
            handle.update_incremental()
            return {"done": True}

        for _ in range(_TRIES):
            if self._rewrite(name, "taken back", back, alone_with=True):
                return
            time.sleep(_TRY_S)
        raise Unavailable(f"table {name} in {self.root} is being written by a sink: try again in a minute")

    def vacuum(
        self, name: TableName, *, keep_hours: int = KEEP_HOURS, by_clock: bool = False
    ) -> tuple[int, int]:
        """Removes files that the table has not used for ``keep_hours``; how many, and their bytes.

        That they are so old this lake must have seen itself, or they are a day older; ``by_clock``: what the
        clocks say will do. Raises Unavailable if it cannot."""
        return self._leftovers.vacuum(name, keep_s=keep_hours * 3600.0, by_clock=by_clock)

    def set_aside(self, name: TableName) -> list[Stray]:
        """Moves what does not belong to the table and could be taken for its rows to the quarantine; gives
        what it moved. Never what a commit on its way may have written. Raises Unavailable if it cannot."""
        return self._leftovers.set_aside(name)

    def trim_log(self, name: TableName, *, by_clock: bool = False) -> int:
        """Removes entries of the table's log that nobody needs; how many. Raises Unavailable if it cannot."""
        return self._leftovers.trim_log(name, by_clock=by_clock)

    def _rewrite(
        self,
        name: TableName,
        what: str,
        rewrite: Callable[[DeltaTable], dict[str, Any]],
        *,
        alone_with: bool = False,
    ) -> dict[str, Any] | None:
        """What ``rewrite`` gives of the table as it is now, while nobody else may rewrite it.

        delta-rs 1.6.6 lets two compactions of the same files both land, and then every row is there twice;
        nor does it keep a compaction's application transactions [measured]. So each takes a lock and then
        loads the table. None if somebody else does so now, empty if somebody's commit came in between.
        ``alone_with``: nobody may commit meanwhile either.
        """
        try:
            with alone(self.root / name / "_compacting") as mine:
                if not mine:
                    return None
                with _while_writing(self.root / name / WRITING, exclusive=alone_with) as free:
                    return rewrite(self._handles.load(name)) if free else None
        except CommitFailedError:
            self._handles.load(name)  # someone else changed the files: fine
            return {}
        except (Conflict, DeltaError, OSError) as error:  # of a log that was just loaded
            self._leftovers.remove_orphans(name)
            raise Unavailable(f"table {name} in {self.root} cannot be {what}: {told(error)}") from error


@contextlib.contextmanager
def _while_writing(path: Path, *, exclusive: bool) -> Iterator[bool]:
    """Until the block ends others may commit too, or (``exclusive``) nobody else; whether that is so."""
    if exclusive:
        with alone(path) as mine:
            yield mine
    else:
        with together(path):
            yield True
