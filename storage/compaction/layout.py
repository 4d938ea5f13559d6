"""How the bytes of each column lie in a table's Parquet files. Chosen by measurement (docs/design/009).

Two writers, one set of rules. What a sink appends is written by delta-rs, fast and light, since it is
merged soon. What compaction writes is meant to stay: columns get the encoding that is smallest for them,
and rows of ``samples`` an order of their own inside row groups (:mod:`~driftline.storage.compaction.groups`).
Only encodings of Parquet 2.0 are used. Nothing here loses a bit, and no float column has statistics, whoever
writes. The other columns have them for each page, too (page indexes): where a metric is a small part of a row
group, a filter then skips most of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties

from driftline.storage.compaction.groups import INNER
from driftline.storage.tables import TABLES, TIME, Column, TableName, sorts_well

_FRESH_ROW_GROUP = 256 * 1024
_LEVEL, _FLOAT_LEVEL, _PASSING_LEVEL = 9, 13, 3
"""zstd of files that stay, of their floats, and of files that will be merged again. Values gain 3 % from 9 to
13 and 1 % more at 15, all other columns together 1 %."""
_INNER_KEY = b"driftline.row_group_order"
_GROUPED: tuple[TableName, ...] = ("samples",)

Encoding = Literal["DELTA_BINARY_PACKED", "PLAIN"]


def encoding(column: Column) -> Encoding | None:
    """How a column's numbers are written in files that stay; None: by a dictionary.

    Counters, times and places in a frame have small differences in the order of the log; a dictionary of
    places would be as long as the longest frame.
    """
    if column.type.equals(TIME) or column.type.equals(pa.int64()) or column.name == "ordinal":
        return "DELTA_BINARY_PACKED"
    if pa.types.is_binary(column.type) or (pa.types.is_floating(column.type) and column.name != "weight"):
        return "PLAIN"
    return None


def open_writer(path: Path, schema: pa.Schema, name: TableName, *, stays: bool) -> pq.ParquetWriter:
    """Writes a file of the table; ``stays``: it is unlikely to be merged again. Raises OSError.

    ``schema`` is that of the rows that it will be given, in which a text may be a dictionary."""
    columns = TABLES[name].columns
    encodings = {column.name: found for column in columns if (found := encoding(column))}
    simple = [column.name for column in columns if not pa.types.is_nested(column.type)]
    level: Any = _PASSING_LEVEL
    if stays:
        level = {c.name: _FLOAT_LEVEL if pa.types.is_floating(c.type) else _LEVEL for c in columns}
    writer = pq.ParquetWriter(
        str(path),
        schema,
        compression="zstd",
        compression_level=level,
        use_dictionary=[column for column in simple if column not in encodings],
        column_encoding=dict(encodings),
        write_statistics=[column.name for column in columns if sorts_well(column)],
        write_page_index=True,
        store_schema=False,
    )
    if grouped(name, stays=stays):
        writer.add_key_value_metadata({_INNER_KEY: ", ".join(INNER).encode()})
    return writer


def grouped(name: TableName, *, stays: bool) -> bool:
    """Whether rows lie in an order of their own inside the row groups of such a file."""
    return stays and name in _GROUPED


def in_table_order(file: Path) -> bool:
    """Whether nothing says that the file's rows are in another order inside its row groups."""
    return _INNER_KEY not in (pq.read_metadata(file).metadata or {})


def bare_schema(name: TableName) -> pa.Schema:
    """The table's columns without what they say."""
    return pa.schema([pa.field(column.name, column.type) for column in TABLES[name].columns])


def writer_properties(name: TableName) -> WriterProperties:
    """How delta-rs writes files of the table."""
    columns = {}
    for column in TABLES[name].columns:
        statistics: Literal["PAGE", "NONE"] = "PAGE" if sorts_well(column) else "NONE"
        if column.type.equals(TIME) or column.name == "offset":
            columns[column.name] = ColumnProperties(
                dictionary_enabled=False, encoding="DELTA_BINARY_PACKED", statistics_enabled=statistics
            )
        elif column.name == "value":
            columns[column.name] = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
        else:
            columns[column.name] = ColumnProperties(statistics_enabled=statistics)
    return WriterProperties(
        compression="ZSTD",
        max_row_group_size=_FRESH_ROW_GROUP,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties=columns,
    )
