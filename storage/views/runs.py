"""Runs and their processes."""

from __future__ import annotations

from driftline.storage.views.view import View

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
    "SELECT process, attempt, rank, role, host, started, ended, outcome FROM processes WHERE run "
    "= '01k4-digits' ORDER BY rank",
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
    "SELECT run, name, started, ended, outcome, attempts, world_size, config FROM runs WHERE run "
    "= '01k4-digits'",
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
    "SELECT name, ranks, last_step, samples, metrics, checkpoints, evaluations, alerts FROM "
    "run_summary WHERE run = '01k4-digits'",
)

VIEWS = (
    _PROCESSES,
    _RUNS,
    _RUN_SUMMARY,
)
