"""Custom aggregates and weighted quantiles of one axis: objects per closed pane, merged over windows.

The samples of the metrics that ask for one are held until their pane closes (finite ones, 16 bytes each), and
an object gets them in one call, or in calls of :data:`CHUNK` samples: so its value cannot depend on how the
log was cut into batches. A window's value is that of a fresh object into which those of its panes are merged
in order. A class that raises gives no value for that pane and for windows with it, is counted
(``aggregate_errors``) and told once per attempt.

Bounds: an object per series and pane as long as the panes of windows are kept, one more for the whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from driftline.aggregate import Floats
from driftline.config import PipelineConfig
from driftline.streams import extensions
from driftline.streams.aggregates import I64, Batch, Bool, Placed
from driftline.streams.kernels.fold import WEIGHT_MAX
from driftline.streams.named_aggregates import WeightedQuantiles
from driftline.streams.panes import ClosedCells
from driftline.streams.participants import Series
from driftline.streams.windowing import WindowCells

CHUNK = 65_536
"""Samples of a pane that are held before an object gets them."""

Named = dict[str, float]
Broken = Callable[[str, str], None]
"""Is told the name of an aggregate whose class raised, and what."""


def untold(name: str, text: str) -> None:
    """For what is told when the pane closes."""


class Row(NamedTuple):
    """Further values of one window: for the columns ``quantiles`` and ``extra``."""

    quantiles: Named
    extra: Named


class _Kind(NamedTuple):
    """What makes objects for one declaration."""

    name: str
    """Empty for weighted quantiles."""
    make: Callable[[], Any]
    quantiles: list[str]


class Extras:
    """What the configuration declares, by metric."""

    def __init__(self, config: PipelineConfig) -> None:
        self.kinds: dict[str, list[_Kind]] = {}
        for metric, quantiles in config.weighted_quantiles.items():
            names = [f"wp{q * 100:.10g}" for q in quantiles]
            self._add(metric, _Kind("", _quantiles(quantiles), names))
        for spec in config.aggregates:
            found = extensions.find(spec)
            for metric in spec.metrics:
                self._add(metric, _Kind(spec.name, _maker(found, spec.settings), []))
        self._wanted = np.empty(0, np.bool_)

    def _add(self, metric: str, kind: _Kind) -> None:
        self.kinds.setdefault(metric, []).append(kind)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def wanted(self, table: Series) -> Bool:
        """Which series have any, by number."""
        if len(self._wanted) < len(table):
            more = [metric in self.kinds for metric in table.metrics[len(self._wanted) :]]
            self._wanted = np.concatenate([self._wanted, np.array(more, np.bool_)])
        return self._wanted


def _quantiles(quantiles: list[float]) -> Callable[[], Any]:
    return lambda: WeightedQuantiles(quantiles)


def _maker(found: Any, settings: dict[str, Any]) -> Callable[[], Any]:
    return lambda: found(**settings)


class Ask(NamedTuple):
    """What is declared, for which series, and who is told of faults."""

    extras: Extras
    table: Series
    broken: Broken

    def wanted(self, series: I64) -> Bool:
        return np.asarray(self.extras.wanted(self.table)[series])

    def kinds(self, series: int) -> list[_Kind]:
        return self.extras.kinds[self.table.metrics[series]]


class _Cell:
    """A series in an open pane: samples that are held, and the objects once there were too many."""

    def __init__(self) -> None:
        self.values: list[Floats] = []
        self.weights: list[Floats] = []
        self.held = 0
        self.objects: list[Any] | None = None
        self.faults: list[tuple[str, str]] = []
        """Told when the pane closes: until then it is not known at which record."""


class Held:
    """State of one axis of one attempt: open panes, closed panes, the whole run."""

    def __init__(self) -> None:
        self.begin: int | None = None
        """Windows that start below this pane have no values: they were declared later."""
        self._open: dict[tuple[int, int], _Cell] = {}
        self._closed: dict[int, list[tuple[int, list[Any]]]] = {}
        """By series, in order of panes; None in place of an object whose class raised."""
        self._growing: dict[int, list[tuple[int, list[Any]]]] = {}
        """Closed panes that the objects of the whole run do not have yet."""
        self.grown: dict[int, list[Any]] = {}

    # --- samples -------------------------------------------------------------------------------------------

    def take(self, batch: Batch, placed: Placed, ask: Ask) -> None:
        """Holds the samples that were folded, in the order of the log."""
        counts = np.diff(batch.starts)
        series = batch.maps[np.repeat(batch.offsets, counts) + batch.metric]
        chosen = (placed.flags & placed.wanted) != 0
        chosen &= placed.pane >= np.repeat(placed.before, counts)
        chosen &= np.isfinite(batch.value) & (series >= 0)
        chosen[chosen] = ask.wanted(series[chosen])
        if not chosen.any():
            return
        weight = batch.weight[chosen]
        counted = (weight > 0) & (weight < WEIGHT_MAX)
        weight = np.where(counted, weight, 0.0)
        self._hold(placed.pane[chosen], series[chosen], batch.value[chosen], weight, ask)

    def _hold(self, pane: I64, series: I64, value: Floats, weight: Floats, ask: Ask) -> None:
        if not len(pane):
            return
        order = np.lexsort((series, pane))  # stable: the order of the log stays within a cell
        pane, series = pane[order], series[order]
        starts = np.flatnonzero(
            (np.diff(pane, prepend=pane[:1] - 1) != 0) | (np.diff(series, prepend=-1) != 0)
        )
        ends = np.append(starts[1:], len(pane))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            key = int(pane[start]), int(series[start])
            cell = self._open.setdefault(key, _Cell())
            part = order[start:end]
            cell.values.append(value[part])
            cell.weights.append(weight[part])
            cell.held += len(part)
            if cell.held >= CHUNK:
                _feed(cell, ask.kinds(key[1]), all_of_it=False)

    def close(self, boundary: int, derived: ClosedCells, ask: Ask) -> None:
        """Makes the objects of panes below the boundary; ``derived``: cells that are one value each."""
        made = derived.take(ask.wanted(derived.series))
        self._hold(made.pane, made.series, made.mean, made.weight, ask)
        for key in sorted(key for key in self._open if key[0] < boundary):
            cell = self._open.pop(key)
            _feed(cell, ask.kinds(key[1]), all_of_it=True)
            for fault in cell.faults:
                ask.broken(*fault)
            entry = key[0], cell.objects or []
            self._closed.setdefault(key[1], []).append(entry)
            self._growing.setdefault(key[1], []).append(entry)

    def trim(self, first: int) -> None:
        """Forgets panes below ``first`` that windows of a fixed size need no more."""
        for series in list(self._closed):
            left = [entry for entry in self._closed[series] if entry[0] >= first]
            if left:
                self._closed[series] = left
            else:
                del self._closed[series]

    # --- values --------------------------------------------------------------------------------------------

    def of_windows(self, cells: WindowCells, pane: int, ask: Ask) -> dict[int, Row]:
        """Values of windows of a fixed size, by their place in ``cells``."""
        rows = {}
        for at in np.flatnonzero(ask.wanted(cells.series)).tolist():
            first, last = int(cells.start[at]) // pane, int(cells.end[at]) // pane
            series = int(cells.series[at])
            if self.begin is not None and first < self.begin:
                continue
            kinds = ask.kinds(series)
            parts = [objects for p, objects in self._closed.get(series, []) if first <= p < last]
            rows[at] = _row(kinds, _merged(kinds, None, parts, ask.broken), ask.broken)
        return rows

    def of_run(self, cells: WindowCells, pane: int, ask: Ask) -> dict[int, Row]:
        """Values of the window of the whole run that ends where these do."""
        rows = {}
        for at in np.flatnonzero(ask.wanted(cells.series)).tolist():
            series, last = int(cells.series[at]), int(cells.end[at]) // pane
            self._grow(series, last, ask)
            if self.begin is None and series in self.grown:
                rows[at] = _row(ask.kinds(series), self.grown[series], ask.broken)
        return rows

    def grow(self, ask: Ask, *, keep: bool) -> None:
        """What is closed goes into the objects of the whole run, if there is such a window."""
        if keep:
            for series in sorted(self._growing):
                self._grow(series, None, ask)
        self._growing = {}

    def _grow(self, series: int, last: int | None, ask: Ask) -> None:
        waiting = self._growing.get(series, [])
        parts = [objects for pane, objects in waiting if last is None or pane < last]
        self._growing[series] = waiting[len(parts) :]
        if parts:
            kinds = ask.kinds(series)
            self.grown[series] = _merged(kinds, self.grown.get(series), parts, ask.broken)

    # --- snapshot ------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        return {
            "begin": self.begin,
            "open": [
                [*key, *map(np.concatenate, (cell.values, cell.weights)), _dumped(cell.objects), cell.faults]
                for key, cell in self._open.items()
            ],
            "closed": [
                [series, pane, _dumped(objects)]
                for series, some in self._closed.items()
                for pane, objects in some
            ],
            "grown": [[series, _dumped(objects)] for series, objects in self.grown.items()],
        }

    def restore(self, dumped: dict[str, Any], extras: Extras, table: Series) -> None:
        self.begin = dumped["begin"]
        for pane, series, values, weights, objects, faults in dumped["open"]:
            cell = self._open[(pane, series)] = _Cell()
            cell.values, cell.weights, cell.held = [values], [weights], len(values)
            cell.faults = [(name, text) for name, text in faults]
            cell.objects = _loaded(extras.kinds[table.metrics[series]], objects)
        for series, pane, objects in dumped["closed"]:
            made = _loaded(extras.kinds[table.metrics[series]], objects)
            self._closed.setdefault(series, []).append((pane, made or []))
        for series, objects in dumped["grown"]:
            self.grown[series] = _loaded(extras.kinds[table.metrics[series]], objects) or []


def _feed(cell: _Cell, kinds: list[_Kind], *, all_of_it: bool) -> None:
    """Gives the objects what is held, in chunks that depend on nothing but the samples of the cell."""
    values, weights = np.concatenate(cell.values), np.concatenate(cell.weights)

    def broken(name: str, text: str) -> None:
        cell.faults.append((name, text))

    end = len(values) if all_of_it else len(values) // CHUNK * CHUNK
    if cell.objects is None:
        cell.objects = [_safely(kind, broken, kind.make) for kind in kinds]
    for at in range(0, end, CHUNK):
        part = slice(at, min(at + CHUNK, end))
        for place, kind in enumerate(kinds):
            made = cell.objects[place]
            if made is not None:
                cell.objects[place] = _safely(kind, broken, _updated, made, values[part], weights[part])
    cell.values, cell.weights, cell.held = [values[end:]], [weights[end:]], len(values) - end


def _updated(made: Any, values: Floats, weights: Floats) -> Any:
    made.update(values.copy(), weights.copy())
    return made


def _merged(kinds: list[_Kind], into: list[Any] | None, parts: list[list[Any]], broken: Broken) -> list[Any]:
    """Objects of all parts in order, merged into ``into`` or into fresh ones; None where one is broken."""
    merged: list[Any] = []
    for place, kind in enumerate(kinds):
        made = _safely(kind, broken, kind.make) if into is None else into[place]
        others = [objects[place] for objects in parts]
        if made is None or any(other is None for other in others):
            merged.append(None)
        else:
            merged.append(_safely(kind, broken, _with, made, others))
    return merged


def _with(made: Any, others: list[Any]) -> Any:
    if hasattr(made, "merge_all"):  # those of ours that can take many at once
        made.merge_all(others)
    else:
        for other in others:
            made.merge(other)
    return made


def _row(kinds: list[_Kind], objects: list[Any], broken: Broken) -> Row:
    row = Row({}, {})
    for kind, made in zip(kinds, objects, strict=True):
        if made is None:
            continue
        if kind.quantiles:
            pairs = zip(kind.quantiles, made.values(), strict=True)
            row.quantiles.update({name: value for name, value in pairs if value is not None})
        else:
            value = _safely(kind, broken, _number, made)
            if value is not None:
                row.extra[kind.name] = value
    return row


def _number(made: Any) -> float | None:
    return extensions.number(made.value())


def _safely(kind: _Kind, broken: Broken, do: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives, None if it raises."""
    try:
        return do(*arguments)
    except Exception as error:  # noqa: BLE001 -- a user's class: its window has no value, the worker goes on
        broken(kind.name, f"{type(error).__name__}: {error}"[:400])
        return None


def _dumped(objects: list[Any] | None) -> list[Any] | None:
    return None if objects is None else [None if made is None else [made.dump()] for made in objects]


def _loaded(kinds: list[_Kind], dumped: list[Any] | None) -> list[Any] | None:
    if dumped is None:
        return None
    objects: list[Any] = []
    for kind, data in zip(kinds, dumped, strict=True):
        made = None if data is None else kind.make()
        if made is not None:
            made.load(data[0])
        objects.append(made)
    return objects
