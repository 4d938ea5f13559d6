"""Samples as the checks compare them, wherever they are: logged, in a frame, on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from driftline import frames, records
from driftline.errors import BadRecord
from driftline.producers.disk import Disk
from driftline.producers.recovery import segments_of


class Sample(NamedTuple):
    """What a rank logged; (process, metric, step, time) is unique."""

    run: str
    process: str
    metric: str
    step: int | None
    time_us: int
    value: str
    """``repr``: NaN is equal to itself then."""
    weight: float


def frame_in(value: bytes | None) -> frames.Frame | None:
    try:
        frame = records.decode(value)
    except BadRecord:
        return None
    return frame if isinstance(frame, frames.Frame) else None


def samples_of(frame: frames.Frame) -> Iterator[Sample]:
    columns = (frame.metric, frame.step, frame.time_us, frame.value, frame.weight)
    for metric, step, time_us, value, weight in zip(*(c.tolist() for c in columns), strict=True):
        where = None if step == frames.NO_STEP else step
        yield Sample(frame.run, frame.process, frame.names[metric], where, time_us, repr(value), weight)


def spooled(disk: Disk, *names: str) -> dict[str, set[Sample]]:
    """What waits in these spools, by process."""
    waiting: dict[str, set[Sample]] = {}
    for name in names:
        for _, data, segment in segments_of(disk.look(name)):
            for entry in segment.entries:
                frame = frame_in(data[entry.offset : entry.offset + entry.size])
                if frame is not None:
                    waiting.setdefault(frame.process, set()).update(samples_of(frame))
    return waiting
