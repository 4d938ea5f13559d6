"""The files that a merge writes: rows come in order, files are cut between days and by size."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftline.storage.compaction import groups
from driftline.storage.compaction.layout import grouped, open_writer
from driftline.storage.compaction.plan import CUT_BYTES, CUT_ROWS, DAY_US
from driftline.storage.tables import TableName

_GROUP_BYTES = 64 * 1024 * 1024
"""Of rows that wait for their row group to be full, in each period."""
_FEW_PERIODS = 8
"""With more, no period holds rows of a second row group back to see where their run ends."""


class Merged:
    """Takes sorted rows and writes them; :meth:`finish` or :meth:`abandon` ends it.

    ``texts``: columns that come as numbers, with their texts. ``cuts``: days (of ``day_column``) at which
    another file begins."""

    def __init__(
        self,
        name: TableName,
        texts: Mapping[str, pa.Array],
        cuts: Sequence[int],
        day_column: str | None,
        new_file: Callable[[], Path],
        *,
        stays: bool,
    ) -> None:
        self.rows = 0
        self._cuts = cuts
        self._day_column = day_column
        few = len(cuts) < _FEW_PERIODS
        ahead = groups.WHOLE_RUN if few and grouped(name, stays=stays) else groups.ROW_GROUP
        self._periods = [_Period(name, texts, new_file, ahead, stays=stays) for _ in range(len(cuts) + 1)]

    def add(self, rows: pa.Table) -> None:
        """Appends rows. Raises OSError if the disk is full."""
        self.rows += rows.num_rows
        if not self._cuts or self._day_column is None:
            self._periods[0].add(rows)
            return
        days = pc.fill_null(rows.column(self._day_column).cast(pa.int64()), 0).to_numpy() // DAY_US
        of = np.searchsorted(np.array(self._cuts), days, side="right")
        for at in np.unique(of):
            self._periods[at].add(rows.filter(pa.array(of == at)))

    def finish(self) -> list[Path]:
        """All files, whole and on the disk."""
        for period in self._periods:
            period.finish()
        return [file for period in self._periods for file in period.files]

    def abandon(self) -> None:
        """Removes all files."""
        for period in self._periods:
            period.abandon()


class _Period:
    """The files between two cuts, one after the other."""

    def __init__(
        self,
        name: TableName,
        texts: Mapping[str, pa.Array],
        new_file: Callable[[], Path],
        ahead: int,
        *,
        stays: bool,
    ) -> None:
        self.files: list[Path] = []
        self._name = name
        self._texts = texts
        self._new_file = new_file
        self._stays = stays
        self._ahead = ahead
        self._grouped = grouped(name, stays=stays)
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._written = 0

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        while sum(table.num_rows for table in self._waiting) >= self._ahead:
            self._write_first(more=True)
        if sum(table.get_total_buffer_size() for table in self._waiting) >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        while any(table.num_rows for table in self._waiting):
            self._write_first(more=False)
        self._waiting = []

    def _write_first(self, *, more: bool) -> None:
        """The first row group of the rows that wait; ``more``: others will follow them."""
        whole = pa.concat_tables(self._waiting)
        end = min(groups.ROW_GROUP, whole.num_rows)
        if self._grouped:
            near = whole.slice(0, self._ahead)
            run, metric = (pc.fill_null(near.column(name), -1).to_numpy() for name in ("run", "metric"))
            end = groups.first_end(run, metric, more=more or whole.num_rows > self._ahead)
        self._waiting = [whole.slice(end)]
        first = whole.slice(0, end).combine_chunks()
        self._write(first.take(groups.inner_order(first)) if self._grouped else first)

    def _write(self, rows: pa.Table) -> None:
        """One row group."""
        whole = self._with_texts(rows.combine_chunks())
        if self._writer is None:
            self.files.append(self._new_file())
            self._writer = open_writer(self.files[-1], whole.schema, self._name, stays=self._stays)
            self._written = 0
        self._writer.write_table(whole, row_group_size=rows.num_rows)
        self._written += rows.num_rows
        if self._written >= CUT_ROWS or self.files[-1].stat().st_size >= CUT_BYTES:
            self._close()

    def _with_texts(self, rows: pa.Table) -> pa.Table:
        """Numbers become dictionaries of the texts that these rows have."""
        for column, texts in self._texts.items():
            at = rows.schema.get_field_index(column)
            codes = rows.column(at).combine_chunks()
            numbers = codes.fill_null(0).to_numpy()
            present = np.zeros(max(1, len(texts)), bool)
            present[numbers] = True
            places = (np.cumsum(present) - 1).astype(np.int32)[numbers]
            mask = codes.is_null().to_numpy(zero_copy_only=False) if codes.null_count else None
            dictionary = texts.filter(pa.array(present[: len(texts)]))
            array = pa.DictionaryArray.from_arrays(pa.array(places, mask=mask), dictionary)
            rows = rows.set_column(at, column, array)
        return rows

    def _close(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        descriptor = os.open(self.files[-1], os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the files that it replaces are removed for good
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        self._flush()
        self._close()

    def abandon(self) -> None:
        self._waiting = []
        if self._writer is not None:
            try:
                self._writer.close()
            except (OSError, pa.ArrowException):
                pass
            self._writer = None
        for file in self.files:
            file.unlink(missing_ok=True)
        self.files = []
