"""What ``driftline replay --config`` shows: the difference that another configuration makes."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from driftline.cli.replay_view import plain, printer, speed
from driftline.replay.backtest import Backtest, Trigger
from driftline.replay.episodes import Episode, Moved
from driftline.replay.labels import Score
from driftline.visible import visible

SHOWN = 20
COLUMNS = (
    "what",
    "change",
    "run",
    "attempt",
    "name",
    "metric",
    "rank",
    "step",
    "time",
    "steps_later",
    "seconds_later",
    "text",
)


def show(found: Backtest, seconds: float, *, form: str) -> None:
    if form == "json":
        print(json.dumps(as_json(found, seconds), ensure_ascii=False))
    elif form == "csv":
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows(_rows(found))
    else:
        _print(found, seconds)


def _print(found: Backtest, seconds: float) -> None:
    console = printer()
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("", "same", "changed or moved", "gained", "lost"):
        table.add_column(name, justify="right" if name else "left")
    alerts = found.alerts
    table.add_row(
        "alerts", *map(_count, (alerts.same, len(alerts.moved), len(alerts.gained), len(alerts.lost)))
    )
    counts = (found.triggers_same, 0, len(found.triggers_gained), len(found.triggers_lost))
    table.add_row("evaluations asked for", *map(_count, counts))
    for one in found.windows:
        name = f"windows, {one.axis} {_size(one.axis, one.size)}"
        table.add_row(name, *map(_count, (one.same, one.changed, one.gained, one.lost)))
    console.print(table)
    rows = list(_rows(found))
    for row in rows[:SHOWN]:
        console.print(Text(visible(_line(dict(zip(COLUMNS, row, strict=True))))))
    if len(rows) > SHOWN:
        console.print(Text(f"  and {len(rows) - SHOWN} more: --csv or --json has all"))
    for one in found.windows:
        if one.changed:
            console.print(
                Text(visible(f"  windows, {one.axis} {_size(one.axis, one.size)}: e.g. {one.example}"))
            )
    if found.scores_after:
        console.print(_scores(found.scores_before, found.scores_after))
        for what, some in (("missed", found.missed), ("outside of what was replayed", found.outside)):
            for incident in some[:SHOWN]:
                console.print(Text(visible(f"  {what}: {_incident(incident)}")))
            if len(some) > SHOWN:
                console.print(Text(f"  and {len(some) - SHOWN} more: --json has all"))
    if found.no_difference:
        console.print("No difference: the other configuration says the same of this log.")
    for note in found.notes:
        console.print(Text(f"note: {note}"))
    console.print(Text(speed(found.samples, found.records, found.log_us, seconds)))


def _count(number: int) -> str:
    return f"{number:,}"


def _size(axis: str, size: int | None) -> str:
    if size is None:
        return "whole run"
    return f"{size / 1e6:g} s" if axis == "time" else str(size)


def _line(row: dict[str, Any]) -> str:
    parts = [f"{row['what']} {row['change']}: {row['name']} of {row['run']}"]
    parts += [
        f"{name} {row[name]}" for name in ("attempt", "metric", "rank", "step") if row[name] not in ("", None)
    ]
    if row["change"] == "moved":
        steps = "" if row["steps_later"] in ("", None) else f"{row['steps_later']:+} steps, "
        parts.append(f"{steps}{row['seconds_later']:+g} s")
    return "  " + ", ".join(parts) + (f": {row['text']}" if row["text"] else "")


def _rows(found: Backtest) -> Iterator[tuple[Any, ...]]:
    for moved in found.alerts.moved:
        yield _episode("moved", moved.after, moved)
    for change, some in (("gained", found.alerts.gained), ("lost", found.alerts.lost)):
        for episode in some:
            yield _episode(change, episode)
    for change, asked in (("gained", found.triggers_gained), ("lost", found.triggers_lost)):
        for trigger in asked:
            yield _trigger(change, trigger)


def _episode(change: str, one: Episode, moved: Moved | None = None) -> tuple[Any, ...]:
    return (
        *(
            "alert",
            change,
            one.run,
            one.attempt,
            one.rule,
            one.metric,
            one.rank,
            one.step,
            time(one.opened_us),
        ),
        *(("", "") if moved is None else (moved.steps, moved.seconds)),
        one.explanation,
    )


def _trigger(change: str, one: Trigger) -> tuple[Any, ...]:
    text = f"checkpoint {one.checkpoint}, because of {one.reason}"
    return (
        "evaluation",
        change,
        one.run,
        one.attempt,
        one.suite,
        "",
        "",
        one.step,
        time(one.time_us),
        "",
        "",
        text,
    )


def time(us: int) -> str:
    """As ISO 8601 in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return moment.isoformat(timespec="milliseconds")


def _scores(before: Sequence[Score], after: Sequence[Score]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("rule")
    unjudged = any(one.unjudged for one in (*before, *after))
    columns = ["configuration", "alerts", "right", "precision", "recall", "lead", "delay"]
    for name in [*columns, *(["not judged"] if unjudged else [])]:
        table.add_column(name, justify="right")
    for old, new in zip(before, after, strict=True):
        for side, one in (("own", old), ("other", new)):
            table.add_row(
                Text(visible(one.rule)),
                *(side, _count(one.alerts), _count(one.right)),
                *(_share(one.precision), _share(one.recall)),
                *(_span(one.lead_steps, one.lead_seconds), _span(one.delay_steps, one.delay_seconds)),
                *([_count(one.unjudged)] if unjudged else []),
            )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _span(steps: float | None, seconds: float | None) -> str:
    said = [f"{steps:g} steps"] if steps is not None else []
    return ", ".join([*said, *([f"{seconds:g} s"] if seconds is not None else [])]) or "-"


def _incident(one: Any) -> str:
    given = {name: value for name, value in one._asdict().items() if value not in (None, "")}
    return ", ".join(f"{name} {value}" for name, value in given.items())


def as_json(found: Backtest, seconds: float) -> dict[str, Any]:
    return {
        "alerts": {
            "same": found.alerts.same,
            "moved": len(found.alerts.moved),
            "gained": len(found.alerts.gained),
            "lost": len(found.alerts.lost),
        },
        "evaluations": {
            "same": found.triggers_same,
            "gained": len(found.triggers_gained),
            "lost": len(found.triggers_lost),
        },
        "windows": [one._asdict() for one in found.windows],
        "changes": [plain(dict(zip(COLUMNS, row, strict=True))) for row in _rows(found)],
        "scores": {
            "own": [_score(one) for one in found.scores_before],
            "other": [_score(one) for one in found.scores_after],
        },
        "missed": [one._asdict() for one in found.missed],
        "outside": [one._asdict() for one in found.outside],
        "no_difference": found.no_difference,
        "notes": found.notes,
        "samples": found.samples,
        "seconds": round(seconds, 3),
    }


def _score(one: Score) -> dict[str, Any]:
    return {**one._asdict(), "precision": one.precision, "recall": one.recall}
