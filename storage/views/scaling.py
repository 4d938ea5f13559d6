"""Throughput against the number of ranks, over runs of one name.

The throughput of a run is the median over its steps, the first ``skip`` of them left out, of the first of
``pace.SOURCES`` that it logs: a rate; else tokens or samples over the time of a step (the metric that tells it,
else the clock of the lowest rank that logs them); else steps in a second by a metric, else by the clock. Steps
in a second compare only runs of the same global batch. Runs with different sources are not compared.

Fits are over the medians per size, relative to the smallest size (n ranks, N = n / smallest): N / speedup =
1 + serial * (N - 1) (Amdahl), and with + coherency * N * (N - 1) (Gunther's Universal Scalability Law), by
least squares through the smallest size; from three sizes on.
"""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.storage.views.pace import METRICS, NAMED
from driftline.storage.views.view import View

_SCALING = View(
    "scaling",
    "one run of a name (of each name, if none is given): its throughput against the ideal line "
    "from the smallest "
    "number of ranks",
    f"""
    TABLE
    WITH chosen AS (
        SELECT k.run, k.name, k.config, k.world_size FROM runs AS k
        WHERE of_name IS NULL OR k.name = of_name),
    named AS (SELECT * FROM (VALUES {NAMED}) AS n(metric, kind, unit, over_ranks, preference)),
    logged AS MATERIALIZED (
        SELECT s.run, s.metric, s.attempt, s.step, s.rank, avg(s.value) AS value, max(epoch_us(s.time)) AS us
        FROM sample_attempts AS s SEMI JOIN chosen AS c ON c.run = s.run
        WHERE s.metric IN ({METRICS}) AND s.step IS NOT NULL AND s.value > 0 AND s.value < 1e150
        GROUP BY ALL),
    silent AS (
        SELECT s.run, arg_max(s.metric, (s.n, s.metric)) AS metric
        FROM (SELECT t.run, t.metric, count(*) AS n FROM samples AS t
              WHERE t.run IN (SELECT c.run FROM chosen AS c) AND t.run NOT IN (SELECT l.run FROM logged AS l)
                AND t.step IS NOT NULL GROUP BY t.run, t.metric) AS s
        GROUP BY s.run),
    marked AS (
        SELECT s.run, s.metric, s.attempt, s.step, s.rank, 1.0 AS value, max(epoch_us(s.time)) AS us
        FROM sample_attempts AS s JOIN silent AS q ON q.run = s.run AND q.metric = s.metric
        WHERE s.step IS NOT NULL GROUP BY ALL),
    sources AS MATERIALIZED (
        SELECT l.*, n.kind, n.unit, n.over_ranks, n.preference FROM logged AS l JOIN named AS n
          ON n.metric = l.metric
        UNION ALL
        SELECT m.*, 'clock', 'steps/s', 'whole', 1000 FROM marked AS m),
    newest AS (
        SELECT r.run, r.metric, r.step, max(r.attempt) AS attempt FROM sources AS r GROUP BY ALL),
    by_step AS MATERIALIZED (
        SELECT r.run, r.metric, any_value(r.kind) AS kind, any_value(r.unit) AS unit, r.preference, r.step,
            r.attempt, count(DISTINCT r.rank) AS ranks, arg_min(r.us, coalesce(r.rank, 0)) AS us,
            CASE any_value(r.over_ranks) WHEN 'sum' THEN sum(r.value) WHEN 'whole' THEN avg(r.value)
                ELSE avg(r.value) * greatest(any_value(c.world_size), count(DISTINCT r.rank)) END AS value
        FROM sources AS r JOIN newest AS n
          ON n.run = r.run AND n.metric = r.metric AND n.step = r.step AND n.attempt = r.attempt
        JOIN chosen AS c ON c.run = r.run
        GROUP BY r.run, r.metric, r.preference, r.step, r.attempt),
    told AS (
        SELECT b.run, b.step, arg_min(b.value, b.preference) AS seconds, arg_min(b.metric, b.preference) AS metric
        FROM by_step AS b WHERE b.kind = 'seconds' GROUP BY b.run, b.step),
    ticked AS (
        SELECT b.*, CASE WHEN b.us > lag(b.us) OVER w THEN (b.us - lag(b.us) OVER w) / 1e6 END AS passed,
            b.step - lag(b.step) OVER w AS steps_passed, b.value - lag(b.value) OVER w AS grown
        FROM by_step AS b
        WINDOW w AS (PARTITION BY b.run, b.metric, b.attempt ORDER BY b.step)),
    rated AS (
        SELECT k.run, k.metric, k.unit, k.preference, k.step, k.ranks,
            CASE k.kind WHEN 'rate' THEN k.value WHEN 'seconds' THEN 1 / k.value
                WHEN 'count' THEN k.value / coalesce(t.seconds, k.passed / k.steps_passed)
                WHEN 'total' THEN CASE WHEN k.grown > 0 THEN k.grown / k.passed END
                ELSE k.steps_passed / k.passed END AS value,
            CASE k.kind WHEN 'rate' THEN k.metric WHEN 'seconds' THEN 'steps per second'
                WHEN 'count' THEN k.metric || CASE WHEN t.seconds IS NULL THEN ' by the clock'
                    ELSE ' over ' || t.metric END
                WHEN 'total' THEN k.metric || ' by the clock' ELSE 'steps per second by the clock' END AS said
        FROM ticked AS k LEFT JOIN told AS t ON t.run = k.run AND t.step = k.step),
    preferred AS (
        FROM rated AS r WHERE r.value > 0 AND r.value < 1e150
        QUALIFY r.preference = min(r.preference) OVER (PARTITION BY r.run)),
    placed AS (
        SELECT p.*, row_number() OVER (PARTITION BY p.run ORDER BY p.step, p.metric) AS place,
            count(*) OVER (PARTITION BY p.run) AS steps
        FROM preferred AS p),
    paced AS (
        SELECT b.run, mode(b.said) AS throughput_from, any_value(b.unit) AS unit,
            median(b.value) AS throughput, count(*) AS steps, max(b.ranks) AS ranks
        FROM placed AS b WHERE b.place > skip OR b.steps <= skip GROUP BY b.run),
    sized AS (
        SELECT c.name, p.run, greatest(1, coalesce(c.world_size, p.ranks))::BIGINT AS ranks, p.throughput, p.steps,
            c.config, p.throughput_from, p.unit
        FROM paced AS p JOIN chosen AS c ON c.run = p.run),
    middle AS (
        SELECT s.name, s.throughput_from, s.ranks, median(s.throughput) AS throughput, count(*) AS runs
        FROM sized AS s GROUP BY ALL),
    based AS (
        SELECT m.*, min(m.ranks) OVER g AS smallest, arg_min(m.throughput, m.ranks) OVER g AS base,
            m.ranks / min(m.ranks) OVER g AS times FROM middle AS m
        WINDOW g AS (PARTITION BY m.name, m.throughput_from)),
    points AS (
        SELECT b.*, b.times - 1 AS x, b.times * (b.times - 1) AS z,
            b.times * b.base / b.throughput - 1 AS y FROM based AS b),
    sums AS (
        SELECT p.name, p.throughput_from, count(*) AS sizes, sum(p.x * p.x) AS xx, sum(p.x * p.z) AS xz,
            sum(p.z * p.z) AS zz, sum(p.x * p.y) AS xy, sum(p.z * p.y) AS zy
        FROM points AS p GROUP BY p.name, p.throughput_from),
    fits AS (
        SELECT s.name, s.throughput_from, s.sizes, CASE WHEN s.sizes >= 3 THEN s.xy / s.xx END AS serial,
            CASE WHEN s.sizes >= 3 THEN (s.xy * s.zz - s.zy * s.xz) / nullif(s.xx * s.zz - s.xz * s.xz, 0) END
                AS contention,
            CASE WHEN s.sizes >= 3 THEN (s.zy * s.xx - s.xy * s.xz) / nullif(s.xx * s.zz - s.xz * s.xz, 0) END
                AS coherency
        FROM sums AS s)
    SELECT s.name, s.run, s.ranks, s.throughput, s.throughput_from, s.unit, s.steps, b.runs AS runs_of_size,
        b.base * s.ranks / b.smallest AS ideal_throughput, s.throughput / b.base AS speedup,
        s.ranks / b.smallest AS ideal_speedup, s.throughput * b.smallest / (b.base * s.ranks) AS efficiency,
        f.sizes, f.serial AS serial_fraction, f.contention, f.coherency,
        CASE WHEN f.coherency > 0 AND f.contention < 1
            THEN sqrt((1 - f.contention) / f.coherency) * b.smallest END AS peak_ranks,
        count(DISTINCT coalesce(s.config, '{{}}')) OVER (PARTITION BY s.name, s.throughput_from) AS configs
    FROM sized AS s JOIN based AS b
      ON b.name = s.name AND b.throughput_from = s.throughput_from AND b.ranks = s.ranks
    JOIN fits AS f ON f.name = s.name AND f.throughput_from = s.throughput_from
    ORDER BY s.name, s.throughput_from, s.ranks, s.run
    """,
    "SELECT run, ranks, throughput, speedup, efficiency, sizes, serial_fraction FROM scaling('scale')",
    "of_name := NULL, skip := 5",
    columns=(
        ("name", "of the runs"),
        ("run", "id of the run"),
        ("ranks", "world size of its newest launch, else the ranks that logged"),
        ("throughput", "median over its steps of the sum over ranks"),
        (
            "throughput_from",
            "the metric; for counts what their time is from; or `steps per second`, by a metric or by the clock",
        ),
        ("unit", "tokens/s, samples/s or steps/s"),
        ("steps", "steps that it rests on"),
        ("runs_of_size", "runs with as many ranks"),
        ("ideal_throughput", "of the smallest size, times the ranks over its ranks"),
        ("speedup", "over the smallest size (median of its runs)"),
        ("ideal_speedup", "ranks over its ranks"),
        ("efficiency", "speedup over ideal"),
        ("sizes", "different numbers of ranks"),
        ("serial_fraction", "Amdahl's, relative to the smallest size; null under three sizes"),
        ("contention", "of the Universal Scalability Law"),
        ("coherency", "likewise; negative means none"),
        ("peak_ranks", "where that law has its peak; null if it has none"),
        ("configs", "different configurations among these runs: 1 where they can be compared plainly"),
    ),
)

VIEWS = (_SCALING,)
