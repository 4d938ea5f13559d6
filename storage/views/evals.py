"""Evaluations: their curves, answers and cost."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.view import View

_EVAL_CURVES = View(
    "eval_curves",
    "one metric of one suite per evaluated step, with its 95 % interval; newest attempt and version",
    """
    SELECT run, suite, metric, step, epoch, value, low, high, stderr, "count" AS n, unit, attempt, checkpoint,
        uri, accepted
    FROM evals WHERE status = 'done' AND metric IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY run, suite, metric, step, CASE WHEN step IS NULL THEN checkpoint END
        ORDER BY attempt DESC, accepted DESC) = 1
    """,
    "SELECT suite, metric, step, value, low, high, n FROM eval_curves ORDER BY metric, step",
)

_EVAL_ANSWERS = View(
    "eval_answers",
    "the evaluated items of accepted results, with suite, step and run of each",
    """
    SELECT e.run, e.suite, e.step, e.epoch, i.position, i.item, i.status, i.score, i.response,
        i.response_length, i.expected, i.request, i.lease
    FROM eval_items AS i
    JOIN (SELECT DISTINCT run, suite, step, epoch, lease FROM evals) AS e ON i.lease = e.lease
    """,
    "SELECT step, item, status, response, expected FROM eval_answers ORDER BY step, position LIMIT 2",
)

_EVAL_COST = View(
    "eval_cost",
    "one run and suite: seconds that its evaluations took, and their part of the run's wall time; what nobody "
    "told is null and not 0 (imported results often have no times)",
    """
    WITH results AS (
        SELECT DISTINCT run, suite, request, status, nullif(seconds, 0) AS seconds,
            CASE WHEN seconds > 0 THEN wait_seconds END AS wait_seconds, nullif(tokens, 0) AS tokens,
            CASE WHEN accepted > requested THEN (epoch_us(accepted) - epoch_us(requested)) / 1e6 END AS latency
        FROM evals),
    wall AS (
        SELECT run, (epoch_us(coalesce(ended, last_heard)) - epoch_us(started)) / 1e6 AS wall_seconds
        FROM runs)
    SELECT r.run, r.suite, count(*) AS evaluations, count(*) FILTER (status <> 'done') AS failed,
        count(seconds) AS timed, sum(seconds) AS seconds, avg(seconds) AS seconds_each,
        sum(wait_seconds) AS wait_seconds, sum(tokens)::BIGINT AS tokens, avg(latency) AS latency_seconds,
        any_value(wall_seconds) AS wall_seconds, sum(seconds) / nullif(any_value(wall_seconds), 0) AS share
    FROM results AS r LEFT JOIN wall USING (run) GROUP BY r.run, r.suite
    """,
    "SELECT suite, evaluations, failed, timed, seconds, latency_seconds, wall_seconds, share FROM eval_cost "
    "ORDER BY run, suite",
    columns=(
        ("run", "id of the run"),
        ("suite", "name of the suite"),
        ("evaluations", "requests with an accepted result"),
        ("failed", "of which not done"),
        ("timed", "of which it is known how long they took; sums and means are of these"),
        ("seconds", "how long they took; null if not known of any"),
        ("seconds_each", "mean of them"),
        ("wait_seconds", "of which waiting for checkpoints to be whole"),
        ("tokens", "tokens generated or scored; null if nobody counted"),
        ("latency_seconds", "mean time from the request to the accepted result; null if not known"),
        ("wall_seconds", "of the run"),
        ("share", "seconds / wall_seconds"),
    ),
)

VIEWS = (
    _EVAL_CURVES,
    _EVAL_ANSWERS,
    _EVAL_COST,
)
