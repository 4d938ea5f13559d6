"""A rank that computes persistently slower than the others, by its spans per step.

For each step pane, each rank's time is compared with the median of the *other* ranks: their ratio. A rank's
step is slow where the ratio exceeds the floor (1 plus half of ``ratio`` - 1) and the excess
``min_excess_s``. A rank is slow when ``share`` of its last ``window`` panes are, and the median ratio of
these panes exceeds ``ratio``. Single steps may jump two- or threefold (an oversubscribed host) without
making a rank slow. Where more than ``max_share`` of the ranks would be, it is the pattern of a group (a
pipeline stage), and none is called slow.

Default metrics: the spans compute, forward and data. Not backward: under data parallelism it contains the
waiting for the slowest, so that all ranks look alike. Values are seconds.

Memory: only ranks that were slow in one of the last panes are followed, at most 2,048 per metric (then no
new one), 64 metrics.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from driftline.config import Axis, DetectorSpec
from driftline.streams.detectors.base import Detector, figure, lifecycle_of, named
from driftline.streams.detectors.lifecycle import Finding
from driftline.streams.detectors.robust import clamp, median, middle
from driftline.streams.views import AlertChange, PaneView

DEFAULT_METRICS = ("span/compute", "span/forward", "span/data")
RANKS_MAX = 2_048
METRICS_MAX = 64
RATIO_MAX = 1e6


class Suspect(msgspec.Struct):
    """A rank that was slow lately: its last panes."""

    steps: list[int] = []
    ratios: list[float] = []
    times: list[float] = []
    others: list[float] = []
    slow: list[bool] = []
    absent: int = 0
    first: int | None = None
    """First slow step while an alert is open."""
    last: int | None = None


class Ranks(msgspec.Struct):
    """One metric."""

    end: int | None = None
    suspects: dict[int, Suspect] = {}


class SlowRankState(msgspec.Struct):
    """By metric."""

    metrics: dict[str, Ranks] = {}
    unwatched: int = 0


class SlowRank(Detector[SlowRankState]):
    """See the module."""

    state_type = SlowRankState

    def __init__(self, spec: DetectorSpec) -> None:
        self.alerts, params = lifecycle_of(spec)
        self._metrics = frozenset(spec.metrics or DEFAULT_METRICS)
        self._ratio = params["ratio"]
        self._floor = 1 + (self._ratio - 1) / 2
        self._window = int(params["window"])
        self._share = params["share"]
        self._excess_s = params["min_excess_s"]
        self._min_ranks = int(params["min_ranks"])
        self._max_share = params["max_share"]
        self._calm = min(self._window, int(params["calm_panes"]))
        self.state = SlowRankState()

    def wants(self, axis: Axis, metric: str) -> bool:
        return axis == "step" and metric in self._metrics

    def per_rank(self) -> frozenset[str]:
        return self._metrics

    def pane(self, view: PaneView) -> list[AlertChange]:
        ranks = self.state.metrics.get(view.metric)
        if ranks is None:
            if len(self.state.metrics) >= METRICS_MAX:
                self.state.unwatched += 1
                return []
            ranks = self.state.metrics[view.metric] = Ranks()
        if len(view.by_rank) < self._min_ranks or (ranks.end is not None and view.start < ranks.end):
            return []
        ranks.end = view.end
        self._learn(ranks, view)
        return self._decide(ranks, view)

    def _learn(self, ranks: Ranks, view: PaneView) -> None:
        """Adds this pane to the suspects, and new ones to them."""
        others_of = medians_without(sorted(view.by_rank.values()))
        least = min(others_of.values)
        normal = self._floor * least * (1 - 1e-9) if least > 0 else -math.inf  # below it, surely not slow
        suspects = ranks.suspects
        for rank in sorted(rank for rank, time in view.by_rank.items() if time > normal or rank in suspects):
            time = view.by_rank[rank]
            others = others_of(time)
            ratio = min(RATIO_MAX, max(0.0, time / others)) if others > 0 else 1.0
            slow = ratio > self._floor and clamp(time - others) >= self._excess_s
            suspect = ranks.suspects.get(rank)
            if suspect is None:
                if not slow:
                    continue
                if len(ranks.suspects) >= RANKS_MAX:
                    self.state.unwatched += 1
                    continue
                suspect = ranks.suspects[rank] = Suspect()
            suspect.absent = -1
            suspect.steps.append(view.start)
            suspect.ratios.append(ratio)
            suspect.times.append(clamp(time))
            suspect.others.append(clamp(others))
            suspect.slow.append(slow)
            if len(suspect.steps) > self._window:
                for column in (suspect.steps, suspect.ratios, suspect.times, suspect.others, suspect.slow):
                    del column[0]

    def _decide(self, ranks: Ranks, view: PaneView) -> list[AlertChange]:
        changes: list[AlertChange] = []
        slow_now = [rank for rank, suspect in ranks.suspects.items() if self._is_slow(suspect)]
        crowd = len(slow_now) > max(1, int(self._max_share * len(view.by_rank)))
        for rank in sorted(ranks.suspects):
            suspect = ranks.suspects[rank]
            suspect.absent += 1
            subject = f"{rank}|{view.metric}"
            if suspect.first is None and not crowd and rank in slow_now:
                suspect.first = first_slow(suspect.steps, suspect.slow)
            if suspect.first is not None:
                changes += self._follow(suspect, rank, subject, view)
            if suspect.first is None and (suspect.absent > self._window or not any(suspect.slow)):
                del ranks.suspects[rank]
        return changes

    def _is_slow(self, suspect: Suspect) -> bool:
        needed = self._share * self._window
        return sum(suspect.slow) >= needed and median(suspect.ratios) > self._ratio

    def _follow(self, suspect: Suspect, rank: int, subject: str, view: PaneView) -> list[AlertChange]:
        """An open alert: goes on, or is over."""
        gone = suspect.absent > self._window
        recent = suspect.slow[-self._calm :]
        if gone or sum(recent) * 2 < len(recent):
            last = last_slow(suspect.steps, suspect.slow, suspect.last)
            what = "no longer reports" if gone else f"is as fast as the others by step {view.start}"
            text = (
                f"rank {rank} {what}: it was slow in {named(view.metric)} from step {suspect.first} to {last}"
            )
            suspect.first, suspect.last = None, None
            suspect.slow = [False] * len(suspect.slow)
            return self.alerts.calm(subject, view.now_us, text, last_step=last)
        if suspect.absent or not suspect.slow[-1]:
            return []
        suspect.last = view.end - 1
        picked = [at for at, slow in enumerate(suspect.slow) if slow]
        ratio = median([suspect.ratios[at] for at in picked])
        time, others = (
            median([suspect.times[at] for at in picked]),
            median([suspect.others[at] for at in picked]),
        )
        finding = Finding(
            position=view.start,
            metric=view.metric,
            rank=rank,
            step=suspect.first,
            last_step=suspect.last,
            value=time,
            expected=others,
            score=ratio,
            text=(
                f"rank {rank} is slow in {named(view.metric)} since step {suspect.first}: "
                f"{figure(time)} s a step against {figure(others)} s, "
                f"the median of the other {len(view.by_rank) - 1} ranks, "
                f"{figure(ratio)} times as long"
            ),
            evidence={"ratio": ratio, "slow_panes": len(picked), "panes": len(suspect.slow)},
        )
        return self.alerts.found(subject, finding, view.now_us)


class Without(NamedTuple):
    """Medians of sorted values without one of them: there are at most three, by where that one stands."""

    bounds: tuple[float, float]
    values: tuple[float, float, float]

    def __call__(self, value: float) -> float:
        """The median without one of those equal to ``value``."""
        low, high = self.bounds
        return self.values[0 if value <= low else 1 if value <= high else 2]


def medians_without(ordered: list[float]) -> Without:
    """The medians of at least two sorted values without one of them.

    >>> medians_without([1.0, 2.0, 3.0, 9.0])(9.0), medians_without([1.0, 2.0, 4.0])(2.0)
    (2.0, 2.5)
    """
    half = (len(ordered) - 1) // 2
    if len(ordered) % 2 == 0:  # one of the two in the middle is left
        return Without((ordered[half], ordered[half]), (ordered[half + 1], ordered[half], ordered[half]))
    below, centre, above = ordered[half - 1], ordered[half], ordered[half + 1]
    return Without((below, centre), (middle(centre, above), middle(below, above), middle(below, centre)))


def first_slow(steps: list[int], slow: list[bool]) -> int:
    """Where the slowness that lasts until now began: the start of the best run, a normal pane costing two.

    >>> first_slow([1, 2, 3, 4, 5], [True, False, False, True, True])
    4
    """
    best, score, first = 0, 0, steps[-1]
    for step, is_slow in zip(reversed(steps), reversed(slow), strict=True):
        score += 1 if is_slow else -2
        if is_slow and score >= best:
            best, first = score, step
    return first


def last_slow(steps: list[int], slow: list[bool], newest: int | None) -> int | None:
    """Where it ended: the end of the best run from the left; ``newest`` where none of the panes is slow."""
    best, score, last = 0, 0, None
    for step, is_slow in zip(steps, slow, strict=True):
        score += 1 if is_slow else -2
        if is_slow and score >= best:
            best, last = score, step
    return newest if last is None else last
