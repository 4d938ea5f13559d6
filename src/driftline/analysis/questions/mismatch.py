"""An evaluated metric beside one of the training: does evaluation fall while training goes on improving?"""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, Row, table
from driftline.analysis.chart import Axis, Mark, Plot, line
from driftline.analysis.question import Asked, Query, Rows, arguments
from driftline.analysis.words import count, interval, listed
from driftline.errors import BadData

SUITES_MAX = 3
"""Suites that have charts."""


def queries(asked: Asked) -> dict[str, Query]:
    """Raises BadData where no evaluated metric was named."""
    train = asked.options["mismatch"]
    if not asked.metrics:
        raise BadData(
            f"name the evaluated metric, too: driftline evals {asked.run.run} METRIC --mismatch {train}"
        )
    given = {"run": asked.run.run, "metric": asked.metric, "train": train, **asked.options}
    options = arguments(given, better="better", train_better="train_better")
    return {
        "mismatch": Query(f"FROM eval_mismatch($run, $metric, $train{options})", given),
        "trained": Query(
            "SELECT count(*) AS n FROM samples WHERE run = $run AND metric = $train AND step IS NOT NULL",
            given,
        ),
    }


def show(asked: Asked, rows: Rows) -> Answer:
    metric, train, points = asked.metric, asked.options["mismatch"], rows["mismatch"]
    title = f"{metric} beside {train} of {asked.run.spoken}"
    if not points:
        return Answer("evals", title, empty=f"{metric} has no evaluated checkpoint with a step")
    if not rows["trained"][0]["n"]:
        return Answer("evals", title, empty=f"the run has no samples of {train} with a step")
    suites = list(dict.fromkeys(row["suite"] for row in points))
    says: list[str] = []
    charts: list[Plot] = []
    for suite in suites:
        of_it = [row for row in points if row["suite"] == suite]
        says.append(_said(suite, of_it, metric, train))
        if len(charts) < 2 * SUITES_MAX:
            charts += _charts(suite, of_it, metric, train)
    shown = table(
        "mismatch",
        "each evaluated step",
        points,
        Column("suite"),
        Column("step"),
        Column("value", metric),
        Column("stderr", "standard error"),
        Column("train", train),
        Column("n_train", "points since the one before"),
        Column("gap"),
        Column("gap_change", "gap against the first"),
        Column("best_step", "best so far at step"),
        Column("behind", "behind that"),
        Column("behind_in_se", "in standard errors"),
        Column("warning"),
    )
    notes = []
    if all(row["stderr"] is None for row in points):
        notes.append("the evaluations have no error bars, so nothing is warned of")
    return Answer("evals", title, tuple(says), (shown,), tuple(charts), tuple(notes))


def _said(suite: str, points: list[Row], metric: str, train: str) -> str:
    warned = [row for row in points if row["warning"]]
    last = points[-1]
    if not warned:
        return (
            f"{suite}: at none of {count(len(points), 'evaluated step')} was {metric} behind its best beyond "
            f"noise while {train} improved."
        )
    steps = listed([str(row["step"]) for row in warned], 6)
    behind = f"{last['behind_in_se']:.1f}" if last["behind_in_se"] is not None else "an unknown number of"
    return (
        f"{suite}: {metric} fell while {train} went on improving, at {count(len(warned), 'step')}: {steps}. "
        f"Now it is {interval(last['behind'], None, None)} ({behind} standard errors) behind its best at "
        f"step {last['best_step']}."
    )


def _charts(suite: str, points: list[Row], metric: str, train: str) -> list[Plot]:
    steps = [row["step"] for row in points]
    spread = [1.96 * (row["stderr"] or 0.0) for row in points]
    values = [row["value"] for row in points]
    low = [value - wide for value, wide in zip(values, spread, strict=True)]
    high = [value + wide for value, wide in zip(values, spread, strict=True)]
    marks = tuple(Mark(float(row["step"]), "", "alert") for row in points if row["warning"])
    across = Axis("training step")
    evaluated = line("95 % interval", steps, values, low, high, form="both")
    trained = line("mean since the evaluation before", steps, [row["train"] for row in points], form="both")
    return [
        Plot(f"{metric}, {suite}", across, Axis(metric), (evaluated,), marks),
        Plot(f"{train}, training", across, Axis(train), (trained,), marks),
    ]
