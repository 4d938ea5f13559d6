"""The files of ``samples``: which of their row groups have rows of a stretch of the log, and these rows.

A row group tells the lowest and highest offset of its rows. So a stretch is cut into segments between which
no row group reaches; of a table as a sink wrote it they are small, of a compacted one there may be one only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from driftline.errors import BadData
from driftline.frames import NO_STEP
from driftline.storage.objects import parquet
from driftline.storage.recorded.frames import I64, ROW, Block, Names, SampleBatch

_READ_ROWS = 256 * 1024
_COLUMNS = ("metric", "step", "time", "value", "weight", "offset", "ordinal")
_KEYS = ("topic_uuid", "partition", "run", "offset")


class Where(Protocol):
    """One partition of a topic, and between which offsets (start, end) its log is there."""

    @property
    def topic_uuid(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class Piece(NamedTuple):
    """A row group of a file."""

    path: str
    group: int
    low: int
    high: int
    rows: int
    mixed: bool
    """It has rows of other partitions too, perhaps."""


class Segment:
    """Pieces whose offsets overlap, or that are small."""

    def __init__(self, start: int, end: int, rows: int, pieces: list[Piece]) -> None:
        self.start, self.end, self.rows, self.pieces = start, end, rows, pieces


class SampleFiles:
    """The files of one moment; ``runs`` limits them to row groups that may have rows of these. Metrics get
    their numbers from ``names``.

    All methods raise BadData if a file is missing or broken."""

    def __init__(self, files: Sequence[str], runs: Sequence[str], names: Names) -> None:
        self._files = files
        self._runs = runs
        self._names = names

    def segments(self, part: Where, start: int, end: int, at_most: int) -> Iterator[Segment]:
        """Cuts [start, end) where no row group has rows on both sides; neighbours of ``at_most`` rows in all
        are read together."""
        groups: list[Segment] = []
        for piece in sorted(self.pieces(part), key=lambda piece: (piece.low, piece.high, piece.path)):
            if piece.high < start or piece.low >= end:
                continue
            last = groups[-1] if groups else None
            overlaps = last is not None and piece.low < last.end
            if last is not None and (overlaps or last.rows + piece.rows <= at_most):
                last.pieces.append(piece)
                last.end = max(last.end, piece.high + 1)
                last.rows += piece.rows
            else:
                groups.append(Segment(piece.low, piece.high + 1, piece.rows, [piece]))
        begin = start
        for at, group in enumerate(groups):
            group.start = begin
            group.end = begin = min(group.end, end) if at + 1 < len(groups) else end
            yield group
        if not groups:
            yield Segment(start, end, 0, [])

    def pieces(self, part: Where) -> Iterator[Piece]:
        """The row groups of ``samples`` that may have rows of the partition (and runs)."""
        for path in self._files:
            try:
                with parquet(path) as file:
                    meta = file.metadata
            except (OSError, pa.ArrowException) as error:
                raise BadData(f"{path} is part of table samples but is missing or broken: {error}") from error
            columns = {meta.schema.column(at).path: at for at in range(meta.num_columns)}
            for number in range(meta.num_row_groups):
                group = meta.row_group(number)
                span = {name: _span(group, columns[name]) for name in _KEYS}
                if not _may_have(span["topic_uuid"], part.topic_uuid):
                    continue
                if not _may_have(span["partition"], part.partition):
                    continue
                if self._runs and not any(_may_have(span["run"], run) for run in self._runs):
                    continue
                mixed = any(not _single(span[name]) for name in _KEYS[:2])
                low, high = span["offset"] or (part.start, part.end)
                yield Piece(path, number, max(low, part.start), high, group.num_rows, mixed)

    def fill(self, block: Block, part: Where, segment: Segment) -> None:
        """Adds the rows of a segment to a block."""
        for rows in self._rows_of(part, segment):
            block.add(rows)

    def put_aside(self, folder: Path, ends: I64, part: Where, segment: Segment) -> None:
        """Writes the rows of each stretch to a file of its own."""
        for rows in self._rows_of(part, segment):
            of = np.searchsorted(ends, rows.offset, side="right")
            order = np.argsort(of, kind="stable")
            packed = rows.packed()[order]
            numbers, starts = np.unique(of[order], return_index=True)
            for number, low, high in zip(
                numbers.tolist(), starts.tolist(), [*starts.tolist()[1:], len(packed)], strict=True
            ):
                if number < len(ends):
                    with open(folder / str(number), "ab") as file:
                        packed[low:high].tofile(file)

    def _rows_of(self, part: Where, segment: Segment) -> Iterator[SampleBatch]:
        """All rows of a segment's files that may be of its stretch; each file is decoded once."""
        by_file: dict[str, list[Piece]] = {}
        for piece in segment.pieces:
            by_file.setdefault(piece.path, []).append(piece)
        for path, pieces in by_file.items():
            mixed = any(piece.mixed for piece in pieces)
            columns = [*_COLUMNS, *(_KEYS[:2] if mixed else ())]
            try:
                with parquet(path, read_dictionary=["metric"], memory_map=True) as file:
                    groups = sorted(piece.group for piece in pieces)
                    for batch in file.iter_batches(
                        _READ_ROWS, row_groups=groups, columns=columns, use_threads=False
                    ):
                        yield self._batch(batch, part if mixed else None)
            except (OSError, pa.ArrowException) as error:
                raise BadData(f"{path} is part of table samples but is missing or broken: {error}") from error

    def _batch(self, batch: pa.RecordBatch, only: Where | None) -> SampleBatch:
        if only is not None:
            batch = batch.filter(
                pc.and_(
                    pc.equal(batch.column("topic_uuid"), only.topic_uuid),
                    pc.equal(batch.column("partition"), pa.scalar(only.partition, pa.int32())),
                )
            )
        metric = batch.column("metric")
        if not pa.types.is_dictionary(metric.type):
            metric = metric.dictionary_encode()
        codes = self._names.codes(metric.dictionary.to_pylist())
        step = batch.column("step")
        return SampleBatch(
            batch.column("offset").to_numpy(),
            batch.column("ordinal").to_numpy(),
            codes[metric.indices.to_numpy()] if len(codes) else np.empty(0, np.int32),
            step.fill_null(NO_STEP).to_numpy() if step.null_count else step.to_numpy(),
            batch.column("time").view(pa.int64()).to_numpy(),
            batch.column("value").to_numpy(),
            batch.column("weight").to_numpy(),
        )


class Mapped:
    """Room in files that are mapped into memory: the system keeps there what fits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, shape: int, dtype: Any, /) -> npt.NDArray[Any]:
        if not shape:
            return np.empty(0, dtype)
        with tempfile.TemporaryFile(dir=self._folder) as file:  # gone as soon as nothing is mapped there
            return np.memmap(file, dtype, "w+", shape=(shape,))


def _span(group: Any, column: int) -> tuple[Any, Any] | None:
    """Lowest and highest value of a column, None where the file does not say."""
    stats = group.column(column).statistics
    return (stats.min, stats.max) if stats is not None and stats.has_min_max else None


def _single(span: tuple[Any, Any] | None) -> bool:
    """Whether it is known that all values are equal."""
    return span is not None and bool(span[0] == span[1])


def _may_have(span: tuple[Any, Any] | None, value: Any) -> bool:
    return span is None or span[0] <= value <= span[1]


def put_aside_rows(path: Path) -> Iterator[SampleBatch]:
    """What :meth:`SampleFiles.put_aside` wrote to a file."""
    rows: npt.NDArray[np.void] = np.memmap(path, np.uint8, "r").view(ROW)
    for at in range(0, len(rows), _READ_ROWS):
        yield SampleBatch.unpacked(np.asarray(rows[at : at + _READ_ROWS]))
