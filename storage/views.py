"""The SQL views and macros over the tables, in the order in which they are made. Pure text.

They use nothing but what DuckDB has built in. Each has one line that says what a row is; ``docs/tables.md``
shows an example of each. All times are instants (TIMESTAMPTZ), whatever the reader's time zone; ``utc_day``
gives the UTC date of one.

Which attempt a sample belongs to is the pipeline's word: the fact that its process joined one, and after each
``run.rewind`` of the process the attempt that was the newest then, each from its place in the log on; 0 where
there is no such fact.
"""

from __future__ import annotations

from typing import NamedTuple

from driftline.metric_names import SPAN_PREFIX


class View(NamedTuple):
    """``CREATE VIEW name AS sql`` or, where ``macro`` is set, ``CREATE MACRO name(macro) AS sql``."""

    name: str
    says: str
    sql: str
    macro: str | None = None


_UTC_DAY = View("utc_day", "the UTC date of an instant", "make_timestamp(epoch_us(instant))::DATE", "instant")

_ATTEMPTS = View(
    "attempts",
    "one stretch of the log in which a process belonged to an attempt: [from_offset, until_offset)",
    """
    WITH said AS (
        SELECT run, process, topic_uuid, "offset", attempt FROM facts
        WHERE process IS NOT NULL AND what IN ('run_started', 'attempt_started', 'process_joined')
        UNION ALL
        SELECT r.run, r.process, r.topic_uuid, r."offset", max(f.attempt)
        FROM process_events AS r JOIN facts AS f
          ON f.run = r.run AND f.topic_uuid = r.topic_uuid AND f."partition" = r."partition"
          AND f.what = 'attempt_started' AND f."offset" <= r."offset"
        WHERE r.event = 'rewound' GROUP BY ALL)
    SELECT run, process, topic_uuid, attempt,
        CASE WHEN lag("offset") OVER w IS NULL THEN 0 ELSE "offset" END AS from_offset,
        coalesce(lead("offset") OVER w, 9223372036854775807) AS until_offset
    FROM (SELECT run, process, topic_uuid, "offset", max(attempt) AS attempt FROM said GROUP BY ALL)
    WINDOW w AS (PARTITION BY run, process, topic_uuid ORDER BY "offset")
    """,
)

_SAMPLE_ATTEMPTS = View(
    "sample_attempts",
    "samples with the attempt that each belongs to",
    """
    SELECT s.*, coalesce(a.attempt, 0) AS attempt
    FROM samples AS s LEFT JOIN attempts AS a
      ON s.run = a.run AND s.process = a.process AND s.topic_uuid = a.topic_uuid
      AND s."offset" >= a.from_offset AND s."offset" < a.until_offset
    """,
)

_DECLARED = """
        SELECT run, metric, max_by(goal, "offset") FILTER (goal IS NOT NULL) AS goal,
            max_by(unit, "offset") FILTER (unit IS NOT NULL) AS unit,
            max_by(reduce, "offset") FILTER (reduce IS NOT NULL) AS reduce,
            max_by(description, "offset") FILTER (description IS NOT NULL) AS description
        FROM metric_definitions GROUP BY run, metric"""
"""What holds of each metric that was declared: field by field, the newest in the log."""
_ONE_NUMBER = """CASE reduce WHEN 'sum' THEN "sum" WHEN 'max' THEN "max" WHEN 'min' THEN "min"
            WHEN 'last' THEN "last" ELSE mean END AS value"""

_CURVES_ALL = View(
    "curves_all",
    "one point per run, attempt, metric and step over all ranks; `value` is the column that run.define names "
    "as `reduce`, the weighted mean without it",
    f"""
    SELECT run, metric, step, attempt, {_ONE_NUMBER}, mean, "min", "max", "sum", "last", n, nan, inf, time
    FROM (
        SELECT run, metric, step, attempt,
            sum(value * weight) FILTER (isfinite(value))
                / nullif(sum(weight) FILTER (isfinite(value)), 0) AS mean,
            min(value) FILTER (isfinite(value)) AS "min",
            max(value) FILTER (isfinite(value)) AS "max",
            sum(value) FILTER (isfinite(value)) AS "sum",
            max_by(value, ("offset", ordinal)) AS "last",
            count(*) AS n,
            count(*) FILTER (isnan(value)) AS nan,
            count(*) FILTER (isinf(value)) AS inf,
            min(time) AS time
        FROM sample_attempts WHERE step IS NOT NULL GROUP BY run, metric, step, attempt)
    LEFT JOIN ({_DECLARED}) USING (run, metric)
    """,
)

_CURVES = View(
    "curves",
    "one point per run, metric and step, of the newest attempt that has it",
    "SELECT * FROM curves_all QUALIFY attempt = max(attempt) OVER (PARTITION BY run, metric, step)",
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
        SELECT run, metric FROM logged UNION SELECT run, metric FROM windows
        UNION SELECT run, metric FROM metric_definitions)
    SELECT run, metric, goal, unit, reduce, description, coalesce(samples, 0) AS samples,
        coalesce(processes, 0) AS processes, last_step, first_logged, last_logged
    FROM named LEFT JOIN ({_DECLARED}) USING (run, metric) LEFT JOIN logged USING (run, metric)
    """,
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
    """,
)

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
)

_ALERTS_LATEST = View(
    "alerts_latest",
    "each alert once, as it was last said",
    """
    SELECT * FROM alerts
    QUALIFY row_number() OVER (PARTITION BY run, alert ORDER BY time DESC, "offset" DESC, ordinal DESC) = 1
    """,
)

_ALERTS_OPEN = View(
    "alerts_open", "alerts that are not resolved", "SELECT * FROM alerts_latest WHERE state <> 'resolved'"
)

_SLOWEST_RANKS = View(
    "slowest_ranks",
    "one rank in one span (seconds): its mean against the median of all ranks, slowest first",
    f"""
    SELECT *, mean / nullif(median_of_ranks, 0) AS ratio FROM (
        SELECT *, median(mean) OVER (PARTITION BY run, span) AS median_of_ranks,
            count(*) OVER (PARTITION BY run, span) AS ranks
        FROM (SELECT run, substr(metric, {len(SPAN_PREFIX) + 1}) AS span, rank, avg(value) AS mean,
                  max(value) AS max, count(*) AS n
              FROM samples
              WHERE starts_with(metric, '{SPAN_PREFIX}') AND rank IS NOT NULL AND isfinite(value)
              GROUP BY ALL))
    ORDER BY run, ratio DESC NULLS LAST
    """,
)

_PROCESSES = View(
    "processes",
    "one SDK process: who and where it was, its attempt, how it ended",
    """
    WITH started AS (
        SELECT * EXCLUDE (event, step, outcome, counters, topic_uuid, "partition", "offset", seq)
        FROM process_events WHERE event = 'started'
        QUALIFY row_number() OVER (PARTITION BY run, process ORDER BY "offset") = 1),
    ended AS (
        SELECT run, process, max(time) AS ended, max_by(outcome, time) AS outcome,
            max_by(counters, time) AS counters
        FROM process_events WHERE event = 'ended' GROUP BY run, process),
    placed AS (SELECT run, process, max(attempt) AS attempt FROM attempts GROUP BY run, process)
    SELECT s.run, s.process, s.name, coalesce(p.attempt, 0) AS attempt, s.rank, s.world_size, s.local_rank,
        s.role, s.host, s.pid, s.parent, s.restart_hint, s.sdk, s.config, s.time AS started, e.ended,
        e.outcome, e.counters
    FROM started AS s LEFT JOIN ended AS e USING (run, process) LEFT JOIN placed AS p USING (run, process)
    """,
)

_RUNS = View(
    "runs",
    "one run: its name and configuration, when and how it went",
    """
    WITH heard AS (
        SELECT run, min(received) AS first_heard, max(received) AS last_heard FROM log
        WHERE run IS NOT NULL AND kind <> 'eval_accepted' GROUP BY run),
    p AS (SELECT *, max(attempt) OVER (PARTITION BY run) AS newest FROM processes),
    known AS (
        SELECT run, max_by(name, started) FILTER (name <> '') AS name, min(started) AS started,
            max_by(config, started) FILTER (config <> '{}') AS config,
            max_by(world_size, started) AS world_size, count(*) AS processes, max(newest) + 1 AS attempts,
            bool_and(ended IS NOT NULL) FILTER (attempt = newest) AS all_ended, max(ended) AS ended,
            bool_or(outcome = 'exception') FILTER (attempt = newest) AS by_exception,
            bool_or(outcome = 'signal') FILTER (attempt = newest) AS by_signal
        FROM p GROUP BY run),
    said AS (
        SELECT run, max_by(what, ("offset", ordinal)) AS what, max_by(time, ("offset", ordinal)) AS time
        FROM facts WHERE what IN ('run_ended', 'attempt_started', 'process_joined') GROUP BY run)
    SELECT h.run, coalesce(k.name, '') AS name, coalesce(k.started, h.first_heard) AS started,
        CASE WHEN k.all_ended THEN k.ended WHEN s.what = 'run_ended' THEN s.time END AS ended,
        CASE WHEN k.all_ended AND k.by_exception THEN 'exception'
            WHEN k.all_ended AND k.by_signal THEN 'signal'
            WHEN k.all_ended THEN 'finished' WHEN s.what = 'run_ended' THEN 'lost' END AS outcome,
        coalesce(k.attempts, 1) AS attempts, k.world_size, coalesce(k.processes, 0) AS processes, k.config,
        h.last_heard
    FROM heard AS h LEFT JOIN known AS k USING (run) LEFT JOIN said AS s USING (run)
    """,
)

_EVAL_COST = View(
    "eval_cost",
    "one run and suite: seconds that its evaluations took, and their part of the run's wall time",
    """
    WITH results AS (
        SELECT DISTINCT run, suite, request, status, seconds, wait_seconds, tokens, requested, accepted
        FROM evals),
    wall AS (
        SELECT run, (epoch_us(coalesce(ended, last_heard)) - epoch_us(started)) / 1e6 AS wall_seconds
        FROM runs)
    SELECT r.run, r.suite, count(*) AS evaluations, count(*) FILTER (status <> 'done') AS failed,
        sum(seconds) AS seconds, avg(seconds) AS seconds_each, sum(wait_seconds) AS wait_seconds,
        sum(tokens)::BIGINT AS tokens,
        avg((epoch_us(accepted) - epoch_us(requested)) / 1e6) AS latency_seconds,
        any_value(wall_seconds) AS wall_seconds, sum(seconds) / nullif(any_value(wall_seconds), 0) AS share
    FROM results AS r LEFT JOIN wall USING (run) GROUP BY r.run, r.suite
    """,
)

_RUN_SUMMARY = View(
    "run_summary",
    "one run in numbers: samples, steps, metrics, checkpoints, evaluations, alerts",
    """
    WITH s AS (
        SELECT run, count(*) AS samples, count(DISTINCT metric) AS metrics, max(step) AS last_step,
            count(DISTINCT rank) AS ranks FROM samples GROUP BY run),
    c AS (SELECT run, count(*) AS checkpoints FROM checkpoints GROUP BY run),
    e AS (SELECT run, count(DISTINCT request) AS evaluations FROM evals GROUP BY run),
    a AS (SELECT run, count(*) AS alerts, count(*) FILTER (state <> 'resolved') AS alerts_open
          FROM alerts_latest GROUP BY run)
    SELECT r.run, r.name, r.started, r.ended, r.outcome, r.attempts, coalesce(s.ranks, 0) AS ranks,
        s.last_step, coalesce(s.samples, 0) AS samples, coalesce(s.metrics, 0) AS metrics,
        coalesce(c.checkpoints, 0) AS checkpoints, coalesce(e.evaluations, 0) AS evaluations,
        coalesce(a.alerts, 0) AS alerts, coalesce(a.alerts_open, 0) AS alerts_open
    FROM runs AS r LEFT JOIN s USING (run) LEFT JOIN c USING (run) LEFT JOIN e USING (run)
    LEFT JOIN a USING (run)
    """,
)

_CORRELATION = View(
    "correlation",
    "Pearson correlation of metric_a at step s with metric_b at step s + lag, for lags -max_lag..max_lag",
    """
    TABLE
    WITH a AS (SELECT step, value FROM curves WHERE curves.run = run_id AND curves.metric = metric_a
               AND abs(value) < 1e150),
    b AS (SELECT step, value FROM curves WHERE curves.run = run_id AND curves.metric = metric_b
          AND abs(value) < 1e150),
    lags AS (SELECT unnest(range(-max_lag, max_lag + 1)) AS lag)
    SELECT lags.lag, corr(a.value, b.value) AS correlation, count(*) AS n
    FROM lags CROSS JOIN a JOIN b ON b.step = a.step + lags.lag
    GROUP BY lags.lag HAVING count(*) >= 3 ORDER BY lags.lag
    """,
    "run_id, metric_a, metric_b, max_lag := 0",
)

VIEWS: tuple[View, ...] = (
    _UTC_DAY,
    _ATTEMPTS,
    _SAMPLE_ATTEMPTS,
    _CURVES_ALL,
    _CURVES,
    _BEST,
    _METRICS,
    _TRENDS,
    _EVAL_CURVES,
    _EVAL_ANSWERS,
    _ALERTS_LATEST,
    _ALERTS_OPEN,
    _SLOWEST_RANKS,
    _PROCESSES,
    _RUNS,
    _EVAL_COST,
    _RUN_SUMMARY,
    _CORRELATION,
)
BASE_VIEW = {"processes": "process_events", "metrics": "metric_definitions"}
"""Tables whose plain view has another name than the table, since a view of one row per thing has it."""


def statements() -> list[str]:
    """The SQL that makes all views and macros, over the plain views of the tables."""
    made = []
    for view in VIEWS:
        if view.macro is None:
            made.append(f'CREATE OR REPLACE VIEW "{view.name}" AS {view.sql.strip()}')
        else:
            made.append(f'CREATE OR REPLACE MACRO "{view.name}"({view.macro}) AS {view.sql.strip()}')
    return made
