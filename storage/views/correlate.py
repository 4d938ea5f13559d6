"""Which metrics of a run move together, judged so that two random walks do not."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.statistics import FINITE
from driftline.storage.views.view import View

METRICS = 40
"""Metrics that one answer looks at, those with most samples."""
BINS = 400
LAGS = 20

_CORRELATE = View(
    "correlate",
    f"one pair of metrics of one run: all pairs, or `of_metric` against each other one. Levels that drift "
    f"always seem to correlate, so the verdict rests on the ranks of the changes from step to step, with an "
    f"effective number of points by their autocorrelation, corrected for the lags tried (Sidak) and for the "
    f"pairs (Benjamini and Hochberg). `max_lag` steps to each side are tried, at most {LAGS} lags; looked at "
    f"are the {METRICS} metrics with most samples, in at most {BINS} bins of steps",
    f"""
    TABLE
    WITH counted AS MATERIALIZED (
        SELECT k.metric, count(*) AS points, min(k.step) AS first, max(k.step) AS last
        FROM samples AS k
        WHERE k.run = run_id(of_run) AND k.step IS NOT NULL AND abs(k.value) < {FINITE}
            AND (since_step IS NULL OR k.step >= since_step) AND (until_step IS NULL OR k.step <= until_step)
        GROUP BY k.metric),
    chosen AS MATERIALIZED (
        SELECT c.metric AS name, row_number() OVER (ORDER BY c.metric) AS metric FROM (
            SELECT k.metric FROM counted AS k
            ORDER BY (k.metric = coalesce(of_metric, '')) DESC, k.points DESC, k.metric
            LIMIT {METRICS}) AS c),
    grid AS MATERIALIZED (
        SELECT min(c.first) AS first,
            greatest(1, (max(c.last)::HUGEINT - min(c.first) + {BINS}) // {BINS})::BIGINT AS width,
            greatest(0, count(*) - {METRICS}) AS metrics_left_out
        FROM counted AS c),
    binned AS MATERIALIZED (
        SELECT h.metric, ((k.step::HUGEINT - g.first) // g.width)::BIGINT AS bin, avg(k.value) AS value
        FROM run_curves(of_run) AS k JOIN chosen AS h ON h.name = k.metric, grid AS g
        WHERE abs(k.value) < {FINITE}
            AND (since_step IS NULL OR k.step >= since_step) AND (until_step IS NULL OR k.step <= until_step)
        GROUP BY h.metric, bin),
    gaps AS MATERIALIZED (
        SELECT s.metric, greatest(1, floor(median(s.gap)))::BIGINT AS gap FROM (
            SELECT b.metric, b.bin - lag(b.bin) OVER (PARTITION BY b.metric ORDER BY b.bin) AS gap
            FROM binned AS b) AS s
        WHERE s.gap IS NOT NULL GROUP BY s.metric),
    spacings AS (SELECT DISTINCT p.gap FROM gaps AS p),
    spaced AS MATERIALIZED (
        SELECT p.metric, s.gap, b.bin, b.bin - s.gap AS bin_before, b.value
        FROM gaps AS p JOIN spacings AS s ON s.gap >= p.gap JOIN binned AS b ON b.metric = p.metric),
    changes AS MATERIALIZED (
        SELECT b.metric, b.gap, b.bin, b.value - a.value AS change
        FROM spaced AS b JOIN binned AS a ON a.metric = b.metric AND a.bin = b.bin_before),
    ranked AS MATERIALIZED (
        SELECT c.metric, c.gap, c.bin, c.place - avg(c.place) OVER (PARTITION BY c.metric, c.gap) AS place
        FROM (
            SELECT h.metric, h.gap, h.bin, rank() OVER (PARTITION BY h.metric, h.gap ORDER BY h.change)
                + (count(*) OVER (PARTITION BY h.metric, h.gap, h.change) - 1) / 2.0 AS place
            FROM changes AS h) AS c),
    scale AS (SELECT r.metric, r.gap, sum(r.place * r.place) AS total FROM ranked AS r GROUP BY r.metric, r.gap),
    followed AS MATERIALIZED (
        SELECT r.metric, r.gap, j.k, r.place, r.bin + j.k * r.gap AS bin
        FROM ranked AS r CROSS JOIN (SELECT unnest(range(1, 21)) AS k) AS j),
    memory AS MATERIALIZED (
        SELECT a.metric, a.gap, a.k, sum(a.place * b.place) / any_value(nullif(s.total, 0)) AS rho
        FROM followed AS a JOIN ranked AS b ON b.metric = a.metric AND b.gap = a.gap AND b.bin = a.bin
        JOIN scale AS s ON s.metric = a.metric AND s.gap = a.gap
        GROUP BY a.metric, a.gap, a.k),
    pairs AS MATERIALIZED (
        SELECT a.metric AS metric_a, b.metric AS metric_b, a.name AS name_a, b.name AS name_b,
            greatest(ga.gap, gb.gap) AS gap
        FROM chosen AS a JOIN chosen AS b
            ON CASE WHEN of_metric IS NULL THEN a.metric < b.metric
                ELSE a.name = of_metric AND b.metric <> a.metric END
        LEFT JOIN gaps AS ga ON ga.metric = a.metric LEFT JOIN gaps AS gb ON gb.metric = b.metric),
    lags AS (
        SELECT unnest(range(-w.most, w.most + 1)) AS shift
        FROM (SELECT least({LAGS}, greatest(0, max_lag) // g.width) AS most FROM grid AS g) AS w),
    lagged AS MATERIALIZED (
        SELECT p.metric_a, p.metric_b, p.gap, l.shift, a.place, a.bin + l.shift AS bin
        FROM pairs AS p JOIN ranked AS a ON a.metric = p.metric_a AND a.gap = p.gap CROSS JOIN lags AS l),
    together AS (
        SELECT a.metric_a, a.metric_b, a.gap, a.shift, corr(a.place, b.place) AS r, count(*) AS n
        FROM lagged AS a JOIN ranked AS b ON b.metric = a.metric_b AND b.gap = a.gap AND b.bin = a.bin
        GROUP BY a.metric_a, a.metric_b, a.gap, a.shift),
    best AS MATERIALIZED (
        SELECT t.*, l.tried FROM together AS t, (SELECT count(*) AS tried FROM lags) AS l WHERE t.n >= 8 AND isfinite(t.r)
        QUALIFY row_number() OVER (PARTITION BY t.metric_a, t.metric_b
            ORDER BY abs(t.r) * sqrt(t.n) DESC, abs(t.shift), t.shift) = 1),
    worth AS (
        SELECT b.metric_a, b.metric_b, greatest(1.0, 1 + 2 * coalesce(sum(
            CASE WHEN x.k < b.n THEN (1 - x.k / b.n) * x.rho * y.rho END), 0)) AS inflation
        FROM best AS b LEFT JOIN memory AS x ON x.metric = b.metric_a AND x.gap = b.gap
        LEFT JOIN memory AS y ON y.metric = b.metric_b AND y.gap = b.gap AND y.k = x.k
        GROUP BY b.metric_a, b.metric_b),
    tested AS (
        SELECT b.*, greatest(4.0, b.n / w.inflation) AS n_effective
        FROM best AS b JOIN worth AS w ON w.metric_a = b.metric_a AND w.metric_b = b.metric_b),
    scored AS (
        SELECT t.*, t.n_effective - 2 AS df,
            coalesce(t.r * sqrt((t.n_effective - 2) / nullif(greatest(0.0, 1 - t.r * t.r), 0)), 1e9) AS t_value
        FROM tested AS t),
    valued AS (
        SELECT s.*, 1 - power(1 - student_p(s.t_value, s.df), s.tried) AS p_value FROM scored AS s),
    adjusted AS (
        SELECT v.*, min(v.p_value * v.pairs / v.place) OVER (ORDER BY v.place DESC) AS q_value FROM (
            SELECT u.*, count(*) OVER () AS pairs,
                row_number() OVER (ORDER BY u.p_value, u.metric_a, u.metric_b) AS place
            FROM valued AS u) AS v),
    levels_together AS (
        SELECT e.metric_a, e.metric_b, corr(e.a, e.b) AS pearson, corr(e.place_a, e.place_b) AS spearman
        FROM (
            SELECT p.metric_a, p.metric_b, a.value AS a, b.value AS b,
                rank() OVER (PARTITION BY p.metric_a, p.metric_b ORDER BY a.value)
                    + (count(*) OVER (PARTITION BY p.metric_a, p.metric_b, a.value)) / 2.0 AS place_a,
                rank() OVER (PARTITION BY p.metric_a, p.metric_b ORDER BY b.value)
                    + (count(*) OVER (PARTITION BY p.metric_a, p.metric_b, b.value)) / 2.0 AS place_b
            FROM pairs AS p LEFT JOIN best AS t ON t.metric_a = p.metric_a AND t.metric_b = p.metric_b
            JOIN binned AS a ON a.metric = p.metric_a
            JOIN binned AS b ON b.metric = p.metric_b AND b.bin = a.bin + coalesce(t.shift, 0)) AS e
        GROUP BY e.metric_a, e.metric_b)
    SELECT p.name_a AS metric_a, p.name_b AS metric_b, a.shift * g.width AS "lag", a.r AS change_correlation,
        CASE WHEN isfinite(l.pearson) THEN l.pearson END AS pearson,
        CASE WHEN isfinite(l.spearman) THEN l.spearman END AS spearman,
        a.n, a.n_effective, a.p_value, a.q_value,
        CASE WHEN a.q_value IS NULL THEN NULL WHEN a.q_value < 0.05 THEN 'related'
            WHEN abs(l.spearman) >= 0.5 THEN 'drift only' ELSE 'not shown' END AS verdict,
        CASE WHEN a.q_value IS NULL THEN 'fewer than 8 common changes, or one does not change' END AS why,
        g.width AS steps_per_bin, g.metrics_left_out
    FROM pairs AS p CROSS JOIN grid AS g
    LEFT JOIN adjusted AS a ON a.metric_a = p.metric_a AND a.metric_b = p.metric_b
    LEFT JOIN levels_together AS l ON l.metric_a = p.metric_a AND l.metric_b = p.metric_b
    ORDER BY a.q_value NULLS LAST, round(abs(a.r), 9) DESC NULLS LAST, p.name_a, p.name_b
    """,
    'SELECT metric_a, metric_b, "lag", change_correlation, pearson, n_effective, q_value, verdict FROM '
    "correlate('study-a', max_lag := 2)",
    "of_run, of_metric := NULL, max_lag := 0, since_step := NULL, until_step := NULL",
    columns=(
        ("metric_a", "one metric"),
        ("metric_b", "another"),
        (
            "lag",
            "steps by which metric_b is later than metric_a where they fit best; the first moves first if > 0",
        ),
        ("change_correlation", "rank correlation of their changes at that lag: what the verdict rests on"),
        ("pearson", "Pearson correlation of their levels at that lag; says nothing where both drift"),
        ("spearman", "Spearman correlation of their levels at that lag"),
        ("n", "common changes"),
        ("n_effective", "independent ones that they are worth"),
        ("p_value", "two-sided, for unrelated changes, corrected for the lags tried"),
        ("q_value", "false discovery rate over the pairs at which this one is still found"),
        (
            "verdict",
            "'related' (q under 0.05), 'drift only' (the levels agree, the changes do not), 'not shown'",
        ),
        ("why", "why there is no verdict"),
        ("steps_per_bin", "resolution of the lag in steps"),
        ("metrics_left_out", "metrics of the run that were not looked at"),
    ),
)

VIEWS = (_CORRELATE,)
