"""Two runs beside each other."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Plot, line
from driftline.analysis.question import Asked, Query, Question, Rows, arguments, labels
from driftline.analysis.questions import finals
from driftline.analysis.values import quantity
from driftline.analysis.words import UNIT_OF_METRIC, interval, settings_changed, unit_of

DIFFERENCES_MAX = 6


def _queries(asked: Asked) -> dict[str, Query]:
    if asked.options.get("final"):
        return finals.queries(asked)
    first, second = asked.runs[:2]
    given = {"a": first.run, "b": second.run, "run": second.run, "metric": asked.metric, **asked.options}
    places = arguments(given, along="axis", running="running")
    judged = arguments(given, along="axis", running="running", last_part="last", better="better")
    return {
        "summary": Query(f"FROM compare_summary($a, $b, $metric{judged})", given),
        "bins": Query(f"FROM compare($a, $b, $metric{places})", given),
        "declared": Query(UNIT_OF_METRIC, given),
        "settings": Query("FROM config_diff($a, $b)", given),
    }


def _show(asked: Asked, rows: Rows) -> Answer:
    if asked.options.get("final"):
        return finals.show(asked, rows)
    metric, bins = asked.metric, rows["bins"]
    first, second = asked.runs[:2]
    title = f"{metric}: {second.spoken} against {first.spoken}"
    found = rows["summary"][0]
    unit = unit_of(metric, rows["declared"])
    if not bins:
        return Answer(
            "compare",
            title,
            empty=found["why"] or f"the runs have no common part of {metric} on this axis",
            notes=_config(rows),
        )
    axis = asked.options.get("axis") or "step"
    across = {"step": Axis("training step"), "time": Axis("time since the first point", "s")}.get(
        axis, Axis(axis + (" so far" if asked.options.get("running") else ""))
    )
    places = [row["place"] for row in bins]
    one, other = labels((first, second))
    lines = [line(name, places, [row[side] for row in bins]) for name, side in ((one, "a"), (other, "b"))]
    apart = line("difference", places, [row["difference"] for row in bins])
    charts = (
        Plot(metric, across, Axis(metric, unit), tuple(lines)),
        Plot(f"{other} minus {one}", across, Axis("difference", unit), (apart,), level=0.0),
    )
    shown = (
        table(
            "summary",
            "",
            rows["summary"],
            Column("a", one, unit=unit),
            Column("b", other, unit=unit),
            Column("difference", unit=unit),
            Column("low"),
            Column("high"),
            Column("p_value", "p", "p"),
            Column("n_effective", "independent blocks"),
            Column("verdict"),
        ),
        table(
            "bins",
            "along the axis",
            bins,
            Column("place"),
            Column("a"),
            Column("b"),
            Column("difference"),
            drawn=True,
        ),
    )
    says = (_verdict(found, other, unit, metric),)
    return Answer("compare", title, says, shown, charts, (*_notes(found), *_config(rows)))


def _verdict(found: Row, other: str, unit: str, metric: str) -> str:
    words = (found["verdict"] or "no verdict").replace("b is", f"{other} is")
    gap = interval(found["difference"], found["low"], found["high"], unit)
    return (
        f"{metric}: {words}. {quantity(found['b'], unit)} against {quantity(found['a'], unit)}, a "
        f"difference of {gap} (95 % interval), over steps {found['first_step']} to {found['last_step']}."
    )


def _notes(found: Row) -> tuple[str, ...]:
    said = [found["why"]] if found["why"] else []
    said.append(
        "the interval speaks of the noise within these two runs; what another seed would give only repeated "
        "runs tell (driftline compare --final)"
    )
    return tuple(said)


def _config(rows: Rows) -> tuple[str, ...]:
    """What differs in the configurations, in one line."""
    return (settings_changed(rows["settings"], DIFFERENCES_MAX),)


COMPARE = Question(
    "compare",
    _queries,
    _show,
    runs=(2, 2),
    metrics=(1, 1),
    timed=lambda asked: asked.options.get("axis") == "time",
)
