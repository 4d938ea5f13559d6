"""Three SQL queries to try on the tables, and their answers; each is run as it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from driftline.storage.open import open_catalog


class Question(NamedTuple):
    asks: str
    sql: str


class Answer(NamedTuple):
    question: Question
    columns: list[str]
    rows: list[tuple[str, ...]]


def questions(run: str) -> list[Question]:
    """What one may want to know of a run."""
    return [
        Question(
            "Does what was learned hold on sums never seen? Training and evaluation, by step:",
            "SELECT e.step, round(e.value, 3) AS accuracy,\n"
            "  round(avg(c.mean), 3) AS training_exact_match\n"
            "FROM eval_curves e JOIN curves c ON c.run = e.run\n"
            "  AND c.metric = 'exact_match' AND c.step BETWEEN e.step - 20 AND e.step + 20\n"
            f"WHERE e.run = '{run}' AND e.metric = 'accuracy'\n"
            "GROUP BY ALL ORDER BY e.step",
        ),
        Question(
            "Which rank held the others up, and by how much over the whole run?",
            "SELECT span, rank, round(1000 * mean, 1) AS mean_ms,\n"
            "  round(ratio, 2) AS times_the_median\n"
            f"FROM slowest_ranks WHERE run = '{run}'\n"
            "  AND span = 'forward'",
        ),
        Question(
            "How do all runs so far compare? Run the demonstration again to add one:",
            "SELECT s.run, s.last_step AS steps, s.samples, s.evaluations, s.alerts,\n"
            "  round(max_by(e.value, e.step), 3) AS accuracy\n"
            "FROM run_summary s LEFT JOIN eval_curves e\n"
            "  ON e.run = s.run AND e.metric = 'accuracy'\n"
            "GROUP BY ALL ORDER BY s.run",
        ),
    ]


def ask(root: Path, asked: list[Question]) -> list[Answer]:
    """The answers, as text. Raises BadData."""
    with open_catalog(root) as catalog:
        tables = [catalog.query(question.sql) for question in asked]
    answers = []
    for question, table in zip(asked, tables, strict=True):
        columns = [[_shown(value) for value in column.to_pylist()] for column in table.columns]
        answers.append(Answer(question, table.column_names, list(zip(*columns, strict=True))))
    return answers


def _shown(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
