"""What the machines did: the SDK's own readings per host and device, against throughput, and what was paid
for and not used.

Readings carry no step and are taken by one process per host (``process_memory`` by each). Throughput is the
sum over ranks of ``tokens_per_second``, else of ``throughput``, else the steps of the lead in a second;
both are means over ``every`` seconds of wall time before they are correlated, so skew between hosts of less
than that matters little.
"""

# ruff: noqa: E501  a step of the SQL and the meaning of a column each stand on one line

from __future__ import annotations

from driftline.metric_names import METRIC_NAMES, SYSTEM_GROUPS
from driftline.storage.views.view import View

_SYSTEM = [entry for entry in METRIC_NAMES if entry.group in SYSTEM_GROUPS]
_NAMES = ", ".join(f"'{entry.name}'" for entry in _SYSTEM)
_UNITS = ", ".join(f"('{entry.name}', '{entry.unit}', '{entry.group}')" for entry in _SYSTEM)

_SYSTEM_READINGS = View(
    "system_readings",
    "one reading of a machine by the SDK; `device` is the GPU it speaks of, null for the whole host",
    f"""
    TABLE
    WITH hosts AS (
        SELECT p.process, max(p.host) AS host FROM process_events AS p
        WHERE p.run = (SELECT run_id(of_run)) AND p.event = 'started' GROUP BY p.process)
    SELECT h.host, try_cast(nullif(split_part(s.metric, '/', 2), '') AS INTEGER) AS device,
        split_part(s.metric, '/', 1) AS metric, s.process, s.rank, s.time, s.value
    FROM samples AS s LEFT JOIN hosts AS h ON h.process = s.process
    WHERE s.run = (SELECT run_id(of_run))
      AND (s.metric IN ({_NAMES}) OR (s.metric >= 'gpu_' AND s.metric < 'gpu`'
           AND split_part(s.metric, '/', 1) IN ({_NAMES})
           AND regexp_full_match(split_part(s.metric, '/', 2), '[0-9]{{1,4}}')
           AND split_part(s.metric, '/', 3) = ''))
    """,
    "FROM system_readings('steps') ORDER BY time, host, metric LIMIT 4",
    "of_run",
    columns=(
        ("host", "its name, null where the process did not say"),
        ("device", "NVML's index of the GPU, null for the host"),
        ("metric", "canonical name, without the index"),
        ("process", "that read it"),
        ("rank", "of that process"),
        ("time", "by the clock of the host"),
        ("value", "in the metric's unit"),
    ),
)

_THROUGHPUT = View(
    "throughput_over_time",
    "one stretch of `every` seconds of a run and its throughput; steps are counted over the part of a "
    "stretch in which the run trained, and a stretch with less than half of it has no row",
    """
    TABLE
    WITH logged AS (
        SELECT s.metric, s.process, epoch_us(s.time) // (every * 1000000)::BIGINT AS slot,
            avg(s.value) AS value
        FROM samples AS s
        WHERE s.run = (SELECT run_id(of_run)) AND s.metric IN ('tokens_per_second', 'throughput')
          AND abs(s.value) < 1e150 GROUP BY ALL),
    chosen AS (SELECT max(l.metric) FILTER (l.metric = 'tokens_per_second') AS tokens,
                   max(l.metric) AS any_metric FROM logged AS l),
    ended AS MATERIALIZED (
        SELECT t.us, t.took_us FROM (
            SELECT epoch_us(l.ended) AS us, epoch_us(l.ended) - coalesce(lag(epoch_us(l.ended)) OVER (
                PARTITION BY l.attempt ORDER BY l.step), epoch_us(l.ended)) AS took_us
            FROM lead_steps(of_run) AS l) AS t, chosen AS c
        WHERE c.any_metric IS NULL),
    whole AS (
        SELECT min(e.us - e.took_us) AS first, max(e.us) AS last, (every * 1000000)::BIGINT AS width
        FROM ended AS e),
    counted AS (
        SELECT e.us // w.width AS slot, count(*) AS steps FROM ended AS e, whole AS w GROUP BY ALL),
    covered AS (
        SELECT c.slot, c.steps, w.width, w.last - w.first AS total,
            least((c.slot + 1) * w.width, w.last) - greatest(c.slot * w.width, w.first) AS us
        FROM counted AS c, whole AS w),
    stepped AS (
        SELECT c.slot, c.steps * 1e6 / c.us AS value FROM covered AS c
        WHERE c.us > 0 AND 2 * c.us >= least(c.width, c.total))
    SELECT make_timestamptz((l.slot * every * 1000000)::BIGINT) AS start, sum(l.value) AS throughput,
        any_value(l.metric) AS throughput_from
    FROM logged AS l, chosen AS c WHERE l.metric = coalesce(c.tokens, c.any_metric) GROUP BY l.slot
    UNION ALL
    SELECT make_timestamptz((t.slot * every * 1000000)::BIGINT), t.value, 'steps per second' FROM stepped AS t
    """,
    "FROM throughput_over_time('steps') ORDER BY start LIMIT 3",
    "of_run, every := 10",
    columns=(
        ("start", "of the stretch"),
        ("throughput", "sum over processes of their mean"),
        ("throughput_from", "tokens_per_second, throughput, or steps per second"),
    ),
)

_UTILISATION = View(
    "utilisation",
    "one reading of one host or device over a run, and how it goes with throughput",
    f"""
    TABLE
    WITH r AS MATERIALIZED (FROM system_readings(of_run)),
    slots AS (
        SELECT r.host, r.device, r.metric, epoch_us(r.time) // (every * 1000000)::BIGINT AS slot,
            avg(r.value) AS value
        FROM r WHERE abs(r.value) < 1e150 GROUP BY ALL),
    pace AS (
        SELECT epoch_us(t.start) // (every * 1000000)::BIGINT AS slot, t.throughput, t.throughput_from
        FROM throughput_over_time(of_run, every := every) AS t WHERE t.throughput < 1e150),
    joined AS (
        SELECT s.host, s.device, s.metric, s.value, p.throughput, p.throughput_from, lag(s.value) OVER o AS value_before,
            lag(p.throughput) OVER o AS throughput_before
        FROM slots AS s JOIN pace AS p ON p.slot = s.slot
        WINDOW o AS (PARTITION BY s.host, s.device, s.metric ORDER BY s.slot)),
    together AS (
        SELECT j.host, j.device, j.metric, count(*) AS n, any_value(j.throughput_from) AS throughput_from,
            CASE WHEN count(*) >= 3 AND stddev_pop(j.value) > 0 AND stddev_pop(j.throughput) > 0
                THEN corr(j.value, j.throughput) END AS correlation,
            greatest(0, coalesce(corr(j.value, j.value_before) * corr(j.throughput, j.throughput_before), 0)) AS memory
        FROM joined AS j GROUP BY ALL),
    worth AS (
        SELECT t.*, greatest(3.0, t.n * (1 - t.memory) / (1 + t.memory)) AS n_effective FROM together AS t),
    tested AS (
        SELECT w.*, CASE WHEN w.n >= 8 THEN student_p(coalesce(w.correlation * sqrt((w.n_effective - 2)
            / nullif(greatest(0, 1 - w.correlation * w.correlation), 0)), 1e9), w.n_effective - 2) END AS p_value
        FROM worth AS w WHERE w.correlation IS NOT NULL),
    placed AS (
        SELECT d.*, row_number() OVER (ORDER BY d.p_value, d.metric, d.host, d.device) AS place, count(*) OVER () AS tests
        FROM tested AS d WHERE d.p_value IS NOT NULL),
    adjusted AS (
        SELECT c.host, c.device, c.metric, c.n_effective, min(c.p_value * c.tests / c.place) OVER (ORDER BY c.place DESC) AS q_value
        FROM placed AS c)
    SELECT r.host, r.device, r.metric, any_value(u.unit) AS unit,
        count(*) FILTER (isfinite(r.value)) AS n, count(*) FILTER (NOT isfinite(r.value)) AS odd,
        avg(r.value) FILTER (isfinite(r.value)) AS mean,
        quantile_cont(r.value, 0.05) FILTER (isfinite(r.value)) AS p5,
        quantile_cont(r.value, 0.5) FILTER (isfinite(r.value)) AS p50,
        quantile_cont(r.value, 0.95) FILTER (isfinite(r.value)) AS p95,
        min(r.value) FILTER (isfinite(r.value)) AS min, max(r.value) FILTER (isfinite(r.value)) AS max,
        any_value(t.correlation) AS correlation, coalesce(any_value(t.n), 0) AS stretches,
        any_value(a.n_effective) AS n_effective, any_value(a.q_value) AS q_value,
        any_value(t.throughput_from) AS throughput_from
    FROM r JOIN (VALUES {_UNITS}) AS u(metric, unit, kind) ON u.metric = r.metric
    LEFT JOIN together AS t ON t.host IS NOT DISTINCT FROM r.host
      AND t.device IS NOT DISTINCT FROM r.device AND t.metric = r.metric
    LEFT JOIN adjusted AS a ON a.host IS NOT DISTINCT FROM r.host
      AND a.device IS NOT DISTINCT FROM r.device AND a.metric = r.metric
    GROUP BY r.host, r.device, r.metric ORDER BY r.metric, r.host, r.device NULLS FIRST
    """,
    "SELECT host, metric, unit, n, mean, p50, p95, correlation, q_value, throughput_from FROM "
    "utilisation('steps', every := 2)",
    "of_run, every := 10",
)

_GPU_WASTE = View(
    "gpu_waste",
    "one GPU of a run: hours paid for and not used. A reading holds until the next one, at most "
    "three times the "
    "usual interval; where readings do not tell GPUs apart the host's mean stands for one GPU",
    """
    TABLE
    WITH r AS (
        SELECT t.*, bool_or(t.device IS NOT NULL) OVER (PARTITION BY t.process) AS apart
        FROM system_readings(of_run) AS t WHERE t.metric = 'gpu_utilization' AND t.value BETWEEN 0 AND 100),
    next AS (
        SELECT r.host, r.device, r.process, r.time, r.value, r.value < below AS idle,
            (epoch_us(lead(r.time) OVER w) - epoch_us(r.time)) / 1e6 AS gap
        FROM r WHERE r.device IS NOT NULL OR NOT r.apart
        WINDOW w AS (PARTITION BY r.process, r.device ORDER BY r.time)),
    held AS (
        SELECT n.*, coalesce(
                CASE WHEN n.gap IS NOT NULL
                    THEN least(n.gap, 3 * median(n.gap) OVER (PARTITION BY n.process, n.device)) END,
                median(n.gap) OVER (PARTITION BY n.process, n.device), 0) AS seconds,
            row_number() OVER (PARTITION BY n.process, n.device ORDER BY n.time)
                - row_number() OVER (PARTITION BY n.process, n.device, n.idle ORDER BY n.time) AS stretch
        FROM next AS n),
    stretches AS (
        SELECT h.host, h.device, h.process, h.idle, h.stretch, sum(h.seconds) AS seconds FROM held AS h
        GROUP BY ALL),
    longest AS (SELECT s.host, s.device, max(s.seconds) AS seconds FROM stretches AS s WHERE s.idle
                GROUP BY ALL)
    SELECT h.host, h.device, count(*) AS n, sum(h.seconds) / 3600 AS hours,
        sum(h.seconds * h.value / 100) / 3600 AS used_hours,
        sum(h.seconds * (1 - h.value / 100)) / 3600 AS unused_hours,
        sum(h.seconds * h.value) / nullif(sum(h.seconds), 0) AS mean,
        coalesce(sum(h.seconds) FILTER (h.idle), 0) AS idle_seconds,
        coalesce(sum(h.seconds) FILTER (h.idle), 0) / nullif(sum(h.seconds), 0) AS idle_share,
        coalesce(any_value(l.seconds), 0) AS longest_idle_seconds
    FROM held AS h LEFT JOIN longest AS l
      ON l.host IS NOT DISTINCT FROM h.host AND l.device IS NOT DISTINCT FROM h.device
    GROUP BY h.host, h.device ORDER BY unused_hours DESC, h.host, h.device
    """,
    "FROM gpu_waste('steps', below := 40)",
    "of_run, below := 20",
    columns=(
        ("host", "its name"),
        ("device", "NVML's index, null where the host's readings do not tell GPUs apart"),
        ("n", "readings"),
        ("hours", "that readings speak of"),
        ("used_hours", "hours times utilisation"),
        ("unused_hours", "the rest"),
        ("mean", "utilisation in percent, by time"),
        ("idle_seconds", "with a utilisation below `below` percent"),
        ("idle_share", "of the hours"),
        ("longest_idle_seconds", "the longest stretch below it"),
    ),
)

VIEWS = (
    _SYSTEM_READINGS,
    _THROUGHPUT,
    _UTILISATION._replace(
        columns=(
            ("host", "its name"),
            ("device", "NVML's index of the GPU, null for the host"),
            ("metric", "canonical name"),
            ("unit", "of the values"),
            ("n", "finite readings"),
            ("odd", "readings that are not finite: left out"),
            ("mean", "of the readings"),
            ("p5", "5th percentile"),
            ("p50", "median"),
            ("p95", "95th percentile"),
            ("min", "smallest"),
            ("max", "largest"),
            ("correlation", "Pearson, with throughput; null under 3 stretches or where one is constant"),
            ("stretches", "of `every` seconds that have both"),
            (
                "n_effective",
                "independent ones that they are worth, by their autocorrelation; null under 8 stretches",
            ),
            (
                "q_value",
                "false discovery rate over all readings at which the correlation is still one; null likewise",
            ),
            ("throughput_from", "as in `throughput_over_time`"),
        )
    ),
    _GPU_WASTE,
)
