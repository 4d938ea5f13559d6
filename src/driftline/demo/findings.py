"""What a run of the demonstration found, read from the tables with SQL alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from driftline.demo.toll import Toll, toll
from driftline.errors import BadData
from driftline.storage.open import Catalog, open_catalog

Series = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """A metric by step; mean over ranks, and the smallest and largest rank."""

    step: Series
    mean: Series
    low: Series
    high: Series


class Score(NamedTuple):
    """One metric of one evaluation, with its 95 % interval (NaN where it has none)."""

    step: int
    value: float
    low: float
    high: float


class AlertFound(NamedTuple):
    rule: str
    detector: str
    severity: str
    state: str
    rank: int | None
    metric: str | None
    step: int | None
    last_step: int | None
    seconds: float | None
    """From opening to resolution; None while it is open."""
    explanation: str
    """What was said when it opened."""


class Findings(NamedTuple):
    """All that the summary, the picture and the page show."""

    run: str
    root: Path
    samples: int
    ranks: int
    last_step: int
    seconds: float
    """From the first rank's start to the last one's end."""
    checkpoints: int
    evaluated: int
    """Checkpoints that were evaluated."""
    evaluations: int
    alerts: list[AlertFound]
    scores: dict[str, list[Score]]
    """By metric, in order of steps."""
    curves: dict[str, Curve]
    forward_by_rank: dict[int, tuple[Series, Series]]
    """Step and seconds of the forward pass."""
    step_seconds: tuple[Series, Series]
    """Step and its duration on rank 0."""
    toll: Toll
    runs: int
    """Runs in the tables, this one included."""


CURVES = ("loss", "exact_match", "grad_norm", "learning_rate")


def find(root: Path, run: str) -> Findings:
    """Reads everything. Raises BadData if there are no tables, or the run is not in them."""
    with open_catalog(root) as db:
        summaries = db.rows(
            """SELECT samples, ranks, last_step, epoch_us(coalesce(ended, now())) - epoch_us(started),
                   checkpoints, evaluations,
                   (SELECT count(DISTINCT step) FROM evals WHERE evals.run = run_summary.run)
               FROM run_summary WHERE run = ?""",
            [run],
        )
        if not summaries:
            raise BadData(f"run {run} is not in the tables under {root}")
        summary = summaries[0]
        ends = _ends(db, run)
        return Findings(
            run=run,
            root=root,
            samples=summary[0],
            ranks=summary[1],
            last_step=summary[2] or 0,
            seconds=summary[3] / 1e6,
            checkpoints=summary[4],
            evaluations=summary[5],
            evaluated=summary[6],
            alerts=_alerts(db, run),
            scores=_scores(db, run),
            curves={metric: _curve(db, run, metric) for metric in CURVES},
            forward_by_rank=_by_rank(db, run, "span/forward"),
            step_seconds=_durations(ends),
            toll=_toll(db, run, ends),
            runs=db.rows("SELECT count(*) FROM runs")[0][0],
        )


def _alerts(db: Catalog, run: str) -> list[AlertFound]:
    rows = db.rows(
        """WITH said AS (SELECT alert, any_value(explanation) AS explanation FROM alerts
               WHERE run = ? AND state = 'open' GROUP BY alert)
           SELECT rule, detector, severity, state, rank, metric, step, last_step,
               (epoch_us(resolved) - epoch_us(opened)) / 1e6,
               coalesce(said.explanation, latest.explanation)
           FROM alerts_latest AS latest LEFT JOIN said USING (alert) WHERE run = ? ORDER BY opened, alert""",
        [run, run],
    )
    return [AlertFound(*row) for row in rows]


def _scores(db: Catalog, run: str) -> dict[str, list[Score]]:
    scores: dict[str, list[Score]] = {}
    for metric, step, value, low, high in db.rows(
        "SELECT metric, step, value, low, high FROM eval_curves WHERE run = ? ORDER BY metric, step", [run]
    ):
        bounds = (float("nan") if bound is None else bound for bound in (low, high))
        scores.setdefault(metric, []).append(Score(step, value, *bounds))
    return scores


def _curve(db: Catalog, run: str, metric: str) -> Curve:
    rows = db.rows(
        "SELECT step, mean, min, max FROM curves WHERE run = ? AND metric = ? ORDER BY step", [run, metric]
    )
    return (
        Curve(*(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))) if rows else _NONE
    )


_NONE = Curve(*(np.empty(0) for _ in range(4)))


def _by_rank(db: Catalog, run: str, metric: str) -> dict[int, tuple[Series, Series]]:
    rows = db.rows(
        """SELECT rank, step, value FROM samples
           WHERE run = ? AND metric = ? AND rank IS NOT NULL AND step IS NOT NULL ORDER BY rank, step""",
        [run, metric],
    )
    found: dict[int, tuple[Series, Series]] = {}
    for rank in sorted({row[0] for row in rows}):
        mine = np.array([row[1:] for row in rows if row[0] == rank], dtype=np.float64)
        found[rank] = (mine[:, 0], mine[:, 1])
    return found


def _ends(db: Catalog, run: str) -> dict[int, float]:
    """When rank 0 ended each step, seconds."""
    rows = db.rows(
        """SELECT step, epoch_us(max(time)) / 1e6 FROM samples
           WHERE run = ? AND metric = 'loss' AND rank = 0 GROUP BY step ORDER BY step""",
        [run],
    )
    return {int(step): end for step, end in rows}


def _durations(ends: dict[int, float]) -> tuple[Series, Series]:
    steps = [step for step in ends if step - 1 in ends]
    took = [ends[step] - ends[step - 1] for step in steps]
    return np.array(steps, dtype=np.float64), np.array(took, dtype=np.float64)


def _toll(db: Catalog, run: str, ends: dict[int, float]) -> Toll:
    evaluations = db.rows(
        """SELECT DISTINCT epoch_us(accepted) / 1e6 - seconds, epoch_us(accepted) / 1e6, seconds FROM evals
           WHERE run = ? AND request IS NOT NULL ORDER BY 1""",
        [run],
    )
    odd = db.rows(
        """SELECT step, coalesce(last_step, step) FROM alerts_latest
           WHERE run = ? AND detector = 'slow_rank' AND step IS NOT NULL""",
        [run],
    )
    calls = db.rows(
        """SELECT coalesce(sum(value) FILTER (metric = 'checkpoint_call_time'), 0),
                  coalesce(sum(value) FILTER (metric = 'checkpoint_save_time'), 0)
           FROM samples WHERE run = ? AND metric IN ('checkpoint_call_time', 'checkpoint_save_time')""",
        [run],
    )[0]
    saves = {row[0] for row in db.rows("SELECT step FROM checkpoints WHERE run = ?", [run])}
    left_out = saves | {step + 1 for step in saves}
    for first, last in odd:
        left_out |= set(range(first, last + 1))
    return toll(
        ends=ends,
        evaluations=[(start, end) for start, end, _ in evaluations],
        evaluator_seconds=sum(row[2] or 0.0 for row in evaluations),
        left_out=left_out,
        call_seconds=calls[0],
        save_seconds=calls[1],
    )
