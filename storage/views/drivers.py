"""What moved before a metric changed."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.statistics import FINITE
from driftline.storage.views.view import View

METRICS = 200

_DRIVERS = View(
    "drivers",
    f"one metric of the run and when it left its own course around a change of `of_metric`: at `at_step`, or "
    f"where that metric's level changed most (the first tenth of the run left out). A metric's course is a "
    f"robust line through the three stretches of `look_back` steps (by default a tenth of the run, or a fifth of what is before the change) before the "
    f"last one before the change; it moved where it is further from it than 5 robust sigmas, than 1.2 times its "
    f"farthest in those, and than 1.5 times the error that the same line, drawn one stretch earlier, made, and than half of what a sloping line rises between the middles of its halves (twice "
    f"in a row, where it hardly ever varied). Looked at are the {METRICS} metrics with most samples. No row where the metric has "
    f"too few points for a change",
    f"""
    TABLE
    WITH own AS MATERIALIZED (FROM levels(of_run, of_metric)),
    sized AS (SELECT max(o.bin) + 1 AS bins, min(o.first_step) AS first, max(o.last_step) AS last FROM own AS o),
    jumps AS (
        SELECT o.bin, o.first_step, median(o.value) OVER ahead AS after, median(o.value) OVER behind AS before,
            abs(avg(o.mean) OVER ahead - avg(o.mean) OVER behind) AS by_mean, count(*) OVER ahead AS n_after, count(*) OVER behind AS n_before
        FROM own AS o
        WINDOW ahead AS (ORDER BY o.bin ROWS BETWEEN CURRENT ROW AND 9 FOLLOWING),
            behind AS (ORDER BY o.bin ROWS BETWEEN 10 PRECEDING AND 1 PRECEDING)),
    biggest AS (
        SELECT arg_max(j.first_step, (abs(j.after - j.before), j.by_mean, -j.bin)) AS step FROM jumps AS j, sized AS z
        WHERE 10 * j.bin >= z.bins AND j.n_after >= 3 AND j.n_before >= 3),
    change AS MATERIALIZED (
        SELECT c.step, coalesce(look_back::BIGINT,
            greatest(1, least((z.last::HUGEINT - z.first) // 10, (c.step::HUGEINT - z.first) // 5))::BIGINT) AS back
        FROM (SELECT coalesce(at_step::BIGINT, b.step) AS step FROM biggest AS b) AS c, sized AS z
        WHERE c.step IS NOT NULL AND z.bins >= 10),
    grid AS MATERIALIZED (
        SELECT c.step, c.back, greatest(1, c.back // 40)::BIGINT AS width, greatest(-9223372036854775808, c.step::HUGEINT - 5 * c.back::HUGEINT)::BIGINT AS first FROM change AS c),
    counted AS (
        SELECT p.metric FROM (
            SELECT k.metric, count(*) AS points FROM samples AS k, grid AS g
            WHERE k.run = run_id(of_run) AND k.step >= g.first AND k.step <= g.step + g.back
            GROUP BY k.metric) AS p
        ORDER BY (p.metric = of_metric) DESC, p.points DESC, p.metric LIMIT {METRICS}),
    binned AS MATERIALIZED (
        SELECT k.metric, floor((k.step::HUGEINT - g.step) / g.width)::BIGINT AS bin, median(k.value) AS value,
            min(k.step) AS first_step
        FROM curves AS k, grid AS g
        WHERE k.run = run_id(of_run) AND abs(k.value) < {FINITE} AND k.step >= g.first
            AND k.step <= g.step + g.back AND k.metric IN (SELECT c.metric FROM counted AS c)
        GROUP BY k.metric, bin),
    tried AS MATERIALIZED (
        SELECT b.*, t.trial, b.bin * g.width + CASE t.trial WHEN 0 THEN g.back ELSE 0 END AS place, g.back, g.width
        FROM binned AS b, grid AS g, (SELECT unnest([0, 1]) AS trial) AS t
        WHERE b.bin * g.width + CASE t.trial WHEN 0 THEN g.back ELSE 0 END >= -4 * g.back),
    course AS (
        SELECT t.metric, t.trial, t.place, t.value, quantile_cont(t.place, 0.5) OVER (PARTITION BY t.metric, t.trial) AS middle
        FROM tried AS t WHERE t.place < -t.back),
    halves AS (
        SELECT c.metric, c.trial, median(c.value) FILTER (c.place <= c.middle) AS first,
            median(c.value) FILTER (c.place > c.middle) AS second,
            avg(c.place) FILTER (c.place > c.middle) - avg(c.place) FILTER (c.place <= c.middle) AS apart
        FROM course AS c GROUP BY c.metric, c.trial),
    slopes AS (
        SELECT h.metric, h.trial, coalesce((h.second - h.first) / nullif(h.apart, 0), 0) AS slope,
            coalesce(abs(h.second - h.first), 0) AS rise
        FROM halves AS h),
    straight AS (
        SELECT c.metric, c.trial, median(c.value - s.slope * c.place) AS start,
            1.4826 * mad(c.value - s.slope * c.place) AS spread, any_value(s.slope) AS slope,
            any_value(s.rise) AS rise, count(*) AS n, median(c.value) AS flat, 1.4826 * mad(c.value) AS flat_spread
        FROM course AS c JOIN slopes AS s ON s.metric = c.metric AND s.trial = c.trial GROUP BY c.metric, c.trial),
    line AS (
        SELECT s.metric, s.trial, CASE WHEN s.rise > 7.5 * s.spread / sqrt(s.n) THEN s.slope ELSE 0 END AS slope,
            CASE WHEN s.rise > 7.5 * s.spread / sqrt(s.n) THEN s.start ELSE s.flat END AS start,
            CASE WHEN s.rise > 7.5 * s.spread / sqrt(s.n) THEN s.spread ELSE s.flat_spread END AS spread,
            CASE WHEN s.rise > 7.5 * s.spread / sqrt(s.n) THEN s.rise ELSE 0 END AS rise
        FROM straight AS s WHERE s.n >= 8),
    away AS (
        SELECT t.metric, t.trial, t.place, t.first_step, t.value - l.start - l.slope * t.place AS off, l.spread, l.rise,
            l.start + l.slope * t.place AS expected, t.value, t.place < -t.back AS early,
            lead(t.value - l.start - l.slope * t.place) OVER (PARTITION BY t.metric, t.trial ORDER BY t.place) AS off_next
        FROM tried AS t JOIN line AS l ON l.metric = t.metric AND l.trial = t.trial),
    bound AS (
        SELECT a.metric, any_value(a.spread) FILTER (a.trial = 1) AS spread, greatest(
            5 * any_value(a.spread) FILTER (a.trial = 1), 0.5 * any_value(a.rise) FILTER (a.trial = 1),
            1.2 * max(abs(a.off)) FILTER (a.trial = 1 AND a.early),
            1.5 * max(abs(a.off)) FILTER (a.trial = 0 AND NOT a.early AND a.place <= 0),
            1e-9 * max(abs(a.expected)) FILTER (a.trial = 1)) AS far
        FROM away AS a GROUP BY a.metric),
    moved AS (
        SELECT a.metric, min(a.first_step) FILTER (NOT a.early AND abs(a.off) > b.far
                AND (b.spread > 0 OR abs(a.off_next) > b.far)) AS onset,
            arg_max(a.off / greatest(b.spread, 1e-6 * b.far), abs(a.off)) FILTER (NOT a.early AND a.place <= 0) AS size,
            arg_max(a.value, abs(a.off)) FILTER (NOT a.early AND a.place <= 0) AS value,
            arg_max(a.expected, abs(a.off)) FILTER (NOT a.early AND a.place <= 0) AS expected
        FROM away AS a JOIN bound AS b ON b.metric = a.metric WHERE a.trial = 1 GROUP BY a.metric)
    SELECT c.metric, g.step AS change_step, m.onset AS moved_step, g.step - m.onset AS lead,
        CASE WHEN isfinite(m.size) THEN greatest(-1e6, least(1e6, m.size)) END AS sigmas, m.value, m.expected,
        CASE WHEN m.metric IS NULL THEN 'too few points' WHEN m.onset IS NULL THEN 'did not move'
            WHEN c.metric = of_metric THEN 'the change itself' WHEN m.onset < g.step THEN 'moved before'
            WHEN m.onset < g.step + g.width THEN 'moved with it' ELSE 'moved after' END AS verdict,
        g.width AS steps_per_bin
    FROM counted AS c CROSS JOIN grid AS g LEFT JOIN moved AS m ON m.metric = c.metric
    ORDER BY (c.metric = of_metric) DESC, m.onset IS NULL, m.onset >= g.step + g.width, m.onset >= g.step,
        abs(m.size) DESC NULLS LAST, c.metric
    """,
    "SELECT metric, change_step, moved_step, lead, sigmas, verdict FROM drivers('study-a', 'nll')",
    "of_run, of_metric, at_step := NULL, look_back := NULL",
    columns=(
        ("metric", "the metric; the one asked for first, then those that moved before, by size"),
        ("change_step", "step of the change that is looked at"),
        ("moved_step", "first step at which this metric was off its course; null if it was not"),
        ("lead", "steps from there to the change; negative if it moved after"),
        ("sigmas", "how far off its course it was at most until the change, in robust sigmas (at most 1e6)"),
        ("value", "its value there"),
        ("expected", "its course there"),
        (
            "verdict",
            "'the change itself', 'moved before', 'moved with it', 'moved after', 'did not move', 'too few points'",
        ),
        ("steps_per_bin", "resolution of the steps"),
    ),
)

VIEWS = (_DRIVERS,)
