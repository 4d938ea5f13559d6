"""From any number back to its records and configurations, and on to what rests on it."""

from __future__ import annotations

from driftline.storage.views.view import View

_CONFIGS = View(
    "pipeline_configs",
    "one configuration of the pipeline and the stretch of a partition in which it held",
    """
    SELECT l.topic_uuid, l."partition", l."offset" AS from_offset,
        coalesce(lead(l."offset") OVER (PARTITION BY l.topic_uuid, l."partition" ORDER BY l."offset"),
            9223372036854775807) AS until_offset, l.received AS since,
        regexp_extract(decode(l.payload), '"digest":\\s*"([^"]*)"', 1) AS digest,
        regexp_extract(decode(l.payload), '"worker":\\s*"([^"]*)"', 1) AS worker, decode(l.payload) AS event
    FROM log AS l WHERE l.kind = 'config_changed' AND l.outcome = 'stored' AND l.payload IS NOT NULL
    """,
    'SELECT "partition", from_offset, digest, worker FROM pipeline_configs',
    columns=(
        ("topic_uuid", "UUID of the telemetry topic"),
        ("partition", "partition of that topic"),
        ("from_offset", "offset of the change: it holds from here on"),
        ("until_offset", "offset of the next change"),
        ("since", "when the broker had it"),
        ("digest", "of the configuration"),
        ("worker", "that wrote it there"),
        ("event", "the record itself, JSON: `body` is the configuration"),
    ),
)

_LINEAGE = View(
    "lineage",
    "one sample behind a number: of a metric at a step (all steps without one), newest attempt "
    "first; where it "
    "is in the log, who logged it under which configuration, and how much rests on it",
    """
    TABLE
    WITH s AS MATERIALIZED (
        SELECT t.*, max(t.attempt) OVER (PARTITION BY t.step) AS newest FROM sample_attempts AS t
        WHERE t.run = (SELECT run_id(of_run)) AND t.metric = of_metric
          AND (of_step IS NULL OR t.step = of_step)),
    started AS (
        SELECT p.process, any_value(p.host) AS host, any_value(p.role) AS role, any_value(p.config) AS config,
            any_value(p.sdk) AS sdk
        FROM process_events AS p WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'started'
        GROUP BY p.process),
    records AS (
        SELECT l.topic_uuid, l."partition", l."offset", l.seq, l.received FROM log AS l
        WHERE l.run = (SELECT run_id(of_run)) AND l.outcome = 'stored'
          AND l."offset" BETWEEN (SELECT min(s."offset") FROM s) AND (SELECT max(s."offset") FROM s)),
    used AS (
        SELECT w.attempt, w.axis, w."start", w."end", w."group" FROM windows AS w
        WHERE w.run = (SELECT run_id(of_run)) AND w.metric = of_metric AND w.span IS NULL
        QUALIFY w.revision = max(w.revision) OVER (
            PARTITION BY w.attempt, w.axis, w."group", w."start", w."end") AND w."count" > 0),
    resting AS (
        SELECT s.topic_uuid, s."partition", s."offset", s.ordinal, count(*) AS windows
        FROM s JOIN used AS w ON w.attempt = s.attempt
          AND CASE w.axis WHEN 'step' THEN s.step ELSE epoch_us(s.time) END >= w."start"
          AND CASE w.axis WHEN 'step' THEN s.step ELSE epoch_us(s.time) END < w."end"
          AND (w."group" = '' OR w."group" = 'rank=' || s.rank)
        GROUP BY ALL),
    warned AS (
        SELECT a.alert, any_value(a.metric) AS metric, any_value(a.attempt) AS attempt,
            any_value(a.rank) AS rank, min(a.step) AS step, max(coalesce(a.last_step, a.step)) AS last_step
        FROM alerts AS a WHERE a.run = (SELECT run_id(of_run)) AND a.metric = of_metric GROUP BY a.alert),
    told AS (
        SELECT s.topic_uuid, s."partition", s."offset", s.ordinal, list(a.alert ORDER BY a.alert) AS alerts
        FROM s JOIN warned AS a ON a.attempt = s.attempt AND s.step BETWEEN a.step AND a.last_step
          AND (a.rank IS NULL OR a.rank = s.rank)
        GROUP BY ALL)
    SELECT s.step, s.value, s.weight, s.attempt, s.attempt = s.newest AS in_curve, s.rank, p.host, p.role,
        s.process, r.seq, s.ordinal, s.topic_uuid, s."partition", s."offset", s.time, r.received,
        p.config AS process_config, p.sdk, c.digest AS pipeline_config, coalesce(w.windows, 0) AS windows,
        coalesce(a.alerts, []) AS alerts
    FROM s LEFT JOIN started AS p ON p.process = s.process
    LEFT JOIN records AS r
      ON r.topic_uuid = s.topic_uuid AND r."partition" = s."partition" AND r."offset" = s."offset"
    LEFT JOIN pipeline_configs AS c ON c.topic_uuid = s.topic_uuid AND c."partition" = s."partition"
      AND s."offset" >= c.from_offset AND s."offset" < c.until_offset
    LEFT JOIN resting AS w ON w.topic_uuid = s.topic_uuid AND w."partition" = s."partition"
      AND w."offset" = s."offset" AND w.ordinal = s.ordinal
    LEFT JOIN told AS a ON a.topic_uuid = s.topic_uuid AND a."partition" = s."partition"
      AND a."offset" = s."offset" AND a.ordinal = s.ordinal
    ORDER BY s.step, s.attempt DESC, s.rank, s."offset", s.ordinal
    """,
    'SELECT step, value, in_curve, rank, host, seq, "offset", process_config, alerts '
    "FROM lineage('digits', 'loss', 5)",
    "of_run, of_metric, of_step := NULL",
    columns=(
        ("step", "training step"),
        ("value", "as logged"),
        ("weight", "in means over ranks"),
        ("attempt", "restart of the run, from 0"),
        ("in_curve", "it is of the newest attempt of its step, which curves show"),
        ("rank", "rank of the process"),
        ("host", "its host"),
        ("role", "its role"),
        ("process", "id of the SDK process"),
        ("seq", "the process's own count of the record"),
        ("ordinal", "place in its frame, from 0"),
        ("topic_uuid", "UUID of the telemetry topic"),
        ("partition", "partition of that topic"),
        ("offset", "offset in that partition"),
        ("time", "when it was logged, by the clock of its host"),
        ("received", "when the broker had it; null where retention took that row of `log`"),
        ("process_config", "JSON given to init on that process"),
        ("sdk", "version of driftline there"),
        ("pipeline_config", "digest of the pipeline's configuration that held at its offset"),
        ("windows", "windows that hold it (highest revision), by its own attempt"),
        ("alerts", "alerts on this metric that were open at its step"),
    ),
)

_RESTS_ON = View(
    "rests_on",
    "one window or alert that rests on a metric at a step, with the record that caused it",
    """
    TABLE
    WITH s AS MATERIALIZED (
        SELECT t.attempt, t.step, t.rank, epoch_us(t.time) AS us FROM sample_attempts AS t
        WHERE t.run = (SELECT run_id(of_run)) AND t.metric = of_metric AND t.step = of_step),
    w AS (
        FROM windows AS k WHERE k.run = (SELECT run_id(of_run)) AND k.metric = of_metric AND k.span IS NULL
        QUALIFY k.revision = max(k.revision) OVER (
            PARTITION BY k.attempt, k.axis, k."group", k."start", k."end") AND k."count" > 0)
    SELECT 'window' AS kind, w.axis || ' [' || CASE w.axis WHEN 'time'
            THEN make_timestamp(w."start") || ', ' || make_timestamp(w."end") || ') UTC'
            ELSE w."start" || ', ' || w."end" || ')' END AS name, w.attempt,
        w."group", w.revision, w.mean AS value, w.topic_uuid, w."partition", w."offset", w.ordinal
    FROM w SEMI JOIN s ON s.attempt = w.attempt AND (w."group" = '' OR w."group" = 'rank=' || s.rank)
      AND CASE w.axis WHEN 'step' THEN s.step ELSE s.us END >= w."start"
      AND CASE w.axis WHEN 'step' THEN s.step ELSE s.us END < w."end"
    UNION ALL
    SELECT 'alert', a.rule || ' ' || a.state, a.attempt,
        CASE WHEN a.rank IS NULL THEN '' ELSE 'rank=' || a.rank END,
        0, a.value, a.topic_uuid, a."partition", a."offset", a.ordinal
    FROM alerts AS a SEMI JOIN s ON s.attempt = a.attempt AND (a.rank IS NULL OR a.rank = s.rank)
      AND s.step BETWEEN a.step AND coalesce(a.last_step, a.step)
    WHERE a.run = (SELECT run_id(of_run)) AND a.metric = of_metric
    ORDER BY kind, "offset", ordinal, name
    """,
    "SELECT kind, name, value, \"offset\" FROM rests_on('digits', 'loss', 5)",
    "of_run, of_metric, of_step",
    columns=(
        ("kind", "window or alert"),
        ("name", "axis and range of the window, or rule and state of the alert"),
        ("attempt", "restart of the run, from 0"),
        ("group", "group of the window, or rank of the alert"),
        ("revision", "of the window"),
        ("value", "mean of the window, or what the alert measured"),
        ("topic_uuid", "UUID of the telemetry topic"),
        ("partition", "partition of that topic"),
        ("offset", "offset of the record that caused it"),
        ("ordinal", "which output of that record"),
    ),
)

_EVAL_LINEAGE = View(
    "eval_lineage",
    "one number of an accepted evaluation (of one metric and step, if they are named): the request, lease, "
    "weights, suite and settings behind it, the checkpoint's own record, and the configuration that held",
    """
    TABLE
    WITH saved AS (
        SELECT c.digest, c.process, c.rank, c.seq, c.time, c."offset" FROM checkpoints AS c
        WHERE c.run = (SELECT run_id(of_run))
        QUALIFY row_number() OVER (PARTITION BY c.digest ORDER BY c."offset") = 1),
    answers AS (
        SELECT i.lease, count(*) AS items FROM eval_items AS i
        WHERE i.lease IN (SELECT e.lease FROM evals AS e WHERE e.run = (SELECT run_id(of_run)))
        GROUP BY i.lease)
    SELECT e.suite, e.metric, e.step, e.value, e.stderr, e."count", e.status, e.attempt, e.request, e.lease,
        e.tries, e.evaluator, e.device, e."trigger", e.requested, e.accepted, e.checkpoint, e.uri,
        e.weights_digest, e.suite_version, e.suite_digest, e.settings, e.items,
        coalesce(a.items, 0) AS items_stored,
        s.process AS saved_by, s.rank AS saved_by_rank, s.seq AS saved_seq, s."offset" AS saved_offset,
        e.topic_uuid, e."partition", e."offset", c.digest AS pipeline_config
    FROM evals AS e LEFT JOIN saved AS s ON s.digest = e.checkpoint
    LEFT JOIN answers AS a ON a.lease = e.lease
    LEFT JOIN pipeline_configs AS c ON c.topic_uuid = e.topic_uuid AND c."partition" = e."partition"
      AND e."offset" >= c.from_offset AND e."offset" < c.until_offset
    WHERE e.run = (SELECT run_id(of_run)) AND (of_metric IS NULL OR e.metric = of_metric)
      AND (of_step IS NULL OR e.step = of_step)
    ORDER BY e.suite, e.metric, e.step, e."offset"
    """,
    'SELECT metric, step, value, request, lease, checkpoint, items_stored, saved_by, "offset" '
    "FROM eval_lineage('digits', 'exact_match')",
    "of_run, of_metric := NULL, of_step := NULL",
    columns=(
        ("suite", "name of the suite"),
        ("metric", "null if the evaluation gave none"),
        ("step", "training step of the checkpoint"),
        ("value", "in the metric's unit"),
        ("stderr", "standard error"),
        ("count", "items (or tokens) that it rests on"),
        ("status", "done, failed, incomplete, gone or unreadable"),
        ("attempt", "restart of the run, from 0"),
        ("request", "id of the evaluation: checkpoint, suite and settings"),
        ("lease", "the lease whose result was accepted"),
        ("tries", "leases it took"),
        ("evaluator", "who did it"),
        ("device", "device it ran on"),
        ("trigger", "why it was asked for"),
        ("requested", "when"),
        ("accepted", "when the result was"),
        ("checkpoint", "digest of the checkpoint (sampled)"),
        ("uri", "where it was saved"),
        ("weights_digest", "hash of the weights as loaded"),
        ("suite_version", "version of the suite"),
        ("suite_digest", "hash of the suite's items as loaded"),
        ("settings", "JSON: backend, dtype, batch size, versions"),
        ("items", "items that the result counts"),
        ("items_stored", "rows in eval_items under that lease"),
        ("saved_by", "process that saved the checkpoint"),
        ("saved_by_rank", "its rank"),
        ("saved_seq", "its own count of that record"),
        ("saved_offset", "offset of that record"),
        ("topic_uuid", "UUID of the telemetry topic"),
        ("partition", "partition of that topic"),
        ("offset", "offset of the acceptance"),
        ("pipeline_config", "digest of the pipeline's configuration that held there"),
    ),
)

VIEWS = (
    _CONFIGS,
    _LINEAGE,
    _RESTS_ON,
    _EVAL_LINEAGE,
)
