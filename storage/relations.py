"""A table's current files as a DuckDB expression. Names and paths are quoted here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from driftline.storage.tables import TABLES, TIME, Column, TableName

SQL_TYPES = {
    pa.utf8(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.binary(): "BLOB",
    TIME: "TIMESTAMPTZ",
    pa.map_(pa.utf8(), pa.float64()): "MAP(VARCHAR, DOUBLE)",
}


def text(value: str) -> str:
    """A SQL text literal.

    >>> text("it's")
    "'it''s'"
    """
    return "'" + value.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A SQL identifier.

    >>> identifier('end')
    '"end"'
    """
    return '"' + name.replace('"', '""') + '"'


def path(file: str) -> str:
    """A text literal of a file, with the characters that DuckDB would take for a pattern made plain.

    >>> path("/a*b/c.parquet")
    "'/a[*]b/c.parquet'"
    """
    return text("".join(f"[{character}]" if character in "*?[" else character for character in file))


def source(name: TableName, files: Sequence[str]) -> str:
    """A parenthesised query that gives exactly the table's columns, from these files; also from none."""
    columns = TABLES[name].columns
    empty = _empty(columns)
    if not files:
        return f"({empty})"
    chosen = ", ".join(identifier(column.name) for column in columns)
    listed = ", ".join(path(file) for file in files)
    later = [column for column in columns if column.later]
    if not later:
        return f"(SELECT {chosen} FROM read_parquet([{listed}], hive_partitioning = false))"
    read = f"FROM read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"
    return f"(SELECT {chosen} FROM ({read} UNION ALL BY NAME {_empty(later)}))"


def _empty(columns: Sequence[Column]) -> str:
    """No rows of these columns; joined by name to files that may lack some, it gives them."""
    listed = ", ".join(f"NULL::{SQL_TYPES[c.type]} AS {identifier(c.name)}" for c in columns)
    return f"SELECT {listed} WHERE false"
