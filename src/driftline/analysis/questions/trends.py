"""Where a metric is going."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Line, Plot, line
from driftline.analysis.question import Asked, Query, Question, Rows, arguments
from driftline.analysis.questions.curves import POINTS
from driftline.analysis.values import duration, quantity
from driftline.analysis.words import UNIT_OF_METRIC, count, interval, unit_of

VERDICTS = {"fallen": "fallen from its best, level now"}
"""Verdicts of the SQL that need more words."""


def _queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, "metric": asked.metric, "points": POINTS, **asked.options}
    options = arguments(given, over_steps="over", horizon="ahead", target="target", better="better")
    return {
        "trend": Query(f"FROM trend($run, $metric{options})", given),
        "points": Query("FROM curve($run, $metric, points := $points)", given),
        "declared": Query(UNIT_OF_METRIC, given),
    }


def _show(asked: Asked, rows: Rows) -> Answer:
    metric, unit = asked.metric, unit_of(asked.metric, rows["declared"])
    title = f"Trend of {metric} of {asked.run.spoken}"
    if not rows["trend"]:
        return Answer("trend", title, empty=f"{metric} has no point with a step: run.log({{...}}, step=step)")
    found = rows["trend"][0]
    lines = [
        line(metric, [r["step"] for r in rows["points"]], [r["value"] for r in rows["points"]], faint=True)
    ]
    lines += _lines(found)
    target = asked.options.get("target")
    chart = Plot(
        f"{metric} and its trend", Axis("training step"), Axis(metric, unit), tuple(lines), level=target
    )
    shown = table(
        "trend",
        "",
        rows["trend"],
        Column("from_step"),
        Column("until_step"),
        Column("n", "points", "count"),
        Column("slope", "slope per step"),
        Column("low"),
        Column("high"),
        Column("level"),
        Column("noise"),
        Column("forecast_step"),
        Column("forecast"),
        Column("plateau_since"),
        Column("best", unit=unit),
        Column("best_step", "best at step"),
        Column("last", unit=unit),
        Column("fallen", "level below its best", unit=unit),
        Column("fallen_in_se", "in standard errors"),
        Column("verdict"),
        drawn=True,
    )
    return Answer("trend", title, tuple(_says(asked, found, unit)), (shown,), (chart,), _notes(found))


def _lines(found: Row) -> list[Line]:
    if found["slope"] is None or found["level"] is None:
        return []
    first, last = found["from_step"], found["until_step"]
    lines = [line("trend", [first, last], [found["level"] - found["slope"] * (last - first), found["level"]])]
    if found["forecast"] is not None:
        ahead = [last, found["forecast_step"]]
        sides = ([found["level"], found[side]] for side in ("forecast_low", "forecast_high"))
        lines.append(line("forecast, 95 % interval", ahead, [found["level"], found["forecast"]], *sides))
    return lines


def _says(asked: Asked, found: Row, unit: str) -> list[str]:
    metric = asked.metric
    where = f"over steps {found['from_step']} to {found['until_step']} ({count(found['n'], 'point')})"
    verdict = VERDICTS.get(found["verdict"], found["verdict"]) or "no verdict"
    says = [f"{metric}: {verdict} {where}; better is {found['direction']}."]
    says += _best(found, unit)
    if found["slope"] is not None:
        slope = interval(found["slope"] * 1000, _thousand(found["low"]), _thousand(found["high"]), unit)
        says.append(f"Slope: {slope} per 1,000 steps (95 % interval).")
    if found["forecast"] is not None:
        expected = interval(found["forecast"], found["forecast_low"], found["forecast_high"], unit)
        says.append(f"If it goes on like this, {expected} at step {found['forecast_step']}.")
    target = asked.options.get("target")
    if target is not None:
        says.append(_target(found, target, unit))
    if found["plateau_since"] is not None:
        says.append(f"No improvement beyond noise since step {found['plateau_since']}.")
    return says


def _best(found: Row, unit: str) -> list[str]:
    """The best value, and whether the curve has fallen from its best level: one value may be luck."""
    if found["best"] is None:
        return []
    if found["best"] == found["last"]:
        return [f"Best: {quantity(found['best'], unit)} at step {found['best_step']}, and so is the last."]
    said = [
        f"Best: {quantity(found['best'], unit)} at step {found['best_step']}; the last is "
        f"{quantity(found['last'], unit)}, {quantity(abs(found['last'] - found['best']), unit)} worse."
    ]
    if found["fallen"] is None:
        return said
    beyond = f"({found['fallen_in_se']:.1f} standard errors)" if found["fallen_in_se"] < 1e6 else "(no noise)"
    if found["fallen_since"] is not None:
        said.append(
            f"Its level is {quantity(found['fallen'], unit)} {beyond} worse than its best level, which began "
            f"about step {found['fallen_since']}: the newest checkpoint is not the best one."
        )
    elif found["fallen"] <= 0:
        said.append("Its level now is its best so far.")
    else:
        said.append(f"Its level has not fallen from its best one beyond noise {beyond}.")
    return said


def _thousand(value: float | None) -> float | None:
    return None if value is None else value * 1000


def _target(found: Row, target: float, unit: str) -> str:
    if found["target_step"] is None:
        return f"{quantity(target, unit)} is not reached on this line, or is reached already."
    latest = f"step {found['target_high']:.0f}" if found["target_high"] is not None else "never"
    soonest = f"step {found['target_low']:.0f}" if found["target_low"] is not None else "unknown"
    time = found["target_seconds"]
    left = f", in about {duration(time)}" if time is not None else ""
    step = f"step {found['target_step']:.0f}"
    return f"{quantity(target, unit)} would be reached at {step} (soonest {soonest}, latest {latest}){left}."


def _notes(found: Row) -> tuple[str, ...]:
    notes = [found["why"]] if found["why"] else []
    if found["left_out"]:
        notes.append(f"{count(found['left_out'], 'point is', 'points are')} NaN or infinite and left out")
    if found["curved"]:
        notes.append("the two halves of the window differ in slope: the forecast allows for it")
    return tuple(notes)


TREND = Question(
    "trend", _queries, _show, metrics=(1, 1), timed=lambda asked: asked.options.get("target") is not None
)
