"""Entries become frames: nothing lost, order kept, limits held, urgency found."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from driftline import frames
from driftline.producers.counters import Counters, Notes
from driftline.producers.framer import Framer
from driftline.topics import MAX_FRAME_BYTES

Sample = tuple[str, int | None, int, float, float]


def framer(frame_samples: int = 2000) -> Framer:
    return Framer(
        run="r", process="p", rank=0, frame_samples=frame_samples, counters=Counters(), notes=Notes()
    )


def samples(made: list[frames.Frame]) -> list[Sample]:
    """What a reader gets, through the bytes."""
    found: list[Sample] = []
    for seq, frame in enumerate(made):
        payload = frames.encode(frame._replace(seq=seq))
        assert len(payload) <= MAX_FRAME_BYTES
        read = frames.decode(payload)
        for at in range(len(read.metric)):
            step = int(read.step[at])
            found.append(
                (
                    read.names[read.metric[at]],
                    None if step == frames.NO_STEP else step,
                    int(read.time_us[at]),
                    float(read.value[at]),
                    float(read.weight[at]),
                )
            )
    return found


def naive(entries: list[Any]) -> list[Sample]:
    return [
        (name, step, time_ns // 1000, float(value), 1.0 if weight is None else float(weight))
        for time_ns, step, weight, values in entries
        for name, value in values.items()
    ]


@pytest.mark.parametrize("seed", range(20))
def test_frames_hold_exactly_what_was_added_in_order(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"m{at}" for at in range(chance.choice((1, 5, 60)))] + ["准确率", "a.b", "a/b", ""]
    entries: list[Any] = []
    for at in range(chance.randrange(1, 300)):
        values = {
            name: chance.choice((1.5, 3, True, math.inf, -math.inf, -0.0, 1e300, 2**63))
            for name in chance.sample(names, chance.randrange(len(names)))
        }
        step = chance.choice((None, at, -at, 2**62))
        entries.append((at * 1_000_000 + 999, step, chance.choice((None, 2, 0.5)), values))
    under_test = framer(chance.choice((1, 7, 100, 2000)))
    made = []
    rest = list(entries)
    while rest:
        size = chance.randrange(1, 40)
        under_test.add(rest[:size])
        rest = rest[size:]
        made += under_test.take(full_only=chance.random() < 0.7)
    made += under_test.take()
    assert samples(made) == naive(entries)
    assert under_test.samples == 0


def test_nan_keeps_its_place() -> None:
    under_test = framer()
    under_test.add([(0, s, None, {"loss": v}) for s, v in enumerate((0.9, 0.8, math.nan, 0.7, 0.6))])
    found = samples(under_test.take())
    assert [math.isnan(value) for *_, value, _ in found] == [False, False, True, False, False]


def test_a_call_with_40000_names_is_split_and_whole() -> None:
    """Case 17: a sample too large for one message arrives in several, nothing is lost."""
    values = {f"a/rather/long/name/of/a/metric/{at:06d}": float(at) for at in range(40_000)}
    under_test = framer(100_000)
    under_test.add([(0, 1, None, {"before": 1.0}), (0, 2, None, values), (0, 3, None, {"after": 1.0})])
    made = under_test.take()
    assert len(made) > 1
    assert all(len(frame.names) <= frames.MAX_NAMES for frame in made)
    assert samples(made) == naive(
        [(0, 1, None, {"before": 1.0}), (0, 2, None, values), (0, 3, None, {"after": 1.0})]
    )


def test_names_of_600_bytes_are_split_by_bytes() -> None:
    under_test = framer(2000)
    values = {f"{at:06d}" + "界" * 198: float(at) for at in range(2000)}
    under_test.add([(0, None, None, values)])
    made = under_test.take()
    assert len(made) > 2
    assert samples(made) == naive([(0, None, None, values)])


def test_only_full_frames_leave_before_their_time() -> None:
    under_test = framer(10)
    under_test.add([(0, 0, None, {f"m{at}": 1.0 for at in range(27)})])
    assert [len(frame.metric) for frame in under_test.take(full_only=True)] == [10, 10]
    assert under_test.samples == 7
    assert [len(frame.metric) for frame in under_test.take()] == [7]
    assert under_test.take() == []


def test_the_first_non_finite_value_of_a_metric_is_urgent_then_again_after_ten_seconds() -> None:
    under_test = framer()
    second = 1_000_000_000
    heard = []
    for time_ns, name, value in [
        (0, "loss", 1.0),
        (1 * second, "loss", math.nan),
        (2 * second, "loss", math.nan),
        (3 * second, "grad", math.inf),
        (9 * second, "loss", -math.inf),
        (11 * second, "loss", math.nan),
        (12 * second, "loss", 1.0),
    ]:
        under_test.add([(time_ns, None, None, {name: value})])
        heard.append(under_test.urgent)
        under_test.take()
    assert heard == [False, True, False, True, False, True, False]


def test_what_is_no_number_is_refused_here_too() -> None:
    """The hot path lets huge integers and odd keys through; they are found here, the rest is kept."""
    counters = Counters()
    under_test = Framer(run="r", process="p", rank=None, frame_samples=9, counters=counters, notes=Notes())
    under_test.add(
        [
            (0, 2**63, None, {"a": 1.0}),
            (0, 1, 10**400, {"b": 1.0}),
            (0, 1, None, {"c": 10**400, 3: 1.0, "d": 2.0}),
        ]
    )
    assert samples(under_test.take()) == [("a", None, 0, 1.0, 1.0), ("d", 1, 0, 2.0, 1.0)]
    assert counters.snapshot() == {
        "refused_name": 1,
        "refused_range": 1,
        "refused_weight": 1,
        "samples_logged": 2,
        "steps_refused": 1,
    }


def test_known_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.producers.framer.KNOWN_NAMES_MAX", 50)
    under_test = framer()
    for at in range(500):
        under_test.add([(0, at, None, {f"name{at}": 1.0})])
        (frame,) = under_test.take()
        assert frame.names == [f"name{at}"]
    assert len(under_test._ids) <= 51


def test_arrays_are_small() -> None:
    under_test = framer()
    under_test.add([(0, s, None, {f"m{at}": float(s) for at in range(20)}) for s in range(100)])
    (frame,) = under_test.take()
    assert len(frames.encode(frame._replace(seq=0))) / len(frame.metric) < 40
    assert frame.metric.dtype == np.int16
