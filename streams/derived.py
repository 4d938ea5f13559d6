"""Derived metrics: values made of the cells of closed panes, which then are cells like all others.

A derived metric has one value per pane of an axis and group, a pure function of closed cells in the order of
panes. It enters as if it were one sample of a series of its own, before detectors are shown the pane and
before windows are made of it. Its series exists as soon as one of its metrics has one in that group: that of
the whole run always, those per rank, host and role where ``per_rank``, ``per_host``, ``per_role`` name it. A
process that takes part in one of its metrics takes part in it.

State per axis and attempt: three numbers per series of a rate or average, nothing per pane.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from driftline import derivations
from driftline.config import Derived, PipelineConfig
from driftline.streams import formulas, histogram
from driftline.streams.aggregates import I64, U64, Bool
from driftline.streams.formulas import Made, Memory, Span
from driftline.streams.kernels.merge import popcount
from driftline.streams.panes import Buckets, ClosedCells
from driftline.streams.participants import Presence, Series
from driftline.streams.watermark import FREE
from driftline.streams.windowing import AxisPlan

WHOLE, RANK, HOST, ROLE = range(4)
"""Kinds of groups."""


class Closed(NamedTuple):
    """What one closing of an axis gives to the formulas."""

    axis: AxisPlan
    begin: int
    """Panes below this were closed before."""
    boundary: int
    presence: Presence
    table: Series
    world_size: int | None


class Derivations:
    """What the configuration declares, for the series of one attempt."""

    def __init__(self, config: PipelineConfig) -> None:
        self.declared = list(config.derived)
        self.names = frozenset(one.name for one in self.declared)
        self._axes = derivations.axes(self.declared)
        self._public = (self.names, *map(frozenset, (config.per_rank, config.per_host, config.per_role)))
        self.wanted = tuple(self._needed(kind) for kind in (WHOLE, RANK, HOST, ROLE))
        """Per kind of group: metrics, derived or logged, that need a series there."""
        self._of: list[_Route] = [_Route() for _ in self.declared]
        self._per: list[_Route] = [_Route() for _ in self.declared]
        self._ranks: list[_Route] = [_Route() for _ in self.declared]
        self._routed = 0
        self._made: Bool = np.empty(0, np.bool_)
        """Which series are derived; samples that were logged under such a name before do not count."""

    def __bool__(self) -> bool:
        return bool(self.declared)

    def _needed(self, kind: int) -> frozenset[str]:
        names = set(self._public[kind] & self.names)
        for one in reversed(self.declared):
            if one.name in names:
                names.update(derivations.sources(one) if one.kind != "spread" or kind == WHOLE else ())
            if one.kind == "spread" and kind == RANK:
                names.add(one.of)
        return frozenset(names)

    # --- series --------------------------------------------------------------------------------------------

    def follow(self, table: Series, label: str, kind: int, names: Iterable[str]) -> list[int]:
        """Series of what is derived of these metrics of a group, made where they are new."""
        have, found = set(names), []
        for one in self.declared:
            if one.name in self.wanted[kind] and not have.isdisjoint(derivations.sources(one)):
                number = table.find(label, one.name, public=one.name in self._public[kind])
                if number >= 0:
                    have.add(one.name)
                    found.append(number)
        return found

    def follow_all(self, table: Series) -> None:
        """The same for all series that there are; what is newly derived has the processes of its metrics."""
        for number in range(len(table)):
            kind = _KINDS.get(table.groups[number].partition("=")[0], WHOLE)
            for made in self.follow(table, table.groups[number], kind, [table.metrics[number]]):
                table.bits[made] |= table.bits[number]

    def _route(self, table: Series) -> None:
        """For each series that is new: the series that are derived of it."""
        made_here = [metric in self.names for metric in table.metrics[self._routed :]]
        self._made = np.concatenate([self._made, np.array(made_here, np.bool_)])
        for number in range(self._routed, len(table)):
            group, metric = table.groups[number], table.metrics[number]
            for at, one in enumerate(self.declared):
                if metric not in derivations.sources(one):
                    continue
                made = table.ids.get((group, one.name), -1)
                if one.kind == "spread":
                    if group == "":
                        self._of[at].add(number, made)
                    elif table.ranks[number] is not None:
                        self._ranks[at].add(number, table.ids.get(("", one.name), -1))
                    continue
                if metric == one.of:
                    self._of[at].add(number, made)
                if metric == one.per:
                    self._per[at].add(number, made)
        self._routed = len(table)

    # --- values --------------------------------------------------------------------------------------------

    def extend(
        self, cells: ClosedCells, buckets: Buckets, memories: dict[str, Memory], closed: Closed
    ) -> tuple[ClosedCells, Buckets, int]:
        """Closed cells with what is derived of them, sorted as before; and panes of rates left unfilled."""
        self._route(closed.table)
        cells, buckets = self._without_logged(cells, buckets)
        every, unfilled = cells, 0
        for at, one in enumerate(self.declared):
            if closed.axis.axis not in self._axes[one.name]:
                continue
            made, left = self._values(at, one, every, memories, closed)
            unfilled += left
            if len(made.pane):
                every = every.join(_as_cells(made))
                buckets = buckets.join(
                    Buckets(
                        made.pane,
                        made.series,
                        histogram.bucket(made.value),
                        np.ones(len(made.pane), np.int64),
                    )
                )
        if every is cells:
            return cells, buckets, unfilled
        every = every.take(np.lexsort((every.series, every.pane)))
        buckets = buckets.take(np.lexsort((buckets.bucket, buckets.series, buckets.pane)))
        return every, buckets, unfilled

    def of(self, cells: ClosedCells) -> ClosedCells:
        """Those that are derived."""
        return cells.take(self._made[cells.series]) if self else cells.take(slice(0, 0))

    def _without_logged(self, cells: ClosedCells, buckets: Buckets) -> tuple[ClosedCells, Buckets]:
        odd = self._made[cells.series]
        if not odd.any():
            return cells, buckets
        return cells.take(~odd), buckets.take(~self._made[buckets.series])

    def _values(
        self, at: int, one: Derived, cells: ClosedCells, memories: dict[str, Memory], closed: Closed
    ) -> tuple[Made, int]:
        of, to = self._of[at].of(cells)
        if one.kind == "ratio":
            per, per_to = self._per[at].of(cells)
            return formulas.ratio(of, per, to, per_to, one.times / one.over), 0
        if one.kind == "spread":
            ranks, _ = self._ranks[at].of(cells)
            numbers = np.array([closed.table.ranks[series] for series in ranks.series.tolist()], np.int64)
            return formulas.spread(ranks, numbers, of, to), 0
        memory = memories.setdefault(one.name, Memory())
        memory.reserve(len(closed.table))
        if one.kind == "ema":
            life = one.half_life_us or one.half_life_steps
            return formulas.ema(of, to, life / closed.axis.pane, memory), 0
        factor = np.empty(len(closed.table))
        distinct = np.unique(to)
        in_a_second = one.times / one.over / (closed.axis.pane / 1_000_000)
        factor[distinct] = in_a_second / _devices(one, closed, distinct)
        alive = functools.partial(_alive, closed.table, closed.presence)
        return formulas.rate(of, to, factor, memory, Span(closed.begin, closed.boundary, alive))


class _Route:
    """From the number of a series to the number of what is derived of it."""

    def __init__(self) -> None:
        self._from: list[int] = []
        self._to: list[int] = []
        self._table: I64 = np.empty(0, np.int64)

    def add(self, number: int, made: int) -> None:
        if made >= 0:
            self._from.append(number)
            self._to.append(made)

    def of(self, cells: ClosedCells) -> tuple[ClosedCells, I64]:
        """The cells of its metric, and the series that their values go to."""
        if self._from and len(self._table) <= self._from[-1]:
            self._table = np.full(self._from[-1] + 1, -1, np.int64)
            self._table[self._from] = self._to
        inside = np.flatnonzero(cells.series < len(self._table))
        made = self._table[cells.series[inside]]
        chosen = inside[made >= 0]
        return cells.take(chosen), made[made >= 0]


_KINDS = {"rank": RANK, "host": HOST, "role": ROLE}


def _devices(one: Derived, closed: Closed, series: I64) -> np.ndarray:
    """How many devices a series speaks of: as declared, as announced, else the processes that take part."""
    if one.devices is not None:
        return np.full(len(series), float(one.devices))
    some = popcount(np.ascontiguousarray(closed.table.bits[series]))
    if closed.world_size is not None:
        some = np.where(closed.table.whole()[series], closed.world_size, some)
    return np.asarray(np.maximum(some, 1), np.float64)


def _alive(table: Series, presence: Presence, series: I64) -> Bool:
    """Of which of the series a process is live on the axis."""
    words = table.bits.shape[1]
    holds = np.zeros(words * 64, np.bool_)
    live = presence.newest[: words * 64] >= FREE
    holds[: len(live)] = live
    mask: U64 = np.packbits(holds, bitorder="little").view("<u8").astype(np.uint64, copy=False)
    return np.asarray((table.bits[series] & mask).any(axis=1))


def _as_cells(made: Made) -> ClosedCells:
    """Each value as if it were one sample."""
    count = len(made.pane)
    ones, none = np.ones(count, np.int64), np.zeros(count, np.int64)
    return ClosedCells(
        pane=made.pane,
        series=made.series,
        samples=ones,
        nan=none,
        inf=none,
        weight=made.weight,
        sum=made.value,
        mean=made.value,
        std=np.zeros(count),
        min=made.value,
        min_rank=made.rank,
        max=made.value,
        max_rank=made.rank,
        first=made.value,
        last=made.value,
        bits=made.bits,
    )


def dump(memories: dict[str, Memory]) -> dict[str, Any]:
    return {name: memory.dump() for name, memory in memories.items()}


def restore(dumped: dict[str, Any]) -> dict[str, Memory]:
    memories: dict[str, Memory] = {}
    for name, some in dumped.items():
        memories[name] = Memory()
        memories[name].restore(some)
    return memories


def kept(memories: dict[str, Memory], before: list[Derived], now: list[Derived]) -> dict[str, Memory]:
    """What is still declared the same."""
    same = {one.name for one in now if one in before}
    return {name: memory for name, memory in memories.items() if name in same}
