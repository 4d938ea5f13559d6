"""Replays a log with its own configuration and compares what comes out with what is stored, row by row.

    prove(source, stored, ...) -> Proof

Compared are ``windows``, ``alerts``, ``facts`` by the digest of all their columns, and the evaluations that
were asked for (``triggers``: those that were answered are stored). Rows that come after the last stored
output of a partition are counted apart: the stream worker or the sink had not got there. Of some runs of a
partition the place of a row among the outputs of its record is not compared, since others stood between.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from driftline import events
from driftline.replay.checkpoint import Folder, Progress
from driftline.replay.digest import Digest, Digests
from driftline.replay.outputs import Outputs
from driftline.replay.player import Source
from driftline.replay.playing import Keep, Task, Tell, play_all
from driftline.storage.recorded.compare import OUTPUTS, Counts, Difference, OutputTable, Reach, Stored
from driftline.storage.recorded.source import Part
from driftline.storage.tables import TABLES

FIRST = 5
"""Differences that are shown of a table."""
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


@dataclass
class Compared:
    """One table, all runs together or one run."""

    table: str
    run: str
    stored: Digest
    replayed: Digest
    identical: bool
    note: str = ""


class Covered(NamedTuple):
    """The results of which records were compared: those of offsets [start, end). ``log_end``: behind the last
    record of the partition; what is stored of later records is not looked at."""

    topic_uuid: str
    partition: int
    start: int
    end: int
    log_end: int


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
    covered: list[Covered] = field(default_factory=list)
    differing: dict[str, Counts] = field(default_factory=dict)
    """Of each table that differs, how many rows: ``differences`` are the first of them."""
    log_us: int = 0
    """Time that passed while the log was recorded: of all partitions, from the first to the last record."""

    def forget(self, table: str) -> None:
        """Takes back what was said of a table."""
        self.compared = [one for one in self.compared if one.table != table]
        self.differences = [one for one in self.differences if one.table != table]
        self.differing.pop(table, None)

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
    jobs: int = 1,
    folder: Folder | None = None,
    keep: Keep | None = None,
    newer: Callable[[Stored], Stored | None] = lambda stored: None,
) -> Proof:
    """Replays what the source has and compares it with what is stored. Raises BadData, Unavailable.

    Args:
        window: of a partition, the offsets whose outputs are looked at.
        jobs: how many partitions are played at once.
        folder: keeps progress, every so often (``keep``); it is emptied in the end.
        newer: gives the tables as they are a moment later, for a sink that is between two commits; None when
            they stay as they are.
    """
    columns = {name: compared_columns(name, bool(runs)) for name in OUTPUTS}
    with contextlib.ExitStack() as stack:
        if folder is None:
            keep = None
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftline-replay-")))
        else:
            keep, place = keep or Keep(), folder.path
        tasks = _tasks(source, stored, window, folder)
        played = play_all(source, tasks, place, runs=runs, columns=columns, keep=keep, jobs=jobs, tell=tell)
        proof = _proof(source, tasks, played)
        outputs = Outputs(place, runs, columns)
        for one in played:
            outputs.take_up(one.collected)
        proof.beyond = outputs.beyond
        reaches = [task.reach._replace(end=covered(task)) for task in tasks]
        for name in OUTPUTS:
            _compare(proof, name, stored, outputs, reaches, columns[name])
        while (behind := _behind(proof, stored, reaches)) and (then := newer(stored)) is not None:
            stored = then
            for name in {name for name, *_ in behind}:
                proof.forget(name)
                _compare(proof, name, stored, outputs, reaches, columns[name])
        proof.notes += [text for *_, text in behind]
        _compare_requests(proof, stored.requests([task.reach for task in tasks]), outputs)
    if folder is not None:
        folder.finished()
    return proof


def covered(task: Task) -> int:
    """Behind the last offset whose results are compared: what the tables have of any of them."""
    return min(task.reach.end, max(task.reach.start, task.cut + 1))


def _tasks(
    source: Source,
    stored: Stored,
    window: Callable[[Part], tuple[int, int]] | None,
    folder: Folder | None,
) -> list[Task]:
    """The partitions, and what of them is looked at; those of when the replay began, if it did before."""
    plan = folder.plan() if folder is not None else None
    parts = source.parts()
    if plan is not None:
        starts = {(part.topic_uuid, part.partition): part.start for part in parts}
        before = msgspec.convert(plan, list[Task])
        return [
            task._replace(oldest=starts.get((task.part.topic_uuid, task.part.partition), task.part.end))
            for task in before
        ]
    tasks = []
    for number, part in enumerate(parts):
        start, end = (part.start, part.end) if window is None else window(part)
        cut = stored.reached(part.topic_uuid, part.partition)
        tasks.append(Task(number, part, Reach(part.topic_uuid, part.partition, start, end), cut))
    if folder is not None:
        folder.set_plan(msgspec.to_builtins(tasks))
    return tasks


def _proof(source: Source, tasks: Sequence[Task], played: Sequence[Progress]) -> Proof:
    """What was played, before anything is compared."""
    notes = [note for one in played for note in one.notes]
    return Proof(
        notes=list(dict.fromkeys([*source.notes, *notes])),
        samples=sum(one.samples for one in played),
        records=sum(one.records for one in played),
        log_us=log_us([task.part for task in tasks]),
        covered=[
            Covered(task.part.topic_uuid, task.part.partition, task.reach.start, covered(task), task.part.end)
            for task in tasks
        ],
    )


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
    for batch in stored.batches(name, reaches):
        have.add(batch)
    made = outputs.digests[name].of
    runs = sorted(have.of.keys() | made.keys())
    found = [(run, have.of.get(run, Digest()), made.get(run, Digest())) for run in runs]
    differ = [run for run, one, other in found if one != other]
    lacking: frozenset[str] = frozenset()
    if differ:
        differences = stored.differences(name, outputs.files(name), reaches, first=FIRST)
        lacking = _but_for_later(name, stored, outputs, reaches, columns) - differences.runs
    for run, one, other in found:
        compared = Compared(name, run, one, other, one == other or run in lacking)
        if one != other and run in lacking:
            later = ", ".join(column for column in columns if column in LATER[name])
            compared.note = f"but for {later}, which an earlier version did not store"
        proof.compared.append(compared)
    if not lacking.issuperset(differ):
        proof.differences += differences.first
        proof.differing[name] = differences.counts


def _but_for_later(
    name: OutputTable,
    stored: Stored,
    outputs: Outputs,
    reaches: Sequence[Reach],
    columns: list[str],
) -> frozenset[str]:
    """Runs whose rows are equal but for columns that earlier versions did not store, whatever is in these."""
    if not LATER[name]:
        return frozenset()
    plain = [column for column in columns if column not in LATER[name]]
    have, made = Digests("run", plain), Digests("run", plain)
    for batch in stored.batches(name, reaches):
        have.add(batch)
    for file in outputs.files(name):
        with pq.ParquetFile(file) as rows:
            for batch in rows.iter_batches():
                made.add(batch)
    return frozenset(run for run, digest in made.of.items() if have.of.get(run) == digest)


def _behind(proof: Proof, stored: Stored, reaches: Sequence[Reach]) -> list[tuple[OutputTable, str]]:
    """Tables that only lack their end, and a sentence for each: a sink commits one after another."""
    found: list[tuple[OutputTable, str]] = []
    for name in OUTPUTS:
        mine = [one for one in proof.differences if one.table == name]
        for reach in reaches if mine else ():
            top = stored.reached(reach.topic_uuid, reach.partition, [name])
            missing = all(one.what == "only replayed" and one.offset > top for one in mine)
            if missing and top < reach.end - 1:
                text = (
                    f"partition {reach.partition}: {name} ends with offset {top}, other tables go to "
                    f"{reach.end - 1}: if a sink writes now, start the replay again; else rows are lost"
                )
                found.append((name, text))
    return found


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


def compared_columns(name: OutputTable, some_runs: bool) -> list[str]:
    left_out = {"ordinal", "id"} if some_runs else set()
    return [column.name for column in TABLES[name].columns if column.name not in left_out]
