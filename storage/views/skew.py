"""Ranks against each other: how uneven, whether one rank is bad or the work is uneven, and a heat map.

Every step is compared with itself: ``ratio`` is a rank's value over the median of all ranks at that step, so
that a step that is long everywhere says nothing. What holds from step to step is the median of a rank's
ratios; how much it wavers is their MAD times 1.4826 (equal to a standard deviation where they are normal).
"""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.metric_names import SPAN_PREFIX
from driftline.storage.views.view import View

_METRIC_VALUES = View(
    "metric_values",
    "one step of one rank in a metric that was logged, of the newest attempt",
    f"""
    TABLE
        SELECT any_value(s.metric) AS metric, s.attempt, s.step, s.process, any_value(s.rank) AS rank,
            CASE WHEN starts_with(any_value(s.metric), '{SPAN_PREFIX}')
                THEN sum(s.value) FILTER (isfinite(s.value))
                ELSE avg(s.value) FILTER (isfinite(s.value)) END AS value,
            count(*) - count(*) FILTER (isfinite(s.value)) AS odd
        FROM sample_attempts AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.metric = of_metric AND s.step IS NOT NULL
          AND s.process NOT IN (
            SELECT p.process FROM process_events AS p
            WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'started'
              AND (p.parent IS NOT NULL OR p.role <> of_role))
        GROUP BY s.attempt, s.step, s.process
        QUALIFY s.attempt = max(s.attempt) OVER (PARTITION BY s.step)
    """,
    "FROM metric_values('steps', 'loss') WHERE step < 2 ORDER BY step, rank",
    "of_run, of_metric, of_role := 'trainer'",
    columns=(
        ("metric", "as logged"),
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("process", "id of the process"),
        ("rank", "its rank"),
        ("value", "sum of the repeats of a span, else the mean; finite ones"),
        ("odd", "values that are not finite: left out"),
    ),
)

_RANK_VALUES = View(
    "rank_values",
    "one step of one rank in a metric that was logged, or without one in the seconds of its spans that "
    "do not wait for others",
    """
    TABLE
    WITH measured AS MATERIALIZED (
        FROM metric_values(of_run, of_metric, of_role := of_role) AS l
        UNION ALL BY NAME
        SELECT '(work)' AS metric, r.attempt, r.step, r.process, r.rank, r.busy_seconds AS value, r.odd
        FROM rank_steps(of_run, of_role := of_role) AS r WHERE of_metric IS NULL),
    middles AS (
        SELECT m.attempt, m.step, median(m.value) AS middle, count(m.value) AS ranks FROM measured AS m
        GROUP BY m.attempt, m.step)
    SELECT b.metric, b.attempt, b.step, b.rank, b.process, b.value, m.middle AS median_of_ranks,
        b.value / nullif(m.middle, 0) AS ratio, m.ranks, b.odd
    FROM measured AS b JOIN middles AS m ON m.attempt = b.attempt AND m.step = b.step
    """,
    "FROM rank_values('steps') WHERE step < 2 ORDER BY step, rank",
    "of_run, of_metric := NULL, of_role := 'trainer'",
    columns=(
        ("metric", "as logged, or `(work)`: the seconds in spans that do not wait for others"),
        ("attempt", "restart of the run, from 0"),
        ("step", "training step"),
        ("rank", "its rank"),
        ("process", "id of the process"),
        ("value", "sum of the repeats of a span, else the mean; finite ones"),
        ("median_of_ranks", "at that step"),
        ("ratio", "value over that median"),
        ("ranks", "with a value at that step"),
        ("odd", "values that are not finite: left out"),
    ),
)

_RANKS = View(
    "ranks",
    "one rank in one metric (without one: in the seconds of its spans that do not wait for others), "
    "largest first",
    """
    TABLE
    WITH v AS MATERIALIZED (
        SELECT t.*, row_number() OVER (
                PARTITION BY t.attempt, t.step ORDER BY t.value DESC NULLS LAST, t.rank, t.process) = 1
            AND t.ranks > 1 AS largest
        FROM rank_values(of_run, of_metric := of_metric, of_role := of_role) AS t),
    each AS (
        SELECT v.metric, v.rank, v.process, count(v.value) AS steps, avg(v.value) AS mean,
            median(v.value) AS median, max(v.value) AS max, median(v.ratio) AS ratio,
            1.4826 * mad(v.ratio) AS spread, count(*) FILTER (v.largest) AS largest_steps,
            count(*) FILTER (v.largest) / nullif(count(v.value), 0) AS largest_share,
            count(*) FILTER (v.ratio > 1.05) AS high_steps,
            coalesce(sum(v.value - v.median_of_ranks) FILTER (v.largest), 0) AS excess,
            sum(v.odd)::BIGINT AS odd
        FROM v GROUP BY v.metric, v.rank, v.process),
    warned AS (
        SELECT w.rank, list(w.rule || coalesce(' since step ' || w.step, '') ORDER BY w.step, w.rule)[:8]
            AS alerts
        FROM (SELECT a.alert, any_value(a.rank) AS rank, any_value(a.rule) AS rule, min(a.step) AS step
              FROM alerts AS a WHERE a.run = (SELECT run_id(of_run)) AND a.rank IS NOT NULL GROUP BY a.alert) AS w
        GROUP BY w.rank),
    hosts AS (
        SELECT p.process, max(p.host) AS host FROM process_events AS p
        WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'started' GROUP BY p.process)
    SELECT e.metric, e.rank, h.host, e.steps, e.mean, e.median, e.max, e.ratio, e.spread,
        (e.ratio - median(e.ratio) OVER ())
            / greatest(1.4826 * mad(e.ratio) OVER (), 0.01) AS z,
        e.largest_steps, e.largest_share, e.high_steps, e.excess, e.odd, e.process,
        coalesce(w.alerts, []) AS alerts
    FROM each AS e LEFT JOIN hosts AS h ON h.process = e.process LEFT JOIN warned AS w ON w.rank = e.rank
    ORDER BY e.ratio DESC NULLS LAST, e.rank, e.process
    """,
    "FROM ranks('steps')",
    "of_run, of_metric := NULL, of_role := 'trainer'",
    columns=(
        ("metric", "as logged, or `(work)`: the seconds in spans that do not wait for others"),
        ("rank", "its rank"),
        ("host", "its host"),
        ("steps", "with a value"),
        ("mean", "of its values"),
        ("median", "of its values"),
        ("max", "of its values"),
        ("ratio", "median over the steps of its value over the median rank"),
        ("spread", "how much that wavers: MAD times 1.4826"),
        (
            "z",
            "how far its ratio is above the median ratio, in MADs times 1.4826 of all ranks (at least 0.01)",
        ),
        ("largest_steps", "steps in which it is the largest"),
        ("largest_share", "their part"),
        ("high_steps", "steps in which it is over 1.05 times the median"),
        ("excess", "sum of value less median over the steps in which it is the largest"),
        ("odd", "values that are not finite"),
        ("process", "id of the process"),
        ("alerts", "that name this rank, whatever their metric: the first 8"),
    ),
)

_SAYS = """CASE j.verdict
            WHEN 'one rank' THEN 'one rank logs it: nothing to compare'
            WHEN 'too few steps' THEN 'fewer than 3 steps with several ranks: nothing to say yet'
            WHEN 'no median' THEN 'the median rank takes no time here'
            WHEN 'waiting' THEN 'waiting for others: the rank that waits least is the late one'
            WHEN 'even' THEN 'the ranks are even: the largest is ' || printf('%.1f', 100 * (j.slowdown - 1))
                || ' % above the median'
            ELSE CASE j.verdict
                WHEN 'slow rank' THEN 'rank ' || coalesce(j.slow_ranks[1]::VARCHAR, '?')
                    || ' is slow in every step: ' || printf('%.2f', j.slow_ratio) || ' times the median'
                WHEN 'slow ranks' THEN len(j.slow_ranks) || ' ranks are slow in every step: '
                    || printf('%.2f', j.slow_ratio) || ' times the median'
                WHEN 'slow rank at times' THEN 'rank ' || coalesce(j.at_times_rank::VARCHAR, '?')
                    || ' is slow in ' || j.at_times_steps || ' of ' || j.steps || ' steps'
                WHEN 'heavy group' THEN 'no bad rank: ' || len(j.slow_ranks) || ' of ' || j.ranks
                    || ' ranks have more work in every step, ' || printf('%.2f', j.group_ratio)
                    || ' times the others'
                WHEN 'uneven work, heavy group' THEN
                    'no bad rank: the slowest changes from step to step, and '
                    || len(j.slow_ranks) || ' of ' || j.ranks || ' ranks have more work in every step, '
                    || printf('%.2f', j.group_ratio) || ' times the others'
                WHEN 'uneven ranks' THEN 'the same ranks do more in every step, by degrees'
                ELSE 'no bad rank: the slowest changes from step to step' END
                || '; slowest against median: ' || printf('%.2f', j.slowdown) END"""

_RANK_SKEW = View(
    "rank_skew",
    "one metric across ranks (all spans and `(work)`, or the one that is named), with a verdict: is one "
    "rank bad, or is the work uneven",
    f"""
    TABLE
    WITH p AS MATERIALIZED (FROM step_parts(of_run, of_role := of_role)),
    r AS (FROM p WHERE p.kind = '(step)'),
    v AS MATERIALIZED (
        SELECT t.metric, t.attempt, t.step, t.rank, t.process, t.value,
            CASE WHEN starts_with(t.metric, '{SPAN_PREFIX}')
                THEN span_kind(substr(t.metric, {len(SPAN_PREFIX) + 1})) ELSE 'metric' END AS kind
        FROM metric_values(of_run, of_metric, of_role := of_role) AS t WHERE t.value IS NOT NULL
        UNION ALL
        SELECT '(work)', r.attempt, r.step, r.rank, r.process, r.busy_seconds, 'busy' FROM r
        WHERE of_metric IS NULL
        UNION ALL
        SELECT '{SPAN_PREFIX}' || t.span, t.attempt, t.step, t.rank, t.process, t.seconds, t.kind
        FROM p AS t WHERE of_metric IS NULL AND t.kind <> '(step)' AND t.n > 0),
    middles AS MATERIALIZED (
        SELECT v.metric, v.attempt, v.step, median(v.value) AS middle, count(*) AS ranks,
            arg_max(v.process, (v.value, -v.rank, v.process)) AS first
        FROM v GROUP BY v.metric, v.attempt, v.step),
    compared AS MATERIALIZED (
        SELECT v.*, v.value / nullif(m.middle, 0) AS ratio, m.middle,
            CASE WHEN v.process = m.first THEN 1 ELSE 2 END AS place, m.ranks
        FROM v JOIN middles AS m ON m.metric = v.metric AND m.attempt = v.attempt AND m.step = v.step),
    each AS (
        SELECT c.metric, c.process, any_value(c.rank) AS rank, median(c.ratio) AS ratio,
            1.4826 * mad(c.ratio) AS spread, count(*) AS steps, count(*) FILTER (c.place = 1) AS largest,
            coalesce(sum(c.value - c.middle) FILTER (c.place = 1), 0) AS excess,
            count(*) FILTER (c.ratio > 1.05) AS high_steps
        FROM compared AS c WHERE c.ranks > 1 GROUP BY c.metric, c.process),
    stepped AS (
        SELECT e.*, e.ratio / nullif(lag(e.ratio) OVER p, 0) AS jump, e.ratio - lag(e.ratio) OVER p AS gap,
            1.2533 * median(e.spread) OVER m / sqrt(median(e.steps) OVER m) AS error,
            row_number() OVER p - 1 AS below, count(*) OVER m AS all_ranks
        FROM each AS e WINDOW m AS (PARTITION BY e.metric),
            p AS (PARTITION BY e.metric ORDER BY e.ratio, e.rank, e.process)),
    steep AS (
        SELECT g.metric, g.ratio, g.jump, g.all_ranks - g.below <= greatest(1, g.all_ranks // 10) AS few
        FROM stepped AS g WHERE g.below * 2 >= g.all_ranks AND g.jump >= 1.05 AND g.gap >= 4 * g.error),
    edges AS (
        SELECT s.metric, CASE WHEN arg_max(s.few, s.jump) THEN min(s.ratio) FILTER (s.few)
            ELSE arg_max(s.ratio, s.jump) END AS edge
        FROM steep AS s GROUP BY s.metric),
    marked AS (SELECT e.*, coalesce(e.ratio >= d.edge, false) AS slow
               FROM each AS e LEFT JOIN edges AS d ON d.metric = e.metric),
    by_rank AS (
        SELECT m.metric, count(*) AS ranks, max(m.ratio) AS persistent,
            max_by(m.rank, (m.ratio, -m.rank)) FILTER (m.ratio IS NOT NULL) AS slowest_rank,
            max(m.ratio) AS slowest_ratio,
            max(m.largest) / nullif(sum(m.largest), 0) AS same_rank_share,
            list(m.rank ORDER BY m.ratio DESC, m.rank) FILTER (m.slow) AS slow_ranks,
            median(m.ratio) FILTER (m.slow) AS slow_ratio,
            median(m.ratio) FILTER (m.slow) / nullif(median(m.ratio) FILTER (NOT m.slow), 0) AS group_ratio,
            max(m.excess) / nullif(sum(m.excess), 0) AS one_share,
            max_by(m.rank, (m.excess, -m.rank)) AS at_times_rank,
            max_by(m.high_steps, (m.excess, -m.rank)) AS at_times_steps
        FROM marked AS m GROUP BY m.metric),
    by_step AS (
        SELECT c.metric, c.attempt, c.step, max(c.value) AS largest, any_value(c.middle) AS middle,
            avg(c.value) AS mean, max(c.value) FILTER (NOT m.slow) AS rest_largest,
            coalesce(median(c.value) FILTER (m.slow), any_value(c.middle)) AS slow_middle,
            any_value(c.kind) AS kind
        FROM compared AS c JOIN marked AS m ON m.metric = c.metric AND m.process = c.process
        WHERE c.ranks > 1 GROUP BY c.metric, c.attempt, c.step),
    lengths AS (SELECT r.attempt, r.step, max(r.step_seconds) AS seconds
                FROM r GROUP BY ALL),
    overall AS (
        SELECT s.metric, any_value(s.kind) AS kind, count(*) AS steps, median(s.middle) AS median,
            sum(s.largest) / nullif(sum(s.middle), 0) AS slowdown,
            sum(s.largest) / nullif(sum(s.mean), 0) AS slowdown_mean,
            sum(s.rest_largest) / nullif(sum(s.middle), 0) AS slowdown_without,
            sum(s.largest) / nullif(sum(s.slow_middle), 0) AS uneven,
            CASE WHEN any_value(s.kind) NOT IN ('metric', 'wait') THEN sum(l.seconds)
                / nullif(sum(l.seconds) - sum(s.largest - s.middle), 0) END AS job_slowdown
        FROM by_step AS s LEFT JOIN lengths AS l ON l.attempt = s.attempt AND l.step = s.step
        GROUP BY s.metric),
    joined AS (
        SELECT a.metric, coalesce(o.kind, a.kind) AS kind, coalesce(b.ranks, 1) AS ranks,
            coalesce(o.steps, 0) AS steps, o.median, o.slowdown, o.slowdown_mean, o.slowdown_without,
            o.uneven, o.job_slowdown, b.* EXCLUDE (metric, ranks)
        FROM (SELECT c.metric, any_value(c.kind) AS kind FROM compared AS c GROUP BY c.metric) AS a
        LEFT JOIN by_rank AS b ON b.metric = a.metric LEFT JOIN overall AS o ON o.metric = a.metric),
    judged AS (
        SELECT g.*, coalesce(len(g.slow_ranks), 0) AS slow,
            CASE WHEN g.ranks < 2 THEN 'one rank' WHEN g.steps < 3 THEN 'too few steps'
                WHEN g.slowdown IS NULL THEN 'no median'
                WHEN g.kind = 'wait' THEN 'waiting' WHEN g.slowdown < 1.05 THEN 'even'
                WHEN coalesce(len(g.slow_ranks), 0) BETWEEN 1 AND greatest(1, g.ranks // 10)
                    AND g.slowdown - g.slowdown_without >= (g.slowdown - 1) / 2
                THEN CASE len(g.slow_ranks) WHEN 1 THEN 'slow rank' ELSE 'slow ranks' END
                WHEN g.ranks > 2 AND g.one_share >= 0.75 THEN 'slow rank at times'
                WHEN len(g.slow_ranks) > greatest(1, g.ranks // 10)
                THEN CASE WHEN g.uneven >= 1.05 THEN 'uneven work, heavy group' ELSE 'heavy group' END
                WHEN g.persistent - 1 >= (g.slowdown - 1) / 2 THEN 'uneven ranks'
                ELSE 'uneven work' END AS verdict
        FROM joined AS g)
    SELECT j.metric, j.kind, j.ranks, j.steps, j.median, j.slowdown, j.slowdown_mean, j.job_slowdown,
        j.slowest_rank, j.slowest_ratio, j.same_rank_share, coalesce(j.slow_ranks, []) AS slow_ranks,
        j.slow_ratio, j.group_ratio, j.slowdown_without, j.uneven, j.verdict, {_SAYS} AS says
    FROM judged AS j ORDER BY j.metric <> '(work)', j.slowdown DESC NULLS LAST, j.metric
    """,
    "SELECT metric, ranks, steps, slowdown, slowest_rank, verdict, says FROM rank_skew('steps')",
    "of_run, of_metric := NULL, of_role := 'trainer'",
    columns=(
        ("metric", "as logged, or `(work)`: the seconds in spans that do not wait for others"),
        ("kind", "as `span_kind` says, busy for `(work)`, metric for others"),
        ("ranks", "that were compared"),
        ("steps", "with at least two of them"),
        ("median", "over the steps of the median rank"),
        ("slowdown", "sum over the steps of the largest rank, over that of the median rank"),
        ("slowdown_mean", "the same against the mean rank"),
        ("job_slowdown", "the steps' time over what it would be if the largest were the median"),
        ("slowest_rank", "rank with the largest ratio to the median, step by step"),
        ("slowest_ratio", "that ratio (median over steps)"),
        ("same_rank_share", "part of the steps in which the most frequent largest rank is the largest"),
        ("slow_ranks", "ranks that stand out above the others in every step"),
        ("slow_ratio", "their ratio to the median"),
        ("group_ratio", "their ratio to the other ranks"),
        ("slowdown_without", "slowdown without them"),
        ("uneven", "sum of the largest over the median of the slow ranks (of all where there are none)"),
        (
            "verdict",
            "`slow rank`, `slow ranks`, `slow rank at times`, `heavy group`, `uneven work, heavy group`, "
            "`uneven work`, `uneven ranks`, `even`, `waiting`, `no median`, `too few steps`, `one rank`",
        ),
        ("says", "the same as a sentence"),
    ),
)

_RANK_HEAT = View(
    "rank_heat",
    "one cell of the map rank by step, at most `max_rows` by `max_columns`; neighbours share a cell "
    "where there are more, and its extreme is kept",
    """
    TABLE
    WITH v AS MATERIALIZED (FROM rank_values(of_run, of_metric := of_metric, of_role := of_role)),
    placed AS (
        SELECT v.*, dense_rank() OVER (ORDER BY v.rank, v.process) - 1 AS rank_at,
            dense_rank() OVER (ORDER BY v.step) - 1 AS step_at FROM v),
    sized AS (SELECT p.*, max(p.rank_at) OVER () + 1 AS tall, max(p.step_at) OVER () + 1 AS wide
              FROM placed AS p),
    celled AS (
        SELECT z.*, (abs(z.ratio - 1), -z.step, -z.rank) AS oddness,
            CASE WHEN z.tall > max_rows THEN z.rank_at * max_rows // z.tall ELSE z.rank_at END AS y,
            CASE WHEN z.wide > max_columns THEN z.step_at * max_columns // z.wide ELSE z.step_at END AS x
        FROM sized AS z)
    SELECT c.y AS "row", c.x AS "column", min(c.rank) AS rank_first, max(c.rank) AS rank_last,
        min(c.step) AS step_first, max(c.step) AS step_last, count(c.value) AS n, avg(c.value) AS mean,
        avg(c.ratio) AS ratio, min(c.value) AS min, max(c.value) AS max,
        arg_max(c.value, c.oddness) FILTER (c.ratio IS NOT NULL) AS extreme,
        arg_max(c.ratio, c.oddness) FILTER (c.ratio IS NOT NULL) AS extreme_ratio,
        arg_max(c.rank, c.oddness) FILTER (c.ratio IS NOT NULL) AS extreme_rank,
        arg_max(c.step, c.oddness) FILTER (c.ratio IS NOT NULL) AS extreme_step,
        sum(c.odd)::BIGINT AS odd
    FROM celled AS c GROUP BY c.y, c.x ORDER BY c.y, c.x
    """,
    "FROM rank_heat('steps', max_columns := 2)",
    "of_run, of_metric := NULL, max_rows := 64, max_columns := 120, of_role := 'trainer'",
    columns=(
        ("row", "from 0, by rank"),
        ("column", "from 0, by step"),
        ("rank_first", "lowest rank in it"),
        ("rank_last", "highest"),
        ("step_first", "lowest step in it"),
        ("step_last", "highest"),
        ("n", "values"),
        ("mean", "of the values"),
        ("ratio", "mean ratio to the median rank of the step"),
        ("min", "smallest value"),
        ("max", "largest value"),
        ("extreme", "value farthest from the median of its step"),
        ("extreme_ratio", "its ratio to that median"),
        ("extreme_rank", "its rank"),
        ("extreme_step", "its step"),
        ("odd", "values that are not finite"),
    ),
)

VIEWS = (
    _METRIC_VALUES,
    _RANK_VALUES,
    _RANKS,
    _RANK_SKEW,
    _RANK_HEAT,
)
