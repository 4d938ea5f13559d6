"""The metric frame: many samples of one process in one Kafka record. The only module that knows its bytes.

One Arrow IPC stream of exactly three messages, schema, dictionary and record batch::

    metric   dictionary<int16, utf8>    name of the metric, any characters, at most 600 bytes of UTF-8
    step     int64, nullable            training step, null if the sample belongs to none
    time     timestamp[us, UTC]         when ``log`` was called
    value    float64                    NaN and infinities are data
    weight   float64, nullable          null means 1

Schema metadata (all text): ``format`` ("1"), ``run``, ``process``, ``rank`` ("" if none), ``seq``, and
``counters`` (JSON object, optional: the SDK's counters so far). A frame is identified by (run, process, seq).
Bounds: 512 KiB, 32,000 names; the SDK splits what is larger.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftline.arrow_stream import read_batch
from driftline.errors import BadRecord
from driftline.frame_shapes import Column, Parts, Shapes, bits_set, no_bits

FORMAT = "1"
MAX_NAMES = 32_000
MAX_NAME_BYTES = 600
MAX_ID_BYTES = 256
"""Run and process: they are repeated in every output."""
NO_STEP = int(np.iinfo(np.int64).min)
"""Stands for "no step" in the arrays of a :class:`Frame` (null on the wire)."""

_FIELDS = [
    pa.field("metric", pa.dictionary(pa.int16(), pa.utf8())),
    pa.field("step", pa.int64()),
    pa.field("time", pa.timestamp("us", "UTC")),
    pa.field("value", pa.float64()),
    pa.field("weight", pa.float64()),
]
SCHEMA = pa.schema(_FIELDS)
_MESSAGES = ("schema", "dictionary", "record batch")
_SHAPES = Shapes(SCHEMA)
_RANK_MAX, _SEQ_MAX = 2**31 - 1, 2**63 - 1
_INT16, _INT64, _FLOAT64 = (np.dtype(kind) for kind in ("i2", "i8", "f8"))


class Frame(NamedTuple):
    """A decoded frame; the arrays have one entry per sample. Arrays and names must not be changed: others may
    share them."""

    run: str
    process: str
    rank: int | None
    seq: int
    names: list[str]
    metric: npt.NDArray[np.int16]
    """Index into ``names``."""
    step: npt.NDArray[np.int64]
    """:data:`NO_STEP` where the sample belongs to no step."""
    time_us: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    counters: str = ""
    """The SDK's counters as a JSON object, or empty."""


def encode(frame: Frame) -> bytes:
    """The bytes of a frame. ``decode(encode(f))`` gives the same arrays; equal frames give equal bytes."""
    assert len(frame.names) <= MAX_NAMES, "split frames with too many names before encoding"
    count = len(frame.metric)
    no_step = frame.step == NO_STEP
    steps = pa.array(frame.step, mask=no_step) if no_step.any() else pa.array(frame.step)
    weights = pa.nulls(count, pa.float64()) if (frame.weight == 1.0).all() else pa.array(frame.weight)
    metadata = {
        "format": FORMAT,
        "run": frame.run,
        "process": frame.process,
        "rank": "" if frame.rank is None else str(frame.rank),
        "seq": str(frame.seq),
    }
    if frame.counters:
        metadata["counters"] = frame.counters
    schema = SCHEMA.with_metadata(metadata)
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(frame.metric), pa.array(frame.names, pa.utf8()), safe=False),
        steps,
        pa.array(frame.time_us).view(pa.timestamp("us", "UTC")),
        pa.array(frame.value),
        weights,
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def decode(payload: bytes) -> Frame:
    """The frame in ``payload``.

    Raises:
        BadRecord: not an Arrow stream, another schema, missing metadata, damaged buffers, an index
            without a name, or a name or number beyond its bound.
    """
    parts = _SHAPES.find(payload)
    frame = None if parts is None else _known(payload, parts)
    return read(payload) if frame is None else frame


def _known(payload: bytes, parts: Parts) -> Frame | None:
    """The frame of a payload whose shapes are known; None where Arrow has to tell what is wrong with it."""
    (metric_at, step_at, time_at, value_at, weight_at), count = parts.batch.columns, parts.batch.rows
    start = parts.start
    metric = np.frombuffer(payload, _INT16, count, start + metric_at.data)
    if np.maximum.reduce(metric.view(np.uint16)) >= len(parts.names):  # negative ones are large, seen so
        return None
    step = _filled(payload, start, step_at, count, NO_STEP)
    weight = _filled(payload, start, weight_at, count, 1.0)
    if step is None or weight is None:
        return None
    try:
        return _checked(
            parts.meta,
            parts.names,
            metric,
            step,
            np.frombuffer(payload, _INT64, count, start + time_at.data),
            np.frombuffer(payload, _FLOAT64, count, start + value_at.data),
            weight,
        )
    except BadRecord:
        return None


def _filled(
    payload: bytes, start: int, column: Column, count: int, default: float
) -> npt.NDArray[Any] | None:
    """Values with ``default`` where there is none; None where the bits are not what the metadata counts."""
    if column.nulls == count:
        return _all(count, default) if no_bits(payload, start + column.bits, count) else None
    kind: np.dtype[Any] = _INT64 if isinstance(default, int) else _FLOAT64
    data = np.frombuffer(payload, kind, count, start + column.data)
    if not column.nulls:
        return data
    there = bits_set(payload, start + column.bits, count)
    if count - np.count_nonzero(there) != column.nulls:
        return None
    return np.where(there, data, kind.type(default))


@functools.lru_cache(256)
def _all(count: int, default: float) -> npt.NDArray[Any]:
    """So many equal values, shared by all who ask for them."""
    values = np.full(count, default, _INT64 if isinstance(default, int) else _FLOAT64)
    values.flags.writeable = False
    return values


def read(payload: bytes) -> Frame:
    """The same as :func:`decode`, by Arrow alone, whatever was seen before; several times slower."""
    try:
        schema = pa.ipc.open_stream(payload).schema
    except (pa.ArrowException, OSError) as error:
        raise BadRecord(f"not an Arrow IPC stream with one record batch: {error}") from error
    if not schema.equals(SCHEMA):
        raise BadRecord(f"frame has other columns than format {FORMAT}: {_columns_of(schema)}")
    places, batch = read_batch(payload, _MESSAGES)
    meta = schema.metadata or {}
    metric, step, time_us, value, weight = batch.columns
    try:
        names = metric.dictionary.to_pylist()
        columns = (
            *(_plain(metric, _INT16), _steps(step), _plain(time_us, _INT64)),
            *(_plain(value, _FLOAT64), _weights(weight)),
        )
    except ValueError as error:
        raise BadRecord(f"frame metadata incomplete or broken: {error!r}") from error
    frame = _checked(meta, names, *columns)
    _check_names(names)
    _SHAPES.learn(payload, places, meta, batch, names)
    return frame


def _checked(
    meta: dict[bytes, bytes],
    names: list[str],
    metric: npt.NDArray[np.int16],
    step: npt.NDArray[np.int64],
    time_us: npt.NDArray[np.int64],
    value: npt.NDArray[np.float64],
    weight: npt.NDArray[np.float64],
) -> Frame:
    """A frame whose metadata is complete and within bounds. Raises BadRecord."""
    try:
        rank, seq = meta[b"rank"].decode(), int(meta[b"seq"])
        run, process = meta[b"run"].decode(), meta[b"process"].decode()
        number = int(rank) if rank else None
        counters = meta.get(b"counters", b"").decode()
    except (KeyError, ValueError) as error:
        raise BadRecord(f"frame metadata incomplete or broken: {error!r}") from error
    if not run or not process or seq < 0:
        raise BadRecord("frame names no run, no process or a negative seq")
    if len(meta[b"run"]) > MAX_ID_BYTES or len(meta[b"process"]) > MAX_ID_BYTES:
        raise BadRecord(f"frame names a run or process longer than {MAX_ID_BYTES} bytes")
    if seq > _SEQ_MAX or not -_RANK_MAX <= (number or 0) <= _RANK_MAX:
        raise BadRecord("frame has a seq of more than 64 bits or a rank of more than 32")
    return Frame(run, process, number, seq, names, metric, step, time_us, value, weight, counters)


class Claim(NamedTuple):
    """What the metadata of an Arrow payload says of itself; ``seq`` is -1 where the sender is not named."""

    format: str
    run: str = ""
    process: str = ""
    seq: int = -1


def claim_of(payload: bytes) -> Claim | None:
    """What an Arrow payload claims to be, or None if it claims nothing (or is no Arrow stream)."""
    try:
        meta = pa.ipc.open_stream(payload).schema.metadata or {}
    except (pa.ArrowException, OSError):
        return None
    version: bytes | None = meta.get(b"format")
    if version is None:
        return None
    claim = Claim(version.decode(errors="replace"))
    try:
        run, process, seq = meta[b"run"].decode(), meta[b"process"].decode(), int(meta[b"seq"])
    except (KeyError, ValueError):
        return claim
    fits = max(len(meta[b"run"]), len(meta[b"process"])) <= MAX_ID_BYTES and 0 <= seq <= _SEQ_MAX
    return Claim(claim.format, run, process, seq) if run and process and fits else claim


def _columns_of(schema: pa.Schema) -> str:
    try:
        return ", ".join(schema.names)[:1_000]
    except UnicodeDecodeError:
        return "of names that are not UTF-8"


def _check_names(names: list[str]) -> None:
    """All names are there, and none is longer than the format allows."""
    if None in names:
        raise BadRecord("frame has a metric without a name")
    if max(map(len, names), default=0) * 4 <= MAX_NAME_BYTES:
        return
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise BadRecord(f"frame has a metric name of more than {MAX_NAME_BYTES} bytes")


def _plain(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Values of a fixed-width column (or indices of a dictionary) without nulls, as a view of the payload."""
    if column.null_count:
        raise ValueError("null where the format allows none")
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def _steps(column: pa.Array) -> npt.NDArray[np.int64]:
    if not column.null_count:
        return _plain(column, _INT64)
    filled: npt.NDArray[np.int64] = column.fill_null(NO_STEP).to_numpy(zero_copy_only=False)
    return filled


def _weights(column: pa.Array) -> npt.NDArray[np.float64]:
    nulls = column.null_count
    if nulls == len(column):
        return np.ones(nulls)
    if not nulls:
        return _plain(column, _FLOAT64)
    filled: npt.NDArray[np.float64] = column.fill_null(1.0).to_numpy(zero_copy_only=False)
    return filled
