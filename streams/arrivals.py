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
from driftline.streams.aggregates import I64, NO_RANK, U8, Batch, Bool, Placed
from driftline.streams.attempts import AXES, Attempt, Process
from driftline.streams.closing import Closing, Moment, close
from driftline.streams.extras import Ask, untold
from driftline.streams.kernels import fold as kernel
from driftline.streams.panes import MAX_OPEN_PANES, OpenPanes
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
    new: I64 | None = None
    """Series in which its process takes part from this frame on."""


class _Batch(NamedTuple):
    """Samples of all frames in log order, and where they lie."""

    arrivals: list[Arrival]
    samples: Batch
    """With the series of the whole run."""
    groups: list[Batch]
    """The same samples, for each kind of group that any frame asks for."""
    needed: list[Batch]
    """Likewise, for an axis without windows."""
    step: I64
    time_us: I64
    pane: dict[Axis, I64]
    flags: U8
    reach: I64
    """Rows of ``kernel.survey``: lowest and highest time, lowest and highest step of each frame."""
    found: list[int]
    """What ``kernel.survey`` found over all."""

    def span(self, axis: Axis) -> tuple[int, int]:
        """Lowest and highest pane; the first is higher where there is none."""
        at = kernel.LOW_TIME if axis == "time" else kernel.LOW_STEP
        return self.found[at], self.found[at + 1]

    def on(self, axis: Axis) -> Bool:
        """Which samples lie on the axis, within its limits."""
        on: Bool = (self.flags & _FLAG[axis]) != 0
        return on

    def ahead(self, axis: Axis) -> Bool:
        """Which of them are dated ahead (on the time axis)."""
        if axis == "step":
            return np.zeros(len(self.flags), np.bool_)
        ahead: Bool = (self.flags & kernel.AHEAD) != 0
        return ahead

    def position(self, axis: Axis) -> I64:
        return self.time_us if axis == "time" else self.step

    def frames(self) -> I64:
        """The frame of each sample."""
        return np.repeat(np.arange(len(self.arrivals)), np.diff(self.samples.starts))

    def series(self) -> I64:
        """The whole-run series of each sample, -1 where there is none."""
        some = self.samples
        series: I64 = some.maps[np.repeat(some.offsets, np.diff(some.starts)) + some.metric]
        return series


_FLAG: dict[Axis, int] = {"time": kernel.VALID_TIME, "step": kernel.VALID_STEP}


def take(moment: Moment, attempt: Attempt, arrivals: list[Arrival], skew_us: int) -> None:
    """Applies frames (with samples) of one attempt."""
    batch = _gather(attempt, arrivals, skew_us)
    crowded = not all(_has_room(attempt, batch, axis) for axis in AXES)
    if crowded and len(arrivals) > 1:
        half = len(arrivals) // 2
        take(moment, attempt, arrivals[:half], skew_us)
        take(moment, attempt, arrivals[half:], skew_us)
        return
    if batch.found[kernel.ANY_AHEAD]:
        _tell_ahead(moment, attempt, batch)
    before, closings = _follow(moment, attempt, batch)
    for axis in AXES:
        _fold(moment, attempt, axis, batch, before[axis], crowded=crowded)
    if crowded:
        closings = [_make_room(moment, attempt, arrivals[0], closings[0])]
    _in_order(moment, attempt, batch, closings)


def _gather(attempt: Attempt, arrivals: list[Arrival], skew_us: int) -> _Batch:
    frames_of = [a.frame for a in arrivals]
    counts = [len(frame.metric) for frame in frames_of]
    starts = np.array([0, *counts]).cumsum()
    maps = [a.series.run for a in arrivals]
    ranks = [a.process.rank if a.frame.rank is None else a.frame.rank for a in arrivals]
    samples = Batch(
        starts=starts,
        ranks=np.array([NO_RANK if r is None else r for r in ranks], np.int64),
        processes=np.array([a.process.number for a in arrivals], np.int64),
        metric=np.concatenate([frame.metric for frame in frames_of]),
        value=np.concatenate([frame.value for frame in frames_of]),
        weight=np.concatenate([frame.weight for frame in frames_of]),
        offsets=np.array([0, *(len(some) for some in maps[:-1])]).cumsum(),
        maps=np.concatenate(maps),
    )
    time_us = np.concatenate([frame.time_us for frame in frames_of])
    step = np.concatenate([frame.step for frame in frames_of])
    size = len(time_us)
    pane: dict[Axis, I64] = {axis: np.empty(size, np.int64) for axis in AXES}
    flags, reach = np.empty(size, np.uint8), np.empty((4, len(arrivals)), np.int64)
    found = kernel.survey(
        *(starts, time_us, step, samples.value),
        np.array([a.record_us + skew_us for a in arrivals], np.int64),
        *(attempt.axes["time"].plan.pane, attempt.axes["step"].plan.pane),
        *(pane["time"], pane["step"], flags, reach),
    )
    groups = _grouped(samples, maps, [a.series.groups for a in arrivals])
    needed = _grouped(samples, maps, [a.series.needed for a in arrivals])
    return _Batch(arrivals, samples, groups, needed, step, time_us, pane, flags, reach, found.tolist())


def _grouped(samples: Batch, whole: list[I64], of_frames: list[tuple[I64 | None, ...]]) -> list[Batch]:
    """The samples with the series of each kind of group that some frame has; ``whole``: of the run."""
    kinds = []
    for of_kind in zip(*of_frames, strict=True):
        if any(some is not None for some in of_kind):
            filled = [
                np.full(len(run), -1, np.int64) if some is None else some
                for run, some in zip(whole, of_kind, strict=True)
            ]
            kinds.append(samples._replace(maps=np.concatenate(filled)))
    return kinds


def _has_room(attempt: Attempt, batch: _Batch, axis: Axis) -> bool:
    """Whether the samples fit, whatever is open by then."""
    low, high = batch.span(axis)
    any_ahead = axis == "time" and batch.found[kernel.ANY_AHEAD] > 0
    panes = attempt.axes[axis].open
    if low > high or panes.fits(high - low + 1, any_ahead):
        return True
    return panes.room(batch.pane[axis][batch.on(axis)], any_ahead)


def _follow(moment: Moment, attempt: Attempt, batch: _Batch) -> tuple[dict[Axis, I64], list[list[Closing]]]:
    """Moves the watermarks record by record: the boundary before each, and what each closes."""
    closings: list[list[Closing]] = [[] for _ in batch.arrivals]
    before: dict[Axis, I64] = {}
    grace_us = moment.state.config.start_grace_us
    lows_and_highs = batch.reach.tolist()
    for name in AXES:
        axis = attempt.axes[name]
        mark, width, boundary = axis.watermark, axis.plan.pane, axis.closed
        bounds: list[int] = []
        lows, highs = lows_and_highs[:2] if name == "time" else lows_and_highs[2:]
        for at, arrival in enumerate(batch.arrivals):
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


def _fold(moment: Moment, attempt: Attempt, name: Axis, batch: _Batch, before: I64, *, crowded: bool) -> None:
    axis = attempt.axes[name]
    span = batch.span(name)
    flags = batch.flags
    pushed_out = 0
    if crowded:
        flags = _only_fitting(axis.open, name, batch, before)
        pushed_out = int(np.count_nonzero(flags != batch.flags))
    placed = Placed(batch.pane[name], flags, _FLAG[name], before)
    count, words = len(attempt.series), attempt.words
    late = nameless = 0
    if span[0] <= span[1]:
        late, nameless = axis.open.add(batch.samples, placed, span, series_count=count, words=words)
        for group in batch.groups if axis.plan.specs else batch.needed:
            axis.open.add(group, placed, span, series_count=count, words=words)
        if attempt.extras and axis.plan.specs:
            ask = Ask(attempt.extras, attempt.series, untold)
            for some in (batch.samples, *batch.groups):
                axis.held.take(some, placed, ask)
    if late:
        _count_late(attempt, name, batch, before)
        moment.state.count(f"late_{name}", late)
    off = batch.found[kernel.OFF_TIME if name == "time" else kernel.OFF_STEP]
    if off or nameless or pushed_out:
        _refuse(moment, attempt, name, batch, placed)


def _only_fitting(panes: OpenPanes, name: Axis, batch: _Batch, before: I64) -> U8:
    """The flags, without those of samples dated ahead for which there is no room (batch of one frame)."""
    fits = batch.on(name) & (batch.pane[name] >= before[0]) & (batch.series() >= 0)
    chosen = np.flatnonzero(fits)
    kept = panes.fitting(batch.pane[name][chosen], batch.ahead(name)[chosen])
    flags = batch.flags.copy()
    flags[chosen[~kept]] &= 0xFF ^ _FLAG[name]
    return flags


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
    held = [(mark.newest[at], at) for at in range(len(attempt.processes)) if mark.holds(at)]
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


def _count_late(attempt: Attempt, name: Axis, batch: _Batch, before: I64) -> None:
    """Adds late samples to what the next tick tells."""
    late = batch.on(name) & (batch.pane[name] < before[batch.frames()])
    position, chosen = batch.position(name), np.flatnonzero(late)
    series = batch.series()[chosen]
    for number in np.unique(series).tolist():
        places = position[chosen[series == number]]
        metric = attempt.series.metrics[number] if number >= 0 else ""
        told = attempt.late.setdefault((name, metric), [0, _HIGH, _LOW])
        told[0] += len(places)
        told[1] = min(told[1], int(places.min()))
        told[2] = max(told[2], int(places.max()))


def _refuse(moment: Moment, attempt: Attempt, name: Axis, batch: _Batch, placed: Placed) -> None:
    """Counts samples of the axis beyond a bound; the first of the attempt is a fact."""
    frame = batch.frames()
    on_axis = batch.step != frames.NO_STEP if name == "step" else np.ones(len(batch.step), np.bool_)
    late = batch.on(name) & (placed.pane < placed.before[frame])
    folded = ((placed.flags & placed.wanted) != 0) & (batch.series() >= 0)
    refused = np.flatnonzero(on_axis & ~late & ~folded)
    if not len(refused):
        return
    moment.state.count(f"refused_{name}", len(refused))
    if name in attempt.refused_told:
        return
    attempt.refused_told.append(name)
    arrival = batch.arrivals[int(frame[refused[0]])]
    metric = arrival.frame.names[int(batch.samples.metric[refused[0]])]
    why = f"is beyond the bounds of windows (names, panes dated ahead, or its {name})"
    if metric in attempt.derivations.names:
        why = "has the name of a derived metric, whose values the windows show: declare that by another name"
    moment.outbox.fact(
        arrival.offset,
        moment.run.name,
        attempt.number,
        "refused",
        arrival.now_us,
        f"{metric}: a sample {why}; it is stored, but in no window. Further ones are only counted.",
        metric=metric,
        process=arrival.process.name,
        rank=arrival.process.rank,
        axis=name,
    )


def _tell_ahead(moment: Moment, attempt: Attempt, batch: _Batch) -> None:
    """Samples dated ahead: counted, and a fact once per process."""
    ahead, frame = batch.ahead("time"), batch.frames()
    moment.state.count("future", int(ahead.sum()))
    for at in np.unique(frame[ahead]).tolist():
        arrival = batch.arrivals[at]
        process = arrival.process
        if process.ahead:
            continue
        process.ahead = True
        times = batch.time_us[ahead & (frame == at)]
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
    """Notes who takes part, shows non-finite arrivals, then closes panes, record by record."""
    arrived = _odd_by_frame(batch) if batch.found[kernel.ANY_ODD] else {}
    for at, arrival in enumerate(batch.arrivals):
        if arrival.new is not None:
            attempt.series.takes_part(arrival.new, arrival.process.number)
        if not closings[at] and at not in arrived:
            continue
        here = moment._replace(offset=arrival.offset, now_us=arrival.now_us)
        if at in arrived:
            _show_non_finite(here, attempt, batch, at, arrived[at])
        if closings[at]:
            close(here, attempt, closings[at])


def _odd_by_frame(batch: _Batch) -> dict[int, list[tuple[int, int]]]:
    """Per frame: samples that are not finite, and their series."""
    series, frame = batch.series(), batch.frames()
    places: dict[int, list[tuple[int, int]]] = {}
    for at in np.flatnonzero(~np.isfinite(batch.samples.value) & (series >= 0)).tolist():
        places.setdefault(int(frame[at]), []).append((at, int(series[at])))
    return places


def _show_non_finite(
    moment: Moment, attempt: Attempt, batch: _Batch, frame: int, places: list[tuple[int, int]]
) -> None:
    seen = attempt.seen_non_finite
    shown = 0
    rank = int(batch.samples.ranks[frame])
    for at, series in places:
        step: int | None = int(batch.step[at])
        second = 0
        if step == frames.NO_STEP:
            step, second = None, int(batch.time_us[at]) // 1_000_000
        metric = attempt.series.metrics[series]
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
