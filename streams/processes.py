"""What a record of a process does to its run: first sight, duplicates, holes, liveness, its series."""

from __future__ import annotations

import numpy as np

from driftline import frames
from driftline.config import PipelineConfig
from driftline.streams import memory
from driftline.streams.aggregates import I64
from driftline.streams.attempts import (
    MAX_PROCESSES,
    MAX_RUNS,
    Attempt,
    MapKey,
    PartitionState,
    Process,
    Run,
    seat_of,
)
from driftline.streams.closing import Moment
from driftline.streams.dedup import admit
from driftline.streams.derived import RANK, WHOLE
from driftline.streams.outputs import Outbox
from driftline.streams.participants import FrameMap
from driftline.streams.views import Factories

FRAME_LEAD_US = 2_000_000
"""Where the broker does not stamp records, a frame moves "now" at most so far past the last tick."""
MAX_AHEAD_US = 3_600_000_000
"""There, a record time further past the last tick than this is a clock's that is wrong."""
MAX_MAPS = 64


def record_time(state: PartitionState, time_us: int) -> int:
    """A record's time, unless it is a writer's and cannot be right.

    The broker's is taken as it is, however long ago the last tick was: all workers may have been away.
    """
    tick = None if state.append_time else state.last_tick_us
    return tick + FRAME_LEAD_US if tick is not None and time_us > tick + MAX_AHEAD_US else time_us


def run_of(
    state: PartitionState, outbox: Outbox, offset: int, name: str, time_us: int, make: Factories
) -> Run | None:
    """The run, made if new, its "now" moved to the record; None where the bound on runs forbids it."""
    if state.last_tick_us is not None and not state.append_time:
        time_us = min(time_us, state.last_tick_us + FRAME_LEAD_US)
    run = state.runs.get(name) or _back(state, outbox, offset, name, time_us, make)
    if run is None:
        if len(state.runs) >= MAX_RUNS:
            _refuse_run(state, outbox, offset, name, time_us)
            return None
        now_us = time_us if state.last_tick_us is None else max(time_us, state.last_tick_us)
        run = Run(name, now_us, now_us, make.triggers(state.config))
        state.runs[name] = run
        state.count("runs")
        run.triggers.started(now_us)
        outbox.fact(offset, name, 0, "run_started", now_us, f"run {name} started")
        open_attempt(state, run, make)
    run.now_us = max(run.now_us, time_us)
    return run


def _back(
    state: PartitionState, outbox: Outbox, offset: int, name: str, time_us: int, make: Factories
) -> Run | None:
    """A run that expired and is heard again."""
    if name not in state.remembered or len(state.runs) >= MAX_RUNS:
        return None
    now_us = time_us if state.last_tick_us is None else max(time_us, state.last_tick_us)
    run = memory.revive(state, name, now_us, make)
    if run is not None:
        state.runs[name] = run
        state.count("runs_back")
        text = f"run {name} is heard again after it had expired: it goes on as attempt {run.current}"
        outbox.fact(offset, name, run.current, "note", now_us, text)
    return run


def _refuse_run(state: PartitionState, outbox: Outbox, offset: int, name: str, time_us: int) -> None:
    state.count("records_of_refused_runs")
    if not state.runs_refused_told:
        state.runs_refused_told = True
        text = (
            f"more than {MAX_RUNS} live runs in one partition: this one gets no windows; use more partitions"
        )
        outbox.fact(offset, name, 0, "refused", time_us, text)


def open_attempt(state: PartitionState, run: Run, make: Factories) -> Attempt:
    run.current += 1
    attempt = Attempt(run.current, run.now_us, make.detection(state.config), state.config)
    run.attempts[run.current] = attempt
    run.ended = False
    return attempt


def reseat(run: Run, process: Process) -> bool:
    """A parked process is heard again: it takes part again if its attempt is still there."""
    if not process.parked:
        return True
    attempt = run.attempts.get(process.attempt)
    if attempt is None or process.stray:
        return False
    process.parked = False
    if process.number < 0:
        process.number = attempt.join(process.name, run.now_us)
    else:
        attempt.unpark(process.number, run.now_us)
    return True


def join(run: Run, attempt: Attempt, name: str) -> Process:
    """Makes a process of the attempt."""
    process = Process(name, attempt.number, attempt.join(name, run.now_us), last_seen_us=run.now_us)
    process.heard_us = run.now_us
    run.processes[name] = process
    attempt.finished = False
    return process


def counts(moment: Moment, process: Process, seq: int) -> bool:
    """Whether a record of a known process is new; notes holes and that the process lives."""
    verdict = admit(process.seq, seq)
    if verdict.duplicate:
        moment.state.count("duplicates")
        return False
    process.seq = seq
    if verdict.hole is not None:
        start, end = verdict.hole
        moment.state.count("holes")
        moment.outbox.fact(
            moment.offset,
            moment.run.name,
            process.attempt,
            "gap",
            moment.now_us,
            f"process {process.name}: records {start} to {end - 1} are not in the log",
            process=process.name,
            rank=process.rank,
            start=start,
            end=end,
            count=end - start,
        )
    lives(moment.run, process, moment.now_us)
    return True


def lives(run: Run, process: Process, now_us: int) -> None:
    process.last_seen_us = max(process.last_seen_us, now_us)
    run.last_us = max(run.last_us, now_us)
    process.idle = False
    if not reseat(run, process):
        return
    attempt = run.attempts[process.attempt]
    if process.ended:  # it said that it ended, and goes on
        process.ended = False
        attempt.left[process.number] = False
    if attempt.finished:
        attempt.finished = False
        if process.attempt == run.current:
            run.ended = False


def first_frame(state: PartitionState, run: Run, frame: frames.Frame) -> Process | None:
    """A process whose start the log does not show: it belongs to the current attempt, as a trainer."""
    if full(state, run):
        return None
    process = join(run, run.attempt, frame.process)
    process.rank = frame.rank
    run.attempt.sit(seat_of(process.role, process.rank), process.name)
    return process


def full(state: PartitionState, run: Run) -> bool:
    """Whether a bound forbids a further process; those that are only remembered make room first."""
    if len(run.processes) >= MAX_PROCESSES:
        memory.evict(state, run)
    return len(run.processes) >= MAX_PROCESSES or len(run.attempt.processes) >= MAX_PROCESSES


def map_names(
    config: PipelineConfig, attempt: Attempt, process: Process, frame: frames.Frame, key: MapKey
) -> tuple[FrameMap, I64]:
    """The series of a frame's names, and those in which its process does not take part yet.

    Names that no sample uses give no series; new series are numbered in the order of their first samples, so
    that the order of the names in a frame, which no table keeps, changes nothing. Nobody takes part yet:
    frames that wait are of before.
    """
    used, first = np.unique(frame.metric, return_index=True)
    chosen = used[np.argsort(first)].tolist()
    table = attempt.series
    whole = np.full(len(frame.names), -1, np.int64)
    for at in chosen:
        if frame.names[at] not in attempt.derivations.names:  # that name is taken
            whole[at] = table.find("", frame.names[at], public=True)
    made = _follow(attempt, "", WHOLE, [frame.names[at] for at in chosen if whole[at] >= 0])
    groups: list[I64 | None] = []
    needed: list[I64 | None] = []
    for kind, (label, public, hidden) in enumerate(_groups(config, attempt, process, frame), RANK):
        ids = np.full(len(frame.names), -1, np.int64)
        for at in chosen:
            name = frame.names[at]
            if label and whole[at] >= 0 and (name in public or name in hidden):
                ids[at] = table.find(label, name, public=name in public)
        made += _follow(attempt, label, kind, [frame.names[at] for at in chosen if ids[at] >= 0])
        groups.append(_any(ids))
        needed.append(_any(np.where([name in hidden for name in frame.names], ids, -1)))
    found = FrameMap(whole, tuple(groups), tuple(needed))
    every = np.concatenate([whole, *(ids for ids in groups if ids is not None)])
    new = table.without(np.concatenate([every[every >= 0], np.array(made, np.int64)]), process.number)
    if len(chosen) == len(frame.names):
        if len(process.maps) >= MAX_MAPS:
            process.maps.clear()
        process.maps[key] = found
    return found, new


def _any(ids: I64) -> I64 | None:
    """The ids if there is one, else None."""
    return ids if (ids >= 0).any() else None


def _follow(attempt: Attempt, label: str, kind: int, names: list[str]) -> list[int]:
    """Series of what is derived of the names, which have one in a group."""
    return attempt.derivations.follow(attempt.series, label, kind, names) if attempt.derivations else []


def _groups(
    config: PipelineConfig, attempt: Attempt, process: Process, frame: frames.Frame
) -> list[tuple[str, frozenset[str], frozenset[str]]]:
    """Per kind: label of this process, metrics whose windows go out, metrics that others need."""
    rank = process.rank if frame.rank is None else frame.rank
    _, by_rank, by_host, by_role = attempt.derivations.wanted
    return [
        ("" if rank is None else f"rank={rank}", frozenset(config.per_rank), attempt.watched | by_rank),
        (f"host={process.host}" if process.host else "", frozenset(config.per_host), by_host),
        (f"role={process.role}" if process.role else "", frozenset(config.per_role), by_role),
    ]
