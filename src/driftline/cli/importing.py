"""Runs an import from the command line: progress, what was guessed, and a summary of each source."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from driftline.events import ImportSegment
from driftline.importing import detect
from driftline.importing.items import carried
from driftline.importing.load import Loading, Made, before, finish, reading_of
from driftline.importing.load import Progress as Tell
from driftline.importing.reading import Options
from driftline.settings import Settings
from driftline.storage.lakes import AnyLake, open_lake
from driftline.storage.listing import has_tables
from driftline.visible import visible

_RUNS_SHOWN = 10


def run_import(
    paths: Sequence[Path],
    options: Options,
    settings: Settings,
    *,
    finished: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Imports all sources, one after the other; returns the exit code. Raises what they raise."""
    found = [one for path in paths for one in detect.find(path, options)]
    detect.distinct(found, options)
    lake = None if dry_run and not has_tables(settings.storage.root) else open_lake(settings.storage.root)
    changed = False
    try:
        for one in found:
            opened = detect.open_source(one, options, lambda key: reading_of(_before(lake, key)))
            with _progress(one.path.name, sum(opened.source.limits().values())) as tell:
                loading = Loading(
                    opened.source,
                    opened.reading,
                    opened.key,
                    settings=settings,
                    tables=None if dry_run else lake,
                    before=() if dry_run else _before(lake, opened.key),
                    changed_s=opened.changed_s,
                    finished=finished,
                    progress=tell,
                )
                made = loading.run()
            changed = changed or bool(made.rows.total())
            warn = _expires(made, settings)
            if as_json:
                print(json.dumps(_summary(one, made, dry_run=dry_run, warn=warn), ensure_ascii=False))
            else:
                _print(one, made, dry_run=dry_run, warn=warn, root=settings.storage.root)
    finally:
        if changed and lake is not None:
            finish(lake, settings, _say)
    return 0


def _before(lake: AnyLake | None, key: str) -> list[ImportSegment]:
    return [] if lake is None else before(lake, key)


def _say(line: str) -> None:
    print(visible(line), file=sys.stderr)


@contextlib.contextmanager
def _progress(name: str, total: int) -> Iterator[Tell]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(visible(name, 60), total=total)
        yield lambda done: progress.update(task, completed=done)


def _expires(made: Made, settings: Settings) -> str | None:
    """What storage.retention will do to what was imported."""
    kept = settings.storage.retention_us
    if kept is None or made.first_us is None or datetime.now(UTC).timestamp() * 1e6 - made.first_us < kept:
        return None
    return (
        "storage.retention is set, and these rows are older: the sink will delete their samples and log "
        "(windows, evaluations, alerts and facts stay). Import into another --root to keep them"
    )


def _summary(found: detect.Found, made: Made, *, dry_run: bool, warn: str | None) -> dict[str, Any]:
    tally = made.tally
    return {
        "source": carried(str(found.path)),
        "format": found.format,
        "dry_run": dry_run,
        "runs": [{"run": run, "name": name} for run, name in made.runs.items()],
        "samples": made.samples,
        "evaluations": made.evaluations,
        "attempts": len(made.runs) + made.rewinds,
        "first": _iso(made.first_us),
        "last": _iso(made.last_us),
        "rows_added": dict(sorted(made.rows.items())),
        "already_there": made.already and not made.rows.total(),
        "windows": made.windows,
        "refused": dict(tally.refused),
        "refused_examples": [one._asdict() for one in tally.examples],
        "notes": [*tally.notes, *([warn] if warn else [])],
    }


def _iso(time_us: int | None) -> str | None:
    if time_us is None or not -(10**16) < time_us < 10**17:
        return None if time_us is None else str(time_us)
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat().replace("+00:00", "Z")


def _print(found: detect.Found, made: Made, *, dry_run: bool, warn: str | None, root: str) -> None:
    lines = [f"{found.path} ({found.format})"]
    for run, name in list(made.runs.items())[:_RUNS_SHOWN]:
        lines.append(f"  run {run}  {name}")
    if len(made.runs) > _RUNS_SHOWN:
        lines.append(f"  and {len(made.runs) - _RUNS_SHOWN:,} more runs")
    what = [f"{made.samples:,} samples"]
    if made.evaluations:
        what.append(f"{made.evaluations:,} evaluations")
    if made.rewinds:
        what.append(f"gone back to an earlier step (a new attempt each time): {made.rewinds:,}")
    when = "" if made.first_us is None else f"; {_iso(made.first_us)} to {_iso(made.last_us)}"
    lines.append(f"  {', '.join(what)}{when}")
    lines += [f"  {note}" for note in made.tally.notes]
    lines += _refused(made)
    added = made.rows.total()
    if dry_run:
        lines.append("  nothing was written (--dry-run)")
    elif made.already and not added:
        lines.append("  already there: no row was added")
    else:
        listed = ", ".join(f"{table} {count:,}" for table, count in sorted(made.rows.items()) if count)
        how = "the new part was added" if made.already else "added"
        lines.append(f"  {how} to {root}: {listed or 'no rows'}")
    if not made.windows and not dry_run:
        lines.append(
            "  without windows and alerts: pip install 'driftline[streams]' and import again, which adds them"
        )
    if warn:
        lines.append(f"  {warn}")
    print("\n".join(visible(line) for line in lines))


def _refused(made: Made) -> list[str]:
    tally = made.tally
    if not tally.refused:
        return []
    counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(tally.refused.items()))
    lines = [f"  not taken: {counts}"]
    for one in tally.examples[:10]:
        lines.append(f"    {one.part}:{one.line}: {one.reason}: {one.what}")
    if tally.refused.total() > min(10, len(tally.examples)):
        lines.append("    ... (--json lists more)")
    return lines
