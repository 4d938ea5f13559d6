"""One curve to look at: newest attempt, smoothed if asked, thinned without losing what matters."""

from __future__ import annotations

from driftline.storage.views.view import View

_CURVE = View(
    "curve",
    "one metric of one run over its steps, in order; of each step the newest attempt, or only attempt "
    "`of_attempt`. `smooth` in (0, 1) is the exponential weight of the past per point (debiased), from 1 on "
    "a trailing window of that many steps. `points` thins the curve to about that many points: equal buckets "
    "of points, of each the first, the last, the extremes and the first NaN and infinity",
    """
    TABLE
    WITH c AS MATERIALIZED (
        SELECT k.step, k.time, k.attempt,
            coalesce(k.value, CASE WHEN k.nan > 0 THEN 'NaN'::DOUBLE ELSE k."last" END) AS value,
            k."min" AS low, k."max" AS high, k.n, k.nan, k.inf,
            row_number() OVER (ORDER BY k.step) - 1 AS place
        FROM run_curves_all(of_run) AS k
        WHERE k.metric = of_metric
            AND (of_attempt::INTEGER IS NULL OR k.attempt = of_attempt::INTEGER)
        QUALIFY k.attempt = max(k.attempt) OVER (PARTITION BY k.step)),
    plan AS (
        SELECT t.total, greatest(1, a.wanted // t.slots) AS buckets, a.wanted, a.w,
            greatest(1, floor(-27.6 / ln(a.w)))::BIGINT AS length
        FROM (SELECT count(*) AS total, 4 + CASE WHEN max(c.n) > 1 THEN 2 ELSE 0 END
                + CASE WHEN max(c.nan) > 0 THEN 1 ELSE 0 END
                + CASE WHEN max(c.inf) > 0 THEN 1 ELSE 0 END AS slots FROM c) AS t,
            (SELECT coalesce(points, 0)::BIGINT AS wanted,
                CASE WHEN coalesce(smooth, 0) > 0 AND smooth < 1 THEN smooth::DOUBLE ELSE 0.5 END AS w) AS a),
    finite AS (
        SELECT c.step, c.value, p.w, p.length, row_number() OVER (ORDER BY c.step) - 1 AS at
        FROM c, plan AS p
        WHERE coalesce(smooth, 0) > 0 AND smooth < 1 AND abs(c.value) < 1e150),
    sums AS (
        SELECT f.step, f.w, f.at % f.length AS k, f.at // f.length AS block,
            sum(f.value * power(f.w, -(f.at % f.length))) OVER sofar * power(f.w, f.at % f.length) AS above,
            sum(power(f.w, -(f.at % f.length))) OVER sofar * power(f.w, f.at % f.length) AS below
        FROM finite AS f
        WINDOW sofar AS (PARTITION BY f.at // f.length ORDER BY f.at ROWS UNBOUNDED PRECEDING)),
    ends AS (
        SELECT s.block + 1 AS block, arg_max(s.above, s.k) AS above, arg_max(s.below, s.k) AS below
        FROM sums AS s GROUP BY s.block),
    exponential AS (
        SELECT s.step, (s.above + coalesce(e.above * power(s.w, s.k + 1), 0))
            / (s.below + coalesce(e.below * power(s.w, s.k + 1), 0)) AS smoothed
        FROM sums AS s LEFT JOIN ends AS e ON e.block = s.block),
    windowed AS (
        SELECT c.step, avg(c.value) OVER (
            ORDER BY c.step::DOUBLE RANGE BETWEEN greatest(coalesce(smooth, 1), 1)::DOUBLE - 1 PRECEDING
            AND CURRENT ROW) AS smoothed
        FROM c WHERE coalesce(smooth, 0) >= 1 AND abs(c.value) < 1e150),
    bucketed AS (
        SELECT c.*, CASE WHEN p.wanted <= 0 OR p.total <= p.wanted THEN c.place
            ELSE c.place * p.buckets // p.total END AS bucket
        FROM c, plan AS p),
    kept AS (
        SELECT b.bucket, count(*) AS bucket_points, count(*) FILTER (b.nan > 0) AS bucket_nan,
            count(*) FILTER (b.inf > 0) AS bucket_inf,
            [min(b.place), max(b.place),
                arg_min(b.place, b.value) FILTER (isfinite(b.value)),
                arg_max(b.place, b.value) FILTER (isfinite(b.value)),
                arg_min(b.place, b.low), arg_max(b.place, b.high),
                min(b.place) FILTER (b.nan > 0), min(b.place) FILTER (b.inf > 0)] AS places
        FROM bucketed AS b GROUP BY b.bucket)
    SELECT b.step, b.time, b.value,
        CASE WHEN coalesce(smooth, 0) > 0 THEN coalesce(e.smoothed, t.smoothed)
            WHEN isfinite(b.value) THEN b.value END AS smoothed,
        b.low, b.high, b.n, b.nan, b.inf, b.attempt, k.bucket_points, k.bucket_nan, k.bucket_inf
    FROM bucketed AS b JOIN kept AS k ON k.bucket = b.bucket AND list_contains(k.places, b.place)
    LEFT JOIN exponential AS e ON e.step = b.step LEFT JOIN windowed AS t ON t.step = b.step
    ORDER BY b.step
    """,
    "SELECT step, value, smoothed, n, nan FROM curve('digits', 'loss', smooth := 0.5, points := 12)",
    "of_run, of_metric, of_attempt := NULL, smooth := 0, points := 0",
    columns=(
        ("step", "training step"),
        ("time", "when the first sample of the step was logged"),
        ("value", "as in `curves`; NaN or infinite where no sample of the step is finite"),
        (
            "smoothed",
            "the smoothed value, from all points before thinning; null where the value is not finite",
        ),
        ("low", "smallest finite sample of the step (over ranks)"),
        ("high", "largest finite sample of the step"),
        ("n", "samples of the step"),
        ("nan", "of which NaN"),
        ("inf", "of which infinite"),
        ("attempt", "attempt that the point is from"),
        ("bucket_points", "points of the curve in the bucket of this one; 1 where nothing was thinned"),
        ("bucket_nan", "of which with a NaN"),
        ("bucket_inf", "of which with an infinity"),
    ),
)

VIEWS = (_CURVE,)
