"""All questions, by name. Their commands and options: ``driftline.cli.analysis_app``."""

from __future__ import annotations

from driftline.analysis.questions import (
    compare,
    cost,
    curves,
    evals,
    goodput,
    lineage,
    machines,
    ranks,
    relations,
    trends,
)

QUESTIONS = {
    question.name: question
    for question in (
        curves.CURVE,
        compare.COMPARE,
        trends.TREND,
        relations.CORRELATE,
        relations.DRIVERS,
        ranks.RANKS,
        ranks.STEPS,
        goodput.GOODPUT,
        machines.UTILISATION,
        machines.SCALING,
        lineage.LINEAGE,
        evals.EVALS,
        cost.COST,
    )
}
