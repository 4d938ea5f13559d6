"""Two runs, or two groups of repeated runs, beside each other: is the difference more than noise?"""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.statistics import FINITE
from driftline.storage.views.view import View

_COMPARE = View(
    "compare",
    "two runs' curves of one metric on a common axis, in at most `bins` bins of equal width over the range "
    "that both have. `along` is 'step', 'time' (seconds since the first point) or the name of a metric, whose "
    "value at the same step is the place (with `running := true` its running sum over steps, e.g. tokens per "
    "step); a bin that one run lacks is left out",
    f"""
    TABLE
    WITH points AS (
        SELECT 'a' AS side, k.step, k.time, k.value FROM run_curves(run_a) AS k
        WHERE k.metric = of_metric AND abs(k.value) < {FINITE}
        UNION ALL
        SELECT 'b', k.step, k.time, k.value FROM run_curves(run_b) AS k
        WHERE k.metric = of_metric AND abs(k.value) < {FINITE}),
    ruler AS (
        SELECT u.side, u.step, CASE WHEN running THEN sum(u.value) OVER (PARTITION BY u.side ORDER BY u.step)
            ELSE u.value END AS place
        FROM (
            SELECT 'a' AS side, k.step, CASE WHEN running THEN k."sum" ELSE k.value END AS value
            FROM run_curves(run_a) AS k WHERE k.metric = along
            UNION ALL
            SELECT 'b', k.step, CASE WHEN running THEN k."sum" ELSE k.value END
            FROM run_curves(run_b) AS k WHERE k.metric = along) AS u
        WHERE along NOT IN ('step', 'time') AND abs(u.value) < {FINITE}),
    placed AS MATERIALIZED (
        SELECT p.side, p.step, p.value, CASE along WHEN 'step' THEN p.step::DOUBLE
            WHEN 'time' THEN (epoch_us(p.time) - min(epoch_us(p.time)) OVER (PARTITION BY p.side)) / 1e6
            ELSE r.place END AS place
        FROM points AS p LEFT JOIN ruler AS r ON r.side = p.side AND r.step = p.step),
    both_have AS (
        SELECT max(t.first) AS first, min(t.last) AS last FROM (
            SELECT p.side, min(p.place) AS first, max(p.place) AS last FROM placed AS p
            WHERE isfinite(p.place) GROUP BY p.side) AS t
        HAVING count(*) = 2),
    binned AS (
        SELECT p.side, p.step, p.value, p.place, CASE WHEN b.last = b.first THEN 0 ELSE
            least(w.bins - 1, floor((p.place - b.first) / (b.last - b.first) * w.bins)) END AS bin
        FROM placed AS p, both_have AS b, (SELECT CASE WHEN along = 'step'
            THEN least(bins, c.last - c.first + 1) ELSE bins END::DOUBLE AS bins FROM both_have AS c) AS w
        WHERE p.place BETWEEN b.first AND b.last)
    SELECT b.bin::BIGINT AS bin, avg(b.place) AS place, min(b.step) AS first_step, max(b.step) AS last_step,
        avg(b.value) FILTER (b.side = 'a') AS a, avg(b.value) FILTER (b.side = 'b') AS b,
        avg(b.value) FILTER (b.side = 'b') - avg(b.value) FILTER (b.side = 'a') AS difference,
        count(*) FILTER (b.side = 'a') AS n_a, count(*) FILTER (b.side = 'b') AS n_b
    FROM binned AS b GROUP BY b.bin HAVING count(DISTINCT b.side) = 2 ORDER BY b.bin
    """,
    "SELECT place, a, b, difference FROM compare('study-a', 'study-b', 'nll', bins := 4)",
    "run_a, run_b, of_metric, along := 'step', running := false, bins := 200",
    columns=(
        ("bin", "from 0, in the order of the axis"),
        ("place", "mean place of the bin's points on the axis"),
        ("first_step", "first step of the bin, of either run"),
        ("last_step", "last step of the bin, of either run"),
        ("a", "mean of run a's finite points in the bin"),
        ("b", "mean of run b's"),
        ("difference", "b - a"),
        ("n_a", "finite points of run a"),
        ("n_b", "finite points of run b"),
    ),
)

_COMPARE_SUMMARY = View(
    "compare_summary",
    "one row: how run b differs from run a in the last `last_part` (a share, by default the last half) of "
    "the axis that both have, with a 95 % interval that allows for a steady drift of the "
    "difference and for autocorrelation (20 blocks, an AR(1) correction, Student's t). It speaks of the noise within these two runs; whether another seed would give "
    "the same is for `compare_final`",
    """
    TABLE
    WITH c AS MATERIALIZED (
        FROM compare(run_a, run_b, of_metric, along := along, running := running, bins := 200)),
    chosen AS (
        SELECT k.*, row_number() OVER (ORDER BY k.bin) - 1 AS at, count(*) OVER () AS total
        FROM c AS k
        WHERE k.place >= (SELECT max(v.place) - last_part * (max(v.place) - min(v.place)) FROM c AS v)),
    blocks AS (
        SELECT h.at * least(h.total, 20) // h.total AS block, avg(h.difference) AS d
        FROM chosen AS h GROUP BY block),
    line AS (
        SELECT count(*) AS m, avg(b.d) AS mean, avg(b.block) AS middle, regr_slope(b.d, b.block) AS slope
        FROM blocks AS b),
    centered AS (
        SELECT b.block, b.d, l.m, b.d - l.mean - l.slope * (b.block - l.middle) AS e
        FROM blocks AS b, line AS l),
    moments AS (
        SELECT any_value(e.m) AS m, sum(e.e * e.e) AS rest, sum(e.e * e.before) AS paired
        FROM (SELECT t.*, lag(t.e) OVER (ORDER BY t.block) AS before FROM centered AS t) AS e),
    corrected AS (
        SELECT s.*, least(0.999, greatest(0.0, (s.m * coalesce(s.paired / nullif(s.rest, 0), 0) + 3) / (s.m - 4)))
            AS rho
        FROM moments AS s WHERE s.m >= 6),
    effective AS (
        SELECT f.*, CASE WHEN f.rest = 0 THEN f.m::DOUBLE
            ELSE greatest(1.2, f.m * (1 - f.rho) / (1 + f.rho)) END AS n_effective
        FROM corrected AS f),
    errors AS (
        SELECT e.*, sqrt(e.rest / (e.m - least(2 * e.m / e.n_effective, 0.75 * e.m)) / e.n_effective) AS se,
            greatest(e.n_effective - 1, 1) AS df
        FROM effective AS e),
    ends AS (
        SELECT min(h.place) AS from_place, max(h.place) AS until_place, min(h.first_step) AS first_step,
            max(h.last_step) AS last_step, count(*) AS n, avg(h.a) AS a, avg(h.b) AS b,
            avg(h.difference) AS difference
        FROM chosen AS h),
    judged AS (
        SELECT d.*, e.se, e.n_effective, d.difference - student_95(e.df) * e.se AS low,
            d.difference + student_95(e.df) * e.se AS high,
            CASE WHEN e.se > 0 THEN student_p(d.difference / e.se, e.df)
                WHEN e.se = 0 THEN CASE WHEN d.difference = 0 THEN 1.0 ELSE 0.0 END END AS p_value,
            coalesce(better, (
                SELECT max_by(g.goal, g."offset") FROM metric_definitions AS g
                WHERE g.run IN (run_id(run_a), run_id(run_b)) AND g.metric = of_metric AND g.goal IS NOT NULL))
                AS direction
        FROM ends AS d LEFT JOIN errors AS e ON true)
    SELECT run_id(run_a) AS run_a, run_id(run_b) AS run_b, j.from_place, j.until_place, j.first_step,
        j.last_step, j.n, j.a, j.b, j.difference, j.low, j.high, j.p_value, j.n_effective, j.direction,
        CASE WHEN j.se IS NULL THEN NULL WHEN j.low <= 0 AND j.high >= 0 THEN 'no difference shown'
            WHEN j.direction IS NULL THEN CASE WHEN j.difference > 0 THEN 'b is higher' ELSE 'b is lower' END
            WHEN (j.difference > 0) = (j.direction = 'max') THEN 'b is better' ELSE 'b is worse' END AS verdict,
        CASE WHEN j.n = 0 THEN 'the runs have no common part of this metric'
            WHEN j.se IS NULL THEN 'fewer than 6 common points' END AS why
    FROM judged AS j
    """,
    "SELECT n, a, b, difference, low, high, p_value, verdict FROM "
    "compare_summary('study-a', 'study-b', 'nll', last_part := 0.2, better := 'min')",
    "run_a, run_b, of_metric, along := 'step', running := false, last_part := 0.5, better := NULL",
    columns=(
        ("run_a", "id of run a"),
        ("run_b", "id of run b"),
        ("from_place", "where the part compared begins, on the axis"),
        ("until_place", "where it ends"),
        ("first_step", "its first step"),
        ("last_step", "its last step"),
        ("n", "common bins in it"),
        ("a", "mean of run a over them"),
        ("b", "mean of run b"),
        ("difference", "b - a"),
        ("low", "lower end of its 95 % interval"),
        ("high", "upper end of its 95 % interval"),
        ("p_value", "two-sided, for a difference of zero"),
        ("n_effective", "independent blocks that the 20 blocks are worth"),
        ("direction", "'max' or 'min', as declared or asked; null if neither"),
        (
            "verdict",
            "'b is better', 'b is worse' (or 'higher', 'lower' without direction), 'no difference shown'",
        ),
        ("why", "why there is no interval"),
    ),
)

_FINALS = View(
    "finals",
    "the last value of one metric in each run of a group: ids, or names, each of which stands for all its "
    "runs; the mean of its last `last_points` finite points",
    f"""
    TABLE
    SELECT r.run, max(r.step) AS step, avg(r.value) AS value, count(*) AS n FROM (
        SELECT k.run, k.step, k.value FROM curves AS k
        WHERE k.metric = of_metric AND abs(k.value) < {FINITE} AND k.run IN (
            SELECT unnest(of_runs)
            UNION SELECT p.run FROM process_events AS p WHERE p.event = 'started' AND p.name IN (
                SELECT unnest(of_runs)))
        QUALIFY row_number() OVER (PARTITION BY k.run ORDER BY k.step DESC) <= last_points) AS r
    GROUP BY r.run ORDER BY r.run
    """,
    "FROM finals(['study-a', 'study-b'], 'nll', last_points := 10)",
    "of_runs, of_metric, last_points := 1",
    columns=(
        ("run", "id of the run"),
        ("step", "its last step with a finite value"),
        ("value", "its last value"),
        ("n", "points that it is the mean of"),
    ),
)

_COMPARE_FINAL = View(
    "compare_final",
    "one row: two groups of repeated runs by their last values (as in `finals`), with Welch's t-test: the "
    "comparison that knows how much runs differ by seed alone",
    """
    TABLE
    WITH g AS (
        SELECT 'a' AS side, f.value FROM finals(runs_a, of_metric, last_points := last_points) AS f
        UNION ALL SELECT 'b', f.value FROM finals(runs_b, of_metric, last_points := last_points) AS f),
    s AS (
        SELECT count(*) FILTER (g.side = 'a') AS n_a, count(*) FILTER (g.side = 'b') AS n_b,
            avg(g.value) FILTER (g.side = 'a') AS mean_a, avg(g.value) FILTER (g.side = 'b') AS mean_b,
            stddev_samp(g.value) FILTER (g.side = 'a') AS std_a,
            stddev_samp(g.value) FILTER (g.side = 'b') AS std_b
        FROM g),
    e AS (
        SELECT s.*, power(s.std_a, 2) / s.n_a AS va, power(s.std_b, 2) / s.n_b AS vb FROM s),
    w AS (
        SELECT e.*, sqrt(e.va + e.vb) AS se, CASE WHEN e.va + e.vb > 0 THEN power(e.va + e.vb, 2)
            / (power(e.va, 2) / (e.n_a - 1) + power(e.vb, 2) / (e.n_b - 1)) END AS df
        FROM e)
    SELECT w.n_a, w.n_b, w.mean_a, w.mean_b, w.std_a, w.std_b, w.mean_b - w.mean_a AS difference,
        w.mean_b - w.mean_a - student_95(w.df) * w.se AS low,
        w.mean_b - w.mean_a + student_95(w.df) * w.se AS high,
        (w.mean_b - w.mean_a) / nullif(w.se, 0) AS t, w.df,
        student_p((w.mean_b - w.mean_a) / nullif(w.se, 0), w.df) AS p_value,
        (student_95(w.df) + 0.842) * w.se AS detectable,
        CASE WHEN w.df IS NULL THEN NULL
            WHEN abs(w.mean_b - w.mean_a) <= student_95(w.df) * w.se THEN 'no difference shown'
            WHEN w.mean_b > w.mean_a THEN 'b is higher' ELSE 'b is lower' END AS verdict,
        CASE WHEN w.n_a < 2 OR w.n_b < 2 THEN 'each group needs two runs with this metric'
            WHEN w.df IS NULL THEN 'all runs of each group have the same value' END AS why
    FROM w
    """,
    "SELECT n_a, n_b, mean_a, mean_b, difference, low, high, why FROM "
    "compare_final(['study-a', 'study-b'], ['01k5-study-a', '01k5-study-b'], 'nll')",
    "runs_a, runs_b, of_metric, last_points := 1",
    columns=(
        ("n_a", "runs in group a that have the metric"),
        ("n_b", "runs in group b"),
        ("mean_a", "mean of their last values"),
        ("mean_b", "mean of group b"),
        ("std_a", "standard deviation between the runs of group a"),
        ("std_b", "standard deviation between the runs of group b"),
        ("difference", "mean_b - mean_a"),
        ("low", "lower end of its 95 % interval"),
        ("high", "upper end of its 95 % interval"),
        ("t", "Welch's t"),
        ("df", "degrees of freedom (Welch and Satterthwaite)"),
        ("p_value", "two-sided, for no difference"),
        ("detectable", "the difference that so many runs would show four times of five"),
        ("verdict", "'no difference shown', 'b is higher' or 'b is lower'"),
        ("why", "why there is no interval"),
    ),
)

VIEWS = (_COMPARE, _COMPARE_SUMMARY, _FINALS, _COMPARE_FINAL)
