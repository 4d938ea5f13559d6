"""Metrics over steps and over time: one number per step, what was declared of a metric, the best point."""

from __future__ import annotations

from driftline.storage.views.attempts import OF_RESTARTED
from driftline.storage.views.view import View

_DECLARED = """
        SELECT run, metric, max_by(goal, "offset") FILTER (goal IS NOT NULL) AS goal,
            max_by(unit, "offset") FILTER (unit IS NOT NULL) AS unit,
            max_by(reduce, "offset") FILTER (reduce IS NOT NULL) AS reduce,
            max_by(description, "offset") FILTER (description IS NOT NULL) AS description
        FROM metric_definitions GROUP BY run, metric"""
"""What holds of each metric that was declared: field by field, the newest in the log."""

_ONE_NUMBER = """CASE reduce WHEN 'sum' THEN "sum" WHEN 'max' THEN "max" WHEN 'min' THEN "min"
            WHEN 'last' THEN "last" ELSE mean END AS value"""

PLACE = """("offset" % 2199023255552) * 4194304 + ordinal"""
"""A sample's place in the log of its run as one number, which compares faster than two."""


def _per_step(numbers: str, *, newest: bool, only: str = "") -> str:
    """``numbers`` (of ``finite``: the value, null where it is not) per run, metric, step and attempt.

    ``newest``: only of the newest attempt that has the step. Of runs that were never restarted there is but
    one, so for them nothing is joined and nothing compared; a half that has no runs costs nothing.

    ``only``: a condition on samples.
    """
    columns = """*, CASE WHEN isfinite(value) THEN value END AS finite"""
    qualify = "QUALIFY attempt = max(attempt) OVER (PARTITION BY run, metric, step)" if newest else ""
    return f"""
        SELECT run, metric, step, 0 AS attempt, {numbers}
        FROM (SELECT {columns} FROM samples ANTI JOIN restarted USING (run) WHERE step IS NOT NULL{only})
        GROUP BY run, metric, step
        UNION ALL
        SELECT run, metric, step, attempt, {numbers}
        FROM (SELECT {columns} FROM ({OF_RESTARTED}) WHERE step IS NOT NULL{only})
        GROUP BY run, metric, step, attempt {qualify}"""


_NUMBERS = f"""sum(finite * weight) / nullif(sum(CASE WHEN finite IS NOT NULL THEN weight END), 0) AS mean,
            min(finite) AS "min", max(finite) AS "max", sum(finite) AS "sum",
            max_by(value, {PLACE}) AS "last",
            count(*) AS n, count(*) FILTER (isnan(value)) AS nan, count(*) FILTER (isinf(value)) AS inf,
            min(time) AS time"""


def _curves(*, newest: bool, only: str = "") -> str:
    return f"""
    SELECT run, metric, step, attempt, {_ONE_NUMBER}, mean, "min", "max", "sum", "last", n, nan, inf, time
    FROM ({_per_step(_NUMBERS, newest=newest, only=only)})
    LEFT JOIN ({_DECLARED}) USING (run, metric)
    """


_CURVES_ALL = View(
    "curves_all",
    "one point per run, attempt, metric and step over all ranks; `value` is the column that run.define names "
    "as `reduce`, the weighted mean without it",
    _curves(newest=False),
    "SELECT attempt, step, mean FROM curves_all WHERE metric = 'loss' ORDER BY step LIMIT 2",
)

_CURVES = View(
    "curves",
    "one point per run, metric and step, of the newest attempt that has it",
    _curves(newest=True),
    "SELECT step, value, mean, min, max, n, nan FROM curves WHERE metric = 'loss' ORDER BY step",
)

_OF_RUN = " AND run = (SELECT run_id(of_run))"
"""For macros, which know the run only once its name was looked up. DuckDB passes a constant down through a
GROUP BY, but not the answer of a query: ``FROM curves WHERE run = run_id(...)`` reads samples of all runs."""

_RUN_CURVES_ALL = View(
    "run_curves_all",
    "the points of `curves_all` of one run, by its id or name; reads nothing of other runs",
    f"TABLE {_curves(newest=False, only=_OF_RUN)}",
    "SELECT attempt, step, mean FROM run_curves_all('digits') WHERE metric = 'loss' ORDER BY step LIMIT 2",
    "of_run",
)

_RUN_CURVES = View(
    "run_curves",
    "the points of `curves` of one run, by its id or name; reads nothing of other runs",
    f"TABLE {_curves(newest=True, only=_OF_RUN)}",
    "SELECT step, value, n FROM run_curves('digits') WHERE metric = 'loss' ORDER BY step LIMIT 2",
    "of_run",
)

_STEP_STATS = View(
    "step_stats",
    "one metric of one run at one step, of the newest attempt that has it: how its samples (ranks) spread; "
    "without weights, finite samples only, but `n` counts all",
    _per_step(
        """avg(finite) AS mean, stddev_pop(finite) AS std, min(finite) AS "min",
            quantile_cont(finite, 0.5) AS p50, quantile_cont(finite, 0.95) AS p95, max(finite) AS "max",
            arg_min(rank, finite) AS min_rank, arg_max(rank, finite) AS max_rank, count(*) AS n,
            count(*) - count(finite) AS nonfinite""",
        newest=True,
    ),
    "SELECT step, mean, p50, p95, max, max_rank, n FROM step_stats WHERE metric = 'loss' ORDER BY step",
)

_LATEST = View(
    "latest",
    "one metric of one rank of one run: its newest sample in the log",
    f"""
    SELECT run, metric, rank, max_by(value, {PLACE}) AS value, max_by(step, {PLACE}) AS step,
        max_by(time, {PLACE}) AS time, max_by(process, {PLACE}) AS process, count(*) AS n
    FROM samples GROUP BY run, metric, rank
    """,
    "SELECT metric, rank, value, step, n FROM latest ORDER BY metric, rank LIMIT 4",
)

_BEST = View(
    "best",
    "one metric of one run with a declared goal: its best point so far (the first of equal ones) and its "
    "newest",
    f"""
    SELECT run, metric, goal, unit,
        CASE goal WHEN 'max' THEN max(value) ELSE min(value) END AS best,
        CASE goal WHEN 'max' THEN arg_max(step, (value, -step)) ELSE arg_min(step, (value, step)) END
            AS best_step,
        max_by(value, step) AS newest, max(step) AS newest_step
    FROM curves JOIN ({_DECLARED}) USING (run, metric)
    WHERE goal IS NOT NULL AND isfinite(value) GROUP BY run, metric, goal, unit
    """,
    "SELECT metric, goal, best, best_step, newest, newest_step FROM best",
)

_METRICS = View(
    "metrics",
    "one metric of one run, as far as samples, windows or a declaration tell of it; null where nothing was "
    "declared",
    f"""
    WITH logged AS (
        SELECT run, metric, count(*) AS samples, count(DISTINCT process) AS processes,
            max(step) AS last_step, min(time) AS first_logged, max(time) AS last_logged
        FROM samples GROUP BY run, metric),
    named AS (
        SELECT run, metric FROM logged UNION SELECT run, metric FROM windows WHERE "count" > 0
        UNION SELECT run, metric FROM metric_definitions)
    SELECT run, metric, goal, unit, reduce, description, coalesce(samples, 0) AS samples,
        coalesce(processes, 0) AS processes, last_step, first_logged, last_logged
    FROM named LEFT JOIN ({_DECLARED}) USING (run, metric) LEFT JOIN logged USING (run, metric)
    """,
    "SELECT metric, goal, unit, reduce, samples, last_step FROM metrics WHERE run = '01k4-digits' "
    "ORDER BY metric",
)

_TRENDS = View(
    "trends",
    "one closed time window of one metric, highest revision: what goes by the clock, not by steps; `value` "
    "as in `curves_all`",
    f"""
    SELECT run, attempt, "group", metric, make_timestamptz("start") AS window_start,
        make_timestamptz("end") AS window_end, {_ONE_NUMBER}, mean, std, "min", "max", "sum", "last",
        p50, p95, p99, "count" AS n, nan, inf, present, expected
    FROM windows LEFT JOIN ({_DECLARED}) USING (run, metric)
    WHERE axis = 'time' AND span IS NULL
    QUALIFY revision = max(revision) OVER (PARTITION BY run, attempt, "group", metric, "start", "end")
      AND "count" > 0
    """,
    "SELECT metric, window_start, mean, p95, n FROM trends WHERE \"group\" = ''",
)

VIEWS = (
    _CURVES_ALL,
    _CURVES,
    _RUN_CURVES_ALL,
    _RUN_CURVES,
    _STEP_STATS,
    _LATEST,
    _BEST,
    _METRICS,
    _TRENDS,
)
