"""A loss that rises and does not come back: a page. On the step axis.

The *level* is the lowest that the median of the last ``window`` panes ever was (before 20 panes: the
median). A pane has *risen* where it lies above it by the largest of ``score`` robust sigmas, ``min_rise``
of the level's size and ``min_progress`` of what the loss has fallen so far. The first risen pane begins an
excursion, dated back to the start of the climb that led there. It is a divergence when

- it reaches a new high, at its ``rise_panes``-th pane or later, or ``rise_steps`` steps after its beginning
  (logs of every tenth step), and was not back in between: a spike has its high at once and falls from
  there;
- or about ``patience`` of its panes have risen (each that was back, less than half risen, takes two away).

A non-finite pane counts as a new high. With less than 20 panes of history a single pane that is back ends
the excursion, since little is known then. ``calm_panes`` panes in a row that have not risen end the
excursion and resolve the page. During an excursion nothing is learned; after ``relearn_panes`` at a finite
new level, that level is normal. At most 256 metrics; more are counted in ``unwatched``.
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
from driftline.streams.detectors.loss_spike import METRICS_MAX, leap, scaled
from driftline.streams.detectors.robust import clamp, keep, normal
from driftline.streams.views import AlertChange, PaneView

_SETTLED = 20
_BEYOND = 1e308


class Excursion(msgspec.Struct):
    """A rise that is going on."""

    since: int
    """Step at which the climb began."""
    level: float
    height: float
    peak: float
    last: int
    panes: int
    """Counted from the start of the climb."""
    risen: int = 1
    """Risen panes, all told."""
    balance: int = 1
    """Risen panes, less two for each that was back (less than half risen)."""
    calm: int = 0
    paged: bool = False


class Level(msgspec.Struct):
    """One loss."""

    end: int | None = None
    history: list[float] = []
    best: float | None = None
    top: float | None = None
    before: float | None = None
    climb: int | None = None
    """Start of the panes in a row that climb and are a quarter risen already."""
    climbed: int = 0
    """How many these are."""
    away: Excursion | None = None


class DivergenceState(msgspec.Struct):
    """By metric."""

    series: dict[str, Level] = {}
    unwatched: int = 0


class LossDivergence(Detector[DivergenceState]):
    """See the module."""

    state_type = DivergenceState

    def __init__(self, spec: DetectorSpec) -> None:
        self.alerts, self._params = lifecycle_of(spec)
        self._metrics = spec.metrics
        self.state = DivergenceState()

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
            series = self.state.series[view.metric] = Level()
        broken = view.nan > 0 or view.inf > 0
        if (view.mean is None and not broken) or (series.end is not None and view.start < series.end):
            return []
        series.end = view.end
        value = _BEYOND if broken or view.mean is None else clamp(view.mean)
        climbs = series.before is not None and value > series.before
        series.before = value
        if series.away is None:
            self._begin(series, view, value, climbs)
            if series.away is None and not broken:
                keep(series.history, value, int(self._params["window"]))
            return []
        return self._go_on(series, series.away, view, value, broken)

    def _begin(self, series: Level, view: PaneView, value: float, climbs: bool) -> None:
        """Starts an excursion if the pane has risen."""
        count = len(series.history)
        if count < int(self._params["warmup"]):
            return
        level, noise = normal(series.history)
        series.top = level if series.top is None else max(series.top, level)
        if count >= _SETTLED:
            series.best = level if series.best is None else min(series.best, level)
        level = level if series.best is None else series.best
        height = leap(level, clamp(noise * (1 + 0.5 / count)), series.top, self._params)
        if not climbs or value - level < height / 4:
            series.climb, series.climbed = None, 0
        else:
            series.climb = view.start if series.climb is None else series.climb
            series.climbed += 1
        if value - level >= height and value > level:
            since = view.start if series.climb is None else series.climb
            series.away = Excursion(since, level, height, value, view.end - 1, max(1, series.climbed))
            series.climb, series.climbed = None, 0

    def _go_on(
        self, series: Level, away: Excursion, view: PaneView, value: float, broken: bool
    ) -> list[AlertChange]:
        away.panes += 1
        if not (value - away.level >= away.height and value > away.level):
            return self._below(series, away, view, value)
        away.calm = 0
        away.risen += 1
        away.balance += 1
        away.last = view.end - 1
        new_high = value > away.peak or broken
        away.peak = max(away.peak, value)
        long = away.panes >= int(self._params["rise_panes"]) or (
            view.start - away.since >= int(self._params["rise_steps"])
        )
        if (
            not away.paged
            and not (new_high and long and away.balance >= 2)
            and away.balance < int(self._params["patience"])
        ):
            return []
        if away.paged and away.panes >= int(self._params["relearn_panes"]) and not broken:
            series.away, series.best, series.history, series.top = None, None, [], None
            text = f"{named(view.metric)} stayed at its new level, {figure(value)}: taken as normal from here"
            return self.alerts.calm(view.metric, view.now_us, text)
        away.paged = True
        finding = self._finding(away, view, value, broken)
        return self.alerts.found(view.metric, finding, view.now_us)

    def _below(self, series: Level, away: Excursion, view: PaneView, value: float) -> list[AlertChange]:
        away.calm += 1
        back = value - away.level < away.height / 2
        if back:
            away.balance = max(0, away.balance - 2)
        unsure = len(series.history) < _SETTLED and not away.paged
        if away.calm < int(self._params["calm_panes"]) and not (back and unsure):
            return []
        series.away = None
        if unsure:
            keep(series.history, value, int(self._params["window"]))
        text = (
            f"{named(view.metric)} came back to {figure(value)} by step {view.start} "
            f"(level before: {figure(away.level)}); it was away from step {away.since} to {away.last}"
        )
        return self.alerts.calm(view.metric, view.now_us, text)

    def _finding(self, away: Excursion, view: PaneView, value: float, broken: bool) -> Finding:
        name = named(view.metric)
        if broken:
            text = f"{name} is not finite at step {view.start} and has not come back since step {away.since}"
        else:
            text = (
                f"{name} rose from {figure(away.level)} to {figure(value)} since step {away.since} "
                f"and has not come back by step {view.start}"
            )
        score = scaled(clamp(value - away.level), away.height, self._params["score"])
        return Finding(
            position=view.start,
            metric=view.metric,
            rank=None,
            step=away.since,
            last_step=away.last,
            value=view.mean,
            expected=away.level,
            score=score,
            text=text,
            evidence={"level": away.level, "risen_by": away.height, "panes": away.panes},
        )
