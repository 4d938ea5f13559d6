"""Windows that late data touched, computed again as if it had come in time.

    1. The log is played as it is, and the frames of which something was late are noted.
    2. It is played again in the order in which it should have come: each of these frames where the log had
       come to the time of its newest sample, after the record that its process sent before it.
    3. Windows that differ between the two, and from the newest revision that is stored, are committed to the
       table ``windows`` with the next revision, in one transaction of its own. Views show the highest. One
       that there is no more gets a revision without samples, which views leave out.

So a repair that is run twice, or killed and run again, commits nothing twice: what is stored then differs no
more. Alerts that would have come, gone or moved are listed; none is sent, nobody is paged. A host's clock
that is wrong is allowed for: by how much the frames of a process that were in time came after their own time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from driftline import events
from driftline.errors import BadData
from driftline.records import Framed, Output, Record
from driftline.replay.episodes import AlertDiff, Episode, Episodes, compare
from driftline.replay.outputs import Outputs
from driftline.replay.player import Player, Source
from driftline.replay.playing import Tell
from driftline.replay.proof import compared_columns
from driftline.storage.recorded.compare import OUTPUTS, Reach
from driftline.storage.recorded.source import Hole
from driftline.storage.recorded.window_repair import Change, WindowRepair

MAX_LATE_SAMPLES = 5_000_000
"""Held in memory, 45 bytes each."""
_LATE = ("late_time", "late_step")


class LateFrame(NamedTuple):
    """A frame of which something was late."""

    record: Framed
    due_us: int
    """Record time at which it should have come."""
    after: int
    """Offset of the last record that its process sent before, and that was in time."""


@dataclass
class Repair:
    """What a repair found and did."""

    late_frames: int = 0
    late_samples: int = 0
    still_late: int = 0
    """Samples that are late in any order: dated before what their process sent earlier, say."""
    windows: list[Change] = field(default_factory=list)
    committed: int = 0
    alerts: AlertDiff = field(default_factory=lambda: AlertDiff(0, [], [], []))
    notes: list[str] = field(default_factory=list)


def repair(
    source: Source, windows: WindowRepair, *, commit: bool = True, tell: Tell = lambda samples, log_us: None
) -> Repair:
    """Repairs what ``source`` gives. Raises BadData, Unavailable, Conflict (another repair came between)."""
    done = Repair()
    before, after = list[Episode](), list[Episode]()
    with tempfile.TemporaryDirectory(prefix="driftline-replay-") as folder:
        for part in source.parts():
            reach = Reach(part.topic_uuid, part.partition, part.start, windows.reached(part) + 1)
            sides = [Path(folder) / f"{part.topic_uuid}-{part.partition}-{name}" for name in ("as", "due")]
            player = Player(part, source.configurations(part))
            as_it_came, as_due = Episodes(), Episodes()
            late = _play_as_it_came(source, player, reach, sides[0], as_it_came, tell)
            done.late_frames += len(late)
            done.late_samples += _most_late(player)
            done.notes += player.told()
            if not late:
                continue
            again = Player(part, source.configurations(part))
            _play_as_due(source, again, reach, sides[1], as_due, late)
            before += as_it_came.list()
            after += as_due.list()
            done.still_late += _most_late(again)
            changes = windows.changes(part, sides[0] / "windows.parquet", sides[1] / "windows.parquet")
            done.windows += changes.shown
            if commit:
                done.committed += windows.commit(part, changes)
    done.alerts = compare(before, after)
    done.notes = [*source.notes, *done.notes]
    return done


def _play_as_it_came(
    source: Source, player: Player, reach: Reach, folder: Path, alerts: Episodes, tell: Tell
) -> list[LateFrame]:
    """The log record by record, so that it is known which frames brought something late."""
    outputs = _collect(folder)
    clocks: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], int] = {}
    late: list[LateFrame] = []
    held = 0
    for item in source.stretches(player.part, None, reach.end):
        for record in [item] if isinstance(item, Hole) else item:
            before = _late_count(player)
            made = player.play(record if isinstance(record, Hole) else [record])
            _take(outputs, alerts, made, reach)
            if not isinstance(record, Framed) or not len(record.frame.metric):
                _note_event(record, last)
                continue
            who = record.frame.run, record.frame.process
            newest = int(record.frame.time_us.max())
            if _late_count(player) > before:
                held += len(record.frame.metric)
                if held > MAX_LATE_SAMPLES:
                    raise BadData(f"more than {MAX_LATE_SAMPLES:,} late samples: repair some runs (RUN ...)")
                late.append(LateFrame(_kept(record), newest, last.get(who, -1)))
            else:
                last[who] = record.offset
                behind = record.time_ms * 1000 - newest
                clocks[who] = min(behind, clocks.get(who, behind))
        if isinstance(item, list) and item:
            tell(sum(len(r.frame.metric) for r in item if isinstance(r, Framed)), 0)
    outputs.finish()
    outputs.file("windows")
    return [
        one._replace(due_us=one.due_us + clocks.get((one.record.frame.run, one.record.frame.process), 0))
        for one in late
    ]


def _play_as_due(
    source: Source, player: Player, reach: Reach, folder: Path, alerts: Episodes, late: list[LateFrame]
) -> None:
    outputs = _collect(folder)
    order = Reordered(late)
    for item in source.stretches(player.part, None, reach.end):
        made = player.play(item if isinstance(item, Hole) else list(order.place(item)))
        _take(outputs, alerts, made, reach)
    outputs.finish()
    outputs.file("windows")


class Reordered:
    """Puts late frames where they are due.

    A frame goes before the first record that has come to its time and lies behind what its process sent
    before; never later than it came. Frames of a process keep their order.
    """

    def __init__(self, late: Sequence[LateFrame]) -> None:
        self._moved = {one.record.offset for one in late}
        due: dict[tuple[str, str], int] = {}
        placed = []
        for one in late:
            who = one.record.frame.run, one.record.frame.process
            due[who] = max(one.due_us, due.get(who, one.due_us))
            placed.append(one._replace(due_us=due[who]))
        self._waiting = sorted(placed, key=lambda one: (one.due_us, one.record.offset))

    def place(self, records: Sequence[Record | Framed]) -> Iterator[Record | Framed]:
        """The records, without the late ones and with those that are due."""
        for record in records:
            if self._waiting and (
                self._waiting[0].due_us <= record.time_ms * 1000 or record.offset in self._moved
            ):
                yield from self._due(record)
            if record.offset not in self._moved:
                yield record

    def _due(self, record: Record | Framed) -> Iterator[Framed]:
        left = []
        for at, one in enumerate(self._waiting):
            if one.due_us > record.time_ms * 1000 and one.record.offset > record.offset:
                left += self._waiting[at:]
                break
            if one.after < record.offset or one.record.offset <= record.offset:
                yield one.record._replace(offset=record.offset, time_ms=record.time_ms)
            else:
                left.append(one)
        self._waiting = left


def _late_count(player: Player) -> int:
    counters = player.state.counters
    return counters.get(_LATE[0], 0) + counters.get(_LATE[1], 0)


def _most_late(player: Player) -> int:
    """Samples that are late on one axis or on both."""
    return max(player.state.counters.get(name, 0) for name in _LATE)


def _note_event(record: Record | Framed | Hole, last: dict[tuple[str, str], int]) -> None:
    """A process's start comes before its frames."""
    if (
        not isinstance(record, Record)
        or not record.value
        or b'"kind":"process_started"' not in record.value[:64]
    ):
        return
    event = events.decode(record.value)
    if isinstance(event, events.ProcessStarted):
        last[event.run, event.process] = record.offset


def _kept(record: Framed) -> Framed:
    """With arrays of its own: those of a stretch are one large block."""
    frame = record.frame
    arrays = {name: getattr(frame, name).copy() for name in ("step", "time_us", "value", "weight")}
    return record._replace(frame=frame._replace(**arrays))


def _collect(folder: Path) -> Outputs:
    folder.mkdir()
    return Outputs(folder, (), {name: compared_columns(name, True) for name in OUTPUTS})


def _take(outputs: Outputs, alerts: Episodes, made: Sequence[Output], reach: Reach) -> None:
    for output in made:
        if output.topic == "alerts":
            event = events.decode(output.value)
            assert isinstance(event, events.Alert)
            alerts.add(event, output.id.offset)
    windows = [output for output in made if output.topic == "windows"]
    if windows:
        outputs.add(windows, reach, reach.end)
