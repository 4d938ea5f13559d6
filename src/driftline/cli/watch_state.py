"""What the live view knows, folded record by record: no clock, no Kafka, no terminal.

``state.see(topic, value, time_us)`` takes records of ``telemetry``, ``alerts``, ``evals`` and ``assignments``
in any interleaving of the topics (each topic in its own order) and never raises for what a record holds:
broken and unknown ones are counted. The same records give the same state. Records that are sent again (same
process and seq, same output id) change nothing.

Everything is bounded: runs, metrics per run, points per curve, evaluations, alerts and lines of news. What
did not fit is counted in ``left_out``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from driftline import events, frames
from driftline.errors import BadRecord
from driftline.records import OutputId, decode
from driftline.topics import TopicName

RUNS_MAX = 32
METRICS_MAX = 1_000
POINTS_MAX = 256
RANKS_MAX = 4_096
EVALS_MAX = 500
ALERTS_MAX = 500
NEWS_MAX = 1_000
SECOND_US = 1_000_000

WATCHED: tuple[TopicName, ...] = ("telemetry", "alerts", "evals", "assignments")
"""The topics that the view reads."""


class Point(NamedTuple):
    """One point of a curve: position (step, or seconds since the run was first seen) and value."""

    at: int
    value: float


class _Bucket(NamedTuple):
    """Finite values at some positions next to each other."""

    total: float
    number: int
    least: float
    most: float
    last: float
    places: int
    """Positions, as far as they came in their order."""

    def join(self, other: _Bucket) -> _Bucket:
        return _Bucket(
            self.total + other.total,
            self.number + other.number,
            min(self.least, other.least),
            max(self.most, other.most),
            other.last,
            self.places + other.places,
        )

    def value(self, reduce: events.Reduce) -> float:
        """One number of the bucket; a sum is that of one position, as a mean over those of the bucket."""
        match reduce:
            case "sum":
                return self.total / max(1, self.places)
            case "max":
                return self.most
            case "min":
                return self.least
            case "last":
                return self.last
        return self.total / self.number


class Said(NamedTuple):
    """What ``run.define`` said of a metric; None where it said nothing."""

    goal: events.Goal | None = None
    unit: str | None = None
    reduce: events.Reduce | None = None


class Curve:
    """A metric over its steps in at most :data:`POINTS_MAX` buckets, which grow wider as they run out."""

    def __init__(self, said: Said | None = None) -> None:
        self.said = said or Said()
        self.newest: float = math.nan
        self.newest_step: int | None = None
        self.by_rank: dict[int, float] = {}
        self.non_finite = 0
        self.samples = 0
        self._width = 1
        self._highest: int | None = None
        self._buckets: dict[int, _Bucket] = {}

    def add(self, at: int, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Finite values at position ``at``, in their order."""
        fresh = self._highest is None or at > self._highest or at // self._width not in self._buckets
        self._highest = at if self._highest is None else max(at, self._highest)
        least, most = float(values.min()), float(values.max())
        more = _Bucket(float(values.sum()), len(values), least, most, float(values[-1]), int(fresh))
        key = at // self._width
        self._buckets[key] = self._buckets[key].join(more) if key in self._buckets else more
        while len(self._buckets) > POINTS_MAX:
            self._halve()

    def points(self) -> list[Point]:
        """One number for each position (or some next to each other): the mean, or what was declared."""
        reduce = self.said.reduce or "mean"
        return [
            Point(key * self._width, bucket.value(reduce)) for key, bucket in sorted(self._buckets.items())
        ]

    def _halve(self) -> None:
        self._width *= 2
        merged: dict[int, _Bucket] = {}
        for key, bucket in sorted(self._buckets.items()):
            before = merged.get(key // 2)
            merged[key // 2] = bucket if before is None else before.join(bucket)
        self._buckets = merged


class Rate:
    """Samples and frames per second over the last seconds of record time."""

    KEPT_S = 60

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[int, int]] = {}

    def add(self, time_us: int, samples: int) -> None:
        second = time_us // SECOND_US
        before = self._seconds.get(second, (0, 0))
        self._seconds[second] = (before[0] + samples, before[1] + 1)
        if len(self._seconds) > 2 * self.KEPT_S:
            for old in sorted(self._seconds)[: -self.KEPT_S]:
                del self._seconds[old]

    def per_second(self, now_us: int, over_s: int = 5) -> tuple[float, float]:
        """(samples/s, frames/s) over the ``over_s`` whole seconds before ``now_us``."""
        end = now_us // SECOND_US
        counts = [self._seconds.get(second, (0, 0)) for second in range(end - over_s, end)]
        return sum(c[0] for c in counts) / over_s, sum(c[1] for c in counts) / over_s

    def history(self, now_us: int) -> list[float]:
        """Samples of each of the last :data:`KEPT_S` seconds."""
        end = now_us // SECOND_US
        return [float(self._seconds.get(s, (0, 0))[0]) for s in range(end - self.KEPT_S, end)]


EvalState = Literal["waiting", "running", "done", "failed", "incomplete", "gone", "unreadable"]


@dataclass
class Evaluation:
    """One evaluation of a run as it goes on: asked for, leased, in progress, accepted."""

    request: str
    suite: str
    step: int | None
    epoch: float | None
    reason: str
    state: EvalState = "waiting"
    evaluator: str = ""
    done: int = 0
    total: int = 0
    requested_us: int = 0
    accepted_us: int | None = None
    metrics: list[events.Metric] = field(default_factory=list)
    why: str = ""
    seconds: float = 0.0

    def metric(self, *names: str) -> events.Metric | None:
        """The first of these metrics that the result has."""
        by_name = {metric.name: metric for metric in self.metrics}
        return next((by_name[name] for name in names if name in by_name), None)


@dataclass
class ProcessView:
    """One SDK process of a run."""

    rank: int | None
    role: str = "trainer"
    host: str = ""
    seq: int = -1
    step: int | None = None
    last_us: int = 0
    outcome: str = ""
    """Empty while it runs, then how it ended."""


@dataclass
class RunView:
    """One run."""

    run: str
    name: str = ""
    first_us: int = 0
    last_us: int = 0
    world_size: int | None = None
    step: int | None = None
    samples: int = 0
    frames: int = 0
    checkpoints: int = 0
    checkpoint_step: int | None = None
    rate: Rate = field(default_factory=Rate)
    curves: dict[str, Curve] = field(default_factory=dict)
    said: dict[str, Said] = field(default_factory=dict)
    """What its metrics were declared to be."""
    processes: dict[str, ProcessView] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """By request."""
    alerts: dict[str, events.Alert] = field(default_factory=dict)
    """Newest state of each alert."""

    @property
    def ranks(self) -> list[int]:
        """Ranks seen so far."""
        return sorted({p.rank for p in self.processes.values() if p.rank is not None})

    @property
    def outcome(self) -> str:
        """Empty while a process runs; else "finished", "exception" or "signal"."""
        outcomes = {p.outcome for p in self.processes.values()}
        if not outcomes or "" in outcomes:
            return ""
        return next(kind for kind in ("exception", "signal", "finished") if kind in outcomes)

    @property
    def open_alerts(self) -> list[events.Alert]:
        return [alert for alert in self.alerts.values() if alert.state != "resolved"]

    @property
    def results(self) -> list[Evaluation]:
        """Accepted evaluations in order of their steps."""
        done = [e for e in self.evaluations.values() if e.accepted_us is not None]
        return sorted(done, key=lambda e: (e.step if e.step is not None else -1, e.suite))


class News(NamedTuple):
    """One line worth telling: an alert, an evaluation, a start, an end."""

    time_us: int
    run: str
    kind: Literal["run", "checkpoint", "evaluation", "alert"]
    text: str
    bad: bool = False


class WatchState:
    """All that was seen."""

    def __init__(self) -> None:
        self.runs: dict[str, RunView] = {}
        self.evaluators: dict[str, events.EvaluatorPresent] = {}
        self.bad_records = 0
        self.unknown_records = 0
        self.left_out = 0
        """Series, ranks, evaluations or alerts that did not fit the view's bounds."""
        self.now_us = 0
        """The largest record time so far."""
        self._news: deque[News] = deque(maxlen=NEWS_MAX)
        self._untold = 0
        self._outputs: dict[str, OutputId] = {}

    # --- reading -----------------------------------------------------------------------------------------

    @property
    def newest_run(self) -> RunView | None:
        """The run that was heard of last."""
        return max(self.runs.values(), key=lambda run: run.last_us, default=None)

    def news(self) -> list[News]:
        """The last lines of news in order of their times, whatever order the topics came in."""
        return sorted(self._news, key=lambda entry: entry.time_us)

    def take_news(self) -> list[News]:
        """What is new since the last call, in order of its times."""
        lines = list(self._news)[len(self._news) - min(self._untold, len(self._news)) :]
        self._untold = 0
        return sorted(lines, key=lambda entry: entry.time_us)

    # --- folding -----------------------------------------------------------------------------------------

    def see(self, topic: TopicName, value: bytes | None, time_us: int) -> WatchState:
        """Takes one record; ``time_us`` is the broker's time of it. Returns the state itself."""
        self.now_us = max(self.now_us, time_us)
        try:
            record = decode(value)
        except BadRecord:
            self.bad_records += 1
            return self
        if isinstance(record, frames.Frame):
            self._frame(record, time_us)
        elif isinstance(record, events.Unknown):
            self.unknown_records += 1
        else:
            self._event(record, time_us)
        return self

    def _event(self, event: events.Event, time_us: int) -> None:
        match event:
            case (
                events.ProcessStarted()
                | events.ProcessEnded()
                | events.Heartbeat()
                | events.RunRewound()
                | events.CheckpointSaved()
                | events.MetricDefined()
            ):
                self._from_process(event, time_us)
            case events.EvalRequested() | events.EvalAccepted() | events.EvalProgress() | events.Lease():
                self._evaluation(event, time_us)
            case events.Alert():
                self._alert(event, time_us)
            case events.EvaluatorPresent():
                if event.evaluator in self.evaluators or len(self.evaluators) < RANKS_MAX:
                    self.evaluators[event.evaluator] = event
            case events.EvaluatorGone():
                self.evaluators.pop(event.evaluator, None)
            case _:
                pass

    def _run(self, run: str, time_us: int) -> RunView:
        view = self.runs.get(run)
        if view is None:
            if len(self.runs) >= RUNS_MAX:
                oldest = min(self.runs.values(), key=lambda r: r.last_us)
                del self.runs[oldest.run]
                self.left_out += 1
            view = self.runs[run] = RunView(run, first_us=time_us)
        view.last_us = max(view.last_us, time_us)
        return view

    def _process(
        self, view: RunView, process: str, rank: int | None, seq: int, time_us: int
    ) -> ProcessView | None:
        """The sender of a record; None if this record was seen before or there are too many senders."""
        sender = view.processes.get(process)
        if sender is None:
            if len(view.processes) >= RANKS_MAX:
                self.left_out += 1
                return None
            sender = view.processes[process] = ProcessView(rank)
        if seq <= sender.seq:
            return None
        sender.seq = seq
        sender.last_us = time_us
        if rank is not None:
            sender.rank = rank
        return sender

    def _frame(self, frame: frames.Frame, time_us: int) -> None:
        view = self._run(frame.run, time_us)
        sender = self._process(view, frame.process, frame.rank, frame.seq, time_us)
        if sender is None:
            return
        count = len(frame.metric)
        view.frames += 1
        view.samples += count
        view.rate.add(time_us, count)
        if not count:
            return
        newest = int(frame.step.max())
        if newest != frames.NO_STEP:
            sender.step = newest if sender.step is None else max(sender.step, newest)
            view.step = newest if view.step is None else max(view.step, newest)
        order = np.argsort(frame.metric, kind="stable")
        edges = np.flatnonzero(np.diff(frame.metric[order])) + 1
        for rows in np.split(order, edges):
            self._series(view, frame, rows)

    def _series(
        self, view: RunView, frame: frames.Frame, rows: np.ndarray[tuple[int], np.dtype[np.intp]]
    ) -> None:
        """The samples of one metric of a frame."""
        name = frame.names[int(frame.metric[rows[0]])]
        curve = view.curves.get(name)
        if curve is None:
            if len(view.curves) >= METRICS_MAX:
                self.left_out += 1
                return
            curve = view.curves[name] = Curve(view.said.get(name))
        values, steps = frame.value[rows], frame.step[rows]
        last = int(rows[-1])
        curve.newest = float(frame.value[last])
        curve.samples += len(rows)
        curve.newest_step = int(frame.step[last]) if int(frame.step[last]) != frames.NO_STEP else None
        if frame.rank is not None and (frame.rank in curve.by_rank or len(curve.by_rank) < RANKS_MAX):
            curve.by_rank[frame.rank] = curve.newest
        finite = np.isfinite(values)
        curve.non_finite += len(rows) - int(finite.sum())
        at = np.where(steps == frames.NO_STEP, (frame.time_us[rows] - view.first_us) // SECOND_US, steps)[
            finite
        ]
        if not len(at):
            return
        order = np.argsort(at, kind="stable")
        places, starts = np.unique(at[order], return_index=True)
        for place, some in zip(places, np.split(values[finite][order], starts[1:]), strict=True):
            curve.add(int(place), some)

    def _from_process(self, event: events.FromProcess, time_us: int) -> None:
        view = self._run(event.run, time_us)
        rank = event.rank if isinstance(event, events.ProcessStarted | events.CheckpointSaved) else None
        sender = self._process(view, event.process, rank, event.seq, time_us)
        if sender is None:
            return
        match event:
            case events.ProcessStarted():
                self._started(view, sender, event, time_us)
            case events.ProcessEnded():
                sender.outcome = event.outcome
                if view.outcome:
                    text = f"run {view.name or view.run} ended: {view.outcome}"
                    self._tell(time_us, view.run, "run", text, bad=view.outcome != "finished")
            case events.Heartbeat(step=int(step)):
                sender.step = step
            case events.RunRewound():
                view.step = event.step
                self._tell(time_us, view.run, "run", f"rewound to step {event.step}")
            case events.CheckpointSaved():
                view.checkpoints += 1
                view.checkpoint_step = event.checkpoint.step
                self._tell(time_us, view.run, "checkpoint", f"checkpoint saved{_at(event.checkpoint)}")
            case events.MetricDefined():
                self._defined(view, event)
            case _:
                pass

    def _defined(self, view: RunView, event: events.MetricDefined) -> None:
        """What is said counts from here on, what is not said stays."""
        before = view.said.get(event.metric)
        if before is None and len(view.said) >= METRICS_MAX:
            self.left_out += 1
            return
        before = before or Said()
        said = view.said[event.metric] = Said(
            before.goal if event.goal is None else event.goal,
            before.unit if event.unit is None else event.unit,
            before.reduce if event.reduce is None else event.reduce,
        )
        if event.metric in view.curves:
            view.curves[event.metric].said = said

    def _started(
        self, view: RunView, sender: ProcessView, event: events.ProcessStarted, time_us: int
    ) -> None:
        first = not view.name and view.world_size is None
        view.name = event.name or view.name
        view.world_size = event.world_size if event.world_size is not None else view.world_size
        sender.role, sender.host, sender.outcome = event.role, event.host, ""
        if first:
            ranks = f", {event.world_size} ranks" if event.world_size else ""
            self._tell(time_us, view.run, "run", f"run {event.name or event.run} started{ranks}")

    def _evaluation(
        self,
        event: events.EvalRequested | events.EvalAccepted | events.EvalProgress | events.Lease,
        time_us: int,
    ) -> None:
        match event:
            case events.EvalRequested():
                known = self._entry(event, time_us)
                if known is not None:
                    known.requested_us = event.time_us
            case events.Lease():
                for entry in self._asked(event.request):
                    entry.state, entry.evaluator = "running", event.evaluator
            case events.EvalProgress():
                for entry in self._asked(event.request):
                    entry.done, entry.total, entry.evaluator = event.done, event.total, event.evaluator
                    entry.state = "running"
            case events.EvalAccepted():
                self._accepted(event, time_us)

    def _asked(self, request: str) -> list[Evaluation]:
        """Entries of all runs that wait for this request."""
        found = [view.evaluations.get(request) for view in self.runs.values()]
        return [entry for entry in found if entry is not None and entry.accepted_us is None]

    def _entry(self, event: events.EvalRequested | events.EvalAccepted, time_us: int) -> Evaluation | None:
        view = self._run(event.run, time_us)
        entry = view.evaluations.get(event.request)
        if entry is None:
            if len(view.evaluations) >= EVALS_MAX:
                self.left_out += 1
                return None
            point = event.checkpoint
            entry = Evaluation(event.request, event.suite.name, point.step, point.epoch, event.reason)
            view.evaluations[event.request] = entry
        return entry

    def _accepted(self, event: events.EvalAccepted, time_us: int) -> None:
        entry = self._entry(event, time_us)
        if entry is None or entry.accepted_us is not None:
            return
        entry.state = event.outcome.status
        entry.metrics = event.outcome.metrics
        entry.why = event.outcome.reason
        entry.evaluator = event.evaluator
        entry.seconds = event.outcome.cost.seconds
        entry.requested_us, entry.accepted_us = event.requested_us, event.accepted_us
        said = ", ".join(_number(metric) for metric in entry.metrics[:4]) or entry.why or entry.state
        text = f"evaluation {entry.suite}{_at(event.checkpoint)}: {said}"
        self._tell(event.accepted_us, event.run, "evaluation", text, bad=entry.state != "done")

    def _alert(self, event: events.Alert, time_us: int) -> None:
        view = self._run(event.run, time_us)
        before = view.alerts.get(event.alert)
        if self._again(event) or (
            before is not None and before.state == "resolved" and event.state == "update"
        ):
            return
        if before is None and len(view.alerts) >= ALERTS_MAX:
            resolved = next((key for key, alert in view.alerts.items() if alert.state == "resolved"), None)
            self.left_out += 1
            if resolved is None:
                return
            del view.alerts[resolved]
        view.alerts[event.alert] = event
        if event.state != "update":
            what = "opened" if event.state == "open" else "resolved"
            text = f"alert {what}: {event.rule}: {event.explanation}"
            self._tell(event.time_us, event.run, "alert", text, bad=event.state == "open")

    def _again(self, event: events.Alert) -> bool:
        """Whether an output was seen before: within an output partition ids only grow."""
        try:
            position = OutputId.parse(event.id)
        except BadRecord:
            return False
        source = f"{position.topic_uuid}/{position.partition}"
        before = self._outputs.get(source)
        if before is not None and position <= before:
            return True
        self._outputs[source] = position
        return False

    def _tell(
        self,
        time_us: int,
        run: str,
        kind: Literal["run", "checkpoint", "evaluation", "alert"],
        text: str,
        *,
        bad: bool = False,
    ) -> None:
        self._news.append(News(time_us, run, kind, text, bad))
        self._untold += 1


def _at(checkpoint: events.Checkpoint) -> str:
    return f" at step {checkpoint.step}" if checkpoint.step is not None else ""


def _number(metric: events.Metric) -> str:
    """A metric with its interval: ``accuracy 0.412 [0.35, 0.48]``."""
    said = f"{metric.name} {events.to_float(metric.value):.4g}"
    if metric.low is not None and metric.high is not None:
        said += f" [{events.to_float(metric.low):.3g}, {events.to_float(metric.high):.3g}]"
    return said
