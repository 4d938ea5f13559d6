"""How much time evaluation took from training, from what was measured. Pure.

Two parts. **The calls**: the time that the training spent inside ``run.checkpoint()``, measured there. **The
crowding**: evaluator and training share the cores, so steps may take longer while an evaluation runs. Each
evaluation's steps are compared with the :data:`NEIGHBOURS` steps before and after it during which none ran:
what they took beyond the neighbours' mean is the crowding. Left out of the comparison are steps that are odd
for another reason: the first ones, those with a checkpoint being saved, and those in which a slow rank was
found. Noise of the machine enters fully; hence the standard error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

NEIGHBOURS = 40
FIRST_STEPS = 20


class Toll(NamedTuple):
    """Seconds, all of them."""

    training: float
    """From the first step's end to the last one's."""
    evaluator: float
    """What the evaluator spent, in its own process."""
    calls: float
    """In ``run.checkpoint()``."""
    saves: float
    """Writing checkpoints to disk: not counted, as the training would do that without evaluation too."""
    crowding: float
    """Estimate; may be negative by chance."""
    crowding_error: float
    """Its standard error."""
    steps_during: int
    """Steps that were compared."""
    during: tuple[tuple[int, int], ...]
    """Steps [first, last] at which evaluations ran, joined where they touch."""

    @property
    def total(self) -> float:
        return self.calls + self.crowding

    @property
    def share(self) -> float:
        """Of the training's time."""
        return self.total / self.training if self.training > 0 else 0.0


def toll(
    *,
    ends: Mapping[int, float],
    evaluations: Sequence[tuple[float, float]],
    evaluator_seconds: float,
    left_out: Collection[int],
    call_seconds: float,
    save_seconds: float,
) -> Toll:
    """The toll. ``ends``: when each step ended, in seconds; ``evaluations``: [start, end] of each."""
    steps = [step for step in sorted(ends) if step - 1 in ends]
    took = {step: ends[step] - ends[step - 1] for step in steps}
    busy = {step for step in steps if _overlap(ends[step - 1], ends[step], evaluations) > 0.5 * took[step]}
    touched = {step for step in steps if _overlap(ends[step - 1], ends[step], evaluations) > 0}
    usable = [step for step in steps if step not in left_out and step > FIRST_STEPS]
    stretches = _stretches(sorted(busy))
    crowding, variance, compared = 0.0, 0.0, 0
    for first, last in stretches:
        mine = [took[step] for step in usable if first <= step <= last]
        others = [
            took[step]
            for step in usable
            if step not in touched and (0 < first - step <= NEIGHBOURS or 0 < step - last <= NEIGHBOURS)
        ]
        if not mine or len(others) < 5:
            continue
        crowding += sum(mine) - len(mine) * float(np.mean(others))
        spread = float(np.var(others, ddof=1))
        variance += len(mine) * spread + len(mine) ** 2 * spread / len(others)
        compared += len(mine)
    return Toll(
        training=max(ends.values()) - min(ends.values()) if ends else 0.0,
        evaluator=evaluator_seconds,
        calls=call_seconds,
        saves=save_seconds,
        crowding=crowding,
        crowding_error=variance**0.5,
        steps_during=compared,
        during=tuple(stretches),
    )


def _overlap(start: float, end: float, ranges: Sequence[tuple[float, float]]) -> float:
    """Seconds of [start, end] inside any of the ranges (which one evaluator works off one after another)."""
    return sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in ranges)


def _stretches(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring numbers.

    >>> _stretches([1, 2, 3, 7, 9, 10])
    [(1, 3), (7, 7), (9, 10)]
    """
    found: list[tuple[int, int]] = []
    for step in steps:
        if found and step - found[-1][1] <= 1:
            found[-1] = (found[-1][0], step)
        else:
            found.append((step, step))
    return found
