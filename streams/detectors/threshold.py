"""A user's rule: ``gpu_utilization > 95 for 30s``.

Compared is the mean of the finite samples of a pane, of each rank by itself (``per_rank``) or of the run;
where no sample has a rank, the run. Rules with ``for_steps`` look at step panes, all others at event-time
panes (step panes where no time windows are configured). Non-finite values are the matter of the non-finite
detector.

``for`` means: every pane with data held, from the start of the first to the end of the last at least so
long, with no gap between two panes of more than ``for`` or five panes, whichever is longer. The alert
resolves when it has not held for ``for`` or five panes, whichever is longer. At most 10,000 ranks per rule
are followed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import msgspec

from driftline.config import Axis, Comparison, Rule
from driftline.streams.detectors.base import Detector, figure, named, place
from driftline.streams.detectors.lifecycle import Finding, Lifecycle
from driftline.streams.views import AlertChange, PaneView

RANKS_MAX = 10_000
_PANES = 5
_UPDATE_US = 10_000_000
_MAX_ALERTS = 4
_SCORE_MAX = 1e6

_HOLDS: Mapping[Comparison, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class Held(msgspec.Struct):
    """A rank (or the run) for which the rule holds, or held and is not yet calm."""

    since: int
    """Start of the first pane that held without a break."""
    end: int
    """End of the last pane seen."""
    worst: float
    last: int
    """End of the last pane that held."""
    opened: bool = False
    calm_since: int | None = None


class ThresholdState(msgspec.Struct):
    """By rank as text, "" for the run."""

    held: dict[str, Held] = {}
    unwatched: int = 0


class Threshold(Detector[ThresholdState]):
    """See the module."""

    state_type = ThresholdState

    def __init__(self, rule: Rule, axes: frozenset[Axis]) -> None:
        self.alerts = Lifecycle(
            rule.name, "threshold", rule.severity, update_us=_UPDATE_US, max_alerts=_MAX_ALERTS
        )
        self._rule = rule
        self._holds = _HOLDS[rule.op]
        timed: Axis = "time" if "time" in axes or rule.for_us else "step"
        self._axis: Axis = "step" if rule.for_steps else timed
        self._for = rule.for_steps if self._axis == "step" else rule.for_us
        self.state = ThresholdState()

    def wants(self, axis: Axis, metric: str) -> bool:
        return axis == self._axis and metric == self._rule.metric

    def per_rank(self) -> frozenset[str]:
        return frozenset({self._rule.metric}) if self._rule.per_rank else frozenset()

    def pane(self, view: PaneView) -> list[AlertChange]:
        changes: list[AlertChange] = []
        if self._rule.per_rank and view.by_rank:
            for rank in sorted(view.by_rank):
                changes += self._see(str(rank), rank, view.by_rank[rank], view)
        elif view.mean is not None:
            changes += self._see("", None, view.mean, view)
        return changes

    def _see(self, key: str, rank: int | None, value: float, view: PaneView) -> list[AlertChange]:
        held = self.state.held.get(key)
        if held is not None and view.start < held.end:
            return []
        if not self._holds(value, self._rule.bound):
            return [] if held is None else self._calm(key, held, rank, view)
        patience = max(self._for, _PANES * (view.end - view.start))
        if held is None:
            if len(self.state.held) >= RANKS_MAX:
                self.state.unwatched += 1
                return []
            held = self.state.held[key] = Held(view.start, view.end, value, view.end)
        elif not held.opened and view.start - held.end > patience:
            held.since, held.worst = view.start, value
        held.end = held.last = view.end
        held.calm_since = None
        if abs(value - self._rule.bound) > abs(held.worst - self._rule.bound):
            held.worst = value
        if not held.opened and view.end - held.since < self._for:
            return []
        held.opened = True
        return self.alerts.found(key, self._finding(held, rank, value, view), view.now_us)

    def _calm(self, key: str, held: Held, rank: int | None, view: PaneView) -> list[AlertChange]:
        if not held.opened:
            del self.state.held[key]
            return []
        held.end = view.end
        if held.calm_since is None:
            held.calm_since = view.start
        calm = max(self._for, _PANES * (view.end - view.start))
        if view.end - held.calm_since < calm:
            return []
        del self.state.held[key]
        text = (
            f"{named(self._rule.metric)}{place(rank)} was not {self._rule.op} {figure(self._rule.bound)} "
            f"for {self._length(view.end - held.calm_since)}; "
            f"before that it was for {self._length(held.last - held.since)}"
        )
        return self.alerts.calm(key, view.now_us, text)

    def _finding(self, held: Held, rank: int | None, value: float, view: PaneView) -> Finding:
        rule = self._rule
        steps = self._axis == "step"
        return Finding(
            position=view.start,
            metric=rule.metric,
            rank=rank,
            step=held.since if steps else None,
            last_step=view.end - 1 if steps else None,
            value=value,
            expected=rule.bound,
            score=min(_SCORE_MAX, abs(value - rule.bound) / (abs(rule.bound) or 1.0)),
            text=(
                f"{named(rule.metric)}{place(rank)} is {figure(value)}, {rule.op} {figure(rule.bound)} "
                f"for {self._length(view.end - held.since)}"
            ),
            evidence={"op": rule.op, "bound": rule.bound, "for": self._for, "furthest": held.worst},
        )

    def _length(self, size: int) -> str:
        return f"{size} steps" if self._axis == "step" else f"{figure(size / 1_000_000)} s"
