"""The slow, obvious oracle of windows: one record at a time, one sample at a time, with exact numbers.

``run(records, config)`` gives the rows of ``windows`` that the pipeline must give, as a list of dicts;
``follow(records, config)`` gives them record by record, with the facts on late and on future-dated samples.
``differences(rows, outputs)`` compares them with what the pipeline put out. ``make_log(seed)`` makes a small
random log with everything odd in it. Nothing here is shared with the code under test but the wire format.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from driftline import events, frames, records, window_rows
from driftline.config import PipelineConfig, WindowSpec
from driftline.errors import BadRecord
from driftline.records import Output, Record

Row = dict[str, Any]
NO_STEP = frames.NO_STEP
COUNTS = ("count", "nan", "inf", "min_rank", "max_rank", "present", "expected", "revision")
EXACT = ("min", "max", "first", "last")
MAX_OPEN = 8_192
"""Panes that may be open after a record; samples dated ahead may open half as many."""
MAX_GAP = 3_600
"""Panes without a sample that a rate fills."""


class Sample:
    def __init__(self, value: float, weight: float, rank: int | None, process: str) -> None:
        self.value, self.weight, self.rank = value, weight, rank
        self.processes = {process}
        self.labels: set[str] = set()


class Axis:
    def __init__(self, name: str, config: PipelineConfig) -> None:
        self.name = name
        self.specs: list[WindowSpec] = []
        for spec in config.windows:
            if spec.axis == name and spec not in self.specs:
                self.specs.append(spec)
        sizes = [n for spec in self.specs for n in (spec.size, spec.every) if n]
        self.pane = math.gcd(*sizes) if sizes else (1_000_000 if name == "time" else 1)
        self.cells: dict[tuple[int, str, str], list[Sample]] = {}  # (pane, group, metric)
        self.closed = -(10**30)
        self.out: list[int] = [-(10**30) for _ in self.specs]
        self.mark: int | None = None
        self.first: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.moved: dict[str, int] = {}
        self.holding: dict[str, bool] = {}
        self.waiting: list[list[int]] = []
        self.late = 0
        self.derived_to = self.begin = -(10**30)
        self.told: dict[tuple[int, str, str], int] = {}
        """Newest pane of each series in a window of the whole run."""
        self.memory: dict[tuple[str, str], Any] = {}

    def advance(self, process: str, low: int, high: int, now: int) -> None:
        if process not in self.first:
            self.first[process], self.newest[process], self.moved[process] = low, high, now
        elif high > self.newest[process]:
            self.newest[process], self.moved[process] = high, now
        if not self.holding.get(process):
            self.waiting = [[at, min(position, self.newest[process])] for at, position in self.waiting]
        self.holding[process] = True

    def watermark(self, now: int, lateness: int) -> int | None:
        held = [self.newest[p] for p, holds in self.holding.items() if holds]
        if held and self.name == "time":
            self._raise(min(held) - lateness)
        elif held:
            if self.waiting and self.waiting[-1][0] == now:
                self.waiting[-1][1] = min(held)
            else:
                self.waiting.append([now, min(held)])
        while self.waiting and self.waiting[0][0] <= now - lateness:
            self._raise(self.waiting.pop(0)[1])
        return self.mark

    def _raise(self, value: int) -> None:
        self.mark = value if self.mark is None else max(self.mark, value)


class Process:
    def __init__(self, attempt: int, rank: int | None, now: int) -> None:
        self.attempt, self.rank, self.seen = attempt, rank, now
        self.role, self.host, self.seq = "trainer", "", -1
        self.started: int | None = None
        self.heard, self.child = now, False
        self.ended = self.idle = self.parked = self.stray = self.ahead = False


class Attempt:
    def __init__(self, config: PipelineConfig, now: int) -> None:
        self.started, self.world, self.world_role, self.finished = now, None, "", False
        self.rewound: int | None = None
        self.gone = False
        self.seats: dict[str, str] = {}
        self.taken: dict[str, str] = {}  # seats that were taken over: who had them before
        self.hints: dict[str, int] = {}
        self.members: list[str] = []
        self.left: set[str] = set()
        self.part: dict[tuple[str, str], set[str]] = {}
        self.axes = {name: Axis(name, config) for name in ("time", "step")}

    def awaited(self, now: int, grace: int) -> int:
        if self.world is None or now >= self.started + grace:
            return 0
        return max(0, self.world - sum(seat.startswith(self.world_role + "/") for seat in self.seats))


class Naive:
    """One run's windows; a log may hold several runs."""

    def __init__(self, name: str, config: PipelineConfig, now: int) -> None:
        self.name, self.config, self.now = name, config, now
        self.attempts = [Attempt(config, now)]
        self.processes: dict[str, Process] = {}
        self.rows: list[Row] = []
        self.told: list[Row] = []
        self.late: dict[tuple[int, str, str | None], list[int]] = {}  # (attempt, axis, metric): positions
        self.last = now
        self.dormant = False

    # --- records -------------------------------------------------------------------------------------------

    def take(self, content: Any, reference: int) -> None:
        known = self.processes.get(content.process)
        if self.dormant:
            if known is not None and content.seq <= known.seq:
                return
            self.dormant, self.last = False, self.now
        if isinstance(content, events.ProcessStarted):
            self.started(content)
            return
        process = self.processes.get(content.process)
        if process is None:
            rank = content.rank if isinstance(content, frames.Frame) else None
            process = self.join(content.process, len(self.attempts) - 1, rank)
            if isinstance(content, frames.Frame) and rank is not None:
                self.attempts[-1].seats.setdefault(f"trainer/{rank}", content.process)
        if content.seq <= process.seq:
            return
        process.seq = content.seq
        self.lives(content.process)
        if process.parked:
            if isinstance(content, frames.Frame) and len(content.metric):
                self.late.setdefault((process.attempt, "time", None), []).extend(content.time_us.tolist())
            return
        attempt = self.attempts[process.attempt]
        if isinstance(content, frames.Frame):
            if len(content.metric):
                self.frame(attempt, process, content, reference)
        elif isinstance(content, events.ProcessEnded):
            process.ended = True
            self.leave(attempt, content.process)
            if not self.over(attempt):
                self.move(attempt)
        elif isinstance(content, events.Heartbeat):
            places = {"time": content.time_us, "step": content.step}
            if content.time_us > self.now + self.config.future_skew_us:
                places["time"] = None
            for name, axis in attempt.axes.items():
                if places[name] is not None and content.process in axis.first:
                    axis.advance(content.process, places[name], places[name], self.now)
            self.move(attempt)
        elif isinstance(content, events.RunRewound):
            self.rewound(content, process)

    def repeats(self, content: Any) -> bool:
        known = self.processes.get(content.process)
        return known is not None and bool(content.seq <= known.seq)

    def join(self, name: str, attempt: int, rank: int | None) -> Process:
        process = self.processes[name] = Process(attempt, rank, self.now)
        self.attempts[attempt].members.append(name)
        self.attempts[attempt].finished = False
        for axis in self.attempts[attempt].axes.values():
            axis.moved[name] = self.now
        return process

    def lives(self, name: str) -> None:
        process = self.processes[name]
        process.seen, process.idle = max(process.seen, self.now), False
        self.last = max(self.last, self.now)
        attempt = self.attempts[process.attempt]
        if process.parked:
            if attempt.gone or process.stray:
                return
            process.parked = False
            for axis in attempt.axes.values():
                axis.moved[name] = self.now
        process.ended = False
        attempt.left.discard(name)
        attempt.finished = False

    def started(self, event: events.ProcessStarted) -> None:
        if event.process in self.processes:
            process = self.processes[event.process]
            if event.seq > process.seq:
                process.seq = event.seq
                self.lives(event.process)
                process.role, process.host = event.role, event.host
            return
        seat = None if event.parent or event.rank is None else f"{event.role}/{event.rank}"
        number = self.home(event, seat)
        if number is None:
            process = Process(max(0, len(self.attempts) - 2), event.rank, self.now)
            self.processes[event.process] = process
            process.role, process.host, process.seq = event.role, event.host, event.seq
            process.started, process.parked, process.stray = event.time_us, True, True
            self.last = max(self.last, self.now)
            return
        process = self.join(event.process, number, event.rank)
        process.role, process.host, process.seq = event.role, event.host, event.seq
        process.started, process.child = event.time_us, bool(event.parent)
        self.last = max(self.last, self.now)
        if seat is not None:
            attempt = self.attempts[number]
            fresh = seat not in attempt.seats and self.counts_more(attempt, event)
            self.sit(number, seat, event.process)
            if fresh:
                attempt.taken[seat] = ""
            if event.restart_hint is not None:
                attempt.hints.setdefault(event.role, event.restart_hint)
            leads = event.role == "trainer" and attempt.world_role != "trainer"
            if event.world_size is not None and (attempt.world is None or leads):
                attempt.world, attempt.world_role = event.world_size, event.role

    def sit(self, number: int, seat: str, name: str) -> None:
        seats, taken = self.attempts[number].seats, self.attempts[number].taken
        if seat not in seats:
            seats[seat] = name
            before = [a.seats[seat] for a in self.attempts[:number] if not a.gone and seat in a.seats]
            if before:
                self.replaced(before[-1])
        elif self.began(seats[seat]) > self.began(name):
            taken.setdefault(seat, name)
            self.replaced(name)
        else:
            taken[seat], seats[seat] = seats[seat], name
            self.replaced(taken[seat])

    def replaced(self, name: str) -> None:
        process = self.processes[name]
        if not process.ended and not process.parked:
            process.ended = True
            self.leave(self.attempts[process.attempt], name)

    def began(self, name: str) -> tuple[int, int]:
        process = self.processes[name]
        return (-(10**30) if process.started is None else process.started, process.heard)

    def home(self, event: events.ProcessStarted, seat: str | None) -> int | None:
        """The attempt of a new process, None for one of an older launch that is heard of only now."""
        last = len(self.attempts) - 1
        if event.parent in self.processes:
            parent = self.processes[event.parent]
            gone = self.attempts[parent.attempt].gone
            return None if parent.stray else last if gone else parent.attempt
        if self.anew(event, seat):
            return self.restart(event)
        if seat is None:
            return last
        there = [at for at in range(last, -1, -1) if not self.attempts[at].gone]
        fits = [at for at in there if not self.differs(self.attempts[at], event)]
        free = [at for at in fits if self.attempts[at].seats.get(seat, event.process) == event.process]
        if free:
            role, hint = event.role, event.restart_hint
            other = [at for at in free if self.attempts[at].hints.get(role, hint) != hint]
            return min(free, key=lambda at: (at in other, abs(event.time_us - self.attempts[at].started)))
        slack = self.config.start_grace_us
        for at in fits:
            holder = self.processes[self.attempts[at].seats[seat]]
            late = event.time_us < self.now - slack
            if late and holder.started is not None and event.time_us < holder.started - slack:
                continue
            if at == last and self.most(event, seat):
                made = self.restart(event)
                if (holder.started or 0) <= event.time_us:
                    return made
                self.move_to(self.attempts[at].seats[seat], made)
            return at
        return None

    def leads(self, attempt: Attempt, role: str) -> bool:
        return role == "trainer" or not any(seat.startswith("trainer/") for seat in attempt.seats)

    def differs(self, attempt: Attempt, event: events.ProcessStarted) -> bool:
        worlds = {event.world_size, attempt.world} if attempt.world_role == event.role else set()
        if len(worlds - {None}) == 2:
            return True
        return f"{event.role}/{event.rank}" in attempt.seats and self.counts_more(attempt, event)

    def counts_more(self, attempt: Attempt, event: events.ProcessStarted) -> bool:
        known, hint = attempt.hints.get(event.role), event.restart_hint
        return None not in (known, hint) and hint > known and self.leads(attempt, event.role)

    def anew(self, event: events.ProcessStarted, seat: str | None) -> bool:
        newest = self.attempts[-1]
        if event.time_us <= newest.started or not self.leads(newest, event.role):
            return False
        if seat is not None and self.differs(newest, event):
            return True
        awaits = newest.world is None or newest.awaited(self.now, self.config.start_grace_us)
        if seat is not None and seat not in newest.seats and awaits:
            return False
        inside = [p for p in self.processes.values() if self.attempts[p.attempt] is newest and not p.child]
        inside = [p for p in inside if not p.stray]
        left = all(p.ended or p.parked or (seat is None and p.idle) for p in inside)
        return bool(inside) and left and max(p.seen for p in inside) < event.time_us

    def most(self, event: events.ProcessStarted, seat: str) -> bool:
        """Whether most seats that count were taken over together, this one included."""
        attempt = self.attempts[-1]
        count = [some for some in attempt.seats if self.leads(attempt, some.rpartition("/")[0])]
        together = {*self.together(event), seat}
        return 2 * sum(some in together for some in count) > len(count)

    def together(self, event: events.ProcessStarted) -> list[str]:
        attempt, slack = self.attempts[-1], self.config.start_grace_us
        found, reached = [], [(event.time_us, self.now)]
        while reached:
            at = reached.pop()
            for seat in attempt.taken:
                began = self.began(attempt.seats[seat])
                near = any(abs(mine - other) <= slack for mine, other in zip(at, began, strict=True))
                if near and seat not in found:
                    found.append(seat)
                    reached.append(began)
        return sorted(found, key=lambda seat: (self.began(attempt.seats[seat]), seat))

    def restart(self, event: events.ProcessStarted) -> int:
        before, number = self.attempts[-1], len(self.attempts)
        together = self.together(event)
        self.attempts.append(Attempt(self.config, self.now))
        for seat in together:
            if self.attempts[self.processes[before.seats[seat]].attempt] is before:
                self.move_to(before.seats[seat], number)
        for seat, name in before.seats.items():
            if self.leads(before, seat.rpartition("/")[0]):
                self.replaced(name)
        return number

    def move_to(self, name: str, number: int) -> None:
        process = self.processes[name]
        before, seat = self.attempts[process.attempt], f"{process.role}/{process.rank}"
        earlier = before.taken.pop(seat, "")
        if earlier:
            before.seats[seat] = earlier
        else:
            before.seats.pop(seat, None)
        self.change(name, number)

    def change(self, name: str, number: int) -> None:
        process, attempt = self.processes[name], self.attempts[number]
        self.leave(self.attempts[process.attempt], name)
        process.attempt = number
        attempt.members.append(name)
        attempt.finished = False
        for axis in attempt.axes.values():
            axis.moved[name] = self.now
        if process.ended:
            self.leave(attempt, name)
        if process.rank is not None and not process.child:
            attempt.seats.setdefault(f"{process.role}/{process.rank}", name)

    def rewound(self, event: events.RunRewound, process: Process) -> None:
        later = range(process.attempt + 1, len(self.attempts))
        later = [at for at in later if self.attempts[at].rewound is not None and not self.attempts[at].gone]
        same = [at for at in later if self.attempts[at].rewound == event.step]
        if not later:
            last = self.attempts[-1]
            self.attempts.append(Attempt(self.config, self.now))
            made = self.attempts[-1]
            made.rewound = event.step
            made.world, made.world_role, made.hints = last.world, last.world_role, dict(last.hints)
        self.change(event.process, (same or later or [len(self.attempts) - 1])[0])

    def leave(self, attempt: Attempt, name: str) -> None:
        attempt.left.add(name)
        for axis in attempt.axes.values():
            axis.holding[name] = False

    # --- samples -------------------------------------------------------------------------------------------

    def frame(self, attempt: Attempt, process: Process, frame: frames.Frame, reference: int) -> None:
        rank = process.rank if frame.rank is None else frame.rank
        columns = frame.metric, frame.step, frame.time_us, frame.value, frame.weight
        samples = list(zip(*(column.tolist() for column in columns), strict=True))
        self.future(attempt, process, frame, reference)
        for metric, *_ in samples:
            for group in self.groups(process, rank, frame.names[metric]):
                attempt.part.setdefault((group, frame.names[metric]), set()).add(frame.process)
            for derived in self.leads_to(frame.names[metric]):
                for group in self.labels(process, rank):
                    attempt.part.setdefault((group, derived), set()).add(frame.process)
        for name, axis in attempt.axes.items():
            boundary = axis.closed
            reached = []
            open_panes = {pane for pane, _, _ in axis.cells if pane >= boundary}
            for metric, step, time, value, weight in samples:
                position = time if name == "time" else step
                if name == "step" and step == NO_STEP:
                    continue
                honest = name == "step" or time <= reference + self.config.future_skew_us
                if honest:
                    reached.append(position)
                if position // axis.pane < boundary:
                    axis.late += 1
                    late = (self.attempts.index(attempt), name, frame.names[metric])
                    self.late.setdefault(late, []).append(position)
                    continue
                if (
                    not honest
                    and position // axis.pane not in open_panes
                    and len(open_panes) >= MAX_OPEN // 2
                ):
                    continue
                open_panes.add(position // axis.pane)
                sample = Sample(value, weight, rank, frame.process)
                sample.labels = set(self.labels(process, rank))
                for group in self.groups(process, rank, frame.names[metric]):
                    key = (position // axis.pane, group, frame.names[metric])
                    axis.cells.setdefault(key, []).append(sample)
            if reached:
                axis.advance(frame.process, min(reached), max(reached), self.now)
        self.move(attempt)
        for axis in attempt.axes.values():
            open_panes = {pane for pane, _, _ in axis.cells if pane >= axis.closed}
            if len(open_panes) > MAX_OPEN:
                axis.closed = sorted(open_panes)[-MAX_OPEN]
                self.windows(attempt, axis, axis.closed * axis.pane)

    def future(self, attempt: Attempt, process: Process, frame: frames.Frame, reference: int) -> None:
        """The first samples of a process that are dated ahead are told of."""
        ahead = [at for at in frame.time_us.tolist() if at > reference + self.config.future_skew_us]
        if ahead and not process.ahead:
            process.ahead = True
            where = {"run": self.name, "attempt": self.attempts.index(attempt), "process": frame.process}
            span = {"start": min(ahead), "end": max(ahead) + 1, "count": len(ahead)}
            self.told.append({"what": "future", "metric": None, "axis": "time"} | where | span)

    def tell_late(self, attempt: int | None = None) -> None:
        """What came late since the last time, of one attempt or of all."""
        for key in [key for key in self.late if attempt in (None, key[0])]:
            places = self.late.pop(key)
            where = {"run": self.name, "attempt": key[0], "axis": key[1], "metric": key[2], "process": None}
            span = {"start": min(places), "end": max(places) + 1, "count": len(places)}
            self.told.append({"what": "late"} | where | span)

    def labels(self, process: Process, rank: int | None) -> list[str]:
        """Every group, asked for or not: what a derived metric may be made of."""
        named = (("rank", rank), ("host", process.host or None), ("role", process.role or None))
        return ["", *(f"{kind}={label}" for kind, label in named if label is not None)]

    def public(self, group: str, metric: str) -> bool:
        kinds = {"rank": self.config.per_rank, "host": self.config.per_host, "role": self.config.per_role}
        return not group or metric in kinds[group.partition("=")[0]]

    def groups(self, process: Process, rank: int | None, metric: str) -> list[str]:
        groups = [""]
        if rank is not None and metric in self.config.per_rank:
            groups.append(f"rank={rank}")
        if process.host and metric in self.config.per_host:
            groups.append(f"host={process.host}")
        if process.role and metric in self.config.per_role:
            groups.append(f"role={process.role}")
        return groups

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now: int, hole: int) -> None:
        if self.dormant:
            return
        self.last = min(self.now, self.last + hole)
        for process in self.processes.values():
            process.seen = min(self.now, process.seen + hole) if hole else process.seen
        for attempt in self.attempts:
            for axis in attempt.axes.values():
                if hole:
                    axis.moved = {name: min(self.now, at + hole) for name, at in axis.moved.items()}
        for name, process in self.processes.items():
            if process.ended or process.parked:
                continue
            silent = now - process.seen > self.config.idle_us
            process.idle = process.idle or silent
            for axis in self.attempts[process.attempt].axes.values():
                if silent or now - axis.moved[name] > self.config.idle_us:
                    axis.holding[name] = False
        for attempt in self.attempts:
            if not attempt.gone and not self.over(attempt):
                self.move(attempt)
        self.tell_late()
        self.expire()

    def expire(self) -> None:
        """Processes, then attempts, then the whole run are let go; what they were is remembered."""
        limit = self.config.expire_us
        if self.now - self.last > limit:
            for attempt in self.attempts:
                if not attempt.gone and not attempt.finished:
                    self.finish(attempt)
                attempt.gone = attempt is not self.attempts[-1]
            for name in self.processes:
                self.park(name)
            self.dormant = True
            return
        old = [
            name
            for name, p in self.processes.items()
            if not p.parked and (p.ended or p.idle) and self.now - p.seen > limit
        ]
        for name in old:
            self.park(name)
        there = [attempt for attempt in self.attempts if not attempt.gone]
        homes = {p.attempt for p in self.processes.values() if not p.parked}
        for number, attempt in enumerate(self.attempts[:-1]):
            if attempt.gone or number in homes or (not old and len(there) <= 2):
                continue
            if old or (attempt.finished and number < len(self.attempts) - 2):
                if not attempt.finished:
                    self.finish(attempt)
                attempt.gone = True

    def park(self, name: str) -> None:
        process = self.processes[name]
        process.parked = process.idle = True
        attempt = self.attempts[process.attempt]
        self.leave(attempt, name)
        for part in attempt.part.values():
            part.discard(name)
        for axis in attempt.axes.values():
            axis.first.pop(name, None)
            axis.newest.pop(name, None)

    def move(self, attempt: Attempt) -> None:
        for axis in attempt.axes.values():
            mark = axis.watermark(self.now, self.config.allowed_lateness_us)
            if mark is not None and mark // axis.pane > axis.closed:
                axis.closed = mark // axis.pane
                self.windows(attempt, axis, axis.closed * axis.pane)

    def over(self, attempt: Attempt) -> bool:
        if attempt.finished or not attempt.members:
            return attempt.finished
        if attempt.awaited(self.now, self.config.start_grace_us):
            return False
        for name in attempt.members:
            process = self.processes[name]
            away = self.attempts[process.attempt] is not attempt
            if not (name in attempt.left or process.idle or away):
                return False
        self.finish(attempt)
        return True

    def finish(self, attempt: Attempt) -> None:
        attempt.finished = True
        for axis in attempt.axes.values():
            open_panes = [pane for pane, _, _ in axis.cells if pane >= axis.closed]
            axis.closed = max([axis.closed, *(pane + 1 for pane in open_panes)])
            self.windows(attempt, axis, None)
        self.tell_late(self.attempts.index(attempt))

    def windows(self, attempt: Attempt, axis: Axis, until: int | None) -> None:
        """All windows that end after those that are out, up to ``until``, with a sample in closed panes."""
        self.derive(attempt, axis)
        for at, spec in enumerate(axis.specs):
            if not spec.size:
                self.so_far(attempt, axis, at, until)
                continue
            found: dict[tuple[int, str, str], list[int]] = {}
            for pane, group, metric in axis.cells:
                if pane >= axis.closed or not self.public(group, metric):
                    continue
                first = pane * axis.pane
                start = first // spec.every * spec.every
                while start + spec.size > first:
                    end = start + spec.size
                    if end > axis.out[at] and (until is None or end <= until):
                        found.setdefault((start, group, metric), []).append(pane)
                    start -= spec.every
            for (start, group, metric), panes in found.items():
                samples = [s for pane in sorted(panes) for s in axis.cells[(pane, group, metric)]]
                self.rows.append(self.row(attempt, axis, spec, start, group, metric, samples))
            if until is not None:
                axis.out[at] = max(axis.out[at], until)
            elif found:
                axis.out[at] = max(axis.out[at], max(start for start, _, _ in found) + spec.size)

    def so_far(self, attempt: Attempt, axis: Axis, at: int, until: int | None) -> None:
        """Windows from the first pane on, every so often, for series with a sample since the last one."""
        every = axis.specs[at].every
        closed = {key: some for key, some in axis.cells.items() if key[0] < axis.closed}
        ends = sorted({(pane * axis.pane // every + 1) * every for pane, _, _ in closed})
        for end in ends:
            if end <= axis.out[at] or (until is not None and end > until):
                continue
            begin = min(pane for pane, _, _ in closed) * axis.pane
            inside = [key for key in closed if key[0] * axis.pane < end and self.public(*key[1:])]
            for group, metric in sorted({key[1:] for key in inside}):
                panes = sorted(pane for pane, *series in inside if series == [group, metric])
                if axis.told.get((at, group, metric), -(10**30)) < panes[-1]:
                    axis.told[(at, group, metric)] = panes[-1]
                    samples = [s for pane in panes for s in axis.cells[(pane, group, metric)]]
                    spec = WindowSpec(axis.name, end - begin, axis.specs[at].every)
                    row = self.row(attempt, axis, spec, begin, group, metric, samples)
                    self.rows.append(row | {"span": "run"})
            axis.out[at] = end
        axis.out[at] = max(axis.out[at], -(10**30) if until is None else until)

    def row(
        self,
        attempt: Attempt,
        axis: Axis,
        spec: WindowSpec,
        start: int,
        group: str,
        metric: str,
        samples: list[Sample],
    ) -> Row:
        end = start + spec.size
        part = attempt.part[(group, metric)]
        present = set().union(*(s.processes for s in samples))
        could = {
            p
            for p in part
            if p in axis.first and axis.first[p] < end and (axis.holding.get(p) or axis.newest[p] >= start)
        }
        awaited = attempt.awaited(self.now, self.config.start_grace_us)
        extra = awaited if not group and len(part) >= 2 else 0
        row: Row = {
            "run": self.name,
            "attempt": self.attempts.index(attempt),
            "axis": axis.name,
            "start": start,
            "end": end,
            "group": group,
            "metric": metric,
            "revision": 0,
            "present": len(present),
            "expected": len(could | present) + extra,
        }
        row["span"] = None
        row["derived"] = metric in {one.name for one in self.config.derived}
        row |= aggregate(samples, self.config.quantiles.get(metric, []))
        for q in self.config.weighted_quantiles.get(metric, []):
            value = weighted_quantile(samples, q)
            if value is not None:
                row["quantiles"][f"wp{q * 100:.10g}"] = value
        values = {a.name: EXTRA[a.target](samples) for a in self.config.aggregates if metric in a.metrics}
        return row | {"extra": {name: value for name, value in values.items() if value is not None}}

    # --- derived metrics -----------------------------------------------------------------------------------

    def leads_to(self, metric: str) -> list[str]:
        """What is derived of a metric, directly or not."""
        have = [metric]
        for one in self.config.derived:
            if one.of in have or one.per in have:
                have.append(one.name)
        return have[1:]

    def derive(self, attempt: Attempt, axis: Axis) -> None:
        """Values of panes that are closed since the last time, as samples of their own."""
        begin, axis.derived_to = axis.derived_to, max(axis.derived_to, axis.closed)
        for one in self.config.derived:
            if axis.name == "step" and (one.kind == "rate" or one.half_life_us):
                continue
            if axis.name == "time" and one.half_life_steps:
                continue
            groups = [group for group, metric in attempt.part if metric == one.name]
            for group in groups if one.kind != "spread" else [""]:
                panes = sorted({pane for pane, _, _ in axis.cells if begin <= pane < axis.closed})
                make = getattr(self, f"derive_{one.kind}")
                axis.begin = begin
                for pane, value, weight, rank, processes in make(attempt, axis, one, group, panes):
                    if math.isfinite(value):
                        sample = Sample(value, weight, rank, "")
                        sample.processes, sample.labels = set(processes), {group}
                        axis.cells.setdefault((pane, group, one.name), []).append(sample)

    def of(self, axis: Axis, pane: int, group: str, metric: str) -> list[Sample]:
        """Samples of a metric in a pane, of those that belong to the group."""
        if (pane, group, metric) in axis.cells:
            return axis.cells[(pane, group, metric)]
        return [s for s in axis.cells.get((pane, "", metric), []) if group in s.labels]

    def derive_ratio(self, attempt: Attempt, axis: Axis, one: Any, group: str, panes: list[int]) -> Any:
        for pane in panes:
            above, below = (self.of(axis, pane, group, metric) for metric in (one.of, one.per))
            top, bottom = total(above), total(below)
            if top is not None and bottom:
                processes = set().union(*(s.processes for s in above + below))
                value = float(top / bottom * Fraction(one.times / one.over))
                yield pane, value, float(abs(bottom)), None, processes

    def derive_rate(self, attempt: Attempt, axis: Axis, one: Any, group: str, panes: list[int]) -> Any:
        devices = one.devices
        if devices is None:
            announced = attempt.world if group == "" else None
            devices = announced or max(1, len(attempt.part[(group, one.name)]))
        factor = one.times / one.over / (axis.pane / 1e6) / devices
        for pane in panes:
            samples = self.of(axis, pane, group, one.of)
            top = total(samples)
            if top is None:
                continue
            due = max(axis.memory.get((one.name, group), pane), axis.begin)
            if pane - due <= MAX_GAP:
                yield from ((empty, 0.0, 1.0, None, ()) for empty in range(due, pane))
            axis.memory[(one.name, group)] = pane + 1
            yield pane, float(top) * factor, 1.0, None, set().union(*(s.processes for s in samples))
        due = max(axis.memory.get((one.name, group), axis.closed), axis.begin)
        live = any(axis.holding.get(p) for p in attempt.part[(group, one.name)])
        if live and axis.closed - due <= MAX_GAP:
            yield from ((empty, 0.0, 1.0, None, ()) for empty in range(due, axis.closed))

    def derive_ema(self, attempt: Attempt, axis: Axis, one: Any, group: str, panes: list[int]) -> Any:
        """Every mean since the beginning, weighted by its age."""
        seen = axis.memory.setdefault((one.name, group), [])
        life = one.half_life_us or one.half_life_steps
        for pane in panes:
            samples = self.of(axis, pane, group, one.of)
            mean = aggregate(samples)["mean"] if samples else None
            if mean is not None:
                seen.append((pane, mean))
                weights = [2.0 ** ((at - pane) * axis.pane / life) for at, _ in seen]
                value = sum(w * x for w, (_, x) in zip(weights, seen, strict=True)) / sum(weights)
                yield pane, value, 1.0, None, set().union(*(s.processes for s in samples))

    def derive_spread(self, attempt: Attempt, axis: Axis, one: Any, group: str, panes: list[int]) -> Any:
        for pane in panes:
            samples = self.of(axis, pane, "", one.of)
            ranks = {int(group[5:]) for group, _ in attempt.part if group.startswith("rank=")}
            by_rank = {rank: self.of(axis, pane, f"rank={rank}", one.of) for rank in sorted(ranks)}
            means = {rank: aggregate(some)["mean"] for rank, some in by_rank.items() if some}
            known = {rank: mean for rank, mean in means.items() if mean is not None}
            if len(known) > 1:
                worst = max(known, key=lambda rank: (known[rank], -rank))
                value = known[worst] - statistics.median(known.values())
                yield pane, value, 1.0, worst, set().union(*(s.processes for s in samples))


def total(samples: Sequence[Sample]) -> Fraction | None:
    """Sum of the finite samples, None where there is none."""
    finite = [Fraction(s.value) for s in samples if math.isfinite(s.value)]
    return sum(finite, Fraction(0)) if finite else None


def aggregate(samples: Sequence[Sample], quantiles: Sequence[float] = ()) -> Row:
    """The aggregate of samples, in exact arithmetic."""
    finite = [s for s in samples if math.isfinite(s.value)]
    row: Row = {
        "count": len(samples),
        "nan": sum(math.isnan(s.value) for s in samples),
        "inf": sum(math.isinf(s.value) for s in samples),
        "first": samples[0].value,
        "last": samples[-1].value,
    }
    weighted = [(Fraction(s.weight), Fraction(s.value)) for s in finite if 0 < s.weight < 2.0**150]
    total = sum((w for w, _ in weighted), Fraction(0))
    row["weight"] = float(total)
    row["sum"] = row["size"] = None
    if finite:
        exact = sum((Fraction(s.value) for s in finite), Fraction(0))
        size = sum((abs(Fraction(s.value)) for s in finite), Fraction(0))
        row["sum"], row["size"] = (float(exact), float(size)) if size < 2**1020 else (math.inf, math.inf)
    row["mean"] = row["std"] = None
    if weighted:
        mean = sum((w * x for w, x in weighted), Fraction(0)) / total
        variance = sum((w * (x - mean) ** 2 for w, x in weighted), Fraction(0)) / total
        row["mean"], row["std"] = float(mean), root(variance)
    row |= dict.fromkeys(("min", "min_rank", "max", "max_rank", "p50", "p95", "p99"))
    row["quantiles"] = {}
    if finite:
        least = min(s.value for s in finite)
        most = max(s.value for s in finite)
        row["min"], row["max"] = least, most
        row["min_rank"] = next(s.rank for s in finite if s.value == least)
        row["max_rank"] = next(s.rank for s in finite if s.value == most)
        ordered = sorted(s.value for s in finite)
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            row[name] = quantile(ordered, q)
        for q in quantiles:
            if q not in (0.5, 0.95, 0.99):
                row["quantiles"][f"p{q * 100:.10g}"] = quantile(ordered, q)
    return row


def valid(samples: Sequence[Sample]) -> list[Sample]:
    """Finite, with a weight that counts."""
    return [s for s in samples if math.isfinite(s.value) and 0 < s.weight < 2.0**480]


def weighted_quantile(samples: Sequence[Sample], q: float) -> float | None:
    """The first value, in order, up to which lies ``q`` of all weight."""
    ordered = sorted(valid(samples), key=lambda s: s.value)
    need = Fraction(q) * sum((Fraction(s.weight) for s in ordered), Fraction(0)) * Fraction(1 - 1e-12)
    have = Fraction(0)
    for s in ordered:
        have += Fraction(s.weight)
        if have >= need:
            return s.value
    return None


def geometric_mean(samples: Sequence[Sample]) -> float | None:
    some = valid(samples)
    if not some or any(s.value < 0 for s in some):
        return None
    if any(s.value == 0 for s in some):
        return 0.0
    return math.exp(math.fsum(s.weight * math.log(s.value) for s in some) / math.fsum(s.weight for s in some))


EXTRA: dict[str, Any] = {"geometric_mean": geometric_mean}
"""Custom aggregates by target, written anew."""


def root(variance: Fraction) -> float:
    """Square root without overflow."""
    if not variance:
        return 0.0
    shift = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(float(variance / Fraction(4) ** shift)), shift)


def quantile(ordered: list[float], q: float) -> float:
    """The exact nearest-rank quantile; the pipeline may be 0.55 % off."""
    return ordered[min(max(math.ceil(q * len(ordered) - 1e-9), 1), len(ordered)) - 1]


def run(log: Iterable[Record], config: PipelineConfig | None = None) -> list[Row]:
    """Rows of all windows that the log closes. The configuration is the one given, from the start."""
    return [row for _, rows, _ in follow(log, config) for row in rows]


def follow(
    log: Iterable[Record], config: PipelineConfig | None = None
) -> Iterator[tuple[int, list[Row], list[Row]]]:
    """After each record its offset, the rows that it closes, what is told of late and future-dated samples.

    So each prefix of the log is judged by itself.
    """
    config = config or PipelineConfig()
    runs: dict[str, Naive] = {}
    last_tick: int | None = None
    stamped = True
    for record in log:
        try:
            content = records.decode(record.value)
        except BadRecord:
            continue
        time = record.time_ms * 1000
        if isinstance(content, events.Tick):
            stamped = content.append_time
            hole = time - last_tick if last_tick is not None and time - last_tick > config.hole_us else 0
            last_tick = time if last_tick is None else max(time, last_tick)
            for each in runs.values():
                each.now = max(each.now, time)
                each.tick(each.now, hole)
        elif isinstance(content, frames.Frame | events.FromProcess):
            if not stamped and last_tick is not None and time > last_tick + 3_600_000_000:
                time = last_tick + 2_000_000
            now = time if last_tick is None or stamped else min(time, last_tick + 2_000_000)
            if content.run not in runs:
                start = now if last_tick is None else max(now, last_tick)
                runs[content.run] = Naive(content.run, config, start)
            one = runs[content.run]
            if one.dormant and last_tick is not None and not one.repeats(content):
                now = max(now, last_tick)
            one.now = max(one.now, now)
            runs[content.run].take(content, time)
        yield (
            record.offset,
            [r for one in runs.values() for r in _drain(one.rows)],
            [fact for one in runs.values() for fact in _drain(one.told)],
        )


def _drain(some: list[Row]) -> list[Row]:
    taken, some[:] = some[:], []
    return taken


# --- comparing ---------------------------------------------------------------------------------------------


def rows_of(outputs: Iterable[Output]) -> list[Row]:
    """Window rows of the pipeline's outputs."""
    rows: list[Row] = []
    for output in outputs:
        if output.topic == "windows":
            rows += window_rows.decode(output.value)[1].to_pylist()
    return rows


def key_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("run", "attempt", "axis", "start", "end", "span", "group", "metric"))


def differences(expected: list[Row], outputs: Iterable[Output]) -> list[str]:
    """What differs, in words; empty when all windows agree."""
    found = rows_of(outputs)
    wanted = {key_of(row): row for row in expected}
    given = {key_of(row): row for row in found}
    problems = (
        [f"twice: {key}" for key in given if sum(key_of(row) == key for row in found) > 1]
        if len(given) < len(found)
        else []
    )
    problems += [f"lacking: {key}" for key in wanted if key not in given]
    problems += [f"not expected: {key}" for key in given if key not in wanted]
    for key, row in wanted.items():
        if key in given:
            problems += [
                f"{key} {name}: {row[name]!r} != {given[key][name]!r}" for name in _unequal(row, given[key])
            ]
    return problems


def _unequal(a: Row, b: Row) -> list[str]:
    names = [name for name in COUNTS if a[name] != b[name]]
    equal, floor = (near_enough, 1e-300) if a["derived"] else (same, 0.0)
    names += [name for name in EXACT if not equal(a[name], b[name])]
    spread = max((abs(v) for v in (a["min"], a["max"]) if v is not None), default=0.0) + floor * 1e12
    names += [
        name
        for name, scale in (("weight", 0.0), ("mean", spread), ("std", spread))
        if not close(a[name], b[name], scale)
    ]
    # Beyond the largest float a plain sum is infinite, or nothing where infinities of both signs meet.
    if a["size"] != math.inf and not close(a["sum"], b["sum"], spread + (a["size"] or 0.0)):
        names.append("sum")
    names += [name for name in ("p50", "p95", "p99") if not near(a[name], b[name], floor)]
    mine, theirs = dict(a["quantiles"]), dict(b["quantiles"])
    if mine.keys() != theirs.keys() or not all(near(mine[q], theirs[q], floor) for q in mine):
        names.append("quantiles")
    mine, theirs = dict(a["extra"]), dict(b["extra"])
    if mine.keys() != theirs.keys() or not all(close(mine[q], theirs[q], spread) for q in mine):
        names.append("extra")
    return names


def same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def near_enough(a: float | None, b: float | None) -> bool:
    return close(a, b, 1.0)


def close(a: float | None, b: float | None, scale: float) -> bool:
    if a is None or b is None:
        return a is b
    # The smallest floats are 5e-324 apart: a result there can be rounded up or down.
    return a == b or abs(a - b) <= 1e-9 * abs(a) + 1e-12 * scale + 1e-323


def near(a: float | None, b: float | None, floor: float = 0.0) -> bool:
    """Within the histogram's bound."""
    if a is None or b is None:
        return a is b
    return abs(a - b) <= 0.0055 * abs(a) + floor


# --- random logs -------------------------------------------------------------------------------------------

NAMES = ["loss", "reward", "kl", "lr", "准确率"]
ODD_VALUES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, -1e300, 1.7e308, 5e-324, 1e-310, 3.0, -2.5]


def make_frame(
    run: str,
    process: str,
    seq: int,
    rank: int | None,
    samples: Sequence[tuple[str, int | None, int, float, float]],
) -> bytes:
    """A frame of (metric, step, time_us, value, weight) samples."""
    names = list(dict.fromkeys(sample[0] for sample in samples))
    return frames.encode(
        frames.Frame(
            run=run,
            process=process,
            rank=rank,
            seq=seq,
            names=names,
            metric=np.array([names.index(s[0]) for s in samples], np.int16),
            step=np.array([NO_STEP if s[1] is None else s[1] for s in samples], np.int64),
            time_us=np.array([s[2] for s in samples], np.int64),
            value=np.array([s[3] for s in samples], np.float64),
            weight=np.array([s[4] for s in samples], np.float64),
        )
    )


def make_log(
    seed: int,
    *,
    ranks: int = 3,
    seconds: int = 25,
    runs: Sequence[str] = ("a",),
    restart: bool = True,
    end: bool = True,
    append_time: bool = True,
) -> list[Record]:
    """A log of a few runs, with ticks, disorder, duplicates, holes, odd values, restarts, idle ranks."""
    chance = random.Random(seed)
    base = 1_700_000_000_000_000
    log: list[tuple[int, int, bytes]] = []

    def put(at_us: int, value: bytes) -> None:
        log.append((at_us, len(log), value))

    for second in range(seconds + 80):
        if not (seed % 5 == 0 and 8 < second < 24):  # a hole in the ticks
            at = base + second * 1_000_000
            put(at, events.encode(events.Tick(worker="w", time_us=at, append_time=append_time)))
    for run in runs:
        for generation in range(2 if restart and chance.random() < 0.5 else 1):
            _one_attempt(chance, put, run, generation, base, ranks, seconds, end=end)
        apart = random.Random(f"{seed} {run}")
        for number in range(apart.choice([0, 0, 1, 1, 2, ranks]) if restart else 0):
            begin = base + apart.randrange(2, seconds) * 1_000_000
            _one_seat(apart, put, f"{run}s{number}", run, begin, number, ranks)
    log.sort()
    return [Record(0, offset, at // 1000, value) for offset, (at, _, value) in enumerate(log)]


def _one_seat(
    chance: random.Random, put: Any, process: str, run: str, begin: int, rank: int, ranks: int
) -> None:
    """A seat starts again, perhaps as part of a restart of the run, perhaps heard late."""
    started = events.ProcessStarted(
        run=run,
        process=process,
        seq=0,
        time_us=begin - chance.choice([0, 0, 5_000_000, 90_000_000]),
        rank=rank,
        world_size=chance.choice([None, ranks, ranks, ranks + 1]),
        restart_hint=chance.choice([None, 0, 1]),
        role=chance.choice(["trainer", "trainer", "rollout"]),
    )
    put(begin, events.encode(started))
    for seq in range(1, 6):
        now = begin + seq * 700_000
        put(now, _some_frame(chance, run, process, seq, rank, seq, now, NAMES))


def _one_attempt(
    chance: random.Random,
    put: Any,
    run: str,
    generation: int,
    base: int,
    ranks: int,
    seconds: int,
    *,
    end: bool,
) -> None:
    begin = base + generation * seconds * 500_000
    world = ranks + (1 if chance.random() < 0.2 else 0)
    for rank in range(ranks):
        process, seq = f"{run}{generation}{rank}", 0
        now = begin + chance.randrange(0, 1_500_000)
        if chance.random() < 0.9:
            put(
                now,
                events.encode(
                    events.ProcessStarted(
                        run=run,
                        process=process,
                        seq=0,
                        time_us=now,
                        rank=rank,
                        world_size=world,
                        host=f"h{rank % 2}",
                    )
                ),
            )
        step = 0
        last = begin + chance.randrange(seconds // 3, seconds) * 1_000_000
        names = NAMES[: chance.randrange(1, len(NAMES) + 1)]
        while now < last:
            seq += 1
            now += chance.randrange(50_000, 1_200_000)
            value = _some_frame(chance, run, process, seq, rank, step, now, names)
            step += chance.choice([0, 1, 2, 3, 3, 25 if chance.random() < 0.02 else 1])
            sent = now + (chance.randrange(0, 4_000_000) if chance.random() < 0.1 else 0)
            put(sent, value)
            if chance.random() < 0.05:
                put(sent + chance.randrange(0, 500_000), value)  # twice
            if chance.random() < 0.03:
                seq += 1  # a hole
            if chance.random() < 0.02:
                now += chance.randrange(1, 40) * 1_000_000  # silent
            if chance.random() < 0.05:
                seq += 1
                put(
                    now,
                    events.encode(
                        events.Heartbeat(run=run, process=process, seq=seq, time_us=now, step=step)
                    ),
                )
            if chance.random() < 0.01:
                seq += 1
                put(
                    now,
                    events.encode(events.RunRewound(run=run, process=process, seq=seq, time_us=now, step=3)),
                )
        if end and chance.random() < 0.7:
            put(
                now + 10_000,
                events.encode(events.ProcessEnded(run=run, process=process, seq=seq + 1, time_us=now)),
            )


def _some_frame(
    chance: random.Random, run: str, process: str, seq: int, rank: int, step: int, now: int, names: list[str]
) -> bytes:
    samples: list[tuple[str, int | None, int, float, float]] = []
    for _ in range(chance.randrange(1, 8)):
        name = chance.choice(names)
        value = chance.choice(ODD_VALUES) if chance.random() < 0.15 else chance.gauss(2.0, 0.5)
        value = 1.0 if name == "lr" else value
        weight = chance.choice([0.0, -1.0, 3.0, 12.0, math.nan, 1e-3]) if chance.random() < 0.2 else 1.0
        at = now - chance.randrange(0, 900_000)
        if chance.random() < 0.01:
            at += 86_400_000_000
        place = (
            None
            if chance.random() < 0.2
            else max(0, step - (chance.randrange(0, 6) if chance.random() < 0.1 else 0))
        )
        samples.append((name, place, at, value, weight))
    return make_frame(run, process, seq, rank if chance.random() < 0.8 else None, samples)
