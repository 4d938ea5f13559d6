"""All detectors and rules of one run and attempt, as the window engine calls them.

Detectors are asked in the order of the configuration, then the rules in theirs, so the answers have one
order. State is kept by name and kind: with a changed configuration only what both know is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from driftline.config import Axis, DetectorKind, DetectorSpec, PipelineConfig
from driftline.streams.detectors.base import Detector
from driftline.streams.detectors.loss_divergence import LossDivergence
from driftline.streams.detectors.loss_spike import LossSpike
from driftline.streams.detectors.non_finite import NonFiniteDetector
from driftline.streams.detectors.silent_rank import SilentRank
from driftline.streams.detectors.slow_rank import SlowRank
from driftline.streams.detectors.threshold import Threshold
from driftline.streams.views import AlertChange, Liveness, NonFinite, PaneView

_ROUTES_MAX = 20_000
_NONE = np.zeros(0, np.bool_)


def _make(spec: DetectorSpec) -> Detector[Any]:
    kinds: dict[DetectorKind, type[Detector[Any]]] = {
        "non_finite": NonFiniteDetector,
        "loss_spike": LossSpike,
        "loss_divergence": LossDivergence,
        "slow_rank": SlowRank,
        "silent_rank": SilentRank,
    }
    make: Any = kinds[spec.kind]
    detector: Detector[Any] = make(spec)
    return detector


class Detectors:
    """Implements ``views.Detection``.

    ``dumped`` is what :meth:`dump` gave. Raises SettingsError for parameters that a detector does not have.
    """

    def __init__(self, config: PipelineConfig, dumped: Any | None = None) -> None:
        axes: frozenset[Axis] = frozenset(window.axis for window in config.windows)
        self._all: dict[str, Detector[Any]] = {
            f"{spec.kind}:{spec.name}": _make(spec) for spec in config.detectors
        }
        self._all |= {f"rule:{rule.name}": Threshold(rule, axes) for rule in config.rules}
        self._routes: dict[tuple[Axis, str], list[Detector[Any]]] = {}
        self._wanted: dict[Axis, npt.NDArray[np.bool_]] = {}
        for name, data in (dumped or {}).items():
            if name in self._all:
                self._all[name].load(data)

    def per_rank(self) -> frozenset[str]:
        """Metrics of which panes must carry ``by_rank``."""
        return frozenset().union(*(detector.per_rank() for detector in self._all.values()))

    def non_finite(self, seen: NonFinite) -> list[AlertChange]:
        """A NaN or infinity arrived."""
        return [change for detector in self._all.values() for change in detector.non_finite(seen)]

    def wants(self, axis: Axis, metrics: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which of these any of them looks at now."""
        known = self._wanted.get(axis, _NONE)
        if len(known) < len(metrics):
            more = [self._steadily(axis, metric) for metric in metrics[len(known) :]]
            known = self._wanted[axis] = np.concatenate([known, np.array(more, np.bool_)])
        awaited = [some for detector in self._all.values() if (some := detector.awaited())]
        if not awaited:
            return known
        now = [any(metric in some for some in awaited) for metric in metrics]
        return known | np.array(now, np.bool_)

    def _steadily(self, axis: Axis, metric: str) -> bool:
        return any(detector.awaited() is None for detector in self._route(axis, metric))

    def pane(self, view: PaneView) -> list[AlertChange]:
        """A pane has closed."""
        return [change for detector in self._route(view.axis, view.metric) for change in detector.pane(view)]

    def _route(self, axis: Axis, metric: str) -> list[Detector[Any]]:
        route = self._routes.get((axis, metric))
        if route is None:
            route = [detector for detector in self._all.values() if detector.wants(axis, metric)]
            if len(self._routes) < _ROUTES_MAX:
                self._routes[axis, metric] = route
        return route

    def tick(self, now_us: int, processes: Sequence[Liveness]) -> list[AlertChange]:
        """Time moved on."""
        return [change for detector in self._all.values() for change in detector.tick(now_us, processes)]

    def end(self, now_us: int) -> list[AlertChange]:
        """The attempt is over."""
        return [change for detector in self._all.values() for change in detector.end(now_us)]

    def dump(self) -> dict[str, Any]:
        """Plain data for the constructor."""
        return {name: detector.dump() for name, detector in self._all.items()}
