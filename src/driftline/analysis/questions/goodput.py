"""Where the wall time of a run went."""

from __future__ import annotations

from driftline.analysis.answer import Answer, Column, table
from driftline.analysis.chart import Axis, Bars, Part
from driftline.analysis.question import Asked, Query, Question, Rows
from driftline.analysis.values import duration, share, unit_of_time
from driftline.analysis.words import count, listed


def _queries(asked: Asked) -> dict[str, Query]:
    given = {"run": asked.run.run}
    return {
        "ledger": Query("FROM goodput_ledger($run)", given),
        "goodput": Query("FROM goodput($run)", given),
    }


def _show(asked: Asked, rows: Rows) -> Answer:
    title = f"Where the time of {asked.run.spoken} went"
    ledger = [row for row in rows["ledger"] if row["seconds"]]
    if not ledger or not rows["goodput"]:
        return Answer(
            "goodput", title, empty="no steps to tell time by: log with step=step, run.log({...}, step=step)"
        )
    found = rows["goodput"][0]
    says = []
    if found["goodput"] is not None:
        says.append(
            f"{share(found['goodput'])} of {duration(found['wall_seconds'])} advanced the training: "
            f"{count(found['steps'], 'step')} kept, {found['steps_redone']:,} done again, "
            f"{count(found['attempts'], 'attempt')}."
        )
    lost = sorted((row for row in ledger if row["category"] != "productive"), key=lambda row: -row["seconds"])
    if lost:
        says.append("The rest: " + listed([f"{row['category']} {share(row['share'])}" for row in lost]) + ".")
    shown = table(
        "ledger",
        "the ledger; its seconds add up to the wall time",
        rows["ledger"],
        Column("category"),
        Column("seconds", "time", "seconds"),
        Column("share", form="share"),
        Column("n", "times"),
        Column("says", ""),
    )
    size, name = unit_of_time(sum(row["seconds"] for row in ledger))
    parts = tuple(Part(row["category"], (row["seconds"] / size,)) for row in ledger)
    chart = Bars("Wall time", Axis("time", name), ("the run",), parts)
    return Answer("goodput", title, tuple(says), (shown,), (chart,))


GOODPUT = Question("goodput", _queries, _show, timed=lambda asked: True)
