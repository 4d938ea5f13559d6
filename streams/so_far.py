"""The window "whole run so far": one growing window per series, from the attempt's first pane until now.

A window [start, k * every) is put out when its last pane is closed, for series with a sample since the one
before it; ``start`` is where the first pane began that closed on the axis. What is closed is kept as one cell
and one histogram per series, merged with the panes of a hop when the hop is over (or when those are many).
So the state is as large as the series are many, however long the run is.

Deterministic: what is merged when depends on the closings of the log alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from driftline.config import WindowSpec
from driftline.streams.aggregates import I64
from driftline.streams.bits import pick
from driftline.streams.histogram import CODE_BITS
from driftline.streams.panes import NO_BUCKETS, NO_CELLS, Buckets, ClosedCells, ClosedLog
from driftline.streams.windowing import WindowCells, compute

PENDING_MIN = 4_096
"""Cells of a hop that wait for its end; more, and more than twice the series, are merged before."""

Asked = dict[float, "np.ndarray[Any, Any] | None"]


class Hops(NamedTuple):
    """How far the axis is: panes are ``pane`` wide, those that end at ``until`` or before are closed."""

    pane: int
    until: int
    flush: bool
    """Hops that are not over are put out as well."""


class SoFar:
    """All series of one axis of one attempt, for windows every so often."""

    def __init__(self) -> None:
        self.start: int | None = None
        self._total, self._buckets = NO_CELLS, NO_BUCKETS
        """One cell per series; the pane of all is the one before the first that waits."""
        self._waiting, self._waiting_buckets = NO_CELLS, NO_BUCKETS
        self._touched: set[int] = set()
        """Series with a merged sample since the last window."""

    def add(self, cells: ClosedCells, buckets: Buckets, pane: int) -> None:
        """Takes newer panes, in order of pane and series."""
        if not len(cells.pane):
            return
        if self.start is None:
            self.start = int(cells.pane[0]) * pane
        self._waiting = self._waiting.join(cells)
        self._waiting_buckets = self._waiting_buckets.join(buckets)

    def windows(self, every: int, out: int | None, hops: Hops, asked: Asked) -> list[WindowCells]:
        """The windows that are due after ``out``, in order of their ends."""
        found = []
        ends = (self._waiting.pane * hops.pane // every + 1) * every
        for end in np.unique(ends).tolist():
            if end > hops.until and not hops.flush:
                break
            if out is not None and end <= out:  # it was put out when the run seemed over
                self._merge(end // hops.pane, {})
                continue
            cells = self._merge(end // hops.pane, asked)
            touched = np.isin(cells.series, np.array(sorted(self._touched), np.int64))
            self._touched = set()
            found.append(_rows(cells, touched, self.start or 0, end))
        if len(self._waiting.pane) > max(PENDING_MIN, 2 * len(self._total.pane)):
            self._merge(int(self._waiting.pane[-1]) + 1, {})
        return found

    def _merge(self, before: int, asked: Asked) -> WindowCells:
        """Takes what waits in panes below ``before`` into the totals."""
        number = int(np.searchsorted(self._waiting.pane, before))
        entries = int(np.searchsorted(self._waiting_buckets.pane, before))
        new, held = self._waiting.take(slice(0, number)), self._waiting_buckets.take(slice(0, entries))
        self._waiting = self._waiting.take(slice(number, None))
        self._waiting_buckets = self._waiting_buckets.take(slice(entries, None))
        self._touched.update(new.series.tolist())
        base = int(new.pane[0]) - 1
        log = ClosedLog()
        log.add(
            self._total._replace(pane=np.full(len(self._total.pane), base)),
            self._buckets._replace(pane=np.full(len(self._buckets.pane), base)),
        )
        log.add(new, held)
        size = before - base
        (cells,) = compute(log, WindowSpec("step", size, size), 1, np.array([base], np.int64), asked)
        fields = {name: getattr(cells, name) for name in ClosedCells._fields if name != "pane"}
        self._total = ClosedCells(pane=np.full(len(cells.series), base), **fields)
        self._buckets = _added(self._buckets.join(held))
        return cells

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order: those that expired long ago count as present no longer."""
        self._total = self._total._replace(bits=pick(self._total.bits, np.array(kept, np.int64)))
        self._waiting = self._waiting._replace(bits=pick(self._waiting.bits, np.array(kept, np.int64)))

    def dump(self) -> list[Any]:
        parts = (self._total, self._buckets, self._waiting, self._waiting_buckets)
        return [self.start, *map(list, parts), sorted(self._touched)]

    def restore(self, dumped: list[Any]) -> None:
        self.start, total, buckets, waiting, waiting_buckets, touched = dumped
        self._total, self._buckets = ClosedCells(*total), Buckets(*buckets)
        self._waiting, self._waiting_buckets = ClosedCells(*waiting), Buckets(*waiting_buckets)
        self._touched = set(touched)


def _rows(cells: WindowCells, chosen: np.ndarray[Any, Any], start: int, end: int) -> WindowCells:
    """The chosen entries, as the window [start, end)."""
    columns: dict[str, Any] = {
        name: getattr(cells, name)[chosen] for name in WindowCells._fields if name != "quantiles"
    }
    count = len(columns["series"])
    columns |= {"start": np.full(count, start), "end": np.full(count, end)}
    return WindowCells(**columns, quantiles={q: values[chosen] for q, values in cells.quantiles.items()})


def _added(buckets: Buckets) -> Buckets:
    """Equal buckets of a series added up, in order."""
    key: I64 = (buckets.series << CODE_BITS) | buckets.bucket
    order = np.argsort(key, kind="stable")
    key, number = key[order], buckets.number[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if not len(starts):
        return NO_BUCKETS
    key, number = key[starts], np.add.reduceat(number, starts)
    return Buckets(np.zeros(len(key), np.int64), key >> CODE_BITS, key & ((1 << CODE_BITS) - 1), number)
