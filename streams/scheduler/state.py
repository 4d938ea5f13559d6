"""What the scheduler remembers, as structs that are dumped as MessagePack.

Bounds (reaching one is counted under the name in brackets):

- open requests: 2,000; a further one is answered at once with a failure that says so (``refused_full``);
- runs that wait for one request: 1,000, and 20,000 for all together; a further one is answered at once as
  well (``refused_askers``);
- accepted results kept for runs that ask later: the newest 1,000; what is older is evaluated anew when
  asked for;
- evaluators: 1,000; a further one gets no work until one has left (``refused_evaluators``);
- runs that are known to have the answer of a request: the newest 1,000; an older one that asks again is told
  again;
- sources of requests (topic UUID and partition) whose last id is known: the 1,000 that asked last;
- suites in the ledger: 1,000, further ones under "(other)".
"""

from __future__ import annotations

import msgspec

from driftline.config import SchedulerConfig
from driftline.events import Checkpoint, EvalOutcome, SuiteRef

OPEN_MAX = 2_000
ASKERS_MAX = 1_000
ASKERS_ALL_MAX = 20_000
TOLD_MAX = 1_000
SOURCES_MAX = 1_000
CLOSED_MAX = 1_000
EVALUATORS_MAX = 1_000
LEDGER_MAX = 1_000
FORMAT = 1


class Asker(msgspec.Struct, frozen=True):
    """A run that wants the result, and the checkpoint as that run knows it."""

    run: str
    attempt: int
    reason: str
    checkpoint: Checkpoint
    requested_us: int


class ActiveLease(msgspec.Struct):
    """An evaluator at work."""

    lease: str
    evaluator: str
    expires_us: int


class Request(msgspec.Struct):
    """An evaluation that has no result yet."""

    request: str
    suite: SuiteRef
    askers: list[Asker]
    requested_us: int
    order: int
    """Offset at which it was first asked for."""
    tries: int = 0
    returned: int = 0
    """Leases that came back because an evaluator stopped in order; these are no tries."""
    active: ActiveLease | None = None
    avoid: str | None = None
    """The evaluator that failed last: another one is preferred until ``avoid_until_us``."""
    avoid_until_us: int = 0
    told: list[str] = []
    """Runs that were told an earlier failure of this request: they asked once and have their answer."""


class Closed(msgspec.Struct):
    """A request with its accepted result."""

    suite: SuiteRef
    evaluator: str
    lease: str
    tries: int
    outcome: EvalOutcome
    runs: list[str]
    """Runs that have it."""


class Evaluator(msgspec.Struct):
    """An evaluator that was heard of."""

    seen_us: int
    suites: list[str]
    lease: str | None = None
    """The lease that we gave it and that still holds."""
    says: str | None = None
    """The lease that it says it works on: it may be one that has run out."""
    idle_since_us: int = 0


class Spent(msgspec.Struct):
    """The cost ledger of one suite: what was spent on accepted results, and what on others."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    tokens: int = 0
    wasted_seconds: float = 0.0
    """On results that were not accepted: failures that were retried, and late ones."""


class State(msgspec.Struct):
    """The scheduler of one ``evals`` partition."""

    topic_uuid: str
    partition: int
    format: int = FORMAT
    now_us: int = 0
    tick_us: int | None = None
    config: SchedulerConfig = SchedulerConfig()
    config_digest: str | None = None
    config_refused: str | None = None
    """Why the last configuration of the log could not be used."""
    requests: dict[str, Request] = {}
    closed: dict[str, Closed] = {}
    evaluators: dict[str, Evaluator] = {}
    asked: dict[str, list[int]] = {}
    """Highest (offset, ordinal) of the requests' output ids by ``topic uuid/partition``: what a worker sends
    again after a crash is dropped."""
    ledger: dict[str, Spent] = {}
    counters: dict[str, int] = {}

    def count(self, name: str, by: int = 1) -> None:
        """Counts something under a name."""
        self.counters[name] = self.counters.get(name, 0) + by

    def spent(self, suite: str) -> Spent:
        """The ledger's line for a suite."""
        if suite not in self.ledger and len(self.ledger) >= LEDGER_MAX:
            suite = "(other)"
        return self.ledger.setdefault(suite, Spent())
