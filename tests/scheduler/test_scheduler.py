"""Leases, retries, priorities and the one result of each request."""

from __future__ import annotations

import pytest

from driftline import events
from driftline.errors import BadData
from driftline.streams.scheduler import Scheduler, state


def test_a_request_is_leased_to_an_idle_evaluator_and_its_result_goes_to_the_run(desk, lease_of, accepted):
    one = desk()
    assert one.present("e1") == []
    lease = lease_of(one.ask("a"))
    assert (lease.request, lease.evaluator, lease.tried, lease.checkpoint.uri) == ("a", "e1", 1, "/run1/a")
    said = one.result(lease)
    assert [one.topic for one in said] == ["assignments", "telemetry"]
    closed, answer = (one.event for one in said)
    assert isinstance(closed, events.RequestClosed)
    assert accepted(said) == [("run1", "a", "done")]
    assert (answer.tries, answer.evaluator, answer.lease, answer.reason) == (1, "e1", lease.lease, "steps")
    assert one.state.requests == {}
    assert one.state.ledger["sums"].seconds == 2.0


def test_an_evaluator_has_one_lease_at_a_time(desk, leases, lease_of):
    one = desk()
    one.present("e1")
    first = lease_of(one.ask("a"))
    assert leases(one.ask("b")) == []
    assert leases(one.present("e1", lease=first.lease)) == []
    assert leases(one.present("e1")) == [], "it may not have seen the lease yet"
    assert leases(one.result(first)) == [("b", "e1")]


def test_waiting_requests_go_newest_first_but_nothing_starves(desk, leases, lease_of):
    one = desk(starve_us=60_000_000)
    for request in ("a", "b"):
        one.ask(request)
    one.wait(61)
    for request in ("c", "d"):
        one.ask(request)
    order = []
    said = one.present("e1")
    while leases(said):
        order += [request for request, _ in leases(said)]
        said = one.result(lease_of(said))
    assert order == ["a", "b", "d", "c"]


def test_requests_go_to_evaluators_that_can_run_the_suite_the_longest_idle_first(desk, leases):
    one = desk()
    one.present("e1", suites=("other",))
    one.present("e3", suites=("sums", "other"))
    one.now_s += 1
    one.present("e2")
    assert leases(one.ask("a")) == [("a", "e3")]
    assert leases(one.ask("b")) == [("b", "e2")]
    assert leases(one.ask("c")) == []
    assert leases(one.ask("d", suite="other")) == [("d", "e1")]


@pytest.mark.parametrize("status", ["failed", "incomplete", "unreadable"])
def test_a_failure_is_tried_once_more_on_another_evaluator_then_it_is_the_answer(
    desk, leases, lease_of, accepted, status
):
    one = desk()
    one.present("e1")
    one.present("e2")
    first = lease_of(one.ask("a"))
    said = one.result(first, status)
    assert accepted(said) == []
    assert leases(said) == [("a", "e2")]
    said = one.result(lease_of(said), status)
    assert accepted(said) == [("run1", "a", status)]
    assert leases(said) == []
    assert one.state.requests == {}


def test_the_retry_waits_for_another_evaluator_that_is_busy_but_not_for_ever(desk, leases, lease_of):
    one = desk(lease_us=60_000_000)
    one.present("e1")
    one.present("e2")
    first, second = lease_of(one.ask("a")), lease_of(one.ask("b"))
    assert leases(one.result(first, "failed")) == []
    assert leases(one.result(second)) == [("a", "e2")]
    alone = desk(lease_us=30_000_000)
    alone.present("e1")
    alone.present("e2")
    first, second = lease_of(alone.ask("a")), lease_of(alone.ask("b"))
    alone.result(first, "failed")
    said = []
    for _ in range(40):
        alone.progress(second)
        said += alone.wait(1, "e1", "e2")
    assert leases(said) == [("a", "e1")]


def test_a_single_evaluator_retries_its_own_failure_at_once(desk, leases, lease_of):
    one = desk()
    one.present("e1")
    assert leases(one.result(lease_of(one.ask("a")), "failed")) == [("a", "e1")]


def test_gone_is_an_answer_at_once(desk, lease_of, accepted):
    one = desk()
    one.present("e1")
    assert accepted(one.result(lease_of(one.ask("a")), "gone")) == [("run1", "a", "gone")]


def test_a_lease_without_progress_is_lost_and_progress_renews_it(desk, leases, lease_of, accepted):
    one = desk(lease_us=20_000_000)
    one.present("e1")
    one.present("e2")
    lease = lease_of(one.ask("a"))
    for _ in range(3):
        assert leases(one.wait(15, "e1", "e2")) == []
        one.progress(lease)
    said = one.wait(22, "e1", "e2")
    assert leases(said) == [("a", "e2")]
    said = one.wait(22, "e1", "e2")
    ((run, request, status),) = accepted(said)
    assert (run, request, status) == ("run1", "a", "failed")
    answer = next(one.event for one in said if isinstance(one.event, events.EvalAccepted))
    assert answer.outcome.reason == "lease lost: e2 made no progress for 20 s"


def test_a_killed_evaluator_loses_its_lease_and_another_does_the_work(desk, leases, lease_of, accepted):
    """Case 29, variant: evaluator 1 is killed in the middle of A, evaluator 2 does A; one result."""
    one = desk(present_us=15_000_000)
    one.present("e1")
    one.present("e2")
    lease_of(one.ask("a"))
    assert leases(one.wait(14, "e2")) == []
    said = one.wait(3, "e2")
    assert leases(said) == [("a", "e2")]
    assert accepted(one.result(lease_of(said))) == [("run1", "a", "done")]


def test_a_long_evaluation_does_not_hold_up_another_one(desk, lease_of, accepted):
    """Case 29: A takes seven times as long as B, on two evaluators."""
    one = desk(lease_us=5_000_000)
    one.present("e1")
    one.present("e2")
    a, b = lease_of(one.ask("a")), lease_of(one.ask("b"))
    assert accepted(one.result(b)) == [("run1", "b", "done")]
    for _ in range(7):
        one.progress(a)
        one.wait(4, "e1", "e2")
    assert accepted(one.result(a)) == [("run1", "a", "done")]
    assert one.state.counters["leases"] == 2


def test_the_first_complete_result_counts_whatever_its_lease_and_later_ones_are_refused(
    desk, lease_of, accepted
):
    one = desk(lease_us=20_000_000)
    one.present("e1")
    one.present("e2")
    first = lease_of(one.ask("a"))
    second = lease_of(one.wait(22, "e1", "e2"))
    assert accepted(one.result(first)) == [("run1", "a", "done")]
    assert one.result(second) == []
    assert one.state.counters["results_late"] == 1
    assert one.state.ledger["sums"].wasted_seconds == 2.0


def test_the_failure_of_a_lost_lease_changes_nothing(desk, lease_of):
    one = desk(lease_us=20_000_000)
    one.present("e1")
    one.present("e2")
    first = lease_of(one.ask("a"))
    second = lease_of(one.wait(22, "e1", "e2"))
    assert one.result(first, "gone") == []
    assert one.state.requests["a"].active.lease == second.lease


def test_results_of_older_checkpoints_are_accepted_when_they_arrive(desk, lease_of, accepted):
    """Case 33: the result of checkpoint 12 comes before that of checkpoint 10."""
    one = desk()
    one.present("e1")
    one.present("e2")
    ten, twelve = lease_of(one.ask("ckpt10")), lease_of(one.ask("ckpt12"))
    assert accepted(one.result(twelve)) == [("run1", "ckpt12", "done")]
    assert accepted(one.result(ten)) == [("run1", "ckpt10", "done")]


def test_one_evaluation_answers_every_run_that_asked_each_once(desk, leases, lease_of, accepted):
    one = desk()
    lease_of_a = lease_of([*one.ask("a"), *one.ask("a", "run2"), *one.ask("a"), *one.present("e1")])
    assert accepted(one.result(lease_of_a)) == [("run1", "a", "done"), ("run2", "a", "done")]
    said = one.ask("a", "run3")
    assert accepted(said) == [("run3", "a", "done")]
    assert said[0].event.checkpoint.uri == "/run3/a"
    assert one.ask("a", "run3") == []
    assert one.state.counters["cached"] == 1


def test_a_failure_is_not_kept_for_other_runs(desk, leases, lease_of, accepted):
    one = desk()
    one.present("e1")
    one.result(lease_of(one.ask("a")), "gone")
    lease = lease_of(one.ask("a", "run2"))
    assert lease.checkpoint.uri == "/run2/a"
    assert one.ask("a", "run1") == []
    assert accepted(one.result(lease)) == [("run2", "a", "done")]


def test_a_request_sent_again_after_a_crash_is_dropped(desk):
    one = desk()
    one.ask("a", id="telemetry/0/5/1")
    one.ask("b", id="telemetry/0/5/2")
    assert one.ask("b", id="telemetry/0/5/2") == []
    assert one.ask("a", id="telemetry/0/5/1") == []
    one.ask("c", id="by hand")
    assert one.state.counters["requests_repeated"] == 2
    assert list(one.state.requests) == ["a", "b", "c"]


def test_an_evaluator_that_stops_in_order_gives_its_lease_back_and_it_is_no_try(desk, leases, lease_of):
    one = desk()
    one.present("e1")
    lease_of(one.ask("a"))
    assert one.gone("e1") == []
    lease = lease_of(one.present("e2"))
    assert (lease.tried, lease.evaluator) == (1, "e2")
    assert len({output.id for output in one.outputs}) == len(one.outputs)


def test_giving_back_is_bounded(desk, accepted):
    one = desk()
    one.ask("a")
    said = []
    for number in range(20):
        said += one.present(f"e{number}")
        said += one.gone(f"e{number}")
    assert accepted(said) == [("run1", "a", "failed")]


def test_a_hole_in_the_ticks_is_a_time_in_which_nobody_watched(desk, leases, lease_of):
    one = desk(lease_us=60_000_000, present_us=15_000_000)
    one.present("e1")
    one.present("e2")
    one.wait(1, "e1", "e2")
    lease = lease_of(one.ask("a"))
    assert one.hole(3_600) == []
    assert set(one.state.evaluators) == {"e1", "e2"}
    assert leases(one.wait(10)) == []
    assert one.state.requests["a"].active.lease == lease.lease
    said = one.wait(10, "e2")
    assert leases(said) == [("a", "e2")], "e1 stays silent after the hole too"


def test_a_paused_evaluator_that_wakes_up_is_busy_until_it_says_otherwise(desk, leases, lease_of, accepted):
    one = desk(present_us=15_000_000)
    one.present("e1")
    lease = lease_of(one.ask("a"))
    one.wait(17)
    assert one.state.evaluators == {}
    assert leases(one.present("e1", lease=lease.lease)) == []
    assert accepted(one.result(lease)) == [("run1", "a", "done")]
    assert leases(one.ask("b")) == [("b", "e1")]


def test_the_configuration_of_the_log_holds_and_a_wrong_one_is_a_dead_letter(desk, accepted, lease_of):
    one = desk(retries=0)
    assert one.core.config_digest(one.state)
    one.present("e1")
    assert accepted(one.result(lease_of(one.ask("a")), "failed")) == [("run1", "a", "failed")]
    before = one.state.config
    wrong = b'{"kind":"config_changed","v":1,"worker":"w","time_us":0,"digest":"d","body":{"retris":1}}'
    (said,) = one.send(wrong)
    assert said.topic == "dead-letter"
    assert "retris" in said.event.reason
    assert one.state.config == before


@pytest.mark.parametrize("value", [None, b"", b"\x00raw", b'{"kind":"eval_requested","v":1}'])
def test_what_cannot_be_read_is_a_dead_letter_with_its_offset_and_the_rest_goes_on(desk, leases, value):
    one = desk()
    one.present("e1")
    (said,) = one.send(value)
    assert (said.topic, said.event.offset, said.event.reader) == ("dead-letter", 1, "scheduler")
    assert leases(one.ask("a")) == [("a", "e1")]


@pytest.mark.parametrize("value", [b'{"kind":"new","v":1}', b'{"kind":"eval_requested","v":99}'])
def test_what_a_later_version_wrote_is_skipped_and_counted(desk, value):
    one = desk()
    assert one.send(value) == []
    assert one.state.counters["skipped"] == 1


def test_a_gap_in_the_log_is_told(desk):
    one = desk()
    (output,) = one.core.gap(one.state, 5, 9)
    assert output.topic == "dead-letter"
    assert "offsets 5 to 8" in events.decode(output.value).reason
    assert one.state.counters["records_lost"] == 4


def test_too_many_waiting_requests_are_answered_at_once(desk, accepted, monkeypatch):
    monkeypatch.setattr("driftline.streams.scheduler.core.OPEN_MAX", 3)
    one = desk()
    said = [accepted(one.ask(f"r{number}")) for number in range(5)]
    assert said == [[], [], [], [("run1", "r3", "failed")], [("run1", "r4", "failed")]]


def test_accepted_results_are_kept_up_to_a_bound(desk, leases, lease_of, monkeypatch):
    monkeypatch.setattr("driftline.streams.scheduler.leases.CLOSED_MAX", 2)
    one = desk()
    one.present("e1")
    for request in ("a", "b", "c"):
        one.result(lease_of(one.ask(request)))
    assert list(one.state.closed) == ["b", "c"]
    assert leases(one.ask("a", "run2")) == [("a", "e1")]


def test_what_is_not_its_state_is_refused(desk):
    core = Scheduler()
    with pytest.raises(BadData, match="not a state of the scheduler"):
        core.load(b"junk")
    later = desk().state
    later.format = state.FORMAT + 1
    with pytest.raises(BadData, match="update driftline"):
        core.load(core.dump(later))


def test_a_suite_that_nobody_present_runs_is_said_in_the_log(desk):
    """It waits, and who runs the scheduler is told which evaluator is missing."""
    one = desk(present_us=15_000_000)
    one.ask("a", suite="code")
    (said,) = one.core.notices(one.state)
    assert said.startswith("evaluations of suite code wait: no evaluator is present")
    one.present("e1", suites=("sums",))
    assert "no evaluator that is present runs it" in one.core.notices(one.state)[0]
    one.present("e2", suites=("code",))
    assert one.core.notices(one.state) == []


def test_a_refused_configuration_is_said_until_a_good_one_comes(desk):
    one = desk()
    wrong = b'{"kind":"config_changed","v":1,"worker":"w","time_us":0,"digest":"d1","body":{"retris":1}}'
    one.send(wrong)
    assert "configuration d1 is refused" in one.core.notices(one.state)[0]
    one.send(wrong.replace(b'{"retris":1}', b'{"retries":1}'))
    assert one.core.notices(one.state) == []


def test_a_run_beyond_the_bound_on_askers_is_answered_at_once(desk, accepted, monkeypatch):
    """It is not forgotten: it gets a failure that says why."""
    monkeypatch.setattr("driftline.streams.scheduler.core.ASKERS_MAX", 2)
    one = desk()
    said = [accepted(one.ask("a", f"run{number}")) for number in range(3)]
    assert said == [[], [], [("run2", "a", "failed")]]
    monkeypatch.setattr("driftline.streams.scheduler.core.ASKERS_ALL_MAX", 2)
    assert accepted(one.ask("b", "run9")) == [("run9", "b", "failed")]
    assert one.state.counters["refused_askers"] == 1
    assert one.state.counters["refused_full"] == 1


def test_what_is_remembered_of_askers_and_sources_is_bounded(desk, lease_of, accepted, monkeypatch):
    """Years of runs and of topics made again: the state keeps the newest of each."""
    monkeypatch.setattr("driftline.streams.scheduler.leases.TOLD_MAX", 5)
    monkeypatch.setattr("driftline.streams.scheduler.core.SOURCES_MAX", 3)
    one = desk()
    one.present("e1")
    one.result(lease_of(one.ask("a", "run0")))
    for number in range(20):
        one.ask("a", f"run{number}", id=f"topic{number}/0/1/0")
    assert one.state.closed["a"].runs == [f"run{number}" for number in range(15, 20)]
    assert list(one.state.asked) == ["topic17/0", "topic18/0", "topic19/0"]
    one.present("e1")
    for number in range(20):
        lease = lease_of(one.ask("f", f"run{number}", id="by hand"))
        one.result(lease, "gone")
        one.present("e1")
    assert len(one.state.closed["f"].runs) <= 5
    assert one.ask("a", "run19", id="topic19/0/1/0") == []


def test_the_ledger_of_four_huge_results_has_a_bound(desk):
    """F18: four results of 2^63 - 1 tokens each; the state must go into a snapshot."""
    d = desk()
    d.wait(1, "gpu")
    for number in range(4):
        said = d.ask(f"r{number}") + d.wait(2, "gpu")
        (lease,) = [one.event for one in said if isinstance(one.event, events.Lease)]
        outcome = events.EvalOutcome(status="done", cost=events.Cost(seconds=1.0, tokens=2**63 - 1))
        which = {"evaluator": lease.evaluator, "lease": lease.lease, "request": lease.request}
        d.send(events.EvalResult(outcome=outcome, time_us=0, **which))
    assert d.state.spent("sums").tokens == 2**63 - 1
    assert d.core.load(d.core.dump(d.state)).spent("sums").done == 4
