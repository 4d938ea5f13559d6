"""Starts, ends, rewinds and configurations: what moves attempts and runs through their life."""

from __future__ import annotations

import msgspec

from driftline import config as configuration
from driftline import derivations, events
from driftline.config import PipelineConfig
from driftline.errors import SettingsError
from driftline.streams import derived, extensions, restarts
from driftline.streams.attempts import (
    AXES,
    Attempt,
    AxisState,
    PartitionState,
    Process,
    Run,
    role_of,
    seat_of,
)
from driftline.streams.closing import MAX_FACTS, Closing, Moment, close
from driftline.streams.extras import Extras, Held
from driftline.streams.outputs import Outbox
from driftline.streams.panes import POSITION_LIMIT
from driftline.streams.processes import counts, full, join, open_attempt
from driftline.streams.views import CheckpointView, Factories, TriggerReason
from driftline.streams.windowing import plan

MAX_US = 10**15
"""Durations of the configuration: about 31 years."""
MAX_SIZE = 2**53
"""Sizes, hops and intervals of the configuration."""

# --- events of processes -----------------------------------------------------------------------------------


def started(moment: Moment, event: events.ProcessStarted, make: Factories) -> None:
    """A process starts: it joins the current attempt, or opens the next where its seat is taken."""
    run = moment.run
    known = run.processes.get(event.process)
    if known is not None:  # its frames came first, or this is a duplicate
        if counts(moment, known, event.seq):
            known.role, known.host, known.child = event.role, event.host, bool(event.parent)
            known.rank = event.rank if known.rank is None else known.rank
            known.maps.clear()
        return
    if full(moment.state, run):
        moment.state.count("records_of_refused_processes")
        return
    seat = None if event.parent else seat_of(event.role, event.rank)
    attempt = _attempt_for(moment, event, seat, make)
    run.title = run.title or event.name
    if attempt is None:
        _stray(moment, event)
        return
    process = join(run, attempt, event.process)
    process.rank, process.role, process.host = event.rank, event.role, event.host
    process.child = bool(event.parent)
    process.started_us = event.time_us
    counts(moment, process, event.seq)
    if seat is not None:
        higher = restarts.counts_higher(attempt, event)
        _gone(moment, restarts.take(run, attempt, seat, process, counts_more=higher), event.process)
        _learn_world(moment, attempt, event)
    if attempt.number == run.current:
        run.ended = False
    _tell_joined(moment, event, attempt.number)


def _attempt_for(
    moment: Moment, event: events.ProcessStarted, seat: str | None, make: Factories
) -> Attempt | None:
    """The attempt that a process starts in, by :mod:`.restarts`; None for one of an older launch.

    A spool can bring a start long after it happened, and after a newer launch: that opens no attempt.
    """
    run, slack_us = moment.run, moment.state.config.start_grace_us
    parent = run.processes.get(event.parent) if event.parent else None
    if parent is not None:
        return None if parent.stray else run.attempts.get(parent.attempt, run.attempt)
    newest, start = run.attempt, restarts.Start(event.time_us, run.now_us)
    found = restarts.place(run, event, seat, slack_us)
    if isinstance(found, restarts.Opens):
        return _restart(moment, newest, event, found.why, make)
    taken = found is newest and seat is not None and newest.seats.get(seat, event.process) != event.process
    if taken and restarts.most_are_anew(run, newest, seat or "", start, slack_us):
        why = f"rank {event.rank} ({event.role}) started again, as most had"
        holder = run.processes.get(newest.seats[seat or ""])
        attempt = _restart(moment, newest, event, why, make)
        if holder is None or (holder.started_us or 0) <= event.time_us:
            return attempt
        _move(moment, holder, attempt)  # the one that is heard late had the seat before
    return found


def _restart(
    moment: Moment, before: Attempt, event: events.ProcessStarted, why: str, make: Factories
) -> Attempt:
    """The next attempt, with those who took over seats in the same restart; peers of before are gone."""
    run = moment.run
    attempt = _next_attempt(moment, why, make)
    start, slack_us = restarts.Start(event.time_us, run.now_us), moment.state.config.start_grace_us
    for process in restarts.came_together(run, before, start, slack_us):
        if process.attempt == before.number:
            _move(moment, process, attempt)
    for seat, name in before.seats.items():
        if restarts.leads(before, role_of(seat)):
            _gone(moment, run.processes.get(name), event.process)
    return attempt


def _move(moment: Moment, process: Process, attempt: Attempt) -> None:
    """A process that took over a seat turns out to be of the next attempt, from its first record on."""
    run = moment.run
    before = run.attempts[process.attempt]
    seat = seat_of(process.role, process.rank)
    if seat is not None:
        before.stand_up(seat)
    _change_attempt(run, process, attempt)
    _tell_moved(moment, process, "the run started again, and it was first")


def _change_attempt(run: Run, process: Process, attempt: Attempt) -> None:
    if process.attempt in run.attempts:
        run.attempts[process.attempt].leave(process.number)
    process.attempt, process.number = attempt.number, attempt.join(process.name, run.now_us)
    if process.ended:
        attempt.leave(process.number)
    process.maps.clear()
    attempt.finished = False
    seat = seat_of(process.role, process.rank)
    if seat is not None and not process.child:
        attempt.sit(seat, process.name)


def _gone(moment: Moment, process: Process | None, for_whom: str) -> None:
    """Another one has its seat: nobody waits for it, unless it is heard again."""
    if process is None or process.ended or process.parked:
        return
    process.ended = True
    attempt = moment.run.attempts[process.attempt]
    attempt.leave(process.number)
    text = f"process {process.name} (rank {process.rank}) is gone: {for_whom} started in its place"
    tell(moment, attempt, "process_left", text, process=process.name, rank=process.rank)


def _stray(moment: Moment, event: events.ProcessStarted) -> None:
    """A process of an older launch, heard of only now: what it sends is late, whatever it is."""
    run = moment.run
    number = max(0, run.current - 1)
    process = Process(event.process, number, -1, event.rank, event.role, event.host, event.time_us)
    process.parked = process.stray = True
    run.processes[event.process] = process
    counts(moment, process, event.seq)
    _tell_joined(moment, event, number, " long after it started, and after a newer launch: it is late")


def _tell_joined(moment: Moment, event: events.ProcessStarted, attempt: int, how: str = "") -> None:
    who = (
        f"process {event.process} joined as {event.role} rank {event.rank} on {event.host or 'unknown host'}"
    )
    moment.outbox.fact(
        moment.offset,
        moment.run.name,
        attempt,
        "process_joined",
        moment.now_us,
        who + how,
        process=event.process,
        rank=event.rank,
        detail={"role": event.role, "host": event.host, "parent": event.parent, "pid": event.pid},
    )


def _tell_moved(moment: Moment, process: Process, how: str) -> None:
    tell(
        moment,
        moment.run.attempts[process.attempt],
        "process_joined",
        f"process {process.name} ({process.role} rank {process.rank}) is of this attempt: {how}",
        process=process.name,
        rank=process.rank,
        detail={"role": process.role, "host": process.host},
    )


def _learn_world(moment: Moment, attempt: Attempt, event: events.ProcessStarted) -> None:
    """The world is that of the trainers where there are any, else of whoever is heard first."""
    if event.restart_hint is not None:
        attempt.hints.setdefault(event.role, event.restart_hint)
    known = attempt.world_size is not None
    if event.world_size is None or (
        known and (event.role != restarts.TRAINER or attempt.world_role == event.role)
    ):
        return
    attempt.world_size, attempt.world_role = event.world_size, event.role
    before = moment.run.attempts.get(attempt.number - 1)
    if before is None or before.world_role != event.role or before.world_size == event.world_size:
        return
    tell(
        moment,
        attempt,
        "world_changed",
        f"{before.world_size} to {event.world_size}",
        detail={"before": before.world_size, "after": event.world_size},
    )


def _next_attempt(moment: Moment, why: str, make: Factories) -> Attempt:
    before = moment.run.attempt
    if before.finished:  # what speaks of its silence is over too
        moment.alerts(before, before.detection.end(moment.now_us))
    attempt = open_attempt(moment.state, moment.run, make)
    tell(moment, attempt, "attempt_started", f"attempt {attempt.number} started: {why}")
    return attempt


def rewound(moment: Moment, event: events.RunRewound, process: Process, make: Factories) -> None:
    """The process goes on in the attempt that this rewind opens; its peers follow with their own.

    A peer that is behind takes one rewind after the other, in whatever order the ranks are heard.
    """
    run = moment.run
    later = [a for at, a in sorted(run.attempts.items()) if at > process.attempt and a.rewound_to is not None]
    same = [attempt for attempt in later if attempt.rewound_to == event.step]
    attempt = next(iter(same or later), None)
    if attempt is None:
        world = run.attempt.world_size, run.attempt.world_role, dict(run.attempt.hints)
        attempt = _next_attempt(moment, f"rewound to step {event.step}", make)
        attempt.rewound_to = event.step
        attempt.world_size, attempt.world_role, attempt.hints = world
    _change_attempt(run, process, attempt)
    _tell_moved(moment, process, f"rewound to step {event.step}")


def ended(moment: Moment, process: Process, config: PipelineConfig) -> None:
    process.ended = True
    attempt = moment.run.attempts[process.attempt]
    attempt.leave(process.number)
    tell(
        moment,
        attempt,
        "process_left",
        f"process {process.name} (rank {process.rank}) ended",
        process=process.name,
        rank=process.rank,
    )
    if not finish_if_over(moment, attempt, config):
        advance(moment, attempt, config)


def heartbeat(moment: Moment, event: events.Heartbeat, process: Process) -> None:
    """Moves positions on the axes that the process uses."""
    attempt = moment.run.attempts[process.attempt]
    if event.step is not None:
        process.last_step = event.step
    limit = moment.now_us + moment.state.config.future_skew_us
    for name, position in (("time", event.time_us if event.time_us <= limit else None), ("step", event.step)):
        mark = attempt.axes[name].watermark  # type: ignore[index]
        if position is not None and abs(position) < POSITION_LIMIT and mark.uses(process.number):
            mark.advance(process.number, position, position, moment.now_us)
    advance(moment, attempt, moment.state.config)


def checkpoint(moment: Moment, event: events.CheckpointSaved, process: Process) -> None:
    saved = events.with_bounded_manifest(event.checkpoint)  # requests and leases must fit into a record
    view = CheckpointView(saved, process.attempt, moment.now_us)
    _request(moment, moment.run.triggers.checkpoint(view))


def _request(moment: Moment, picked: list[tuple[TriggerReason, CheckpointView]]) -> None:
    for reason, view in picked:
        for suite in moment.state.config.suites:
            made = moment.outbox.claim(moment.offset)
            request = events.EvalRequested(
                id=str(made),
                request=configuration.request_id(view.checkpoint, suite),
                run=moment.run.name,
                attempt=view.attempt,
                suite=suite,
                checkpoint=view.checkpoint,
                reason=reason,
                time_us=moment.now_us,
            )
            moment.outbox.put("evals", moment.run.name, events.encode(request), made)


# --- time --------------------------------------------------------------------------------------------------


def advance(moment: Moment, attempt: Attempt, config: PipelineConfig) -> None:
    """Closes what the watermarks allow now."""
    closings = []
    for name in AXES:
        axis = attempt.axes[name]
        value = axis.watermark.move(moment.now_us)
        if value is not None and value // axis.plan.pane > axis.closed:
            presence = attempt.presence(axis, moment.now_us, config.start_grace_us)
            closings.append(Closing(name, value // axis.plan.pane, presence))
    if closings:
        close(moment, attempt, closings)


def finish_if_over(moment: Moment, attempt: Attempt, config: PipelineConfig) -> bool:
    """An attempt is over when each process ended or fell idle, and no rank is awaited any more."""
    run = moment.run
    if attempt.finished or not attempt.processes or attempt.awaited(moment.now_us, config.start_grace_us):
        return attempt.finished
    if _someone_lives(run, attempt):
        return False
    finish(moment, attempt, config)
    return True


def _someone_lives(run: Run, attempt: Attempt) -> bool:
    """Whether a process of the attempt neither ended nor fell idle; looks first at who did so before."""
    count = len(attempt.processes)
    for at in range(count):
        number = (attempt.lively + at) % count
        process = None if attempt.left[number] else run.processes.get(attempt.processes[number])
        if process is not None and not process.idle and process.attempt == attempt.number:
            attempt.lively = number
            return True
    return False


def finish(moment: Moment, attempt: Attempt, config: PipelineConfig) -> None:
    """Puts out all windows, resolves what is open; ends the run with its current attempt."""
    attempt.finished = True
    flush(moment, attempt, config)
    tell_late(moment, attempt)
    moment.alerts(attempt, attempt.detection.end(moment.now_us))
    if attempt.number == moment.run.current and not moment.run.ended:
        moment.run.ended = True
        _request(moment, moment.run.triggers.ended(moment.now_us))
        silent = fell_silent(moment.run, attempt)
        text = "no process gave a sign any more" if silent else "every process ended"
        tell(moment, attempt, "run_ended", f"run ended: {text}", detail={"silent": silent})


def fell_silent(run: Run, attempt: Attempt) -> bool:
    """Whether a process never said that it ended. A child may be killed at any time: nobody waits for it."""
    pairs = zip(attempt.processes, attempt.left, strict=True)
    return any(not (left or ((p := run.processes.get(name)) and p.child)) for name, left in pairs)


def flush(moment: Moment, attempt: Attempt, config: PipelineConfig) -> None:
    closings = []
    for name in AXES:
        axis = attempt.axes[name]
        highest = axis.open.highest()
        boundary = axis.closed if highest is None else max(axis.closed, highest + 1)
        closings.append(Closing(name, boundary, attempt.presence(axis, moment.now_us, config.start_grace_us)))
    close(moment, attempt, closings, flush=True)


def tell_late(moment: Moment, attempt: Attempt) -> None:
    """One fact per metric and axis for the late samples since the last time."""
    told = sorted(attempt.late.items())
    attempt.late = {}
    for (axis, metric), (count, low, high) in told[: MAX_FACTS * 4]:
        tell(
            moment,
            attempt,
            "late",
            f"{metric or 'refused names'}: {count} samples came after their {axis} panes were closed; "
            "they are stored and in no window",
            metric=metric,
            axis=axis,
            start=low,
            end=high + 1,
            count=count,
        )
    if len(told) > MAX_FACTS * 4:
        rest = told[MAX_FACTS * 4 :]
        count = sum(told[0] for _, told in rest)
        tell(moment, attempt, "late", f"{len(rest)} further metrics: {count} samples were late", count=count)


# --- configuration -----------------------------------------------------------------------------------------


def read_config(event: events.ConfigChanged, make: Factories) -> PipelineConfig:
    """The configuration of an event. Raises SettingsError when it cannot be used."""
    try:
        config = msgspec.json.decode(bytes(event.body), type=PipelineConfig)
    except msgspec.DecodeError as error:
        raise SettingsError("config", event.digest, f"{error}; the configuration before stays") from error
    _check_numbers(config)
    for spec in config.windows:
        if spec.size < 0 or spec.every <= 0 or spec.size % spec.every:
            raise SettingsError(
                "windows", spec, "size must be a multiple of every, or 0: the whole run so far"
            )
        if spec.axis == "time" and plan("time", config.windows).pane < 1_000:
            raise SettingsError("windows", spec, "time windows finer than 1 ms are not possible")
        if max(spec.size, spec.every) // plan(spec.axis, config.windows).pane > 100_000:
            raise SettingsError("windows", spec, "a window may span at most 100,000 panes: use a coarser hop")
    growing = [spec.axis for spec in config.windows if not spec.size]
    if len(growing) > len(set(growing)):
        raise SettingsError("windows", growing, "an axis can have one window of the whole run: keep one")
    derivations.check(config)
    extensions.check_all(config)
    make.detection(config)
    make.triggers(config)
    return config


def _check_numbers(config: PipelineConfig) -> None:
    """Durations, sizes and intervals with which integers of 64 bits do."""
    for name, value in msgspec.structs.asdict(config).items():
        if name.endswith("_us") and not 0 <= value <= MAX_US:
            raise SettingsError(name, value, f"give 0 to {MAX_US} microseconds")
    for spec in config.windows:
        if not 0 <= spec.size <= MAX_SIZE or not 0 < spec.every <= MAX_SIZE:
            raise SettingsError("windows", spec, f"size must be 0 to {MAX_SIZE}, every 1 to {MAX_SIZE}")
    for rule in config.rules:
        if not 0 <= rule.for_us <= MAX_US or not 0 <= rule.for_steps <= MAX_SIZE:
            raise SettingsError("rules", rule, "the duration is negative or too long")
    when = config.triggers
    for name, interval in (("epochs", when.epochs), ("steps", when.steps), ("every_us", when.every_us)):
        if interval is not None and not 0 < interval <= MAX_SIZE:
            raise SettingsError(f"triggers.{name}", interval, f"give more than 0, at most {MAX_SIZE}")


def apply_config(
    state: PartitionState, outbox: Outbox, offset: int, event: events.ConfigChanged, make: Factories
) -> None:
    """From here on the new configuration holds; axes whose windows changed start fresh panes."""
    if event.digest == state.config_digest and bytes(event.body) == state.config_body:
        state.config_refused = None
        return  # it holds already
    config = read_config(event, make)
    state.config_refused = None
    before = state.config
    state.config, state.config_digest, state.config_body = config, event.digest, bytes(event.body)
    for run in state.runs.values():
        moment = Moment(state, outbox, offset, run, run.now_us)
        for number in sorted(run.attempts):
            _reconfigure(moment, run.attempts[number], before, config, make)
        if (before.triggers, before.suites) != (config.triggers, config.suites):
            run.triggers = make.triggers(config, run.triggers.dump())
        for process in run.processes.values():
            process.maps.clear()
        if not run.ended:
            text = f"configuration {event.digest} holds from here on"
            tell(moment, run.attempt, "config", text, detail={"digest": event.digest})


def _reconfigure(
    moment: Moment, attempt: Attempt, before: PipelineConfig, config: PipelineConfig, make: Factories
) -> None:
    changed = [name for name in AXES if plan(name, before.windows) != plan(name, config.windows)]
    for name in changed:
        old = attempt.axes[name]
        highest = old.open.highest()
        boundary = old.closed if highest is None else max(old.closed, highest + 1)
        presence = attempt.presence(old, moment.now_us, before.start_grace_us)
        close(moment, attempt, [Closing(name, boundary, presence)], flush=True)
        attempt.axes[name] = _fresh_axis(old, name, config)
    for axis in attempt.axes.values():
        axis.watermark.lateness_us = config.allowed_lateness_us
        axis.memories = derived.kept(axis.memories, before.derived, config.derived)
    _reset_extras(attempt, before, config)
    attempt.derivations = derived.Derivations(config)
    attempt.derivations.follow_all(attempt.series)
    if (before.detectors, before.rules) != (config.detectors, config.rules):
        moment.alerts(attempt, attempt.detection.end(moment.now_us))
        attempt.detection = make.detection(config)
        attempt.watched = attempt.detection.per_rank()


def _reset_extras(attempt: Attempt, before: PipelineConfig, config: PipelineConfig) -> None:
    """Custom aggregates that are declared while panes are open begin with the first pane after those."""
    if (before.aggregates, before.weighted_quantiles) == (config.aggregates, config.weighted_quantiles):
        return
    attempt.extras, attempt.faults_told = Extras(config), []
    for axis in attempt.axes.values():
        highest = axis.open.highest()
        axis.held = Held()
        if len(attempt.series):
            axis.held.begin = axis.closed if highest is None else max(axis.closed, highest + 1)


def _fresh_axis(old: AxisState, name: configuration.Axis, config: PipelineConfig) -> AxisState:
    """New panes under the old watermark; windows of a spec that stays are not put out twice."""
    fresh = AxisState(plan(name, config.windows), old.watermark)
    out = dict(zip(old.plan.specs, old.out, strict=True))
    fresh.out = [out.get(spec) for spec in fresh.plan.specs]
    fresh.so_far = {spec: old.so_far.get(spec, new) for spec, new in fresh.so_far.items()}
    fresh.held.grown = old.held.grown
    if old.held.begin is not None:
        fresh.held.begin = old.held.begin * old.plan.pane // fresh.plan.pane
    value = old.watermark.value
    if value is not None:
        fresh.closed = value // fresh.plan.pane
    return fresh


def tell(moment: Moment, attempt: Attempt, what: events.FactKind, text: str, **fields: object) -> None:
    moment.outbox.fact(moment.offset, moment.run.name, attempt.number, what, moment.now_us, text, **fields)
