"""One-step outliers and short leaps of a loss, on the step axis.

A pane is a spike where its mean lies above the median of the last ``window`` panes by the largest of:
``score`` robust sigmas, ``min_rise`` of the median's size, ``min_progress`` of what the loss has fallen so
far (so that a loss near zero is not judged by its last digits). Scored first, learned after; while an alert
is open the normal is frozen and nothing is learned, for at most ``window`` panes: then a lasting new level
becomes normal. Resolved after ``calm_panes`` panes in a row under half of that height. Falls are no spikes.
At most 256 metrics; more are counted in ``unwatched``.
"""

from __future__ import annotations

import msgspec

from driftline.config import Axis, DetectorSpec
from driftline.streams.detectors.base import (
    Detector,
    figure,
    is_training_loss,
    lifecycle_of,
    matches,
    named,
)
from driftline.streams.detectors.lifecycle import Finding
from driftline.streams.detectors.robust import clamp, keep, normal
from driftline.streams.views import AlertChange, PaneView

METRICS_MAX = 256
SCORE_MAX = 1e6
_EARLY = 3


class Series(msgspec.Struct):
    """One loss: its history and, while ``first`` is set, the leap that is going on."""

    end: int | None = None
    history: list[float] = []
    top: float | None = None
    """The highest level so far: progress is counted from there."""
    first: int | None = None
    last: int | None = None
    panes: int = 0
    calm: int = 0
    level: float = 0.0
    height: float = 0.0


class SpikeState(msgspec.Struct):
    """By metric."""

    series: dict[str, Series] = {}
    unwatched: int = 0


class LossSpike(Detector[SpikeState]):
    """See the module."""

    state_type = SpikeState

    def __init__(self, spec: DetectorSpec) -> None:
        self.alerts, params = lifecycle_of(spec)
        self._params = params
        self._window = int(params["window"])
        self._metrics = spec.metrics
        self.state = SpikeState()

    def wants(self, axis: Axis, metric: str) -> bool:
        if axis != "step":
            return False
        return matches(metric, self._metrics) if self._metrics else is_training_loss(metric)

    def pane(self, view: PaneView) -> list[AlertChange]:
        series = self.state.series.get(view.metric)
        if series is None:
            if len(self.state.series) >= METRICS_MAX:
                self.state.unwatched += 1
                return []
            series = self.state.series[view.metric] = Series()
        if view.mean is None or (series.end is not None and view.start < series.end):
            return []
        series.end = view.end
        frozen = series.first is not None and series.panes < self._window
        if not frozen and series.history:
            self._judge(series)
        changes = self._score(series, view, view.mean) if self._warm(series) else []
        if series.first is None or series.panes >= self._window:
            keep(series.history, clamp(view.mean), self._window)
        return changes

    def _warm(self, series: Series) -> bool:
        return len(series.history) >= min(self._window, int(self._params["warmup"]))

    def _judge(self, series: Series) -> None:
        """What is normal now, and how high a leap must be."""
        level, noise = normal(series.history)
        if len(series.history) >= _EARLY:
            series.top = level if series.top is None else max(series.top, level)
        series.level, series.height = level, leap(level, noise, series.top, self._params)

    def _score(self, series: Series, view: PaneView, value: float) -> list[AlertChange]:
        rise = clamp(value - series.level)
        if rise > 0 and rise >= series.height:
            series.first = view.start if series.first is None else series.first
            series.last, series.calm = view.end - 1, 0
            series.panes += 1
            finding = self._finding(series, view, value, rise)
            return self.alerts.found(view.metric, finding, view.now_us)
        if series.first is None:
            return []
        series.panes += 1
        series.calm = series.calm + 1 if rise < series.height / 2 else 0
        if series.calm < int(self._params["calm_panes"]):
            return []
        text = (
            f"{named(view.metric)} is back at {figure(value)} (normal: {figure(series.level)}); "
            f"the spike lasted from step {series.first} to {series.last}"
        )
        series.first, series.last, series.panes, series.calm = None, None, 0, 0
        return self.alerts.calm(view.metric, view.now_us, text)

    def _finding(self, series: Series, view: PaneView, value: float, rise: float) -> Finding:
        score = scaled(rise, series.height, self._params["score"])
        since = "" if series.first == view.start else f", {series.panes} steps after it leapt"
        return Finding(
            position=view.start,
            metric=view.metric,
            rank=None,
            step=series.first,
            last_step=series.last,
            value=value,
            expected=series.level,
            score=score,
            text=(
                f"{named(view.metric)} is {figure(value)} at step {view.start}{since}: "
                f"{figure(rise)} above the normal {figure(series.level)}, {figure(score)} times its noise"
            ),
            evidence={"normal": series.level, "leap": series.height, "max_rank": view.max_rank},
        )


def leap(level: float, noise: float, top: float | None, params: dict[str, float]) -> float:
    """How far above its level a loss must be to count."""
    progress = 0.0 if top is None else clamp(top - level)
    return clamp(
        max(
            params["score"] * noise,
            params["min_rise"] * abs(level),
            params["min_progress"] * progress,
        )
    )


def scaled(rise: float, height: float, score: float) -> float:
    """A rise in units of which ``score`` make the height; at most SCORE_MAX."""
    if height <= 0 or rise / height >= SCORE_MAX / score:
        return SCORE_MAX
    return rise / height * score
