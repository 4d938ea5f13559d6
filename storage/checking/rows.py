"""The second half of a check: do the rows equal what the offsets promise.

    log       of each partition every offset from 0 to the position of the table, once
    samples   of each stored frame as many rows as ``log`` says, with the ordinals 0 .. n - 1 once each
    processes, checkpoints, metrics, evals   a row of each stored event
    a number of a process (run, process, seq) stored once; no output, item or evaluation twice

What is known to be missing is no fault: offsets in ``gaps``, of a table that is behind its topic what lies
beyond its position, and rows that ``storage.retention`` deleted. Each deletion leaves its cutoff in the table
(:attr:`~driftline.storage.store.App.RETENTION`), and ``log`` says between which times the samples of a frame
lie. So nothing is promised of a frame that is older; of one that the cutoff goes through its newest sample is
(how many of the others are younger nobody knows); of a younger one all. Rows of ``log`` of versions that did
not note these times promise nothing once retention has come. An evaluation promises its items if it was asked
for after the cutoff: then all of them came after it.

DuckDB does the work, within ``MEMORY``, and spills.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import duckdb
import pyarrow as pa

from driftline.storage.checking.findings import MOST, Bad, Finding, ranges, without
from driftline.storage.relations import identifier, source
from driftline.storage.store import App
from driftline.storage.tables import FEEDS, ROWS_OF, TABLES, TableName

MEMORY = "1GB"
_EVENT_TABLES: dict[TableName, tuple[str, ...]] = {
    **{
        name: tuple(kind for kind, table in ROWS_OF.items() if table == name)
        for name in ("processes", "checkpoints", "metrics")
    },
    "evals": ("eval_accepted",),
}
_ONCE: dict[TableName, tuple[str, ...]] = {
    "windows": (
        *("topic_uuid", "partition", "offset", "ordinal", "run", "attempt", "axis", "span", "metric"),
        *("group", "start", "end", "revision"),
    ),
    "facts": ("id",),
    "alerts": ("id",),
    "evals": ("id", "run", "metric"),
    "eval_items": ("lease", "position"),
}
"""What no two rows of a table share."""
_LATE_US = 120_000_000

Version = Callable[[TableName, str], int]


class _Spot(NamedTuple):
    topic_uuid: str
    partition: int

    @property
    def app(self) -> str:
        return App.id(self.topic_uuid, self.partition)


class RowCheck:
    """Checks these files; ``version`` gives the positions of the same moment. Raises duckdb.Error."""

    def __init__(
        self,
        files: Mapping[TableName, Sequence[str]],
        version: Version,
        *,
        connect: Callable[[], duckdb.DuckDBPyConnection] = duckdb.connect,
    ) -> None:
        self._files = files
        self._connect = connect
        self._version = version
        self._cutoff = {name: version(name, App.RETENTION) for name in TABLES}
        """Microseconds since 1970; what is older has expired. -1 if nothing ever did."""
        self.bad: list[Bad] = []
        self.findings: list[Finding] = []

    def read_positions(self) -> None:
        """Asks ``version`` for all that :meth:`run` will ask."""
        with _database(self._connect, self._files) as db:
            spots = [_Spot(*row) for row in db.execute(_SPOTS).fetchall()]
        for spot in spots:
            self._version("log", App.expired(spot.topic_uuid, spot.partition))
            for name in FEEDS["telemetry"]:
                self._version(name, spot.app)

    def run(self, progress: Callable[[str], None] = lambda what: None) -> None:
        """Does all of it; ``progress`` is told of each part before it begins."""
        with _database(self._connect, self._files) as db:
            self._db = db
            self._spots = [_Spot(*row) for row in db.execute(_SPOTS).fetchall()]
            self._gaps = self._known_gaps()
            self._levels()
            progress("log: offsets without holes")
            for spot in self._spots:
                self._log(spot)
            progress("log: numbers of processes")
            self._numbers()
            progress("samples: rows of each frame")
            self._samples()
            for name, kinds in _EVENT_TABLES.items():
                progress(f"{name}: rows of each event")
                self._events(name, kinds)
            for name in _ONCE:
                progress(f"{name}: nothing twice")
                self._twice(name)
            progress("eval_items: items of each evaluation")
            self._items()

    # --- what is known ---------------------------------------------------------------------------------

    def _known_gaps(self) -> dict[tuple[TableName, _Spot], list[tuple[int, int]]]:
        found: dict[tuple[TableName, _Spot], list[tuple[int, int]]] = {}
        query = 'SELECT topic_uuid, "partition", first, last, tables FROM gaps'
        for uuid, partition, first, last, tables in self._db.execute(query).fetchall():
            for name in (tables or "").split():
                if name in TABLES:
                    found.setdefault((name, _Spot(uuid, partition)), []).append((first, last))
        return found

    def _levels(self) -> None:
        """Makes ``levels``: how far each table and ``log`` are, in each partition of telemetry topics."""
        rows = [
            (
                name,
                spot.topic_uuid,
                spot.partition,
                min(self._version(name, spot.app), self._version("log", spot.app)),
            )
            for name in FEEDS["telemetry"]
            for spot in self._spots
        ]
        types = {"own": pa.utf8(), "topic_uuid": pa.utf8(), "partition": pa.int32(), "level": pa.int64()}
        columns = {
            key: pa.array([row[at] for row in rows], kind) for at, (key, kind) in enumerate(types.items())
        }
        self._db.register("levels", pa.table(columns))

    # --- log -------------------------------------------------------------------------------------------

    def _log(self, spot: _Spot) -> None:
        end = self._version("log", spot.app)
        here = [spot.topic_uuid, spot.partition]
        query = f"""
            WITH here AS (
                SELECT "offset", lag("offset") OVER (ORDER BY "offset") AS before
                FROM log WHERE topic_uuid = ? AND "partition" = ?)
            SELECT "offset", coalesce(before, -1) FROM here
            WHERE "offset" <> coalesce(before, -1) + 1 ORDER BY "offset" LIMIT {MOST}"""
        steps = self._db.execute(query, here).fetchall()
        last = self._db.execute(
            'SELECT max("offset") FROM log WHERE topic_uuid = ? AND "partition" = ?', here
        ).fetchall()[0][0]
        doubled = [offset for offset, before in steps if offset == before]
        holes = [(before + 1, offset - 1) for offset, before in steps if offset > before]
        if end > (last if last is not None else -1):
            holes.append(((last if last is not None else -1) + 1, end))
        if last is not None and last > end:
            self._wrong(
                "log",
                "position",
                f"has offset {last} of partition {spot.partition}, and its position is {end}",
                _REPORT,
            )
        known = self._gaps.get(("log", spot), [])
        holes = [left for hole in holes for left in without(*hole, known)]
        if holes and self._cutoff["log"] >= 0:
            holes = self._unexpired(spot, holes)
        if holes:
            self._bad("log", "missing", spot, holes, sum(last - first + 1 for first, last in holes))
        if doubled:
            self._bad("log", "doubled", spot, ranges(doubled), len(doubled))

    def _unexpired(self, spot: _Spot, holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """What of them lies behind all that expired. (A broker's clock may have been set back, so that a
        record expired before one that had come before it.) Deletions of earlier versions did not say how far
        they came: of such, holes behind a row that was too young to expire."""
        if (gone := self._version("log", App.expired(spot.topic_uuid, spot.partition))) >= 0:
            return [(max(a, gone + 1), b) for a, b in holes if b > gone]
        query = f"""SELECT min("offset") FROM log WHERE topic_uuid = ? AND "partition" = ?
            AND received >= make_timestamptz({self._cutoff["log"]})"""
        young = self._db.execute(query, [spot.topic_uuid, spot.partition]).fetchall()[0][0]
        return [] if young is None else [(a, b) for a, b in holes if a > young]

    def _numbers(self) -> None:
        query = """
            SELECT count(*), arg_min(run, run), arg_min(process, run), arg_min(seq, run) FROM (
                SELECT run, process, seq FROM log WHERE outcome = 'stored' AND seq IS NOT NULL
                GROUP BY topic_uuid, run, process, seq HAVING count(*) > 1)"""
        count, run, process, seq = self._db.execute(query).fetchall()[0]
        if count:
            self._wrong(
                "log",
                "number",
                f"{count:,} records are stored twice, e.g. number {seq} of process {process} (run {run})",
                _REPORT,
            )

    # --- rows of records -------------------------------------------------------------------------------

    def _samples(self) -> None:
        expired = self._cutoff["samples"] >= 0
        # not epoch_us: that of an instant which DuckDB takes for infinite is null
        before = f"make_timestamptz({self._cutoff['samples']})"
        query = f"""
            WITH have AS (
                SELECT topic_uuid, "partition", "offset", count(*) AS n, min(ordinal) AS low,
                    max(ordinal) AS high, sum(ordinal) AS s1, sum(ordinal::BIGINT * ordinal) AS s2,
                    max("time") AS top
                FROM samples GROUP BY ALL),
            frames AS (
                SELECT l.*, coalesce(n, 0) AS n, low, high, s1, s2, top, l.samples::HUGEINT AS m,
                    {expired} AND coalesce(oldest < {before}, true) AS cut,
                    cut AND coalesce(newest < {before}, true) AS gone
                FROM log AS l JOIN levels ON own = 'samples' AND levels.topic_uuid = l.topic_uuid
                    AND levels."partition" = l."partition" AND l."offset" <= level
                LEFT JOIN have ON have.topic_uuid = l.topic_uuid AND have."partition" = l."partition"
                    AND have."offset" = l."offset"
                WHERE kind = 'frame' AND outcome = 'stored' AND l.samples > 0),
            bad AS (
                SELECT * FROM frames WHERE n <> m OR low <> 0 OR high <> m - 1
                    OR s1 <> m * (m - 1) // 2 OR s2 <> (m - 1) * m * (2 * m - 1) // 6)
            SELECT topic_uuid, "partition", "offset", n >= m, abs(m - n) FROM bad
            WHERE n >= m OR NOT cut OR (NOT gone AND top IS DISTINCT FROM newest)
            ORDER BY ALL LIMIT {MOST}"""
        self._sort_out("samples", self._db.execute(query).fetchall())

    def _events(self, name: TableName, kinds: Sequence[str]) -> None:
        listed = ", ".join(f"'{kind}'" for kind in kinds)
        doubled = "false" if name == "evals" else "n > 1"  # an evaluation has a row for each metric
        query = f"""
            WITH have AS (
                SELECT topic_uuid, "partition", "offset", count(*) AS n FROM {identifier(name)} GROUP BY ALL)
            SELECT l.topic_uuid, l."partition", l."offset", coalesce(n, 0) > 0, 1
            FROM log AS l JOIN levels ON own = '{name}' AND levels.topic_uuid = l.topic_uuid
                AND levels."partition" = l."partition" AND l."offset" <= level
            LEFT JOIN have ON have.topic_uuid = l.topic_uuid AND have."partition" = l."partition"
                AND have."offset" = l."offset"
            WHERE outcome = 'stored' AND kind IN ({listed}) AND (n IS NULL OR {doubled})
            ORDER BY ALL LIMIT {MOST}"""
        self._sort_out(name, self._db.execute(query).fetchall())

    def _sort_out(self, name: TableName, found: list[tuple[str, int, int, bool, int]]) -> None:
        """Says of bad offsets, partition by partition, which are missing and which are double."""
        groups: dict[tuple[str, _Spot], tuple[list[int], list[int]]] = {}
        for uuid, partition, offset, doubled, rows in found:
            kind = "doubled" if doubled else "missing"
            offsets, counts = groups.setdefault((kind, _Spot(uuid, partition)), ([], []))
            offsets.append(offset)
            counts.append(int(rows))
        for (kind, spot), (offsets, counts) in groups.items():
            known = self._gaps.get((name, spot), []) if kind == "missing" else []
            kept = {
                offset: rows
                for offset, rows in zip(offsets, counts, strict=True)
                if not any(first <= offset <= last for first, last in known)
            }
            if kept:
                self._bad(name, kind, spot, ranges(kept), sum(kept.values()))

    # --- rows that have no record of their own -----------------------------------------------------------

    def _twice(self, name: TableName) -> None:
        columns = ", ".join(identifier(column) for column in _ONCE[name])
        if name == "evals":  # a row for each metric, so found by these; their records can be read again
            query = f"""
                SELECT topic_uuid, "partition", "offset", true, count(*) FROM evals
                SEMI JOIN (SELECT {columns} FROM evals GROUP BY ALL HAVING count(*) > 1) AS d
                    ON {" AND ".join(f"evals.{key} IS NOT DISTINCT FROM d.{key}" for key in _ONCE[name])}
                GROUP BY ALL ORDER BY ALL LIMIT {MOST}"""
            self._sort_out(name, self._db.execute(query).fetchall())
            return
        query = f"""SELECT count(*), coalesce(sum(n - 1), 0) FROM (
            SELECT count(*) AS n FROM {identifier(name)} GROUP BY {columns} HAVING count(*) > 1)"""
        outputs, rows = self._db.execute(query).fetchall()[0]
        if outputs:
            says = f"{rows:,} rows are there more than once (same {', '.join(_ONCE[name])})"
            self._wrong(name, "doubled", says, _COPIES)

    def _items(self) -> None:
        cutoff = self._cutoff["eval_items"]
        query = f"""
            WITH have AS (SELECT lease, count(*) AS n FROM eval_items GROUP BY lease),
            newest AS (SELECT max(epoch_us(received)) AS newest_us FROM log)
            SELECT count(*), sum(items - coalesce(n, 0))::BIGINT, min(lease) FROM (
                SELECT lease, "partition", any_value(items) AS items, min(accepted) AS accepted,
                    least(min(requested), min(accepted)) AS asked
                FROM evals GROUP BY ALL)
            LEFT JOIN have USING (lease)
            LEFT JOIN (
                SELECT "partition", max(found) AS known FROM gaps
                WHERE topic = 'eval-items' GROUP BY ALL) USING ("partition"), newest
            WHERE items > coalesce(n, 0) AND epoch_us(asked) >= {cutoff}
                AND epoch_us(accepted) < newest_us - {_LATE_US} AND coalesce(accepted > known, true)"""
        count, rows, lease = self._db.execute(query).fetchall()[0]
        if count:
            self._wrong(
                "eval_items",
                "missing",
                f"{count:,} evaluations lack {rows:,} items, e.g. lease {lease}",
                _NO_ITEMS,
            )

    # --- what is said ----------------------------------------------------------------------------------

    def _bad(
        self, name: TableName, kind: str, spot: _Spot, found: Sequence[tuple[int, int]], rows: int
    ) -> None:
        self.bad.append(Bad(name, kind, spot.topic_uuid, spot.partition, tuple(found), rows))
        self._wrong(name, kind, self.bad[-1].words(), _RESTORE)

    def _wrong(self, name: TableName, kind: str, says: str, remedy: str) -> None:
        self.findings.append(Finding(name, kind, True, says, remedy))


_RESTORE = (
    "driftline storage repair --restore has the sink store them again, exactly once, where the topic still "
    "has them, and counts the rest in gaps"
)
_REPORT = "please report it, with the output of driftline storage check --json"
_COPIES = f"the rows are right, and no command removes the copies: ask with SELECT DISTINCT; {_REPORT}"
_NO_ITEMS = (
    "the scores in evals are right; bring back the missing files of the folder eval_items from a copy, or do "
    "without these items"
)
_SPOTS = """SELECT DISTINCT topic_uuid, "partition" FROM (
    SELECT topic_uuid, "partition" FROM log UNION ALL SELECT topic_uuid, "partition" FROM samples
    UNION ALL SELECT topic_uuid, "partition" FROM gaps WHERE topic = 'telemetry') ORDER BY ALL"""


@contextmanager
def _database(
    connect: Callable[[], duckdb.DuckDBPyConnection], files: Mapping[TableName, Sequence[str]]
) -> Iterator[duckdb.DuckDBPyConnection]:
    with tempfile.TemporaryDirectory(prefix="driftline-check-") as spill, connect() as db:
        db.execute(f"SET memory_limit = '{MEMORY}'")
        db.execute("SET preserve_insertion_order = false")
        db.execute(f"SET temp_directory = '{spill}'")
        db.execute("SET TimeZone = 'UTC'")
        for name in TABLES:
            db.execute(f"CREATE VIEW {identifier(name)} AS FROM {source(name, files.get(name, []))}")
        yield db
