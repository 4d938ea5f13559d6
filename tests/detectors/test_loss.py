"""Spikes are noted and resolve themselves; a rise that stays is a page."""

from __future__ import annotations

import math
import random

import pytest

NAN = float("nan")


def series(*parts: tuple[int, float], noise: float = 0.02, seed: int = 1) -> list[tuple[int, float]]:
    """(length, level) parts, one value a step, with noise."""
    dice = random.Random(seed)
    values = [level * (1 + noise * dice.gauss(0, 1)) for length, level in parts for _ in range(length)]
    return list(enumerate(values))


def states(said, detector):
    return [(change.state, change.step) for change in said if change.detector == detector]


def both(only_or_config=None):
    from driftline.config import PipelineConfig
    from driftline.streams.detectors import Detectors

    return Detectors(PipelineConfig())


@pytest.mark.parametrize(
    ("name", "points", "spike", "page"),
    [
        ("calm", series((300, 2.0)), [], []),
        ("constant", series((300, 2.0), noise=0), [], []),
        ("one-step outlier", series((100, 2.0), (1, 3.5), (100, 2.0)), ["open", "resolved"], []),
        ("outlier on a constant", series((100, 2.0), (1, 3.5), (9, 2.0), noise=0), ["open", "resolved"], []),
        ("a fall is no spike", series((100, 2.0), (1, 0.5), (100, 2.0)), [], []),
        ("too early to tell", series((10, 2.0), (1, 9.0), (50, 2.0)), [], []),
        ("two apart are two", series((100, 2.0), (1, 4.0), (28, 2.0), (1, 4.0), (30, 2.0)),
         ["open", "resolved"] * 2, []),
        ("a long one hides no later one", series((100, 2.0), (20, 4.0), (8, 2.0), (1, 4.0), (30, 2.0)),
         ["open", "resolved"] * 2, []),
        ("high at once, then back", series((100, 2.0), (1, 6.0), (1, 4.0), (1, 3.0), (1, 2.4), (60, 2.0)),
         ["open", "resolved"], []),
        ("climbs for three steps, then back", series((100, 2.0), (1, 4.0), (1, 5.0), (1, 6.0), (1, 4.9),
         (1, 4.0), (1, 3.2), (60, 2.0)), ["open", "resolved"], []),
        ("a leap that stays", series((100, 2.0), (300, 4.0)), ["open", "resolved"], ["open"]),
        ("a climb", [*series((100, 2.0)), *((100 + at, 2.0 + 0.4 * at) for at in range(20))],
         ["open"], ["open"]),
        ("a slow climb", [*series((200, 2.0)), *((200 + at, 2.0 + 0.01 * at) for at in range(300))],
         [], ["open"]),
        ("near zero, heavy tail", [(at, 2.6 * math.exp(-at / 40) + 0.01 * (1 + at % 7)) for at in range(600)],
         [], []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_spikes_are_noted_and_only_a_rise_that_stays_is_a_page(losses, name, points, spike, page):
    said = [change for change in losses(both(), points) if change.state != "update"]
    assert [change.state for change in said if change.detector == "loss_spike"] == spike
    assert [change.state for change in said if change.detector == "loss_divergence"] == page


def test_an_outlier_is_told_with_its_step_its_value_and_what_is_normal(losses, only):
    points = [*series((100, 2.0), noise=0.02), (100, 5.0), *((101 + at, 2.0) for at in range(5))]
    opened, resolved = losses(only("loss_spike"), points)
    assert (opened.step, opened.last_step, opened.value, opened.severity) == (100, 100, 5.0, "error")
    assert opened.expected == pytest.approx(2.0, abs=0.02)
    assert opened.score > 5
    assert opened.explanation.startswith("loss is 5 at step 100: 3")
    assert (resolved.alert, resolved.step, resolved.last_step) == (opened.alert, 100, 100)
    assert resolved.resolved_us == 103 * 100_000


@pytest.mark.parametrize("length", [5, 10, 20])
def test_a_leap_of_five_to_twenty_steps_is_one_spike_from_its_first_to_its_last_step(losses, only, length):
    """What a learning rate times 50 does for a while."""
    points = series((150, 1.5), (length, 4.0), (100, 1.5), noise=0.06)
    said = [change for change in losses(only("loss_spike"), points) if change.state != "update"]
    assert [change.state for change in said] == ["open", "resolved"]
    assert (said[1].step, said[1].last_step) == (150, 149 + length)


def test_a_page_is_resolved_when_the_loss_comes_back(losses, only):
    points = [
        *series((100, 2.0)),
        *((100 + at, 3.0 + at) for at in range(6)),
        *((106 + at, 2.0) for at in range(9)),
    ]
    opened, *_, resolved = losses(only("loss_divergence"), points)
    assert (opened.state, opened.step, opened.last_step) == ("open", 100, 103)
    assert (resolved.state, resolved.last_step) == ("resolved", 105)
    assert "came back to 2 by step 110" in resolved.explanation


def test_a_lasting_new_level_is_learned_in_the_end(losses, only):
    points = series((100, 2.0), (400, 4.0), (1, 9.0), (1, 10.0), (1, 11.0), (1, 12.0), noise=0.01)
    said = [
        change.state
        for change in losses(only("loss_divergence", relearn_panes=200), points)
        if change.state != "update"
    ]
    assert said == ["open", "resolved", "open"]


@pytest.mark.parametrize(("count", "page"), [(1, False), (3, False), (4, True), (10, True)])
def test_a_loss_that_stays_non_finite_is_a_divergence(losses, only, count, page):
    points = [*series((60, 2.0)), *((60 + at, NAN) for at in range(count))]
    said = losses(only("loss_divergence"), points)
    assert bool(said) == page
    assert all("not finite" in change.explanation for change in said)


@pytest.mark.parametrize(
    ("metric", "watched"),
    [
        ("loss", True),
        ("train/loss", True),
        ("train_loss", True),
        ("lm_loss", True),
        ("actor/loss", True),
        ("eval/loss", False),
        ("val_loss", False),
        ("validation/loss", False),
        ("policy_loss", False),
        ("loss_scale", False),
        ("Loss", False),
    ],
)
def test_training_losses_are_watched_by_their_usual_names(losses, metric, watched):
    said = losses(both(), series((100, 2.0), (1, 9.0), (9, 2.0)), metric)
    assert bool(said) == watched


def test_any_name_can_be_configured(losses, only):
    points = series((100, 2.0), (1, 9.0), (9, 2.0))
    for metric in ("timing(s)/gen[0]", "*", "损失", "x" * 600):
        assert losses(only("loss_spike", [metric]), points, metric)
    assert losses(only("loss_spike", ["*_nll"]), points, "head_nll")
    assert not losses(only("loss_spike", ["*_nll"]), points, "loss")


def test_noise_alone_pages_nobody(losses):
    """Twelve runs of 400 steps, noise of a fifth of the loss; a heavy tail near zero."""
    for seed in range(12):
        dice = random.Random(seed)
        plain = [(at, (1.2 + math.exp(-at / 100)) * (1 + 0.2 * dice.gauss(0, 1))) for at in range(400)]
        tail = [(at, 2.6 * math.exp(-at / 60) + 0.02 * math.exp(dice.gauss(0, 1))) for at in range(400)]
        for points in (plain, tail):
            assert states(losses(both(), points), "loss_divergence") == []
