"""The scheduler as a pure core over ``evals``; see the package for its rules."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from driftline import config, events, records
from driftline.errors import BadData, BadRecord
from driftline.records import Output, OutputId, Record
from driftline.streams.scheduler import leases
from driftline.streams.scheduler.outbox import Outbox
from driftline.streams.scheduler.state import (
    ASKERS_ALL_MAX,
    ASKERS_MAX,
    EVALUATORS_MAX,
    FORMAT,
    OPEN_MAX,
    SOURCES_MAX,
    Asker,
    Closed,
    Evaluator,
    Request,
    State,
)
from driftline.topics import TopicName

_AHEAD_US = 2_000_000
"""A record may move "now" at most so far past the last tick (brokers that ignore LogAppendTime)."""
REASON_MAX = 2_000
_DECODER = msgspec.msgpack.Decoder(State)
_CONFIG = msgspec.json.Decoder(config.SchedulerConfig)


class Scheduler:
    """Implements ``streams.core.Core`` over the one partition of ``evals``."""

    source: TopicName = "evals"

    def fresh(self, topic_uuid: str, partition: int) -> State:
        """State before the first record."""
        return State(topic_uuid=topic_uuid, partition=partition)

    def prime(self, state: State, record: Record) -> None:
        """The first configuration of the log holds from its beginning."""
        event = records.decode(record.value)
        if isinstance(event, events.ConfigChanged):
            with contextlib.suppress(BadRecord):  # refused, and told, when the record comes by
                _configure(state, event)

    def step(self, state: State, records: Sequence[Record]) -> list[Output]:
        """Applies records in offset order; outputs in order."""
        return [output for record in records for output in _apply(state, record)]

    def gap(self, state: State, start: int, end: int) -> list[Output]:
        """Offsets [start, end) are lost, with the requests and results in them; leases that were finished
        there run out and are tried again."""
        state.count("records_lost", end - start)
        out = Outbox(state.topic_uuid, state.partition, start)
        out.dead(
            None,
            f"offsets {start} to {end - 1} are no longer in the log: what they said is lost",
            state.now_us,
        )
        return out.sent

    def config_digest(self, state: State) -> str | None:
        """Digest of the configuration that the log last set."""
        return state.config_digest

    def notices(self, state: State) -> list[str]:
        """A configuration that was refused, and suites that nobody who is there can run."""
        refused = [] if state.config_refused is None else [state.config_refused]
        return refused + leases.unrunnable(state)

    def dump(self, state: State) -> bytes:
        """The state as MessagePack."""
        return msgspec.msgpack.encode(state)

    def load(self, data: bytes) -> State:
        """Reads what :meth:`dump` wrote. Raises BadData if it is something else or of a later version."""
        try:
            state = _DECODER.decode(data)
        except msgspec.MsgspecError as error:
            raise BadData(f"not a state of the scheduler: {error}") from error
        if state.format > FORMAT:
            raise BadData(f"the scheduler's state has format {state.format}; update driftline to read it")
        return state


def _apply(state: State, record: Record) -> list[Output]:
    out = Outbox(state.topic_uuid, state.partition, record.offset)
    time_us = record.time_ms * 1000
    try:
        event = records.decode(record.value)
        if isinstance(event, events.Tick):
            _tick(state, time_us, out)
        else:
            _advance(state, time_us)
            _handle(state, event, out)
    except BadRecord as error:
        state.count("dead_letters")
        out.dead(record.value, str(error), state.now_us)
    leases.assign(state, out)
    return out.sent


def _handle(state: State, event: object, out: Outbox) -> None:
    match event:
        case events.EvalRequested():
            _requested(state, event, out)
        case events.EvaluatorPresent():
            _present(state, event)
        case events.EvaluatorGone():
            leases.depart(state, event.evaluator, out, in_order=True)
        case events.EvalProgress():
            _progress(state, event)
        case events.EvalResult():
            leases.result(state, event, out)
        case events.ConfigChanged():
            _configure(state, event)
        case _:
            state.count("skipped")


def _advance(state: State, time_us: int) -> None:
    """Now is the largest record time so far, held near the ticks."""
    if state.tick_us is not None:
        time_us = min(time_us, state.tick_us + _AHEAD_US)
    state.now_us = max(state.now_us, time_us)


def _tick(state: State, time_us: int, out: Outbox) -> None:
    """Time moved on. Nobody watched in a hole of the ticks: leases and evaluators get that time again."""
    before_us, state.now_us = state.now_us, max(state.now_us, time_us)
    hole_us = 0 if state.tick_us is None else state.now_us - state.tick_us
    state.tick_us = state.now_us
    if hole_us > state.config.hole_us:
        state.count("holes")
        assert state.now_us >= before_us
        for evaluator in state.evaluators.values():
            evaluator.seen_us = min(evaluator.seen_us + hole_us, state.now_us)
        for request in state.requests.values():
            if request.active is not None:
                request.active.expires_us += hole_us
    leases.expire(state, out)


def _requested(state: State, event: events.EvalRequested, out: Outbox) -> None:
    if _seen_before(state, event.id):
        state.count("requests_repeated")
        return
    state.count("requests")
    asker = Asker(event.run, event.attempt, event.reason, event.checkpoint, state.now_us)
    closed = state.closed.get(event.request)
    if closed is not None and event.run in closed.runs:
        state.count("requests_repeated")
        return
    if closed is not None and closed.outcome.status == "done":
        state.count("cached")
        leases.tell(state, event.request, closed, asker, out)
        return
    request = state.requests.get(event.request)
    if request is None:
        _open(state, event, asker, out)
    elif event.run in request.told or any(known.run == event.run for known in request.askers):
        state.count("requests_repeated")
    elif len(request.askers) >= ASKERS_MAX or _askers(state) >= ASKERS_ALL_MAX:
        state.count("refused_askers")
        why = f"{len(request.askers)} runs wait for this evaluation already, {_askers(state)} for any"
        _answer_at_once(state, event, asker, why, out)
    else:
        request.askers.append(asker)


def _open(state: State, event: events.EvalRequested, asker: Asker, out: Outbox) -> None:
    if len(state.requests) >= OPEN_MAX or _askers(state) >= ASKERS_ALL_MAX:
        state.count("refused_full")
        why = f"{len(state.requests)} evaluations wait already: start more evaluators or ask for fewer"
        _answer_at_once(state, event, asker, why, out)
        return
    # A failure that another run was told is not this run's answer: its files may be there.
    failed = state.closed.pop(event.request, None)
    told = [] if failed is None else failed.runs
    state.requests[event.request] = Request(
        event.request, event.suite, [asker], state.now_us, out.offset, told=told
    )


def _askers(state: State) -> int:
    return sum(len(request.askers) for request in state.requests.values())


def _answer_at_once(state: State, event: events.EvalRequested, asker: Asker, why: str, out: Outbox) -> None:
    """Nothing is forgotten: what is beyond a bound fails, with the reason."""
    full = Closed(event.suite, "", "", 0, events.EvalOutcome(status="failed", reason=why), [])
    leases.tell(state, event.request, full, asker, out)


def _seen_before(state: State, id_: str) -> bool:
    """Whether a worker sent this again after a crash: output ids of one source only grow."""
    try:
        source = OutputId.parse(id_)
    except BadRecord:
        return False  # asked for by hand
    key, at = f"{source.topic_uuid}/{source.partition}", [source.offset, source.ordinal]
    if key in state.asked and at <= state.asked[key]:
        return True
    state.asked.pop(key, None)  # who asked last comes last
    state.asked[key] = at
    while len(state.asked) > SOURCES_MAX:
        del state.asked[next(iter(state.asked))]
    return False


def _present(state: State, event: events.EvaluatorPresent) -> None:
    known = state.evaluators.get(event.evaluator)
    if known is None:
        if len(state.evaluators) >= EVALUATORS_MAX:
            state.count("refused_evaluators")
            return
        known = state.evaluators[event.evaluator] = Evaluator(
            state.now_us, event.suites, idle_since_us=state.now_us
        )
    known.seen_us = state.now_us
    known.suites = event.suites
    known.says = event.lease


def _progress(state: State, event: events.EvalProgress) -> None:
    evaluator = state.evaluators.get(event.evaluator)
    if evaluator is not None:
        evaluator.seen_us = state.now_us
    request = state.requests.get(event.request)
    if request is None or request.active is None or request.active.lease != event.lease:
        state.count("progress_stale")
        return
    request.active.expires_us = state.now_us + state.config.lease_us


def _configure(state: State, event: events.ConfigChanged) -> None:
    try:
        state.config = _CONFIG.decode(event.body)
        state.config_refused = None
    except msgspec.MsgspecError as error:
        state.config_refused = f"configuration {event.digest} is refused: {error}"[:REASON_MAX]
        raise BadRecord(f"not a configuration of the scheduler: {error}") from error
    state.config_digest = event.digest
