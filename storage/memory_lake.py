"""The tables in memory, with the commit rules of Delta Lake as measured: for simulations and tests.

:class:`MemoryRoot` is the folder that all sinks share, :class:`MemoryLake` one sink's handles on it.

- A handle shows the table as of its last load or own commit, the commits of others before that included.
- The positions that it shows must be the expected ones, before each commit.
- A commit is refused if one of its application ids was committed since the handle was loaded, or if rows were
  deleted since (delta-rs then refuses any append). A refused commit leaves the handle as it was.
- A commit moves the handle on, also past what others committed meanwhile.

``faults`` is asked before each commit and after it has landed. What it raises comes out of ``commit``: an
Unavailable is a full disk or a lost answer, anything else a crash at this point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from driftline.records import OutputId
from driftline.storage.seen import Seen
from driftline.storage.store import App, Conflict
from driftline.storage.tables import OUTPUT_TABLES, ROWS_OF, TABLE_NAMES, TABLES, TableName

Moment = Literal["before", "after"]
Faults = Callable[[Moment, TableName], None]


_PLAIN = {name: pa.schema([pa.field(c.name, c.type) for c in TABLES[name].columns]) for name in TABLE_NAMES}


class Commit(NamedTuple):
    """One entry of a table's log. ``rewrites``: it deleted rows."""

    moves: Mapping[str, int]
    rows: pa.Table | None = None
    rewrites: bool = False


class MemoryRoot:
    """The logs of all tables."""

    def __init__(self) -> None:
        self.commits: dict[TableName, list[Commit]] = {name: [] for name in TABLE_NAMES}

    def rows(self, name: TableName, upto: int | None = None) -> pa.Table:
        """All rows of a table (of its first ``upto`` commits), in the order of the commits."""
        found = [commit.rows for commit in self.commits[name][:upto] if commit.rows is not None]
        return pa.concat_tables([_PLAIN[name].empty_table(), *found])

    def version(self, name: TableName, app: str, upto: int | None = None) -> int:
        """What the newest commit (of the first ``upto``) that moved ``app`` moved it to, -1 if none did."""
        for commit in reversed(self.commits[name][:upto]):
            if app in commit.moves:
                return int(commit.moves[app])
        return -1

    def delete(self, name: TableName) -> None:
        """Stands for a deletion of expired rows: it deletes nothing, but stale handles are refused."""
        self.commits[name].append(Commit({}, rewrites=True))


class MemoryLake:
    """One sink's handles on a :class:`MemoryRoot`; implements :class:`~driftline.storage.store.Tables`."""

    def __init__(self, root: MemoryRoot, faults: Faults = lambda moment, name: None) -> None:
        self.root = root
        self._faults = faults
        self._loaded: dict[TableName, int] = {}
        self.reload()

    def reload(self) -> None:
        self._loaded = {name: len(log) for name, log in self.root.commits.items()}

    def version(self, name: TableName, app: str) -> int:
        return self.root.version(name, app, self._loaded[name])

    def commit(
        self, name: TableName, rows: pa.Table | None, expected: Mapping[str, int], moves: Mapping[str, int]
    ) -> None:
        for app, offset in expected.items():
            if self.version(name, app) != offset:
                raise Conflict(f"{name}: {app} is at {self.version(name, app)}, not at {offset}")
        self._faults("before", name)
        log = self.root.commits[name]
        for since in log[self._loaded[name] :]:
            if since.rewrites or since.moves.keys() & moves.keys():
                raise Conflict(f"{name}: committed by another since this handle was loaded")
        log.append(Commit(dict(moves), None if rows is None else rows.cast(_PLAIN[name])))
        self._loaded[name] = len(log)
        self._faults("after", name)

    def seen(self, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
        seen = Seen()
        columns = ("partition", "offset", "topic_uuid", "kind", "outcome", "run", "process", "seq")
        numbered: dict[tuple[str, str, int], bool] = {}
        for partition, offset, uuid, kind, outcome, run, process, seq in self._read("log", *columns):
            if outcome != "stored" or seq is None:
                continue
            if uuid == telemetry_uuid:
                stored = offset < starts.get(partition, 0)
            else:
                stored = offset <= self.version(ROWS_OF.get(kind, "log"), App.id(uuid, partition))
            key = (run, process, seq)
            if stored or uuid != telemetry_uuid:
                numbered[key] = numbered.get(key, False) or stored
        for (run, process, seq), stored in numbered.items():
            if stored:
                seen.processes.is_new(run, process, seq)
            else:
                seen.processes.lacking.add((run, process, seq))
        for partition, offset, uuid, output in self._read("evals", "partition", "offset", "topic_uuid", "id"):
            if partition in starts and (uuid != telemetry_uuid or offset < starts[partition]):
                seen.outputs.is_new(f"telemetry/{partition}", OutputId.parse(output))
        for name in OUTPUT_TABLES:
            for partition, offset, uuid, ordinal in self._read(
                name, "partition", "offset", "topic_uuid", "ordinal"
            ):
                if partition in starts:
                    seen.outputs.is_new(name, OutputId(uuid, partition, offset, ordinal))
        for partition, lease, position in self._read("eval_items", "partition", "lease", "position"):
            if partition in starts:
                seen.items.new(lease, position, 1)
        return seen

    def _read(self, name: TableName, *columns: str) -> Iterator[tuple[Any, ...]]:
        rows = self.root.rows(name, self._loaded[name]).select(list(columns))
        return zip(*(column.to_pylist() for column in rows.columns), strict=True)
