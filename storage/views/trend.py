"""Where a curve is going: a robust slope with its interval, a forecast, the time to a target, its plateau."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.statistics import FINITE
from driftline.storage.views.view import View

_TREND = View(
    "trend",
    "one metric of one run: Theil-Sen slope per step over its last `over_steps` steps (by default the last "
    "half) with a 95 % interval that allows for autocorrelation, a forecast `horizon` steps ahead (by default "
    "a quarter of the window), the steps to `target`, since when there is no improvement, the best value, and how "
    "far the level has fallen from the best one. `better` is "
    "'max' or 'min'; without it the declared goal, without that the way the curve has gone. No row where the "
    "metric has no point",
    f"""
    TABLE
    WITH whole AS MATERIALIZED (FROM levels(of_run, of_metric)),
    asked AS (
        SELECT t.until_step, t.until_step - coalesce(over_steps::BIGINT, ((t.until_step::HUGEINT - t.from_step) // 2)::BIGINT)
            AS since_step, t.from_step, t.bins,
            coalesce(better, (
                SELECT max_by(d.goal, d."offset") FROM metric_definitions AS d
                WHERE d.run = (SELECT run_id(of_run)) AND d.metric = of_metric AND d.goal IS NOT NULL),
                CASE WHEN t.late >= t.early THEN 'max' ELSE 'min' END) AS direction
        FROM (
            SELECT max(b.last_step) AS until_step, min(b.first_step) AS from_step, count(*) AS bins,
                median(b.value) FILTER (3 * b.bin < (SELECT max(v.bin) + 1 FROM whole AS v)) AS early,
                median(b.value) FILTER (3 * b.bin >= 2 * (SELECT max(v.bin) FROM whole AS v)) AS late
            FROM whole AS b) AS t
        WHERE t.bins > 0),
    near AS MATERIALIZED (
        FROM levels(of_run, of_metric, since_step := (SELECT q.since_step FROM asked AS q))),
    coarse AS MATERIALIZED (
        SELECT b.bin * least(q.bins, 40) // q.bins AS block, min(b.first_step) AS first_step,
            median(b.value) * CASE any_value(q.direction) WHEN 'max' THEN 1 ELSE -1 END AS good
        FROM whole AS b, asked AS q GROUP BY block),
    parts AS (
        SELECT 0 AS part, n.bin AS place, n.step, n.value FROM near AS n
        UNION ALL
        SELECT 1, b.bin, b.step, b.value FROM whole AS b, asked AS q WHERE 2 * b.bin >= q.bins
        UNION ALL
        SELECT CASE WHEN 2 * n.bin > (SELECT max(v.bin) FROM near AS v) THEN 3 ELSE 2 END, n.bin, n.step,
            n.value
        FROM near AS n),
    placed AS (
        SELECT p.part, p.step, p.value, row_number() OVER (PARTITION BY p.part ORDER BY p.place) - 1 AS place,
            count(*) OVER (PARTITION BY p.part) AS total
        FROM parts AS p),
    blocks AS MATERIALIZED (
        SELECT p.part, p.place * least(p.total, 20) // p.total AS block, avg(p.step) AS x,
            median(p.value) AS y
        FROM placed AS p GROUP BY p.part, block),
    pairs AS (
        SELECT a.part, (b.y - a.y) / (b.x - a.x) AS slope
        FROM blocks AS a JOIN blocks AS b ON b.part = a.part AND b.block > a.block),
    slopes AS MATERIALIZED (
        SELECT p.part, median(p.slope) AS slope, list_sort(list(p.slope)) AS sorted, count(*) AS pairs
        FROM pairs AS p GROUP BY p.part),
    residuals AS (
        SELECT b.part, b.block, b.y - s.slope * b.x AS e FROM blocks AS b JOIN slopes AS s ON s.part = b.part),
    middles AS (
        SELECT r.part, count(*) AS m, median(r.e) AS intercept, 1.4826 * mad(r.e) AS spread
        FROM residuals AS r GROUP BY r.part),
    clipped AS (
        SELECT r.part, r.block, i.m, i.intercept, i.spread, CASE WHEN i.spread > 0
            THEN least(3 * i.spread, greatest(-3 * i.spread, r.e - i.intercept))
            ELSE r.e - i.intercept END AS e
        FROM residuals AS r JOIN middles AS i ON i.part = r.part),
    fits AS (
        SELECT f.part, f.m, f.intercept, f.spread, f.rest, least(0.97, greatest(0.0,
            (f.m * coalesce(f.along / nullif(f.rest, 0), 0) + 2) / (f.m - 4))) AS rho
        FROM (
            SELECT e.part, any_value(e.m) AS m, any_value(e.intercept) AS intercept,
                any_value(e.spread) AS spread, sum((e.e - e.mean) * (e.before - e.mean)) AS along,
                sum(power(e.e - e.mean, 2)) AS rest
            FROM (SELECT c.*, lag(c.e) OVER o AS before, avg(c.e) OVER (PARTITION BY c.part) AS mean
                FROM clipped AS c WINDOW o AS (PARTITION BY c.part ORDER BY c.block)) AS e
            GROUP BY e.part) AS f
        WHERE f.m >= 5),
    reach AS (
        SELECT f.part, f.m, f.intercept, f.rest, f.spread, s.slope, s.sorted, s.pairs, (1 + f.rho) / (1 - f.rho) AS wide,
            CASE WHEN f.rest = 0 THEN 0 ELSE 1.96 * sqrt(f.m * (f.m - 1) * (2 * f.m + 5) / 18.0 * (1 + f.rho) / (1 - f.rho)) END AS c
        FROM fits AS f JOIN slopes AS s ON s.part = f.part),
    spans AS (
        SELECT b.part, sqrt(var_pop(b.x) * count(*)) AS span FROM blocks AS b GROUP BY b.part),
    sloped AS MATERIALIZED (
        SELECT r.*,
            CASE WHEN r.c < r.pairs - 2 THEN r.sorted[floor((r.pairs - r.c) / 2)::BIGINT + 1]
                ELSE r.slope - r.normal / s.span END AS low,
            CASE WHEN r.c < r.pairs - 2 THEN r.sorted[ceil(least(r.pairs - 1, (r.pairs + r.c) / 2))::BIGINT + 1]
                ELSE r.slope + r.normal / s.span END AS high
        FROM (SELECT e.*, 1.96 * sqrt(e.wide * e.rest / greatest(e.m - 2 * e.wide, e.m / 4.0)) AS normal
            FROM reach AS e) AS r JOIN spans AS s ON s.part = r.part),
    reached AS (
        SELECT r.block, r.first_step, max(r.level) OVER (ORDER BY r.block) AS best, r.later,
            max(r.good) OVER (ORDER BY r.block) AS top FROM (
            SELECT c.block, c.good, lag(c.first_step) OVER o AS first_step,
                CASE WHEN count(*) OVER o = 4 THEN avg(c.good) OVER o END AS level,
                avg(c.good) OVER after AS later
            FROM coarse AS c WINDOW o AS (ORDER BY c.block ROWS 3 PRECEDING),
                after AS (ORDER BY c.block ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)) AS r),
    level_since AS (
        SELECT min(r.first_step) AS first_step, min(r.block) - 1 AS block,
            any_value(s.spread * sqrt(s.wide)) AS noise
        FROM reached AS r JOIN sloped AS s ON s.part = 1
        WHERE r.best >= r.later - 2.576 * s.spread * sqrt(s.wide) AND r.top >= (
            SELECT min(e.good) FROM coarse AS e WHERE 8 * e.block >= 7 * (SELECT count(*) FROM coarse))),
    plateau AS (
        SELECT any_value(l.first_step) AS plateau_since
        FROM level_since AS l JOIN coarse AS c ON c.block >= l.block,
            (SELECT count(*) AS blocks FROM coarse) AS t
        WHERE 4 * l.block <= 3 * t.blocks AND t.blocks >= 12
        HAVING avg(c.good) FILTER (2 * c.block >= l.block + t.blocks)
            - avg(c.good) FILTER (2 * c.block < l.block + t.blocks)
            <= 2.576 * any_value(l.noise)),
    tenths AS MATERIALIZED (
        SELECT c.block, count(*) OVER () AS blocks, avg(c.good) OVER o AS level, count(*) OVER o AS n,
            c.good - lag(c.good) OVER (ORDER BY c.block) AS change, first_value(c.first_step) OVER o AS first_step
        FROM coarse AS c WINDOW o AS (ORDER BY c.block ROWS 3 PRECEDING)),
    quiet AS (
        SELECT greatest(1.4826 * median(abs(t.change - m.middle)), 0.5 * quantile_cont(abs(t.change - m.middle), 0.9))
            / sqrt(2) * sqrt(2 / 4.0) AS se
        FROM tenths AS t, (SELECT median(v.change) AS middle FROM tenths AS v) AS m),
    fall AS (
        SELECT f.*, f.top - f.newest > greatest(8 * f.se, f.least) OR f.top - f.lately > greatest(4 * f.se, f.least) AS fallen
        FROM (
            SELECT max(t.level) AS top, arg_max(t.first_step, (t.level, -t.block)) AS top_step,
                arg_max(t.level, t.block) AS newest, any_value(q.se) AS se, 1e-9 * max(abs(t.level)) AS least,
                max(t.level) FILTER (t.block - 3 >= t.blocks - greatest(4, t.blocks // 4)) AS lately
            FROM tenths AS t, quiet AS q WHERE t.n = 4 AND t.blocks >= 12) AS f),
    extremes AS (
        SELECT arg_min(k.value, (k.value, k.step)) AS lowest, arg_min(k.step, (k.value, k.step)) AS lowest_step,
            arg_max(k.value, (k.value, -k.step)) AS highest, arg_max(k.step, (k.value, -k.step)) AS highest_step,
            arg_max(k.value, k.step) AS "last"
        FROM run_curves(of_run) AS k WHERE k.metric = of_metric AND abs(k.value) < {FINITE}),
    line AS (
        SELECT s.slope, s.low, s.high, s.intercept + s.slope * q.until_step AS level,
            s.rest / s.m * s.wide / s.m AS level_variance, (s.high - s.low) / 2 AS reach, q.*,
            (SELECT avg(n.step) FROM near AS n) AS center
        FROM sloped AS s, asked AS q WHERE s.part = 0),
    raw AS (
        SELECT count(*) FILTER (abs(k.value) < {FINITE}) AS n,
            count(*) FILTER (NOT coalesce(abs(k.value) < {FINITE}, false)) AS left_out,
            1.4826 * median(abs(k.value - l.level - l.slope * (k.step - q.until_step)))
                FILTER (abs(k.value) < {FINITE}) AS noise
        FROM run_curves(of_run) AS k, asked AS q LEFT JOIN line AS l ON true
        WHERE k.metric = of_metric AND k.step >= q.since_step),
    pace AS (
        SELECT median(p.seconds / nullif(p.steps, 0)) AS seconds_per_step FROM (
            SELECT (epoch_us(n.time) - lag(epoch_us(n.time)) OVER o) / 1e6 AS seconds,
                n.first_step - lag(n.first_step) OVER o AS steps
            FROM near AS n WINDOW o AS (ORDER BY n.bin)) AS p),
    bent AS (
        SELECT b.slope - a.slope AS change,
            abs(b.slope - a.slope) > sqrt(power(b.high - b.low, 2) + power(a.high - a.low, 2)) / 2 AS curved
        FROM sloped AS a, sloped AS b WHERE a.part = 2 AND b.part = 3),
    ahead AS (
        SELECT l.*, r.n, r.left_out, r.noise, coalesce(t.curved, false) AS curved, h.horizon_steps,
            l.level + l.slope * h.horizon_steps AS forecast,
            sqrt(power(1.96 * r.noise, 2) + power(1.96, 2) * l.level_variance
                + power(l.reach * (l.until_step + h.horizon_steps - l.center), 2))
            + CASE WHEN t.curved THEN abs(t.change) * ((l.until_step - l.since_step) / 6.0 + h.horizon_steps
                + power(h.horizon_steps, 2) / nullif(l.until_step - l.since_step, 0)) ELSE 0 END AS within,
            (target::DOUBLE - l.level) / nullif(l.slope, 0) AS target_in,
            (target::DOUBLE - l.level) / nullif(CASE WHEN target > l.level THEN l.high ELSE l.low END, 0)
                AS soonest,
            (target::DOUBLE - l.level) / nullif(CASE WHEN target > l.level THEN l.low ELSE l.high END, 0)
                AS latest,
            CASE l.direction WHEN 'max' THEN l.level >= target ELSE l.level <= target END AS reached
        FROM line AS l, raw AS r, (SELECT coalesce(horizon::BIGINT,
            (q.until_step - q.since_step) // 4) AS horizon_steps FROM asked AS q) AS h LEFT JOIN bent AS t ON true)
    SELECT q.since_step AS from_step, q.until_step, r.n, r.left_out, a.slope, a.low, a.high, a.level,
        r.noise, a.curved, a.until_step + a.horizon_steps AS forecast_step, a.forecast,
        a.forecast - a.within AS forecast_low, a.forecast + a.within AS forecast_high,
        CASE WHEN a.target_in BETWEEN 0 AND 1e15 AND NOT a.reached THEN a.until_step + a.target_in END
            AS target_step,
        CASE WHEN a.soonest BETWEEN 0 AND 1e15 AND NOT a.reached THEN a.until_step + a.soonest END
            AS target_low,
        CASE WHEN a.latest BETWEEN 0 AND 1e15 AND NOT a.reached THEN a.until_step + a.latest END
            AS target_high,
        CASE WHEN a.target_in BETWEEN 0 AND 1e15 AND NOT a.reached THEN a.target_in * p.seconds_per_step END
            AS target_seconds,
        CASE WHEN f.fallen OR a.low > 0 OR a.high < 0 THEN NULL ELSE u.plateau_since END AS plateau_since,
        CASE q.direction WHEN 'max' THEN x.highest ELSE x.lowest END AS best,
        CASE q.direction WHEN 'max' THEN x.highest_step ELSE x.lowest_step END AS best_step, x."last",
        f.top - f.newest AS fallen, CASE WHEN f.top - f.newest > f.least
            THEN least(1e6, (f.top - f.newest) / greatest(f.se, 1e-300)) WHEN f.top IS NOT NULL THEN 0 END AS fallen_in_se,
        CASE WHEN f.fallen THEN f.top_step END AS fallen_since, q.direction,
        CASE WHEN a.slope IS NULL THEN NULL WHEN a.low > 0 THEN
                CASE q.direction WHEN 'max' THEN 'improving' ELSE 'worsening' END
            WHEN a.high < 0 THEN CASE q.direction WHEN 'max' THEN 'worsening' ELSE 'improving' END
            WHEN f.fallen THEN 'fallen' WHEN u.plateau_since IS NOT NULL THEN 'plateau' ELSE 'no trend shown' END AS verdict,
        CASE WHEN a.slope IS NULL THEN 'fewer than 5 finite points in the window'
            WHEN target IS NULL THEN NULL WHEN a.reached THEN 'the target is reached'
            WHEN a.target_in BETWEEN 0 AND 1e15 AND a.latest BETWEEN 0 AND 1e15 THEN NULL
            WHEN a.target_in BETWEEN 0 AND 1e15 THEN 'the slope may be zero: no latest step'
            ELSE 'the curve does not move towards the target' END AS why
    FROM asked AS q LEFT JOIN ahead AS a ON true LEFT JOIN raw AS r ON true LEFT JOIN pace AS p ON true
    LEFT JOIN plateau AS u ON true LEFT JOIN fall AS f ON true LEFT JOIN extremes AS x ON true
    """,
    "SELECT from_step, until_step, n, slope, low, high, level, plateau_since, verdict FROM "
    "trend('study-b', 'nll', over_steps := 40, target := 0.28, better := 'min')",
    "of_run, of_metric, over_steps := NULL, horizon := NULL, target := NULL, better := NULL",
    columns=(
        ("from_step", "first step of the window that the slope is from"),
        ("until_step", "last step of the curve"),
        ("n", "finite points in the window"),
        ("left_out", "points of the window that are NaN or infinite (or 1e150 and more)"),
        ("slope", "change of the metric per step"),
        ("low", "lower end of its 95 % interval"),
        ("high", "upper end of its 95 % interval"),
        ("level", "the line at the last step"),
        ("noise", "robust standard deviation of single points around the line"),
        (
            "curved",
            "whether the two halves of the window differ in slope beyond noise; the forecast is wider then",
        ),
        ("forecast_step", "step that the forecast is for"),
        ("forecast", "the line there"),
        ("forecast_low", "lower end of the 95 % interval of a point there"),
        ("forecast_high", "upper end of the 95 % interval of a point there"),
        ("target_step", "step at which the line reaches the target; null if it does not, or has"),
        ("target_low", "soonest, by the interval of the slope"),
        ("target_high", "latest; null if the slope may be zero"),
        ("target_seconds", "seconds to go until then, at the window's median pace"),
        (
            "plateau_since",
            "step from which on no later part improves beyond noise; null if it still improves, worsens or has fallen",
        ),
        ("best", "best single finite value of the whole curve"),
        ("best_step", "its step, the first of equal ones"),
        ("last", "newest finite value"),
        (
            "fallen",
            "the best level less the newest: means of four neighbours of 40 blocks; null under 12 points",
        ),
        (
            "fallen_in_se",
            "that in standard errors, by how much neighbouring blocks differ (at most 1e6)",
        ),
        (
            "fallen_since",
            "where the best level begins, if the level fell from it: by 8 standard errors now, or by 4 all "
            "through the last quarter; else null",
        ),
        ("direction", "'max' or 'min': which way is better"),
        (
            "verdict",
            "of the window's slope 'improving' or 'worsening'; without one 'fallen' (see `fallen_since`), 'plateau' or 'no trend shown'",
        ),
        ("why", "why something is null"),
    ),
)

VIEWS = (_TREND,)
