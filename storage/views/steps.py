"""What a step is made of, across its ranks: its parts, its critical path, and what a faster span would give.

A step is over when its slowest rank is. Of each rank-step ``busy + waiting + rest + barrier`` is the step's
time (``rank_steps``), so shares add up to 1. The critical path of a step goes through the rank that is
longest in spans that do not wait for others: only what that rank spends less makes the step shorter, until
another rank is the longest.
"""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.view import View

OTHERS = "(^|[^a-z])(wait|barrier|sync|(send|recv|receive|p2p|idle)([^a-z]|$))"
"""Spans of kind wait that hold what other ranks do, and nothing of their own: a pipeline's receives and sends,
barriers. Communication of all ranks (reduce, gather) has a part of its own."""

_STEPS = View(
    "steps",
    "one part of the step; `seconds`, `share` and `critical_seconds` add up to the whole step",
    """
    TABLE
    WITH p AS MATERIALIZED (FROM step_parts(of_run, of_role := of_role)),
    r AS (FROM p WHERE p.kind = '(step)'),
    path AS (
        SELECT r.attempt, r.step, arg_max(r.process, (r.busy_seconds, -r.rank, r.process)) AS process
        FROM r GROUP BY r.attempt, r.step),
    whole AS (
        SELECT count(*) AS rank_steps, count(DISTINCT r.step) AS steps,
            sum(r.seconds + r.barrier_seconds) AS seconds FROM r),
    parts AS MATERIALIZED (
        SELECT p.attempt, p.step, p.process, p.rank, p.span, p.kind, p.self_seconds, p.waiting_seconds, p.n,
            p.odd, p.inside
        FROM p WHERE p.kind NOT IN ('total', '(step)')
        UNION ALL
        SELECT r.attempt, r.step, r.process, r.rank, '(rest)', 'rest', r.rest_seconds, 0, 1, 0, NULL FROM r
        UNION ALL
        SELECT r.attempt, r.step, r.process, r.rank, '(barrier)', 'barrier', r.barrier_seconds,
            r.barrier_seconds, 1, 0, NULL
        FROM r
        UNION ALL
        SELECT r.attempt, r.step, r.process, r.rank, '(untold)', 'work', r.busy_seconds, 0, 1, 0, NULL
        FROM r WHERE r.seconds_from = 'no spans'),
    critical AS (
        SELECT p.span, p.kind, fsum(p.self_seconds) AS seconds
        FROM parts AS p JOIN path AS c
          ON c.attempt = p.attempt AND c.step = p.step AND c.process = p.process
        GROUP BY p.span, p.kind),
    by_step AS MATERIALIZED (
        SELECT p.span, p.kind, p.attempt, p.step, fsum(p.self_seconds) AS seconds,
            fsum(p.waiting_seconds) AS waiting, max(p.self_seconds) AS largest, sum(p.n) AS n,
            sum(p.odd) AS odd, min(p.inside) AS inside
        FROM parts AS p GROUP BY p.span, p.kind, p.attempt, p.step),
    summed AS (
        SELECT b.span, b.kind, fsum(b.seconds) AS seconds, fsum(b.waiting) AS waiting, max(b.largest) AS max,
            arg_max(b.step, (b.largest, -b.step)) AS max_step, sum(b.n)::BIGINT AS n, sum(b.odd)::BIGINT AS odd,
            count(DISTINCT b.step) FILTER (b.n > 0) AS steps, min(b.inside) AS inside
        FROM by_step AS b GROUP BY b.span, b.kind),
    peaks AS (
        SELECT p.span, p.kind, min(p.rank) AS rank
        FROM parts AS p JOIN summed AS s
          ON s.span = p.span AND s.kind = p.kind AND s.max_step = p.step AND s.max = p.self_seconds
        GROUP BY p.span, p.kind),
    quantiles AS (
        SELECT p.span, p.kind, quantile_cont(p.self_seconds, [0.5, 0.95]) AS both_at FROM parts AS p WHERE p.n > 0
        GROUP BY p.span, p.kind),
    ranked AS (
        SELECT d.span, d.kind, count(*) AS ranks
        FROM (SELECT DISTINCT p.span, p.kind, p.process FROM parts AS p WHERE p.n > 0) AS d
        GROUP BY d.span, d.kind)
    SELECT s.span, s.kind, s.seconds / w.rank_steps AS seconds, s.seconds / nullif(w.seconds, 0) AS share,
        s.waiting / w.rank_steps AS waiting_seconds, coalesce(c.seconds, 0) / w.steps AS critical_seconds,
        q.both_at[1] AS p50, q.both_at[2] AS p95, s.max, k.rank AS max_rank, s.max_step, s.steps,
        coalesce(n.ranks, 0) AS ranks, s.n, s.odd, s.inside
    FROM summed AS s CROSS JOIN whole AS w
    LEFT JOIN critical AS c ON c.span = s.span AND c.kind = s.kind
    LEFT JOIN quantiles AS q ON q.span = s.span AND q.kind = s.kind
    LEFT JOIN peaks AS k ON k.span = s.span AND k.kind = s.kind
    LEFT JOIN ranked AS n ON n.span = s.span AND n.kind = s.kind
    ORDER BY s.kind IN ('rest', 'barrier'), seconds DESC, s.span
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
        ("waiting_seconds", "of the seconds, waiting for other ranks, as `step_spans` says"),
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
    WITH p AS MATERIALIZED (FROM step_parts(of_run, of_role := of_role)),
    r AS (FROM p WHERE p.kind = '(step)'),
    ranked AS (
        SELECT r.attempt, r.step, max(r.busy_seconds, 2) AS most, median(r.busy_seconds) AS median_busy,
            arg_max(r.process, (r.busy_seconds, -r.rank, r.process)) AS process, count(*) AS ranks
        FROM r GROUP BY r.attempt, r.step),
    longest AS (
        SELECT t.attempt, t.step, t.process,
            max_by(t.span, (t.self_seconds - t.waiting_seconds, t.span)) AS span,
            max(t.self_seconds - t.waiting_seconds) AS span_seconds
        FROM p AS t JOIN ranked AS d ON d.attempt = t.attempt AND d.step = t.step AND d.process = t.process
        WHERE t.kind NOT IN ('wait', 'total', '(step)') GROUP BY ALL)
    SELECT d.step, d.attempt, r.rank, d.process, l.span, l.span_seconds, r.busy_seconds,
        d.median_busy AS median_busy_seconds, d.most[1] - d.most[2] AS lead_seconds, r.step_seconds,
        d.ranks,
        count(*) OVER (PARTITION BY r.rank, d.process) / count(*) OVER () AS rank_share,
        count(*) OVER (PARTITION BY l.span) / count(*) OVER () AS span_share
    FROM ranked AS d JOIN r ON r.attempt = d.attempt AND r.step = d.step AND r.process = d.process
    LEFT JOIN longest AS l ON l.attempt = d.attempt AND l.step = d.step AND l.process = d.process
    ORDER BY d.step
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
    f"""
    TABLE
    WITH p AS MATERIALIZED (FROM step_parts(of_run, of_role := of_role)),
    r AS (FROM p WHERE p.kind = '(step)'),
    heads AS MATERIALIZED (
        SELECT r.attempt, r.step, any_value(r.step_seconds) AS step_seconds, max(r.busy_seconds) AS longest,
            arg_max(r.process, (r.busy_seconds, -r.rank, r.process)) AS process, count(*) AS ranks
        FROM r GROUP BY r.attempt, r.step),
    parts AS MATERIALIZED (
        SELECT p.span, p.kind, p.attempt, p.step, p.process, p.rank, p.seconds AS took,
            p.self_seconds, CASE WHEN p.kind = 'wait' THEN 0 ELSE greatest(0, p.seconds - p.waiting_seconds) END
                AS work
        FROM p WHERE p.kind NOT IN ('total', '(step)') AND (of_span IS NULL OR p.span = of_span)),
    named AS (SELECT t.span, any_value(t.kind) AS kind FROM parts AS t GROUP BY t.span),
    present AS MATERIALIZED (
        SELECT t.span, t.attempt, t.step, count(*) AS ranks, min(t.took) AS least, sum(t.took) AS took
        FROM parts AS t GROUP BY t.span, t.attempt, t.step),
    lacking AS (
        SELECT n.span, h.attempt, h.step FROM named AS n CROSS JOIN heads AS h LEFT JOIN present AS q
          ON q.span = n.span AND q.attempt = h.attempt AND q.step = h.step
        WHERE q.ranks IS NULL OR q.ranks < h.ranks),
    wished AS (
        SELECT t.span, t.attempt, t.step, t.process, t.rank, t.work FROM parts AS t
        UNION ALL
        SELECT k.span, k.attempt, k.step, r.process, r.rank, 0 FROM lacking AS k JOIN r
          ON r.attempt = k.attempt AND r.step = k.step
        ANTI JOIN parts AS t ON t.span = k.span AND t.attempt = k.attempt AND t.step = k.step
          AND t.process = r.process),
    sooner AS (
        SELECT w.span, w.attempt, w.step,
            max(greatest(0, r.busy_seconds - (1 - 1 / factor) * w.work)) AS longest,
            max(greatest(0, r.busy_seconds - w.work)) AS longest_at_most,
            arg_max(w.process, (greatest(0, r.busy_seconds - (1 - 1 / factor) * w.work), w.process = h.process))
                AS process
        FROM wished AS w
        JOIN r ON r.attempt = w.attempt AND r.step = w.step AND r.process = w.process
        JOIN heads AS h ON h.attempt = w.attempt AND h.step = w.step
        GROUP BY w.span, w.attempt, w.step),
    shared AS (
        SELECT t.span, t.attempt, t.step, q.least FROM parts AS t
        JOIN heads AS h ON h.attempt = t.attempt AND h.step = t.step AND h.process = t.process
        JOIN present AS q ON q.span = t.span AND q.attempt = t.attempt AND q.step = t.step
        WHERE t.kind = 'wait' AND NOT regexp_matches(lower(t.span), '{OTHERS}')),
    after AS (
        SELECT w.span, h.attempt, h.step, n.kind, h.step_seconds, coalesce(q.ranks, 0) AS present,
            CASE WHEN n.kind = 'wait' THEN (1 - 1 / factor) * coalesce(s.least, 0)
                ELSE h.longest - w.longest END AS saved,
            CASE WHEN n.kind = 'wait' THEN coalesce(s.least, 0) ELSE h.longest - w.longest_at_most END
                AS saved_most,
            coalesce(q.took, 0) AS took, h.ranks * h.step_seconds AS rank_seconds, w.process <> h.process AS moved
        FROM sooner AS w JOIN heads AS h ON h.attempt = w.attempt AND h.step = w.step
        JOIN named AS n ON n.span = w.span
        LEFT JOIN present AS q ON q.span = w.span AND q.attempt = w.attempt AND q.step = w.step
        LEFT JOIN shared AS s ON s.span = w.span AND s.attempt = w.attempt AND s.step = w.step),
    waited AS (
        SELECT p.span, sum(p.waiting_seconds) / nullif(sum(p.self_seconds), 0) AS share FROM p
        WHERE p.span IS NOT NULL GROUP BY p.span)
    SELECT a.span, any_value(a.kind) AS kind, factor::DOUBLE AS factor,
        count(*) FILTER (a.present > 0) AS steps, sum(a.step_seconds) AS seconds,
        sum(a.step_seconds) - sum(a.saved) AS seconds_after, sum(a.saved) AS saved_seconds,
        sum(a.saved) / nullif(sum(a.step_seconds), 0) AS saved_share,
        sum(a.step_seconds) / nullif(sum(a.step_seconds) - sum(a.saved), 0) AS speed_up,
        sum(a.step_seconds) / nullif(sum(a.step_seconds) - sum(a.saved_most), 0) AS "limit",
        sum(a.took) / nullif(sum(a.rank_seconds), 0) AS naive_share, count(*) FILTER (a.moved) AS moved,
        any_value(w.share) AS waiting_share,
        CASE WHEN any_value(a.kind) <> 'wait' THEN CASE WHEN any_value(w.share) > 0
                THEN 'waits for other ranks inside: only its work is made faster' END
            WHEN regexp_matches(lower(a.span), '{OTHERS}')
            THEN 'waits for what other ranks do: shorter only where they are faster'
            ELSE 'communication and waiting: at most what the rank that waits least spends in it' END AS why
    FROM after AS a LEFT JOIN waited AS w ON w.span = a.span
    WHERE factor > 0 GROUP BY a.span ORDER BY saved_seconds DESC, a.span
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
        ("waiting_share", "part of it that is waiting for other ranks, as `step_spans` says"),
        ("why", "what limits it, where it waits; null for plain work"),
    ),
)

VIEWS = (
    _STEPS,
    _CRITICAL_PATH,
    _SPEED_UP,
)
