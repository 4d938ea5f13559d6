"""A metric over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Plot, line
from driftline.analysis.question import Asked, Query, Question, Rows, arguments
from driftline.analysis.questions import spread
from driftline.analysis.values import quantity
from driftline.analysis.words import ALERTS, CHECKPOINTS, UNIT_OF_METRIC, count, marks_of, unit_of

POINTS = 1000
"""Points of a curve, if nobody says how many."""
_COUNTED = """SELECT count(*) AS samples, count(*) FILTER (isnan(value)) AS nan,
    count(*) FILTER (isinf(value)) AS inf FROM samples WHERE run = $run AND metric = $metric"""


def _queries(asked: Asked) -> dict[str, Query]:
    if asked.options.get("ranks"):
        return spread.queries(asked)
    given = {
        "run": asked.run.run,
        "metric": asked.metric,
        "smooth": asked.options.get("smooth") or None,
        "points": POINTS if asked.options.get("points") is None else asked.options["points"],
    }
    options = arguments(given, smooth="smooth", points="points")
    return {
        "points": Query(f"FROM curve($run, $metric{options})", given),
        "counted": Query(_COUNTED, given),
        "declared": Query(UNIT_OF_METRIC, given),
        "alerts": Query(ALERTS, given),
        "checkpoints": Query(CHECKPOINTS, given),
    }


def _show(asked: Asked, rows: Rows) -> Answer:
    if asked.options.get("ranks"):
        return spread.show(asked, rows)
    points, metric = rows["points"], asked.metric
    unit = unit_of(metric, rows["declared"])
    title = f"{metric} of {asked.run.spoken}"
    if not points:
        return Answer(
            "curve",
            title,
            empty=f"{metric} was logged without a step: run.log({{...}}, step=step) gives a curve over "
            "steps; `trends` has it over time",
        )
    steps = [row["step"] for row in points]
    reduce = rows["declared"][0]["reduce"] if rows["declared"] else None
    ranked = any(row["n"] > 1 for row in points) and reduce in (None, "mean")
    low, high = ([row[side] for row in points] if ranked else None for side in ("low", "high"))
    smooth = bool(asked.options.get("smooth"))
    name = "mean; band: lowest to highest rank" if ranked else f"{reduce} over ranks" if reduce else metric
    lines = [line(name, steps, [row["value"] for row in points], low, high, faint=smooth)]
    if smooth:
        lines.append(line("smoothed", steps, [row["smoothed"] for row in points]))
    chart = Plot(
        metric,
        Axis("training step"),
        Axis(metric, unit, "log" if asked.options.get("log") else "linear"),
        tuple(lines),
        marks_of(rows["alerts"], rows["checkpoints"], metric),
    )
    shown = table(
        "points",
        "the points",
        points,
        Column("step"),
        Column("value", unit=unit),
        Column("smoothed", unit=unit),
        Column("low", "lowest rank"),
        Column("high", "highest rank"),
        Column("n", "samples"),
        Column("nan", "NaN"),
        drawn=True,
    )
    return Answer(
        "curve",
        title,
        _says(metric, unit, points, _goal(rows)),
        (shown,),
        (chart,),
        _notes(points, rows["counted"][0]),
    )


def _goal(rows: Rows) -> str | None:
    return next((row["goal"] for row in rows["declared"] if row["goal"]), None)


def _says(metric: str, unit: str, points: Sequence[Row], goal: str | None) -> tuple[str, ...]:
    finite = [row for row in points if math.isfinite(row["value"])]
    if not finite:
        return (f"No value of {metric} is a finite number.",)
    first, last = finite[0], finite[-1]
    least, most = min(finite, key=lambda r: r["value"]), max(finite, key=lambda r: r["value"])
    said = [
        f"{metric} is {quantity(last['value'], unit)} at step {last['step']}, from "
        f"{quantity(first['value'], unit)} at step {first['step']}."
    ]
    if goal:
        best = most if goal == "max" else least
        said.append(f"Best ({goal}): {quantity(best['value'], unit)} at step {best['step']}.")
    else:
        said.append(
            f"Lowest: {quantity(least['value'], unit)} at step {least['step']}; highest: "
            f"{quantity(most['value'], unit)} at step {most['step']}."
        )
    return tuple(said)


def _notes(points: Sequence[Row], counted: Row) -> tuple[str, ...]:
    notes = []
    if counted["nan"] or counted["inf"]:
        notes.append(
            f"of {count(counted['samples'], 'sample')} {counted['nan']:,} are NaN and "
            f"{counted['inf']:,} infinite"
        )
    steps = max(row["bucket_points"] for row in points)
    if steps > 1:
        notes.append(
            f"thinned to {len(points):,} points of up to {steps:,} steps each, extremes kept; --points 0 has "
            "all"
        )
    attempts = {row["attempt"] for row in points}
    if len(attempts) > 1:
        notes.append(f"points of {len(attempts)} attempts: of each step the newest")
    return tuple(notes)


CURVE = Question("curve", _queries, _show, metrics=(1, 1))
