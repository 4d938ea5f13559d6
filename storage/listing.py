"""Which files make up the tables now, for readers: what the tables' own logs say, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from driftline.errors import BadData
from driftline.storage.objects import OPTIONS, address, is_remote
from driftline.storage.remedies import fault_of, told
from driftline.storage.root import local
from driftline.storage.table_log import COMMIT, empty_commit
from driftline.storage.tables import TABLES, TableName

EMPTY = (
    "{} is empty, so rows are missing; bring it back from a copy, or if it is the newest one there, start a "
    "sink, which stores them again"
)


def read_files(root: str | os.PathLike[str]) -> dict[TableName, list[str]]:
    """The current Parquet files of each table under ``root``, for readers; a missing table has none.

    Raises:
        BadData: there is no table at all, or a table's log cannot be read.
    """
    return files_of(root, read_handles(root))


def read_handles(root: str | os.PathLike[str]) -> dict[TableName, DeltaTable]:
    """Each table that there is, at its version of now. Raises BadData, as :func:`read_files` does."""
    if is_remote(root):
        return _remote_handles(address(root))
    path = local(root)
    found: dict[TableName, DeltaTable] = {}
    for name in TABLES:
        try:
            found[name] = DeltaTable(str(path / name))
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            raise BadData(f"table {path / name} cannot be read: {fault_of(path / name, error)}") from error
        if empty := empty_commit(path / name, found[name].version()):
            raise BadData(EMPTY.format(empty))
    if not found:
        raise BadData(f"no tables in {path}: name the storage root that a sink wrote (storage.root)")
    return found


def files_of(
    root: str | os.PathLike[str], handles: Mapping[TableName, DeltaTable]
) -> dict[TableName, list[str]]:
    """The Parquet files of tables at the versions of their handles; a missing table has none.

    Raises BadData."""
    found: dict[TableName, list[str]] = {name: [] for name in TABLES}
    for name, handle in handles.items():
        try:
            remote = is_remote(root)
            found[name] = sorted(handle.file_uris()) if remote else file_paths(local(root) / name, handle)
        except (DeltaError, OSError) as error:
            raise BadData(f"table {name} in {root} cannot be read: {told(error)}") from error
    return found


def has_tables(root: str | os.PathLike[str]) -> bool:
    """Whether somebody has made tables there. Raises BadData if an object store cannot be asked."""
    if not is_remote(root):
        return (local(root) / "log" / "_delta_log").is_dir()
    where = f"{address(root)}/log"
    try:
        return DeltaTable.is_deltatable(where, storage_options=OPTIONS)
    except (DeltaError, OSError) as error:
        raise BadData(f"table {where} cannot be read: {told(error)}") from error


def newest_commits(root: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """The name of the newest commit of each table, so that readers need not load logs that are as they were;
    None where that would cost as much. (A log that is broken or gone shows when it is read.)"""
    if is_remote(root):
        return None
    found = []
    for name in TABLES:
        try:
            log = os.listdir(local(root) / name / "_delta_log")
        except OSError:
            log = []
        found.append(max(filter(COMMIT.fullmatch, log), default=""))
    return tuple(found)


def _remote_handles(root: str) -> dict[TableName, DeltaTable]:
    """The same in an object store."""
    found: dict[TableName, DeltaTable] = {}
    for name in TABLES:
        try:
            found[name] = DeltaTable(f"{root}/{name}", storage_options=OPTIONS)
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            raise BadData(f"table {root}/{name} cannot be read: {told(error)}") from error
    if not found:
        raise BadData(f"no tables in {root}: name the storage root that a sink wrote (storage.root)")
    return found


def file_paths(folder: Path, handle: DeltaTable) -> list[str]:
    """Absolute local paths of a table's files, in order. (delta-rs percent-encodes the folder in URIs.)"""
    return sorted(str(folder / unquote(uri.rpartition("/")[2])) for uri in handle.file_uris())
