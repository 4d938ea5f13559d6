"""What ``driftline replay`` shows: progress while it runs, then tables, or JSON."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from driftline.events import number
from driftline.replay.proof import Compared, Proof
from driftline.storage.recorded.compare import Counts, Difference
from driftline.storage.recorded.source import Part
from driftline.visible import visible

_MAX_RUNS = 20


class Telling:
    """Counts what was replayed, and shows it on a terminal."""

    def __init__(self, bar: Progress | None, task: Any) -> None:
        self._bar, self._task = bar, task
        self._begin = time.perf_counter()
        self._samples = 0

    def __call__(self, samples: int, log_us: int) -> None:
        self._samples += samples
        if self._bar is not None:
            took = max(1e-9, self.seconds())
            rates = f"{self._samples / took:,.0f} samples/s, {log_us / 1e6 / took:,.0f} times real time"
            self._bar.update(self._task, advance=samples, rates=rates)

    def seconds(self) -> float:
        return time.perf_counter() - self._begin


@contextlib.contextmanager
def progress(parts: Sequence[Part]) -> Iterator[Telling]:
    """A progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Telling(None, None)
        return
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[rates]}"), console=console, transient=True) as bar:
        total = sum(part.samples for part in parts)
        yield Telling(bar, bar.add_task("replay", total=max(1, total), rates=""))


def printer() -> Console:
    """A console; a pipe has no width, so no table is cut there."""
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = max(console.width, 400)
    return console


def show_proof(proof: Proof, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(proof_json(proof, seconds), ensure_ascii=False))
        return
    console = printer()
    console.print(_compared(proof.compared))
    for one in proof.differences:
        console.print(Text(difference(one)))
    for name, counts in proof.differing.items():
        shown = sum(one.table == name for one in proof.differences)
        if (more := sum(counts) - shown) > 0:
            console.print(Text(f"  and {more:,} more rows of {name} ({counted(counts)} in all)"))
    for note in proof.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(speed(proof.samples, proof.records, proof.log_us, seconds)))
    console.print(Text(verdict(proof)))


def speed(samples: int, records: int, log_us: int, seconds: float) -> str:
    took = max(seconds, 1e-9)
    return (
        f"{samples:,} samples in {records:,} records, {seconds:.1f} s: {samples / took:,.0f} samples/s, "
        f"{log_us / 1e6 / took:,.0f} times real time"
    )


def verdict(proof: Proof) -> str:
    """The outcome in a sentence or three."""
    said = []
    if not proof.compared:
        said.append("Nothing is stored that could be compared.")
    elif proof.identical:
        said.append("Identical: all that is stored came out again, row by row.")
    else:
        tables = sorted({one.table for one in proof.compared if not one.identical})
        said.append(f"NOT identical: {', '.join(tables)}.")
        if not proof.notes:
            said.append(
                "The log is whole, so another build or machine type made the rows, or a plug-in that "
                "differs, or rows were changed: driftline storage check."
            )
    if proof.beyond:
        said.append(
            f"{proof.beyond} results come after the last stored one of their partition: the stream worker or "
            "the sink had not got there."
        )
    if proof.unanswered:
        said.append(
            f"{proof.unanswered} evaluations were asked for and have no result in the tables: that they were "
            "asked for is stored nowhere else, so it is not proven."
        )
    return " ".join(said)


def counted(counts: Counts) -> str:
    """How many rows differ, by how."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts._asdict().items())


def difference(one: Difference) -> str:
    """Where two sides differ first, in a line."""
    place = f"{one.table} of {one.run}, caused by offset {one.offset}: {one.what}"
    keys = ("attempt", "axis", "metric", "group", "start", "end", "rule", "state", "what", "rank", "step")
    where = ", ".join(f"{key}={one.row[key]}" for key in keys if one.row.get(key) not in (None, ""))
    values = "; ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in one.columns.items())
    return visible(f"  {place} ({where}) {values}".rstrip())


def _compared(rows: Sequence[Compared]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("table", "run", "stored", "replayed", "digest", ""):
        table.add_column(name, justify="right" if name in ("stored", "replayed") else "left")
    for one in rows[: 4 * _MAX_RUNS]:
        same = one.identical
        digest = str(one.stored) if str(one.stored) == str(one.replayed) else f"{one.stored} {one.replayed}"
        said = f"identical {one.note}".strip() if same else "DIFFERS"
        row = (one.table, visible(one.run), f"{one.stored.rows:,}", f"{one.replayed.rows:,}", digest, said)
        table.add_row(*map(Text, row), style=None if same else "bold red")
    if len(rows) > 4 * _MAX_RUNS:
        table.add_row(f"and {len(rows) - 4 * _MAX_RUNS} more: --json has all")
    return table


def proof_json(proof: Proof, seconds: float) -> dict[str, Any]:
    return {
        "identical": proof.identical,
        "samples": proof.samples,
        "records": proof.records,
        "seconds": round(seconds, 3),
        "samples_per_s": round(proof.samples / max(seconds, 1e-9)),
        "times_real_time": round(proof.log_us / 1e6 / max(seconds, 1e-9), 1),
        "tables": [
            {
                "table": one.table,
                "run": one.run,
                "stored": one.stored.rows,
                "replayed": one.replayed.rows,
                "digest_stored": str(one.stored),
                "digest_replayed": str(one.replayed),
                "identical": one.identical,
                "note": one.note,
            }
            for one in proof.compared
        ],
        "differences": [plain(one._asdict()) for one in proof.differences],
        "differing": {name: counts._asdict() for name, counts in proof.differing.items()},
        "covered": [one._asdict() for one in proof.covered],
        "notes": proof.notes,
        "beyond": proof.beyond,
        "unanswered": proof.unanswered,
    }


def plain(value: Any) -> Any:
    """As JSON can say it: non-finite numbers and times as text."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
