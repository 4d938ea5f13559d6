"""Rows of ``samples`` -> the frames that they came in, in the order of the log. Pure.

    Block(offsets, sizes)     add(rows), in any order     frames -> arrays of frame k

``log`` says how many samples each record carried, so the place of a sample is known before it is read: the
start of its frame plus its ordinal. Nothing is sorted; each column is written to its place once. Names are
numbered within a frame in the order of their first samples (the order that they had there is not kept, and
the pipeline does not depend on it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from driftline.frames import Frame

I64 = npt.NDArray[np.int64]
MAX_SHAPES = 4_096
"""Sequences of names that are kept; frames of a process repeat theirs."""

ROW = np.dtype(
    [
        ("offset", "<i8"),
        ("ordinal", "<i4"),
        ("metric", "<i4"),
        ("step", "<i8"),
        ("time_us", "<i8"),
        ("value", "<f8"),
        ("weight", "<f8"),
    ]
)
"""A sample as it is put aside on disk while others are read."""


class Room(Protocol):
    """Makes an array that is not filled yet."""

    def __call__(self, shape: int, dtype: Any, /) -> npt.NDArray[Any]: ...


class SampleBatch(NamedTuple):
    """Some rows of ``samples`` as arrays; ``metric`` are codes of :class:`Names`."""

    offset: I64
    ordinal: npt.NDArray[np.int32]
    metric: npt.NDArray[np.int32]
    step: I64
    """:data:`driftline.frames.NO_STEP` where there is none."""
    time_us: I64
    value: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]

    def take(self, chosen: npt.NDArray[np.bool_]) -> SampleBatch:
        return SampleBatch._make(column[chosen] for column in self)

    def packed(self) -> npt.NDArray[np.void]:
        """One array of :data:`ROW`."""
        rows = np.empty(len(self.offset), ROW)
        for name, column in zip(ROW.names or (), self, strict=True):
            rows[name] = column
        return rows

    @classmethod
    def unpacked(cls, rows: npt.NDArray[np.void]) -> SampleBatch:
        return cls(*(rows[name] for name in ROW.names or ()))


class Names:
    """Metric names by code, and the local numbering of each sequence of codes that a frame had."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._shapes: dict[bytes, tuple[list[str], npt.NDArray[np.int16]]] = {}

    def codes(self, texts: Sequence[str]) -> npt.NDArray[np.int32]:
        """The codes of some names."""
        found = []
        for text in texts:
            code = self._codes.setdefault(text, len(self.texts))
            if code == len(self.texts):
                self.texts.append(text)
            found.append(code)
        return np.array(found, np.int32)

    def shape(self, codes: npt.NDArray[np.int32]) -> tuple[list[str], npt.NDArray[np.int16]]:
        """The names of a frame in the order of their first samples, and the index of each sample's name.

        >>> names = Names()
        >>> of, index = names.shape(names.codes(["b", "a", "b"]))
        >>> of, index.tolist()
        (['b', 'a'], [0, 1, 0])
        """
        key = codes.tobytes()
        found = self._shapes.get(key)
        if found is None:
            used, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
            order = np.argsort(first)
            place = np.empty(len(used), np.int16)
            place[order] = np.arange(len(used))
            found = [self.texts[code] for code in used[order].tolist()], place[inverse]
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = found
        return found


class Head(NamedTuple):
    """What ``log`` says of a frame."""

    run: str
    process: str
    rank: int | None
    seq: int
    counters: str


class Block:
    """The samples of some frames of one partition: those at ``offsets`` (growing), of ``sizes``.

    ``room`` gives an array of so many of a type: memory, or a file that is mapped there.
    """

    def __init__(self, offsets: I64, sizes: I64, names: Names, room: Room = np.empty) -> None:
        self._names = names
        self._sizes = sizes
        self._starts = np.cumsum(sizes) - sizes
        self._first = int(offsets[0]) if len(offsets) else 0
        self._place = np.full(int(offsets[-1]) - self._first + 1 if len(offsets) else 0, -1, np.int64)
        self._place[offsets - self._first] = self._starts
        total = int(sizes.sum())
        self._there = np.zeros(total, np.bool_)
        self._metric = room(total, np.int32)
        self._step, self._time_us = room(total, np.int64), room(total, np.int64)
        self._value, self._weight = room(total, np.float64), room(total, np.float64)
        self._added = self._next = 0
        self._found: int | None = None

    def add(self, rows: SampleBatch) -> None:
        """Puts rows in their places; those of other records are left out."""
        at = rows.offset - self._first
        known = (at >= 0) & (at < len(self._place))
        if not known.all():
            rows, at = rows.take(known), at[known]
        start = self._place[at]
        if len(start) and start.min() < 0:
            rows, start = rows.take(start >= 0), start[start >= 0]
        place = start + rows.ordinal
        if len(place) and int(place.max()) >= len(self._there):
            rows, place = rows.take(place < len(self._there)), place[place < len(self._there)]
        self._there[place] = True
        self._metric[place], self._step[place], self._time_us[place] = rows.metric, rows.step, rows.time_us
        self._value[place], self._weight[place] = rows.value, rows.weight
        self._added += len(place)
        self._found = None

    @property
    def found(self) -> int:
        """Samples of which there is a row."""
        if self._found is None:
            self._found = int(np.count_nonzero(self._there))
        return self._found

    @property
    def missing(self) -> int:
        """Samples of which there is none."""
        return len(self._there) - self.found

    @property
    def doubled(self) -> int:
        """Rows beyond one for each sample."""
        return self._added - self.found

    def frames(self, heads: Sequence[Head]) -> Iterator[Frame]:
        """The next frames, in the order of ``offsets``; one that lacks samples has those that are there."""
        whole = not self.missing
        here = slice(self._next, self._next + len(heads))
        self._next += len(heads)
        for start, size, head in zip(
            self._starts[here].tolist(), self._sizes[here].tolist(), heads, strict=True
        ):
            part: slice | npt.NDArray[np.int64] = slice(start, start + size)
            if not whole and not self._there[part].all():
                part = start + np.flatnonzero(self._there[part])
            names, metric = self._names.shape(self._metric[part])
            yield Frame(
                head.run,
                head.process,
                head.rank,
                head.seq,
                names,
                metric,
                self._step[part],
                self._time_us[part],
                self._value[part],
                self._weight[part],
                head.counters,
            )


def bucket_ends(sizes: I64, *, samples: int, records: int) -> list[int]:
    """Cuts a list of records into parts of at most so many samples and records (a record is never cut): the
    index after each part.

    >>> bucket_ends(np.array([4, 4, 4, 9, 1]), samples=8, records=2)
    [2, 3, 4, 5]
    """
    ends, held, first = [], 0, 0
    for at, size in enumerate(sizes.tolist()):
        if at > first and (held + size > samples or at - first >= records):
            ends.append(at)
            held, first = 0, at
        held += size
    return [*ends, len(sizes)] if len(sizes) else []
