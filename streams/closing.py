"""Closes panes of one axis: shows them to the detectors, notes who is missing, puts out complete windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from driftline.config import Axis
from driftline.streams.attempts import Attempt, AxisState, PartitionState, Run
from driftline.streams.derived import Closed
from driftline.streams.extras import Ask, Broken
from driftline.streams.outputs import Outbox, WindowBlock, put_windows
from driftline.streams.panes import ClosedCells
from driftline.streams.participants import Presence
from driftline.streams.showing import show
from driftline.streams.so_far import Hops
from driftline.streams.views import AlertChange
from driftline.streams.windowing import STANDARD_QUANTILES, compute, due

MAX_FACTS = 16
"""Facts of one kind per input record; what is over is in the last one's count."""


class Moment(NamedTuple):
    """Where in the log something happens."""

    state: PartitionState
    outbox: Outbox
    offset: int
    run: Run
    now_us: int

    def alerts(self, attempt: Attempt, changes: list[AlertChange]) -> None:
        for change in changes:
            self.outbox.alert(self.offset, self.run.name, attempt.number, self.now_us, change)


class Closing(NamedTuple):
    """The watermark passed a pane boundary at one record."""

    axis: Axis
    boundary: int
    presence: Presence


def close(moment: Moment, attempt: Attempt, closings: list[Closing], *, flush: bool = False) -> None:
    """Closes panes below each boundary; ``flush`` puts out all windows with a sample, complete or not."""
    blocks: list[WindowBlock] = []
    for closing in closings:
        axis = attempt.axes[closing.axis]
        cells, buckets = axis.open.close(closing.boundary)
        before, axis.closed = axis.closed, max(axis.closed, closing.boundary)
        logged = cells
        if attempt.derivations:
            world = attempt.world_size
            closed = Closed(axis.plan, before, axis.closed, closing.presence, attempt.series, world)
            cells, buckets, left = attempt.derivations.extend(cells, buckets, axis.memories, closed)
            moment.state.count("derived_unfilled", left)
        if len(cells.pane):
            moment.alerts(attempt, show(attempt, axis, cells, moment.now_us))
        if len(logged.pane) and closing.axis == "step":
            _note_missing(moment, attempt, axis, logged, closing.presence)
        ask = Ask(attempt.extras, attempt.series, _teller(moment, attempt))
        if attempt.extras and axis.plan.specs:
            axis.held.close(axis.closed, attempt.derivations.of(cells), ask)
        if len(cells.pane):
            public = np.array(attempt.series.public, np.bool_)
            if not public.all():
                kept, held = public[cells.series], public[buckets.series]
                cells, buckets = cells.take(kept), buckets.take(held)
            axis.log.add(cells, buckets)
            for growing in axis.so_far.values():
                growing.add(cells, buckets, axis.plan.pane)
        blocks += _windows(moment, attempt, axis, closing.presence, ask, flush=flush)
        axis.log.trim(axis.closed - axis.plan.keep)
        axis.held.grow(ask, keep=bool(axis.so_far))
        axis.held.trim(axis.closed - axis.plan.keep)
    put_windows(moment.outbox, moment.offset, moment.run.name, blocks)


def _teller(moment: Moment, attempt: Attempt) -> Broken:
    """Counts the faults of custom aggregates; the first of each is a fact."""

    def tell(name: str, fault: str) -> None:
        moment.state.count("aggregate_errors")
        if name not in attempt.faults_told:
            attempt.faults_told.append(name)
            text = f"aggregate {name} failed and has no value here: {fault}; further faults are only counted"
            run, now_us = moment.run.name, moment.now_us
            moment.outbox.fact(moment.offset, run, attempt.number, "note", now_us, text)

    return tell


def _windows(
    moment: Moment, attempt: Attempt, axis: AxisState, presence: Presence, ask: Ask, *, flush: bool
) -> list[WindowBlock]:
    blocks: list[WindowBlock] = []
    pane = axis.plan.pane
    asked = None
    for at, spec in enumerate(axis.plan.specs):
        if not spec.size:
            blocks += _so_far(moment, attempt, axis, at, presence, ask, flush=flush)
            continue
        until = None if flush else axis.closed * pane
        starts = due(axis.log, spec, pane, after=axis.out[at], until=until)
        end = int(starts[-1]) + spec.size if until is None and len(starts) else until
        if end is not None:
            before = axis.out[at]
            axis.out[at] = end if before is None else max(before, end)
        if len(starts):
            asked = asked or _asked(moment, attempt)
            for cells in compute(axis.log, spec, pane, starts, asked):
                further = axis.held.of_windows(cells, pane, ask) if attempt.extras else {}
                whose = axis.plan.axis, attempt.number, attempt.series
                blocks.append(WindowBlock(*whose, cells, presence, further=further))
    return blocks


def _so_far(
    moment: Moment, attempt: Attempt, axis: AxisState, at: int, presence: Presence, ask: Ask, *, flush: bool
) -> list[WindowBlock]:
    """Windows of the whole run so far, one block each."""
    spec = axis.plan.specs[at]
    hops = Hops(axis.plan.pane, axis.closed * axis.plan.pane, flush)
    found = axis.so_far[spec].windows(spec.every, axis.out[at], hops, _asked(moment, attempt))
    reached = [int(cells.end[0]) for cells in found] + ([] if flush else [hops.until])
    before = axis.out[at]
    if reached:
        axis.out[at] = max(reached) if before is None else max(*reached, before)
    blocks = []
    for cells in found:
        further = axis.held.of_run(cells, axis.plan.pane, ask) if attempt.extras else {}
        whose = axis.plan.axis, attempt.number, attempt.series
        blocks.append(WindowBlock(*whose, cells, presence, span="run", further=further))
    return blocks


def _asked(moment: Moment, attempt: Attempt) -> dict[float, np.ndarray | None]:
    """Quantiles to compute, with the series that want each (None: all)."""
    asked: dict[float, np.ndarray | None] = dict.fromkeys(STANDARD_QUANTILES)
    by_metric = moment.state.config.quantiles
    for quantile in sorted({q for some in by_metric.values() for q in some if 0.0 <= q <= 1.0}):
        if quantile not in asked:
            wanted = {metric for metric, some in by_metric.items() if quantile in some}
            asked[quantile] = np.array([metric in wanted for metric in attempt.series.metrics], np.bool_)
    return asked


def _note_missing(
    moment: Moment, attempt: Attempt, axis: AxisState, cells: ClosedCells, presence: Presence
) -> None:
    if len(attempt.processes) < 2:
        return
    whole = np.flatnonzero(attempt.series.whole()[cells.series])
    pane, series = cells.pane[whole], cells.series[whole]
    distinct, inverse = np.unique(pane, return_inverse=True)
    width = axis.plan.pane
    mask = presence.mask(distinct * width, distinct * width + width)[inverse]
    noted = attempt.missing.note(attempt.series, pane, series, cells.bits[whole], mask)
    for missed in noted[:MAX_FACTS]:
        names = [attempt.processes[number] for number in missed.processes]
        ranks = [moment.run.processes[n].rank for n in names if n in moment.run.processes]
        who = ", ".join(str(rank) for rank in ranks[:8] if rank is not None) or ", ".join(names[:8])
        moment.outbox.fact(
            moment.offset,
            moment.run.name,
            attempt.number,
            "missing",
            moment.now_us,
            f"{missed.metric}: no sample from rank {who} from step {missed.start * width} on",
            metric=missed.metric,
            process=names[0] if len(names) == 1 else None,
            rank=ranks[0] if len(ranks) == 1 else None,
            axis="step",
            start=missed.start * width,
            end=missed.end * width + width,
            count=len(names),
            detail={"ranks": ranks[:256]},
        )
    if len(noted) > MAX_FACTS:
        moment.state.count("missing_untold", len(noted) - MAX_FACTS)
