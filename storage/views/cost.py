"""What a change of the configuration bought: the metric against hours, tokens and money."""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.view import View

_CONFIG_DIFF = View(
    "config_diff",
    "one setting that differs between the configurations of two runs (the JSON object given to init)",
    """
    TABLE
    WITH leaves AS (
        SELECT r.run, j.fullkey AS setting, coalesce(j.value::VARCHAR, 'null') AS said
        FROM runs AS r, json_tree(CASE WHEN json_valid(r.config) THEN r.config ELSE '{}' END) AS j
        WHERE r.run IN (run_id(run_a), run_id(run_b)) AND j.fullkey <> '$'
            AND (j.type NOT IN ('OBJECT', 'ARRAY') OR j.value::VARCHAR IN ('{}', '[]')))
    SELECT substr(coalesce(a.setting, b.setting), 3) AS setting, a.said AS a, b.said AS b,
        CASE WHEN a.setting IS NULL THEN 'only in b' WHEN b.setting IS NULL THEN 'only in a'
            ELSE 'changed' END AS what
    FROM (SELECT l.* FROM leaves AS l WHERE l.run = run_id(run_a)) AS a
    FULL JOIN (SELECT l.* FROM leaves AS l WHERE l.run = run_id(run_b)) AS b ON b.setting = a.setting
    WHERE a.said IS DISTINCT FROM b.said OR (a.setting IS NULL) <> (b.setting IS NULL)
    ORDER BY setting
    """,
    "FROM config_diff('study-a', 'study-b')",
    "run_a, run_b",
    columns=(
        ("setting", "path of the setting in the JSON object"),
        ("a", "its value in run a, as JSON; null where it has none"),
        ("b", "its value in run b, likewise"),
        ("what", "'changed', 'only in a' or 'only in b'"),
    ),
)

_COST = View(
    "cost",
    "one row: what run b gained over run a in the last `last_part` of their common steps, with its interval "
    "(as in `compare_summary`), against what each cost: hours from the first to the last point of the metric, "
    "hours of evaluation, tokens (the sum of the metric named by `token_metric`) and money at `price` per device "
    "hour; evaluations count as one device. A direction (`better`, or the declared goal) is needed for "
    "`gain` and what rests on it",
    """
    TABLE
    WITH s AS MATERIALIZED (
        FROM compare_summary(run_a, run_b, of_metric, last_part := last_part, better := better)),
    sides AS (
        SELECT 'a' AS side, run_id(run_a) AS run UNION ALL SELECT 'b', run_id(run_b)),
    bins AS MATERIALIZED (
        SELECT 'a' AS side, l.* FROM levels(run_a, of_metric, most := 200) AS l
        UNION ALL SELECT 'b', l.* FROM levels(run_b, of_metric, most := 200) AS l),
    points AS MATERIALIZED (
        SELECT 'a' AS side, k.metric, k.time, k."sum" FROM run_curves(run_a) AS k
        WHERE k.metric IN (of_metric, token_metric)
        UNION ALL
        SELECT 'b', k.metric, k.time, k."sum" FROM run_curves(run_b) AS k
        WHERE k.metric IN (of_metric, token_metric)),
    spent AS (
        SELECT d.side, d.run,
            (SELECT (max(epoch_us(k.time)) - min(epoch_us(k.time))) / 3.6e9 FROM points AS k
                WHERE k.side = d.side AND k.metric = of_metric) AS hours,
            (SELECT sum(e.seconds) / 3600 FROM (
                SELECT DISTINCT v.request, nullif(v.seconds, 0) AS seconds FROM evals AS v WHERE v.run = d.run) AS e) AS eval_hours,
            (SELECT sum(k."sum") FROM points AS k WHERE k.side = d.side AND k.metric = token_metric
                AND abs(k."sum") < 1e150) AS tokens_sum,
            (SELECT r.world_size FROM runs AS r WHERE r.run = d.run) AS devices
        FROM sides AS d),
    billed AS (
        SELECT p.*, price::DOUBLE * (p.hours * coalesce(p.devices, 1) + coalesce(p.eval_hours, 0)) AS money
        FROM spent AS p),
    final AS (
        SELECT avg(t.value) AS level FROM (
            SELECT b.value FROM bins AS b WHERE b.side = 'a'
            QUALIFY row_number() OVER (ORDER BY b.bin DESC) <= 10) AS t),
    arrived AS (
        SELECT b.side, (min(epoch_us(b.time)) FILTER (
                CASE s.direction WHEN 'max' THEN b.value >= f.level WHEN 'min' THEN b.value <= f.level END)
            - min(epoch_us(b.time))) / 3.6e9 AS hours
        FROM bins AS b, final AS f, s GROUP BY b.side),
    joined AS (
        SELECT s.*, CASE s.direction WHEN 'max' THEN 1 WHEN 'min' THEN -1 END AS sign,
            a.hours AS hours_a, b.hours AS hours_b, a.eval_hours AS eval_hours_a,
            b.eval_hours AS eval_hours_b, a.devices AS devices_a, b.devices AS devices_b,
            a.tokens_sum AS tokens_a, b.tokens_sum AS tokens_b, a.money AS money_a, b.money AS money_b,
            (SELECT r.hours FROM arrived AS r WHERE r.side = 'a') AS hours_to_level_a,
            (SELECT r.hours FROM arrived AS r WHERE r.side = 'b') AS hours_to_level_b
        FROM s, billed AS a, billed AS b WHERE a.side = 'a' AND b.side = 'b')
    SELECT j.run_a, j.run_b, j.direction, j.a, j.b, j.sign * j.difference AS gain,
        CASE WHEN j.sign > 0 THEN j.low ELSE -j.high END * abs(j.sign) AS gain_low,
        CASE WHEN j.sign > 0 THEN j.high ELSE -j.low END * abs(j.sign) AS gain_high,
        j.hours_a, j.hours_b, j.eval_hours_a, j.eval_hours_b, j.devices_a, j.devices_b, j.tokens_a,
        j.tokens_b, j.money_a, j.money_b, j.hours_b - j.hours_a AS extra_hours,
        CASE WHEN j.hours_b > j.hours_a THEN j.sign * j.difference / (j.hours_b - j.hours_a) END AS gain_per_hour,
        j.money_b - j.money_a AS extra_money,
        CASE WHEN j.money_b > j.money_a THEN j.sign * j.difference / (j.money_b - j.money_a) END AS gain_per_money,
        j.hours_to_level_a, j.hours_to_level_b, j.hours_to_level_a / nullif(j.hours_to_level_b, 0) AS speed_up,
        j.verdict, coalesce(j.why, CASE WHEN j.direction IS NULL
            THEN 'no direction: declare a goal or give better := ''max'' or ''min''' END) AS why
    FROM joined AS j
    """,
    "SELECT gain, gain_low, gain_high, extra_hours, money_a, money_b, speed_up, verdict FROM "
    "cost('study-a', 'study-b', 'nll', price := 2.5, last_part := 0.2, better := 'min')",
    "run_a, run_b, of_metric, price := NULL, token_metric := NULL, last_part := 0.5, better := NULL",
    columns=(
        ("run_a", "id of run a"),
        ("run_b", "id of run b"),
        ("direction", "'max' or 'min', as declared or asked"),
        ("a", "mean of the metric in run a over the part compared"),
        ("b", "mean of run b"),
        ("gain", "by how much b is better than a; negative if worse"),
        ("gain_low", "lower end of its 95 % interval"),
        ("gain_high", "upper end of its 95 % interval"),
        ("hours_a", "hours from the first to the last point of the metric in run a"),
        ("hours_b", "the same of run b"),
        ("eval_hours_a", "hours of evaluation of run a; null if none or not known"),
        ("eval_hours_b", "the same of run b"),
        ("devices_a", "ranks of run a (its world size); null counts as one"),
        ("devices_b", "the same of run b"),
        ("tokens_a", "sum of the token metric over steps and ranks in run a"),
        ("tokens_b", "the same of run b"),
        (
            "money_a",
            "price x (hours x devices + evaluation hours); evaluations of unknown duration are not in it",
        ),
        ("money_b", "the same of run b"),
        ("extra_hours", "hours_b - hours_a"),
        ("gain_per_hour", "gain for each extra hour; null where b took no longer"),
        ("extra_money", "money_b - money_a"),
        ("gain_per_money", "gain for each unit of extra money; null where b cost no more"),
        ("hours_to_level_a", "hours until run a first reached its own final level"),
        ("hours_to_level_b", "hours until run b first reached that level; null if it did not"),
        ("speed_up", "the first divided by the second"),
        ("verdict", "as in `compare_summary`"),
        ("why", "why something is null"),
    ),
)

VIEWS = (_CONFIG_DIFF, _COST)
