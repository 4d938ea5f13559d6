"""Shapes of frames that were decoded before: a process's next frame mostly differs in values only.

Opening an Arrow stream costs about 80 us, whatever it holds. A stream is a schema message, a dictionary
message and a batch message; once Arrow has read and validated a message, the same bytes mean the same again:

* the schema message, but for the texts of its metadata (seq and counters change in each frame), must equal
  what Arrow writes for this schema with texts of these lengths, so that the texts lie where they lie there;
* the dictionary message, body included, must be one that was read before;
* the metadata of the batch message (lengths, null counts, places of buffers; no values) must be one that was
  read before; what depends on its body (indices, bits of nulls) is checked each time.

Whatever is not so is left to Arrow. What is remembered changes the time of decoding, never its outcome.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftline.arrow_stream import Message, end_of_metadata, ends_at

MAX_REMEMBERED_BYTES = 16 << 20
MAX_REMEMBERED = 4_096
_KEYS = {b"format", b"run", b"process", b"rank", b"seq", b"counters"}


class Column(NamedTuple):
    """Where a column of a batch lies, in bytes from the start of the batch's message."""

    data: int
    nulls: int
    bits: int
    """Bitmap of values that are there; -1 where all are."""


class Batch(NamedTuple):
    """What the metadata of a batch message says."""

    rows: int
    size: int
    """Bytes of the message with its body."""
    columns: tuple[Column, ...]


class Parts(NamedTuple):
    """A payload taken apart; nothing is copied."""

    meta: dict[bytes, bytes]
    names: list[str]
    start: int
    """Where the batch message begins."""
    batch: Batch


class _Template:
    """The schema message for texts of given lengths: fixed bytes between the places of the texts."""

    def __init__(self, schema: pa.Schema, meta: dict[bytes, bytes]) -> None:
        marks = {key: bytes([0x80 + at]) * len(text) for at, (key, text) in enumerate(meta.items())}
        message = _schema_message(schema, marks)
        self.places: list[tuple[bytes, int, int]] = []
        for key, mark in marks.items():
            framed = struct.pack("<I", len(mark)) + mark + b"\0"
            at = message.find(framed) + 4 if mark else 0
            assert not mark or message.count(framed) == 1, "marks are no part of a schema message"
            self.places.append((key, at, at + len(mark)))
        self.fixed: list[tuple[int, int, bytes]] = []
        end = 0
        for _, low, high in sorted((place for place in self.places if place[2]), key=lambda place: place[1]):
            self.fixed.append((end, low, message[end:low]))
            end = high
        self.fixed.append((end, len(message), message[end:]))

    def texts(self, payload: bytes) -> dict[bytes, bytes] | None:
        for low, high, expected in self.fixed:
            if payload[low:high] != expected:
                return None
        return {key: payload[low:high] for key, low, high in self.places}


class Shapes:
    """Bounded memory of shapes; forgets all when full, since what is in use comes back at once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._forget()

    def _forget(self) -> None:
        self._templates: dict[int, list[_Template]] = {}
        self._made: set[tuple[tuple[bytes, int], ...]] = set()
        self._dictionary_sizes: dict[bytes, int] = {}
        self._names: dict[bytes, list[str]] = {}
        self._batches: dict[bytes, Batch] = {}
        self._bytes = 0

    def find(self, payload: bytes) -> Parts | None:
        """The parts of a payload, if all its shapes are known."""
        start = end_of_metadata(payload, 0)
        meta = self._texts(payload, start)
        if meta is None:
            return None
        end = end_of_metadata(payload, start)
        size = self._dictionary_sizes.get(payload[start:end])
        if size is None:
            return None
        names = self._names.get(payload[start : start + size])
        if names is None:
            return None
        start += size
        batch = self._batches.get(payload[start : end_of_metadata(payload, start)])
        if batch is None or not ends_at(payload, start + batch.size):
            return None
        return Parts(meta, names, start, batch)

    def learn(
        self,
        payload: bytes,
        places: Sequence[Message],
        meta: dict[bytes, bytes],
        batch: pa.RecordBatch,
        names: list[str],
    ) -> None:
        """Remembers the shape of a payload that Arrow read: valid, and just these three messages."""
        if not meta.keys() <= _KEYS or not batch.num_rows:
            return
        self._make_room(len(payload))
        schema, dictionary, rows = places
        self._make_template(meta, schema.end)
        if self._texts(payload, schema.end) is None:
            return  # another writer, whose dictionary may have another number
        columns = _columns(payload, rows.start, batch)
        if columns is None:
            return
        self._dictionary_sizes[payload[dictionary.start : dictionary.body]] = (
            dictionary.end - dictionary.start
        )
        self._names[payload[dictionary.start : dictionary.end]] = names
        found = Batch(batch.num_rows, rows.end - rows.start, columns)
        self._batches[payload[rows.start : rows.body]] = found

    def _texts(self, payload: bytes, size: int) -> dict[bytes, bytes] | None:
        known = self._templates.get(size, [])
        for at, template in enumerate(known):
            texts = template.texts(payload)
            if texts is not None:
                known[0], known[at] = template, known[0]  # the next frame is most likely of this form
                return texts
        return None

    def _make_template(self, meta: dict[bytes, bytes], size: int) -> None:
        lengths = tuple((key, len(text)) for key, text in meta.items())
        if lengths in self._made:
            return
        self._made.add(lengths)
        self._templates.setdefault(size, []).append(_Template(self._schema, meta))

    def _make_room(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_REMEMBERED_BYTES or len(self._made) + len(self._batches) > MAX_REMEMBERED:
            self._forget()
            self._bytes = size


def _schema_message(schema: pa.Schema, meta: dict[bytes, bytes]) -> bytes:
    message: bytes = schema.with_metadata(meta).serialize().to_pybytes()
    return message


def _columns(payload: bytes, start: int, batch: pa.RecordBatch) -> tuple[Column, ...] | None:
    """Where the columns lie; None where one lies elsewhere (compressed) or is of another form."""
    base = pa.py_buffer(payload).address + start
    end = len(payload) - start
    columns = []
    for column in batch.columns:
        bits, data = column.buffers()[:2]
        if column.offset or data is None or (bits is None) != (column.null_count == 0):
            return None
        places = [-1 if part is None else part.address - base for part in (bits, data)]
        if not all(-1 <= place < end for place in places) or places[1] < 0:
            return None
        columns.append(Column(places[1], column.null_count, places[0]))
    return tuple(columns)


def no_bits(payload: bytes, at: int, count: int) -> bool:
    """Whether none of ``count`` bits from byte ``at`` is set, lowest first."""
    whole, rest = divmod(count, 8)
    if payload[at : at + whole].strip(b"\0"):
        return False
    return not rest or not payload[at + whole] & ((1 << rest) - 1)


def bits_set(payload: bytes, at: int, count: int) -> npt.NDArray[np.bool_]:
    """Which of ``count`` bits from byte ``at`` are set, lowest first."""
    packed = np.frombuffer(payload, np.uint8, (count + 7) // 8, at)
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
