"""Sorted Parquet files of one table merged into sorted ones, in bounded memory.

    sources (each sorted by the table's order) -> batches -> one 64-bit key per row -> blocks in order ->
    files

Of each source one batch is in memory. The smallest of their last keys bounds what may be written: of every
batch the rows up to it are taken together, sorted (they are runs already, so this is quick) and appended.
The key packs the columns of the order; where they need more than 63 bits the last ones are cut, and rows
that differ only there keep the order of the sources. None comes before any value.

A source that is not sorted is first cut into sorted pieces, beside the results and named like them, so that
what a killed process leaves is removed like any unfinished file. Of files that were to stay it is known: they
have an order of their own inside row groups. delta-rs's own compaction joins sorted slices without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftline.storage.compaction.layout import in_table_order
from driftline.storage.compaction.merged import Merged
from driftline.storage.compaction.plan import DAY_US, cuts
from driftline.storage.relations import identifier, path
from driftline.storage.tables import TABLES, TableName

BUDGET_BYTES = 32 * 1024 * 1024
"""Of batches in memory, about."""
SORTED_PIECE_ROWS = 500_000
_MOST_BATCH, _LEAST_BATCH = 32_768, 16
_KEY_BITS = 63
_HIGHEST = 2**63 - 1
DAY: dict[TableName, str] = {"samples": "time", "log": "received"}
"""The time by whose days files are cut: that by which rows expire."""
_CODED: tuple[TableName, ...] = ("samples",)
"""Tables whose texts are numbers while they are merged: few texts, in many dictionaries of many row
groups."""
_Ints = npt.NDArray[np.int64]
NewFile = Callable[[], Path]
"""Gives the path of a file that does not exist yet."""


Stop = Callable[[], bool]
"""Whether to stop."""


def go_on() -> bool:
    """Never stop."""
    return False


class Stopped(Exception):
    """Told to stop before all was merged."""


class Unsorted(Exception):
    """A source whose rows are not in order."""

    def __init__(self, source: Path) -> None:
        super().__init__(str(source))
        self.source = source


def merge(
    name: TableName, sources: Sequence[Path], new_file: NewFile, *, stays: bool, stop: Stop = go_on
) -> list[Path]:
    """Writes the rows of ``sources`` (oldest first) into new files, sorted, and gives these.

    The files are cut between days (:func:`~driftline.storage.compaction.plan.cuts`) and by size. ``stop`` is
    asked before each block. If it raises (Stopped, OSError, duckdb.Error, pa.ArrowException), whoever calls
    removes all that ``new_file`` gave.
    """
    known = _Known(name, sources, stop)
    given: list[Path] = []
    for source in sources:
        given += [source] if in_table_order(source) else _sorted_pieces(known, source, new_file, stop)
    while True:
        output = Merged(name, known.texts_of_codes, known.cuts, DAY.get(name), new_file, stays=stays)
        try:
            for block in _blocks(known, given):
                go_on_unless(stop)
                output.add(block)
        except Unsorted as error:
            output.abandon()
            at = given.index(error.source)
            given[at : at + 1] = _sorted_pieces(known, error.source, new_file, stop)
            continue
        except BaseException:
            output.abandon()
            raise
        files = output.finish()
        rows = sum(pq.read_metadata(source).num_rows for source in sources)
        assert output.rows == rows, f"{name}: merged {output.rows} of {rows} rows"
        for piece in given:
            if piece not in sources:
                piece.unlink()
        return files


def go_on_unless(stop: Stop) -> None:
    """Raises Stopped if it is so."""
    if stop():
        raise Stopped


class _Known:
    """What the sources hold together, which makes rows of all of them comparable."""

    def __init__(self, name: TableName, sources: Sequence[Path], stop: Stop) -> None:
        self.name = name
        self.columns = TABLES[name].columns
        self._order = TABLES[name].order
        kinds = {column.name: column.type for column in self.columns}
        coded = [column for column in kinds if name in _CODED and kinds[column].equals(pa.utf8())]
        texts = {*coded, *(column for column in self._order if kinds[column].equals(pa.utf8()))}
        listed = ", ".join(path(str(source)) for source in sources)
        read = f"read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"
        self._texts: dict[str, pa.Array] = {}
        self._range: dict[str, tuple[int, int]] = {}
        with duckdb.connect(config={"threads": 1, "memory_limit": "1GB"}) as db:
            for column in sorted(texts):
                go_on_unless(stop)
                self._texts[column] = _texts(db, identifier(column), read)
            for column in self._order:
                go_on_unless(stop)
                if column not in texts:
                    query = f"SELECT min({identifier(column)}), max({identifier(column)}) FROM {read}"
                    low, high = db.execute(query).fetchall()[0]
                    self._range[column] = (0, -1) if low is None else (low, high)
            self.cuts = _cuts(db, name, read)
        self.texts_of_codes = {column: self._texts[column] for column in coded}
        """Columns of numbers in :meth:`table`, with the text of each number."""
        types = [(column, pa.int32() if column in coded else kinds[column]) for column in kinds]
        self.empty = pa.schema(types).empty_table()

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        """A batch of a file with all columns of the table."""
        arrays = {}
        for column in self.columns:
            coded = column.name in self.texts_of_codes
            at = batch.schema.get_field_index(column.name)
            if at < 0:
                array = pa.nulls(batch.num_rows, pa.int32() if coded else column.type)
            elif coded:
                array = self._codes(column.name, batch.column(at))
            else:
                array = batch.column(at).cast(column.type)
            arrays[column.name] = array
        return pa.table(arrays)

    def _codes(self, column: str, array: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            return pc.index_in(array.dictionary, self._texts[column]).take(array.indices)
        return pc.index_in(array, self._texts[column])

    def keys(self, table: pa.Table) -> _Ints:
        """One number per row; rows are in order where it is."""
        packed = np.zeros(table.num_rows, np.uint64)
        room = _KEY_BITS
        for column in self._order:
            part, width = self._part(column, table.column(column))
            kept = min(width, room)
            packed = packed << np.uint64(kept) | part >> np.uint64(width - kept)
            room -= kept
        return packed.astype(np.int64)

    def _part(self, column: str, values: pa.ChunkedArray) -> tuple[npt.NDArray[np.uint64], int]:
        """A column as numbers from 1 (0: none), and the bits that they need."""
        if column in self._texts:
            codes = values if column in self.texts_of_codes else pc.index_in(values, self._texts[column])
            low, width = 0, len(self._texts[column]).bit_length()
        else:
            low, high = self._range[column]
            codes, width = values, (high - low + 1).bit_length()
        whole = pc.fill_null(codes.cast(pa.int64()), low).to_numpy().view(np.uint64)
        spare = max(0, width - _KEY_BITS)
        part = ((whole - np.uint64(low % 2**64)) >> np.uint64(spare)) + np.uint64(1)
        if codes.null_count:
            part[codes.is_null().to_numpy()] = 0
        return part, width - spare + (1 if spare else 0)


def _texts(db: duckdb.DuckDBPyConnection, column: str, read: str) -> pa.Array:
    """Each text of a column once, in order. As Python's own objects a million of them would hold the
    interpreter, and so the sink, for seconds."""
    query = f"SELECT DISTINCT {column} FROM {read} WHERE {column} IS NOT NULL ORDER BY 1"
    return db.sql(query).to_arrow_table().column(0).cast(pa.utf8()).combine_chunks()


def _cuts(db: duckdb.DuckDBPyConnection, name: TableName, read: str) -> list[int]:
    if name not in DAY:
        return []
    day = f"epoch_us({identifier(DAY[name])}) // {DAY_US}"
    found = db.execute(f"SELECT {day}, count(*) FROM {read} GROUP BY 1").fetchall()
    return cuts({day: rows for day, rows in found if day is not None})


class _Cursor:
    """The rows of one source, a few batches at a time."""

    def __init__(self, known: _Known, source: Path, batch_rows: int) -> None:
        self._known = known
        self._source = source
        self._batch_rows = batch_rows
        self._file = pq.ParquetFile(str(source), read_dictionary=list(known.texts_of_codes), pre_buffer=False)
        self._batches = self._file.iter_batches(batch_rows, use_threads=False)
        self._more = True
        self._table = known.empty
        self._keys = np.zeros(0, np.int64)
        self._last = -1
        self.fill()

    def fill(self) -> None:
        """Reads on until a batch or more waits: cursors that stand at like keys then advance together."""
        while self._more and len(self._keys) < self._batch_rows:
            batch = next(self._batches, None)
            if batch is None:
                self._more = False
                self._file.close()
            elif batch.num_rows:
                table = self._known.table(batch)
                keys = self._known.keys(table)
                if keys[0] < self._last or (np.diff(keys) < 0).any():
                    self._file.close()
                    raise Unsorted(self._source)
                self._last = int(keys[-1])
                self._table = pa.concat_tables([self._table, table])
                self._keys = np.concatenate([self._keys, keys])

    @property
    def done(self) -> bool:
        """Whether all rows were taken."""
        return not len(self._keys)

    @property
    def bound(self) -> int:
        """No row that is still to be read has a smaller key."""
        return self._last if self._more else _HIGHEST

    def take(self, bound: int) -> tuple[pa.Table, _Ints]:
        """The rows up to this key."""
        count = int(np.searchsorted(self._keys, bound, side="right"))
        taken = self._table.slice(0, count), self._keys[:count]
        self._table, self._keys = self._table.slice(count), self._keys[count:]
        self.fill()
        return taken


def _blocks(known: _Known, sources: Sequence[Path]) -> Iterator[pa.Table]:
    """All rows in order."""
    rows = _batch_rows(sources)
    cursors = [_Cursor(known, source, rows) for source in sources]
    while cursors := [cursor for cursor in cursors if not cursor.done]:
        bound = min(cursor.bound for cursor in cursors)
        taken = [cursor.take(bound) for cursor in cursors]
        order = np.argsort(np.concatenate([keys for _, keys in taken]), kind="stable")
        yield pa.concat_tables([table for table, _ in taken]).combine_chunks().take(pa.array(order))


def _batch_rows(sources: Sequence[Path]) -> int:
    """Rows of one batch, so that those of all sources fit the budget."""
    rows = size = 1
    for source in sources:
        found = pq.read_metadata(source)
        rows += found.num_rows
        size += sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
    row_bytes = max(
        100, 2 * size // rows
    )  # what a dictionary or an encoding saves in a file is not saved here
    return max(_LEAST_BATCH, min(_MOST_BATCH, BUDGET_BYTES // row_bytes // len(sources)))


def _sorted_pieces(known: _Known, source: Path, new_file: NewFile, stop: Stop) -> list[Path]:
    """The rows of an unsorted file in sorted ones of bounded size."""
    made: list[Path] = []
    waiting: list[pa.Table] = []
    least = min(SORTED_PIECE_ROWS, _batch_rows([source]) * 16)

    def write() -> None:
        go_on_unless(stop)
        table = pa.concat_tables(waiting).combine_chunks()
        waiting.clear()
        output = Merged(known.name, known.texts_of_codes, [], None, new_file, stays=False)
        output.add(table.take(pa.array(np.argsort(known.keys(table), kind="stable"))))
        made.extend(output.finish())

    texts = list(known.texts_of_codes)
    with pq.ParquetFile(str(source), read_dictionary=texts, pre_buffer=False) as file:
        for batch in file.iter_batches(_MOST_BATCH, use_threads=False):
            waiting.append(known.table(batch))
            if sum(table.num_rows for table in waiting) >= least:
                write()
    if waiting:
        write()
    return made
