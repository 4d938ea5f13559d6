"""The first half of a check in an object store: what :mod:`.files` does in a folder.

An object is put whole or not at all, so nothing is torn by a crash; but objects may be deleted, overwritten
or put there by others. Trouble on the way is no fault of an object: one that cannot be read is fetched whole
and read again from memory, and only that decides.

A data file that no log knows may be of a commit on its way, and there are no locks that would tell. As in
Delta Lake's own clean-up, one is taken for left over when it is ``OURS_AGE_S`` old, by the store's clock and
ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from driftline.errors import Unavailable
from driftline.storage.checking.files import (
    AGAIN,
    MEND,
    NotNow,
    Progress,
    TableFiles,
    content_fault,
    float_statistics,
    known_names,
    no_table,
    said_of_strays,
)
from driftline.storage.checking.findings import Finding
from driftline.storage.checking.strays import DELTA_AGE_S, OURS, QUARANTINE, Kind, Stray
from driftline.storage.objects import OPTIONS, files_below, move, parquet
from driftline.storage.remedies import told
from driftline.storage.table_log import COMMIT
from driftline.storage.tables import TableName

OURS_AGE_S = 7 * 86_400.0
_MAGIC = b"PAR1"
_NO_STATISTICS = "bring back the sink's own file from a copy, or an older version of the object"


def load(root: str, name: TableName) -> tuple[TableFiles, list[Finding]]:
    """As :func:`.files.load`."""
    where = f"{root}/{name}"
    try:
        handle = DeltaTable(where, storage_options=OPTIONS)
        found = TableFiles(name, handle, sorted(handle.file_uris()))
        empty = [
            info for info in _list(f"{where}/_delta_log") if not info.size and COMMIT.fullmatch(info.path)
        ]
    except TableNotFoundError:
        return TableFiles(name, None), [no_table(name)]
    except (DeltaError, OSError) as error:
        remedy = f"bring back {where}/_delta_log from a copy, or check again if the store was away"
        return TableFiles(name, None), [
            Finding(name, "log", True, f"its log cannot be read: {told(error)}", remedy)
        ]
    return found, [
        Finding(
            name,
            "log",
            True,
            f"{where}/_delta_log/{info.path} is empty, so rows are missing",
            "bring it back from a copy (a store's older version of it)",
        )
        for info in empty
    ]


def check_files(root: str, table: TableFiles, *, quick: bool, progress: Progress) -> list[Finding]:
    """As :func:`.files.check_files`. Raises Unavailable if the store is away or refuses."""
    where = f"{root}/{table.name}"
    try:
        return _check_files(where, table, quick=quick, progress=progress)
    except (DeltaError, OSError) as error:
        raise Unavailable(f"{where} cannot be listed: {told(error)}: mend that and check again") from error


def _check_files(where: str, table: TableFiles, *, quick: bool, progress: Progress) -> list[Finding]:
    here = {info.path: info for info in _list(where)}
    findings: list[Finding] = []
    for file in list(table.files):
        name = file.rpartition("/")[2]
        size = here[name].size if name in here else None
        try:
            wrong = _wrong(file, table, size, quick=quick, findings=findings)
        except NotNow as error:
            findings.append(Finding(table.name, "file", True, f"{file} {error}", AGAIN))
            continue
        if wrong is not None and file not in DeltaTable(where, storage_options=OPTIONS).file_uris():
            table.files.remove(file)
            table.replaced = True
            continue
        if wrong is not None:
            table.broken.append(file)
            findings.append(Finding(table.name, "file", True, f"{file} {wrong}", MEND))
        progress(size or 0, f"{table.name}: {name[:20]}")
    known = known_names(table, DeltaTable(where, storage_options=OPTIONS))
    table.strays = [
        stray
        for info in here.values()
        if info.path not in known and (stray := _stray(where, info)) is not None
    ]
    return findings + said_of_strays(table)


def _wrong(
    file: str, table: TableFiles, size: int | None, *, quick: bool, findings: list[Finding]
) -> str | None:
    """What is wrong with an object, if anything; counts a whole one in."""
    if not size:
        return "is part of the table and missing" if size is None else "is empty"
    try:
        with parquet(file) as opened:
            wrong = content_fault(opened, table.name, quick=quick)
            rows, counted = opened.metadata.num_rows, float_statistics(opened)
    except (OSError, pa.ArrowException, MemoryError) as error:
        return _fetched(file, table.name, error)
    if wrong is None:
        table.rows += rows
        table.bytes += size
        if counted is not None:
            says = (
                f"{file} has statistics on the float column {counted}, so filters may miss NaN: not written "
                "by a sink"
            )
            findings.append(Finding(table.name, "statistics", True, says, _NO_STATISTICS))
    return wrong


def _fetched(file: str, name: TableName, first: BaseException) -> str | None:
    """The same of all of its bytes in memory: what now goes wrong is wrong with them."""
    if isinstance(first, MemoryError):
        raise NotNow("cannot be read: there is too little memory") from first
    folder, _, rest = file.rpartition("/")
    try:
        body = files_below(folder).open_input_file(rest).read()
    except (OSError, DeltaError, MemoryError) as error:
        raise NotNow(
            f"cannot be read: {told(first if isinstance(first, Exception) else OSError())}"
        ) from error
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as opened:
            return content_fault(opened, name, quick=False)
    except (OSError, pa.ArrowException) as error:
        return f"cannot be read: {told(error)}"


def _list(where: str) -> Iterator[pafs.FileInfo]:
    """The objects right under an address, by their names there."""
    found = files_below(where).get_file_info(pafs.FileSelector("", allow_not_found=True, recursive=False))
    yield from (info for info in found if info.type == pafs.FileType.File)


def _stray(where: str, info: pafs.FileInfo) -> Stray | None:
    name = info.path
    age_s = time.time() - info.mtime.timestamp() if info.mtime is not None else 0.0
    kind: Kind
    if OURS.fullmatch(name):
        if age_s < OURS_AGE_S:
            return None
        kind = "ours"
    elif not info.size:
        kind = "empty"
    elif ".parquet" not in name:
        kind = "other"
    elif name.startswith((".", "_")) or not name.endswith(".parquet"):
        kind = "unfinished"
    elif not _is_parquet(where, name, info.size):
        kind = "torn"
    else:
        kind = "delta" if name.startswith("part-") else "foreign"
    return Stray(Path(f"{where}/{name}"), kind, info.size, age_s)


def _is_parquet(where: str, name: str, size: int) -> bool:
    if size < 12:
        return False
    with files_below(where).open_input_file(name) as file:
        return bool(file.read(4) == _MAGIC and file.read_at(4, size - 4) == _MAGIC)


def movable(stray: Stray) -> bool:
    """Whether it is certainly of no commit on its way."""
    if stray.kind == "other":
        return False
    if stray.kind == "ours":
        return True  # it is old, or it would not be told of
    return not stray.path.name.startswith("part-") or stray.age_s > DELTA_AGE_S


def set_aside(root: str, table: str, name: str) -> bool:
    """Moves an object of a table to the quarantine, under a name that is free there; False if it is gone.
    Raises OSError."""
    files = files_below(root)
    if files.get_file_info(f"{table}/{name}").type != pafs.FileType.File:
        return False
    target, number = f"{QUARANTINE}/{table}/{name}", 1
    while files.get_file_info(target).type == pafs.FileType.File:
        target, number = f"{QUARANTINE}/{table}/{name}.{number}", number + 1
    move(root, f"{table}/{name}", target)
    return True
