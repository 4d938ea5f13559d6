"""Planted bugs: one for each mechanism, by replacing one function of the product; each must be caught.

A bug is planted for the run only, so that the oracles of ``checkers`` stay right; the ``everywhere`` ones
are in the oracle's cores as well, and must be caught by the naive oracle of windows or by what the checks
know of evaluations. All run the same few seeds, with all faults on (:data:`STORM`), which the product
itself must pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from driftline.producers import buffer, memory_disk, recovery, spool, spool_format
from driftline.records import OutputId
from driftline.storage import core as sink_core
from driftline.storage import memory_lake, rows, seen
from driftline.streams import outputs, processes, ticks, watermark
from driftline.streams import pipeline as pure
from driftline.streams.scheduler import core as scheduler_core
from driftline.streams.scheduler import leases
from driftline.streams.shell import assignments, cursor, outbox, partition, shell, snapshots
from driftline.streams.shell import recovery as shell_recovery

from .clients import current
from .faults import FAULTS

SEEDS = range(1, 7)
TRAINING_US = 30_000_000
STORM = {name: fault.rate for name, fault in FAULTS.items()} | {
    "record delayed": 0.03,
    "record skipped": 0.02,
    "record duplicated": 0.02,
    "group ahead": 0.3,
    "connection lost": 0.03,
    "worker paused": 0.08,
    "zombie worker": 0.06,
    "sink paused": 0.04,
    "second sink": 0.06,
    "broker away": 0.05,
    "send refused": 0.004,
    "delivery delayed": 0.02,
    "killed after manifest": 0.08,
    "spool disk full": 0.1,
    "topic made again": 0.0,
    "killed after table commit": 0.03,
    "killed before table commit": 0.02,
}
"""All faults at once, some more often than the seeds have them by themselves."""


SLOW = {"delivery delayed": 0.1, "killed after manifest": 0.3}
CROWDED = {"second sink": 0.4, "record delayed": 0.1, "sink paused": 0.0, "killed before table commit": 0.0}
MOVING = {"partition moved": 0.3, "buffer full": 0.05}
OUTAGES = {"broker away": 0.15, "partition moved": 0.15}
DISKS = {"broker away": 0.2, "spool disk full": 0.3, "spool damaged": 0.5, "rank restarted": 0.1}


class Bug(NamedTuple):
    """A mechanism that is broken on purpose. ``within``: it is caught by that many of :data:`SEEDS`."""

    says: str
    plant: Callable[[Any], None]
    within: int = 4
    everywhere: bool = False
    rates: Mapping[str, float] = {}
    """Faults that this one needs more often than :data:`STORM` has them."""


class _Patch:
    """Sets attributes, and sets them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __call__(self, owner: Any, name: str, value: Any) -> Any:
        before = owner.__dict__[name]
        self._before.append((owner, name, before))
        setattr(owner, name, value)
        return before.__func__ if isinstance(before, staticmethod | classmethod) else before

    def undo(self) -> None:
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    patch = _Patch()
    try:
        bug.plant(patch)
        yield
    finally:
        patch.undo()


BUGS: dict[str, Bug] = {}


def _bug(name: str, says: str, **how: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(plant: Callable[[Any], None]) -> Callable[[Any], None]:
        BUGS[name] = Bug(says, plant, **how)
        return plant

    return add


# --- design 6.2: the shell ---------------------------------------------------------------------------------


@_bug("holes are not filled", "a record above the next offset is applied as if nothing were missing")
def _(patch: Any) -> None:
    feed = patch(cursor.Cursor, "feed", lambda self, found, *, plain=False: feed(self, found, plain=True))


@_bug("repeated records are applied", "a record below the next offset is applied again")
def _(patch: Any) -> None:
    def feed(self: Any, found: Any, *, plain: bool = False) -> Any:
        if found and found[0].offset < self.next:
            self.next = found[0].offset
        return original(self, found, plain=plain)

    original = patch(cursor.Cursor, "feed", feed)


@_bug("the fill stops early", "the range that was skipped is read up to, and not with, its last record")
def _(patch: Any) -> None:
    async def fill(self: Any, through: int) -> None:
        if through - 1 > self._at.next:
            await original(self, through - 1)
        self._at.next = through

    original = patch(partition.PartitionTask, "_fill", fill)


@_bug("the group's offset is trusted", "a worker goes on from the committed offset, not from its state's")
def _(patch: Any) -> None:
    def make(core: Any, state: Any, offset: int) -> Any:
        world, _ = current()
        for group in world.groups.values():
            if group.topic.endswith(core.source):
                offset = max(offset, group.offsets.get(state.partition, 0))
        return original(core, state, offset)

    original = patch(shell_recovery, "Cursor", make)


@_bug("snapshot before flush", "a snapshot is written while outputs before it are under way", rates=SLOW)
def _(patch: Any) -> None:
    async def settled(self: Any, lane: Any) -> None:
        self._check()

    patch(outbox.Outbox, "settled", settled)


@_bug("a snapshot's offset is one too high", "a snapshot says that it has seen a record that it has not")
def _(patch: Any) -> None:
    make = patch(snapshots, "SnapshotId", lambda offset, writer: make(offset + (writer != ""), writer))
    patch(snapshots, "_parse", _parse_plainly(make))


def _parse_plainly(make: Any) -> Any:
    def parse(source: Any, key: bytes | None) -> Any:
        text = (key or b"").decode(errors="replace")
        if not text.startswith(source.prefix):
            return None
        offset, writer, part = text[len(source.prefix) :].split("/")
        return make(int(offset), writer), part

    return parse


@_bug("outputs overtake what failed", "after a send that failed for good the outbox sends what comes next")
def _(patch: Any) -> None:
    def _break(self: Any, error: BaseException) -> None: ...

    patch(outbox.Outbox, "_break", _break)


@_bug("ids by batch", "outputs are numbered within a batch, not within the record that caused them")
def _(patch: Any) -> None:
    def claim(self: Any, offset: int) -> OutputId:
        self._next[-1] = self._next.get(-1, -1) + 1
        return OutputId(self.topic_uuid, self.partition, offset, self._next[-1])

    patch(outputs.Outbox, "claim", claim)


@_bug("outputs without the order of ids", "a batch's outputs are sent by topic, not in the log's order")
def _(patch: Any) -> None:
    def by_run(self: Any) -> list[Any]:
        return [output for _, _, output in sorted(self._outputs, key=lambda item: (item[2].run, item[:2]))]

    patch(outputs.Outbox, "sorted", by_run)


@_bug("record times in seconds", "a delivered record's time is cut to seconds, one that is read again is not")
def _(patch: Any) -> None:
    async def collect(self: Any, stream: Any) -> None:
        async for event in stream.noack().events():
            message = event.message
            record = shell.Record(
                message.partition, message.offset, int(message.timestamp) * 1000, message.value
            )
            self._assignments.deliver(record)

    patch(shell.Shell, "_collect", collect)


@_bug(
    "the first configuration is not primed", "what came before the configuration is worked on with defaults"
)
def _(patch: Any) -> None:
    patch(pure.Pipeline, "prime", lambda self, state, record: None)


@_bug("ticks pile up", "a tick is written though the one before it is still under way")
def _(patch: Any) -> None:
    async def tick(self: Any) -> None:
        if not self._retired:
            await self._append(partition.events.Tick(worker="w", time_us=self._parts.clock.now_us()))

    patch(partition.PartitionTask, "tick", tick)


@_bug(
    "a retired task is cancelled",
    "a partition that is taken away stops in the middle of a batch, and its state is used when it comes back",
    rates=MOVING,
)
def _(patch: Any) -> None:
    def retire(self: Any, number: int) -> None:
        task = self.tasks.get(number)
        original(self, number)
        if task is not None:
            task.task.cancel()

    async def recovered(self: Any) -> Any:
        known = None if self._predecessor is None else self._predecessor.cursor
        found = await recover(self)
        return found if known is None or known.next < found.next else known

    original = patch(assignments.Assignments, "_retire", retire)
    recover = patch(partition.PartitionTask, "_recover", recovered)


@_bug("a partition's end is not noticed", "a partition whose task failed stays without one", rates=OUTAGES)
def _(patch: Any) -> None:
    def ended(self: Any, done: Any) -> None:
        if not done.cancelled():
            done.exception()

    patch(assignments.Assignments, "_ended", ended)


# --- the sink ----------------------------------------------------------------------------------------------


@_bug("a commit by a fresh handle", "a commit loads the table first, so that no conflict is ever seen")
def _(patch: Any) -> None:
    def commit(self: Any, name: Any, table: Any, expected: Any, moves: Any) -> None:
        self.reload()
        original(self, name, table, {app: self.version(name, app) for app in expected}, moves)

    original = patch(memory_lake.MemoryLake, "commit", commit)


@_bug("marks from beyond the position", "what is read again counts as seen, by the marks of its first time")
def _(patch: Any) -> None:
    def marks(self: Any, uuid: str, starts: Any) -> Any:
        return original(self, uuid, dict.fromkeys(starts, 1 << 60))

    original = patch(memory_lake.MemoryLake, "seen", marks)


@_bug("marks are not read back", "a sink that starts again does not know what is stored")
def _(patch: Any) -> None:
    patch(memory_lake.MemoryLake, "seen", lambda self, uuid, starts: seen.Seen())


@_bug("no skip per table", "a table that is further on gets the rows again")
def _(patch: Any) -> None:
    add = patch(rows.Rows, "add", lambda self, source, record, floors=None: add(self, source, record))


@_bug("resume from the maximum", "a partition is read from where the foremost of its tables stands")
def _(patch: Any) -> None:
    def start(self: Any, spot: Any, oldest: int) -> int:
        original(self, spot, oldest)
        floors = [self._tables.version(name, spot.app) for name in sink_core.FEEDS[spot.topic]]
        begin = max(*floors, oldest - 1) + 1
        self._reached[spot] = begin - 1
        self._floors.pop(spot, None)
        return begin

    original = patch(sink_core.SinkCore, "_start", start)


@_bug(
    "no empty commits",
    "a table without rows stays where it was, until the topic no longer has that",
    within=6,
)
def _(patch: Any) -> None:
    def commits(self: Any, *, empty: bool = False) -> Any:
        return original(self)

    original = patch(sink_core.SinkCore, "commits", commits)


@_bug(
    "only the last number is a copy", "a record is a duplicate only if its number is that of the one before"
)
def _(patch: Any) -> None:
    def is_new(self: Any, run: str, process: str, seq: int) -> bool:
        last = self._seq.get((run, process))
        self._seq[run, process] = seq
        return bool(seq != last)

    patch(seen.SeenProcesses, "is_new", is_new)


@_bug("outputs are not recognised", "an output that was sent again is stored again")
def _(patch: Any) -> None:
    patch(seen.SeenOutputs, "is_new", lambda self, where, output: True)


# --- the SDK and its spool ---------------------------------------------------------------------------------


@_bug("live frames before the spool", "after an outage the SDK goes on with what memory has")
def _(patch: Any) -> None:
    def back(self: Any) -> None:
        self._cursor = min(self._memory, default=self.next_seq)
        self.in_flight_bytes = 0

    patch(buffer.Outbox, "back", back)


@_bug("resends only what was not sent", "after a lost connection what was under way is taken for delivered")
def _(patch: Any) -> None:
    patch(buffer.Outbox, "back", lambda self: None)


@_bug("spools are not locked", "a spool is taken over though its owner lives")
def _(patch: Any) -> None:
    def claim(self: Any, name: str) -> Any:
        if name not in self.faults.folders:
            return None
        self.faults.owners[name] = self
        return memory_disk._MemoryFolder(self, name, owner=True)

    patch(memory_disk.MemoryDisk, "claim", claim)


@_bug("checksums are not compared", "a spool's records are sent as they come back from disk", rates=DISKS)
def _(patch: Any) -> None:
    patch(spool_format, "_is_right", lambda data, at, size: True)


@_bug(
    "a torn write is left", "what was written of a record before the disk was full stays there", rates=DISKS
)
def _(patch: Any) -> None:
    def write(self: Any, segment: Any, data: bytes) -> None:
        self._folder.append(segment.name, data)
        segment.size += len(data)
        self.size_bytes += len(data)
        self._written_bytes += len(data)

    patch(spool.Spool, "_write", write)


@_bug("a spool is removed when it was read", "a dead process's spool goes before it arrived", rates=DISKS)
def _(patch: Any) -> None:
    def load(self: Any) -> Any:
        found = original(self)
        self.delivered()
        return found

    original = patch(recovery.Left, "load", load)


# --- the pure pipeline and the scheduler: planted in the oracle's copy, too --------------------------------


@_bug("copies of frames count", "a frame that was sent again is aggregated again", everywhere=True)
def _(patch: Any) -> None:
    def counts(moment: Any, process: Any, seq: int) -> bool:
        process.seq = max(process.seq, seq)
        processes.lives(moment.run, process, moment.now_us)
        return True

    patch(processes, "counts", counts)


@_bug("the silent hold the watermark", "a process that fell silent holds up all windows", everywhere=True)
def _(patch: Any) -> None:
    patch(watermark.Watermark, "rest", lambda self, since_us: None)


@_bug(
    "a sample from the future moves the watermark", "one wrong clock makes all others late", everywhere=True
)
def _(patch: Any) -> None:
    take = patch(
        pure.arrivals, "take", lambda moment, attempt, some, skew_us: take(moment, attempt, some, 1 << 60)
    )


@_bug(
    "holes in the ticks count as silence",
    "whoever was not watched counts as silent",
    everywhere=True,
    within=6,
)
def _(patch: Any) -> None:
    patch(ticks, "_forgive_hole", lambda moment, hole_us: None)


@_bug("a second result is accepted", "a request stays open after its result", everywhere=True)
def _(patch: Any) -> None:
    def answer(state: Any, request: Any, *rest: Any) -> None:
        original(state, request, *rest)
        state.requests[request.request] = request
        request.active = None

    original = patch(leases, "answer", answer)


@_bug("leases never run out", "work of an evaluator that was lost is never given to another", everywhere=True)
def _(patch: Any) -> None:
    patch(leases, "expire", lambda state, out: None)


@_bug(
    "a failure is forgotten",
    "a request whose evaluation failed is neither tried again nor answered",
    everywhere=True,
)
def _(patch: Any) -> None:
    def fail(state: Any, request: Any, outcome: Any, out: Any) -> None:
        leases._free(state, request.active)
        state.requests.pop(request.request)

    patch(leases, "fail", fail)


@_bug(
    "a repeated request is asked again",
    "what a stream worker sent again is a new request",
    everywhere=True,
    within=6,
)
def _(patch: Any) -> None:
    patch(scheduler_core, "_seen_before", lambda state, id_: False)
    patch(scheduler_core, "_requested", _ask_always)


def _ask_always(state: Any, event: Any, out: Any) -> None:
    asker = scheduler_core.Asker(event.run, event.attempt, event.reason, event.checkpoint, state.now_us)
    state.closed.pop(event.request, None)
    if event.request not in state.requests:
        scheduler_core._open(state, event, asker, out)
