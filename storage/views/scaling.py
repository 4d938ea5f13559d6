"""Throughput against the number of ranks, over runs of one name.

The throughput of a run is the median over its steps, the first ``skip`` of them left out, of the sum over
ranks of ``tokens_per_second``, else of ``throughput``, else of one over ``step_time`` or the span ``step``
(mean over ranks): steps in a second, which compares only runs of the same global batch. Runs with different
sources are not compared.

Fits are over the medians per size, relative to the smallest size (n ranks, N = n / smallest): N / speedup =
1 + serial * (N - 1) (Amdahl), and with + coherency * N * (N - 1) (Gunther's Universal Scalability Law), by
least squares through the smallest size; from three sizes on.
"""

from __future__ import annotations

from driftline.storage.views.view import View

_SCALING = View(
    "scaling",
    "one run of a name (of each name, if none is given): its throughput against the ideal line "
    "from the smallest "
    "number of ranks",
    """
    TABLE
    WITH chosen AS (
        SELECT k.run, k.name, k.config, k.world_size FROM runs AS k
        WHERE of_name IS NULL OR k.name = of_name),
    logged AS (
        SELECT s.run, s.attempt, s.step, s.rank, s.metric,
            avg(CASE WHEN s.metric IN ('step_time', 'span/step') THEN 1 / nullif(s.value, 0) ELSE s.value END)
                AS value
        FROM sample_attempts AS s SEMI JOIN chosen AS c ON c.run = s.run
        WHERE s.metric IN ('tokens_per_second', 'throughput', 'step_time', 'span/step')
          AND s.step IS NOT NULL AND s.value > 0 AND s.value < 1e150
        GROUP BY ALL),
    ranked AS (
        SELECT l.*, CASE l.metric WHEN 'tokens_per_second' THEN 1 WHEN 'throughput' THEN 2
            WHEN 'step_time' THEN 3
            ELSE 4 END AS preference FROM logged AS l
        QUALIFY l.attempt = max(l.attempt) OVER (PARTITION BY l.run, l.metric, l.step)),
    preferred AS (
        FROM ranked AS r QUALIFY r.preference = min(r.preference) OVER (PARTITION BY r.run)),
    by_step AS (
        SELECT p.run, p.step, any_value(p.metric) AS metric, count(DISTINCT p.rank) AS ranks,
            CASE WHEN any_value(p.preference) < 3 THEN sum(p.value) ELSE avg(p.value) END AS value,
            row_number() OVER (PARTITION BY p.run ORDER BY p.step) AS place,
            count(*) OVER (PARTITION BY p.run) AS steps
        FROM preferred AS p GROUP BY p.run, p.step),
    paced AS (
        SELECT b.run, any_value(b.metric) AS metric, median(b.value) AS throughput, count(*) AS steps,
            max(b.ranks) AS ranks
        FROM by_step AS b WHERE b.place > skip OR b.steps <= skip GROUP BY b.run),
    sized AS (
        SELECT c.name, p.run, coalesce(c.world_size, p.ranks)::BIGINT AS ranks, p.throughput, p.steps,
            c.config,
            CASE WHEN p.metric IN ('tokens_per_second', 'throughput') THEN p.metric
                ELSE 'steps per second' END AS throughput_from
        FROM paced AS p JOIN chosen AS c ON c.run = p.run WHERE coalesce(c.world_size, p.ranks) > 0),
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
    SELECT s.name, s.run, s.ranks, s.throughput, s.throughput_from, s.steps, b.runs AS runs_of_size,
        b.base * s.ranks / b.smallest AS ideal_throughput, s.throughput / b.base AS speedup,
        s.ranks / b.smallest AS ideal_speedup, s.throughput * b.smallest / (b.base * s.ranks) AS efficiency,
        f.sizes, f.serial AS serial_fraction, f.contention, f.coherency,
        CASE WHEN f.coherency > 0 AND f.contention < 1
            THEN sqrt((1 - f.contention) / f.coherency) * b.smallest END AS peak_ranks,
        count(DISTINCT coalesce(s.config, '{}')) OVER (PARTITION BY s.name, s.throughput_from) AS configs
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
        ("throughput_from", "tokens_per_second, throughput, or steps per second"),
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
