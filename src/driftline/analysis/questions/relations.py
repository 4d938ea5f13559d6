"""Which metrics move together, and which moved before a change."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import NAN, Axis, Bars, Heat, Mark, Part, Plot, line
from driftline.analysis.question import Asked, Query, Question, Rows, arguments
from driftline.analysis.questions.curves import POINTS
from driftline.analysis.words import count, listed

NAMED_MAX = 5
FIELD_MAX = 16
"""Metrics of a heat map of all pairs."""


def _pair_queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, "metric": next(iter(asked.metrics), None), **asked.options}
    options = arguments(given, of_metric="metric", max_lag="lag", since_step="since", until_step="until")
    one = ""
    if len(asked.metrics) > 1:
        given["other"] = asked.metrics[1]
        one = " WHERE $other IN (metric_a, metric_b)"
    return {"pairs": Query(f"FROM correlate($run{options}){one}", given)}


def _show_pairs(asked: Asked, rows: Rows) -> Answer:
    pairs = rows["pairs"]
    title = f"What moves together in {asked.run.spoken}"
    if not pairs:
        return Answer(
            "correlate", title, empty="fewer than two metrics with steps to compare: log more with step=step"
        )
    related = [row for row in pairs if row["verdict"] == "related"]
    drifting = [row for row in pairs if row["verdict"] == "drift only"]
    says = [
        f"Of {count(len(pairs), 'pair')} {count(len(related), 'is related', 'are related')} beyond chance"
        + (": " + listed([_pair(row) for row in related[:NAMED_MAX]]) if related else "")
        + "."
    ]
    if drifting:
        says.append(
            f"{count(len(drifting), 'pair only drifts', 'pairs only drift')} together: their levels agree, "
            "their changes do not, as of any two curves that go somewhere."
        )
    out = pairs[0]["metrics_left_out"]
    notes = (
        (f"{count(out, 'metric was', 'metrics were')} not looked at: name one of them first",) if out else ()
    )
    shown = table(
        "pairs",
        "pairs, the surest first",
        pairs,
        Column("metric_a", "metric"),
        Column("metric_b", "and"),
        Column("lag"),
        Column("change_correlation", "changes"),
        Column("pearson", "levels"),
        Column("n_effective", "worth"),
        Column("q_value", "q", "p"),
        Column("verdict"),
        Column("why"),
    )
    return Answer("correlate", title, tuple(says), (shown,), _pair_charts(asked, pairs), notes)


def _pair(row: Row) -> str:
    lag = row["lag"]
    when = f", {abs(lag)} steps {'later' if lag > 0 else 'earlier'}" if lag else ""
    return f"{row['metric_a']} and {row['metric_b']} ({row['change_correlation']:+.2f}{when})"


def _pair_charts(asked: Asked, pairs: Sequence[Row]) -> tuple[Bars | Heat, ...]:
    known = [row for row in pairs if row["change_correlation"] is not None]
    if asked.metrics:
        first = asked.metrics[0]
        chosen = known[:FIELD_MAX]
        names = tuple(row["metric_b"] if row["metric_a"] == first else row["metric_a"] for row in chosen)
        values = tuple(float(row["change_correlation"]) for row in chosen)
        axis = Axis("correlation of changes")
        return (Bars(f"{first} with others", axis, names, (Part("correlation", values),)),) if chosen else ()
    names = tuple(dict.fromkeys(name for row in known for name in (row["metric_a"], row["metric_b"])))[
        :FIELD_MAX
    ]
    if len(names) < 3:
        return ()
    found = {frozenset((row["metric_a"], row["metric_b"])): float(row["change_correlation"]) for row in known}
    cells = tuple(tuple(found.get(frozenset((one, other)), NAN) for other in names) for one in names)
    field = Heat(
        "All pairs", Axis("metric"), Axis("metric"), Axis("correlation of changes"), names, names, cells, 0.0
    )
    return (field,)


def _driver_queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, "metric": asked.metric, "points": POINTS, **asked.options}
    options = arguments(given, at_step="at", look_back="back")
    return {
        "drivers": Query(f"FROM drivers($run, $metric{options})", given),
        "points": Query("FROM curve($run, $metric, points := $points)", given),
    }


def _show_drivers(asked: Asked, rows: Rows) -> Answer:
    moved, metric = rows["drivers"], asked.metric
    title = f"What moved before {metric} of {asked.run.spoken}"
    if not moved:
        at = asked.options.get("at")
        where, remedy = ("", "--at STEP") if at is None else (f" around step {at}", "another --at")
        lacking = f"{metric} has too few points{where} for a change: log it at more steps, or {remedy}"
        return Answer("drivers", title, empty=lacking)
    change, itself = moved[0]["change_step"], moved[0]
    moved = [row for row in moved if row["metric"] != metric]
    before = [row for row in moved if row["verdict"] == "moved before"]
    says = [f"{metric} changed at step {change}, where its level changed most."]
    if asked.options.get("at") is not None:
        says = [f"Looked at is {metric} at step {change}."]
    elif itself["verdict"] == "did not move":
        says = [
            f"{metric} has no sudden change after its start; its level changed most about step {change}, and "
            "no more than by chance."
        ]
    elif itself["verdict"] == "too few points":
        says[0] = (
            f"{metric} changed most about step {change}; it has too few points before it to call it sudden."
        )
    if before:
        named = [f"{row['metric']} ({count(row['lead'], 'step')} before)" for row in before[:NAMED_MAX]]
        says.append(f"Off their course before it: {listed(named)}.")
    elif not moved:
        says.append("No other metric was logged around it.")
    elif all(row["verdict"] == "too few points" for row in moved):
        says.append(
            "No metric has enough points before it to know its course: --back STEPS, or a later step."
        )
    else:
        says.append("No other metric left its course before it.")
    along = [row["metric"] for row in moved if row["verdict"] == "moved with it"]
    if along:
        says.append(f"With it moved {listed(along, NAMED_MAX)}.")
    same = [row["metric"] for row in moved if row["verdict"] in ("a copy of it", "a function of it")]
    if same:
        says.append(f"The same in other words, so no drivers: {listed(same, NAMED_MAX)}.")
    marks = [
        Mark(
            float(change), "the change" if itself["verdict"] == "the change itself" else "looked at", "alert"
        )
    ]
    marks += [
        Mark(float(row["moved_step"]), row["metric"])
        for row in before[:NAMED_MAX]
        if row["moved_step"] is not None
    ]
    steps, values = ([row[key] for row in rows["points"]] for key in ("step", "value"))
    chart = Plot(metric, Axis("training step"), Axis(metric), (line(metric, steps, values),), tuple(marks))
    told = table(
        "drivers",
        "metrics around the change",
        moved,
        Column("metric"),
        Column("verdict"),
        Column("moved_step", "moved at step"),
        Column("lead", "steps before"),
        Column("sigmas"),
        Column("value"),
        Column("expected"),
    )
    notes = ("what moved before need not be the cause: it is where to look first",) if before else ()
    sql = Query(
        f"{_driver_queries(asked)['drivers'].sql} WHERE metric <> $metric",
        {**asked.options, "run": asked.run.run, "metric": metric},
    )
    return Answer("drivers", title, tuple(says), (told,), (chart,), notes, sql=(sql.literal,))


CORRELATE = Question("correlate", _pair_queries, _show_pairs, metrics=(0, 2))
DRIVERS = Question("drivers", _driver_queries, _show_drivers, metrics=(1, 1))
