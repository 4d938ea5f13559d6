"""Evaluations: their curves with intervals, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Plot, line
from driftline.analysis.question import Asked, Query, Question, Rows, arguments
from driftline.analysis.questions import mismatch
from driftline.analysis.values import duration, quantity, share
from driftline.analysis.words import count, interval

_NONE = (
    "no evaluation was accepted yet: name suites and when to evaluate under `evaluation` of the settings, "
    "start `driftline evaluator`, and save checkpoints with run.checkpoint(path, step=step)"
)
CHARTS_MAX = 6


def _queries(asked: Asked) -> dict[str, Query]:
    if asked.options.get("mismatch"):
        return mismatch.queries(asked)
    given = {"run": asked.run.run, "metric": asked.metrics[0] if asked.metrics else None}
    given |= asked.options
    better = arguments(given, better="better")
    one = " AND metric = $metric" if asked.metrics else ""
    return {
        "scores": Query(
            "SELECT suite, metric, step, epoch, value, low, high, stderr, n, unit, accepted FROM eval_curves "
            f"WHERE run = $run{one} ORDER BY suite, metric, step",
            given,
        ),
        "best": Query(f"SELECT * FROM eval_best($run{better}){one.replace(' AND', ' WHERE', 1)}", given),
        "goals": Query(
            "SELECT DISTINCT metric FROM metric_definitions WHERE run = $run AND goal IS NOT NULL", given
        ),
        "noise": Query(f"SELECT * FROM eval_noise($run){one.replace(' AND', ' WHERE', 1)}", given),
        "cost": Query("SELECT * EXCLUDE (run) FROM eval_cost WHERE run = $run ORDER BY suite", given),
    }


def _show(asked: Asked, rows: Rows) -> Answer:
    if asked.options.get("mismatch"):
        return mismatch.show(asked, rows)
    scores, cost = rows["scores"], rows["cost"]
    title = f"Evaluations of {asked.run.spoken}"
    if not scores:
        return Answer("evals", title, empty=_NONE)
    curves: dict[tuple[str, str], list[Row]] = {}
    for row in scores:
        curves.setdefault((row["suite"], row["metric"]), []).append(row)
    judged = [row for row in rows["best"] if _has_direction(row, rows, asked)]
    best = {(row["suite"], row["metric"]): row for row in judged}
    says = [_said(name, points, best.get(name)) for name, points in curves.items()]
    notes = [_noise(row) for row in rows["noise"] if row["verdict"] == "more than the items explain"]
    charts = [_chart(suite, metric, points) for (suite, metric), points in curves.items()]
    says += [_spent(row) for row in cost]
    tables = (
        table(
            "scores",
            "each evaluation",
            scores,
            Column("suite"),
            Column("metric"),
            Column("step"),
            Column("epoch"),
            Column("value"),
            Column("low", "95 % low"),
            Column("high", "95 % high"),
            Column("n", "items", "count"),
            Column("unit"),
            drawn=True,
        ),
        table(
            "best",
            "best checkpoints",
            judged,
            Column("suite"),
            Column("metric"),
            Column("direction", "better is"),
            Column("best"),
            Column("best_step", "at step"),
            Column("last"),
            Column("lead_over_last", "lead over the newest"),
            Column("p_value", "p", "p"),
            Column("verdict"),
            Column("uri", "where it was saved"),
        ),
        table(
            "cost",
            "cost",
            cost,
            Column("suite"),
            Column("evaluations", form="count"),
            Column("failed"),
            Column("seconds", "in all", "seconds"),
            Column("seconds_each", "each", "seconds"),
            Column("latency_seconds", "asked to result", "seconds"),
            Column("tokens", form="count"),
            Column("share", "of the run's time", "share"),
        ),
    )
    return Answer("evals", title, tuple(says), tables, tuple(charts[:CHARTS_MAX]), tuple(notes))


def _said(name: tuple[str, str], points: Sequence[Row], best: Row | None) -> str:
    suite, metric = name
    last, unit = points[-1], points[-1]["unit"] or ""
    said = f"{metric} ({suite}) is {interval(last['value'], last['low'], last['high'], unit)}"
    said += f" at step {last['step']}, of {count(len(points), 'evaluation')}"
    if best is None or best["verdict"] is None or best["best_is_last"]:
        return said + (", its best." if best is not None and best["best_is_last"] else ".")
    where = (
        f"{said}; best {quantity(best['best'])} at step {best['best_step']} (better is {best['direction']})"
    )
    return f"{where}: {best['verdict']}."


def _has_direction(best: Row, rows: Rows, asked: Asked) -> bool:
    """Whether it is known which way is better: asked, declared, or a share of right answers."""
    declared = {row["metric"] for row in rows["goals"]}
    shares = {(row["suite"], row["metric"]) for row in rows["scores"] if row["unit"] == "share"}
    named = (best["suite"], best["metric"])
    return asked.options.get("better") is not None or best["metric"] in declared or named in shares


def _noise(row: Row) -> str:
    return (
        f"{row['metric']} ({row['suite']}) fluctuates more from checkpoint to checkpoint than its items "
        f"explain: {quantity(row['observed'])} against {quantity(row['expected'])}."
    )


def _spent(row: Row) -> str:
    failed = f", {row['failed']} failed" if row["failed"] else ""
    done = f"{row['suite']}: {count(row['evaluations'], 'evaluation')}{failed}"
    if row["seconds"] is None:
        return f"{done}; how long they took is not known."
    some = f" (known of {row['timed']:,})" if row["timed"] < row["evaluations"] else ""
    part = f", {share(row['share'])} of the run's time" if row["share"] is not None else ""
    return f"{done}, {duration(row['seconds'])} of an evaluator{some}{part}."


def _chart(suite: str, metric: str, points: Sequence[Row]) -> Plot:
    steps = [row["step"] for row in points]
    sides = [
        [row[side] if row[side] is not None else row["value"] for row in points] for side in ("low", "high")
    ]
    series = line("95 % interval", steps, [row["value"] for row in points], *sides, form="both")
    return Plot(
        f"{metric}, {suite}", Axis("training step"), Axis(metric, points[-1]["unit"] or ""), (series,)
    )


EVALS = Question("evals", _queries, _show, metrics=(0, 1), of="evals")
