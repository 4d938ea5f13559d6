"""Reading the tables: ``driftline.open(root)`` gives the views of ``views.py`` over the files of this moment.

The tables' own logs name the files, so what else lies in the folders (torn, foreign, half-written) is never
read. A query that finds a file gone, since a compaction and a clean-up came between, is tried once more on
the newest files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from driftline.errors import BadData
from driftline.storage import catalog
from driftline.storage.answers import rows_of
from driftline.storage.listing import newest_commits, read_files
from driftline.storage.objects import address, connect, is_remote
from driftline.storage.relations import text
from driftline.storage.tables import TABLE_NAMES, TABLES, TableName
from driftline.storage.views import VIEWS, meant, mentioned, tables_of
from driftline.storage.views.view import View

_T = TypeVar("_T")
REMOTE_S = 2.0
"""To ask an object store what is new takes some thirty requests, and a report asks dozens of questions."""
Parameters = Sequence[Any] | Mapping[str, Any]
"""Values of ``?`` in their order, or of ``$name`` by their names."""


class Catalog:
    """A DuckDB connection of its own, in memory, with the views as they are asked for; for one thread."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root: Path | str = address(root) if is_remote(root) else Path(root).absolute()
        self._state, self._read_s = newest_commits(self.root), time.monotonic()
        self._files: dict[TableName, list[str]] = read_files(self.root)
        self._db = connect(self.root)
        self._db.execute("SET python_enable_replacements = false")  # a Python variable is no table
        self._db.execute("SET TimeZone = 'UTC'")  # answers do not depend on where they are asked
        self._db.execute(
            "SET parquet_metadata_cache = true"
        )  # files never change: their footers are read once
        self._defined: set[str] = set()
        """Views and macros that are there."""
        self._tables: set[TableName] = set()
        """Tables whose plain views are there."""
        self._kept: dict[str, str] = {}
        """Macros whose rows are kept, with the run."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The DuckDB connection itself, for relations (``catalog.connection.sql("...").df()``), with all
        views."""
        self._twice(lambda: self._define(TABLE_NAMES, VIEWS))
        return self._db

    def refresh(self) -> None:
        """Shows what was committed since (in an object store not more often than every ``REMOTE_S``). Raises
        BadData if the tables' logs or files cannot be read."""
        now_s = time.monotonic()
        if is_remote(self.root) and now_s - self._read_s < REMOTE_S:
            return
        state = newest_commits(self.root)
        if state is not None and state == self._state:
            return
        files = read_files(self.root)
        if files != self._files:
            self._files = files
            self._twice(self._define_tables_again)
        self._state, self._read_s = state, now_s

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """The answer to ``sql`` as an Arrow table, on what is committed now.

        Raises:
            BadData: the SQL is wrong, or a file of a table is broken; one line each.
        """
        self.refresh()
        return self._twice(lambda: self._run(sql, parameters))

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """The answer as tuples of Python values. Raises as :meth:`query`."""
        return list(rows_of(self.query(sql, parameters)))

    def stream(self, sql: str, rows: int) -> Generator[pa.RecordBatch, None, None]:
        """The answer to ``sql`` piece by piece, of about ``rows`` rows; one without rows if there are none.

        Raises as :meth:`query`, at the first piece if the SQL is wrong.
        """
        self.refresh()
        reader = self._twice(lambda: self._reader(sql, rows))
        empty = True
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            except (duckdb.Error, OSError, pa.ArrowException) as error:
                raise self._explained(duckdb.Error(str(error))) from error
            empty = False
            yield batch
        if empty:
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)

    @contextlib.contextmanager
    def keeping(self, macros: Sequence[str], run: str) -> Iterator[None]:
        """While many questions of one run are asked: what these macros give of it is computed once, of what
        is committed then, and only if one needs it. For other runs, what rests on them is an error."""
        self._defined -= set(macros)
        self._kept = dict.fromkeys(macros, run)
        try:
            yield
        finally:
            self._defined -= set(macros)
            self._kept = {}

    def bound(self, memory: str, folder: str) -> None:
        """What goes beyond ``memory`` ("2GB") while rows are sorted goes to disk, into ``folder``."""
        self._db.execute(f"SET temp_directory = {text(folder)}")
        self._db.execute(f"SET memory_limit = {text(memory)}")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _twice(self, task: Callable[[], _T]) -> _T:
        """Does ``task``; if a file is gone, once more on the newest files."""
        try:
            try:
                return task()
            except duckdb.IOException:
                self._files = read_files(self.root)
                self._define_tables_again()
                return task()
        except duckdb.Error as error:
            raise self._explained(error) from error

    def _define(self, tables: Iterable[TableName], views: Iterable[View]) -> bool:
        """Makes what is not there yet of these; whether there was something."""
        new_tables = [name for name in tables if name not in self._tables]
        new_views = [view for view in views if view.name not in self._defined]
        catalog.define_tables(self._db, self._files, new_tables)
        self._tables.update(new_tables)
        for view in new_views:
            catalog.define_views(self._db, [view])
            if view.name in self._kept:
                catalog.keep(self._db, view, self._kept[view.name])
            self._defined.add(view.name)
        return bool(new_tables or new_views)

    def _define_tables_again(self) -> None:
        catalog.define_tables(self._db, self._files, self._tables)

    def _ask(self, sql: str, parameters: Parameters | None = None) -> duckdb.DuckDBPyRelation | None:
        given = dict(parameters) if isinstance(parameters, Mapping) else list(parameters or ())
        views = mentioned(sql)
        self._define(tables_of(sql, views), views)
        while True:
            try:
                return self._db.sql(sql, params=given or None)
            except duckdb.CatalogException as error:
                # A name put together from pieces; or one like it, for the error to suggest.
                if not self._define(TABLE_NAMES, meant(str(error))):
                    raise

    def _run(self, sql: str, parameters: Parameters | None) -> pa.Table:
        answer = self._ask(sql, parameters)
        return pa.table({}) if answer is None else answer.to_arrow_table()

    def _reader(self, sql: str, rows: int) -> pa.RecordBatchReader:
        answer = self._ask(sql)
        if answer is None:
            raise BadData("this statement has no rows: give a query")
        return answer.to_arrow_reader(rows)

    def _explained(self, error: duckdb.Error) -> BadData:
        message = str(error)
        for name in TABLES:
            for file in self._files[name]:
                if Path(file).name in message:
                    return BadData(
                        f"{file} is part of table {name} but is missing or broken ({_line(message)}); bring "
                        "it back from a copy, or delete it and give up its rows with "
                        f"deltalake.DeltaTable({f'{self.root}/{name}'!r}).repair()"
                    )
        return BadData(_line(message))


def open_catalog(root: str | os.PathLike[str]) -> Catalog:
    """Opens the tables under ``root`` for reading. Raises BadData if there are none."""
    return Catalog(root)


def _line(message: str) -> str:
    """A DuckDB message as one line: without the picture of where in the SQL it is."""
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("LINE ", "^")))
