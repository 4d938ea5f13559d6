"""Who works on what: leases given, renewed, lost; requests answered.

A request is open until it has its one answer: the first complete result of whatever lease, or, when its tries
are used up, the last failure. Functions here change the state and put what follows into the outbox.
"""

from __future__ import annotations

from driftline.events import EvalOutcome, EvalResult
from driftline.streams.scheduler.outbox import Outbox
from driftline.streams.scheduler.state import (
    CLOSED_MAX,
    TOLD_MAX,
    ActiveLease,
    Asker,
    Closed,
    Evaluator,
    Request,
    State,
)

RETURNS_MAX = 10
"""Leases that evaluators may give back by stopping in order, before that counts as a failure."""


def assign(state: State, out: Outbox) -> None:
    """Gives waiting requests to idle evaluators, best request first, while there are both."""
    idle = [
        name
        for name, evaluator in state.evaluators.items()
        if evaluator.lease is None
        and evaluator.says is None
        and state.now_us - evaluator.seen_us <= state.config.present_us
    ]
    if not idle:
        return
    idle.sort(key=lambda name: (state.evaluators[name].idle_since_us, name))
    waiting = [request for request in state.requests.values() if request.active is None]
    for request in sorted(waiting, key=lambda request: _rank(state, request)):
        chosen = _choose(state, request, idle)
        if chosen is None:
            continue
        idle.remove(chosen)
        _give(state, request, chosen, out)
        if not idle:
            return


def _rank(state: State, request: Request) -> tuple[int, int]:
    """Requests that starve first, the oldest of them before; then the newest."""
    if state.now_us - request.requested_us > state.config.starve_us:
        return 0, request.order
    return 1, -request.order


def _choose(state: State, request: Request, idle: list[str]) -> str | None:
    """The evaluator that has been idle longest and can run the suite; not the one that just failed, as long
    as another present one can, and at most for one lease's time."""
    able = [name for name in idle if _can(state.evaluators[name], request)]
    if request.avoid is None or state.now_us >= request.avoid_until_us:
        return able[0] if able else None
    for name in able:
        if name != request.avoid:
            return name
    another = any(
        name != request.avoid
        and _can(evaluator, request)
        and state.now_us - evaluator.seen_us <= state.config.present_us
        for name, evaluator in state.evaluators.items()
    )
    return None if another or not able else able[0]


def _can(evaluator: Evaluator, request: Request) -> bool:
    return not evaluator.suites or request.suite.name in evaluator.suites


def unrunnable(state: State) -> list[str]:
    """A sentence for each suite that waits while nobody who is present can run it."""
    present = [
        evaluator
        for evaluator in state.evaluators.values()
        if state.now_us - evaluator.seen_us <= state.config.present_us
    ]
    waiting: set[str] = set()
    for request in state.requests.values():
        if request.active is None and not any(_can(evaluator, request) for evaluator in present):
            waiting.add(request.suite.name)
    who = "no evaluator that is present runs it" if present else "no evaluator is present"
    return [
        f"evaluations of suite {suite} wait: {who}; start one that does (driftline evaluator)"
        for suite in sorted(waiting)
    ]


def _give(state: State, request: Request, name: str, out: Outbox) -> None:
    request.tries += 1
    lease = f"{request.request}.{request.tries + request.returned}.{out.offset}"
    request.active = ActiveLease(lease, name, state.now_us + state.config.lease_us)
    state.evaluators[name].lease = lease
    state.count("leases")
    out.lease(request, request.active)


def expire(state: State, out: Outbox) -> None:
    """At a tick: evaluators that went silent leave, leases without progress end."""
    for name, evaluator in list(state.evaluators.items()):
        if state.now_us - evaluator.seen_us > state.config.present_us:
            depart(state, name, out, in_order=False)
    for request in list(state.requests.values()):
        active = request.active
        if active is not None and state.now_us > active.expires_us:
            seconds = state.config.lease_us / 1_000_000
            lose(state, request, f"{active.evaluator} made no progress for {seconds:g} s", out)


def depart(state: State, name: str, out: Outbox, *, in_order: bool) -> None:
    """An evaluator is gone; what it worked on goes back."""
    evaluator = state.evaluators.pop(name, None)
    if evaluator is None or evaluator.lease is None:
        return
    request = state.requests.get(evaluator.lease.rsplit(".", 2)[0])
    if request is None or request.active is None or request.active.lease != evaluator.lease:
        return
    if in_order and request.returned < RETURNS_MAX:
        state.count("leases_returned")
        request.returned += 1
        request.tries -= 1
        request.active = None
        return
    why = "stopped" if in_order else f"was silent for {state.config.present_us / 1_000_000:g} s"
    lose(state, request, f"{name} {why}", out)


def lose(state: State, request: Request, why: str, out: Outbox) -> None:
    """A lease ended without a result."""
    state.count("leases_lost")
    fail(state, request, EvalOutcome(status="failed", reason=f"lease lost: {why}"), out)


def fail(state: State, request: Request, outcome: EvalOutcome, out: Outbox) -> None:
    """The active lease did not give a complete result: try again, or answer with it."""
    active = request.active
    assert active is not None
    if outcome.status == "gone" or request.tries > state.config.retries:
        answer(state, request, active.evaluator, active.lease, outcome, out)
        return
    state.count("retries")
    _free(state, active)
    state.spent(request.suite.name).wasted_seconds += outcome.cost.seconds
    request.active = None
    request.avoid, request.avoid_until_us = active.evaluator, state.now_us + state.config.lease_us


def result(state: State, event: EvalResult, out: Outbox) -> None:
    """A raw result: accepted if it is the first complete one, or the failure of the lease that holds."""
    evaluator = state.evaluators.get(event.evaluator)
    if evaluator is not None:
        evaluator.seen_us = state.now_us
        if evaluator.says == event.lease:
            evaluator.says = None
        if evaluator.lease is None:
            evaluator.idle_since_us = state.now_us
    request = state.requests.get(event.request)
    if request is None:
        known = state.closed.get(event.request)
        state.count("results_late" if known is not None else "results_unknown")
        if known is not None:
            state.spent(known.suite.name).wasted_seconds += event.outcome.cost.seconds
        return
    if event.outcome.status == "done":
        answer(state, request, event.evaluator, event.lease, event.outcome, out)
    elif request.active is not None and request.active.lease == event.lease:
        fail(state, request, event.outcome, out)
    else:
        state.count("failures_late")
        state.spent(request.suite.name).wasted_seconds += event.outcome.cost.seconds


def answer(
    state: State, request: Request, evaluator: str, lease: str, outcome: EvalOutcome, out: Outbox
) -> None:
    """The one answer of a request, to all that asked; only complete results are kept for later askers."""
    if request.active is not None:
        _free(state, request.active)
    del state.requests[request.request]
    done = outcome.status == "done"
    state.count("accepted" if done else "failed")
    spent = state.spent(request.suite.name)
    spent.done += done
    spent.failed += not done
    spent.seconds += outcome.cost.seconds
    spent.wait_seconds += outcome.cost.wait_seconds
    spent.tokens = min(spent.tokens + outcome.cost.tokens, 2**63 - 1)
    closed = Closed(request.suite, evaluator, lease, request.tries, outcome, request.told)
    state.closed[request.request] = closed
    while len(state.closed) > CLOSED_MAX:
        del state.closed[next(iter(state.closed))]
    out.closed(request, lease, outcome.status)
    for asker in request.askers:
        tell(state, request.request, closed, asker, out)


def tell(state: State, request: str, closed: Closed, asker: Asker, out: Outbox) -> None:
    """Copies an accepted result to the log of a run, once."""
    closed.runs.append(asker.run)
    del closed.runs[:-TOLD_MAX]
    out.accepted(
        asker,
        request=request,
        suite=closed.suite,
        evaluator=closed.evaluator,
        lease=closed.lease,
        tries=closed.tries,
        now_us=state.now_us,
        outcome=closed.outcome,
    )


def _free(state: State, active: ActiveLease) -> None:
    """The evaluator no longer holds the lease; whether it still works on it, it says itself."""
    evaluator = state.evaluators.get(active.evaluator)
    if evaluator is not None and evaluator.lease == active.lease:
        evaluator.lease = None
        evaluator.idle_since_us = state.now_us
