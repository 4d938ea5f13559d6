"""Answers of the tables as files: Parquet, CSV, Arrow. Streams, so an answer may be larger than memory.

The file is written beside its place and renamed when it is whole; what was there before stays until then. A
link is followed; what is no regular file (a device, a pipe, a folder) is refused. ``-`` is standard output,
which gets the answer as it comes.
Values come bit for bit in all three. In CSV a null is an empty field and an empty text is ``""``, NaN and
infinities are
``nan``, ``inf`` and ``-inf``, times are ISO 8601 in UTC with microseconds (``2026-01-31T12:00:00.000000Z``),
bytes
are hexadecimal, lists and maps are JSON. Parquet has no statistics on columns of floats, since they leave
NaN out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from driftline.errors import BadData, SettingsError, Unavailable
from driftline.events import number
from driftline.storage.objects import address, put
from driftline.storage.open import Catalog
from driftline.storage.relations import identifier, text
from driftline.storage.remedies import told as in_words

Kind = Literal["parquet", "csv", "arrow"]
ENDINGS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
STDOUT = Path("-")
BATCH_ROWS = 65_536
_PART = 8 * 1024 * 1024
MEMORY = "2GB"
"""What DuckDB may take for sorting; beyond it goes to disk, beside the file that is written."""
_ORDER = {
    "samples": 'run, time, topic_uuid, "partition", "offset", ordinal',
    "sample_attempts": 'run, time, topic_uuid, "partition", "offset", ordinal',
    "log": 'topic_uuid, "partition", "offset"',
    "curves": "run, metric, step",
    "curves_all": "run, metric, step, attempt",
    "windows": 'run, axis, metric, "group", "start", "end"',
    "evals": "run, step, suite, metric",
}


class _Writer(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


def kind_of(path: Path, said: str | None) -> Kind:
    """The format of a file, by ``said`` or its ending; of standard output CSV if nothing is said. Raises
    SettingsError."""
    found = next((kind for kind in ENDINGS.values() if kind == said), None)
    if said is not None and found is None:
        raise SettingsError("--format", said, "parquet, csv or arrow")
    found = found or ("csv" if path == STDOUT else ENDINGS.get(path.suffix.lower()))
    if found is None:
        raise SettingsError("FILE", str(path), f"end it in {', '.join(ENDINGS)}, or say --format")
    return found


def question(view: str, runs: Sequence[str], metrics: Sequence[str]) -> str:
    """The SQL for some runs (by id or name; all of a name) and metrics of a view; empty means all."""
    where = []
    if runs:
        listed = ", ".join(map(text, runs))
        where.append(f"run IN (SELECT run FROM runs WHERE run IN ({listed}) OR name IN ({listed}))")
    if metrics:
        where.append(f"metric IN ({', '.join(map(text, metrics))})")
    order = f" ORDER BY {_ORDER[view]}" if view in _ORDER else ""
    return f"FROM {identifier(view)}{' WHERE ' if where else ''}{' AND '.join(where)}{order}"


def export(root: str, sql: str, path: Path, kind: Kind, *, told: Callable[[int], None] | None = None) -> int:
    """Writes the answer to ``sql`` into ``path``; returns the number of rows. ``told`` hears of them
    meanwhile.

    Raises:
        BadData: no tables there, the SQL is wrong, or a file of a table is broken.
        SettingsError: the file would lie among the tables.
        Unavailable: it cannot be written.
    """
    path = path.absolute().resolve()
    if Path(root).resolve() in path.parents:
        raise SettingsError("FILE", str(path), "the tables are there: write it somewhere else")
    if path.exists() and not path.is_file():
        raise SettingsError(
            "FILE", str(path), "it is there and no file: name another (- for standard output)"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as beside:
            unfinished = Path(beside) / "file"
            with open(unfinished, "xb") as file:
                rows = _rows(root, sql, file, kind, beside, told)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            return rows
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error}") from error


def export_into_store(
    root: str, sql: str, to: str, kind: Kind, *, told: Callable[[int], None] | None = None
) -> tuple[int, int]:
    """The same into an object store; gives rows and bytes. It waits in a file here until it is whole, and
    what was at the address stays until then. Raises as :func:`export`."""
    to = address(to)
    if f"{to}/".startswith(f"{root.rstrip('/')}/"):
        raise SettingsError("FILE", to, "the tables are there: write it somewhere else")
    try:
        with tempfile.TemporaryFile(prefix="driftline-export-") as file:
            rows = export_to(root, sql, file, kind, told=told)
            size = file.tell()
            file.seek(0)
            put(to, iter(lambda: file.read(_PART), b""))
    except OSError as error:
        raise Unavailable(f"{to} cannot be written: {in_words(error)}") from error
    return rows, size


def export_to(
    root: str, sql: str, file: BinaryIO, kind: Kind, *, told: Callable[[int], None] | None = None
) -> int:
    """The same into an open file, such as standard output, as it comes. Raises BadData, BrokenPipeError."""
    with tempfile.TemporaryDirectory(prefix="driftline-export-") as beside:
        rows = _rows(root, sql, file, kind, beside, told)
        file.flush()
        return rows


def _rows(
    root: str, sql: str, file: BinaryIO, kind: Kind, beside: str, told: Callable[[int], None] | None
) -> int:
    rows = 0
    with Catalog(root) as catalog:
        catalog.bound(MEMORY, beside)
        with contextlib.closing(catalog.stream(sql, BATCH_ROWS)) as batches:
            for count in _written(batches, file, kind):
                rows += count
                if told is not None:
                    told(rows)
    return rows


def _written(batches: Iterator[pa.RecordBatch], file: BinaryIO, kind: Kind) -> Iterator[int]:
    first = next(batches)
    shape = _plain if kind == "csv" else _as_it_is
    try:
        with contextlib.closing(_opened(shape(first).schema, _Kept(file), kind)) as writer:
            for batch in itertools.chain([first], batches):
                writer.write_batch(shape(batch))
                yield batch.num_rows
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        columns = ", ".join(f"{field.name} {field.type}" for field in first.schema)
        raise BadData(f"{kind} cannot hold this answer ({columns}): cast it to VARCHAR ({error})") from error


class _Kept(io.RawIOBase):
    """A file that the writers do not close."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._file.write(data)


def _opened(schema: pa.Schema, file: Any, kind: Kind) -> _Writer:
    writer: _Writer
    if kind == "parquet":
        counted = [field.name for field in schema if not _holds_floats(field.type)]
        writer = pq.ParquetWriter(file, schema, compression="zstd", write_statistics=counted)
    elif kind == "arrow":
        writer = pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    else:
        writer = pa.csv.CSVWriter(file, schema)
    return writer


def _holds_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch in types that a CSV can hold."""
    columns = [_plain_column(column) for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _plain_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        ending = "Z" if kind.tz else ""
        unit = "ns" if kind.unit == "ns" else "us"
        return pc.strftime(column.cast(pa.timestamp(unit, kind.tz and "UTC")), f"%Y-%m-%dT%H:%M:%S{ending}")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.utf8())
    if pa.types.is_nested(kind):
        map_ = pa.types.is_map(kind)
        found = [
            None if value is None else _json(dict(value) if map_ else value) for value in column.to_pylist()
        ]
        return pa.array(found, pa.utf8())
    if pa.types.is_decimal(kind) or pa.types.is_duration(kind) or pa.types.is_dictionary(kind):
        return column.cast(pa.utf8())
    return column


def _json(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)  # JSON has no NaN
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_jsonable(inner) for inner in value]
    return value if isinstance(value, str | int | None) else str(value)
