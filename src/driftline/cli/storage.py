"""``driftline storage``: how checks, repairs, compactions and clean-ups of the tables are shown."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from driftline.clock import SystemClock
from driftline.errors import SettingsError
from driftline.settings import Settings
from driftline.storage import catalog
from driftline.storage.checking.check import check
from driftline.storage.checking.findings import Report
from driftline.storage.checking.mend import Oldest, Step, plan, repair
from driftline.storage.lakes import AnyLake, open_lake
from driftline.storage.listing import read_files
from driftline.storage.oldest import oldest_offsets
from driftline.storage.tables import TABLE_NAMES, TableName
from driftline.visible import visible

_PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}


class Bar:
    """A check's progress on standard error, where that is a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def files(self, bytes_: int) -> None:
        self._task = self._progress.add_task("reading files", total=bytes_)

    def done(self, bytes_: int, what: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=bytes_, description=visible(what))

    def rows(self, what: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, description=visible(what))


@contextlib.contextmanager
def bar() -> Iterator[Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        yield Bar(shown)


def print_check(root: str, *, quick: bool, as_json: bool) -> int:
    """The verdict of each table and what was found; 1 if something is wrong. Raises BadData."""
    with bar() as shown:
        report = check(root, quick=quick, watcher=shown)
    _print(report, [], as_json=as_json)
    return 0 if report.ok else 1


def mend(
    settings: Settings, *, dry_run: bool, restore: bool, as_json: bool, confirm: Callable[[str], bool]
) -> int:
    """Shows the plan, asks, does it, and shows how the tables are then; 1 if something is still wrong.

    Raises BadData, Unavailable.
    """
    root = settings.storage.root
    with bar() as shown:
        report, steps = plan(root, watcher=shown)
    torn = any(finding.kind == "log" and finding.wrong for finding in report.findings)
    if dry_run or not (steps or torn or (restore and report.bad)):
        _print(report, steps, as_json=as_json, doing="would")
        return 0 if report.ok else 1
    oldest: Oldest | None = oldest_offsets(settings.kafka) if restore else None
    if not as_json:
        _print(report, steps, as_json=False, doing="would")
    asked = "Do this?" if not restore else "Do this, and have the sink store lost records again?"
    if not confirm(asked):
        return 1
    with bar() as shown:
        report, done = repair(root, oldest=oldest, now_us=SystemClock().now_us(), watcher=shown)
    _renew_catalog(root)
    _print(report, done, as_json=as_json, doing="did")
    return 0 if report.ok else 1


def merge(root: str, tables: Sequence[str], *, as_json: bool) -> int:
    """Compacts; one line per table. Raises BadData, SettingsError, Unavailable."""
    rows = []
    for name, lake in _each(root, tables, "merging"):
        before = len(lake.files(name)), lake.size(name)
        done = lake.compact(name, at_least=2, fully=True)
        rows.append(
            {
                "table": name,
                "files_before": before[0],
                "files": len(lake.files(name)),
                "bytes_before": before[1],
                "bytes": lake.size(name),
                "compacted": done,
            }
        )
    _renew_catalog(root)
    _print_rows(rows, as_json=as_json)
    return 0


def clean(root: str, tables: Sequence[str], *, keep_hours: int, as_json: bool) -> int:
    """Removes replaced files; one line per table. Raises BadData, SettingsError, Unavailable."""
    _renew_catalog(root)  # before: it may name files that go
    rows = []
    for name, lake in _each(root, tables, "cleaning"):
        files, size = lake.vacuum(name, keep_hours=keep_hours, by_clock=True)
        rows.append(
            {
                "table": name,
                "files_deleted": files,
                "bytes_freed": size,
                "commits_trimmed": lake.trim_log(name, by_clock=True),
            }
        )
    _print_rows(rows, as_json=as_json)
    return 0


def _each(root: str, tables: Sequence[str], doing: str) -> Iterator[tuple[TableName, AnyLake]]:
    """The tables that were asked for, in turn, with a progress bar."""
    for asked in tables:
        if asked not in TABLE_NAMES:
            raise SettingsError("--table", asked, f"one of {', '.join(TABLE_NAMES)}")
    read_files(root)  # nothing is made where no tables are
    lake = open_lake(root)
    chosen = [name for name in TABLE_NAMES if not tables or name in tables]
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(doing, total=len(chosen))
        for name in chosen:
            progress.update(task, description=f"{doing} {name}")
            yield name, lake
            progress.advance(task)


def _renew_catalog(root: str) -> None:
    """So that ``catalog.duckdb`` names the files of now, also where no sink runs."""
    if trouble := catalog.renew(root):
        print(visible(f"{catalog.CATALOG} was not renewed (rows are safe): {trouble}"), file=sys.stderr)


# --- what is shown -------------------------------------------------------------------------------------


def _print(report: Report, steps: Sequence[Step], *, as_json: bool, doing: str = "") -> None:
    if as_json:
        told = {
            "root": report.root,
            "ok": report.ok,
            "tables": [verdict._asdict() for verdict in report.verdicts],
            "findings": [finding._asdict() for finding in report.findings],
            "offsets": [bad._asdict() for bad in report.bad],
            doing or "steps": [step._asdict() for step in steps],
        }
        print(json.dumps(told, ensure_ascii=False))
        return
    console = Console()
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("table", "files", "bytes", "rows", "verdict"):
        table.add_column(name, justify="right" if name in ("files", "bytes", "rows") else "left")
    for verdict in report.verdicts:
        said = Text("ok", style="green") if verdict.ok else Text("WRONG", style="bold red")
        table.add_row(verdict.table, f"{verdict.files:,}", f"{verdict.bytes:,}", f"{verdict.rows:,}", said)
    console.print(table)
    for finding in sorted(report.findings, key=lambda finding: not finding.wrong):
        sign = "wrong" if finding.wrong else "note"
        console.print(visible(f"{sign}: {finding.table}: {finding.says}"), **_PLAIN)
        if finding.remedy:
            console.print(visible(f"       {finding.remedy}"), **_PLAIN)
    for step in steps:
        console.print(visible(f"{doing}: {step.table}: {step.does}"), **_PLAIN)
    wrong = len({finding.table for finding in report.findings if finding.wrong})
    rows = sum(verdict.rows for verdict in report.verdicts)
    console.print(
        visible(
            f"all {rows:,} rows in {report.root} are as the offsets promise"
            if report.ok
            else f"{wrong} of {len(report.verdicts)} tables in {report.root} are not as they should be"
        ),
        **_PLAIN,
    )


def _print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "), justify="left" if name == "table" else "right")
    for row in rows:
        table.add_row(*(f"{cell:,}" if type(cell) is int else str(cell) for cell in row.values()))
    Console().print(table)
