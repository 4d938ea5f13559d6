"""What of the input became of it: every sample is in the tables once, or on a disk, or counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from driftline import events, records
from driftline.errors import BadRecord
from driftline.producers.recovery import header_of
from driftline.storage.store import App
from driftline.storage.tables import FEEDS

from .findings import Findings, Problems, few
from .mischief import POISON
from .samples import Sample, frame_in, samples_of, spooled

if TYPE_CHECKING:
    from .world import World


def samples_stored_once(found: Findings) -> Problems:
    """Every sample of the log is in ``samples`` once, whichever of its copies brought it."""
    expected: Counter[Sample] = Counter()
    doubtful: Counter[Sample] = Counter()
    known: set[tuple[str, str, int]] = set()
    for place, record in found.recorded("telemetry"):
        frame = frame_in(record.value)
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
    yield from few("is in the log and not in samples", lacking.elements())
    yield from few("is in samples once too often", surplus.elements())


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
    yield from few("has no row in log", (expected - stored).elements())
    yield from few("has too many rows in log", (stored - expected - doubtful).elements())


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
        yield from few(f"is not in {table}", wanted - set(stored))
        yield from few(f"is in {table} twice", (key for key, count in stored.items() if count > 1))


def logged_adds_up(found: Findings) -> Problems:
    """Of each process that ended by itself: logged = delivered + spooled + refused + dropped, by its own
    counters and by the samples in log and spools; and nothing is in the log that was not logged."""
    in_log: dict[str, set[Sample]] = {}
    for _, record in found.recorded("telemetry"):
        if (frame := frame_in(record.value)) is not None:
            in_log.setdefault(frame.process, set()).update(samples_of(frame))
    disk = found.world.disk
    on_disk = spooled(disk, *disk.names())
    for rank in (rank for training in found.world.trainings for rank in training.all):
        arrived = in_log.get(rank.process, set())
        logged = set(rank.logged)
        yield from few(f"{rank.process} never logged", arrived - logged)
        counts = Counter(rank.run.counters())
        if counts["errors"]:
            yield f"{rank.process} had errors inside the SDK: {counts['errors']}"
        if counts["dropped_spool"]:
            yield f"{rank.process} found its own spool damaged: {dict(counts)}"
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
        if rank.process in found.world.damaged:
            continue
        gone = logged - arrived - on_disk.get(rank.process, set())
        if len(gone) > early + late:
            yield f"{rank.process} lost {len(gone)} samples and says {early + late}: {dict(counts)}"
        refused = sum(count for name, count in counts.items() if name.startswith("refused_"))
        if refused != rank.refused:
            yield f"{rank.process} refused {refused} values, not {rank.refused}"


def what_was_on_disk_arrives(found: Findings) -> Problems:
    """Whatever a killed process had in its spool is in the log at rest, unless somebody damaged that."""
    in_log: set[Sample] = set()
    for _, record in found.recorded("telemetry"):
        if (frame := frame_in(record.value)) is not None and frame.process in found.world.left:
            in_log.update(samples_of(frame))
    for process, left in found.world.left.items():
        if process not in found.world.damaged:
            yield from few("was in the spool of a killed process and never arrived", left - in_log)


def only_poison_is_undecodable(found: Findings) -> Problems:
    """No part of Driftline writes what its readers cannot decode, however damaged a spool was."""
    for topic in ("telemetry", "evals"):
        for place, record in found.recorded(topic):  # type: ignore[arg-type]
            try:
                records.decode(record.value)
            except BadRecord as error:
                if record.value not in POISON:
                    yield f"{place} at {record.offset}: {error}"


def spools_are_sent(found: Findings) -> Problems:
    """At rest a later process has sent everything that dead ones left, and removed it; but for spools whose
    only header was damaged, which nobody can attribute: they are left for people to look at."""
    disk = found.world.disk
    for name in disk.names():
        if not disk.faults.folders[name] or header_of(disk.look(name)) is not None:
            yield f"spool {name} was not sent and removed: {spooled(disk, name)}"


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
