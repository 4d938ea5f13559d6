"""What moved before a metric changed."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.statistics import FINITE
from driftline.storage.views.view import View

METRICS = 200
EARLIER = 3
"""Stretches by which the same line is drawn earlier, to see how far it usually errs."""
HISTORY = 15
"""Points of the metric before a change that is looked for, if it has twice as many: five stretches of three."""

_DRIVERS = View(
    "drivers",
    f"one metric of the run and when it left its own course around a change of `of_metric`: at `at_step`, or "
    f"where that metric's level changed most (the first tenth of the run left out). A metric's course is a "
    f"robust line through the three stretches of `look_back` steps (by default a tenth of the run, or a seventh of what is before the change) before the "
    f"last one before the change; it moved where it is further from it than 5 robust sigmas, than 1.2 times its "
    f"farthest in those, and than 1.5 times the error that the same line, drawn up to {EARLIER} stretches earlier, made, and than half of what a sloping line rises between the middles of its halves and "
    f"than 1.5 times the smallest step that its values took; twice in a row, or twice as far; what was constant has moved where it "
    f"stays off for half of the time. A copy of `of_metric` or a function of it (ranks of levels and of changes agree) is named as such. Looked at are the {METRICS} metrics with most samples. No row where the metric has "
    f"too few points for a change",
    f"""
    TABLE
    WITH own AS MATERIALIZED (FROM levels(of_run, of_metric)),
    sized AS (SELECT max(o.bin) + 1 AS bins, min(o.first_step) AS first, max(o.last_step) AS last,
        ceil((max(o.last_step)::HUGEINT - min(o.first_step)) / greatest(sum(o.n) - 1, 1))::BIGINT AS spacing FROM own AS o),
    jumps AS (
        SELECT o.bin, o.first_step, median(o.value) OVER ahead AS after, median(o.value) OVER behind AS before,
            abs(avg(o.mean) OVER ahead - avg(o.mean) OVER behind) AS by_mean, count(*) OVER ahead AS n_after, count(*) OVER behind AS n_before
        FROM own AS o
        WINDOW ahead AS (ORDER BY o.bin ROWS BETWEEN CURRENT ROW AND 9 FOLLOWING),
            behind AS (ORDER BY o.bin ROWS BETWEEN 10 PRECEDING AND 1 PRECEDING)),
    biggest AS (
        SELECT arg_max(j.first_step, (abs(j.after - j.before), j.by_mean, -j.bin)) AS step FROM jumps AS j, sized AS z
        WHERE 10 * j.bin >= z.bins AND j.bin >= least({HISTORY}, z.bins // 2) AND j.n_after >= 3 AND j.n_before >= 3),
    change AS MATERIALIZED (
        SELECT c.step, coalesce(look_back::BIGINT,
            greatest(1, least(greatest((z.last::HUGEINT - z.first) // 10, 3 * z.spacing::HUGEINT),
                greatest((c.step::HUGEINT - z.first) // {1 + 3 + EARLIER}, least((c.step::HUGEINT - z.first) // 5, 3 * z.spacing::HUGEINT))))::BIGINT) AS back
        FROM (SELECT coalesce(at_step::BIGINT, b.step) AS step FROM biggest AS b) AS c, sized AS z
        WHERE c.step IS NOT NULL AND z.bins >= 10),
    grid AS MATERIALIZED (
        SELECT c.step, c.back, greatest(1, c.back // 40)::BIGINT AS width, greatest(-9223372036854775808, c.step::HUGEINT - {1 + 3 + EARLIER} * c.back::HUGEINT)::BIGINT AS first FROM change AS c),
    counted AS (
        SELECT p.metric FROM (
            SELECT k.metric, count(*) AS points FROM samples AS k, grid AS g
            WHERE k.run = (SELECT run_id(of_run)) AND k.step >= g.first AND k.step <= g.step + g.back
            GROUP BY k.metric) AS p
        ORDER BY (p.metric = of_metric) DESC, p.points DESC, p.metric LIMIT {METRICS}),
    binned AS MATERIALIZED (
        SELECT k.metric, floor((k.step::HUGEINT - g.step) / g.width)::BIGINT AS bin, median(k.value) AS value,
            min(k.step) AS first_step
        FROM run_curves(of_run) AS k, grid AS g
        WHERE abs(k.value) < {FINITE} AND k.step >= g.first
            AND k.step <= g.step + g.back AND k.metric IN (SELECT c.metric FROM counted AS c)
        GROUP BY k.metric, bin),
    tried AS MATERIALIZED (
        SELECT b.*, t.trial, b.bin * g.width + t.trial * g.back AS place, g.back, g.width
        FROM binned AS b, grid AS g, (SELECT unnest(range(0, {EARLIER} + 1)) AS trial) AS t
        WHERE b.bin * g.width + t.trial * g.back >= -4 * g.back),
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
    away AS MATERIALIZED (
        SELECT t.metric, t.trial, t.place, t.first_step, t.value, t.value - l.start - l.slope * t.place AS off,
            l.spread, l.rise, l.start + l.slope * t.place AS expected, t.place < -t.back AS early,
            t.value - lag(t.value) OVER (PARTITION BY t.metric, t.trial, t.place < -t.back ORDER BY t.value) AS gap
        FROM tried AS t JOIN line AS l ON l.metric = t.metric AND l.trial = t.trial),
    bound AS (
        SELECT m.metric, m.scale, greatest(5 * m.scale, m.least) AS far, 5 * m.scale <= m.least AS still FROM (
            SELECT a.metric, 1e-9 * max(abs(a.expected)) FILTER (a.trial = 0) AS least, greatest(
                any_value(a.spread) FILTER (a.trial = 0), 0.1 * any_value(a.rise) FILTER (a.trial = 0),
                0.24 * max(abs(a.off)) FILTER (a.trial = 0 AND a.early),
                0.3 * max(abs(a.off)) FILTER (a.trial > 0 AND NOT a.early AND a.place <= 0),
                0.3 * min(a.gap) FILTER (a.trial = 0 AND a.early AND a.gap > 0)) AS scale
            FROM away AS a GROUP BY a.metric) AS m),
    around AS (
        SELECT a.metric, a.place, a.first_step, a.value, a.expected, a.off, b.scale, b.far, b.still,
            lead(a.off) OVER o * sign(a.off) AS next, avg((abs(a.off) > b.far)::INTEGER) OVER rest AS stays
        FROM away AS a JOIN bound AS b ON b.metric = a.metric WHERE a.trial = 0 AND NOT a.early
        WINDOW o AS (PARTITION BY a.metric ORDER BY a.place),
            rest AS (PARTITION BY a.metric ORDER BY a.place ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
    moved AS (
        SELECT a.metric, min(a.first_step) FILTER (abs(a.off) > a.far AND CASE WHEN a.still THEN a.stays >= 0.5
                ELSE abs(a.off) > 2 * a.far OR a.next > a.far END) AS onset,
            arg_max(CASE WHEN NOT a.still THEN a.off / a.scale END, abs(a.off)) FILTER (a.place <= 0) AS size,
            arg_max(a.value, abs(a.off)) FILTER (a.place <= 0) AS value,
            arg_max(a.expected, abs(a.off)) FILTER (a.place <= 0) AS expected,
            any_value(a.still) AND max(abs(a.off)) <= any_value(a.far) AS constant
        FROM around AS a GROUP BY a.metric),
    pairs AS (
        SELECT b.metric, b.bin, b.value, o.value AS own, b.value - lag(b.value) OVER w AS change,
            o.value - lag(o.value) OVER w AS own_change
        FROM binned AS b JOIN binned AS o ON o.metric = of_metric AND o.bin = b.bin WHERE b.metric <> of_metric
        WINDOW w AS (PARTITION BY b.metric ORDER BY b.bin)),
    twins AS (
        SELECT r.metric, bool_and(r.value = r.own) AS same
        FROM (
            SELECT p.*, rank() OVER (PARTITION BY p.metric ORDER BY p.value) AS level,
                rank() OVER (PARTITION BY p.metric ORDER BY p.own) AS own_level,
                CASE WHEN p.change IS NOT NULL THEN rank() OVER (PARTITION BY p.metric, p.change IS NULL ORDER BY p.change) END AS moves,
                CASE WHEN p.change IS NOT NULL THEN rank() OVER (PARTITION BY p.metric, p.change IS NULL ORDER BY p.own_change) END AS own_moves
            FROM pairs AS p) AS r
        GROUP BY r.metric HAVING count(*) >= 8 AND count(DISTINCT r.own) >= 6
            AND abs(corr(r.level, r.own_level)) >= 0.99 AND abs(corr(r.moves, r.own_moves)) >= 0.9),
    judged AS (
        SELECT c.metric, g.step AS change_step, m.onset AS moved_step, g.step - m.onset AS lead, m.size, m.value,
            m.expected, g.width AS steps_per_bin,
            CASE WHEN m.metric IS NULL THEN 'too few points' WHEN m.constant THEN 'constant'
                WHEN t.metric IS NOT NULL THEN CASE WHEN t.same THEN 'a copy of it' ELSE 'a function of it' END
                WHEN m.onset IS NULL THEN 'did not move'
                WHEN c.metric = of_metric THEN 'the change itself' WHEN m.onset < g.step THEN 'moved before'
                WHEN m.onset < g.step + g.width THEN 'moved with it' ELSE 'moved after' END AS verdict
        FROM counted AS c CROSS JOIN grid AS g LEFT JOIN moved AS m ON m.metric = c.metric
        LEFT JOIN twins AS t ON t.metric = c.metric)
    SELECT j.metric, j.change_step, j.moved_step, j.lead,
        CASE WHEN isfinite(j.size) THEN greatest(-1e6, least(1e6, j.size)) END AS sigmas, j.value, j.expected,
        j.verdict, j.steps_per_bin
    FROM judged AS j
    ORDER BY (j.metric = of_metric) DESC, list_position(['moved before', 'moved with it', 'a copy of it',
        'a function of it', 'moved after', 'did not move', 'constant', 'too few points'], j.verdict),
        abs(j.size) DESC NULLS LAST, j.metric
    """,
    "SELECT metric, change_step, moved_step, lead, sigmas, verdict FROM drivers('study-a', 'nll')",
    "of_run, of_metric, at_step := NULL, look_back := NULL",
    columns=(
        ("metric", "the metric; the one asked for first, then those that moved before, by size"),
        ("change_step", "step of the change that is looked at"),
        ("moved_step", "first step at which this metric was off its course; null if it was not"),
        ("lead", "steps from there to the change; negative if it moved after"),
        (
            "sigmas",
            "how far off its course it was at most until the change, in units of which 5 are a move; null if it was "
            "constant before",
        ),
        ("value", "its value there"),
        ("expected", "its course there"),
        (
            "verdict",
            "of the metric asked for 'the change itself' or 'did not move'; of others 'moved before', 'moved with it', "
            "'a copy of it', 'a function of it', 'moved after', 'did not move', 'constant' (but for single odd values), 'too few points'",
        ),
        ("steps_per_bin", "resolution of the steps"),
    ),
)

VIEWS = (_DRIVERS,)
