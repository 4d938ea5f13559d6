"""Arrow IPC streams from a topic: exactly the messages that a record stands for, of bounded size, whole.

Arrow's own reader takes more than that: a dictionary that replaces another before the batch, batches behind
the first, buffers that point elsewhere, a thousand times as many rows as bytes. So the messages are looked at
before Arrow reads them, and the batch is validated in full before anybody uses it: what points outside of its
buffers would end the process by a signal.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pyarrow as pa

from driftline.errors import BadRecord

DECODED_BYTES_MAX = 4 << 20
"""A record's buffers after decompression."""
END = b"\xff\xff\xff\xff\0\0\0\0"
"""What may follow the last message."""
_PREFIX = struct.Struct("<Ii")
_CONTINUES = 0xFFFFFFFF
_HEADER_OF_MESSAGE, _DATA_OF_DICTIONARY = 2, 1
_BUFFERS, _COMPRESSION = 2, 3
"""Places of fields in the tables of Arrow's format (Message.fbs)."""


class Message(NamedTuple):
    """Where a message lies in its payload."""

    kind: str
    """"schema", "dictionary" or "record batch"."""
    start: int
    body: int
    end: int


def end_of_metadata(payload: bytes, start: int) -> int:
    """Where the metadata of the message at ``start`` ends; ``start`` where none begins there."""
    if len(payload) < start + 8:
        return start
    marker, size = _PREFIX.unpack_from(payload, start)
    return start + 8 + size if marker == _CONTINUES and size > 0 else start


def ends_at(payload: bytes, at: int) -> bool:
    """Whether nothing follows, or only the mark of the end."""
    return len(payload) == at or payload[at:] == END


def messages(payload: bytes, kinds: tuple[str, ...]) -> list[Message]:
    """The messages of a stream that holds just these kinds, in this order.

    Raises:
        BadRecord: other messages, bytes behind them, or more than :data:`DECODED_BYTES_MAX` to decompress.
    """
    found: list[Message] = []
    at = 0
    whole = pa.py_buffer(payload)
    for kind in kinds:
        try:
            message = pa.ipc.read_message(whole.slice(at))
        except (pa.ArrowException, OSError, EOFError) as error:
            raise BadRecord(f"not an Arrow IPC stream of {', '.join(kinds)}: {error}") from error
        body = end_of_metadata(payload, at)
        size = 0 if message.body is None else message.body.size
        if message.type != kind or body == at:
            raise BadRecord(f"Arrow IPC stream has a {message.type} message where a {kind} belongs")
        if kind != "schema":
            _check_size(payload[at + 8 : body], payload[body : body + size], inside=kind == "dictionary")
        found.append(Message(kind, at, body, body + size))
        at = body + size
    if not ends_at(payload, at):
        raise BadRecord(f"Arrow IPC stream has more than {', '.join(kinds)}")
    return found


def read_batch(payload: bytes, kinds: tuple[str, ...]) -> tuple[list[Message], pa.RecordBatch]:
    """The messages, as :func:`messages`, and the one batch, which is valid and lies inside of its buffers.

    Raises:
        BadRecord: not just these messages, too large, or damaged.
    """
    found = messages(payload, kinds)
    try:
        batch = pa.ipc.open_stream(payload).read_next_batch()
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise BadRecord(f"not an Arrow IPC stream with one record batch: {error}") from error
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        why = "is damaged, or refers to a name that it does not carry"
        raise BadRecord(f"Arrow record batch {why}: {error}") from error
    return found, batch


def _check_size(metadata: bytes, body: bytes, *, inside: bool) -> None:
    """What a batch declares of its buffers, before anything is allocated for them. Raises BadRecord."""
    try:
        table = _table(metadata, _field(metadata, _table(metadata, 0), _HEADER_OF_MESSAGE))
        if inside:
            table = _table(metadata, _field(metadata, table, _DATA_OF_DICTIONARY))
        if not _field(metadata, table, _COMPRESSION):
            return  # then the buffers are the body, or Arrow refuses them
        vector = _table(metadata, _field(metadata, table, _BUFFERS))
        (count,) = struct.unpack_from("<I", metadata, vector)
        total = 0
        for offset, length in struct.iter_unpack("<qq", metadata[vector + 4 :][: 16 * count]):
            if length:
                (size,) = struct.unpack_from("<q", body, offset)
                total += length if size < 0 else size
    except struct.error as error:
        raise BadRecord(f"Arrow message is damaged: {error}") from error
    if total > DECODED_BYTES_MAX:
        raise BadRecord(f"Arrow record batch is {total} bytes when decompressed, at most {DECODED_BYTES_MAX}")


def _table(data: bytes, at: int) -> int:
    """Where the table, or vector, is that the offset at ``at`` refers to (flatbuffers)."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies; 0 where it is left out."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return table + int(offset) if offset else 0


def has_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> str | None:
    """The first column that has a null where the schema allows none (keys of maps included), None if none."""
    for field, column in zip(schema, batch.columns, strict=True):
        parts: list[Any] = [] if field.nullable else [column]
        if pa.types.is_map(field.type):
            parts.append(column.keys)
        if any(part.null_count for part in parts):
            return str(field.name)
    return None
