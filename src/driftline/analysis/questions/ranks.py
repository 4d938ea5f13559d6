"""Ranks against each other, and what a step is made of."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import NAN, Axis, Bars, Heat, Part
from driftline.analysis.question import Asked, Query, Question, Rows, arguments
from driftline.analysis.values import duration, share, shown
from driftline.analysis.words import ALERTS, count, listed, unit_of
from driftline.metric_names import SPAN_PREFIX

_NO_SPANS = (
    'no spans: `with run.span("forward", step=step): ...` around the parts of a step tells what takes its '
    "time"
)
_SLOW = ("slow rank", "slow ranks", "slow rank at times")
WORK = "(work)"
OVERLAP_MIN = 0.01
"""Of the time of the steps: from there on it is said that they overlap."""
ALERTS_TOLD = 3
PARTS_MAX = 8
"""Parts of a step in a sentence: the largest."""


def _metric(asked: Asked) -> str | None:
    return asked.metrics[0] if asked.metrics else None


def _rank_queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, "metric": _metric(asked)}
    named = arguments(given, of_metric="metric")
    return {
        "skew": Query(f"FROM rank_skew($run{named})", given),
        "alerts": Query(f"SELECT * FROM ({ALERTS}) WHERE detector = 'slow_rank'", given),
    }


def _worst(asked: Asked, rows: Rows) -> str | None:
    """The metric to look at closely: the one named, else that of a slow rank, else the work as a whole."""
    skew = rows["skew"]
    slow = [row for row in skew if row["verdict"] in _SLOW]
    if asked.metrics:
        return asked.metric
    if not slow:
        said = {row["metric"] for row in rows["alerts"]}
        return next((row["metric"] for row in skew if row["metric"] in said), None)
    worst = max(slow, key=lambda row: row["slowdown"] or 0.0)["metric"]
    return None if worst == WORK else str(worst)


def _rank_details(asked: Asked, rows: Rows) -> dict[str, Query]:
    given = {"run": asked.run.run, "metric": _worst(asked, rows)}
    named = arguments(given, of_metric="metric")
    queries = {
        "ranks": Query(f"FROM ranks($run{named})", given),
        "heat": Query(f"FROM rank_heat($run{named})", given),
    }
    for at, alert in enumerate(rows["alerts"][:ALERTS_TOLD]):
        if alert["rank"] is not None and alert["step"] is not None:
            of = {
                "run": asked.run.run,
                "rank": alert["rank"],
                "metric": alert["metric"],
                "first": alert["step"],
                "last": alert["step"] if alert["last_step"] is None else alert["last_step"],
            }
            queries[f"alert{at}"] = Query(
                "SELECT median(ratio) AS ratio, count(*) AS steps "
                "FROM rank_values($run, of_metric := $metric) "
                "WHERE rank = $rank AND step BETWEEN $first AND $last",
                of,
            )
    return queries


def _show_ranks(asked: Asked, rows: Rows) -> Answer:
    skew = rows["skew"]
    ranks = [{**row, "alerts": ", ".join(row["alerts"]) or None} for row in rows["ranks"]]
    title = f"Ranks of {asked.run.spoken}"
    if not skew:
        return Answer("ranks", title, empty=_NO_SPANS)
    chosen = _worst(asked, rows) or WORK
    unit = "s" if chosen == WORK else unit_of(chosen)
    says = [f"{_name(row['metric'])}: {row['says']}." for row in skew if row["metric"] in (WORK, chosen)]
    others = [row for row in skew if row["metric"] not in (WORK, chosen) and row["verdict"] in _SLOW]
    says += [f"{_name(row['metric'])}: {row['says']}." for row in others]
    says += _alerted(rows)
    tables = [
        table(
            "ranks",
            f"ranks in {_name(chosen)}",
            ranks,
            Column("rank"),
            Column("host"),
            Column("steps", form="count"),
            Column("median", unit=unit),
            Column("max", unit=unit),
            Column("ratio", "to the median", "ratio"),
            Column("largest_share", "slowest in", "share"),
            Column("excess", "excess over the median", unit=unit),
            Column("odd", "not finite"),
            Column("alerts"),
        ),
        table(
            "skew",
            "each part of the step",
            skew,
            Column("metric", "part", "part"),
            Column("ranks"),
            Column("steps", form="count"),
            Column("slowdown", "slowest to median", "ratio"),
            Column("slowest_rank", "slowest rank"),
            Column("same_rank_share", "it is slowest in", "share"),
            Column("verdict"),
        ),
    ]
    charts = (
        (_heat(chosen, rows["heat"]),) if len({row["rank"] for row in ranks}) > 1 and rows["heat"] else ()
    )
    asking = _rank_details(asked, rows)["ranks"].literal
    return Answer("ranks", title, tuple(says), tuple(tables), charts, sql=(asking,))


def _alerted(rows: Rows) -> list[str]:
    """Alerts of slow ranks, and what the rank did while each was open: the whole run may hide it."""
    says = []
    for at, alert in enumerate(rows["alerts"][:ALERTS_TOLD]):
        says.append(f"Alert {alert['rule']}: {alert['explanation']}.")
        for row in rows.get(f"alert{at}", []):
            if row["ratio"] is not None:
                says.append(
                    f"While it was open ({count(row['steps'], 'step')}) rank {alert['rank']} took "
                    f"{row['ratio']:.2f} times the median of the ranks in {_name(alert['metric'])}; a "
                    "verdict on the whole run does not speak against that."
                )
    return says


def _name(metric: str) -> str:
    return "the work of a step" if metric == WORK else metric.removeprefix(SPAN_PREFIX)


def _heat(metric: str, cells: Sequence[Row]) -> Heat:
    tall, wide = max(cell["row"] for cell in cells) + 1, max(cell["column"] for cell in cells) + 1
    field = [[NAN] * wide for _ in range(tall)]
    rows, columns = [""] * tall, [""] * wide
    for cell in cells:
        value = cell["ratio"]
        field[cell["row"]][cell["column"]] = NAN if value is None else value
        rows[cell["row"]] = _range(cell["rank_first"], cell["rank_last"])
        columns[cell["column"]] = str(cell["step_first"])
    return Heat(
        f"{_name(metric)} by rank",
        Axis("training step"),
        Axis("rank"),
        Axis("times the median of the step"),
        tuple(columns),
        tuple(rows),
        tuple(map(tuple, field)),
        middle=1.0,
    )


def _range(first: int | None, last: int | None) -> str:
    return "?" if first is None else str(first) if first == last else f"{first}-{last}"


def _step_queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run, "factor": asked.options.get("factor") or 2.0}
    return {
        "steps": Query("FROM steps($run)", given),
        "speed_up": Query("FROM speed_up($run, factor := $factor)", given),
        "critical": Query(
            "SELECT rank, any_value(rank_share) AS share, count(*) AS steps, any_value(ranks) AS ranks, "
            "mode(span) AS span, sum(step_seconds) AS seconds "
            "FROM critical_path($run) GROUP BY rank ORDER BY share DESC, rank",
            given,
        ),
        "overlap": Query(
            "SELECT sum(overlap_seconds) AS twice, sum(seconds + barrier_seconds) AS seconds "
            "FROM rank_steps($run)",
            given,
        ),
    }


def _show_steps(asked: Asked, rows: Rows) -> Answer:
    parts, faster, critical = rows["steps"], rows["speed_up"], rows["critical"]
    title = f"Steps of {asked.run.spoken}"
    if not parts or not critical:
        return Answer("steps", title, empty=_NO_SPANS)
    factor = asked.options.get("factor") or 2.0
    mean = sum(row["seconds"] for row in parts)
    told = [row for row in parts if row["share"] and row["share"] >= 0.005]
    most = sorted(told, key=lambda row: -row["share"])[:PARTS_MAX]
    said = [f"{_part(row['span'])} {share(row['share'])}" for row in told if row in most]
    if left := len(told) - len(most):
        said.append(f"{left} more")
    steps, seconds = sum(row["steps"] for row in critical), sum(row["seconds"] for row in critical)
    says = [
        f"A step takes {duration(mean)} (mean of {count(steps, 'step')}, {duration(seconds)} in all): "
        f"{listed(said, PARTS_MAX + 1)}."
    ]
    if critical[0]["ranks"] > 1:
        says.append(
            f"Most often the others wait for rank {critical[0]['rank']}: in {share(critical[0]['share'])} of "
            f"the steps ({share(1 / critical[0]['ranks'])} if by chance), mostly in {critical[0]['span']}."
        )
    gains = [row for row in faster if row["saved_share"] and row["saved_share"] >= 0.01][:3]
    if gains:
        first, *others = [f"{row['span']} would save {share(row['saved_share'])}" for row in gains]
        more = "".join(f", {text.replace(' would save', '')}" for text in others)
        says.append(f"{factor:g} times as fast, {first} of the time{more}.")
    says += _waits(faster)
    tables = (
        table(
            "steps",
            "parts of a step",
            parts,
            Column("span", "part", "part"),
            Column("seconds", "mean", "seconds"),
            Column("share", form="share"),
            Column("waiting_seconds", "of it waiting", "seconds"),
            Column("critical_seconds", "on the slowest rank", "seconds"),
            Column("p50", form="seconds"),
            Column("p95", form="seconds"),
            Column("max", form="seconds"),
            Column("max_rank", "at rank"),
            Column("max_step", "at step"),
            Column("inside", "inside"),
        ),
        table(
            "speed_up",
            f"what {factor:g} times as fast would give",
            faster,
            Column("span"),
            Column("saved_seconds", "saved", "seconds"),
            Column("saved_share", "of the time", "share"),
            Column("speed_up", "training faster by", "ratio"),
            Column("limit", "at most", "ratio"),
            Column("naive_share", "its mean share", "share"),
            Column("moved", "steps where another rank is slowest then"),
            Column("why", ""),
        ),
    )
    return Answer("steps", title, tuple(says), tables, (_stack(parts),), _overlap(rows["overlap"][0]))


def _overlap(found: Row) -> tuple[str, ...]:
    """Spans that began before the step before had ended: a loader's, or those of another thread."""
    twice, seconds = found["twice"] or 0.0, found["seconds"] or 0.0
    if not seconds or twice < OVERLAP_MIN * seconds:
        return ()
    return (
        f"spans of a step begin before the step before has ended: {share(twice / seconds)} of the time is in "
        "two steps",
    )


def _waits(faster: Sequence[Row]) -> list[str]:
    """What to know before one makes these spans faster."""
    inside = [row for row in faster if row["kind"] != "wait" and (row["waiting_share"] or 0) >= 0.005]
    says = [
        f"{row['span']} waits for other ranks in {share(row['waiting_share'])} of its time (it is short "
        "where a rank comes late): that is left out of its work and of what a faster one would save."
        for row in inside
    ]
    waits = [row for row in faster if row["kind"] == "wait" and (row["naive_share"] or 0) >= 0.01]
    if waits:
        says.append(
            f"{listed([row['span'] for row in waits], 4)} {'waits' if len(waits) == 1 else 'wait'} for other "
            f"ranks ({share(sum(row['naive_share'] for row in waits))} of the time): shorter only where "
            "these are faster."
        )
    return says


def _part(span: str) -> str:
    return shown(span, "part")


def _stack(parts: Sequence[Row]) -> Bars:
    shown = [row for row in parts if row["seconds"] > 0 or row["critical_seconds"] > 0]
    return Bars(
        "Where the time of a step goes",
        Axis("time of a step", "s"),
        ("mean of ranks", "slowest rank"),
        tuple(Part(_part(row["span"]), (row["seconds"], row["critical_seconds"])) for row in shown),
    )


RANKS = Question("ranks", _rank_queries, _show_ranks, then=_rank_details, metrics=(0, 1), of="spans")
STEPS = Question("steps", _step_queries, _show_steps, timed=lambda asked: True)
