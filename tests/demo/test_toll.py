"""What evaluation took from training is found from the times of steps alone."""

from __future__ import annotations

import random

import pytest

from driftline.demo.toll import Toll, toll


def measured(
    *, slow: float, noise: float = 0.0, left_out: frozenset[int] = frozenset()
) -> tuple[Toll, float]:
    """1,000 steps of 0.1 s; 20 evaluations of 1 s, during which a step takes ``slow`` times as long."""
    rng = random.Random(5)
    now, ends, evaluations, lost = 0.0, {0: 0.0}, [], 0.0
    begins = {30 + 48 * k for k in range(20)}
    end = -1.0
    for step in range(1, 1001):
        if step in begins:
            end = now + 1.0
            evaluations.append((now, end))
        took = 0.1 * (1 + rng.uniform(-noise, noise))
        if now < end - 1e-9:
            lost += took * (slow - 1)
            took *= slow
        if step in left_out:
            took += 50.0
            evaluations = [(a, b) for a, b in evaluations if a < now] if step in begins else evaluations
        now += took
        ends[step] = now
    found = toll(
        ends=ends,
        evaluations=evaluations,
        evaluator_seconds=20.0,
        left_out=left_out,
        call_seconds=0.25,
        save_seconds=1.0,
    )
    return found, lost


def test_no_crowding_is_found_where_steps_are_as_fast_as_ever() -> None:
    found, _ = measured(slow=1.0)
    assert found.crowding == pytest.approx(0, abs=1e-6)
    assert found.total == pytest.approx(0.25)
    assert found.training == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize("slow", [1.3, 2.0])
def test_crowding_is_the_time_that_steps_took_beyond_their_neighbours(slow: float) -> None:
    found, lost = measured(slow=slow)
    assert found.crowding == pytest.approx(lost, rel=0.1)
    assert len(found.during) == 20


def test_noise_shows_in_the_standard_error() -> None:
    found, lost = measured(slow=1.3, noise=0.3)
    assert abs(found.crowding - lost) < 3 * found.crowding_error
    assert found.crowding_error > 0.1


def test_steps_that_are_odd_for_another_reason_do_not_count() -> None:
    plain, _ = measured(slow=1.0)
    odd, _ = measured(slow=1.0, left_out=frozenset({200, 410}))
    assert odd.crowding == pytest.approx(plain.crowding, abs=1e-6)


def test_nothing_measured_is_no_toll() -> None:
    found = toll(ends={}, evaluations=[], evaluator_seconds=0, left_out=(), call_seconds=0, save_seconds=0)
    assert (found.total, found.share, found.during) == (0.0, 0.0, ())
