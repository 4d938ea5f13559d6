"""The input log back from the tables ``log`` and ``samples``: for replays, in the original order.

    TableLog(root)     parts(runs) -> Part ...     stretches(part, ...) -> records, gaps

Events come as their stored bytes, frames decoded (:class:`~driftline.records.Framed`), with the record times
of the broker; duplicates and undecodable records too. A duplicate has the content of the frame that it is a
copy of, where that is stored (also of a topic that was made again: to its pipeline the frame is new).

Memory is bounded: what a live sink wrote lies about in this order and is read file by file. Of a compacted
table, sorted by run and metric, the samples of one block of the log lie all over its files: up to
``SAMPLES`` of them are put in order in memory, more in a temporary file (37 bytes a sample) that is mapped
there, and what is beyond ``BLOCK_SAMPLES`` waits in further files, each row being decoded once. The files are
those of the moment at which the log was opened; the table's clean-up keeps them for an hour. (If a file is
gone, a BadData says so; start again.)

What is not whole is said in ``notes``: offsets that retention deleted or the sink never had, frames without
(some of) their samples.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline.errors import BadData, SettingsError
from driftline.frames import Frame
from driftline.records import Framed, Record
from driftline.storage.objects import address, connect, is_remote
from driftline.storage.recorded.frames import I64, Block, Head, Names, bucket_ends
from driftline.storage.recorded.samples import Mapped, Piece, SampleFiles, Segment, put_aside_rows
from driftline.storage.recorded.snapshot import Snapshot
from driftline.storage.relations import source
from driftline.storage.tables import TableName

SAMPLES = 2_000_000
"""Held in memory: 74 MB."""
BLOCK_SAMPLES = 32_000_000
RECORDS = 50_000
"""Offsets of one stretch."""
_FRAMED = "kind = 'frame' AND outcome IN ('stored', 'duplicate')"


class Hole(NamedTuple):
    """Offsets [start, end) that the stream worker found lost: it noted them as a gap of the log."""

    start: int
    end: int


class Part(NamedTuple):
    """What is there of one partition of a telemetry topic (and, of it, of the runs that were asked for)."""

    topic_uuid: str
    partition: int
    start: int
    """First offset from which all is there."""
    end: int
    """Behind the last one."""
    first: int
    """First record of the chosen runs."""
    last: int
    """Last record of the chosen runs."""
    samples: int
    """Of the chosen runs."""
    first_us: int
    """Time of their first record, and of their last one."""
    last_us: int
    beginning: bool
    """Whether the log is there from its beginning."""


Item = list[Record | Framed] | Hole


class TableLog:
    """The log in the tables under ``root``; ``runs`` limits it to these (ticks and configurations stay).

    Raises BadData if there are no tables, or if a file is missing or broken.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        runs: Collection[str] = (),
        snapshot: Snapshot | None = None,
    ) -> None:
        self.root: Path | str = address(root) if is_remote(root) else Path(root)
        self.runs = sorted(runs)
        self.notes: list[str] = []
        """What is not as it was, a sentence each; grows while the log is read."""
        self.snapshot = snapshot or Snapshot(root)
        self._files = self.snapshot.files
        self._names = Names()
        self._samples = SampleFiles(self._files["samples"], self.runs, self._names)
        self._db = connect(root)
        self._db.execute("SET TimeZone = 'UTC'")
        self._db.execute("SET threads = 1")
        for name in ("log", "facts", "gaps"):
            self._db.execute(f"CREATE VIEW {name} AS FROM {source(name, self._files[name])}")
        chosen = pa.table({"run": pa.array(self.runs, pa.utf8())})
        self._db.register("chosen", chosen)
        self._mine = "(run IS NULL OR run IN (FROM chosen))" if self.runs else "true"

    def close(self) -> None:
        self._db.close()

    def reopened(self) -> Callable[[], TableLog]:
        """Opens the same log of the same moment again, in another process too."""
        return functools.partial(TableLog, self.root, self.runs, self.snapshot)

    def files(self, name: TableName) -> list[str]:
        return self._files[name]

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """An answer of DuckDB over ``log``, ``facts`` and ``gaps``."""
        try:
            return self._db.execute(sql, list(parameters)).fetchall()
        except duckdb.Error as error:
            raise BadData(
                f"the tables in {self.root} cannot be read: {str(error).splitlines()[0]}"
            ) from error

    def parts(self) -> list[Part]:
        """The partitions that have records of the chosen runs, in order."""
        own = "run IN (FROM chosen)" if self.runs else "true"
        found = self.rows(
            f"""SELECT topic_uuid, "partition", min("offset"), max("offset") + 1, count(*),
                min("offset") FILTER ({own}), max("offset") FILTER ({own}),
                coalesce(sum(samples) FILTER ({own} AND outcome = 'stored'), 0),
                epoch_us(min(received) FILTER ({own})), epoch_us(max(received) FILTER ({own}))
            FROM log GROUP BY ALL ORDER BY min(received), topic_uuid, "partition" """
        )
        parts = []
        for uuid, partition, low, end, count, first, last, samples, first_us, last_us in found:
            if first is None:
                continue
            start = self._start(uuid, partition, low, end, count)
            end = self._covered(uuid, partition, end)
            last = min(last, end - 1)
            part = Part(
                *(uuid, partition, start, end, max(first, start), last),
                *(int(samples), first_us, last_us, start == 0),
            )
            if last >= start:
                parts.append(part)
        return parts

    def holes(self, part: Part) -> list[Hole]:
        """The gaps of the log that the stream worker told of."""
        found = self.rows(
            """SELECT DISTINCT "start", "end" FROM facts
            WHERE what = 'gap' AND process IS NULL AND "start" IS NOT NULL AND "offset" = "start"
                AND topic_uuid = ? AND "partition" = ? ORDER BY ALL""",
            *(part.topic_uuid, part.partition),
        )
        return [Hole(start, end) for start, end in found if end > part.start]

    def configurations(self, part: Part) -> list[Record]:
        """All records of the partition with a configuration, also from before ``part.start``."""
        found = self.rows(
            """SELECT "offset", epoch_us(received), payload FROM log
            WHERE kind = 'config_changed' AND topic_uuid = ? AND "partition" = ? ORDER BY "offset" """,
            *(part.topic_uuid, part.partition),
        )
        return [Record(part.partition, offset, us // 1000, payload) for offset, us, payload in found]

    def offset_at(self, part: Part, time_us: int) -> int:
        """The first offset whose record came at this time or later."""
        query = """SELECT min("offset") FROM log
            WHERE topic_uuid = ? AND "partition" = ? AND epoch_us(received) >= ?"""
        found = self.rows(query, part.topic_uuid, part.partition, time_us)[0][0]
        return part.end if found is None else int(found)

    def stretches(self, part: Part, start: int | None = None, end: int | None = None) -> Iterator[Item]:
        """The records of offsets [start, end), in order, cut into lists; and the gaps between them.

        With chosen runs: before their first record only configurations and the last tick, since nothing
        else has an effect on them.
        """
        start, end = max(part.start, start or 0), part.end if end is None else min(part.end, end)
        holes = [hole for hole in self.holes(part) if hole.end > start and hole.start < end]
        if self.runs and start < part.first:
            before = self._before(part, start)
            start = part.first
            if before:
                yield before
        for hole in [*holes, None]:
            upto = end if hole is None else min(hole.start, end)
            if start < upto:
                yield from self._between(part, start, upto)
            if hole is not None:
                if hole.end > start:
                    yield Hole(max(hole.start, start), hole.end)
                start = max(start, hole.end)

    # --- what is there -------------------------------------------------------------------------------------

    def _start(self, uuid: str, partition: int, low: int, end: int, count: int) -> int:
        """The first offset from which the log is whole; says what is not there."""
        if low == 0 and count == end:
            return 0
        told = self.rows(
            """SELECT first, last + 1 FROM gaps
                WHERE topic = 'telemetry' AND topic_uuid = ? AND "partition" = ?
            UNION ALL SELECT "start", "end" FROM facts WHERE what = 'gap' AND process IS NULL
                AND "offset" = "start" AND topic_uuid = ? AND "partition" = ?""",
            *(uuid, partition, uuid, partition),
        )
        gaps = self.rows(
            """SELECT before + 1, "offset" FROM (
                SELECT "offset", lag("offset", 1, -1) OVER (ORDER BY "offset") AS before
                FROM log WHERE topic_uuid = ? AND "partition" = ?)
            WHERE "offset" > before + 1 ORDER BY ALL""",
            *(uuid, partition),
        )
        start = 0
        for first, behind in gaps:
            if any(a <= first and behind <= b for a, b in told):
                self.notes.append(
                    f"partition {partition}: offsets {first} to {behind - 1} were never stored, the broker "
                    "had deleted them: if the stream worker had read them, results that rest on them differ"
                )
            else:
                start = behind
        if start:
            self.notes.append(
                f"partition {partition}: what came before offset {start} is deleted (storage.retention): the "
                "replay begins there without what was known, so results differ until windows are full"
            )
        return start

    def _covered(self, uuid: str, partition: int, end: int) -> int:
        """Behind the last offset of which all is there: a sink commits ``log`` before ``samples``."""
        reached = self.snapshot.reached(uuid, partition)
        if reached is None or reached >= end - 1:
            return end
        waiting = self.rows(
            """SELECT min("offset") FROM log WHERE topic_uuid = ? AND "partition" = ? AND "offset" > ?
                AND kind = 'frame' AND outcome = 'stored' AND samples > 0""",
            *(uuid, partition, reached),
        )[0][0]
        return end if waiting is None else int(waiting)

    def _before(self, part: Part, start: int) -> list[Record | Framed]:
        found = self.rows(
            """SELECT "offset", epoch_us(received), payload FROM log
            WHERE topic_uuid = ? AND "partition" = ? AND "offset" >= ? AND "offset" < ?
                AND (kind = 'config_changed' OR "offset" = (
                    SELECT max("offset") FROM log WHERE topic_uuid = ? AND "partition" = ?
                        AND "offset" < ? AND kind = 'tick'))
            ORDER BY "offset" """,
            *(part.topic_uuid, part.partition, start, part.first),
            *(part.topic_uuid, part.partition, part.first),
        )
        return [Record(part.partition, offset, us // 1000, payload) for offset, us, payload in found]

    # --- stretches -----------------------------------------------------------------------------------------

    def _between(self, part: Part, start: int, end: int) -> Iterator[Item]:
        for segment in self._samples.segments(part, start, end, SAMPLES):
            offsets, sizes = self._sizes(part, segment)
            cuts = bucket_ends(sizes, samples=BLOCK_SAMPLES, records=len(sizes))
            if len(cuts) <= 1 and int(sizes.sum()) <= SAMPLES:
                block = Block(offsets, sizes, self._names)
                self._samples.fill(block, part, segment)
                yield from self._records(part, segment.start, segment.end, block)
                continue
            ends = [*(int(offsets[cut]) for cut in cuts[:-1]), segment.end]
            begin = segment.start
            with tempfile.TemporaryDirectory(prefix="driftline-replay-") as folder:
                room = Mapped(Path(folder))
                if len(cuts) == 1:
                    block = Block(offsets, sizes, self._names, room)
                    self._samples.fill(block, part, segment)
                    yield from self._records(part, segment.start, segment.end, block)
                    continue
                self._samples.put_aside(Path(folder), np.array(ends, np.int64), part, segment)
                for number, (low, high) in enumerate(zip([0, *cuts[:-1]], cuts, strict=True)):
                    block = Block(offsets[low:high], sizes[low:high], self._names, room)
                    aside = Path(folder) / str(number)
                    if aside.exists():
                        for rows in put_aside_rows(aside):
                            block.add(rows)
                        aside.unlink()
                    yield from self._records(part, begin, ends[number], block)
                    begin = ends[number]

    def _sizes(self, part: Part, segment: Segment) -> tuple[I64, I64]:
        """Offsets of the frames with samples, and how many each has."""
        table = self._arrow(
            f"""SELECT "offset", samples::BIGINT AS samples FROM log
            WHERE topic_uuid = ? AND "partition" = ? AND "offset" >= ? AND "offset" < ?
                AND kind = 'frame' AND outcome = 'stored' AND samples > 0 AND {self._mine}
            ORDER BY "offset" """,
            *(part.topic_uuid, part.partition, segment.start, segment.end),
        )
        return table["offset"].to_numpy(), table["samples"].to_numpy()

    # --- records -------------------------------------------------------------------------------------------

    def _records(self, part: Part, start: int, end: int, block: Block) -> Iterator[list[Record | Framed]]:
        """The records of [start, end), whose samples are in ``block``."""
        self._told_of_block(part, start, end, block)
        for low in range(start, end, RECORDS):
            yield from self._some_records(part, low, min(low + RECORDS, end), block)

    def _some_records(
        self, part: Part, start: int, end: int, block: Block
    ) -> Iterator[list[Record | Framed]]:
        table = self._arrow(
            f"""SELECT "offset", epoch_ms(received) AS ms, {_FRAMED} AS framed,
                outcome = 'stored' AND samples > 0 AS filled, outcome = 'duplicate' AS again,
                run, process, rank, seq, counters, payload
            FROM log WHERE topic_uuid = ? AND "partition" = ? AND "offset" >= ? AND "offset" < ?
                AND {self._mine} ORDER BY "offset" """,
            *(part.topic_uuid, part.partition, start, end),
        )
        if not table.num_rows:
            return
        heads = table.filter(pc.and_(table["framed"], table["filled"]))
        names = ("run", "process", "rank", "seq", "counters")
        columns = (heads[name].to_pylist() for name in names)
        frames = block.frames(
            [
                Head(run, process, rank, seq, counters or "")
                for run, process, rank, seq, counters in zip(*columns, strict=True)
            ]
        )
        copies = self._copies(part, start, end)
        partition = part.partition
        # of frames the text columns are needed above only
        plain = ("offset", "ms", "framed", "filled", "payload")
        for at in range(0, table.num_rows, _SLICE):
            some = table.slice(at, _SLICE)
            made: list[Record | Framed] = []
            for place, (offset, ms, framed, filled, payload) in enumerate(
                zip(*(some[name].to_pylist() for name in plain), strict=True)
            ):
                if not framed:
                    made.append(Record(partition, offset, ms, payload))
                elif filled:
                    made.append(Framed(partition, offset, ms, next(frames)))
                else:
                    row = {name: some[name][place].as_py() for name in names}
                    made.append(Framed(partition, offset, ms, copies.get(offset) or _empty(row)))
            yield made

    def _told_of_block(self, part: Part, start: int, end: int, block: Block) -> None:
        where = f"partition {part.partition}, offsets {start} to {end - 1}"
        if block.missing:
            self.notes.append(
                f"{where}: {block.missing} samples of frames that log has are not in samples "
                "(storage.retention goes by their own time, or a topic was made again too soon): "
                "results that rest on them differ"
            )
        if block.doubled:
            self.notes.append(
                f"{where}: {block.doubled} rows of samples are there twice: driftline storage check"
            )

    def _copies(self, part: Part, start: int, end: int) -> dict[int, Frame]:
        """Duplicates of frames whose original is stored, by offset, with its content."""
        found = self.rows(
            f"""SELECT copy."offset", log.topic_uuid, log."partition", log."offset", log.samples,
                log.run, log.process, log.rank, log.seq, log.counters
            FROM (SELECT "offset", run, process, seq FROM log
                  WHERE topic_uuid = ? AND "partition" = ? AND "offset" >= ? AND "offset" < ?
                    AND kind = 'frame' AND outcome = 'duplicate' AND {self._mine}) AS copy
            JOIN log USING (run, process, seq)
            WHERE log.kind = 'frame' AND log.outcome = 'stored' AND log.samples > 0
            ORDER BY copy."offset" """,
            *(part.topic_uuid, part.partition, start, end),
        )
        copies: dict[int, Frame] = {}
        all_pieces: dict[tuple[str, int], list[Piece]] = {}  # of each file the footer is read once
        for offset, uuid, partition, original, size, run, process, rank, seq, counters in found:
            block = Block(np.array([original]), np.array([size]), self._names)
            other = part._replace(topic_uuid=uuid, partition=partition, start=0)
            if (uuid, partition) not in all_pieces:
                all_pieces[uuid, partition] = list(self._samples.pieces(other))
            pieces = [p for p in all_pieces[uuid, partition] if p.low <= original <= p.high]
            self._samples.fill(block, other, Segment(original, original + 1, 0, pieces))
            head = Head(run, process, rank, seq, counters or "")
            copies[offset] = next(block.frames([head]))
        return copies

    def _arrow(self, sql: str, *parameters: object) -> pa.Table:
        try:
            return self._db.sql(sql, params=list(parameters)).to_arrow_table()
        except duckdb.Error as error:
            raise BadData(
                f"the tables in {self.root} cannot be read: {str(error).splitlines()[0]}"
            ) from error


_SLICE = 2_000


def _empty(row: dict[str, Any]) -> Frame:
    """A frame of which nothing but its head is known, or that has no samples."""
    nothing = np.empty(0, np.int64)
    floats = np.empty(0)
    return Frame(
        *(row["run"], row["process"], row["rank"], row["seq"], [], nothing.astype(np.int16)),
        *(nothing, nothing, floats, floats, row["counters"] or ""),
    )


def run_ids(root: str | os.PathLike[str], texts: Collection[str]) -> list[str]:
    """The runs that are meant: each an id, or a name (then the newest run of it). Raises SettingsError."""
    log = TableLog(root)
    try:
        found = []
        for text in texts:
            row = log.rows(
                f"""SELECT run FROM (
                    SELECT run, 0 AS turn, max(received) AS heard FROM log WHERE run = $1 GROUP BY run
                    UNION ALL SELECT run, 1, max("time") FROM {source("processes", log.files("processes"))}
                        WHERE name = $1 AND event = 'started' GROUP BY run)
                ORDER BY turn, heard DESC LIMIT 1""",
                text,
            )
            if not row:
                raise SettingsError(
                    "RUN", text, 'no run of this id or name is stored: driftline sql "from runs"'
                )
            found.append(str(row[0][0]))
        return sorted(set(found))
    finally:
        log.close()
