"""What is remembered of processes and runs that expired, so that their late records count once or not at all.

A process that gave no record for the expiry time is *parked*: it keeps its place in the sequence, and takes
part in nothing. A run that gave none goes, panes and detectors and all; a few numbers of it stay: its last
attempt, how far that came on each axis, its triggers, the places of its processes. So when something of it
arrives after all, from a spool or from a machine that was asleep,

- what was there before is a duplicate, as always;
- the run goes on where it was: attempts keep their numbers, windows that are out stay out, and samples of
  panes that were closed are late;
- a process whose attempt is gone has late samples only.

Bounds: ``MAX_REMEMBERED`` runs and ``MAX_PLACES`` processes of them in a partition, for ``REMEMBER_US`` of
log time. Of what is forgotten beyond, the newest sign of life is kept: whatever an unknown process sends that
is dated before it is late as well, since it may have counted once.
"""

from __future__ import annotations

from driftline.streams.attempts import (
    AXES,
    NOTHING_CLOSED,
    Attempt,
    AxisEnd,
    AxisState,
    PartitionState,
    Place,
    Process,
    Remembered,
    Run,
    seat_of,
)
from driftline.streams.outputs import Outbox
from driftline.streams.views import Factories

MAX_REMEMBERED = 10_000
MAX_PLACES = 65_536
REMEMBER_US = 30 * 86_400_000_000
MAX_UNTOLD = 1_000
"""Runs whose late samples are told of at one tick; those of others are only counted."""


def remember(state: PartitionState, run: Run) -> None:
    """Keeps what matters of a run that expires; all its attempts are finished. Call :func:`forget` then."""
    attempt = run.attempt
    state.remembered[run.name] = Remembered(
        seen_us=run.last_us,
        title=run.title,
        current=run.current,
        started_us=attempt.started_us,
        world_size=attempt.world_size,
        world_role=attempt.world_role,
        hints=attempt.hints,
        triggers=run.triggers.dump(),
        axes={name: _end_of(attempt.axes[name]) for name in AXES},
        processes={
            p.name: Place(p.attempt, p.seq, p.rank, p.role, p.host, p.started_us, p.stray, p.child)
            for p in run.processes.values()
        },
    )


def revive(state: PartitionState, name: str, now_us: int, make: Factories) -> Run | None:
    """The run as it was when it expired, None if it is not remembered; nobody takes part in it yet."""
    known = state.remembered.pop(name, None)
    if known is None:
        return None
    triggers = make.triggers(state.config, known.triggers)
    run = Run(name, now_us, now_us, triggers, current=known.current, ended=True, title=known.title)
    attempt = Attempt(known.current, known.started_us, make.detection(state.config), state.config)
    attempt.world_size, attempt.world_role = known.world_size, known.world_role
    attempt.hints = dict(known.hints)
    attempt.finished = attempt.grace_over = True
    for axis in AXES:
        _restore(attempt.axes[axis], known.axes[axis])
    run.attempts[known.current] = attempt
    for process, place in known.processes.items():
        run.processes[process] = Process(
            process,
            place.attempt,
            -1,
            rank=place.rank,
            role=place.role,
            host=place.host,
            started_us=place.started_us,
            seq=place.seq,
            last_seen_us=known.seen_us,
            idle=True,
            parked=True,
            stray=place.stray,
            child=place.child,
        )
        seat = seat_of(place.role, place.rank)
        if place.attempt == known.current and not place.stray:
            attempt.sit(seat, process)
    return run


def forget(state: PartitionState, now_us: int) -> None:
    """At a tick: lets go of what is beyond the bounds, the first to expire first."""
    places = sum(len(known.processes) for known in state.remembered.values())
    for name, known in list(state.remembered.items()):
        within = len(state.remembered) <= MAX_REMEMBERED and places <= MAX_PLACES
        if within and now_us - known.seen_us <= REMEMBER_US:
            return
        places -= len(known.processes)
        del state.remembered[name]
        forgotten(state, known.seen_us)


def forgotten(state: PartitionState, seen_us: int) -> None:
    """Something that was last seen then is no longer known."""
    state.forgotten_us = seen_us if state.forgotten_us is None else max(state.forgotten_us, seen_us)


def evict(state: PartitionState, run: Run) -> None:
    """Makes room for processes of a run: the parked ones that were seen longest ago are forgotten."""
    parked = sorted((p.last_seen_us, name) for name, p in run.processes.items() if p.parked)
    for seen_us, name in parked[: 1 + len(parked) // 16]:
        del run.processes[name]
        forgotten(state, seen_us)


def repeated(state: PartitionState, run: str, process: str, seq: int) -> bool:
    """Whether a record of a run that is only remembered was there before (so the run need not come back)."""
    known = state.remembered.get(run)
    place = None if known is None else known.processes.get(process)
    return place is not None and seq <= place.seq


def may_have_counted(state: PartitionState, run: str, process: str, time_us: int) -> bool:
    """Whether a process is unknown, and what it sends dates from before something that was forgotten."""
    if state.forgotten_us is None or time_us > state.forgotten_us:
        return False
    live, known = state.runs.get(run), state.remembered.get(run)
    return not (live is not None and process in live.processes) and not (
        known is not None and process in known.processes
    )


def note_late(state: PartitionState, run: str, attempt: int, times: tuple[int, int, int]) -> None:
    """Late samples without an attempt: how many, their first and last time; told at the next tick."""
    count, low, high = times
    state.count("late_time", count)
    told = state.late_untold.get((run, attempt))
    if told is None:
        if len(state.late_untold) < MAX_UNTOLD:
            state.late_untold[(run, attempt)] = [count, low, high]
        return
    told[:] = [told[0] + count, min(told[1], low), max(told[2], high)]


def tell_late(state: PartitionState, outbox: Outbox, offset: int, now_us: int) -> None:
    """One fact per run and attempt."""
    for (run, attempt), (count, low, high) in state.late_untold.items():
        text = f"{count} samples came after their attempt was closed; they are stored and in no window"
        fields = {"axis": "time", "start": low, "end": high + 1, "count": count}
        outbox.fact(offset, run, attempt, "late", now_us, text, **fields)
    state.late_untold.clear()


def _end_of(axis: AxisState) -> AxisEnd:
    closed = None if axis.closed == NOTHING_CLOSED else axis.closed * axis.plan.pane
    ends = zip(axis.plan.specs, axis.out, strict=True)
    return AxisEnd(
        closed, axis.watermark.value, [(spec.size, spec.every, end) for spec, end in ends if end is not None]
    )


def _restore(axis: AxisState, end: AxisEnd) -> None:
    if end.closed is not None:
        axis.closed = end.closed // axis.plan.pane
    axis.watermark.value = end.watermark
    out = {(size, every): until for size, every, until in end.out}
    axis.out = [out.get((spec.size, spec.every)) for spec in axis.plan.specs]
