"""What evaluations of checkpoints say, and how sure: the best one, fluctuation, mismatch with training."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.view import View

_POINTS = """
        SELECT e.suite, e.metric, e.step, e.epoch, coalesce(e.step::DOUBLE, e.epoch) AS place, e.value,
            coalesce(e.stderr, (e.high - e.low) / 3.92) AS stderr, e.n, e.checkpoint, e.uri,
            coalesce(better, (
                SELECT max_by(d.goal, d."offset") FROM metric_definitions AS d
                WHERE d.run = e.run AND d.metric = e.metric AND d.goal IS NOT NULL), 'max') AS direction
        FROM eval_curves AS e WHERE e.run = run_id(of_run) AND isfinite(e.value)"""

_EVAL_BEST = View(
    "eval_best",
    "one suite and metric of one run: its best checkpoint (the first of equal ones), how far it leads the "
    "newest and the runner-up, and whether that is more than the noise of the evaluations. `better` is 'max' "
    "or 'min'; without it the declared goal, without that 'max'. Standard errors are taken as independent, "
    "which is cautious where checkpoints answer the same questions",
    f"""
    TABLE
    WITH points AS ({_POINTS}),
    ranked AS (
        SELECT p.*, CASE p.direction WHEN 'max' THEN p.value ELSE -p.value END AS good,
            row_number() OVER (PARTITION BY p.suite, p.metric ORDER BY
                CASE p.direction WHEN 'max' THEN p.value ELSE -p.value END DESC, p.place) AS place_of,
            row_number() OVER (PARTITION BY p.suite, p.metric ORDER BY p.place DESC NULLS LAST) AS from_last,
            count(*) OVER (PARTITION BY p.suite, p.metric) AS points
        FROM points AS p),
    beside AS (
        SELECT b.suite, b.metric, b.direction, b.points, b.value AS best, b.stderr AS best_stderr,
            b.step AS best_step, b.epoch AS best_epoch, b.checkpoint, b.uri, l.value AS last,
            l.step AS last_step, b.good - l.good AS lead_over_last,
            CASE WHEN l.place_of = 1 THEN 0 ELSE sqrt(power(b.stderr, 2) + power(l.stderr, 2)) END AS se_last,
            r.value AS runner_up, r.step AS runner_up_step, b.good - r.good AS lead_over_runner_up,
            sqrt(power(b.stderr, 2) + power(r.stderr, 2)) AS se_runner, l.place_of = 1 AS best_is_last
        FROM ranked AS b JOIN ranked AS l ON l.suite = b.suite AND l.metric = b.metric AND l.from_last = 1
        LEFT JOIN ranked AS r ON r.suite = b.suite AND r.metric = b.metric AND r.place_of = 2
        WHERE b.place_of = 1),
    scored AS (
        SELECT b.*, b.lead_over_last / nullif(b.se_last, 0) AS last_z,
            b.lead_over_runner_up / nullif(b.se_runner, 0) AS runner_z
        FROM beside AS b),
    tested AS (
        SELECT s.*, CASE WHEN s.best_is_last OR s.last_z IS NULL THEN NULL
            ELSE least(1.0, (s.points - 1) * student_p(s.last_z, 1e5) / 2) END AS p_value
        FROM scored AS s)
    SELECT t.suite, t.metric, t.direction, t.points, t.best, t.best_stderr, t.best_step, t.best_epoch,
        t.checkpoint, t.uri, t.last, t.last_step, t.best_is_last, t.lead_over_last,
        t.last_z AS lead_over_last_in_se, t.p_value, t.runner_up, t.runner_up_step, t.lead_over_runner_up,
        t.runner_z AS lead_over_runner_up_in_se,
        CASE WHEN t.points = 1 THEN 'only one point' WHEN t.best_is_last THEN 'best is last'
            WHEN t.lead_over_last = 0 THEN 'last is as good'
            WHEN t.p_value IS NULL THEN 'best is not last, no error bars'
            WHEN t.p_value < 0.05 THEN 'best is not last'
            ELSE 'best is not last, within noise' END AS verdict
    FROM tested AS t ORDER BY t.suite, t.metric
    """,
    "SELECT suite, metric, best, best_step, last, last_step, lead_over_last_in_se, verdict FROM "
    "eval_best('digits')",
    "of_run, better := NULL",
    columns=(
        ("suite", "name of the suite"),
        ("metric", "metric of the suite"),
        ("direction", "'max' or 'min': which way is better"),
        ("points", "evaluated checkpoints"),
        ("best", "best value"),
        ("best_stderr", "its standard error"),
        ("best_step", "step of the best checkpoint"),
        ("best_epoch", "its epoch"),
        ("checkpoint", "its digest"),
        ("uri", "where it was saved"),
        ("last", "value of the newest checkpoint, by step"),
        ("last_step", "its step"),
        ("best_is_last", "whether the newest is the best"),
        ("lead_over_last", "by how much the best is better than the newest"),
        ("lead_over_last_in_se", "that in standard errors of the difference"),
        (
            "p_value",
            "one-sided, for no lead over the newest, times the checkpoints that could have been the best",
        ),
        ("runner_up", "second best value"),
        ("runner_up_step", "its step"),
        ("lead_over_runner_up", "by how much the best is better than it"),
        ("lead_over_runner_up_in_se", "that in standard errors of the difference"),
        (
            "verdict",
            "'best is last', 'last is as good', 'best is not last' (p under 0.05), '..., within noise', '..., no error bars'",
        ),
    ),
)

_EVAL_NOISE = View(
    "eval_noise",
    "one suite and metric of one run: how much it fluctuates from checkpoint to checkpoint (by second "
    "differences, so that a steady trend does not count) against what the number of items explains",
    """
    TABLE
    WITH points AS (
        SELECT e.suite, e.metric, e.value, coalesce(e.stderr, (e.high - e.low) / 3.92) AS stderr,
            coalesce(e.step::DOUBLE, e.epoch) AS place, e.n
        FROM eval_curves AS e WHERE e.run = run_id(of_run) AND isfinite(e.value)),
    bends AS (
        SELECT p.*, lag(p.value) OVER o - 2 * p.value + lead(p.value) OVER o AS bend
        FROM points AS p WINDOW o AS (PARTITION BY p.suite, p.metric ORDER BY p.place)),
    spread AS (
        SELECT b.suite, b.metric, count(*) AS points, count(b.bend) AS bends, avg(b.n) AS items,
            sqrt(avg(power(b.stderr, 2))) AS expected, sqrt(avg(power(b.bend, 2)) / 6) AS observed,
            1.4826 * median(abs(b.bend)) / sqrt(6) AS robust
        FROM bends AS b GROUP BY b.suite, b.metric)
    SELECT s.suite, s.metric, s.points, s.items, s.expected, s.observed, s.robust,
        s.observed / nullif(s.expected, 0) AS ratio,
        sqrt(greatest(0, power(s.observed, 2) - power(s.expected, 2))) AS unexplained,
        CASE WHEN s.bends < 6 OR s.expected IS NULL THEN NULL
            WHEN s.observed > s.expected * (1 + 1.645 * sqrt(35 / 36.0 / s.bends)) THEN 'more than the items explain'
            ELSE 'as the items explain' END AS verdict,
        CASE WHEN s.bends < 6 THEN 'fewer than 8 points' WHEN s.expected IS NULL THEN 'no error bars' END AS why
    FROM spread AS s ORDER BY s.suite, s.metric
    """,
    "SELECT suite, metric, points, expected, observed, ratio, verdict FROM eval_noise('study-a')",
    "of_run",
    columns=(
        ("suite", "name of the suite"),
        ("metric", "metric of the suite"),
        ("points", "evaluated checkpoints"),
        ("items", "items per evaluation, on average"),
        ("expected", "standard deviation that the standard errors explain"),
        ("observed", "standard deviation from checkpoint to checkpoint"),
        ("robust", "the same by the median, which single odd checkpoints do not move"),
        ("ratio", "observed / expected; under 1 where the same items are used and checkpoints agree on them"),
        ("unexplained", "what is left of the observed one, as a standard deviation"),
        ("verdict", "'as the items explain' or 'more than the items explain' (at about 5 %)"),
        ("why", "why there is no verdict"),
    ),
)

_EVAL_MISMATCH = View(
    "eval_mismatch",
    "one evaluated step of one run, for one evaluation metric beside a training metric: the training metric "
    "is the mean since the evaluation before; the warning is given where evaluation has fallen behind its own "
    "best by more than two standard errors while training went on improving. `better` and `train_better` are "
    "'max' or 'min'; without them the declared goals, without those 'max'",
    f"""
    TABLE
    WITH points AS ({_POINTS} AND e.metric = of_metric AND e.step IS NOT NULL
            AND (of_suite IS NULL OR e.suite = of_suite)),
    since AS (
        SELECT p.*, lag(p.step) OVER (PARTITION BY p.suite ORDER BY p.step) AS step_before FROM points AS p),
    train AS MATERIALIZED (
        SELECT k.step, k.value FROM run_curves(of_run) AS k
        WHERE k.metric = train_metric AND abs(k.value) < 1e150),
    beside AS (
        SELECT s.suite, s.step, any_value(s.value) AS value, any_value(s.stderr) AS stderr,
            any_value(s.direction) AS direction, avg(t.value) AS train, count(t.value) AS n_train
        FROM since AS s LEFT JOIN train AS t ON t.step <= s.step
            AND t.step > coalesce(s.step_before, -9223372036854775808)
        GROUP BY s.suite, s.step),
    goal AS (
        SELECT coalesce(train_better, (
            SELECT max_by(d.goal, d."offset") FROM metric_definitions AS d
            WHERE d.run = run_id(of_run) AND d.metric = train_metric AND d.goal IS NOT NULL), 'max')
            AS train_direction),
    best AS (
        SELECT b.*, g.train_direction,
            arg_max({{'value': b.value, 'stderr': b.stderr, 'train': b.train, 'step': b.step}},
                CASE b.direction WHEN 'max' THEN b.value ELSE -b.value END)
                OVER (PARTITION BY b.suite ORDER BY b.step) AS top
        FROM beside AS b, goal AS g),
    scored AS (
        SELECT b.*, CASE b.direction WHEN 'max' THEN b.top.value - b.value ELSE b.value - b.top.value END
                AS behind,
            sqrt(power(b.stderr, 2) + power(b.top.stderr, 2)) AS behind_se,
            CASE b.train_direction WHEN 'max' THEN b.train > b.top.train ELSE b.train < b.top.train END
                AS train_better_than_then
        FROM best AS b)
    SELECT s.suite, s.step, s.value, s.stderr, s.train, s.n_train, s.train - s.value AS gap,
        s.train - s.value - first_value(s.train - s.value) OVER (PARTITION BY s.suite ORDER BY s.step)
            AS gap_change,
        regr_slope(s.train - s.value, s.step) OVER (PARTITION BY s.suite ORDER BY s.step) AS gap_slope,
        s.top.step AS best_step, s.behind, s.behind / nullif(s.behind_se, 0) AS behind_in_se,
        CASE WHEN s.behind > 2 * s.behind_se AND s.train_better_than_then
            THEN 'evaluation falls while training improves' END AS warning
    FROM scored AS s ORDER BY s.suite, s.step
    """,
    "SELECT step, value, train, gap, gap_change, behind_in_se, warning FROM "
    "eval_mismatch('study-a', 'accuracy', 'train_accuracy') WHERE step >= 120",
    "of_run, of_metric, train_metric, of_suite := NULL, better := NULL, train_better := NULL",
    columns=(
        ("suite", "name of the suite"),
        ("step", "step of the evaluated checkpoint"),
        ("value", "the evaluation metric"),
        ("stderr", "its standard error"),
        ("train", "mean of the training metric since the evaluation before"),
        ("n_train", "finite points that it is of"),
        ("gap", "train - value; means something where both have one unit"),
        ("gap_change", "the gap against that of the first evaluated step"),
        ("gap_slope", "least-squares slope of the gap per step, up to here"),
        ("best_step", "step of the best evaluation so far"),
        ("behind", "how much worse than that this one is"),
        ("behind_in_se", "that in standard errors of the difference"),
        ("warning", "'evaluation falls while training improves', or null"),
    ),
)

VIEWS = (_EVAL_BEST, _EVAL_NOISE, _EVAL_MISMATCH)
