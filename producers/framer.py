"""Entries of ``log`` become metric frames: names to numbers, cutting, splitting, urgency. Pure.

Samples keep the order in which they were logged. A frame has at most ``frame_samples`` samples, 32,000
names and 512 KiB; one call of ``log`` may be spread over several frames. The work is done in a few long
calls into C over all entries at once, since what runs here in Python holds up the training thread.

Urgent is a NaN or infinity of a metric that had none in the last ten seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from driftline.frames import MAX_NAMES, NO_STEP, Frame
from driftline.producers.counters import Counters, Notes, words
from driftline.producers.naming import metric_name
from driftline.producers.values import Refusal, admit, admit_weight
from driftline.topics import MAX_FRAME_BYTES

URGENT_AGAIN_US = 10_000_000
KNOWN_NAMES_MAX = 200_000
FRAME_BYTES_AIM = MAX_FRAME_BYTES - 16 * 1024
"""Room for metadata and padding is left below the limit."""
_SAMPLE_BYTES = 2 + 8 + 8 + 8 + 8 + 1


class Entry(NamedTuple):
    """One call of ``log`` with accepted values."""

    time_ns: int
    step: int | None
    weight: float | None
    values: dict[Any, Any]


class _Chunk(NamedTuple):
    metric: npt.NDArray[np.int32]
    step: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]


def _each(chunk: _Chunk, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> _Chunk:
    columns: tuple[Any, ...] = chunk
    return _Chunk(*map(change, columns))


class _Ids(dict[Any, int]):
    """Names to numbers, made at first sight; -1 for what cannot be a name."""

    def __init__(self, counters: Counters, notes: Notes) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sizes: list[int] = []
        self._counters, self._notes = counters, notes

    def __missing__(self, key: object) -> int:
        if not isinstance(key, str):
            self._notes.once(
                ("name", words(key, 80)), f"the name {words(key, 80)} is not text: its values are refused"
            )
            number = -1
        else:
            name, cut = metric_name(str(key))
            if cut:
                self._counters.add("names_cut")
                self._notes.once(
                    ("cut", name),
                    f"a name over 600 bytes is stored cut, with a hash: {name[:60]}...{name[-17:]}",
                )
            number = len(self.names)
            self.names.append(name)
            self.sizes.append(len(name.encode()))
        self[key] = number
        return number


class Framer:
    """Holds samples until they are taken as frames. Not thread-safe: one thread adds and takes."""

    def __init__(
        self,
        *,
        run: str,
        process: str,
        rank: int | None,
        frame_samples: int,
        counters: Counters,
        notes: Notes,
    ) -> None:
        self._head = (run, process, rank)
        self._frame_samples = max(1, min(frame_samples, MAX_NAMES))
        self._counters, self._notes = counters, notes
        self._ids = _Ids(counters, notes)
        self._chunks: list[_Chunk] = []
        self._alarmed_us: dict[int, int] = {}
        self.samples = 0
        """Samples waiting."""
        self.urgent = False
        """True if what waits should be sent at once."""

    def add(self, entries: Sequence[tuple[int, Any, Any, dict[Any, Any]]]) -> None:
        """Appends entries (as :class:`Entry`) in order. What is no number is refused and counted."""
        if not entries:
            return
        try:
            chunk = self._convert(entries)
        except (TypeError, ValueError, OverflowError):
            chunk = self._convert([self._checked(entry) for entry in entries])
        if chunk.metric.size and int(chunk.metric.min()) < 0:
            named = chunk.metric >= 0
            self._counters.add("refused_name", int(np.count_nonzero(~named)))
            chunk = _each(chunk, lambda column: column[named])
        if not chunk.metric.size:
            return
        self._counters.add("samples_logged", chunk.metric.size)
        self._chunks.append(chunk)
        self.samples += chunk.metric.size
        self._look_for_alarm(chunk)

    def take(self, *, full_only: bool = False) -> list[Frame]:
        """Frames (with seq -1) of what waits; ``full_only`` leaves a last frame that is not full."""
        if not self.samples or (full_only and self.samples < self._frame_samples):
            return []
        chunk = self._chunks[0]
        if len(self._chunks) > 1:
            chunk = _Chunk(*(np.concatenate(columns) for columns in zip(*self._chunks, strict=True)))
        end = self.samples
        if full_only:
            end -= end % self._frame_samples
        made: list[Frame] = []
        for start in range(0, end, self._frame_samples):
            self._cut(chunk, start, min(start + self._frame_samples, end), made)
        self.samples -= end
        self._chunks = [_each(chunk, lambda column: column[end:])] if self.samples else []
        if not self.samples:
            self.urgent = False
            if len(self._ids) > KNOWN_NAMES_MAX:
                self._ids = _Ids(self._counters, self._notes)
                self._alarmed_us.clear()
        return made

    def _convert(self, entries: Sequence[tuple[int, Any, Any, dict[Any, Any]]]) -> _Chunk:
        times, steps, weights, dicts = zip(*entries, strict=True)
        lengths = np.fromiter(map(len, dicts), np.int64, len(dicts))
        total = int(lengths.sum())
        value = np.fromiter(itertools.chain.from_iterable(map(dict.values, dicts)), np.float64, total)
        metric = np.fromiter(
            map(self._ids.__getitem__, itertools.chain.from_iterable(dicts)), np.int32, total
        )
        if NO_STEP in steps:
            raise OverflowError("a step that stands for none")
        if None in steps:
            steps = tuple(NO_STEP if step is None else step for step in steps)
        if weights.count(None) == len(weights):
            weight = np.ones(total)
        else:
            each = np.array([1.0 if weight is None else weight for weight in weights], np.float64)
            weight = np.repeat(each, lengths)
        return _Chunk(
            metric=metric,
            step=np.repeat(np.array(steps, np.int64), lengths),
            time_us=np.repeat(np.array(times, np.int64) // 1000, lengths),
            value=value,
            weight=weight,
        )

    def _checked(self, entry: tuple[int, Any, Any, dict[Any, Any]]) -> tuple[int, Any, Any, dict[Any, Any]]:
        """The entry with only what :meth:`_convert` can take: the slow way, value by value."""
        time_ns, step, weight, values = entry
        if step is not None and not (NO_STEP < step < -NO_STEP):
            self._counters.add("steps_refused")
            self._notes.once("step", f"step {step} does not fit into 64 bits: stored without a step")
            step = None
        if weight is not None:
            weight = admit_weight(weight)
            if not isinstance(weight, float):
                self._counters.add("refused_weight", len(values))
                self._notes.once("weight", "a weight is not a finite number above 0: its samples are refused")
                return time_ns, step, None, {}
        kept: dict[Any, Any] = {}
        for name, value in values.items():
            found = admit(value)
            if isinstance(found, float):
                kept[name] = found
            elif isinstance(found, Refusal):
                self._counters.add("refused_" + found.reason)
                self._notes.once(
                    (found.reason, name), f"{words(name)} is not a number: {found.detail}; refused"
                )
            else:
                self._counters.add("errors")
        return time_ns, step, weight, kept

    def _look_for_alarm(self, chunk: _Chunk) -> None:
        bad = ~np.isfinite(chunk.value)
        if not bad.any():
            return
        for number, time_us in zip(chunk.metric[bad].tolist(), chunk.time_us[bad].tolist(), strict=True):
            before = self._alarmed_us.get(number)
            if before is None or time_us - before >= URGENT_AGAIN_US:
                self._alarmed_us[number] = time_us
                self.urgent = True

    def _cut(self, chunk: _Chunk, start: int, end: int, made: list[Frame]) -> None:
        """Appends the frame of samples [start, end), or of its halves if it would be too large."""
        numbers, metric = np.unique(chunk.metric[start:end], return_inverse=True)
        used = numbers.tolist()
        sizes = self._ids.sizes
        size = sum([sizes[number] + 4 for number in used]) + _SAMPLE_BYTES * (end - start)
        if size > FRAME_BYTES_AIM and end - start > 1:
            self._counters.add("frames_split")
            middle = (start + end) // 2
            self._cut(chunk, start, middle, made)
            self._cut(chunk, middle, end, made)
            return
        names = self._ids.names
        run, process, rank = self._head
        made.append(
            Frame(
                run=run,
                process=process,
                rank=rank,
                seq=-1,
                names=[names[number] for number in used],
                metric=metric.astype(np.int16),
                step=chunk.step[start:end],
                time_us=chunk.time_us[start:end],
                value=chunk.value[start:end],
                weight=chunk.weight[start:end],
            )
        )


def halves(frame: Frame) -> list[Frame]:
    """A frame that turned out too large, as two."""
    middle = len(frame.metric) // 2
    return [_part(frame, 0, middle), _part(frame, middle, len(frame.metric))]


def _part(frame: Frame, start: int, end: int) -> Frame:
    numbers, metric = np.unique(frame.metric[start:end], return_inverse=True)
    return frame._replace(
        names=[frame.names[number] for number in numbers.tolist()],
        metric=metric.astype(np.int16),
        step=frame.step[start:end],
        time_us=frame.time_us[start:end],
        value=frame.value[start:end],
        weight=frame.weight[start:end],
    )
