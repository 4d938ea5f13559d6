"""A user's rule opens after it has held for so long, resolves with hysteresis, tells at a bounded rate."""

from __future__ import annotations

import pytest

from driftline.config import PipelineConfig, Rule, WindowSpec
from driftline.streams.detectors import Detectors

S = 1_000_000


def rule(**changes):
    return Rule(**{"name": "hot", "metric": "gpu", "op": ">", "bound": 95.0, **changes})


def detectors(*rules, **config):
    return Detectors(PipelineConfig(detectors=[], rules=list(rules), **config))


def draw(pane, one, text, *, axis="time", width=S, by_rank=True):
    """A timeline, a pane a character: ^ above the bound, _ below, . no data. Returns it with o and r."""
    told = ""
    for at, mark in enumerate(text):
        if mark == ".":
            told += "."
            continue
        value = 99.0 if mark == "^" else 50.0
        view = pane(
            at * width,
            value,
            metric="gpu",
            axis=axis,
            width=width,
            by_rank={0: value} if by_rank else None,
            now_us=at * S,
        )
        changes = [change.state[0] for change in one.pane(view)]
        told += "".join(changes) or mark
    return told


@pytest.mark.parametrize(
    ("for_us", "given", "told"),
    [
        (0, "__^____", "__o____"),
        (0, "__^_____", "__o____r"),
        (3 * S, "_^^_^^^^", "_^^_^^o^"),
        (3 * S, "^^^^_^_____^", "^^o^_^____r^"),
        (3 * S, "^.^.^", "^.o.^"),
        (3 * S, "^......^^^^", "^......^^o^"),
        (6 * S, "^^^^^^______^", "^^^^^o_____r^"),
        (0, "^" * 22, "o^^^^^^^^^u^^^^^^^^^u^"),
    ],
)  # fmt: skip
def test_timelines(pane, for_us, given, told):
    assert draw(pane, detectors(rule(for_us=for_us)), given) == told


def test_for_steps_looks_at_step_panes(pane):
    one = detectors(rule(for_steps=3))
    assert draw(pane, one, "^^^^", axis="time") == "^^^^"
    (opened,) = [
        change for step in range(3) for change in one.pane(pane(step, 99.0, metric="gpu", by_rank={2: 99.0}))
    ]
    assert (opened.rank, opened.step, opened.last_step) == (2, 0, 2)
    assert opened.explanation == "gpu on rank 2 is 99, > 95 for 3 steps"


def test_without_time_windows_a_rule_looks_at_step_panes(pane):
    one = detectors(rule(), windows=[WindowSpec(axis="step", size=10, every=1)])
    assert draw(pane, one, "^", axis="step", width=1) == "o"


@pytest.mark.parametrize(
    ("op", "values"),
    [(">", [3]), (">=", [2, 3]), ("<", [1]), ("<=", [1, 2]), ("==", [2]), ("!=", [1, 3])],
)
def test_every_comparison(pane, op, values):
    held = [
        value
        for value in (1, 2, 3)
        if detectors(rule(op=op, bound=2.0)).pane(pane(0, float(value), metric="gpu", axis="time", width=S))
    ]
    assert held == values


def test_ranks_are_compared_one_by_one_or_by_their_mean(pane):
    by_rank = {0: 99.0, 1: 40.0, 2: 98.0}
    view = pane(0, 79.0, metric="gpu", axis="time", width=S, by_rank=by_rank)
    assert [change.rank for change in detectors(rule()).pane(view)] == [0, 2]
    assert detectors(rule(per_rank=False)).pane(view) == []
    assert [change.rank for change in detectors(rule(per_rank=False, bound=70.0)).pane(view)] == [None]
    assert detectors(rule()).per_rank() == {"gpu"}
    assert detectors(rule(per_rank=False)).per_rank() == frozenset()


def test_names_are_matched_exactly_whatever_they_hold(pane):
    for metric in ("timing(s)/gen", "a.b", "*", "x" * 600, "度量"):
        one = detectors(rule(metric=metric))
        assert one.pane(pane(0, 99.0, metric=metric, axis="time", width=S))
        assert not one.pane(pane(0, 99.0, metric=metric + "x", axis="time", width=S))


def test_a_thousand_hot_ranks_are_rolled_up(pane):
    one = detectors(rule())
    by_rank = dict.fromkeys(range(1000), 99.0)
    said = one.pane(pane(0, 99.0, metric="gpu", axis="time", width=S, by_rank=by_rank))
    assert len(said) == 5
    cool = dict.fromkeys(range(1000), 9.0)
    said = [
        change
        for at in range(1, 9)
        for change in one.pane(pane(at * S, 9.0, metric="gpu", axis="time", width=S, by_rank=cool))
    ]
    assert [change.state for change in said] == ["resolved"] * 5
