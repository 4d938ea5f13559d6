"""NaN and infinities: one alert per metric and rank, at arrival, resolved when clean again."""

from __future__ import annotations

import math

from driftline.streams.views import NonFinite

NAN, INF = float("nan"), float("inf")


def test_one_nan_in_five_losses_gives_exactly_one_alert_that_names_step_and_rank(only, pane):
    """Case 7: loss from rank 3 is 0.9, 0.8, NaN, 0.7, 0.6."""
    detectors = only("non_finite")
    said = []
    for step, value in enumerate([0.9, 0.8, NAN, 0.7, 0.6]):
        if math.isnan(value):
            said += detectors.non_finite(NonFinite("loss", 3, step, value, step))
        said += detectors.pane(pane(step, None if math.isnan(value) else value, nan=int(math.isnan(value))))
    (alert,) = said
    assert (alert.state, alert.metric, alert.rank, alert.step, alert.last_step) == ("open", "loss", 3, 2, 2)
    assert math.isnan(alert.value)
    assert alert.explanation == "loss is NaN at step 2 on rank 3"


def test_it_resolves_after_so_many_clean_panes_later_than_the_last_one(only, pane):
    detectors = only("non_finite", clean_panes=3)
    (opened,) = detectors.non_finite(NonFinite("loss", 0, 5, NAN, 0))
    assert detectors.non_finite(NonFinite("loss", 0, 7, NAN, 1)) == []  # too early for an update
    said = [(step, change) for step in range(4, 12) for change in detectors.pane(pane(step, 1.0))]
    ((step, resolved),) = said
    assert (step, resolved.state, resolved.alert, resolved.last_step) == (10, "resolved", opened.alert, 7)
    (again,) = detectors.non_finite(NonFinite("loss", 0, 11, NAN, 2_000_000))
    assert again.state == "open"
    assert again.alert != opened.alert


def test_samples_without_a_step_are_judged_on_time_panes(only, pane):
    detectors = only("non_finite", clean_panes=2)
    detectors.non_finite(NonFinite("gpu", None, None, INF, 0))
    assert not any(detectors.pane(pane(step, 1.0, metric="gpu")) for step in range(9))
    said = [change for at in range(3) for change in detectors.pane(pane(at, 1.0, metric="gpu", axis="time"))]
    assert [change.state for change in said] == ["resolved"]


def test_each_metric_and_rank_has_its_own_alert_and_every_metric_is_watched(only):
    detectors = only("non_finite")
    said = [
        change
        for metric in ("loss", "grad_norm", "val/AR@100", "损失", "x" * 600)
        for rank in (0, 1, None)
        for change in detectors.non_finite(NonFinite(metric, rank, 1, -INF, 0))
    ]
    assert len({change.alert for change in said if change.state == "open"}) == 15
    assert all(len(change.explanation) < 200 for change in said)


def test_a_thousand_ranks_that_are_all_nan_give_a_handful_of_alerts(only, pane):
    detectors = only("non_finite", clean_panes=2)
    said = [
        change
        for step in (7, 8, 9)
        for rank in range(1000)
        for change in detectors.non_finite(NonFinite("loss", rank, step, NAN, step * 1_000))
    ]
    assert [change.state for change in said].count("open") == 5
    rolled = said[-1]
    assert rolled.rank is None
    assert len(said) < 10
    said = [change for step in range(10, 13) for change in detectors.pane(pane(step, 1.0))]
    assert [change.state for change in said] == ["resolved"] * 5
    assert any(change.evidence.get("places") == 1000 - 4 for change in said)


def test_ten_thousand_metrics_that_are_all_nan_are_bounded(only):
    detectors = only("non_finite")
    said = [
        change
        for number in range(10_000)
        for change in detectors.non_finite(NonFinite(f"grad/{number}", 0, 1, NAN, 0))
    ]
    assert [change.state for change in said].count("open") <= 65
    assert len(said) <= 100
