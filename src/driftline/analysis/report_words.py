"""What a report says in words: the verdict, key figures, differences of configurations. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from driftline.analysis.answer import Answer, Row
from driftline.analysis.question import Run
from driftline.analysis.values import duration, quantity
from driftline.analysis.words import alert_label, count, listed

KEYS_MAX = 200
VALUE_MAX = 200
SENTENCES_MAX = 3


class Told(NamedTuple):
    """What is known of one run."""

    run: Run
    summary: Row
    curves: Sequence[Answer]
    answers: Mapping[str, Answer]
    alerts: Sequence[Row]
    timeless: bool = False
    """Imported without times: nothing is said of how long it took."""

    @property
    def subtitle(self) -> str:
        """One line below the title."""
        if self.timeless:
            return f"Run {self.run.run}, imported without times"
        started = self.summary["started"]
        when = f"started {started:%Y-%m-%d %H:%M:%S} UTC" if started else "start not known"
        attempts = self.summary["attempts"]
        again = f", {attempts} attempts" if attempts > 1 else ""
        return f"Run {self.run.run}, {when}{again}"


def headline(runs: Sequence[Run]) -> str:
    """The title of the page."""
    names = [run.name or run.run for run in runs]
    if len(names) == 1:
        return names[0]
    return f"{len(runs)} runs of {names[0]}" if len(set(names)) == 1 else " against ".join(names)


def verdict(told: Told, *, short: bool = False) -> list[tuple[str, bool]]:
    """Sentences, the most important first, and whether each is bad news; ``short`` leaves out the machine."""
    said = [_outcome(told.summary, timeless=told.timeless)]
    for curve in told.curves[:1]:
        said += [(sentence, False) for sentence in curve.says]
        said += [(note[0].upper() + note[1:] + ".", True) for note in curve.notes if "NaN" in note]
    for name in ("evals", "goodput") if short else ("evals", "goodput", "steps", "ranks", "utilisation"):
        given = told.answers.get(name)
        if given is not None and given.says:
            said.append((given.says[0], False))
    return [*said, _alarm(told.alerts)]


def _outcome(row: Row, *, timeless: bool) -> tuple[str, bool]:
    took = f" after {duration(row['seconds'])}" if row["seconds"] is not None and not timeless else ""
    far = f"at step {row['last_step']:,}" if row["last_step"] is not None else "without a step"
    on = f" on {count(row['ranks'], 'rank')}" if row["ranks"] else ""
    words = {
        "finished": ("Finished", False),
        "exception": ("Ended by an exception", True),
        "signal": ("Ended by a signal", True),
        "lost": ("Lost: its processes fell silent", True),
    }
    start, bad = words.get(row["outcome"] or "", ("Still running, or ended without a word", False))
    return f"{start}{took}, {far}{on}.", bad


def _alarm(alerts: Sequence[Row]) -> tuple[str, bool]:
    if not alerts:
        return "No alert.", False
    still = [row for row in alerts if row["state"] != "resolved"]
    names = listed([_with_steps(row) for row in (still or list(alerts))[:6]], 5)
    if still:
        return f"{count(len(still), 'alert is', 'alerts are')} open of {len(alerts)}: {names}.", True
    return f"{count(len(alerts), 'alert')}, all resolved: {names}.", False


def _with_steps(row: Row) -> str:
    if row["step"] is None:
        return alert_label(row)
    last = row["last_step"]
    steps = f"step {row['step']}" if last in (None, row["step"]) else f"steps {row['step']}-{last}"
    return f"{alert_label(row)} ({steps})"


def numbers(told: Told) -> list[tuple[str, str]]:
    """Key figures: a number as text, and what it is."""
    row = told.summary
    boxes = []
    for curve in told.curves[:2]:
        last = next((r for t in curve.tables for r in reversed(t.rows) if r["value"] == r["value"]), None)
        if last is not None:
            boxes.append(
                (quantity(last["value"]), f"{curve.title.partition(' of ')[0]} at step {last['step']}")
            )
    scores = told.answers.get("evals")
    for given in (t for t in scores.tables if t.name == "scores") if scores else ():
        first = given.rows[0]
        of_it = [r for r in given.rows if (r["suite"], r["metric"]) == (first["suite"], first["metric"])]
        newest = of_it[-1]
        boxes.append(
            (quantity(newest["value"]), f"{newest['metric']}, {newest['suite']}, step {newest['step']}")
        )
        break
    if row["last_step"] is not None:
        ranks = f", {count(row['ranks'], 'rank')}" if row["ranks"] else ""
        known = row["seconds"] is not None and not told.timeless
        took = f", {duration(row['seconds'])}" if known else ""
        boxes.append((f"{row['last_step']:,}", f"last step{took}{ranks}"))
    boxes.append((f"{row['checkpoints']:,}", f"checkpoints, {count(row['evaluations'], 'evaluation')}"))
    boxes.append((f"{row['alerts']:,}", f"alerts, {row['alerts_open']} open"))
    return boxes


def flat(config: str | None) -> dict[str, str]:
    """A configuration as dotted keys and short values; broken JSON is one value."""
    if not config:
        return {}
    try:
        whole = json.loads(config)
    except ValueError:
        return {"config": config[:VALUE_MAX]}
    found: dict[str, str] = {}
    _flatten(whole, "", found)
    return dict(sorted(found.items()))


def _flatten(value: Any, key: str, found: dict[str, str]) -> None:
    if isinstance(value, dict) and value and len(found) < KEYS_MAX:
        for name, inner in value.items():
            _flatten(inner, f"{key}.{name}" if key else str(name), found)
    elif len(found) < KEYS_MAX and key:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found[key] = text[:VALUE_MAX]


def difference(settings: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Keys whose values are not the same in all, with the value of each (empty where there is none).

    >>> difference([{"lr": "0.1", "seed": "1"}, {"lr": "0.2", "seed": "1", "new": "x"}])
    [('lr', '0.1', '0.2'), ('new', '', 'x')]
    """
    keys = sorted({key for each in settings for key in each})
    rows = [(key, *(each.get(key, "") for each in settings)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]
