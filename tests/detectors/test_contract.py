"""What holds for every detector and rule, whatever it is shown."""

from __future__ import annotations

import json
import math
import random

import msgspec
import pytest

from driftline.config import DEFAULT_DETECTORS, PipelineConfig, Rule
from driftline.events import Alert, encode, number
from driftline.streams.detectors import Detectors
from driftline.streams.views import Liveness, NonFinite, PaneView

SECOND = 1_000_000
METRICS = ["loss", "span/compute", "gpu", "timing(s)/gen"]
RULES = [
    Rule(name="hot", metric="gpu", op=">", bound=1.0, for_us=2 * SECOND),
    Rule(name="high", metric="loss", op=">=", bound=2.0, for_steps=3, per_rank=False),
    Rule(name="any", metric="timing(s)/gen", op="!=", bound=0.0),
]
CONFIG = PipelineConfig(detectors=list(DEFAULT_DETECTORS), rules=RULES)

SPECIAL = [0.0, -0.0, 1.0, 2.0, 5.0, -1e300, 1e300, 5e-324, 1.7e308, -1.7e308]


def calls(dice):
    """A plausible sequence of calls: panes of each (axis, metric) in order, NaNs, ticks."""
    script = []
    spacing_us = dice.choice([1_000, SECOND, 20 * SECOND])
    wild = dice.random() < 0.5

    def value():
        if wild:
            return dice.choice([*SPECIAL, dice.gauss(0, 10), 10 ** dice.uniform(-300, 300)])
        return dice.choice([1.0, 1.1, 0.9, 1.0, 0.95, 5.0])

    for at in range(dice.randint(1, 60)):
        now_us = at * spacing_us
        for metric in METRICS:
            what = dice.choice(["none", "value", "value", "ranks", "ranks", "nan", "empty"])
            if what == "nan":
                bad = dice.choice([math.nan, math.inf, -math.inf])
                script.append(("non_finite", NonFinite(metric, dice.choice([None, 0, 3]), at, bad, now_us)))
            if what == "none":
                continue
            mean = None if what in ("nan", "empty") else value()
            ranks = range(dice.randint(0, 6)) if what == "ranks" else ()
            by_rank = {rank: value() for rank in ranks}
            nan = int(what == "nan")
            for axis, width in (("step", 1), ("time", SECOND)):
                start = at * width
                view = PaneView(
                    axis, metric, start, start + width, 1, nan, 0, mean, mean, 0, mean, 0, by_rank, now_us
                )
                script.append(("pane", view))
        processes = [
            Liveness(f"p{rank}", rank, "trainer", "h", dice.randint(0, at) * SECOND, at, dice.random() < 0.2)
            for rank in range(3)
        ]
        script.append(("tick", at * 10 * SECOND, processes))
    script.append(("end", 10_000 * SECOND))
    return script


def play(script, reload_at=()):
    """What the detectors say, call by call; dumped and loaded again before the calls in ``reload_at``."""
    detectors = Detectors(CONFIG)
    said = []
    for number_of, (name, *arguments) in enumerate(script):
        if number_of in reload_at:
            text = json.dumps(detectors.dump(), allow_nan=False)
            packed = msgspec.msgpack.decode(msgspec.msgpack.encode(json.loads(text)))
            detectors = Detectors(CONFIG, packed)
        said.append(getattr(detectors, name)(*arguments))
    return said


@pytest.mark.parametrize("seed", range(40))
def test_a_dump_and_load_at_any_point_changes_nothing(seed):
    dice = random.Random(seed)
    script = calls(dice)
    points = {dice.randrange(len(script)) for _ in range(5)}
    plain, again = play(script), play(script, points)
    for call, said, told in zip(script, plain, again, strict=True):
        assert repr(said) == repr(told), call


@pytest.mark.parametrize("seed", range(40))
def test_every_alert_opens_once_then_is_updated_then_resolved_once(seed):
    script = calls(random.Random(seed))
    open_now: dict[str, int] = {}
    ever = set()
    for changes in play(script):
        for change in changes:
            if change.state == "open":
                assert change.alert not in ever
                ever.add(change.alert)
                open_now[change.alert] = change.opened_us
            else:
                assert open_now[change.alert] == change.opened_us
            if change.state == "resolved":
                del open_now[change.alert]
            assert (change.resolved_us is not None) == (change.state == "resolved")
            assert change.explanation
            assert "\n" not in change.explanation
            assert len(change.explanation) < 400
            _travels(change)
    assert open_now == {}, "what is open at the end of an attempt is resolved"


def _travels(change):
    """It can be sent: numbers that JSON knows, or Number."""
    json.dumps(change.evidence, allow_nan=False)
    assert change.score is None or math.isfinite(change.score)
    encode(
        Alert(
            id="u/0/1/0",
            run="r",
            attempt=0,
            time_us=0,
            **{
                field: getattr(change, field)
                for field in ("alert", "rule", "detector", "severity", "state", "opened_us", "metric", "rank")
            },
            value=None if change.value is None else number(change.value),
            explanation=change.explanation,
            evidence=change.evidence,
        )
    )


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e300, -1e300, 5e-324])
def test_constants_say_nothing(value):
    detectors = Detectors(PipelineConfig(detectors=list(DEFAULT_DETECTORS)))
    for step in range(300):
        for metric in METRICS:
            by_rank = dict.fromkeys(range(8), value)
            view = PaneView("step", metric, step, step + 1, 8, 0, 0, value, value, 0, value, 0, by_rank, step)
            assert detectors.pane(view) == []


def test_state_does_not_grow_with_time_or_names():
    """A thousand losses on a thousand ranks: bounded; and a long run is no larger than a short one."""
    detectors = Detectors(CONFIG)
    sizes = []
    for step in range(300):
        for metric in ("loss", "span/compute"):
            by_rank = {rank: 1.0 + (rank * 7919 + step * 31) % 97 / 10 for rank in range(200)}
            view = PaneView("step", metric, step, step + 1, 200, 0, 0, 1.0, 1.0, 0, 1.0, 0, by_rank, step)
            detectors.pane(view)
        if step in (150, 299):
            sizes.append(len(msgspec.msgpack.encode(detectors.dump())))
    assert sizes[1] < 1.2 * sizes[0]
    for number_of in range(1_000):
        view = PaneView("step", f"{number_of}/loss", 0, 1, 1, 0, 0, 1.0, 1.0, 0, 1.0, 0, {}, 0)
        detectors.pane(view)
    dump = detectors.dump()
    for kind in ("loss_spike:loss-spike", "loss_divergence:loss-divergence"):
        assert len(dump[kind]["state"]["series"]) == 256
        assert dump[kind]["state"]["unwatched"] == 1_000 + 1 - 256


def test_panes_that_come_again_are_not_counted_twice():
    detectors = Detectors(CONFIG)
    view = PaneView("step", "loss", 5, 6, 1, 0, 0, 1.0, 1.0, 0, 1.0, 0, {}, 0)
    for _ in range(3):
        detectors.pane(view)
    assert len(detectors.dump()["loss_spike:loss-spike"]["state"]["series"]["loss"]["history"]) == 1


def test_what_a_changed_configuration_no_longer_has_is_left_out():
    detectors = Detectors(CONFIG)
    detectors.non_finite(NonFinite("loss", 0, 1, math.nan, 0))
    without = Detectors(PipelineConfig(detectors=list(DEFAULT_DETECTORS[1:])), detectors.dump())
    assert without.end(1) == []
    same = Detectors(CONFIG, detectors.dump())
    assert [change.state for change in same.end(1)] == ["resolved"]
