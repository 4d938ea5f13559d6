"""Which checkpoints are evaluated: a due point picks the first one at or after it, once, without bursts."""

from __future__ import annotations

import json
import random

import pytest

from driftline.config import PipelineConfig, Triggers
from driftline.events import Checkpoint
from driftline.streams.triggers import RunTriggers
from driftline.streams.views import CheckpointView

S = 1_000_000


def triggers(**when):
    return PipelineConfig(triggers=Triggers(**{"at_end": False, **when}))


def saved(step=None, *, epoch=None, attempt=0, now_s=0, digest=None):
    name = digest or f"{attempt}/{step}/{epoch}/{now_s}"
    return CheckpointView(Checkpoint(digest=name, uri="/c", step=step, epoch=epoch), attempt, now_s * S)


def picked(config, views):
    one = RunTriggers(config)
    return [(view.checkpoint.step, reason) for given in views for reason, view in one.checkpoint(given)]


@pytest.mark.parametrize(
    ("steps", "given", "expected"),
    [
        (500, [0, 500, 1000, 1500], [500, 1000, 1500]),
        (500, [480, 520, 960, 1600, 1700, 2000], [520, 1600, 2000]),
        (500, [100, 200, 300], []),
        (500, [10_000, 10_001, 10_499, 10_500], [10_000, 10_500]),
        (1, [1, 2, 3], [1, 2, 3]),
        (500, [500, 500, 400, 500], [500]),
        (500, [None, 500, None], [500]),
    ],
)
def test_steps_pick_the_first_checkpoint_at_or_after_each_multiple(steps, given, expected):
    views = [saved(step, now_s=at) for at, step in enumerate(given)]
    assert [step for step, _ in picked(triggers(steps=steps), views)] == expected


@pytest.mark.parametrize(
    ("epochs", "given", "expected"),
    [
        (1.0, [0.0, 0.5, 1.0, 1.5, 2.0000001], [1.0, 2.0000001]),
        (1.0, [0.9999999999, 2.9999999999], [0.9999999999, 2.9999999999]),
        (0.1, [0.1 * at for at in range(6)], [0.1 * at for at in range(1, 6)]),
        (0.5, [0.4, 1.7, 1.9, 2.0], [1.7, 2.0]),
    ],
)
def test_epochs_are_floats(epochs, given, expected):
    one = RunTriggers(triggers(epochs=epochs))
    said = [
        view.checkpoint.epoch
        for step, epoch in enumerate(given)
        for _, view in one.checkpoint(saved(step, epoch=epoch))
    ]
    assert said == expected


def test_seconds_count_from_the_start_and_from_the_last_evaluated_checkpoint():
    one = RunTriggers(triggers(every_us=600 * S))
    one.started(0)
    said = []
    for now_s in (100, 590, 601, 700, 1_200, 1_201, 9_000, 9_001, 9_600):
        said += [view.now_us // S for _, view in one.checkpoint(saved(now_s, now_s=now_s))]
    assert said == [601, 1_201, 9_000, 9_600]


def test_a_checkpoint_without_step_or_epoch_can_be_picked_by_time_start_and_end():
    views = [saved(now_s=at * 100) for at in range(4)]
    one = RunTriggers(triggers(steps=1, epochs=0.1, every_us=150 * S, at_start=True, at_end=True))
    said = [reason for view in views for reason, _ in one.checkpoint(view)]
    assert said == ["start", "seconds"]
    assert [reason for reason, _ in one.ended(500 * S)] == ["end"]


def test_one_checkpoint_is_picked_once_with_its_first_reason():
    one = RunTriggers(triggers(steps=10, epochs=1.0, every_us=S, at_start=True))
    first, second = saved(10, epoch=1.0, now_s=50), saved(20, epoch=2.0, now_s=51)
    assert [reason for reason, _ in one.checkpoint(first)] == ["start"]
    assert one.checkpoint(first) == []
    assert [reason for reason, _ in one.checkpoint(second)] == ["epochs"]
    assert one.checkpoint(second._replace(now_us=900 * S)) == []


def test_the_end_picks_the_last_checkpoint_unless_it_was_picked():
    one = RunTriggers(triggers(steps=100, at_end=True))
    for view in (saved(100), saved(150), saved(140)):
        one.checkpoint(view)
    ((reason, view),) = one.ended(7 * S)
    assert (reason, view.checkpoint.step, view.now_us) == ("end", 150, 7 * S)
    assert one.ended(8 * S) == []
    one.checkpoint(saved(200))
    assert one.ended(9 * S) == []
    assert RunTriggers(triggers(at_end=True)).ended(0) == []


@pytest.mark.parametrize(
    ("first_attempt", "second_attempt", "expected"),
    [
        ([100, 200, 300, 400], [250, 300, 400, 500], [300, 400, 500]),
        ([100, 200, 300, 400], [100, 200], [100, 200]),
        ([300, 600], [600, 700], [600, 700]),
        ([100, 200], [550, 600], [550, 600]),
        ([], [100], [100]),
    ],
)
def test_a_new_attempt_evaluates_again_the_due_points_that_it_passes_again(
    first_attempt, second_attempt, expected
):
    one = RunTriggers(triggers(steps=100))
    for step in first_attempt:
        one.checkpoint(saved(step))
    said = [
        view.checkpoint.step for step in second_attempt for _, view in one.checkpoint(saved(step, attempt=1))
    ]
    assert said == expected
    assert one.checkpoint(saved(9_900, attempt=0)) == [], "a late word of the attempt before"


def test_no_triggers_pick_nothing():
    assert picked(triggers(), [saved(at, epoch=at, now_s=at) for at in range(100)]) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_dump_and_load_at_any_point_changes_nothing(seed):
    dice = random.Random(seed)
    config = triggers(
        steps=dice.choice([None, 7]),
        epochs=dice.choice([None, 0.3]),
        every_us=50 * S,
        at_start=True,
        at_end=True,
    )
    plain, reloaded = RunTriggers(config), RunTriggers(config)
    attempt = 0
    for now_s in range(0, 600, 3):
        attempt += dice.random() < 0.03
        step = dice.choice([None, now_s % 200])
        view = saved(step, epoch=None if step is None else step / 50, attempt=attempt, now_s=now_s)
        assert plain.checkpoint(view) == reloaded.checkpoint(view)
        if dice.random() < 0.2:
            reloaded = RunTriggers(config, json.loads(json.dumps(reloaded.dump())))
        if dice.random() < 0.02:
            assert plain.ended(now_s * S) == reloaded.ended(now_s * S)


def test_state_is_bounded():
    one = RunTriggers(triggers(steps=1, epochs=0.001))
    for step in range(2_000):
        one.checkpoint(saved(step, epoch=step / 10))
    assert len(json.dumps(one.dump())) < 20_000
