"""NaN and infinities, as they arrive.

One alert per (metric, rank), opened at the arrival of the first one, resolved when ``clean_panes`` panes of
that metric closed after the last one seen there. Positions are steps; for samples without a step, event
time. A thousand ranks that are all NaN give a few alerts and one rolled-up one (see ``lifecycle``). At most
5,000 (metric, rank) are watched at once; more are counted in ``unwatched``.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from driftline.config import Axis, DetectorSpec
from driftline.streams.detectors.base import Detector, lifecycle_of, matches, named, place
from driftline.streams.detectors.lifecycle import Finding
from driftline.streams.views import AlertChange, NonFinite, PaneView

PLACES_MAX = 5_000


class Place(msgspec.Struct):
    """A metric on a rank that was non-finite and is not yet calm."""

    rank: int | None
    first_step: int | None
    last_step: int | None
    count: int = 0
    clean: int = 0


class NonFiniteState(msgspec.Struct):
    """Places by metric, then by rank (as text, "" for none)."""

    places: dict[str, dict[str, Place]] = {}
    watched: int = 0
    unwatched: int = 0


class NonFiniteDetector(Detector[NonFiniteState]):
    """See the module."""

    state_type = NonFiniteState

    def __init__(self, spec: DetectorSpec) -> None:
        self.alerts, params = lifecycle_of(spec)
        self._clean_panes = int(params["clean_panes"])
        self._metrics = spec.metrics
        self.state = NonFiniteState()

    def wants(self, axis: Axis, metric: str) -> bool:
        return not self._metrics or matches(metric, self._metrics)

    def awaited(self) -> Collection[str]:
        return self.state.places.keys()

    def non_finite(self, seen: NonFinite) -> list[AlertChange]:
        if not self.wants("step", seen.metric):
            return []
        rank = "" if seen.rank is None else str(seen.rank)
        at = self.state.places.get(seen.metric, {}).get(rank)
        if at is None:
            if self.state.watched >= PLACES_MAX:
                self.state.unwatched += 1
                return []
            at = Place(seen.rank, seen.step, seen.step)
            self.state.places.setdefault(seen.metric, {})[rank] = at
            self.state.watched += 1
        at.count += 1
        at.clean = 0
        if seen.step is not None:
            at.last_step = seen.step if at.last_step is None else max(at.last_step, seen.step)
            at.first_step = seen.step if at.first_step is None else min(at.first_step, seen.step)
        what = "NaN" if math.isnan(seen.value) else "infinite" if seen.value > 0 else "minus infinity"
        where = "" if seen.step is None else f" at step {seen.step}"
        times = "" if at.count == 1 else f" ({at.count} times since step {at.first_step})"
        finding = Finding(
            position=seen.now_us if seen.step is None else seen.step,
            metric=seen.metric,
            rank=seen.rank,
            step=at.first_step,
            last_step=at.last_step,
            value=seen.value,
            expected=None,
            score=None,
            text=f"{named(seen.metric)} is {what}{where}{place(seen.rank)}{times}",
            evidence={"count": at.count},
        )
        return self.alerts.found(_subject(seen.metric, rank), finding, seen.now_us)

    def pane(self, view: PaneView) -> list[AlertChange]:
        watched = self.state.places.get(view.metric)
        if not watched or view.samples <= 0:
            return []
        changes: list[AlertChange] = []
        for rank, at in list(watched.items()):
            if view.axis != ("time" if at.last_step is None else "step"):
                continue
            if at.last_step is not None and view.start <= at.last_step:
                continue
            at.clean += 1
            if at.clean >= self._clean_panes:
                del watched[rank]
                self.state.watched -= 1
                text = f"{named(view.metric)}{place(at.rank)} was finite for {at.clean} panes in a row"
                changes += self.alerts.calm(_subject(view.metric, rank), view.now_us, text)
        if not watched:
            del self.state.places[view.metric]
        return changes


def _subject(metric: str, rank: str) -> str:
    return f"{rank}|{metric}"
