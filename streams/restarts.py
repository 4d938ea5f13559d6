"""Which attempt a process starts in. An attempt is a restart of the run, not of one of its seats.

A seat is a (role, rank). What is compared is what the starts say of themselves (seat, world size, restart
count, time), so the order in which the processes of a launch are heard changes nothing. A start opens the
next attempt if it

- announces another world size than the newest attempt has;
- takes over a seat with a higher restart count than the attempt has (agents of one restart may disagree);
- comes after everyone in it had left, and is no rank of its world that was still awaited;
- takes over a seat, and so have most seats by then, each within ``start_grace`` of the one before: those that
  came first move to the new attempt with it.

Else it joins: a seat that is taken is taken over, and who had it is gone. The seats that count are those of
the trainers, where there are any: workers of other roles come and go while the run goes on.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from driftline import events
from driftline.streams.attempts import NEVER_US, Attempt, Process, Run, role_of, seat_of

TRAINER = "trainer"


class Opens(NamedTuple):
    """The next attempt, and why."""

    why: str


class Start(NamedTuple):
    """When a process started."""

    time_us: int
    """By its own clock."""
    heard_us: int
    """In the log."""


def place(run: Run, event: events.ProcessStarted, seat: str | None, slack_us: int) -> Attempt | Opens | None:
    """Where a process that is no child starts; None if its launch is older than all attempts."""
    newest = run.attempt
    if (why := _begins_anew(run, newest, event, seat, slack_us)) is not None:
        return Opens(why)
    if seat is None:
        return newest
    fitting = [run.attempts[at] for at in sorted(run.attempts, reverse=True)]
    fitting = [attempt for attempt in fitting if _why_not(attempt, event) is None]
    free = [attempt for attempt in fitting if attempt.seats.get(seat, event.process) == event.process]
    if free:
        hint = event.restart_hint
        return min(
            free,
            key=lambda a: (a.hints.get(event.role, hint) != hint, abs(event.time_us - a.started_us)),
        )
    for attempt in fitting:
        if not _is_older(run, attempt.seats[seat], event.time_us, slack_us):
            return attempt
    return None


def take(run: Run, attempt: Attempt, seat: str, process: Process, *, counts_more: bool) -> Process | None:
    """A process takes its seat. Returns who had it, in whatever attempt, and is gone therefore.

    ``counts_more``: its restart count is above the attempt's, so a restart may be under way.
    """
    holder = run.processes.get(attempt.seats.get(seat, ""))
    if holder is None or holder is process:
        attempt.sit(seat, process.name)
        if counts_more:
            attempt.taken_over[seat] = ""
        earlier = (
            run.attempts[at].seats.get(seat)
            for at in sorted(run.attempts, reverse=True)
            if at < attempt.number
        )
        return run.processes.get(next(filter(None, earlier), ""))
    if _start(holder) > _start(process):  # heard late: it had the seat before
        attempt.taken_over.setdefault(seat, process.name)
        return process
    attempt.seats[seat] = process.name
    attempt.taken_over[seat] = holder.name
    return holder


def most_are_anew(run: Run, attempt: Attempt, seat: str, start: Start, slack_us: int) -> bool:
    """Whether, with the seat that is taken over now, the run started again, and not only seats of it."""
    leading = attempt.seated(TRAINER) or len(attempt.seats)
    if 2 * len(attempt.taken_over.keys() | {seat}) <= leading:
        return False
    started = _takeovers(run, attempt)
    started[seat] = max(start, _start(run.processes.get(attempt.seats[seat])))
    together = _linked(started, start, slack_us)
    return 2 * sum(leads(attempt, role_of(some)) for some in together) > leading


def came_together(run: Run, attempt: Attempt, start: Start, slack_us: int) -> list[Process]:
    """Who took over a seat in the same restart as this start, the first to start first."""
    started = _takeovers(run, attempt)
    together = _linked(started, start, slack_us)
    together.sort(key=lambda seat: (started[seat], seat))
    return [run.processes[attempt.seats[seat]] for seat in together]


def _takeovers(run: Run, attempt: Attempt) -> dict[str, Start]:
    holders = ((seat, run.processes.get(attempt.seats[seat])) for seat in attempt.taken_over)
    return {seat: _start(process) for seat, process in holders if process is not None}


def _linked(started: dict[str, Start], start: Start, slack_us: int) -> list[str]:
    """Seats that a chain of starts, each within ``slack_us`` of the next, links with this one.

    By the clocks of the processes, or by when they were heard: clocks may be wrong, and records late.
    """
    found: dict[str, None] = {}
    reached = [start]
    orders = [sorted((times[by], seat) for seat, times in started.items()) for by in (0, 1)]
    while reached:
        times = reached.pop()
        for by, order in enumerate(orders):
            low = bisect.bisect_left(order, (times[by] - slack_us, ""))
            high = bisect.bisect_right(order, (times[by] + slack_us + 1, ""))
            for _, seat in order[low:high]:
                if seat not in found:
                    found[seat] = None
                    reached.append(started[seat])
            del order[low:high]  # whoever is near is linked by now, also to those that are near to them
    return list(found)


def _begins_anew(
    run: Run, newest: Attempt, event: events.ProcessStarted, seat: str | None, slack_us: int
) -> str | None:
    """Why a start is after the newest attempt, None if it is not."""
    if event.time_us <= newest.started_us or not leads(newest, event.role):
        return None
    if seat is not None and (why := _why_not(newest, event)) is not None:
        return why
    awaits = newest.world_size is None or newest.awaited(run.now_us, slack_us)
    if seat is not None and seat not in newest.seats and awaits:
        return None  # a rank of it that comes late: perhaps the ranks run one after the other
    last_us = NEVER_US
    for process in run.processes.values():
        if process.attempt != newest.number or process.child or process.stray:
            continue
        if not _has_left(process, seat):
            return None
        last_us = max(last_us, process.last_seen_us)
    return "all others had left" if NEVER_US < last_us < event.time_us else None


def _has_left(process: Process, seat: str | None) -> bool:
    """A seat that falls silent is still there; whoever has none is not missed."""
    return process.ended or process.parked or (seat is None and process.idle)


def _why_not(attempt: Attempt, event: events.ProcessStarted) -> str | None:
    """Why a process cannot be of this attempt, None if it can."""
    world, hint = event.world_size, event.restart_hint
    if attempt.world_role == event.role and world is not None and attempt.world_size not in (None, world):
        return f"the world changed from {attempt.world_size} to {world}"
    if seat_of(event.role, event.rank) in attempt.seats and counts_higher(attempt, event):
        return f"the launcher counts restart {hint}, {attempt.hints[event.role]} before"
    return None


def counts_higher(attempt: Attempt, event: events.ProcessStarted) -> bool:
    """Whether the launcher's restart count is above that of the attempt."""
    known, hint = attempt.hints.get(event.role), event.restart_hint
    return hint is not None and known is not None and hint > known and leads(attempt, event.role)


def leads(attempt: Attempt, role: str) -> bool:
    """Whether seats of this role make a restart of the run."""
    return role == TRAINER or not attempt.seated(TRAINER)


def _start(process: Process | None) -> Start:
    if process is None:
        return Start(NEVER_US, NEVER_US)
    return Start(NEVER_US if process.started_us is None else process.started_us, process.heard_us)


def _is_older(run: Run, holder: str, started_us: int, slack_us: int) -> bool:
    """Whether who is heard of now started, by its clock, well before the holder of its seat, and now."""
    known = run.processes.get(holder)
    return (
        known is not None
        and known.started_us is not None
        and started_us < known.started_us - slack_us
        and started_us < run.now_us - slack_us
    )
