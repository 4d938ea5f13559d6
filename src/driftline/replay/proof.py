"""Replays a log with its own configuration and compares what comes out with what is stored, row by row.

    prove(source, stored, ...) -> Proof

Compared are ``windows``, ``alerts``, ``facts`` by the digest of all their columns, and the evaluations that
were asked for (``triggers``: those that were answered are stored). Rows that come after the last stored
output of a partition are counted apart: the stream worker or the sink had not got there. Of some runs of a
partition the place of a row among the outputs of its record is not compared, since others stood between.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from driftline import events
from driftline.records import Output, Record
from driftline.replay.digest import Digest, Digests
from driftline.replay.player import Player, Source, samples_in
from driftline.storage.recorded.compare import OUTPUTS, Difference, OutputTable, Reach, Stored
from driftline.storage.recorded.source import Part
from driftline.storage.rows import Rows
from driftline.storage.rows import Source as TopicSource
from driftline.storage.tables import TABLES, TableName

TAKE_ROWS = 50_000
"""Rows that are collected before they become a table."""
FIRST = 5
"""Differences that are shown of a table."""
Tell = Callable[[int, int], None]
"""Called with the samples of a stretch, and the microseconds of log time that were passed so far."""
_REQUESTS = pa.schema(
    [
        ("run", pa.utf8()),
        ("request", pa.utf8()),
        ("attempt", pa.int32()),
        ("trigger", pa.utf8()),
        ("suite", pa.utf8()),
        ("suite_version", pa.utf8()),
        ("checkpoint", pa.utf8()),
        ("step", pa.int64()),
    ]
)


class Window(NamedTuple):
    """What of the log is looked at: offsets, or record times in microseconds. None: from its beginning, to
    its end. The replay itself begins where the log does: later results rest on earlier records."""

    start: int | None = None
    end: int | None = None
    unit: Literal["offset", "time_us"] = "offset"


class Outputs:
    """Collects what the pipeline puts out: rows like those of the tables, in a file for each table."""

    def __init__(self, folder: Path, runs: Sequence[str], columns: dict[OutputTable, list[str]]) -> None:
        self._runs = frozenset(runs)
        self._rows = Rows()
        self._folder = folder
        self._writers: dict[OutputTable, pq.ParquetWriter] = {}
        self._count = 0
        self.digests = {name: Digests("run", columns[name]) for name in OUTPUTS}
        self.short = {name: Digests("run", _without_later(name, columns[name])) for name in OUTPUTS}
        self.requests: list[events.EvalRequested] = []
        self.earlier: list[events.EvalRequested] = []
        """Of before the reach: some are answered in it."""
        self.beyond = 0

    def add(self, outputs: Sequence[Output], reach: Reach, cut: int) -> None:
        """Takes outputs whose cause lies in ``reach``; those behind ``cut`` are only counted."""
        for output in outputs:
            if self._runs and output.run not in self._runs:
                continue
            if output.id.offset >= reach.end or output.topic == "dead-letter":
                continue
            if output.topic == "evals":
                event = events.decode(output.value)
                assert isinstance(event, events.EvalRequested)
                (self.requests if output.id.offset >= reach.start else self.earlier).append(event)
            elif output.id.offset < reach.start:
                continue
            elif output.id.offset > cut:
                self.beyond += 1
            else:
                self._count += 1
                place = Record(reach.partition, self._count, 0, output.value)
                bad = self._rows.add(TopicSource(output.topic, reach.topic_uuid), place)
                assert bad is None, bad
        if self._rows.waiting >= TAKE_ROWS:
            self._take()

    def finish(self) -> None:
        self._take()
        for writer in self._writers.values():
            writer.close()

    def file(self, name: OutputTable) -> Path:
        """A Parquet file of the rows."""
        path = self._folder / f"{name}.parquet"
        if not path.exists():
            pq.write_table(_bare(name).empty_table(), path)
        return path

    def _take(self) -> None:
        taken = self._rows.take()
        for name in OUTPUTS:
            if name not in taken:
                continue
            table = taken[name].cast(_bare(name))
            self.digests[name].add(table)
            self.short[name].add(table)
            if name not in self._writers:
                self._writers[name] = pq.ParquetWriter(
                    self._folder / f"{name}.parquet", table.schema, compression="lz4"
                )
            self._writers[name].write_table(table)


@dataclass
class Compared:
    """One table, all runs together or one run."""

    table: str
    run: str
    stored: Digest
    replayed: Digest
    identical: bool
    note: str = ""


@dataclass
class Proof:
    """What a replay showed."""

    compared: list[Compared] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: int = 0
    records: int = 0
    beyond: int = 0
    unanswered: int = 0
    """Evaluations that were asked for and have no answer in the tables."""
    log_us: int = 0
    """Time that passed while the log was recorded: of all partitions, from the first to the last record."""

    @property
    def identical(self) -> bool:
        return all(one.identical for one in self.compared)


def prove(
    source: Source,
    stored: Stored,
    *,
    runs: Sequence[str] = (),
    window: Callable[[Part], tuple[int, int]] | None = None,
    tell: Tell = lambda samples, log_us: None,
) -> Proof:
    """``window``: of a partition, the offsets whose outputs are looked at. Raises BadData, Unavailable."""
    proof = Proof()
    columns = {name: compared_columns(name, bool(runs)) for name in OUTPUTS}
    looked_at: list[Reach] = []
    reaches: list[Reach] = []
    with tempfile.TemporaryDirectory(prefix="driftline-replay-") as folder:
        outputs = Outputs(Path(folder), runs, columns)
        parts = source.parts()
        for part in parts:
            start, end = (part.start, part.end) if window is None else window(part)
            reach = Reach(part.topic_uuid, part.partition, start, end)
            cut = stored.reached(part.topic_uuid, part.partition)
            looked_at.append(reach)
            reaches.append(reach._replace(end=min(end, max(start, cut + 1))))
            player = Player(part, source.configurations(part))
            play(source, player, end, tell, functools.partial(outputs.add, reach=reach, cut=cut))
            proof.samples += player.samples
            proof.records += player.records
            proof.notes += player.told()
        outputs.finish()
        proof.log_us = log_us(parts)
        proof.beyond = outputs.beyond
        proof.notes = [*source.notes, *proof.notes]
        for name in OUTPUTS:
            _compare(proof, name, stored, outputs, reaches, columns[name])
        _compare_requests(proof, stored.requests(looked_at), outputs)
        _behind(proof, stored, reaches)
    return proof


def play(
    source: Source,
    player: Player,
    end: int,
    tell: Tell,
    take: Callable[[Sequence[Output]], None],
) -> None:
    """One partition through the pipeline; ends early when its chosen runs are over."""
    part = player.part
    for item in source.stretches(part, None, end):
        take(player.play(item))
        some = samples_in(item)
        player.samples += some
        if isinstance(item, list) and item:
            tell(some, max(0, item[-1].time_ms * 1000 - part.first_us))
            if item[-1].offset > part.last and player.over():
                break


def log_us(parts: Sequence[Part]) -> int:
    """From the first record to the last."""
    if not parts:
        return 0
    return max(part.last_us for part in parts) - min(part.first_us for part in parts)


def _compare(
    proof: Proof,
    name: OutputTable,
    stored: Stored,
    outputs: Outputs,
    reaches: Sequence[Reach],
    columns: list[str],
) -> None:
    have = Digests("run", columns)
    short = Digests("run", _without_later(name, columns))
    for batch in stored.batches(name, reaches):
        have.add(batch)
        short.add(batch)
    differs = False
    for run in sorted(have.of.keys() | outputs.digests[name].of.keys()):
        one, other = have.of.get(run, Digest()), outputs.digests[name].of.get(run, Digest())
        compared = Compared(name, run, one, other, one == other)
        if not compared.identical and short.of.get(run) == outputs.short[name].of.get(run):
            compared.identical = True
            lacking = ", ".join(column for column in columns if column in LATER[name])
            compared.note = f"but for {lacking}, which an earlier version did not store"
        differs = differs or not compared.identical
        proof.compared.append(compared)
    if differs:
        proof.differences += stored.differences(name, outputs.file(name), reaches, first=FIRST)


def _behind(proof: Proof, stored: Stored, reaches: Sequence[Reach]) -> None:
    """Says where a table only lacks its end: a sink commits one table after another."""
    for name in OUTPUTS:
        mine = [one for one in proof.differences if one.table == name]
        for reach in reaches:
            top = stored.reached(reach.topic_uuid, reach.partition, [name])
            missing = mine and all(one.what == "only replayed" and one.offset > top for one in mine)
            if missing and top < reach.end - 1:
                proof.notes.append(
                    f"partition {reach.partition}: {name} ends with offset {top}, other tables go to "
                    f"{reach.end - 1}: if a sink writes now, start the replay again; else rows are lost"
                )


def _compare_requests(proof: Proof, stored: pa.Table, outputs: Outputs) -> None:
    """Every answered evaluation must have been asked for, for the same reason; the others are counted."""
    have = {tuple(row.values()): row for row in stored.to_pylist()}
    made = [*outputs.earlier, *outputs.requests]
    asked = {tuple(row.values()): row for row in map(_request_row, made)}
    answered = {(row["run"], row["request"]) for row in have.values()}
    looked_at = {(event.run, event.request) for event in outputs.requests}
    proof.unanswered = len(looked_at - answered)
    for run in sorted({row["run"] for row in have.values()}):
        both = [Digests("run", _REQUESTS.names) for _ in ("stored", "replayed")]
        mine = [row for row in have.values() if row["run"] == run]
        both[0].add(pa.Table.from_pylist(mine, _REQUESTS))
        both[1].add(pa.Table.from_pylist([row for row in mine if tuple(row.values()) in asked], _REQUESTS))
        one, other = both[0].of.get(run, Digest()), both[1].of.get(run, Digest())
        proof.compared.append(Compared("triggers", run, one, other, one == other))
        lacking = [row for row in mine if tuple(row.values()) not in asked]
        proof.differences += [
            Difference("triggers", "only stored", run, -1, row, {}) for row in lacking[:FIRST]
        ]


def _request_row(event: events.EvalRequested) -> dict[str, str | int | None]:
    return {
        "run": event.run,
        "request": event.request,
        "attempt": event.attempt,
        "trigger": event.reason,
        "suite": event.suite.name,
        "suite_version": event.suite.version,
        "checkpoint": event.checkpoint.digest,
        "step": event.checkpoint.step,
    }


LATER: dict[OutputTable, frozenset[str]] = {
    name: frozenset(column.name for column in TABLES[name].columns if column.later) for name in OUTPUTS
}
"""Columns that earlier versions did not store."""


def _without_later(name: OutputTable, columns: Sequence[str]) -> list[str]:
    return [column for column in columns if column not in LATER[name]]


def compared_columns(name: OutputTable, some_runs: bool) -> list[str]:
    left_out = {"ordinal", "id"} if some_runs else set()
    return [column.name for column in TABLES[name].columns if column.name not in left_out]


def _bare(name: TableName) -> pa.Schema:
    return pa.schema([pa.field(c.name, c.type) for c in TABLES[name].columns])
