"""One metric over the ranks of each step: how far they are apart, and which rank is at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Plot, line
from driftline.analysis.question import Asked, Query, Rows
from driftline.analysis.values import quantity, share
from driftline.analysis.words import ALERTS, CHECKPOINTS, UNIT_OF_METRIC, count, marks_of, unit_of

POINTS = 1000
_STEPS = """WITH s AS (
    SELECT t.*, row_number() OVER (ORDER BY t.step) - 1 AS place, count(*) OVER () AS total
    FROM step_stats AS t WHERE t.run = $run AND t.metric = $metric)
SELECT min(s.step) AS step, max(s.step) AS until_step, avg(s.mean) AS mean, avg(s.std) AS std,
    min(s."min") AS "min", median(s.p50) AS p50, max(s.p95) AS p95, max(s."max") AS "max",
    arg_min(s.min_rank, s."min") AS min_rank, arg_max(s.max_rank, s."max") AS max_rank,
    sum(s.n)::BIGINT AS n, sum(s.nonfinite)::BIGINT AS nonfinite, count(*) AS steps
FROM s GROUP BY s.place * least(s.total, $points) // s.total ORDER BY 1"""
_EDGES = """SELECT t.max_rank AS "rank", count(*) AS highest, sum(count(*)) OVER ()::BIGINT AS steps,
    (SELECT count(DISTINCT l."rank") FROM samples AS l WHERE l.run = $run AND l.metric = $metric) AS ranks
FROM step_stats AS t
WHERE t.run = $run AND t.metric = $metric AND t.max_rank IS NOT NULL AND t."max" > t."min"
GROUP BY t.max_rank ORDER BY highest DESC, t.max_rank LIMIT 20"""


def queries(asked: Asked) -> dict[str, Query]:
    """The spread over steps, and how often which rank is the highest."""
    points = POINTS if asked.options.get("points") is None else asked.options["points"] or 2**40
    given = {"run": asked.run.run, "metric": asked.metric, "points": points}
    return {
        "spread": Query(_STEPS, given),
        "edges": Query(_EDGES, given),
        "declared": Query(UNIT_OF_METRIC, given),
        "alerts": Query(ALERTS, given),
        "checkpoints": Query(CHECKPOINTS, given),
    }


def show(asked: Asked, rows: Rows) -> Answer:
    metric, points = asked.metric, rows["spread"]
    title = f"{metric} over the ranks of {asked.run.spoken}"
    unit = unit_of(metric, rows["declared"])
    if not points:
        return Answer(
            "curve", title, empty=f"{metric} was logged without a step: run.log({{...}}, step=step)"
        )
    steps = [row["step"] for row in points]
    low, high = ([row[side] for row in points] for side in ("min", "max"))
    lines = (
        line("median; band: lowest to highest rank", steps, [row["p50"] for row in points], low, high),
        line("95th percentile", steps, [row["p95"] for row in points], faint=True),
    )
    scale: Literal["log", "linear"] = "log" if asked.options.get("log") else "linear"
    marks = marks_of(rows["alerts"], rows["checkpoints"], metric)
    chart = Plot(metric, Axis("training step"), Axis(metric, unit, scale), lines, marks)
    shown = (
        table(
            "spread",
            "each step",
            points,
            Column("step"),
            Column("mean", unit=unit),
            Column("std", "deviation", unit=unit),
            Column("min", "lowest", unit=unit),
            Column("min_rank", "of rank"),
            Column("p50", "median", unit=unit),
            Column("p95", "95th percentile", unit=unit),
            Column("max", "highest", unit=unit),
            Column("max_rank", "of rank"),
            Column("n", "samples"),
            Column("nonfinite", "not finite"),
            drawn=True,
        ),
        table(
            "edges",
            "how often a rank is the highest",
            rows["edges"],
            Column("rank"),
            Column("highest", "steps", "count"),
        ),
    )
    return Answer("curve", title, tuple(_says(rows, metric, unit)), shown, (chart,), _notes(points))


def _says(rows: Rows, metric: str, unit: str) -> list[str]:
    apart = [row for row in rows["spread"] if row["max"] is not None and row["min"] is not None]
    if not apart:
        return [f"No value of {metric} is a finite number."]
    if all(row["n"] <= row["steps"] for row in rows["spread"]):
        return [f"At each step one rank alone logged {metric}: there is nothing to be apart."]
    widest = max(apart, key=lambda row: row["max"] - row["min"])
    said = [_widest(widest, metric, unit)]
    if rows["edges"]:
        first = rows["edges"][0]
        part, chance = first["highest"] / first["steps"], 1 / max(1, first["ranks"])
        said.append(
            f"Rank {first['rank']} is the highest in {share(part)} of {count(first['steps'], 'step')} where "
            f"ranks differ ({share(chance)} if by chance)."
        )
    return said


def _widest(row: Row, metric: str, unit: str) -> str:
    if row["max"] == row["min"]:
        return f"All ranks have the same {metric} at every step."
    where = f"step {row['step']}" if row["steps"] == 1 else f"steps {row['step']} to {row['until_step']}"
    return (
        f"{metric} is farthest apart at {where}: from {quantity(row['min'], unit)} (rank {row['min_rank']}) "
        f"to {quantity(row['max'], unit)} (rank {row['max_rank']})."
    )


def _notes(points: Sequence[Row]) -> tuple[str, ...]:
    notes = []
    odd = sum(row["nonfinite"] for row in points)
    if odd:
        notes.append(f"{count(odd, 'sample is', 'samples are')} NaN or infinite and in none of this")
    steps = max(row["steps"] for row in points)
    if steps > 1:
        notes.append(
            f"up to {steps:,} steps are one row here: lowest of the lowest, highest of the highest; "
            "--points 0 has all"
        )
    return tuple(notes)
