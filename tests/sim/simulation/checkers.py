"""What must hold when a simulation has come to rest; each check gives sentences that say what does not.

The judge is the recorded log: everything that was ever appended, whatever was cut or deleted later. Expected
outputs come from the pure cores over that log in one batch (that these are what ``tests/naive.py`` says is
checked in ``windows_agree``, which is slow, and by ``tests/streams``); expected rows from the slow rule "each
(run, process, seq) once".
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from driftline import events, frames, records, window_rows
from driftline.errors import BadRecord
from driftline.producers.recovery import header_of, segments_of
from driftline.records import Output, OutputId, Record
from driftline.storage.store import App
from driftline.storage.tables import FEEDS
from driftline.streams.core import Core, beginning
from driftline.streams.pipeline import Pipeline
from driftline.streams.scheduler import Scheduler
from driftline.streams.shell.partition import destination
from driftline.streams.shell.snapshots import Collected, Source
from driftline.topics import TopicName

from . import bounds
from .broker import Recorded, Stored
from .trainers import Sample

if TYPE_CHECKING:
    from .world import World

Problems = Iterator[str]
FEW = 3
"""Of each kind so many are told one by one."""


class Judged(NamedTuple):
    """One recorded partition of an input topic, what the pure core makes of it, and how far it had to
    come."""

    place: Recorded
    log: list[Record]
    outputs: list[Output]
    current: bool
    """The incarnation that exists now."""
    reached: int
    """Offset of the highest complete snapshot: what lies below was worked on."""


class Findings:
    """Everything that the checks look at, made once."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def telemetry(self) -> list[Judged]:
        return [self._judge(Pipeline(), place) for place in self._places("telemetry")]

    @cached_property
    def evals(self) -> list[Judged]:
        return [self._judge(Scheduler(), place) for place in self._places("evals")]

    @cached_property
    def judged(self) -> dict[tuple[str, int], Judged]:
        return {(j.place.uuid, j.place.partition): j for j in (*self.telemetry, *self.evals)}

    def _places(self, topic: TopicName) -> list[Recorded]:
        return [place for place in self.world.broker.recorded if place.topic == topic]

    def _judge(self, core: Core[Any], place: Recorded) -> Judged:
        log = [
            Record(place.partition, r.offset, r.timestamp, r.value) for r in self.world.broker.recorded[place]
        ]
        outputs = core.step(beginning(core, place.uuid, place.partition, log), log)
        current = place.uuid in self.world.broker.uuids().values()
        role = "streams" if place.topic == "telemetry" else "scheduler"
        found = Collected(Source(f"{self.world.settings.kafka.prefix}{role}", place.uuid, place.partition))
        reached = 0
        for place_of_state, appended in self.world.broker.recorded.items():
            if place_of_state.topic == "state" and place_of_state.partition == place.partition:
                for record in appended:
                    if record.value is not None:
                        found.add(record.key, record.value)
                        reached = max([reached, *(s.offset for s in found.complete)])
        return Judged(place, log, outputs, current, reached)

    def recorded(self, topic: TopicName) -> Iterator[tuple[Recorded, Stored]]:
        for place, appended in self.world.broker.recorded.items():
            if place.topic == topic:
                for record in appended:
                    yield place, record


def id_of(topic: TopicName, value: bytes | None) -> OutputId | None:
    """The output id that a record carries, None if it carries none."""
    try:
        if topic == "windows":
            return window_rows.decode(value or b"")[0]
        event = records.decode(value)
        return OutputId.parse(event.id)  # type: ignore[union-attr]
    except (BadRecord, AttributeError):
        return None


# --- the log and the samples -------------------------------------------------------------------------------


def samples_stored_once(found: Findings) -> Problems:
    """Every sample of the log is in ``samples`` once, whichever of its copies brought it."""
    expected: Counter[Sample] = Counter()
    doubtful: Counter[Sample] = Counter()
    known: set[tuple[str, str, int]] = set()
    for place, record in found.recorded("telemetry"):
        frame = _frame(record.value)
        if frame is None or (frame.run, frame.process, frame.seq) in known:
            continue
        lost = record.offset in found.world.lost.get((place.uuid, place.partition), ())
        if not lost:
            known.add((frame.run, frame.process, frame.seq))
        (doubtful if lost else expected).update(samples_of(frame))
    stored = Counter(stored_samples(found.world))
    lacking = expected - stored
    surplus = stored - expected
    surplus -= doubtful
    yield from _few("is in the log and not in samples", lacking.elements())
    yield from _few("is in samples once too often", surplus.elements())


def _frame(value: bytes | None) -> frames.Frame | None:
    try:
        frame = records.decode(value)
    except BadRecord:
        return None
    return frame if isinstance(frame, frames.Frame) else None


def samples_of(frame: frames.Frame) -> Iterator[Sample]:
    columns = (frame.metric, frame.step, frame.time_us, frame.value, frame.weight)
    for metric, step, time_us, value, weight in zip(*(c.tolist() for c in columns), strict=True):
        where = None if step == frames.NO_STEP else step
        yield Sample(frame.run, frame.process, frame.names[metric], where, time_us, repr(value), weight)


def stored_samples(world: World) -> list[Sample]:
    table = world.tables.rows("samples")
    times = table["time"].cast("int64").to_pylist()
    names = ("run", "process", "metric", "step")
    columns = [table[name].to_pylist() for name in names]
    values = [repr(value) for value in table["value"].to_pylist()]
    return list(map(Sample, *columns, times, values, table["weight"].to_pylist()))


def log_stored_once(found: Findings) -> Problems:
    """``log`` has one row for each record of telemetry, and so gives the whole input log back."""
    table = found.world.tables.rows("log")
    names = ("topic_uuid", "partition", "offset")
    stored = Counter(zip(*(table[name].to_pylist() for name in names), strict=True))
    expected: Counter[tuple[str, int, int]] = Counter()
    doubtful: Counter[tuple[str, int, int]] = Counter()
    for place, record in found.recorded("telemetry"):
        lost = record.offset in found.world.lost.get((place.uuid, place.partition), ())
        (doubtful if lost else expected)[place.uuid, place.partition, record.offset] += 1
    yield from _few("has no row in log", (expected - stored).elements())
    yield from _few("has too many rows in log", (stored - expected - doubtful).elements())


def events_stored_once(found: Findings) -> Problems:
    """``checkpoints`` and ``processes`` have each event of a process once."""
    expected: dict[str, set[tuple[str, str, int]]] = {"checkpoints": set(), "processes": set()}
    for place, record in found.recorded("telemetry"):
        if record.offset in found.world.lost.get((place.uuid, place.partition), ()):
            continue
        try:
            event = records.decode(record.value)
        except BadRecord:
            continue
        if isinstance(event, events.CheckpointSaved):
            expected["checkpoints"].add((event.run, event.process, event.seq))
        elif isinstance(event, events.ProcessStarted | events.ProcessEnded | events.RunRewound):
            expected["processes"].add((event.run, event.process, event.seq))
    for table, wanted in expected.items():
        rows = found.world.tables.rows(table)  # type: ignore[arg-type]
        columns = (rows[name].to_pylist() for name in ("run", "process", "seq"))
        stored = Counter(zip(*columns, strict=True))
        yield from _few(f"is not in {table}", wanted - set(stored))
        yield from _few(f"is in {table} twice", (key for key, count in stored.items() if count > 1))


def logged_adds_up(found: Findings) -> Problems:
    """Of each process that ended by itself: logged = delivered + spooled + refused + dropped, by its own
    counters and by the samples in log and spools; and nothing is in the log that was not logged."""
    in_log: dict[str, set[Sample]] = {}
    for _, record in found.recorded("telemetry"):
        if (frame := _frame(record.value)) is not None:
            in_log.setdefault(frame.process, set()).update(samples_of(frame))
    on_disk = spooled(found.world)
    for rank in (rank for training in found.world.trainings for rank in training.all):
        arrived = in_log.get(rank.process, set())
        logged = set(rank.logged)
        yield from _few(f"{rank.process} never logged", arrived - logged)
        counts = Counter(rank.run.counters())
        if counts["errors"]:
            yield f"{rank.process} had errors inside the SDK: {counts['errors']}"
        if not rank.done:
            continue
        dropped = {name: count for name, count in counts.items() if name.startswith("dropped_")}
        early = sum(dropped.pop(name, 0) for name in ("dropped_queue", "dropped_error", "dropped_device"))
        late = sum(dropped.values())
        framed = counts["samples_delivered"] + counts["samples_spooled"] + late
        if len(logged) != counts["samples_logged"] + early:
            yield f"{rank.process} logged {len(logged)}, its counters say: {dict(counts)}"
        if counts["samples_logged"] != framed:
            yield f"{rank.process} framed {counts['samples_logged']}, {framed} accounted for: {dict(counts)}"
        if counts["dropped_spool"]:
            yield f"{rank.process} found its own spool damaged: {dict(counts)}"
        if rank.process in found.world.damaged:
            continue
        gone = logged - arrived - on_disk.get(rank.process, set())
        if len(gone) > early + late:
            yield f"{rank.process} lost {len(gone)} samples and says {early + late}: {dict(counts)}"
        refused = sum(count for name, count in counts.items() if name.startswith("refused_"))
        if refused != rank.refused:
            yield f"{rank.process} refused {refused} values, not {rank.refused}"


def spooled(world: World, *names: str) -> dict[str, set[Sample]]:
    """What waits on disk, by process."""
    waiting: dict[str, set[Sample]] = {}
    for name in names or world.disk.names():
        for _, data, segment in segments_of(world.disk.look(name)):
            for entry in segment.entries:
                frame = _frame(data[entry.offset : entry.offset + entry.size])
                if frame is not None:
                    waiting.setdefault(frame.process, set()).update(samples_of(frame))
    return waiting


def spools_are_sent(found: Findings) -> Problems:
    """At rest a later process has sent everything that dead ones left, and removed it; but for spools whose
    only header was damaged, which nobody can attribute: they are left for people to look at."""
    disk = found.world.disk
    for name in disk.names():
        if not disk.faults.folders[name] or header_of(disk.look(name)) is not None:
            yield f"spool {name} was not sent and removed: {spooled(found.world, name)}"


def positions_moved_on(found: Findings) -> Problems:
    """Every table stands at the end of every partition that feeds it, rows or none: else retention would one
    day take what it has not passed."""
    world = found.world
    for name, topic in world.broker.topics.items():
        for partition, log in enumerate(topic.logs):
            for table in FEEDS.get(topic.name, ()):
                version = world.tables.version(table, App.id(topic.uuid, partition))
                if version != log.end - 1:
                    yield f"{table} stands at {version} of {name}/{partition}, which ends at {log.end}"


def nothing_was_cut_too_early(found: Findings) -> Problems:
    """Retention took only what was long stored: no sink may say that it missed something."""
    yield from (f"a sink misses {gap}" for gap in found.world.sink_gaps)


# --- outputs of the pure cores -----------------------------------------------------------------------------

OUTPUT_TOPICS: tuple[TopicName, ...] = ("windows", "facts", "alerts", "evals", "assignments", "telemetry")


class Lane(NamedTuple):
    """From an input partition to an output partition: within it ids only grow for those who drop repeats."""

    uuid: str
    partition: int
    topic: TopicName
    to: int


def outputs_are_the_oracles(found: Findings) -> Problems:
    """What readers keep of each input partition is what the pure core gives over the recorded log: no id with
    two contents, none that should not be, none missing, in order."""
    kept: dict[Lane, list[tuple[OutputId, bytes | None]]] = {}
    for topic in OUTPUT_TOPICS:
        for place, record in found.recorded(topic):
            made = id_of(topic, record.value)
            if made is None:
                continue
            lane = kept.setdefault(Lane(made.topic_uuid, made.partition, topic, place.partition), [])
            judged = found.judged.get((made.topic_uuid, made.partition))
            if judged is None:
                yield f"{topic} {made}: of no input that there ever was"
            if not lane or made > lane[-1][0]:
                lane.append((made, record.value))
    for judged in (*found.telemetry, *found.evals):
        yield from _compare(found, judged, kept)


def _compare(found: Findings, judged: Judged, kept: dict[Lane, list[Any]]) -> Problems:
    contents = {output.id: output.value for output in judged.outputs}
    wanted: dict[Lane, list[OutputId]] = {}
    for output in judged.outputs:
        if output.topic in OUTPUT_TOPICS:
            to = destination(
                output, judged.place.topic, judged.place.partition, found.world.broker.partitions
            )
            wanted.setdefault(Lane(judged.place.uuid, judged.place.partition, output.topic, to), []).append(
                output.id
            )
    given = {lane: pairs for lane, pairs in kept.items() if lane[:2] == judged.place[1:]}
    for lane in sorted({*wanted, *given}):
        for made, value in given.get(lane, []):
            if made not in contents:
                yield f"{lane.topic} {made}: the recorded log does not give it"
                break
            if contents[made] != value:
                yield f"{lane.topic} {made}: two contents"
                break
        ids = [made for made, _ in given.get(lane, [])]
        right = wanted.get(lane, [])
        if ids != right[: len(ids)]:
            lacking = sorted(set(right[: len(ids)]) - set(ids))[:FEW]
            yield f"{lane}: readers missed {', '.join(map(str, lacking))}"
        owed = [made for made in right if made.offset < judged.reached]
        if judged.current and len(ids) < len(owed):
            yield f"{lane}: {len(owed) - len(ids)} outputs are missing at the end"


def repeats_are_equal(found: Findings) -> Problems:
    """An output that was sent again has the content that it had before."""
    first: dict[tuple[str, OutputId], bytes | None] = {}
    for topic in OUTPUT_TOPICS:
        for _, record in found.recorded(topic):
            made = id_of(topic, record.value)
            if made is not None and first.setdefault((topic, made), record.value) != record.value:
                yield f"{topic} {made} was sent with two contents"


def all_was_worked_on(found: Findings) -> Problems:
    """At rest nothing but ticks is left to do in any input partition."""
    for judged in (*found.telemetry, *found.evals):
        if not judged.current:
            continue
        left = [record for record in judged.log if record.offset >= judged.reached]
        rest = [r for r in left if b'"kind":"tick"' not in (r.value or b"")[:40]]
        if judged.place.topic == "evals":
            rest = [r for r in rest if b'"kind":"evaluator_' not in (r.value or b"")[:40]]
        if rest:
            yield f"{judged.place}: {len(rest)} records from offset {rest[0].offset} on were never worked on"


def tables_have_the_outputs(found: Findings) -> Problems:
    """``windows``, ``facts`` and ``alerts`` have the rows of each output once."""
    for topic in ("windows", "facts", "alerts"):
        expected: Counter[tuple[Any, ...]] = Counter()
        known: set[OutputId] = set()
        for _, record in found.recorded(topic):  # type: ignore[arg-type]
            made = id_of(topic, record.value)  # type: ignore[arg-type]
            if made is None or made in known:
                continue
            known.add(made)
            rows = window_rows.decode(record.value or b"")[1].num_rows if topic == "windows" else 1
            expected[tuple(made)] += rows
        table = found.world.tables.rows(topic)  # type: ignore[arg-type]
        columns = ("topic_uuid", "partition", "offset", "ordinal")
        stored = Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))
        yield from _few(f"is not in {topic}", (expected - stored).elements())
        yield from _few(f"is in {topic} too often", (stored - expected).elements())


def windows_agree(found: Findings) -> Problems:
    """The pure pipeline's windows are those of the naive oracle (slow: some seeds only)."""
    naive = _naive()
    for judged in found.telemetry:
        wanted = naive.run(judged.log, found.world.settings.pipeline)
        yield from naive.differences(wanted, judged.outputs)[:FEW]


def _naive() -> ModuleType:
    name = "driftline_tests_naive"
    if name not in sys.modules:
        path = Path(__file__).parents[2] / "naive.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


# --- evaluations -------------------------------------------------------------------------------------------


def evaluated_once(found: Findings) -> Problems:
    """Each request of a run has one answer in its log; a request has at most one accepted complete result."""
    answers: dict[tuple[str, str], list[events.EvalAccepted]] = {}
    done: dict[str, set[str]] = {}
    ids: set[str] = set()
    for _, record in found.recorded("telemetry"):
        if b'"kind":"eval_accepted"' not in (record.value or b"")[:40]:
            continue
        event = records.decode(record.value)
        assert isinstance(event, events.EvalAccepted)
        if event.id in ids:
            continue
        ids.add(event.id)
        answers.setdefault((event.request, event.run), []).append(event)
        if event.outcome.status == "done":
            done.setdefault(event.request, set()).add(event.lease)
    for request, leases in sorted(done.items()):
        if len(leases) > 1:
            yield f"{request}: results of {len(leases)} leases were accepted"
    for (request, run), events_ in sorted(answers.items()):
        if len(events_) > 1:
            yield f"{request} was answered {len(events_)} times for {run}"
    for judged in found.telemetry:
        if not judged.current:
            continue
        for output in judged.outputs:
            if output.topic == "evals" and output.id.offset < judged.reached:
                asked = records.decode(output.value)
                assert isinstance(asked, events.EvalRequested)
                if (asked.request, asked.run) not in answers:
                    yield f"{asked.request}, asked for by {asked.run} ({asked.id}), was forgotten"


def evaluations_stored_once(found: Findings) -> Problems:
    """``evals`` has each accepted result once, ``eval_items`` each item of each lease once."""
    table = found.world.tables.rows("evals")
    stored = Counter(zip(table["id"].to_pylist(), table["metric"].to_pylist(), strict=True))
    expected: set[tuple[str, str | None]] = set()
    for place, record in found.recorded("telemetry"):
        if b'"kind":"eval_accepted"' in (record.value or b"")[:40]:
            if record.offset in found.world.lost.get((place.uuid, place.partition), ()):
                continue
            event = records.decode(record.value)
            assert isinstance(event, events.EvalAccepted)
            names: list[str | None] = [metric.name for metric in event.outcome.metrics]
            expected |= {(event.id, name) for name in names or [None]}
    yield from _few("is not in evals", expected - set(stored))
    yield from _few("is in evals twice", (key for key, count in stored.items() if count > 1))
    items = found.world.tables.rows("eval_items")
    rows = Counter(zip(items["lease"].to_pylist(), items["position"].to_pylist(), strict=True))
    sent: set[tuple[str, int]] = set()
    for _, record in found.recorded("eval-items"):
        event = records.decode(record.value)
        assert isinstance(event, events.EvalItems)
        sent |= {(event.lease, event.first + at) for at in range(len(event.items))}
    yield from _few("is not in eval_items", sent - set(rows))
    yield from _few("is in eval_items twice", (key for key, count in rows.items() if count > 1))


# --- all of them -------------------------------------------------------------------------------------------


def nothing_crashed(found: Findings) -> Problems:
    """No part ended with an error that nobody expects."""
    yield from found.world.loop.crashes[:FEW]


def bounds_held(found: Findings) -> Problems:
    """Nothing grew beyond its bound at any time."""
    yield from sorted(found.world.broken_bounds)[:FEW]
    yield from bounds.too_many_snapshots(found.world)


CHECKS: tuple[Callable[[Findings], Problems], ...] = (
    nothing_crashed,
    bounds_held,
    repeats_are_equal,
    samples_stored_once,
    log_stored_once,
    events_stored_once,
    logged_adds_up,
    spools_are_sent,
    positions_moved_on,
    nothing_was_cut_too_early,
    tables_have_the_outputs,
    evaluations_stored_once,
    outputs_are_the_oracles,
    all_was_worked_on,
    evaluated_once,
)
"""The cheap ones first."""


def problems(world: World, *, naive: bool, all_of_them: bool = True) -> list[str]:
    """What does not hold, with the name of its check; else only of the first check that finds anything."""
    found = Findings(world)
    told: list[str] = []
    for check in (*CHECKS, windows_agree) if naive else CHECKS:
        told += [f"{check.__name__}: {problem}" for problem in check(found)]
        if told and not all_of_them:
            break
    return told


def _few(what: str, things: Any) -> Problems:
    listed = sorted(map(str, things))
    for thing in listed[:FEW]:
        yield f"{thing} {what}"
    if len(listed) > FEW:
        yield f"... {what}: {len(listed)} in all"
