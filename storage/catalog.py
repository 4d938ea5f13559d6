"""``catalog.duckdb``: a small DuckDB database of the views over the current files, for any DuckDB client.

It holds no rows. It is written beside and renamed, so that a reader that has the old one open is not
disturbed; a file lock keeps two sinks from writing it at once. The paths in it are absolute: after the folder
was moved, ``driftline sql`` (which reads the tables' own logs) still works, and the next sink writes the
catalog anew.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import duckdb

from driftline.errors import BadData
from driftline.storage.alone import alone
from driftline.storage.listing import read_files
from driftline.storage.objects import is_remote
from driftline.storage.relations import identifier, source, text
from driftline.storage.root import local
from driftline.storage.tables import TABLE_NAMES, TABLES, TableName
from driftline.storage.views import BASE_VIEW, VIEWS, statement
from driftline.storage.views.view import View

CATALOG = "catalog.duckdb"
_TEMPORARY = ".catalog.tmp"
_LOCK = "_catalog"
"""Beside the files of a table: in the root itself there is nothing but tables and the catalog."""


def define(db: duckdb.DuckDBPyConnection, files: Mapping[TableName, Sequence[str]]) -> None:
    """Makes or replaces all views in ``db``, over these files."""
    define_tables(db, files)
    define_views(db, VIEWS)


def define_views(db: duckdb.DuckDBPyConnection, views: Iterable[View]) -> None:
    """Makes or replaces these, over the plain views of the tables and those that they rest on."""
    for view in views:
        db.execute(statement(view))
        table = view.sql.strip().startswith("TABLE")
        kind = "VIEW" if view.macro is None else "MACRO TABLE" if table else "MACRO"
        db.execute(f"COMMENT ON {kind} {identifier(view.name)} IS {text(view.says)}")


def keep(db: duckdb.DuckDBPyConnection, view: View, run: str) -> None:
    """Computes what a macro gives of one run, all else as by default, once for all that rests on it: until it
    is defined again it gives these rows, and is an error for anything else; if there are none, it stays."""
    assert view.macro is not None
    name, rows = identifier(view.name), identifier(f"kept {view.name}")
    first, *others = view.macro.split(", ")
    same = [f"{first} = {text(run)}", *(other.replace(":=", "IS NOT DISTINCT FROM") for other in others)]
    guard = (
        f"CASE WHEN {' AND '.join(same)} THEN true ELSE error({text(f'{view.name} is kept of {run}')}) END"
    )
    db.execute(f"CREATE OR REPLACE TEMP TABLE {rows} AS FROM {name}({text(run)})")
    if db.execute(f"FROM {rows} LIMIT 1").fetchone() is None:
        return  # of no rows DuckDB evaluates no guard
    db.execute(f"CREATE OR REPLACE MACRO {name}({view.macro}) AS TABLE FROM {rows} WHERE {guard}")


def define_tables(
    db: duckdb.DuckDBPyConnection,
    files: Mapping[TableName, Sequence[str]],
    names: Iterable[TableName] = TABLE_NAMES,
) -> None:
    """Makes or replaces only the plain views of the tables, or of these."""
    for name in names:
        view = identifier(BASE_VIEW.get(name, name))
        db.execute(f"CREATE OR REPLACE VIEW {view} AS FROM {source(name, files[name])}")
        db.execute(f"COMMENT ON VIEW {view} IS {text(TABLES[name].row)}")


def write(root: Path, files: Callable[[], Mapping[TableName, Sequence[str]]]) -> bool:
    """Replaces the catalog in ``root``; False if another process does so now.

    ``files`` is asked when nobody else writes, so that no older catalog replaces a newer one. Raises
    duckdb.Error, OSError and what ``files`` raises.
    """
    with alone(root / "log" / _LOCK) as mine:
        if not mine:
            return False
        clean(root)  # also what a sink that was killed left
        temporary = root / _TEMPORARY
        try:
            temporary.write_bytes(_template())
            with duckdb.connect(str(temporary)) as db:
                define_tables(db, files())
            os.replace(temporary, root / CATALOG)
        finally:
            clean(root)
    return True


@functools.cache
def _template() -> bytes:
    """A catalog of no files, made once in a process: of each new one only the tables differ, and to define
    all views and macros takes a second (CPU), the tables 0.06 [measured]."""
    with tempfile.TemporaryDirectory(prefix="driftline-catalog-") as folder:
        path = Path(folder) / _TEMPORARY
        with duckdb.connect(str(path)) as db:
            define(db, {name: [] for name in TABLES})
        return path.read_bytes()


def renew(root: str | os.PathLike[str]) -> str | None:
    """Writes the catalog of the tables as they are now; what went wrong, if something did. In an object store
    there is none: it could not be read without an extension and credentials."""
    if is_remote(root):
        return None
    try:
        write(local(root), lambda: read_files(root))
    except (duckdb.Error, OSError, BadData) as error:
        return str(error).partition("\n")[0]
    return None


def clean(root: Path) -> None:
    """Removes an unfinished catalog."""
    for left in root.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            left.unlink()
