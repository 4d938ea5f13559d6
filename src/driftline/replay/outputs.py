"""Collects what the pipeline puts out: rows like those of the tables, in Parquet files, with their digests.

    Outputs(folder, runs, columns)     add(outputs, reach, cut) ...     finish() -> file(table), digests

What was collected can be written down (:meth:`Outputs.put_down`) and taken up again by another process: then
a table has several files, since a Parquet file cannot be gone on with. Memory is bounded by ``TAKE_ROWS``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from driftline import events
from driftline.records import Output, Record
from driftline.replay.digest import Digest, Digests
from driftline.storage.recorded.compare import OUTPUTS, OutputTable, Reach
from driftline.storage.rows import Rows
from driftline.storage.rows import Source as TopicSource
from driftline.storage.tables import TABLES, TableName

TAKE_ROWS = 50_000
"""Rows that are collected before they become a table."""


class Collected(msgspec.Struct):
    """What was collected so far, as plain data."""

    digests: dict[str, dict[str, tuple[int, int, int]]]
    """Table -> run -> rows and digest."""
    files: dict[str, list[str]]
    """Table -> names of its files in the folder."""
    requests: list[bytes]
    earlier: list[bytes]
    beyond: int
    count: int


class Outputs:
    """``prefix`` begins the names of its files, so that several share a folder."""

    def __init__(
        self, folder: Path, runs: Sequence[str], columns: dict[OutputTable, list[str]], prefix: str = ""
    ) -> None:
        self._runs = frozenset(runs)
        self._rows = Rows()
        self._folder = folder
        self._prefix = prefix
        self._writers: dict[OutputTable, pq.ParquetWriter] = {}
        self._files: dict[OutputTable, list[str]] = {name: [] for name in OUTPUTS}
        self._count = 0
        self.digests = {name: Digests("run", columns[name]) for name in OUTPUTS}
        self.requests: list[events.EvalRequested] = []
        self.earlier: list[events.EvalRequested] = []
        """Of before the reach: some are answered in it."""
        self.beyond = 0

    def add(self, outputs: Sequence[Output], reach: Reach, cut: int) -> None:
        """Takes outputs whose cause lies in ``reach``; those behind ``cut`` are only counted."""
        for output in outputs:
            if self._runs and output.run not in self._runs:
                continue
            if output.id.offset >= reach.end or output.topic == "dead-letter":
                continue
            if output.topic == "evals":
                event = events.decode(output.value)
                assert isinstance(event, events.EvalRequested)
                (self.requests if output.id.offset >= reach.start else self.earlier).append(event)
            elif output.id.offset < reach.start:
                continue
            elif output.id.offset > cut:
                self.beyond += 1
            else:
                self._count += 1
                place = Record(reach.partition, self._count, 0, output.value)
                bad = self._rows.add(TopicSource(output.topic, reach.topic_uuid), place)
                assert bad is None, bad
        if self._rows.waiting >= TAKE_ROWS:
            self._take()

    def finish(self) -> None:
        """Closes the files."""
        self._take()
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def file(self, name: OutputTable) -> Path:
        """The Parquet file of the rows, where nothing was put down."""
        (file,) = self.files(name)
        return file

    def files(self, name: OutputTable) -> list[Path]:
        """Parquet files of the rows, at least one."""
        if not self._files[name]:
            pq.write_table(bare(name).empty_table(), self._new(name))
        return [self._folder / file for file in self._files[name]]

    def put_down(self, durable: bool = True) -> Collected:
        """All that was collected so far; the files are on disk."""
        self.finish()
        for name in OUTPUTS:
            for file in self._files[name] if durable else ():
                _sync(self._folder / file)
        return Collected(
            {name: {run: one.numbers() for run, one in self.digests[name].of.items()} for name in OUTPUTS},
            {name: list(files) for name, files in self._files.items()},
            [events.encode(event) for event in self.requests],
            [events.encode(event) for event in self.earlier],
            self.beyond,
            self._count,
        )

    def take_up(self, collected: Collected) -> None:
        """Adds what was put down, here or elsewhere, in the same folder."""
        for name in OUTPUTS:
            for run, numbers in collected.digests[name].items():
                self.digests[name].of.setdefault(run, Digest()).add(*numbers)
            self._files[name] += collected.files[name]
        for mine, theirs in ((self.requests, collected.requests), (self.earlier, collected.earlier)):
            for value in theirs:
                event = events.decode(value)
                assert isinstance(event, events.EvalRequested)
                mine.append(event)
        self.beyond += collected.beyond
        self._count = max(self._count, collected.count)

    def _new(self, name: OutputTable) -> Path:
        number = len(self._files[name])
        file = f"{self._prefix}{name}{f'-{number}' if number else ''}.parquet"
        self._files[name].append(file)
        return self._folder / file

    def _take(self) -> None:
        taken = self._rows.take()
        for name in OUTPUTS:
            if name not in taken:
                continue
            table = taken[name].cast(bare(name))
            self.digests[name].add(table)
            if name not in self._writers:
                self._writers[name] = pq.ParquetWriter(self._new(name), table.schema, compression="lz4")
            self._writers[name].write_table(table)


def _sync(path: Path) -> None:
    with path.open("rb") as file, contextlib.suppress(OSError):  # some file systems cannot
        os.fsync(file.fileno())


def bare(name: TableName) -> pa.Schema:
    """The columns of a table without what it says of them."""
    return pa.schema([pa.field(c.name, c.type) for c in TABLES[name].columns])
