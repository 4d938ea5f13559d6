"""Runs seeds: one after the other or over several processes, and tells what came of them."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from . import checkers
from .edges import replaced
from .planted import Bug, planted
from .world import TRAINING_US, World

NAIVE_EVERY = 2
"""One seed in so many is also compared with ``tests/naive.py`` (every second: a twentieth more time)."""
LEAST_RECORDS = 2_000
LEAST_FAULTS = 5


class Outcome(NamedTuple):
    """What came of a seed."""

    seed: int
    problems: list[str]
    trace: str
    """Digest of everything that happened."""
    tail: str
    """The last of it, as text."""
    records: int
    """Appended to the topics, all of them."""
    inputs: int
    """Of these, those on telemetry and evals."""
    samples: int
    """Stored."""
    virtual_s: float
    faults: Counter[str]


def run(
    seed: int,
    *,
    rates: Mapping[str, float] | None = None,
    naive: bool | None = None,
    training_us: int = TRAINING_US,
    least_records: int = LEAST_RECORDS,
    bug: Bug | None = None,
) -> Outcome:
    """One seed, from the start to rest, and all checks; with a bug planted, perhaps."""
    world = World(seed, rates, training_us=training_us, least_records=least_records)
    try:
        world.run(planted(bug) if bug else None)
        with replaced(world), planted(bug) if bug and bug.everywhere else contextlib.nullcontext():
            naive = seed % NAIVE_EVERY == 0 if naive is None else naive
            problems = checkers.problems(world, naive=naive, all_of_them=bug is None)
    except Exception as error:  # noqa: BLE001  a problem like any other, told with its seed
        problems = [f"{error!r}", *world.loop.crashes[:3], traceback.format_exc(limit=-6)]
    counts = {place: len(appended) for place, appended in world.broker.recorded.items()}
    return Outcome(
        seed=seed,
        problems=problems,
        trace=world.trace.digest,
        tail=world.trace.tail(60),
        records=sum(counts.values()),
        inputs=sum(count for place, count in counts.items() if place.topic in ("telemetry", "evals")),
        samples=world.tables.rows("samples").num_rows,
        virtual_s=world.loop.now_us / 1e6,
        faults=world.faults.happened,
    )


def told(outcome: Outcome) -> str:
    """A failure, with the command that shows it again."""
    return "\n".join(
        [
            f"seed {outcome.seed}: {len(outcome.problems)} problems; again: "
            f"SIM_SEED={outcome.seed} pytest tests/sim",
            *(f"  {problem}" for problem in outcome.problems[:12]),
            "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items())),
        ]
    )
