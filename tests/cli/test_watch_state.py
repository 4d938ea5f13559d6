"""The live view's state: what a stream of records makes of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from driftline import events, frames
from driftline.cli import watch_state
from driftline.cli.watch_state import Curve, Said, WatchState

T0 = 1_700_000_000_000_000
SECOND = 1_000_000


def frame(
    seq: int,
    values: dict[str, float | list[float]],
    *,
    step: int | None = None,
    run: str = "01r",
    process: str = "p0",
    rank: int | None = 0,
) -> bytes:
    names = list(values)
    lists = [v if isinstance(v, list) else [v] for v in values.values()]
    metric = np.repeat(np.arange(len(names), dtype=np.int16), [len(v) for v in lists])
    count = len(metric)
    return frames.encode(
        frames.Frame(
            run=run,
            process=process,
            rank=rank,
            seq=seq,
            names=names,
            metric=metric,
            step=np.full(count, frames.NO_STEP if step is None else step, np.int64),
            time_us=np.full(count, T0, np.int64),
            value=np.array([x for v in lists for x in v], np.float64),
            weight=np.ones(count),
        )
    )


def started(run: str = "01r", process: str = "p0", **fields: object) -> bytes:
    base = {
        "run": run,
        "process": process,
        "seq": 0,
        "time_us": T0,
        "name": "demo",
        "rank": 0,
        "world_size": 2,
    }
    return events.encode(events.ProcessStarted(**(base | fields)))  # type: ignore[arg-type]


CHECKPOINT = events.Checkpoint(digest="d", uri="/c", step=40, epoch=0.5)
SUITE = events.SuiteRef(name="addition", target="m:a")


def requested(request: str = "q1", run: str = "01r", at: int = 1) -> bytes:
    return events.encode(
        events.EvalRequested(
            id=f"u/0/{at}/0",
            request=request,
            run=run,
            attempt=0,
            suite=SUITE,
            checkpoint=CHECKPOINT,
            reason="steps",
            time_us=T0,
        )
    )


def accepted(status: events.EvalStatus = "done", request: str = "q1", run: str = "01r") -> bytes:
    metrics = [events.Metric(name="accuracy", value=0.4, low=0.3, high=0.5)] if status == "done" else []
    return events.encode(
        events.EvalAccepted(
            id="u/0/3/0",
            request=request,
            run=run,
            attempt=0,
            suite=SUITE,
            checkpoint=CHECKPOINT,
            reason="steps",
            evaluator="e1",
            lease="l1",
            tries=1,
            requested_us=T0,
            accepted_us=T0 + 5 * SECOND,
            outcome=events.EvalOutcome(
                status=status, reason="" if status == "done" else "broken", metrics=metrics
            ),
        )
    )


def alert(state: events.AlertState, at: int, *, alert: str = "a1", run: str = "01r") -> bytes:
    return events.encode(
        events.Alert(
            id=f"u/0/{at}/0",
            alert=alert,
            run=run,
            attempt=0,
            rule="slow-rank",
            detector="slow_rank",
            severity="error",
            state=state,
            time_us=T0 + at * SECOND,
            opened_us=T0,
            resolved_us=T0 + at * SECOND if state == "resolved" else None,
            explanation="rank 2 is slow",
        )
    )


def test_a_frame_moves_step_samples_rate_and_curves() -> None:
    state = WatchState().see("telemetry", started(), T0)
    for at in range(1, 11):
        state.see("telemetry", frame(at, {"loss": 1 / at, "acc": at / 10}, step=at), T0 + at * SECOND)
    run = state.runs["01r"]
    assert (run.name, run.step, run.samples, run.frames, run.ranks) == ("demo", 10, 20, 10, [0])
    assert run.curves["loss"].newest == 0.1
    assert [point.at for point in run.curves["loss"].points()] == list(range(1, 11))
    assert run.rate.per_second(T0 + 11 * SECOND, over_s=5) == (2.0, 1.0)
    assert run.rate.per_second(T0 + 60 * SECOND, over_s=5) == (0.0, 0.0)


def test_a_point_of_a_curve_is_the_mean_over_ranks() -> None:
    state = WatchState()
    for rank, value in enumerate([1.0, 2.0, 6.0]):
        state.see("telemetry", frame(1, {"loss": value}, step=5, process=f"p{rank}", rank=rank), T0)
    curve = state.runs["01r"].curves["loss"]
    assert curve.points() == [(5, 3.0)]
    assert curve.by_rank == {0: 1.0, 1: 2.0, 2: 6.0}
    assert state.runs["01r"].ranks == [0, 1, 2]


def test_nan_is_counted_and_does_not_spoil_the_curve() -> None:
    state = WatchState().see(
        "telemetry", frame(1, {"loss": [1.0, float("nan"), 3.0, float("inf")]}, step=1), T0
    )
    curve = state.runs["01r"].curves["loss"]
    assert curve.non_finite == 2
    assert curve.points() == [(1, 2.0)]
    assert curve.newest == float("inf")


def test_records_that_are_sent_again_change_nothing() -> None:
    state = WatchState()
    for _ in range(2):
        state.see("telemetry", started(), T0)
        state.see("telemetry", frame(1, {"loss": 1.0}, step=1), T0)
        state.see("alerts", alert("open", 7), T0)
        state.see("alerts", alert("resolved", 9), T0)
        state.see("evals", requested(), T0)
        state.see("telemetry", accepted(), T0)
    run = state.runs["01r"]
    assert (run.samples, run.frames) == (1, 1)
    assert run.alerts["a1"].state == "resolved"
    assert [news.kind for news in state.news()] == ["run", "evaluation", "alert", "alert"], "in order of time"


def test_an_evaluation_is_asked_for_leased_in_progress_and_accepted() -> None:
    state = WatchState().see("evals", requested(), T0)
    entry = state.runs["01r"].evaluations["q1"]
    assert (entry.state, entry.step, entry.reason) == ("waiting", 40, "steps")
    lease = events.Lease(
        id="u/0/2/0",
        lease="l1",
        request="q1",
        evaluator="e1",
        tried=1,
        run="01r",
        suite=SUITE,
        checkpoint=CHECKPOINT,
        expires_us=T0,
    )
    state.see("assignments", events.encode(lease), T0)
    assert (entry.state, entry.evaluator) == ("running", "e1")
    progress = events.EvalProgress(evaluator="e1", lease="l1", request="q1", time_us=T0, done=3, total=9)
    state.see("evals", events.encode(progress), T0)
    assert (entry.done, entry.total) == (3, 9)
    state.see("telemetry", accepted(), T0)
    assert entry.state == "done"
    assert state.runs["01r"].results == [entry]
    assert state.take_news()[-1].text == "evaluation addition at step 40: accuracy 0.4 [0.3, 0.5]"
    state.see("evals", events.encode(progress), T0)
    assert entry.state == "done", "late progress does not bring an accepted evaluation back"


def test_a_result_is_known_without_its_request_and_a_failed_one_says_why() -> None:
    state = WatchState().see("telemetry", accepted("failed"), T0)
    entry = state.runs["01r"].evaluations["q1"]
    assert (entry.state, entry.why) == ("failed", "broken")
    assert state.news()[-1].bad


def test_alerts_open_and_close() -> None:
    state = WatchState()
    state.see("alerts", alert("open", 1), T0)
    state.see("alerts", alert("update", 2), T0)
    assert [a.state for a in state.runs["01r"].open_alerts] == ["update"]
    state.see("alerts", alert("resolved", 3), T0)
    assert state.runs["01r"].open_alerts == []
    assert [(n.text.split(":")[0], n.bad) for n in state.take_news()] == [
        ("alert opened", True),
        ("alert resolved", False),
    ]
    assert state.take_news() == []


def test_a_run_ends_when_all_its_processes_have() -> None:
    state = WatchState()
    for process in ("p0", "p1"):
        state.see("telemetry", started(process=process), T0)
    for process, outcome in (("p0", "finished"), ("p1", "exception")):
        assert state.runs["01r"].outcome == ""
        ended = events.ProcessEnded(run="01r", process=process, seq=1, time_us=T0, outcome=outcome)  # type: ignore[arg-type]
        state.see("telemetry", events.encode(ended), T0)
    assert state.runs["01r"].outcome == "exception"


@pytest.mark.parametrize(
    ("value", "bad", "unknown"),
    [
        (b"", 1, 0),
        (None, 1, 0),
        (b"\x00garbage", 1, 0),
        (b"\xff\xff\xff\xffgarbage", 1, 0),
        (b'{"kind":"tick","v":1}', 1, 0),
        (b'{"kind":"from_the_future","v":1}', 0, 1),
        (b'{"kind":"tick","v":99}', 0, 1),
    ],
)
def test_what_cannot_be_read_is_counted(value: bytes | None, bad: int, unknown: int) -> None:
    state = WatchState().see("telemetry", value, T0)
    assert (state.bad_records, state.unknown_records, state.runs) == (bad, unknown, {})


def test_a_curve_keeps_its_shape_in_a_bounded_number_of_points() -> None:
    curve = Curve()
    for at in range(10_000):
        curve.add(at, np.array([float(at)]))
    points = curve.points()
    assert len(points) <= watch_state.POINTS_MAX
    assert points == sorted(points)
    assert sum(p.value for p in points) / len(points) == pytest.approx(4999.5, rel=0.05)


def test_everything_is_bounded_and_what_did_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNS_MAX", "METRICS_MAX", "RANKS_MAX", "EVALS_MAX", "ALERTS_MAX"):
        monkeypatch.setattr(watch_state, name, 3)
    state = WatchState()
    for at in range(10):
        state.see("telemetry", frame(1, {"loss": 1.0}, run=f"r{at}"), T0 + at)
    assert list(state.runs) == ["r7", "r8", "r9"]
    for at in range(10):
        state.see("telemetry", frame(2 + at, {f"m{at}": 1.0}, run="r9"), T0 + 20)
        state.see("telemetry", frame(2, {"loss": 1.0}, run="r9", process=f"q{at}"), T0 + 20)
        state.see("evals", requested(f"q{at}", run="r9"), T0 + 20)
        state.see("alerts", alert("open", at + 1, alert=f"a{at}", run="r9"), T0 + 20)
    run = state.runs["r9"]
    assert [len(run.curves), len(run.processes), len(run.evaluations), len(run.alerts)] == [3, 3, 3, 3]
    assert state.left_out == 7 + 8 + 8 + 7 + 7


def test_topics_may_come_in_any_interleaving() -> None:
    telemetry = [("telemetry", started())] + [
        ("telemetry", frame(s, {"loss": 1.0}, step=s)) for s in range(1, 9)
    ]
    alerts = [("alerts", alert("open", 1)), ("alerts", alert("update", 2)), ("alerts", alert("resolved", 3))]
    evals = [("evals", requested(f"q{at}")) for at in range(5)]
    seen = set()
    for seed in range(20):
        chance, queues, state = (
            random.Random(seed),
            [list(telemetry), list(alerts), list(evals)],
            WatchState(),
        )
        while any(queues):
            topic, value = chance.choice([q for q in queues if q]).pop(0)
            state.see(topic, value, T0)  # type: ignore[arg-type]
        run = state.runs["01r"]
        seen.add((run.step, run.samples, run.alerts["a1"].state, len(run.evaluations), state.left_out))
    assert seen == {(8, 8, "resolved", 5, 0)}


def test_a_curve_shows_what_was_declared() -> None:
    """A sum over ranks where that was said, before or after the samples; else the mean."""
    for early in (True, False):
        state = WatchState()
        said = events.MetricDefined(
            run="01r", process="p9", seq=0, time_us=T0, metric="loss", reduce="sum", unit="nats"
        )
        records = [
            frame(step, {"loss": step + rank}, step=step, process=f"p{rank}", rank=rank)
            for step in (1, 2)
            for rank in (0, 1)
        ]
        for value in [events.encode(said), *records] if early else [*records, events.encode(said)]:
            state.see("telemetry", value, T0)
        curve = state.runs["01r"].curves["loss"]
        assert [point.value for point in curve.points()] == [3.0, 5.0]
        assert curve.said.unit == "nats"


def test_a_declared_sum_stays_that_of_one_step_when_points_are_joined() -> None:
    curve = Curve(Said(reduce="sum"))
    for at in range(1_000):
        curve.add(at, np.array([1.0, 2.0]))
        curve.add(at, np.array([4.0]))
    assert len(curve.points()) <= 256
    assert {point.value for point in curve.points()} == {7.0}
