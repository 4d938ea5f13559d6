"""A scheduler with a log: each call appends one record and answers with the decoded outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from driftline import config, events, records
from driftline.records import Output, Record
from driftline.streams.scheduler import Scheduler, State

UUID = "topic"
SUITE = events.SuiteRef(name="sums", target="suites:sums")


class Said(NamedTuple):
    """An output, decoded."""

    topic: str
    run: str
    event: Any


class Desk:
    """Sends events to a scheduler, one second apart unless told otherwise."""

    def __init__(self, **changes: int) -> None:
        self.core = Scheduler()
        self.state: State = self.core.fresh(UUID, 0)
        self.log: list[Record] = []
        self.outputs: list[Output] = []
        self.now_s = 1_000
        self.asked = 0
        if changes:
            body = config.encode(config.SchedulerConfig(**changes))
            self.send(
                events.ConfigChanged(worker="w", time_us=0, digest=config.digest(body), body=_raw(body))
            )

    def send(self, event: events.Event | bytes | None) -> list[Said]:
        value = event if event is None or isinstance(event, bytes) else events.encode(event)
        record = Record(0, len(self.log), self.now_s * 1000, value)
        self.log.append(record)
        outputs = self.core.step(self.state, [record])
        self.outputs += outputs
        return [Said(one.topic, one.run, records.decode(one.value)) for one in outputs]

    def wait(self, seconds: int, *present: str) -> list[Said]:
        """Ticks once a second; evaluators named in ``present`` announce themselves."""
        said = []
        for _ in range(seconds):
            self.now_s += 1
            for name in present:
                evaluator = self.state.evaluators.get(name)
                said += self.present(name, lease=evaluator.lease if evaluator else None)
            said += self.send(events.Tick(worker="w", time_us=self.now_s * 1_000_000))
        return said

    def hole(self, seconds: int) -> list[Said]:
        """No tick for a while, then one."""
        self.now_s += seconds
        return self.send(events.Tick(worker="w", time_us=self.now_s * 1_000_000))

    def ask(self, request: str, run: str = "run1", *, suite: str = "sums", **changes: Any) -> list[Said]:
        self.asked += 1
        checkpoint = events.Checkpoint(digest=request, uri=f"/{run}/{request}", step=7)
        given = {
            "id": f"telemetry/0/{self.asked}/0",
            "request": request,
            "run": run,
            "attempt": 0,
            "suite": events.SuiteRef(name=suite, target="suites:sums"),
            "checkpoint": checkpoint,
            "reason": "steps",
            "time_us": 0,
        }
        return self.send(events.EvalRequested(**{**given, **changes}))

    def present(
        self, evaluator: str, *, lease: str | None = None, suites: tuple[str, ...] = ()
    ) -> list[Said]:
        return self.send(
            events.EvaluatorPresent(evaluator=evaluator, time_us=0, suites=list(suites), lease=lease)
        )

    def gone(self, evaluator: str) -> list[Said]:
        return self.send(events.EvaluatorGone(evaluator=evaluator, time_us=0))

    def progress(self, lease: events.Lease) -> list[Said]:
        return self.send(
            events.EvalProgress(
                evaluator=lease.evaluator,
                lease=lease.lease,
                request=lease.request,
                time_us=0,
                done=1,
                total=2,
            )
        )

    def result(self, lease: events.Lease, status: Any = "done", **changes: Any) -> list[Said]:
        cost = events.Cost(seconds=2.0, tokens=10)
        outcome = events.EvalOutcome(
            status=status, reason="" if status == "done" else f"it {status}", cost=cost
        )
        given = {"evaluator": lease.evaluator, "lease": lease.lease, "request": lease.request, "time_us": 0}
        return self.send(events.EvalResult(outcome=outcome, **{**given, **changes}))


def _raw(body: bytes) -> Any:
    import msgspec

    return msgspec.Raw(body)


@pytest.fixture
def desk():
    """Makes a desk with a changed configuration."""
    return Desk


@pytest.fixture
def leases():
    """The leases among outputs, as (request, evaluator)."""

    def pick(said: list[Said]) -> list[tuple[str, str]]:
        return [
            (one.event.request, one.event.evaluator) for one in said if isinstance(one.event, events.Lease)
        ]

    return pick


@pytest.fixture
def lease_of():
    """The one lease among outputs."""

    def pick(said: list[Said]) -> events.Lease:
        (lease,) = [one.event for one in said if isinstance(one.event, events.Lease)]
        return lease

    return pick


@pytest.fixture
def accepted():
    """The accepted results among outputs, as (run, request, status)."""

    def pick(said: list[Said]) -> list[tuple[str, str, str]]:
        return [
            (one.run, one.event.request, one.event.outcome.status)
            for one in said
            if isinstance(one.event, events.EvalAccepted)
        ]

    return pick
