"""What the trainer's thread puts into the queue of the SDK's thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from driftline.events import Goal, Reduce
from driftline.producers.values import Deferred

QueueEntry = tuple[int, Any, Any, Any]
"""(time in ns, step, weight, payload): the payload is a dict of numbers, Pending, Saved, Rewound or
Defined."""


class Pending(NamedTuple):
    """Values of which some are still on a device."""

    values: dict[Any, Any]
    waits: tuple[Deferred, ...]

    def arrived(self) -> bool:
        return all(wait.ready() for wait in self.waits)


class Saved(NamedTuple):
    """A checkpoint to be announced."""

    path: str
    epoch: float | None
    format: str | None


class Rewound(NamedTuple):
    """The run goes on from the entry's step."""


class Defined(NamedTuple):
    """What a metric means; None for what is not said."""

    metric: str
    goal: Goal | None = None
    unit: str | None = None
    reduce: Reduce | None = None
    description: str | None = None


def samples_of(entry: QueueEntry) -> int:
    """How many samples an entry holds."""
    payload = entry[3]
    if type(payload) is dict:
        return len(payload)
    return len(payload.values) if isinstance(payload, Pending) else 0
