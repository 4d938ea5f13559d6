"""Sentences about numbers, for all questions. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from driftline import metric_names
from driftline.analysis.answer import Row
from driftline.analysis.chart import Mark
from driftline.analysis.values import quantity

SCALED = ("s", "bytes", "bytes/s", "%", "W", "°C")
"""Units that a number is scaled to, or written with in a way of their own."""
UNIT_OF_METRIC = """SELECT max_by(unit, "offset") FILTER (unit IS NOT NULL) AS unit,
    max_by(goal, "offset") FILTER (goal IS NOT NULL) AS goal,
    max_by(reduce, "offset") FILTER (reduce IS NOT NULL) AS reduce
FROM metric_definitions WHERE run = $run AND metric = $metric"""
ALERTS = """SELECT latest.* EXCLUDE (explanation),
    coalesce(said.explanation, latest.explanation) AS explanation
FROM alerts_latest AS latest LEFT JOIN (
    SELECT alert, any_value(explanation) AS explanation FROM alerts
    WHERE run = $run AND state = 'open' GROUP BY alert) AS said USING (alert)
WHERE latest.run = $run ORDER BY latest.opened, latest.alert"""
"""The alerts of a run as they stand, with what was said when they opened."""
CHECKPOINTS = """SELECT DISTINCT step FROM checkpoints WHERE run = $run AND step IS NOT NULL ORDER BY step"""


def unit_of(metric: str, declared: Sequence[Row] = ()) -> str:
    """The unit that was declared, else that of the documented names.

    >>> unit_of("gpu_utilization"), unit_of("span/forward"), unit_of("loss")
    ('%', 's', '')
    """
    for row in declared:
        if row.get("unit"):
            return str(row["unit"])
    entry = metric_names.known(metric)
    return entry.unit if entry and entry.name == metric else ""


def marks_of(
    alerts: Sequence[Row], checkpoints: Sequence[Row], metric: str | None = None
) -> tuple[Mark, ...]:
    """Alerts (of one metric, if one is named) and checkpoints on an axis of steps."""
    wanted = [a for a in alerts if a["step"] is not None and (metric is None or a["metric"] == metric)]
    wanted.sort(key=lambda alert: int(alert["step"]))
    said = [
        Mark(
            float(a["step"]),
            alert_label(a),
            "alert",
            None if a["last_step"] is None else float(a["last_step"]),
        )
        for a in wanted
    ]
    return (*said, *(Mark(float(row["step"]), "", "checkpoint") for row in checkpoints))


def alert_label(alert: Row) -> str:
    """The rule, and the rank if one is meant."""
    return str(alert["rule"]) + (f", rank {alert['rank']}" if alert["rank"] is not None else "")


def settings_changed(rows: Sequence[Row], most: int) -> str:
    """What differs in the configurations of two runs, in one line; how they were imported is none of it.

    >>> settings_changed([{"setting": "lr", "a": "0.1", "b": None}], 6)
    '1 setting differs: lr 0.1 → not set'
    """
    changed = [row for row in rows if not str(row["setting"]).startswith("import.")]
    if not changed:
        return "their settings are not known: imported" if rows else "the runs have the same configuration"
    said = [f"{row['setting']} {_set(row['a'])} → {_set(row['b'])}" for row in changed]
    return f"{count(len(changed), 'setting differs', 'settings differ')}: {listed(said, most)}"


def _set(value: str | None) -> str:
    return "not set" if value is None else value


def count(number: int, one: str, many: str = "") -> str:
    """
    >>> count(1, "rank"), count(2, "rank"), count(1200, "eval"), count(2, "is NaN", "are NaN")
    ('1 rank', '2 ranks', '1,200 evals', '2 are NaN')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(["a", "b"]), listed(list("abcdefghij"), 3)
    ('a, b and c', 'a and b', 'a, b, c and 7 more')
    """
    if len(names) > most:
        return ", ".join(names[:most]) + f" and {len(names) - most} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def interval(value: Any, low: Any, high: Any, unit: str = "") -> str:
    """A value with its interval, if it has one.

    >>> interval(0.5, 0.4, 0.6, "share"), interval(0.5, None, None, "s"), interval(3, 2, 4, "tokens")
    ('0.5 [0.4, 0.6]', '500 ms', '3 [2, 4] tokens')
    """
    if value is None:
        return "unknown"
    unit = "" if unit == "share" else unit
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return quantity(value, unit)
    if unit in SCALED:
        return f"{quantity(value, unit)} [{quantity(low, unit)}, {quantity(high, unit)}]"
    inside = f"{quantity(value)} [{quantity(low)}, {quantity(high)}]"
    return f"{inside} {unit}" if unit not in ("", "fraction") else inside
