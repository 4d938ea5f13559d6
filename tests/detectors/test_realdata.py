"""What a right product says of real curves and real traces."""

from __future__ import annotations

import collections
import csv
import itertools
import statistics

import pyarrow.parquet as pq
import pytest

from driftline.config import PipelineConfig
from driftline.streams.detectors import Detectors


def curve(path, step, value):
    with open(path, encoding="utf-8") as file:
        return [(int(row[step]), float(row[value])) for row in csv.DictReader(file) if row[value]]


def told(said, detector):
    return [change for change in said if change.detector == detector and change.state != "update"]


def test_a_spiky_run_that_converges_has_its_spikes_noted_and_pages_nobody(realdata, losses):
    points = curve(realdata / "train_curves/nanogpt_1B_spiky_87bd51fd.csv", "step", "train_loss")
    said = losses(Detectors(PipelineConfig()), points, "train_loss")
    values = [value for _, value in points]
    leaps = [
        points[at][0]
        for at in range(50, len(values))
        if values[at] - statistics.median(values[at - 50 : at]) > 1.0
    ]
    assert len(leaps) == 108
    spans = [(one.step, one.last_step) for one in told(said, "loss_spike") if one.state == "resolved"]
    noted = [step for step in leaps if any(first <= step <= last for first, last in spans)]
    assert len(noted) >= 100
    assert len(spans) < 250  # of 20,344 steps
    assert told(said, "loss_divergence") == []


@pytest.mark.parametrize("name", ["nanogpt_124M_muon_eb5659d0", "nanogpt_124M_soap_periodic_slow_5bdc3988"])
def test_two_one_step_outliers_are_noted_at_their_steps_without_a_page(realdata, losses, name):
    points = curve(realdata / f"train_curves/{name}.csv", "step", "train_loss")
    said = losses(Detectors(PipelineConfig()), points, "train_loss")
    spans = [(one.step, one.last_step) for one in told(said, "loss_spike") if one.state == "resolved"]
    assert {(919, 919), (947, 947)} <= set(spans)
    assert len(spans) < 30
    assert told(said, "loss_divergence") == []


@pytest.mark.parametrize("history", [0, 10, 200])
@pytest.mark.parametrize(
    ("first", "last", "page"), [(6900, 6940, True), (8738, 8743, True), (31214, 31222, False)]
)
def test_real_divergences_page_and_a_spike_that_comes_back_does_not(
    realdata, losses, first, last, page, history
):
    """The excerpts by themselves, and after a level history; the third comes back by 31250."""
    path = realdata / "train_curves/bigscience_divergence_excerpts.csv"
    points = [point for point in curve(path, "iteration", "lm_loss") if first <= point[0] <= last]
    apart = points[1][0] - points[0][0]
    before = [
        (first - apart * (history - at), points[0][1] * (1 + 0.01 * (at % 3 - 1))) for at in range(history)
    ]
    after = [(last + at, max(2.2, 2.8 - 0.6 * at / 28)) for at in range(1, 60)] if not page else []
    said = told(losses(Detectors(PipelineConfig()), before + points + after, "lm_loss"), "loss_divergence")
    assert [change.state for change in said] == (["open"] if page else [])
    assert all(change.severity == "page" for change in said)


def traced(realdata, name, operations):
    """Seconds by (step, rank) of a production trace."""
    table = pq.read_table(realdata / f"rank_timing/trace-{name}.parquet")
    columns = [table[column].to_pylist() for column in ("step", "rank", "optype", "duration")]
    times: dict[int, dict[int, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
    for step, rank, operation, duration in zip(*columns, strict=True):
        if operation in operations:
            times[step][rank] += duration
    return [(step, dict(times[step])) for step in sorted(times)]


@pytest.mark.parametrize(
    ("name", "slow"), [("AR", [0]), ("SE", [])], ids=["one slow worker", "imbalance, no bad rank"]
)
def test_the_slow_worker_of_a_production_trace_is_found(realdata, pane, name, slow):
    detectors = Detectors(PipelineConfig())
    said = []
    for step, by_rank in traced(realdata, name, {"forward-compute", "backward-compute"}):
        mean = sum(by_rank.values()) / len(by_rank)
        said += detectors.pane(pane(step, mean, metric="span/compute", by_rank=by_rank))
    assert sorted({change.rank for change in said}) == slow
    for change in said[-1:]:
        assert change.step == 16
        assert change.score == pytest.approx(2.36, abs=0.03)


def test_a_periodic_slow_step_of_all_ranks_is_no_slow_rank(realdata, pane):
    """Every tenth step is 5 times slower for every rank; the ranks differ by a few percent."""
    path = realdata / "train_curves/nanogpt_124M_soap_periodic_slow_5bdc3988.csv"
    clock = curve(path, "step", "train_time_ms")[:2_000]
    detectors = Detectors(PipelineConfig())
    said = []
    for (_, before), (step, now) in itertools.pairwise(clock):
        by_rank = {
            rank: (now - before) / 1000 * (1 + 0.03 * ((step * 7 + rank * 5) % 3)) for rank in range(8)
        }
        said += detectors.pane(pane(step, by_rank[0], metric="span/compute", by_rank=by_rank))
    assert said == []
