"""A process that goes silent while others report; a run of which all do."""

from __future__ import annotations

import pytest

from driftline.streams.views import Liveness

SECOND = 1_000_000


def process(rank, seen_s, *, ended=False, step=10):
    return Liveness(f"p{rank}", rank, "trainer", "node1", int(seen_s * SECOND), step, ended)


@pytest.fixture
def said(only):
    """Ticks once a second: ``seen(rank, now_s)`` gives when each rank was last heard of."""

    def run(ranks, seconds, seen, **params):
        detectors = only("silent_rank", **params)
        changes = []
        for now_s in range(seconds):
            alive = [process(rank, *seen(rank, now_s)) for rank in ranks]
            changes += [
                (now_s, change)
                for change in detectors.tick(
                    now_s * SECOND, [one._replace(ended=one.last_step == -1) for one in alive]
                )
            ]
        return changes

    return run


def test_a_silent_rank_is_named_with_its_last_step_and_resolved_when_heard(said):
    def seen(rank, now_s):
        return (20 if rank == 1 and 20 <= now_s < 90 else now_s,)

    changes = [(at, change) for at, change in said(range(4), 120, seen) if change.state != "update"]
    (at, opened), (until, resolved) = changes
    assert (at, opened.rank, opened.step) == (51, 1, 10)
    assert (
        opened.explanation
        == "rank 1 (node1) was not heard of for 31 s, last at step 10, while 3 others report"
    )
    assert (until, resolved.state, resolved.alert) == (90, "resolved", opened.alert)
    assert "reports again after 70 s" in resolved.explanation


def test_the_limit_is_a_parameter(said):
    changes = said(range(2), 20, lambda rank, now_s: (0 if rank else now_s,), silent_s=5)
    assert changes[0][0] == 6


def test_a_process_that_ended_is_not_silent_and_ends_its_alert(only):
    detectors = only("silent_rank")
    assert detectors.tick(100 * SECOND, [process(0, 100), process(1, 0, ended=True)]) == []
    (opened,) = detectors.tick(101 * SECOND, [process(0, 101), process(1, 0)])
    (resolved,) = detectors.tick(102 * SECOND, [process(0, 102), process(1, 0, ended=True)])
    assert (opened.state, resolved.state) == ("open", "resolved")


def test_if_all_are_silent_one_alert_speaks_of_the_run(said):
    """Heartbeats of five seconds: the last word of each lies up to five seconds apart."""

    def seen(rank, now_s):
        return (min(now_s, 40 + rank % 5),)

    changes = said(range(100), 110, seen)
    assert {change.alert for _, change in changes} == {changes[0][1].alert}
    at, opened = changes[0]
    assert (at, opened.rank) == (75, None)
    assert opened.explanation == "all 100 processes of the run went silent: nothing for 31 s, last step 10"


def test_a_single_process_that_dies_is_found(only):
    detectors = only("silent_rank")
    (opened,) = detectors.tick(31 * SECOND + 1, [process(0, 0)])
    assert "the only process, rank 0 (node1), of the run went silent" in opened.explanation
    (resolved,) = detectors.tick(40 * SECOND, [process(0, 40)])
    assert resolved.explanation == "the run reports again"


def test_a_run_that_ends_after_its_silence_is_resolved(only):
    detectors = only("silent_rank")
    detectors.tick(31 * SECOND + 1, [process(0, 0)])
    (resolved,) = detectors.tick(40 * SECOND, [process(0, 0, ended=True)])
    assert resolved.explanation == "all processes have ended"


def test_half_of_a_thousand_ranks_gives_a_handful_of_alerts(said):
    changes = said(range(1000), 60, lambda rank, now_s: (now_s if rank % 2 else 0,))
    assert len([change for _, change in changes if change.state == "open"]) == 5
    assert len(changes) < 40
