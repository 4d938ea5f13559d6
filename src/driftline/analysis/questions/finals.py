"""Two groups of repeated runs by their last values: knows how much runs differ by seed alone."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Plot, line
from driftline.analysis.question import Asked, Query, Rows
from driftline.analysis.values import quantity
from driftline.analysis.words import UNIT_OF_METRIC, count, interval, listed, unit_of

SAMPLE_MAX = 1000
"""Runs of a group whose last values are listed and drawn."""


def queries(asked: Asked) -> dict[str, Query]:
    """Welch's test, and the last value of each run."""
    groups = [_group(asked, at, name) for at, name in enumerate(("first", "second"))]
    given = {
        "first": groups[0],
        "second": groups[1],
        "run": asked.runs[1].run,
        "metric": asked.metric,
        "points": asked.options.get("last_points") or 1,
        "most": SAMPLE_MAX,
    }
    each = " UNION ALL ".join(
        f"(SELECT '{side}' AS side, f.* "
        f"FROM finals(${name}, $metric, last_points := $points) AS f LIMIT $most)"
        for side, name in (("a", "first"), ("b", "second"))
    )
    return {
        "found": Query("FROM compare_final($first, $second, $metric, last_points := $points)", given),
        "each": Query(f"SELECT * FROM ({each}) ORDER BY side, run", given),
        "declared": Query(UNIT_OF_METRIC, given),
    }


def _group(asked: Asked, at: int, name: str) -> list[str]:
    """A name stands for all its runs, an id for itself; runs that nobody named are meant by id."""
    run = asked.runs[at].run
    return [asked.named.get(run, run), *(asked.options.get(name) or ())]


def show(asked: Asked, rows: Rows) -> Answer:
    metric, found, each = asked.metric, rows["found"][0], rows["each"]
    names = [listed(_group(asked, at, name), 3) for at, name in enumerate(("first", "second"))]
    title = f"Last {metric}: runs of {names[1]} against runs of {names[0]}"
    unit = unit_of(metric, rows["declared"])
    if not each:
        return Answer("compare", title, empty=f"no run of either group has a point of {metric}")
    of_side = {side: [row for row in each if row["side"] == side] for side in "ab"}
    lines = [
        line(name, range(1, len(of) + 1), [row["value"] for row in of], form="points")
        for name, of in zip(names, of_side.values(), strict=True)
        if of
    ]
    chart = Plot(f"last {metric} of each run", Axis("run of the group"), Axis(metric, unit), tuple(lines))
    shown = (
        table(
            "summary",
            "",
            rows["found"],
            Column("n_a", f"runs, {names[0]}", "count"),
            Column("n_b", f"runs, {names[1]}", "count"),
            Column("mean_a", "mean", unit=unit),
            Column("mean_b", "mean", unit=unit),
            Column("std_a", "between runs", unit=unit),
            Column("std_b", "between runs", unit=unit),
            Column("difference", unit=unit),
            Column("low"),
            Column("high"),
            Column("p_value", "p", "p"),
            Column("detectable", unit=unit),
            Column("verdict"),
        ),
        table(
            "runs",
            "the runs",
            each,
            Column("side", "group"),
            Column("run"),
            Column("step", "last step"),
            Column("value", unit=unit),
            Column("n", "mean of points"),
            drawn=True,
        ),
    )
    return Answer("compare", title, tuple(_says(found, names, unit, metric)), shown, (chart,), _notes(found))


def _says(found: Row, names: list[str], unit: str, metric: str) -> list[str]:
    many = f"{count(found['n_b'], 'run')} of {names[1]} against {count(found['n_a'], 'run')} of {names[0]}"
    if found["verdict"] is None:
        return [f"{metric}: no verdict on {many}: {found['why']}."]
    gap = interval(found["difference"], found["low"], found["high"], unit)
    verdict = found["verdict"].replace("b is", f"{names[1]} is")
    said = [f"{metric}: {verdict}. {many}: a difference of {gap} (95 % interval, Welch)."]
    if found["verdict"] == "no difference shown":
        said.append(
            f"So many runs would show a difference of {quantity(found['detectable'], unit)} four times of "
            "five."
        )
    return said


def _notes(found: Row) -> tuple[str, ...]:
    if found["why"] and found["verdict"] is not None:
        return (found["why"],)
    return ()
