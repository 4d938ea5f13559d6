"""What a step is made of, across its ranks: its parts, its critical path, and what a faster span would give.

A step is over when its slowest rank is. Of each rank-step ``busy + waiting + rest + barrier`` is the step's
time (``rank_steps``), so shares add up to 1. The critical path of a step goes through the rank that is
longest in spans that do not wait for others: only what that rank spends less makes the step shorter, until
another rank is the longest.
"""

from __future__ import annotations

from driftline.storage.views.view import View

_STEPS = View(
    "steps",
    "one part of the step; `seconds`, `share` and `critical_seconds` add up to the whole step",
    """
    TABLE
    WITH r AS MATERIALIZED (FROM rank_steps(of_run, of_role := of_role)),
    path AS (
        SELECT r.attempt, r.step, r.process FROM r
        QUALIFY row_number() OVER (
            PARTITION BY r.attempt, r.step ORDER BY r.busy_seconds DESC, r.rank, r.process) = 1),
    whole AS (
        SELECT count(*) AS rank_steps, count(DISTINCT r.step) AS steps, count(DISTINCT r.process) AS ranks,
            sum(r.step_seconds) AS seconds FROM r),
    parts AS (
        SELECT t.step, t.process, t.attempt, t.rank, t.span, t.kind, t.self_seconds, t.n, t.odd, t.inside
        FROM step_spans(of_run, of_role := of_role) AS t WHERE t.kind <> 'total'
        UNION ALL
        SELECT r.step, r.process, r.attempt, r.rank, '(rest)', 'rest', r.rest_seconds, 1, 0, NULL FROM r
        UNION ALL
        SELECT r.step, r.process, r.attempt, r.rank, '(barrier)', 'barrier', r.barrier_seconds, 1, 0, NULL
        FROM r
        UNION ALL
        SELECT r.step, r.process, r.attempt, r.rank, '(untold)', 'work', r.busy_seconds, 1, 0, NULL
        FROM r WHERE r.seconds_from = 'no spans')
    SELECT p.span, p.kind, sum(p.self_seconds) / any_value(w.rank_steps) AS seconds,
        sum(p.self_seconds) / nullif(any_value(w.seconds), 0) AS share,
        coalesce(sum(p.self_seconds) FILTER (c.step IS NOT NULL), 0) / any_value(w.steps)
            AS critical_seconds,
        quantile_cont(p.self_seconds, 0.5) FILTER (p.n > 0) AS p50,
        quantile_cont(p.self_seconds, 0.95) FILTER (p.n > 0) AS p95,
        max(p.self_seconds) AS max, max_by(p.rank, (p.self_seconds, -p.step, -p.rank)) AS max_rank,
        max_by(p.step, (p.self_seconds, -p.step)) AS max_step,
        count(DISTINCT p.step) FILTER (p.n > 0) AS steps, count(DISTINCT p.process) FILTER (p.n > 0) AS ranks,
        sum(p.n)::BIGINT AS n, sum(p.odd)::BIGINT AS odd, min(p.inside) AS inside
    FROM parts AS p CROSS JOIN whole AS w LEFT JOIN path AS c
      ON c.attempt = p.attempt AND c.step = p.step AND c.process = p.process
    GROUP BY p.span, p.kind ORDER BY p.kind IN ('rest', 'barrier'), seconds DESC, p.span
    """,
    "FROM steps('steps')",
    "of_run, of_role := 'trainer'",
    columns=(
        (
            "span",
            "its name; `(rest)` in no span, `(barrier)` until the slowest rank was done, `(untold)` steps "
            "without any span",
        ),
        ("kind", "as `span_kind` says, or rest or barrier"),
        ("seconds", "mean over all steps and ranks, without nested spans"),
        ("share", "of the time of the steps"),
        ("critical_seconds", "mean over the steps on the rank that kept the others waiting"),
        ("p50", "median over the steps and ranks that have it"),
        ("p95", "95th percentile, likewise"),
        ("max", "longest"),
        ("max_rank", "rank of the longest"),
        ("max_step", "step of the longest"),
        ("steps", "steps that have it"),
        ("ranks", "processes that have it"),
        ("n", "how often it was logged"),
        ("odd", "values that are no duration"),
        ("inside", "a span that it is nested in"),
    ),
)

_CRITICAL_PATH = View(
    "critical_path",
    "one step and the rank that kept the others waiting",
    """
    TABLE
    WITH r AS MATERIALIZED (FROM rank_steps(of_run, of_role := of_role)),
    ranked AS (
        SELECT r.*, row_number() OVER w AS place, lead(r.busy_seconds) OVER w AS second,
            median(r.busy_seconds) OVER s AS median_busy, count(*) OVER s AS ranks
        FROM r
        WINDOW w AS (PARTITION BY r.attempt, r.step ORDER BY r.busy_seconds DESC, r.rank, r.process),
            s AS (PARTITION BY r.attempt, r.step)),
    longest AS (
        SELECT t.attempt, t.step, t.process, max_by(t.span, (t.self_seconds, t.span)) AS span,
            max(t.self_seconds) AS span_seconds
        FROM step_spans(of_run, of_role := of_role) AS t WHERE t.kind NOT IN ('wait', 'total') GROUP BY ALL)
    SELECT d.step, d.attempt, d.rank, d.process, l.span, l.span_seconds, d.busy_seconds,
        d.median_busy AS median_busy_seconds, d.busy_seconds - d.second AS lead_seconds, d.step_seconds,
        d.ranks,
        count(*) OVER (PARTITION BY d.rank, d.process) / count(*) OVER () AS rank_share,
        count(*) OVER (PARTITION BY l.span) / count(*) OVER () AS span_share
    FROM ranked AS d LEFT JOIN longest AS l
      ON l.attempt = d.attempt AND l.step = d.step AND l.process = d.process
    WHERE d.place = 1 ORDER BY d.step
    """,
    "FROM critical_path('steps')",
    "of_run, of_role := 'trainer'",
    columns=(
        ("step", "training step"),
        ("attempt", "restart of the run, from 0"),
        ("rank", "longest in spans that do not wait; of equals the lowest"),
        ("process", "id of the process"),
        ("span", "its longest span that does not wait"),
        ("span_seconds", "of that span"),
        ("busy_seconds", "of that rank in spans that do not wait"),
        ("median_busy_seconds", "the same of the median rank"),
        ("lead_seconds", "how much longer than the second longest rank"),
        ("step_seconds", "the step"),
        ("ranks", "ranks that told of the step"),
        ("rank_share", "part of all steps whose path goes through this rank"),
        ("span_share", "part of all steps whose path goes through this span"),
    ),
)

_SPEED_UP = View(
    "speed_up",
    "one span (all, if `of_span` names none): what making it `factor` times as fast would give, "
    "recomputed for each step from the rank that would be the slowest then",
    """
    TABLE
    WITH r AS MATERIALIZED (
        SELECT t.*, max(t.busy_seconds) OVER s AS longest,
            row_number() OVER (s ORDER BY t.busy_seconds DESC, t.rank, t.process) AS place
        FROM rank_steps(of_run, of_role := of_role) AS t WINDOW s AS (PARTITION BY t.attempt, t.step)),
    parts AS MATERIALIZED (FROM step_spans(of_run, of_role := of_role) AS t WHERE t.kind <> 'total'
                           AND (of_span IS NULL OR t.span = of_span)),
    named AS (SELECT p.span, any_value(p.kind) AS kind FROM parts AS p GROUP BY p.span),
    wished AS (
        SELECT r.attempt, r.step, r.rank, r.process, n.span, n.kind, r.step_seconds, r.longest, r.place,
            coalesce(p.seconds, 0) AS took,
            CASE WHEN n.kind = 'wait' THEN 0 ELSE coalesce(p.seconds, 0) END AS busy_took, r.busy_seconds,
            p.seconds AS present
        FROM r CROSS JOIN named AS n LEFT JOIN parts AS p
          ON p.attempt = r.attempt AND p.step = r.step AND p.process = r.process AND p.span = n.span),
    after AS (
        SELECT w.span, w.attempt, w.step, any_value(w.kind) AS kind,
            any_value(w.step_seconds) AS step_seconds,
            sum(w.took) / sum(w.step_seconds) AS naive_share, count(w.present) AS present,
            CASE WHEN any_value(w.kind) = 'wait' THEN (1 - 1 / factor) * coalesce(min(w.present), 0)
                ELSE any_value(w.longest) - max(greatest(0, w.busy_seconds - (1 - 1 / factor) * w.busy_took))
                END AS saved,
            CASE WHEN any_value(w.kind) = 'wait' THEN coalesce(min(w.present), 0)
                ELSE any_value(w.longest) - max(greatest(0, w.busy_seconds - w.busy_took)) END AS saved_most,
            sum(w.took) AS took, sum(w.step_seconds) AS rank_seconds,
            arg_max(w.place, (greatest(0, w.busy_seconds - (1 - 1 / factor) * w.busy_took), -w.place)) <> 1
                AS moved
        FROM wished AS w GROUP BY w.span, w.attempt, w.step)
    SELECT a.span, any_value(a.kind) AS kind, factor::DOUBLE AS factor,
        count(*) FILTER (a.present > 0) AS steps, sum(a.step_seconds) AS seconds,
        sum(a.step_seconds) - sum(a.saved) AS seconds_after, sum(a.saved) AS saved_seconds,
        sum(a.saved) / nullif(sum(a.step_seconds), 0) AS saved_share,
        sum(a.step_seconds) / nullif(sum(a.step_seconds) - sum(a.saved), 0) AS speed_up,
        sum(a.step_seconds) / nullif(sum(a.step_seconds) - sum(a.saved_most), 0) AS "limit",
        sum(a.took) / nullif(sum(a.rank_seconds), 0) AS naive_share, count(*) FILTER (a.moved) AS moved
    FROM after AS a WHERE factor > 0 GROUP BY a.span ORDER BY saved_seconds DESC, a.span
    """,
    "FROM speed_up('steps')",
    "of_run, of_span := NULL, factor := 2, of_role := 'trainer'",
    columns=(
        ("span", "its name"),
        ("kind", "as `span_kind` says"),
        ("factor", "as asked for"),
        ("steps", "steps that have it"),
        ("seconds", "all steps now"),
        ("seconds_after", "all steps then"),
        ("saved_seconds", "the difference"),
        ("saved_share", "of all steps"),
        ("speed_up", "of the training"),
        ("limit", "of the training if the span took no time"),
        ("naive_share", "part of all rank time that it takes: what a mean would promise to save at most"),
        ("moved", "steps in which another rank would hold the others up"),
    ),
)

VIEWS = (
    _STEPS,
    _CRITICAL_PATH,
    _SPEED_UP,
)
