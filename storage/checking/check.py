"""``driftline storage check``: are the tables whole, and do their rows equal what the offsets promise.

Reads only, safe beside running sinks and readers: files and positions are those of one moment per table, and
a table that is ahead of another is compared as far as both go. Memory is bounded (see :mod:`.checking.rows`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError

from driftline.errors import BadData
from driftline.storage.checking import remote
from driftline.storage.checking.files import TableFiles, check_files, load
from driftline.storage.checking.findings import Finding, Report, Verdict
from driftline.storage.checking.rows import RowCheck, Version
from driftline.storage.objects import address, connect, is_remote
from driftline.storage.remedies import told
from driftline.storage.root import local
from driftline.storage.tables import TABLES, TableName

_TRIES = 3
_LATER = "run driftline storage check again"


class Watcher(Protocol):
    """Is shown how far a check is."""

    def files(self, bytes_: int) -> None:
        """So many bytes of files will be read."""

    def done(self, bytes_: int, what: str) -> None:
        """So many more are."""

    def rows(self, what: str) -> None:
        """Now these rows are compared."""


class Unwatched:
    """Nobody looks."""

    def files(self, bytes_: int) -> None:
        pass

    def done(self, bytes_: int, what: str) -> None:
        pass

    def rows(self, what: str) -> None:
        pass


def check(root: str | os.PathLike[str], *, quick: bool = False, watcher: Watcher | None = None) -> Report:
    """Checks the tables under ``root``; ``quick`` opens files without reading them whole.

    Raises BadData if there are no tables, Unavailable if an object store is away.
    """
    report, _ = checked(root, quick=quick, watcher=watcher)
    return report


def checked(
    root: str | os.PathLike[str], *, quick: bool = False, watcher: Watcher | None = None
) -> tuple[Report, dict[TableName, TableFiles]]:
    """The same, with what was found of each table's files."""
    watcher = watcher or Unwatched()
    where = address(root) if is_remote(root) else local(root)
    for _ in range(_TRIES):
        report, tables, version = _files(where, quick, watcher)
        replaced = any(table.replaced for table in tables.values())
        if not replaced:
            break
    if replaced:
        says = "rows were not compared: their files were replaced all the time while they were read"
        report.findings.append(Finding("log", "rows", True, says, _LATER))
    else:
        _check_rows(report, tables, where, version, watcher.rows)
    for name, table in tables.items():
        ok = not any(finding.wrong and finding.table == name for finding in report.findings)
        report.verdicts.append(Verdict(name, len(table.files), table.bytes, table.rows, ok))
    return report, tables


def _files(
    root: Path | str, quick: bool, watcher: Watcher
) -> tuple[Report, dict[TableName, TableFiles], Version]:
    """All tables as they are now, what is to be said of their files, and their positions."""
    report = Report(str(root))
    tables: dict[TableName, TableFiles] = {}
    for name in TABLES:
        tables[name], findings = remote.load(root, name) if isinstance(root, str) else load(root, name)
        report.findings += findings
    if not any(table.handle for table in tables.values()) and not any(f.wrong for f in report.findings):
        raise BadData(f"no tables in {root}: name the storage root that a sink wrote (storage.root)")
    version = _positions(tables, root, at_once=not quick)
    watcher.files(sum(map(_listed_bytes, tables.values())))
    for table in tables.values():
        if table.handle is None:
            continue
        if isinstance(root, str):
            report.findings += remote.check_files(root, table, quick=quick, progress=watcher.done)
        else:
            report.findings += check_files(root, table, quick=quick, progress=watcher.done)
    return report, tables, version


def _positions(tables: Mapping[TableName, TableFiles], root: Path | str, *, at_once: bool) -> Version:
    """The positions of these tables. A handle reads them from the log, of which a sink trims what is ten
    minutes old; to read all files may take longer, so what will be asked is read ``at_once`` before."""
    read: dict[tuple[TableName, str], int] = {}

    def version(name: TableName, app: str) -> int:
        if (name, app) not in read:
            handle = tables[name].handle
            found = None if handle is None else handle.transaction_version(app)
            read[name, app] = -1 if found is None else found
        return read[name, app]

    if at_once:
        files = {name: table.files for name, table in tables.items()}
        with contextlib.suppress(
            duckdb.Error, DeltaError
        ):  # a broken file: it will be found, and may be left out then
            RowCheck(files, version, connect=lambda: connect(root)).read_positions()
    return version


def _listed_bytes(table: TableFiles) -> int:
    if table.handle is None:
        return 0
    return sum(pa.table(table.handle.get_add_actions(flatten=True)).column("size_bytes").to_pylist())


def _check_rows(
    report: Report,
    tables: dict[TableName, TableFiles],
    root: Path | str,
    version: Version,
    progress: Callable[[str], None],
) -> None:
    files = {name: table.whole for name, table in tables.items()}
    try:
        rows = RowCheck(files, version, connect=lambda: connect(root))
        try:
            rows.run(progress)
        finally:
            report.findings += rows.findings
            report.bad += rows.bad
    except (duckdb.Error, DeltaError) as error:
        report.findings.append(
            Finding("log", "rows", True, f"rows cannot be compared: {told(error)}", _LATER)
        )
