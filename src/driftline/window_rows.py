"""Closed windows on the ``windows`` topic: one Arrow IPC stream with one record batch per output.

Every row is one window of one series. ``OUTPUT_ID`` in the schema metadata names the input record that closed
them. The ``windows`` table has the same columns plus the position they came from.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from driftline.arrow_stream import has_nulls, read_batch
from driftline.errors import BadRecord
from driftline.records import OutputId

FORMAT = "1"

SCHEMA = pa.schema(
    [
        pa.field("run", pa.utf8(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("axis", pa.utf8(), nullable=False),  # "time" or "step"
        pa.field("start", pa.int64(), nullable=False),  # microseconds or steps, inclusive
        pa.field("end", pa.int64(), nullable=False),  # exclusive
        pa.field("group", pa.utf8(), nullable=False),  # "" for the whole run, else "rank=3", "host=a", ...
        pa.field("metric", pa.utf8(), nullable=False),
        pa.field("revision", pa.int32(), nullable=False),  # 0 live, higher from a repair
        pa.field("count", pa.int64(), nullable=False),  # all samples, non-finite ones too
        pa.field("weight", pa.float64(), nullable=False),  # of the finite samples
        pa.field("sum", pa.float64()),  # of the finite samples, without weights
        pa.field("nan", pa.int64(), nullable=False),
        pa.field("inf", pa.int64(), nullable=False),
        pa.field("mean", pa.float64()),  # weighted, finite samples; null without one
        pa.field("std", pa.float64()),  # weighted, population
        pa.field("min", pa.float64()),
        pa.field("min_rank", pa.int32()),
        pa.field("max", pa.float64()),
        pa.field("max_rank", pa.int32()),
        pa.field("first", pa.float64()),  # in log order, finite or not
        pa.field("last", pa.float64()),
        pa.field("p50", pa.float64()),
        pa.field("p95", pa.float64()),
        pa.field("p99", pa.float64()),
        pa.field("quantiles", pa.map_(pa.utf8(), pa.float64())),  # those asked for by name
        pa.field("present", pa.int32(), nullable=False),  # processes that gave a sample
        pa.field("expected", pa.int32(), nullable=False),  # processes that should have
        pa.field("extra", pa.map_(pa.utf8(), pa.float64())),  # values of custom aggregates, by name
        pa.field("span", pa.utf8()),  # "run" for the whole run so far, null for windows of a fixed size
    ]
)
LATER = frozenset({"sum", "extra", "span"})
"""Columns that the first writers of this format did not have: null where they are missing."""


def encode(columns: dict[str, Any], output_id: OutputId) -> bytes:
    """Bytes of one output; ``columns`` maps each column of :data:`SCHEMA` to an array or list."""
    schema = SCHEMA.with_metadata({"format": FORMAT, "id": str(output_id)})
    arrays = [_array(columns[field.name], field.type) for field in SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array) and column.type == kind:
        return column
    return pa.array(column, kind)


def decode(payload: bytes) -> tuple[OutputId, pa.RecordBatch]:
    """The output id and the rows. Raises BadRecord."""
    _, batch = read_batch(payload, ("schema", "record batch"))
    meta = batch.schema.metadata or {}
    try:
        made = OutputId.parse(meta[b"id"].decode())
        batch = _grown(batch)
    except (KeyError, UnicodeDecodeError) as error:
        raise BadRecord(f"windows have no id, or names that are not UTF-8: {error!r}") from error
    if (column := has_nulls(batch, SCHEMA)) is not None:
        raise BadRecord(f"windows have a null in column {column!r}, which allows none")
    return made, batch


def _grown(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of an older or newer writer in the columns of this one. Raises BadRecord."""
    columns = []
    for field in SCHEMA:
        at = batch.schema.get_field_index(field.name)
        if at < 0 and field.name in LATER:
            columns.append(pa.nulls(batch.num_rows, field.type))
        elif at < 0 or batch.schema.field(at) != field:
            raise BadRecord(f"windows have another column {field.name!r} than format {FORMAT}, or none")
        else:
            columns.append(batch.column(at))
    return pa.record_batch(columns, schema=SCHEMA)
