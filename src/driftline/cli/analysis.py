"""Asks a question and shows its answer: on the terminal, as JSON or CSV, and in files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from driftline.analysis import machine, terminal
from driftline.analysis.answer import Answer
from driftline.analysis.ask import ask
from driftline.analysis.questions import QUESTIONS
from driftline.errors import BadData
from driftline.storage.open import open_catalog
from driftline.visible import visible


def print_answer(
    name: str,
    words: Sequence[str],
    options: Mapping[str, Any],
    *,
    root: str,
    form: str,
    html: Path | None,
    png: Path | None,
    max_rows: int,
) -> int:
    """Answers the question ``name``; returns the exit code, which is 0 also for an answer without rows.

    Raises:
        BadData: no tables, no such run or metric, or nothing to draw for ``--png``.
    """
    with open_catalog(root) as catalog:
        asked, answer = ask(catalog, QUESTIONS[name], words, options)
    # On a terminal what is stored must not steer it; a pipe gets the bytes as they are.
    shown = visible if sys.stdout.isatty() else str
    if form == "json":
        print(shown(machine.as_json(answer, asked.as_data())))
    elif form == "csv":
        machine.write_csv(answer, sys.stdout, shown=shown)
    else:
        terminal.show(answer, Console(), max_rows=max_rows)
    for path, write in ((html, _write_html), (png, _write_png)):
        if path is not None:
            write(path, answer)
            print(f"written: {path}", file=sys.stderr)
    return 0


def write_report(runs: Sequence[str], metrics: Sequence[str], *, root: str, out: Path) -> int:
    """Writes the report of ``runs`` (default: the newest) to ``out``; returns the exit code.

    Raises:
        BadData: no tables, no such run or metric, or the file cannot be written.
    """
    from driftline.analysis.report import page

    command = shlex.join(["driftline", "report", *runs, *(w for m in metrics for w in ("--metric", m))])
    with open_catalog(root) as catalog:
        text = page(
            catalog,
            runs,
            metrics,
            command=f"{command} --root {shlex.quote(root)}",
            when=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
            version=version("driftline"),
        )
    write_file(out, text.encode())
    print(f"written: {out} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0


def _write_html(path: Path, answer: Answer) -> None:
    from driftline.analysis.page import page_of

    write_file(path, page_of(answer, [f"driftline, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"]).encode())


def _write_png(path: Path, answer: Answer) -> None:
    from driftline.analysis.picture import png

    if not answer.charts:
        raise BadData(answer.empty or f"{answer.question} has no charts here; --html has its tables")
    write_file(path, png(answer.charts, answer.title))


def write_file(path: Path, content: bytes) -> None:
    """Writes a file that somebody asked for.

    Raises:
        BadData: it cannot be written there.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BadData(f"cannot write {path}: {error.strerror or error}") from error
