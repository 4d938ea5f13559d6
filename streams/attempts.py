"""The state of a partition: runs, their attempts, the processes of each.

An attempt is a restart of the run. It is a property of a process, decided by the starts of processes
(:mod:`.restarts`) and by rewinds; never because a step falls, never by the order in which records arrive.
Forked children join their parent's attempt and take no seat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from driftline.config import Axis, PipelineConfig
from driftline.streams.derived import Derivations
from driftline.streams.extras import Extras, Held
from driftline.streams.formulas import Memory
from driftline.streams.panes import ClosedLog, OpenPanes
from driftline.streams.participants import FrameMap, MissingNotes, Presence, Series
from driftline.streams.so_far import SoFar
from driftline.streams.views import Detection, TriggerState
from driftline.streams.watermark import Watermark
from driftline.streams.windowing import AxisPlan, plan

AXES: tuple[Axis, ...] = ("time", "step")
NOTHING_CLOSED = -(1 << 62)
NEVER_US = -(1 << 62)
MAX_RUNS = 10_000
MAX_PROCESSES = 65_536
"""Per run, those included that are only remembered."""
COMPACT_FROM = 64
"""Numbers of parked processes that an attempt keeps before it numbers its processes anew."""


MapKey = tuple[str | int | None, ...]
"""The rank and the names of a frame: what its series depend on, beside the process."""


@dataclass(slots=True)
class Process:
    """One SDK process as the log shows it."""

    name: str
    attempt: int
    number: int
    """Its place in the attempt's arrays."""
    rank: int | None = None
    role: str = "trainer"
    host: str = ""
    started_us: int | None = None
    """When it started, by its own clock."""
    heard_us: int = 0
    """Time of its first record in the log."""
    seq: int = -1
    """Highest sequence number seen: what is not above it is a duplicate."""
    last_seen_us: int = 0
    last_step: int | None = None
    ended: bool = False
    idle: bool = False
    ahead: bool = False
    """A sample dated ahead was told of."""
    parked: bool = False
    """Expired: its place in the sequence is remembered, it takes part in nothing."""
    stray: bool = False
    """Of an older launch whose records came late: it belongs to no attempt that is still there."""
    child: bool = False
    """Forked or sent from another process of its rank: it does not stand for the rank."""
    maps: dict[MapKey, FrameMap] = field(default_factory=dict)


class AxisState:
    """One axis of one attempt."""

    def __init__(self, how: AxisPlan, watermark: Watermark) -> None:
        self.plan = how
        self.watermark = watermark
        self.open = OpenPanes()
        self.log = ClosedLog()
        self.closed = NOTHING_CLOSED
        """Panes below this are closed."""
        self.out: list[int | None] = [None for _ in how.specs]
        """Per spec: windows that end here or earlier are out."""
        self.memories: dict[str, Memory] = {}
        """By derived metric: what it keeps between closings."""
        self.held = Held()
        """Objects of custom aggregates."""
        self.so_far = {spec: SoFar() for spec in how.specs if not spec.size}


class Attempt:
    """One attempt of a run."""

    def __init__(self, number: int, started_us: int, detection: Detection, config: PipelineConfig) -> None:
        self.number = number
        self.started_us = started_us
        self.world_size: int | None = None
        self.world_role = ""
        self.rewound_to: int | None = None
        self.seats: dict[str, str] = {}
        """ "role/rank" -> process; see :meth:`sit`."""
        self.taken_over: dict[str, str] = {}
        """Seats that were taken over -> who had them before, "" if nobody had."""
        self.hints: dict[str, int] = {}
        """Restart count by role, of whoever was heard first."""
        self.lively = 0
        """Number of a process that was alive when that was last asked: where to look first."""
        self.processes: list[str] = []
        self.left: list[bool] = []
        """Ended, or moved to a later attempt."""
        self.parked: set[int] = set()
        """Numbers of those that expired here."""
        self._seated: dict[str, int] = {}
        """Seats by role."""
        self.series = Series()
        self.missing = MissingNotes()
        self.detection = detection
        self.watched = detection.per_rank()
        self.derivations = Derivations(config)
        self.extras = Extras(config)
        self.faults_told: list[str] = []
        """Custom aggregates whose class raised."""
        self.finished = False
        self.grace_over = False
        self.late: dict[tuple[Axis, str], list[int]] = {}
        """Late samples since they were last told: count, lowest and highest position."""
        self.seen_non_finite: dict[tuple[str, int | None, int | None, int], None] = {}
        self.refused_told: list[str] = []
        self.crowded_told: list[str] = []
        """Axes on which a bound was told of."""
        self.axes: dict[Axis, AxisState] = {
            axis: AxisState(
                plan(axis, config.windows),
                Watermark(lateness_us=config.allowed_lateness_us, delayed=axis == "step"),
            )
            for axis in AXES
        }

    def join(self, process: str, now_us: int) -> int:
        """Gives a process its number."""
        self.processes.append(process)
        self.left.append(False)
        for axis in self.axes.values():
            axis.watermark.join(now_us)
        return len(self.processes) - 1

    def leave(self, number: int) -> None:
        self.left[number] = True
        for axis in self.axes.values():
            axis.watermark.release(number)

    def park(self, number: int) -> None:
        """A process expired: it is expected in no window any more, also in those still open."""
        self.leave(number)
        self.parked.add(number)
        self.series.leaves(number)
        self.missing.forget(number)
        for axis in self.axes.values():
            axis.watermark.forget(number)

    def unpark(self, number: int, now_us: int) -> None:
        """It is heard again."""
        self.left[number] = False
        self.parked.discard(number)
        for axis in self.axes.values():
            axis.watermark.moved_us[number] = now_us

    def compact(self) -> dict[int, int] | None:
        """Numbers the processes anew without those parked that no pane names: old -> new, None if few."""
        if len(self.parked) < max(COMPACT_FROM, len(self.processes) // 2):
            return None
        named: set[int] = set()
        for axis in self.axes.values():
            named |= axis.open.present() | axis.log.present()
        kept = [at for at in range(len(self.processes)) if at not in self.parked or at in named]
        if len(self.processes) - len(kept) < COMPACT_FROM:
            return None
        self.processes = [self.processes[at] for at in kept]
        self.left = [self.left[at] for at in kept]
        self.series.renumber(kept)
        found = {old: new for new, old in enumerate(kept)}
        self.parked = {found[at] for at in self.parked if at in found}
        self.missing.renumber(found)
        for axis in self.axes.values():
            axis.watermark.renumber(kept)
            axis.open.renumber(kept)
            axis.log.renumber(kept)
            for growing in axis.so_far.values():
                growing.renumber(kept)
        return found

    @property
    def words(self) -> int:
        """64-bit words that hold one bit per process."""
        return (len(self.processes) + 63) // 64

    def sit(self, seat: str | None, process: str) -> None:
        """A process takes a seat, unless another has it."""
        if seat is not None and seat not in self.seats:
            self.seats[seat] = process
            role = role_of(seat)
            self._seated[role] = self._seated.get(role, 0) + 1

    def stand_up(self, seat: str) -> None:
        """Who has a seat leaves it to the one that had it before."""
        before = self.taken_over.pop(seat, None)
        if before:
            self.seats[seat] = before
        elif self.seats.pop(seat, None) is not None:
            self._seated[role_of(seat)] -= 1

    def seated(self, role: str) -> int:
        """How many seats of a role there are."""
        return self._seated.get(role, 0)

    def awaited(self, now_us: int, grace_us: int) -> int:
        """Ranks of the announced world that have not started, as long as that may be."""
        if self.world_size is None or now_us >= self.started_us + grace_us:
            return 0
        return max(0, self.world_size - self.seated(self.world_role))

    def presence(self, axis: AxisState, now_us: int, grace_us: int) -> Presence:
        return Presence.of(axis.watermark, self.awaited(now_us, grace_us))


class Definition(msgspec.Struct, array_like=True):
    """What a metric was declared to be, as far as a contradiction matters."""

    goal: str | None = None
    unit: str | None = None
    reduce: str | None = None
    told: bool = False
    """A contradiction was told of."""


@dataclass(slots=True)
class Run:
    """One run of the partition."""

    name: str
    now_us: int
    last_us: int
    """Its own newest record (moved over holes)."""
    triggers: TriggerState
    attempts: dict[int, Attempt] = field(default_factory=dict)
    current: int = -1
    processes: dict[str, Process] = field(default_factory=dict)
    ended: bool = False
    title: str = ""
    heard_us: int = NEVER_US
    """No process that has not ended was last heard of before this: a bound, see ``ticks``."""
    awake_us: int = NEVER_US
    """The same, of those that are not idle."""
    known_us: int = NEVER_US
    """The same, of those that are not parked."""
    defined: dict[str, Definition] = field(default_factory=dict)
    """What its metrics were declared to be."""

    @property
    def attempt(self) -> Attempt:
        return self.attempts[self.current]


class Place(msgspec.Struct, array_like=True):
    """What is remembered of a process: enough to know its records again."""

    attempt: int
    seq: int
    rank: int | None
    role: str
    host: str
    started_us: int | None
    stray: bool
    child: bool = False


class AxisEnd(msgspec.Struct, array_like=True):
    """How far an axis of the last attempt came: what is below is closed, what is out stays out."""

    closed: int | None
    """Position below which panes are closed."""
    watermark: int | None
    out: list[tuple[int, int, int]]
    """Size and hop of windows, and where those that are out end."""


class Remembered(msgspec.Struct):
    """What is remembered of a run that expired."""

    seen_us: int
    title: str
    current: int
    started_us: int
    world_size: int | None
    world_role: str
    triggers: object
    axes: dict[Axis, AxisEnd]
    processes: dict[str, Place]
    hints: dict[str, int] = {}


@dataclass(slots=True)
class PartitionState:
    """All that the pipeline knows of one partition of the log."""

    topic_uuid: str
    partition: int
    config: PipelineConfig = field(default_factory=PipelineConfig)
    config_digest: str | None = None
    config_body: bytes = b""
    config_refused: str | None = None
    """Why the last configuration of the log could not be used."""
    last_tick_us: int | None = None
    append_time: bool = True
    """Record times are the broker's, as the last tick said."""
    runs: dict[str, Run] = field(default_factory=dict)
    remembered: dict[str, Remembered] = field(default_factory=dict)
    """Runs that expired, the first to expire first (``memory``)."""
    forgotten_us: int | None = None
    """The newest sign of life of all that is no longer remembered."""
    late_untold: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Late samples of processes without an attempt since the last tick: count, first and last time."""
    runs_refused_told: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    """Everything received, dropped and refused, by name."""

    def count(self, what: str, by: int = 1) -> None:
        self.counters[what] = self.counters.get(what, 0) + by


def role_of(seat: str) -> str:
    return seat.rpartition("/")[0]


def seat_of(role: str, rank: int | None) -> str | None:
    return None if rank is None else f"{role}/{rank}"


Plain = dict[str, Any]
