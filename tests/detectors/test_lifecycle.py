"""Scores are one thing, what is said of them another: updates at a bounded rate, stable ids, bounds."""

from __future__ import annotations

import pytest

from driftline.streams.detectors import lifecycle
from driftline.streams.detectors.lifecycle import Finding, Lifecycle

S = 1_000_000


def alerts(**changes):
    return Lifecycle("slow", "slow_rank", "error", **{"update_us": 10 * S, "max_alerts": 4, **changes})


def finding(score=1.0, *, rank=0, step=1, metric="m"):
    return Finding(step, metric, rank, step, step, score, 0.0, score, f"rank {rank} scores {score}", {})


@pytest.mark.parametrize(
    ("seconds_and_scores", "told"),
    [
        ([(0, 5), (1, 5), (9.9, 5), (10, 5), (11, 5)], [0, 10]),
        ([(0, 5), (0.5, 50), (1, 50), (2, 60)], [0, 1]),
        ([(0, 5), (1, 7.5), (2, 8), (3, 11.25)], [0, 1, 3]),
        ([(0, 0), (5, 0), (12, 0)], [0, 12]),
    ],
)
def test_updates_are_told_now_and_then_and_sooner_when_clearly_worse(seconds_and_scores, told):
    one = alerts()
    said = [at for at, score in seconds_and_scores if one.found("a", finding(score), int(at * S))]
    assert said == told


def test_the_worst_value_is_kept_and_the_newest_step(monkeypatch):
    one = alerts()
    one.found("a", finding(2.0, step=1), 0)
    one.found("a", finding(9.0, step=2), 1)
    one.found("a", finding(3.0, step=3), 2)
    (resolved,) = one.calm("a", 3, "calm")
    assert (resolved.value, resolved.score, resolved.last_step) == (9.0, 9.0, 3)


def test_ids_are_the_same_in_every_replay_and_differ_by_subject_step_and_time():
    def ids(subject, step, now_us):
        return alerts().found(subject, finding(step=step), now_us)[0].alert

    assert ids("a", 1, 0) == ids("a", 1, 0)
    assert len({ids("a", 1, 0), ids("b", 1, 0), ids("a", 2, 0), ids("a", 1, 5)}) == 4
    assert ids("\ud800", 1, 0).startswith("slow-")


def test_too_many_subjects_share_one_alert_until_the_last_is_calm():
    one = alerts(max_alerts=2)
    opened = [one.found(str(rank), finding(rank=rank), rank) for rank in range(30)]
    assert [len(said) for said in opened] == [1, 1, 1] + [0] * 27
    rolled = opened[2][0].alert
    assert all(one.is_open(str(rank)) for rank in range(30))
    said = [change for rank in range(30) for change in one.calm(str(rank), S, "calm")]
    assert [change.alert for change in said][2] == rolled
    assert said[2].evidence == {"places": 28, "ranks": list(range(2, 22))}
    assert one.state.open == {}
    assert one.state.joined == {}


def test_what_is_calm_and_was_never_found_says_nothing():
    assert alerts().calm("a", 0, "calm") == []


def test_members_beyond_the_bound_are_counted_not_kept(monkeypatch):
    monkeypatch.setattr(lifecycle, "MEMBERS_MAX", 3)
    one = alerts(max_alerts=1)
    for rank in range(10):
        one.found(str(rank), finding(rank=rank), 0)
    assert len(one.state.joined) == 3
    assert one.state.overflow == 6
