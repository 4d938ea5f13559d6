"""Shows the detectors what they want of closed panes: in order, metrics of one pane by name."""

from __future__ import annotations

import numpy as np

from driftline.streams.aggregates import I64, Bool
from driftline.streams.attempts import Attempt, AxisState
from driftline.streams.panes import ClosedCells
from driftline.streams.views import AlertChange, PaneView

ByRank = dict[tuple[int, str], dict[int, float]]


def show(attempt: Attempt, axis: AxisState, cells: ClosedCells, now_us: int) -> list[AlertChange]:
    """Shows cells that have just closed; what the detectors say, in order."""
    table, width = attempt.series, axis.plan.pane
    shown = attempt.detection.wants(axis.plan.axis, table.metrics) & table.whole()
    chosen = np.flatnonzero(shown[cells.series])
    if not len(chosen):
        return []
    by_rank = _by_rank(attempt, cells, shown) if attempt.watched else {}
    chosen = chosen[np.lexsort((table.order()[cells.series[chosen]], cells.pane[chosen]))]
    part = cells._replace(bits=cells.bits[:, :1]).take(chosen)
    rows = zip(
        *(part.pane.tolist(), part.series.tolist(), part.samples.tolist(), part.nan.tolist()),
        *(part.inf.tolist(), part.mean.tolist(), part.min.tolist(), part.min_rank.tolist()),
        *(part.max.tolist(), part.max_rank.tolist()),
        strict=True,
    )
    changes: list[AlertChange] = []
    axis_name, react = axis.plan.axis, attempt.detection.pane
    for pane, series, count, nan, inf, mean, least, least_rank, most, most_rank in rows:
        finite = count > nan + inf
        metric = table.metrics[series]
        view = PaneView(
            axis=axis_name,
            metric=metric,
            start=pane * width,
            end=pane * width + width,
            samples=count,
            nan=nan,
            inf=inf,
            mean=mean if mean == mean else None,
            min=least if finite else None,
            min_rank=least_rank if finite and least_rank >= 0 else None,
            max=most if finite else None,
            max_rank=most_rank if finite and most_rank >= 0 else None,
            by_rank=by_rank.get((pane, metric), {}),
            now_us=now_us,
        )
        changes += react(view)
    return changes


def _by_rank(attempt: Attempt, cells: ClosedCells, shown: Bool) -> ByRank:
    """Means of the ranks of metrics that are watched by rank, by pane and metric, in order of ranks."""
    table = attempt.series
    ranks, firsts = table.seats(attempt.watched)
    at = np.flatnonzero((firsts[cells.series] >= 0) & ~np.isnan(cells.mean))
    if not len(at):
        return {}
    series = cells.series[at]
    first, rank, pane = firsts[series], ranks[series], cells.pane[at]
    order = np.lexsort((rank, first, pane))
    pane, first, rank, mean = pane[order], first[order], rank[order].tolist(), cells.mean[at][order].tolist()
    cuts: I64 = np.flatnonzero((np.diff(pane) != 0) | (np.diff(first) != 0)) + 1
    found: ByRank = {}
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rank)], strict=True):
        key = int(pane[low]), table.metrics[int(first[low])]
        found[key] = dict(zip(rank[low:high], mean[low:high], strict=True))
    return found
