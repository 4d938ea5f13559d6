"""A bug planted in any one mechanism is found by the simulation, within the number of seeds stated for it."""

from __future__ import annotations

import os

import pytest
from simulation import seeds
from simulation.planted import (
    BUGS,
    CROWDED,
    DISKS,
    MOVING,
    OUTAGES,
    SEEDS,
    SLOW,
    STORM,
    TRAINING_US,
    planted,
)

pytestmark = pytest.mark.skipif(bool(os.environ.get("SIM_SEED")), reason="one seed is replayed")


def test_there_are_at_least_twenty() -> None:
    assert len(BUGS) >= 30


@pytest.mark.parametrize(
    ("seed", "rates"),
    [
        *((seed, {}) for seed in SEEDS),
        *(pytest.param(seed, rates, marks=pytest.mark.long) for rates in (SLOW, CROWDED) for seed in SEEDS),
        *(
            pytest.param(seed, rates, marks=pytest.mark.long)
            for rates in (MOVING, OUTAGES, DISKS)
            for seed in SEEDS[:4]
        ),
    ],
)
def test_the_product_passes_the_seeds_that_find_the_bugs(seed: int, rates: dict[str, float]) -> None:
    outcome = seeds.run(seed, rates=STORM | rates, naive=not rates, training_us=TRAINING_US, least_records=0)
    assert outcome.problems == [], seeds.told(outcome)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    bug = BUGS[name]
    with planted(bug):
        pass  # what it replaces exists: an error of the planting would pass for a bug that is caught
    for seed in SEEDS[: bug.within]:
        outcome = seeds.run(
            seed,
            rates=STORM | bug.rates,
            naive=bug.everywhere,
            training_us=TRAINING_US,
            least_records=0,
            bug=bug,
        )
        if outcome.problems:
            print(f"{name}: seed {seed}: {outcome.problems[0][:300]}")
            return
    pytest.fail(f"{bug.says}: not caught within {bug.within} seeds")
