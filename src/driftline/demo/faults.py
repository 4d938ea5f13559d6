"""The two faults that the demonstration really causes, and when: the one place that knows.

The training reads this to cause them, the check after the run to know what should have been found. Nothing of
it reaches the detectors: they see only times and losses.
"""

from __future__ import annotations

from typing import NamedTuple


class Faults(NamedTuple):
    """Steps count from 1; ranges are half-open."""

    slow_rank: int
    slow_steps: range
    slow_times: float
    """On these steps the rank's forward pass takes so many times as long."""
    spike_steps: range
    spike_times: float
    """On these steps the learning rate is so many times too high."""

    def slows(self, *, rank: int, step: int) -> bool:
        return rank == self.slow_rank and step in self.slow_steps

    def learning_rate_factor(self, step: int) -> float:
        return self.spike_times if step in self.spike_steps else 1.0


def plan(steps: int) -> Faults:
    """The faults of a training of so many steps.

    The spike is a learning rate 20 times too high for two steps: the loss rises about tenfold and comes back
    within a hundred steps. (50 times for three steps was tried: the model forgets everything, and takes
    longer than the first time to learn it again.)

    >>> plan(1200).slow_steps, plan(1200).spike_steps
    (range(300, 456), range(660, 662))
    """
    slow_from = steps // 4
    spike_from = steps * 55 // 100
    return Faults(
        slow_rank=2,
        slow_steps=range(slow_from, slow_from + steps * 13 // 100),
        slow_times=4.0,
        spike_steps=range(spike_from, spike_from + 2),
        spike_times=20.0,
    )
