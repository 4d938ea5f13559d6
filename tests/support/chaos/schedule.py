"""Which faults, in which order: a function of the plan alone, so that a seed strikes the same ways again."""

from __future__ import annotations

import random
from typing import NamedTuple

from .plan import SESSION_S, Kind, Plan, Role, Target

EACH_ROLE: dict[Role, float] = {"streams": 4, "sink": 3, "evaluator": 2, "scheduler": 2}
"""How often a role is struck, against each other."""
EACH_KIND: dict[Kind, float] = {"kill": 3, "pause": 1, "restart": 1}
BROKERS = 0.35
"""Share of the faults that strike a broker, where there are several."""
OF_BROKER: dict[Kind, float] = {"kill": 2, "pause": 1, "move": 1}
HASTE = 0.3
"""Share of the faults that do not wait until all works again."""
OUTLAST = 0.3
"""Share of the killed that stay away for longer than a session, so that others take over."""
SKIP = 0.5
"""Share of the stream workers that come back to a group whose offset was moved to the end of the log."""


class Fault(NamedTuple):
    """One fault."""

    role: Target
    number: int
    """Which process of the role, which broker."""
    kind: Kind
    haste_s: float | None
    """Strikes so long after the last fault, whatever recovers then; None: when all works."""
    away_s: float
    """How long a killed one stays away, and a paused one paused."""
    skips: bool
    """The group's offset is moved to the end of the log before the worker comes back, if it is the only one:
    all records in between have to be read from the log itself."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.role}"


def faults(plan: Plan) -> list[Fault]:
    """The first one always makes a stream worker read what its group skipped."""
    chance = random.Random(plan.seed)
    found = [Fault("streams", 0, "kill", None, SESSION_S + 1, True)]
    for at in range(1, plan.kills):
        if plan.cluster is not None and chance.random() < BROKERS:
            found.append(_of_broker(chance, len(plan.cluster.nodes)))
        else:
            found.append(_one(chance, second=plan.second_from <= at))
    return found[: plan.kills]


def _of_broker(chance: random.Random, brokers: int) -> Fault:
    """Away for up to twice a session of the cluster, so that others lead or that nobody noticed."""
    kind: Kind = chance.choices(list(OF_BROKER), list(OF_BROKER.values()))[0]
    haste_s = chance.uniform(0.0, 3.0) if chance.random() < HASTE else None
    return Fault("broker", chance.randrange(brokers), kind, haste_s, chance.uniform(1.0, 12.0), skips=False)


def _one(chance: random.Random, *, second: bool) -> Fault:
    role: Role = chance.choices(list(EACH_ROLE), list(EACH_ROLE.values()))[0]
    kind: Kind = chance.choices(list(EACH_KIND), list(EACH_KIND.values()))[0]
    number = chance.randrange(2) if second else 0
    haste_s = chance.uniform(0.0, 3.0) if chance.random() < HASTE else None
    away_s = chance.uniform(0.0, 2.0)
    if kind == "pause" or chance.random() < OUTLAST:
        away_s = SESSION_S + chance.uniform(1.0, 4.0)
    return Fault(role, number, kind, haste_s, away_s, skips=role == "streams" and chance.random() < SKIP)
