"""What a sink decides: where to read from, what each commit holds, when to start again. Pure.

    resume(oldest) -> positions        take(spot, records)        commits() -> one table after the other

Positions come from the tables' own transactions. After a conflict or a failed write, and whenever the
partitions change, :meth:`SinkCore.resume` drops all that waits and reads the positions again; each partition
is read from the smallest position of the tables that it feeds, and a table that is further on skips what it
has.

Between two commits of :meth:`SinkCore.commits` the sink may be killed, paused or go on for ever after it lost
its partitions: rows and positions of a table move together, and a commit is refused if someone else moved one
of its partitions. That holds across the identities of a topic, too: beside its position each commit moves a
count of the commits of that partition of the topic's *name*. So of two sinks, one that has read from a
deleted topic and one that reads the topic made again, only one goes on with the marks that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from driftline.errors import BadRecord
from driftline.records import Record
from driftline.storage.rows import Rows, Source
from driftline.storage.store import App, Tables
from driftline.storage.tables import FEEDS, TABLES, TableName
from driftline.topics import TopicName

COMMIT_ORDER: tuple[TableName, ...] = (
    "log",
    *(name for names in FEEDS.values() for name in names if name != "log"),
)
"""``log`` first: it has the numbers by which rows of the other tables are known again."""


class Spot(NamedTuple):
    """A partition of a topic that feeds tables."""

    topic: TopicName
    uuid: str
    partition: int

    @property
    def app(self) -> str:
        return App.id(self.uuid, self.partition)

    @property
    def fence(self) -> str:
        return App.fence(self.topic, self.partition)


class Gap(NamedTuple):
    """Offsets [first, last] that the log no longer had when ``tables`` still lacked them."""

    spot: Spot
    first: int
    last: int
    tables: tuple[TableName, ...]


class Committed(NamedTuple):
    """One commit that landed. ``rows`` is 0 where only positions moved."""

    table: TableName
    rows: int


class Letter(NamedTuple):
    """A record that cannot be decoded, and why."""

    spot: Spot
    record: Record
    reason: BadRecord


class SinkCore:
    """One sink over the partitions that it was last resumed with.

    ``counts``: what :class:`~driftline.storage.rows.Rows` counts, and commits, rows, gaps. After an error of
    :meth:`commits` or :meth:`resume` only :meth:`resume` may be called.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._rows = Rows()
        self.counts: Counter[str] = self._rows.counts
        self.letters: list[Letter] = []
        """To be sent, and then cleared, before :meth:`commits`."""
        self.gaps: list[Gap] = []
        """What the last resume found to be lost, and no sink had counted before: what logs lost before the
        first sink came, too (nobody can tell that from records which came while it was away)."""
        self._ready = False
        self._reached: dict[Spot, int] = {}
        """Last offset read."""
        self._stored: dict[tuple[TableName, Spot], int] = {}
        self._fences: dict[tuple[TableName, Spot], int] = {}
        """How often anyone has committed this partition, of whatever topic of the name."""
        self._floors: dict[Spot, dict[TableName, int]] = {}
        """Partitions of which some tables are ahead, with how far."""

    # --- where to read from --------------------------------------------------------------------------------

    def resume(self, oldest: Mapping[Spot, int], *, now_us: int | None = None) -> dict[Spot, int]:
        """Forgets what waits and gives the offset to read each partition from; ``oldest`` maps all partitions
        that are to be read to the first offset that their log still has.

        The partitions of one number, of all topics, belong together. What the logs lack is committed to the
        table ``gaps``, once. Raises Conflict, Unavailable, BadData.
        """
        self._ready = False
        self._tables.reload()
        self._reached, self._stored, self._fences, self._floors = {}, {}, {}, {}
        self.letters, self.gaps = [], []
        starts = {spot: self._start(spot, first) for spot, first in oldest.items()}
        self._count_gaps(now_us)
        telemetry = {spot.partition: start for spot, start in starts.items() if spot.topic == "telemetry"}
        uuid = next((spot.uuid for spot in starts if spot.topic == "telemetry"), "")
        self._rows = Rows(self._tables.seen(uuid, telemetry))
        self._rows.counts = self.counts
        self._ready = True
        return starts

    def _start(self, spot: Spot, oldest: int) -> int:
        floors = {name: self._tables.version(name, spot.app) for name in FEEDS[spot.topic]}
        for name, offset in floors.items():
            self._stored[name, spot] = offset
            self._fences[name, spot] = self._tables.version(name, spot.fence)
        start = min(floors.values()) + 1
        if start < oldest:
            lacking = tuple(name for name, offset in floors.items() if offset + 1 < oldest)
            self.gaps.append(Gap(spot, start, oldest - 1, lacking))
            start = oldest
        self._reached[spot] = start - 1
        if max(floors.values()) >= start:
            self._floors[spot] = floors
        return start

    def _count_gaps(self, now_us: int | None) -> None:
        """Keeps the gaps, or parts of them, that ``gaps`` does not have, and commits them there."""
        have = {gap.spot: self._tables.version("gaps", gap.spot.app) for gap in self.gaps}
        self.gaps = [
            gap._replace(first=max(gap.first, have[gap.spot] + 1))
            for gap in self.gaps
            if gap.last > have[gap.spot]
        ]
        if not self.gaps:
            return
        rows = [
            {
                "topic": gap.spot.topic,
                "topic_uuid": gap.spot.uuid,
                "partition": gap.spot.partition,
                "first": gap.first,
                "last": gap.last,
                "tables": " ".join(gap.tables),
                "found": now_us,
            }
            for gap in self.gaps
        ]
        expected = {gap.spot.app: have[gap.spot] for gap in self.gaps}
        moves = {gap.spot.app: gap.last for gap in self.gaps}
        self._tables.commit("gaps", pa.Table.from_pylist(rows, TABLES["gaps"].schema), expected, moves)
        self.counts["gaps"] += len(self.gaps)
        self.counts["records lost"] += sum(gap.last - gap.first + 1 for gap in self.gaps)

    # --- what was read -------------------------------------------------------------------------------------

    def take(self, spot: Spot, records: Iterable[Record]) -> None:
        """Takes records of one partition, in the order of their offsets."""
        assert self._ready, "resume first"
        floors = self._floors.get(spot)
        source = Source(spot.topic, spot.uuid)
        reached = self._reached[spot]
        for record in records:
            assert record.offset > reached, f"{spot} at {reached} was given {record.offset}"
            bad = self._rows.add(source, record, floors)
            if bad is not None:
                self.letters.append(Letter(spot, record, bad))
            reached = record.offset
        self._reached[spot] = reached
        if floors and reached >= max(floors.values()):
            del self._floors[spot]

    @property
    def ready(self) -> bool:
        """Whether rows may be taken and committed: it was resumed, and has had no trouble since."""
        return self._ready

    @property
    def waiting(self) -> int:
        """Rows not yet committed."""
        return self._rows.waiting

    @property
    def waiting_bytes(self) -> int:
        return self._rows.bytes

    @property
    def pressing(self) -> bool:
        """Whether someone waits for a commit: rows of more than ticks."""
        return self._rows.pressing > 0

    # --- what to commit ------------------------------------------------------------------------------------

    def commits(self, *, empty: bool = False) -> Iterator[Committed]:
        """Commits what waits, one table per step; with ``empty`` also moves on the tables that
        got no rows. Raises Conflict or Unavailable; then resume."""
        assert self._ready, "resume first"
        assert not self.letters, "send the dead letters first: this commit passes them"
        self._ready = False
        tables = self._rows.take()
        for name in COMMIT_ORDER:
            rows = tables.get(name)
            moves = self._moves(name)
            assert rows is None or moves, f"rows of {name} without a record that brought them"
            if not moves or (rows is None and not empty):
                continue
            self._commit(name, rows, moves)
            self.counts["commits"] += 1
            added = 0 if rows is None else rows.num_rows
            self.counts["rows"] += added
            yield Committed(name, added)
        self._ready = True

    def _commit(self, name: TableName, rows: pa.Table | None, moves: Mapping[Spot, int]) -> None:
        expected: dict[str, int] = {}
        to: dict[str, int] = {}
        for spot, offset in moves.items():
            fence = self._fences[name, spot]
            expected |= {spot.app: self._stored[name, spot], spot.fence: fence}
            to |= {spot.app: offset, spot.fence: fence + 1}
        self._tables.commit(name, rows, expected, to)
        for spot, offset in moves.items():
            self._stored[name, spot] = offset
            self._fences[name, spot] += 1

    def _moves(self, name: TableName) -> dict[Spot, int]:
        """Partitions that feed the table and have been read beyond its position, with how far."""
        return {
            spot: reached
            for spot, reached in self._reached.items()
            if reached > self._stored.get((name, spot), reached)
        }
