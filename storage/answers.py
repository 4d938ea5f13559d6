"""The rows of an answer as Python values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def rows_of(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows one by one. An instant for which Python has no date (before year 1, after 9999: a broken
    clock) is the number of microseconds since 1970."""
    return zip(*map(values_of, table.columns), strict=True)


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of one column, likewise.

    >>> values_of(pa.array([0, 2**62], pa.timestamp("us")))
    [datetime.datetime(1970, 1, 1, 0, 0), 4611686018427387904]
    """
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        if not pa.types.is_timestamp(column.type):
            raise
        return [_instant(value) for value in column]
    return values


def _instant(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except OverflowError:
        return value.cast(pa.timestamp("us", value.type.tz)).value
