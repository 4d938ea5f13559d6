"""Many frames of one attempt at once: the same outcome as one after the other, without a loop over samples.

Whether a sample is late is decided by the boundary **before** its record; what a record closes, by the
watermark after it. A sample of a later record can never belong to a pane that an earlier one closed, or it is
late: so all samples are folded first, then panes are closed in the order of the log.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from driftline import frames
from driftline.config import Axis
from driftline.streams.aggregates import I64, NO_RANK, Bool, Samples
from driftline.streams.attempts import AXES, Attempt, Process
from driftline.streams.closing import Closing, Moment, close
from driftline.streams.panes import MAX_OPEN_PANES, PANE_LIMIT, POSITION_LIMIT, OpenPanes
from driftline.streams.participants import FrameMap
from driftline.streams.views import NonFinite

MAX_NON_FINITE = 256
"""Arrivals shown to the detectors per frame."""
MAX_NON_FINITE_SEEN = 65_536
_LOW, _HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Arrival(NamedTuple):
    """A frame that counts, with what was known of its record."""

    offset: int
    now_us: int
    record_us: int
    """The broker's time of the record: samples dated further ahead than the skew are suspect."""
    process: Process
    frame: frames.Frame
    series: FrameMap


class _Batch(NamedTuple):
    """Samples of all frames in log order."""

    arrivals: list[Arrival]
    starts: I64
    frame: I64
    """The frame of each sample."""
    series: I64
    step: I64
    time_us: I64
    samples: Samples
    groups: list[tuple[I64, I64]]
    """Per kind of group: samples that have a series there, and that series."""


def take(moment: Moment, attempt: Attempt, arrivals: list[Arrival], skew_us: int) -> None:
    """Applies frames (with samples) of one attempt."""
    batch = _gather(arrivals)
    panes = {
        "time": batch.time_us // attempt.axes["time"].plan.pane,
        "step": np.where(batch.step == frames.NO_STEP, 0, batch.step) // attempt.axes["step"].plan.pane,
    }
    valid = {axis: _valid(batch, axis, panes[axis]) for axis in AXES}
    ahead = batch.time_us > _per_frame(arrivals, skew_us)[batch.frame]
    far: dict[Axis, Bool] = {"time": ahead, "step": np.zeros(len(ahead), np.bool_)}
    crowded = not all(attempt.axes[a].open.room(panes[a][valid[a]], far[a][valid[a]]) for a in AXES)
    if crowded and len(arrivals) > 1:
        half = len(arrivals) // 2
        take(moment, attempt, arrivals[:half], skew_us)
        take(moment, attempt, arrivals[half:], skew_us)
        return
    _tell_ahead(moment, attempt, batch, ahead & valid["time"])
    reach: dict[Axis, tuple[list[int], list[int]]] = {
        "time": _reach(batch.time_us, valid["time"] & ~ahead, batch.starts),
        "step": _reach(batch.step, valid["step"], batch.starts),
    }
    before, closings = _follow(moment, attempt, arrivals, reach)
    for axis in AXES:
        _fold(moment, attempt, axis, batch, panes[axis], valid[axis], far[axis], before[axis])
    if crowded:
        closings = [_make_room(moment, attempt, arrivals[0], closings[0])]
    _in_order(moment, attempt, batch, closings)


def _gather(arrivals: list[Arrival]) -> _Batch:
    counts = [len(a.frame.metric) for a in arrivals]
    starts = np.cumsum([0, *counts[:-1]])
    frame = np.repeat(np.arange(len(arrivals)), counts)
    number = np.array([a.process.number for a in arrivals], np.int64)
    ranks = [a.process.rank if a.frame.rank is None else a.frame.rank for a in arrivals]
    rank = np.array([NO_RANK if r is None else r for r in ranks], np.int32)
    return _Batch(
        arrivals=arrivals,
        starts=starts,
        frame=frame,
        series=np.concatenate([a.series.run[a.frame.metric] for a in arrivals]),
        step=np.concatenate([a.frame.step for a in arrivals]),
        time_us=np.concatenate([a.frame.time_us for a in arrivals]),
        samples=Samples(
            value=np.concatenate([a.frame.value for a in arrivals]),
            weight=np.concatenate([a.frame.weight for a in arrivals]),
            rank=rank[frame],
            process=number[frame],
        ),
        groups=_grouped(arrivals),
    )


def _grouped(arrivals: list[Arrival]) -> list[tuple[I64, I64]]:
    kinds = []
    for kind in range(len(arrivals[0].series.groups)):
        maps = [a.series.groups[kind] for a in arrivals]
        if any(some is not None for some in maps):
            none = [
                np.full(len(a.frame.metric), -1) if some is None else some[a.frame.metric]
                for a, some in zip(arrivals, maps, strict=True)
            ]
            series = np.concatenate(none)
            chosen = np.flatnonzero(series >= 0)
            kinds.append((chosen, series[chosen]))
    return kinds


def _per_frame(arrivals: list[Arrival], skew_us: int) -> I64:
    return np.array([a.record_us + skew_us for a in arrivals], np.int64)


def _valid(batch: _Batch, axis: Axis, pane: I64) -> Bool:
    """Samples that lie on the axis, within its limits."""
    position = batch.time_us if axis == "time" else batch.step
    valid: Bool = (pane < PANE_LIMIT) & (pane > -PANE_LIMIT)
    valid &= (position < POSITION_LIMIT) & (position > -POSITION_LIMIT)
    return valid


def _reach(position: I64, counts: Bool, starts: I64) -> tuple[list[int], list[int]]:
    """Lowest and highest position of each frame; lowest > highest where it has none."""
    if counts.all():
        low, high = position, position
    else:
        low, high = np.where(counts, position, _HIGH), np.where(counts, position, _LOW)
    return np.minimum.reduceat(low, starts).tolist(), np.maximum.reduceat(high, starts).tolist()


def _follow(
    moment: Moment, attempt: Attempt, arrivals: list[Arrival], reach: dict[Axis, tuple[list[int], list[int]]]
) -> tuple[dict[Axis, I64], list[list[Closing]]]:
    """Moves the watermarks record by record: the boundary before each, and what each closes."""
    closings: list[list[Closing]] = [[] for _ in arrivals]
    before: dict[Axis, I64] = {}
    grace_us = moment.state.config.start_grace_us
    for name in AXES:
        axis = attempt.axes[name]
        mark, width, boundary = axis.watermark, axis.plan.pane, axis.closed
        bounds: list[int] = []
        lows, highs = reach[name]
        for at, arrival in enumerate(arrivals):
            bounds.append(boundary)
            if lows[at] <= highs[at]:
                mark.advance(arrival.process.number, lows[at], highs[at], arrival.now_us)
            value = mark.move(arrival.now_us)
            if value is not None and value // width > boundary:
                boundary = value // width
                presence = attempt.presence(axis, arrival.now_us, grace_us)
                closings[at].append(Closing(name, boundary, presence))
        before[name] = np.array(bounds, np.int64)
    return before, closings


def _fold(
    moment: Moment,
    attempt: Attempt,
    name: Axis,
    batch: _Batch,
    pane: I64,
    valid: Bool,
    ahead: Bool,
    before: I64,
) -> None:
    axis = attempt.axes[name]
    late = valid & (pane < before[batch.frame])
    fits = valid & (batch.series >= 0)
    if late.any():
        _count_late(attempt, name, batch, late)
        moment.state.count(f"late_{name}", int(late.sum()))
        fits &= ~late
    if len(batch.arrivals) == 1 and not axis.open.room(pane[fits], ahead[fits]):
        chosen = np.flatnonzero(fits)
        fits[chosen] = axis.open.fitting(pane[chosen], ahead[chosen])
    if not fits.all():
        _refuse(moment, attempt, name, batch, fits | late)
    _add(attempt, axis.open, pane, batch, fits)


def _make_room(moment: Moment, attempt: Attempt, arrival: Arrival, closings: list[Closing]) -> list[Closing]:
    """Closes the oldest panes where a record left more open than may be, whoever holds the watermark."""
    found = {closing.axis: closing for closing in closings}
    for name in AXES:
        axis = attempt.axes[name]
        boundary = axis.open.crowd(found[name].boundary if name in found else axis.closed)
        if boundary is None:
            continue
        presence = attempt.presence(axis, arrival.now_us, moment.state.config.start_grace_us)
        found[name] = Closing(name, boundary, presence)
        moment.state.count(f"crowded_{name}")
        if name not in attempt.crowded_told:
            attempt.crowded_told.append(name)
            _tell_crowded(moment, attempt, name, arrival)
    return [found[name] for name in AXES if name in found]


def _tell_crowded(moment: Moment, attempt: Attempt, name: Axis, arrival: Arrival) -> None:
    """Names the process that holds the watermark, once per axis: its clock, or its log, is far behind."""
    mark = attempt.axes[name].watermark
    held = [(mark.newest[at] or 0, at) for at in range(len(attempt.processes)) if mark.holds(at)]
    text = f"more than {MAX_OPEN_PANES} {name} panes would be open: the oldest are closed, "
    process = None
    if not held:
        text += "and what comes for them is late"
    else:
        position, number = min(held)
        process = moment.run.processes.get(attempt.processes[number])
        who = (
            attempt.processes[number] if process is None else f"rank {process.rank} on {process.host or '?'}"
        )
        behind = f"{(arrival.now_us - position) / 1e6:.0f} s ago" if name == "time" else f"step {position}"
        text += f"though {who} has only come to {behind}: what it has for them is late"
    moment.outbox.fact(
        arrival.offset,
        moment.run.name,
        attempt.number,
        "note",
        arrival.now_us,
        text,
        process=None if process is None else process.name,
        rank=None if process is None else process.rank,
        axis=name,
    )


def _add(attempt: Attempt, panes: OpenPanes, pane: I64, batch: _Batch, fits: Bool) -> None:
    """Whole-run series of all samples, then those of the groups that ask for theirs."""
    count, words = len(attempt.series), attempt.words
    every = bool(fits.all())
    if every:
        panes.add(pane, batch.series, batch.samples, series_count=count, words=words)
    else:
        some = batch.samples.take(fits)
        panes.add(pane[fits], batch.series[fits], some, series_count=count, words=words)
    for chosen, series in batch.groups:
        if not every:
            kept = fits[chosen]
            chosen, series = chosen[kept], series[kept]
        panes.add(pane[chosen], series, batch.samples.take(chosen), series_count=count, words=words)


def _count_late(attempt: Attempt, name: Axis, batch: _Batch, late: Bool) -> None:
    """Adds late samples to what the next tick tells."""
    position = batch.time_us if name == "time" else batch.step
    chosen = np.flatnonzero(late)
    series = batch.series[chosen]
    for number in np.unique(series).tolist():
        places = position[chosen[series == number]]
        metric = attempt.series.metrics[number] if number >= 0 else ""
        told = attempt.late.setdefault((name, metric), [0, _HIGH, _LOW])
        told[0] += len(places)
        told[1] = min(told[1], int(places.min()))
        told[2] = max(told[2], int(places.max()))


def _refuse(moment: Moment, attempt: Attempt, name: Axis, batch: _Batch, settled: Bool) -> None:
    """Counts samples of the axis beyond a bound; the first of the attempt is a fact."""
    on_axis = batch.step != frames.NO_STEP if name == "step" else np.ones(len(batch.step), np.bool_)
    refused = np.flatnonzero(on_axis & ~settled)
    if not len(refused):
        return
    moment.state.count(f"refused_{name}", len(refused))
    if name in attempt.refused_told:
        return
    attempt.refused_told.append(name)
    arrival = batch.arrivals[int(batch.frame[refused[0]])]
    within = int(refused[0] - batch.starts[batch.frame[refused[0]]])
    metric = arrival.frame.names[int(arrival.frame.metric[within])]
    moment.outbox.fact(
        arrival.offset,
        moment.run.name,
        attempt.number,
        "refused",
        arrival.now_us,
        f"{metric}: a sample is beyond the bounds of windows (names, panes dated ahead, or its {name}); "
        "it is stored, but in no window. Further ones are only counted.",
        metric=metric,
        process=arrival.process.name,
        rank=arrival.process.rank,
        axis=name,
    )


def _tell_ahead(moment: Moment, attempt: Attempt, batch: _Batch, ahead: Bool) -> None:
    """Samples dated ahead: counted, and a fact once per process."""
    if not ahead.any():
        return
    moment.state.count("future", int(ahead.sum()))
    for at in np.unique(batch.frame[ahead]).tolist():
        arrival = batch.arrivals[at]
        process = arrival.process
        if process.ahead:
            continue
        process.ahead = True
        times = batch.time_us[ahead & (batch.frame == at)]
        offset_us = int(times.max()) - arrival.record_us
        moment.outbox.fact(
            arrival.offset,
            moment.run.name,
            attempt.number,
            "future",
            arrival.now_us,
            f"rank {process.rank} on {process.host or 'unknown host'}: a sample is dated "
            f"{offset_us / 1e6:.1f} s ahead; it is kept and moves no watermark",
            process=process.name,
            rank=process.rank,
            axis="time",
            start=int(times.min()),
            end=int(times.max()) + 1,
            count=len(times),
            detail={"offset_us": offset_us, "host": process.host},
        )


def _in_order(moment: Moment, attempt: Attempt, batch: _Batch, closings: list[list[Closing]]) -> None:
    """Shows non-finite arrivals, then closes panes, record by record."""
    odd = ~np.isfinite(batch.samples.value)
    arrived = _odd_by_frame(batch, odd) if odd.any() else {}
    for at, arrival in enumerate(batch.arrivals):
        if not closings[at] and at not in arrived:
            continue
        here = moment._replace(offset=arrival.offset, now_us=arrival.now_us)
        if at in arrived:
            _show_non_finite(here, attempt, batch, arrived[at])
        if closings[at]:
            close(here, attempt, closings[at])


def _odd_by_frame(batch: _Batch, odd: Bool) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for at in np.flatnonzero(odd & (batch.series >= 0)).tolist():
        places.setdefault(int(batch.frame[at]), []).append(at)
    return places


def _show_non_finite(moment: Moment, attempt: Attempt, batch: _Batch, places: list[int]) -> None:
    seen = attempt.seen_non_finite
    shown = 0
    for at in places:
        rank = int(batch.samples.rank[at])
        step: int | None = int(batch.step[at])
        second = 0
        if step == frames.NO_STEP:
            step, second = None, int(batch.time_us[at]) // 1_000_000
        metric = attempt.series.metrics[int(batch.series[at])]
        who = None if rank == NO_RANK else rank
        key = (metric, who, step, second)
        if key in seen:
            continue
        if shown >= MAX_NON_FINITE:
            moment.state.count("non_finite_untold")
            continue
        shown += 1
        if len(seen) >= MAX_NON_FINITE_SEEN:
            del seen[next(iter(seen))]
        seen[key] = None
        value = float(batch.samples.value[at])
        moment.alerts(
            attempt, attempt.detection.non_finite(NonFinite(metric, who, step, value, moment.now_us))
        )
