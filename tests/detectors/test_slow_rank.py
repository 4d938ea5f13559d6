"""A rank that is persistently slow is named with its steps; noise, periods and stages are not."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.streams.detectors.slow_rank import medians_without

METRIC = "span/compute"


def noisy(dice: random.Random) -> float:
    """A span on an oversubscribed host: usually 10 ms, one step in four two or three times as long."""
    return 0.010 * (1 + 0.1 * dice.random()) * (dice.choice((2.0, 3.0)) if dice.random() < 0.25 else 1.0)


@pytest.fixture
def run(pane):
    """Feeds steps of times by rank, made by a function of (rank, step)."""

    def feed(detectors, ranks, steps, time):
        said = []
        for step in steps:
            by_rank = {rank: time(rank, step) for rank in ranks}
            mean = sum(by_rank.values()) / len(by_rank)
            said += detectors.pane(pane(step, mean, metric=METRIC, by_rank=by_rank))
        return said

    return feed


@pytest.mark.parametrize("seed", range(3))
def test_on_a_noisy_host_nobody_is_slow_when_nobody_is(only, run, seed):
    dice = random.Random(seed)
    assert run(only("slow_rank"), range(4), range(1_000), lambda rank, step: noisy(dice)) == []


@pytest.mark.parametrize("factor", [1.6, 2.0, 4.0])
def test_a_slowed_rank_is_named_with_its_first_and_last_slow_step(only, run, factor):
    dice = random.Random(7)

    def time(rank, step):
        return noisy(dice) * (factor if rank == 2 and 300 <= step < 400 else 1)

    said = run(only("slow_rank"), range(4), range(600), time)
    opened, resolved = said[0], said[-1]
    assert {change.alert for change in said} == {opened.alert}
    assert (opened.rank, opened.metric, resolved.state) == (2, METRIC, "resolved")
    assert abs(resolved.step - 300) <= 4
    assert abs(resolved.last_step - 399) <= 4
    assert opened.last_step < 330
    assert opened.score == pytest.approx(factor, rel=0.35)
    assert opened.explanation.startswith(f"rank 2 is slow in {METRIC} since step {opened.step}: ")
    assert "median of the other 3 ranks" in opened.explanation


def test_a_stray_slow_step_after_the_slowness_is_not_its_last_step(only, run):
    """The resolution's last_step is the one that its sentence names."""

    def time(rank, step):
        return 0.04 if rank == 2 and (100 <= step < 200 or step == 207) else 0.01

    resolved = run(only("slow_rank"), range(4), range(260), time)[-1]
    assert resolved.state == "resolved"
    assert resolved.explanation.endswith("from step 100 to 199")
    assert (resolved.step, resolved.last_step) == (100, 199)


@pytest.mark.parametrize(
    ("name", "ranks", "time"),
    [
        ("every tenth step is five times as long for all", 4, lambda r, s: 0.01 * (5 if s % 10 == 0 else 1)),
        ("a single slow step", 4, lambda r, s: 0.1 if (r, s) == (1, 50) else 0.01),
        ("two ranks only", 2, lambda r, s: 0.03 if r else 0.01),
        ("microseconds", 4, lambda r, s: 4e-5 if r == 1 else 1e-5),
        ("half of the ranks, a pipeline stage", 8, lambda r, s: 0.02 if r % 2 else 0.01),
        ("somewhat slower", 4, lambda r, s: 0.0125 if r == 1 else 0.01),
        ("no time at all", 4, lambda r, s: 0.0),
    ],
)
def test_what_is_no_slow_rank(only, run, name, ranks, time):
    assert run(only("slow_rank"), range(ranks), range(200), time) == []


def test_a_slow_rank_that_leaves_is_resolved(only, run):
    detectors = only("slow_rank")
    opened = run(detectors, range(5), range(40), lambda r, s: 0.03 if r == 4 else 0.01)
    assert opened[0].rank == 4
    gone = run(detectors, range(4), range(40, 100), lambda r, s: 0.01)
    assert [change.state for change in gone] == ["resolved"]
    assert "rank 4 no longer reports" in gone[0].explanation


def test_only_suspects_are_remembered(only, run):
    detectors = only("slow_rank")
    run(detectors, range(3_000), range(3), lambda r, s: 0.05 if r == 7 else 0.01)
    (state,) = detectors.dump().values()
    assert list(state["state"]["metrics"][METRIC]["suspects"]) == ["7"]


def test_it_asks_for_its_metrics_by_rank(only):
    assert only("slow_rank").per_rank() == {"span/compute", "span/forward", "span/data"}
    assert only("slow_rank", ["timing(s)/gen"]).per_rank() == {"timing(s)/gen"}


@given(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 9.0]) | st.floats(0, 10), min_size=2, max_size=9))
def test_each_rank_is_compared_with_the_median_of_the_others(times: list[float]) -> None:
    without = medians_without(sorted(times))
    for at, time in enumerate(times):
        assert without(time) == statistics.median(times[:at] + times[at + 1 :])
