"""The first half of a check: is each table's log readable, each listed file there, whole, of the schema.

A listed file is opened, its schema and count of rows are compared, and (unless ``quick``) all of it is read,
a batch at a time. Where a running sink replaced one meanwhile, all begins again. What lies beside the files
is named. Nothing is changed.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from driftline.storage.alone import alone
from driftline.storage.checking.findings import Finding
from driftline.storage.checking.strays import Stray, strays
from driftline.storage.listing import file_paths
from driftline.storage.remedies import fault_of, told
from driftline.storage.table_log import empty_commit, removals
from driftline.storage.tables import TABLES, TableName

Progress = Callable[[int, str], None]
"""Is told how many bytes more are done, and of what."""
_BATCH_ROWS = 65_536
_ALONE_S = 3.0
MEND = "bring it back from a copy, or let driftline storage repair take it out of the table"


AGAIN = "that says nothing of the file: mend what it says, and check again"


class NotNow(Exception):
    """A file that could not be looked at (rights, open files, a server that is away, memory). Perhaps it
    is whole, so no repair may take it out of the table."""


@dataclass
class TableFiles:
    """One table as it was when its log was read."""

    name: TableName
    handle: DeltaTable | None
    files: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    """Whole ones with statistics that they should not have."""
    rows: int = 0
    bytes: int = 0
    strays: list[Stray] = field(default_factory=list)
    replaced: bool = False
    """A file was replaced while it was looked at, so these are no longer the table's rows."""

    @property
    def whole(self) -> list[str]:
        return [file for file in self.files if file not in self.broken]


def load(root: Path, name: TableName) -> tuple[TableFiles, list[Finding]]:
    """The table's list of files, or why there is none."""
    folder = root / name
    try:
        handle = DeltaTable(str(folder))
    except TableNotFoundError:
        return TableFiles(name, None), [no_table(name)]
    except (DeltaError, OSError) as error:
        return TableFiles(name, None), [
            Finding(name, "log", True, f"its log cannot be read: {fault_of(folder, error)}", _of_log(folder))
        ]
    found = TableFiles(name, handle, file_paths(folder, handle))
    if empty := empty_commit(folder, handle.version()):
        return found, [Finding(name, "log", True, f"{empty} is empty, so rows are missing", _of_log(folder))]
    return found, []


def no_table(name: TableName) -> Finding:
    """A table that was not made yet."""
    return Finding(name, "log", False, "there is no such table yet", "a sink makes it when it starts")


def _of_log(folder: Path) -> str:
    return (
        "if it is the newest commit, start a sink or driftline storage repair, which set it aside; the sink "
        f"then stores its rows again; else bring back {folder / '_delta_log'} from a copy"
    )


def check_files(root: Path, table: TableFiles, *, quick: bool, progress: Progress) -> list[Finding]:
    """Looks at every listed file, and at what lies beside them."""
    findings = []
    for file in list(table.files):
        try:
            wrong = _wrong(Path(file), table.name, quick=quick)
        except NotNow as error:
            findings.append(Finding(table.name, "file", True, f"{file} {error}", AGAIN))
            continue
        if wrong is not None and not _still_listed(root, table, file):
            table.files.remove(file)
            table.replaced = True
            continue
        if wrong is not None:
            table.broken.append(file)
            findings.append(Finding(table.name, "file", True, f"{file} {wrong}", MEND))
        else:
            with contextlib.suppress(FileNotFoundError):
                findings += _whole(table, Path(file))
        with contextlib.suppress(OSError):
            progress(Path(file).stat().st_size, f"{table.name}: {Path(file).name[:20]}")
    return findings + check_strays(root, table)


def _whole(table: TableFiles, path: Path) -> list[Finding]:
    """Counts a whole file in."""
    with pq.ParquetFile(path) as file:
        table.rows += file.metadata.num_rows
        table.bytes += path.stat().st_size
        column = float_statistics(file)
    if column is None:
        return []
    says = (
        f"{path} has statistics on the float column {column}, so filters may miss NaN: not written by a sink"
    )
    table.counted.append(str(path))
    return [Finding(table.name, "statistics", True, says, "driftline storage repair writes it anew, without")]


def _still_listed(root: Path, table: TableFiles, file: str) -> bool:
    """Whether the file is part of the table now, too: a sink may have replaced it meanwhile."""
    assert table.handle is not None
    now = file_paths(root / table.name, DeltaTable(str(root / table.name)))
    return file in now


def _wrong(path: Path, name: TableName, *, quick: bool) -> str | None:
    """What is wrong with a data file, if anything."""
    try:
        if not path.stat().st_size:
            return "is empty"
        with pq.ParquetFile(path) as file:
            return content_fault(file, name, quick=quick)
    except FileNotFoundError:
        return "is part of the table and missing"
    except MemoryError as error:
        raise NotNow("cannot be read: there is too little memory") from error
    except (OSError, pa.ArrowException) as error:
        says = f"cannot be read: {told(error)}"
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise NotNow(says) from error
        return says


def content_fault(file: pq.ParquetFile, name: TableName, *, quick: bool) -> str | None:
    """What is wrong with the content of an opened data file, if anything; reads all of it unless ``quick``.
    Raises OSError, pa.ArrowException."""
    if wrong := _schema_fault(file.schema_arrow, name):
        return wrong
    if quick:
        return None
    rows = sum(batch.num_rows for batch in file.iter_batches(_BATCH_ROWS, use_threads=False))
    if rows != file.metadata.num_rows:
        return f"has {rows:,} rows, and its footer says {file.metadata.num_rows:,}"
    return None


def _schema_fault(schema: pa.Schema, name: TableName) -> str | None:
    for column in TABLES[name].columns:
        at = schema.get_field_index(column.name)
        if at < 0:
            if not column.later:
                return f"lacks the column {column.name}"
        elif _plain(schema.field(at).type) != _plain(column.type):
            return f"has {column.name} as {schema.field(at).type}, not {column.type}"
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Without the differences between ways to hold the same values."""
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.utf8()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def float_statistics(file: pq.ParquetFile) -> str | None:
    """The first float column of which a file tells the smallest and largest value."""
    found = file.metadata
    floats = [
        at for at in range(found.num_columns) if found.schema.column(at).physical_type in ("DOUBLE", "FLOAT")
    ]
    for group in range(found.num_row_groups):
        for at in floats:
            column = found.row_group(group).column(at)
            if column.statistics is not None and column.statistics.has_min_max:
                return str(column.path_in_schema)
    return None


def known_names(table: TableFiles, now: DeltaTable, removed: Iterable[str] = ()) -> set[str]:
    """Names of the files that the table has or had by ``now``, a handle that was just loaded (an old one may
    rest on what was trimmed); those ``removed`` too: delta-rs leaves out what was removed "later" than now by
    this host's clock."""
    old = now.vacuum(0, dry_run=True, enforce_retention_duration=False)
    return {Path(file).name for file in [*table.files, *now.file_uris(), *old]} | set(removed)


def check_strays(root: Path, table: TableFiles) -> list[Finding]:
    """Names what lies beside the files; what a commit on its way may have written is no finding."""
    folder = root / table.name
    now_s = time.time()
    known = known_names(table, DeltaTable(str(folder)), removals(folder))
    table.strays = strays(folder, known, now_s)
    left = [stray for stray in table.strays if stray.kind == "ours"]
    if left and not _decided(folder, table):
        table.strays = [stray for stray in table.strays if stray.kind != "ours"]
    return said_of_strays(table)


def said_of_strays(table: TableFiles) -> list[Finding]:
    """A finding for each kind of them."""
    findings = []
    for kind in sorted({stray.kind for stray in table.strays}):
        found = [stray for stray in table.strays if stray.kind == kind]
        size = sum(stray.bytes for stray in found)
        names = ", ".join(stray.path.name for stray in found[:3]) + (", ..." if len(found) > 3 else "")
        says, remedy = _SAID[kind]
        findings.append(
            Finding(
                table.name, f"stray {kind}", False, f"{len(found)} {says} ({size:,} bytes): {names}", remedy
            )
        )
    return findings


def _decided(folder: Path, table: TableFiles) -> bool:
    """Waits until nobody writes, and then tells what is left over from what was being written."""
    until = time.monotonic() + _ALONE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), alone(folder / "_writing") as mine:
            if mine:
                known = known_names(table, DeltaTable(str(folder)), removals(folder))
                table.strays = strays(folder, known, time.time())
                return True
        time.sleep(0.05)
    return False


_ASIDE = "the next sink, or driftline storage repair, moves it to quarantine; nothing reads it"
_SAID = {
    "ours": ("files of writers that were killed", "the sink removes them after its next compaction"),
    "empty": ("files of 0 bytes", _ASIDE),
    "torn": ("files that are cut off or no Parquet", _ASIDE),
    "unfinished": ("unfinished files of something else", _ASIDE),
    "delta": (
        "files of another writer of Delta tables",
        "after a day they are moved to quarantine by the sink, after two by driftline storage repair",
    ),
    "foreign": ("Parquet files that are not of the table", _ASIDE),
    "other": ("other files", "nothing takes them for rows; they stay"),
}
