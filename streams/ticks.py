"""What the passing of time does to runs: processes fall idle and expire, silence is watched, grace ends.

A tick must not cost a look at every process: a run may have 65,536. Kept are bounds (``Run.heard_us`` and its
like): nobody of a kind was last heard of before that time. Signs of life only move forward, so a bound is
true until it is too old to decide by; then all are looked at, and it is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from driftline.config import PipelineConfig
from driftline.streams import memory
from driftline.streams.attempts import MAX_PROCESSES, Attempt, Process, Run
from driftline.streams.closing import Moment
from driftline.streams.lifecycle import advance, fell_silent, finish, finish_if_over, tell, tell_late
from driftline.streams.views import Liveness, Watched


def tick_run(moment: Moment, config: PipelineConfig, hole_us: int) -> None:
    """Time moved on for one run."""
    run = moment.run
    if hole_us:
        _forgive_hole(moment, hole_us)
    if run.now_us - run.awake_us > config.idle_us:
        _fall_idle(moment, config)
    for number in sorted(run.attempts):
        attempt = run.attempts[number]
        for axis in attempt.axes.values():
            axis.watermark.rest(run.now_us - config.idle_us)
        if not finish_if_over(moment, attempt, config):
            advance(moment, attempt, config)
            _grace(moment, attempt, config)
        tell_late(moment, attempt)
    attempt = run.attempt
    # Silence is still watched when an attempt is over: that is an alert; so are those of older attempts.
    if any(not some.finished or fell_silent(run, some) for some in reversed(run.attempts.values())):
        moment.alerts(attempt, attempt.detection.tick(run.now_us, _Watched(run)))


def _forgive_hole(moment: Moment, hole_us: int) -> None:
    """Nobody watched: what was last seen before the hole counts as seen after it."""
    run = moment.run
    run.last_us = min(run.now_us, run.last_us + hole_us)
    for process in run.processes.values():
        process.last_seen_us = min(run.now_us, process.last_seen_us + hole_us)
    for attempt in run.attempts.values():
        for axis in attempt.axes.values():
            axis.watermark.forgive(hole_us, run.now_us)
    if not run.ended:
        text = f"nobody watched for {hole_us / 1e6:.1f} s: silence in that time is not counted"
        tell(moment, run.attempt, "hole", text, start=run.now_us - hole_us, end=run.now_us)


def _fall_idle(moment: Moment, config: PipelineConfig) -> None:
    """Who was silent for the idle limit is idle: with one fact, and without a hold on the watermark.

    (A position moves with a record, so it has stood still for as long, see ``Watermark.rest``.)
    """
    run = moment.run
    for process in run.processes.values():
        attempt = run.attempts.get(process.attempt)
        if process.ended or process.parked or process.idle or attempt is None:
            continue
        if run.now_us - process.last_seen_us > config.idle_us:
            process.idle = True
            text = f"process {process.name} (rank {process.rank}): nothing since {config.idle_us / 1e6:g} s"
            tell(moment, attempt, "process_idle", text, process=process.name, rank=process.rank)
    awake = (p for p in run.processes.values() if not (p.ended or p.parked or p.idle))
    run.awake_us = _oldest(awake, run.now_us)


def _oldest(processes: Iterable[Process], now_us: int) -> int:
    """The oldest last sign of life; those who come later are heard of now or later."""
    return min((process.last_seen_us for process in processes), default=now_us)


class _Watched(Watched):
    """Those of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._made: list[Liveness] | None = None

    def heard_since(self, time_us: int) -> bool:
        run = self._run
        if run.heard_us < time_us:
            watched = (p for p in run.processes.values() if not (p.ended or p.parked or p.child))
            run.heard_us = _oldest(watched, run.now_us)
        return run.heard_us >= time_us

    def _all(self) -> list[Liveness]:
        if self._made is None:
            run = self._run
            self._made = [
                Liveness(p.name, p.rank, p.role, p.host, p.last_seen_us, p.last_step, p.ended)
                for _, p in sorted(run.processes.items())
                if not p.parked and not p.child
            ]
        return self._made

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Liveness]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> Liveness: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Liveness]: ...
    def __getitem__(self, at: int | slice) -> Liveness | Sequence[Liveness]:
        return self._all()[at]


def _grace(moment: Moment, attempt: Attempt, config: PipelineConfig) -> None:
    """Ranks that never started stop counting, with one note."""
    if attempt.grace_over or moment.now_us < attempt.started_us + config.start_grace_us:
        return
    attempt.grace_over = True
    if attempt.world_size is None:
        return
    ranks = range(min(attempt.world_size, MAX_PROCESSES))
    absent = [rank for rank in ranks if f"{attempt.world_role}/{rank}" not in attempt.seats]
    if absent:
        named = ", ".join(map(str, absent[:16])) + (", ..." if len(absent) > 16 else "")
        text = f"{len(absent)} of {attempt.world_size} ranks never started: {named}"
        tell(moment, attempt, "missing", text, count=len(absent), detail={"ranks": absent[:256]})


def expire(moment: Moment, config: PipelineConfig) -> bool:
    """Parks processes that gave no record for the expiry time; True when the whole run goes."""
    run = moment.run
    if run.now_us - run.last_us > config.expire_us:
        for number in sorted(run.attempts):
            attempt = run.attempts[number]
            if not attempt.finished:
                finish(moment, attempt, config)
            elif number == run.current:
                moment.alerts(attempt, attempt.detection.end(moment.now_us))
        memory.remember(moment.state, run)
        return True
    old = _expired(run, config) if run.now_us - run.known_us > config.expire_us else []
    for process in old:
        process.parked = True
        process.maps.clear()
        if process.attempt in run.attempts:
            run.attempts[process.attempt].park(process.number)
    _forget_attempts(moment, config, some_left=bool(old))
    for number in sorted({process.attempt for process in old} & run.attempts.keys()):
        _compact(run, run.attempts[number])
    return False


def _expired(run: Run, config: PipelineConfig) -> list[Process]:
    """Processes that ended or fell idle, and gave no record for the expiry time."""
    known = [process for process in run.processes.values() if not process.parked]
    run.known_us = _oldest(known, run.now_us)
    limit_us = run.now_us - config.expire_us
    return [
        process for process in known if (process.ended or process.idle) and process.last_seen_us < limit_us
    ]


def _compact(run: Run, attempt: Attempt) -> None:
    """An attempt that lives for weeks, with a process for each evaluation, keeps few numbers."""
    found = attempt.compact()
    if found is None:
        return
    for process in run.processes.values():
        if process.attempt == attempt.number and process.number >= 0:
            process.number = found.get(process.number, -1)


def _forget_attempts(moment: Moment, config: PipelineConfig, *, some_left: bool) -> None:
    """Drops attempts without a process: at once those that rewinds leave behind (a run may rewind for days).

    The last one before the current is kept as long as processes stay: its world is compared with the next.
    """
    run = moment.run
    if not some_left and len(run.attempts) <= 2:
        return
    homes = {p.attempt for p in run.processes.values() if not p.parked}
    for number in sorted(run.attempts):
        attempt = run.attempts[number]
        if number == run.current or number in homes:
            continue
        if some_left or (attempt.finished and number < run.current - 1):
            if not attempt.finished:
                finish(moment, attempt, config)
            del run.attempts[number]
