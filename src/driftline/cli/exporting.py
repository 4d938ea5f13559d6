"""Runs an export from the command line: what is asked, progress, and what was written."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from driftline.errors import SettingsError
from driftline.storage import export
from driftline.visible import visible


def run_export(
    root: str,
    file: Path,
    *,
    query: str | None,
    view: str,
    runs: Sequence[str],
    metrics: Sequence[str],
    said: str | None,
) -> int:
    """Writes the file and says how many rows it has; returns the exit code. Raises as ``export``."""
    if query is not None and (runs or metrics or view != "samples"):
        raise SettingsError("--query", query, "it says all: leave out --view, --run and --metric")
    kind = export.kind_of(file, said)
    sql = export.question(view, runs, metrics) if query is None else query
    if file == export.STDOUT:
        return _to_stdout(root, sql, kind)
    to = _address(file)
    with _counting() as told:
        if to is not None:
            rows, size = export.export_into_store(root, sql, to, kind, told=told)
        else:
            rows = export.export(root, sql, file, kind, told=told)
            size = file.stat().st_size
    print(visible(f"{to or file}: {rows:,} rows, {size:,} bytes"))
    return 0


def _address(file: Path) -> str | None:
    """The address that was written, of which a path keeps one slash; None for a file.

    >>> _address(Path("s3://bucket/a.csv")), _address(Path("a.csv"))
    ('s3://bucket/a.csv', None)
    """
    found = re.match(r"([a-z][a-z0-9]+):/+", str(file))
    return None if found is None else f"{found[1]}://{str(file)[found.end() :]}"


def _to_stdout(root: str, sql: str, kind: export.Kind) -> int:
    """Writes the answer and nothing else; a reader that has enough ends it without a word."""
    if kind != "csv" and sys.stdout.isatty():
        raise SettingsError("FILE", "-", f"a terminal cannot show {kind}: send it into a file or a pipe")
    try:
        export.export_to(root, sql, sys.stdout.buffer, kind)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not flushed to it
    return 0


@contextlib.contextmanager
def _counting() -> Iterator[Callable[[int], None] | None]:
    """How many rows were written so far, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("reading")
        yield lambda count: bar.update(task, description=f"{count:,} rows")
