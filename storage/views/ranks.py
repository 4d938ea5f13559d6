"""Ranks compared with each other."""

from __future__ import annotations

from driftline.metric_names import SPAN_PREFIX
from driftline.storage.views.view import View

# A window over the ranks would do, but DuckDB makes a join of it and reads the samples twice.
_SLOWEST_RANKS = View(
    "slowest_ranks",
    "one rank in one span (seconds): its mean against the median of all ranks, slowest first",
    f"""
    SELECT run, substr(metric, {len(SPAN_PREFIX) + 1}) AS span, rank, mean, max, n, median_of_ranks, ranks,
        mean / nullif(median_of_ranks, 0) AS ratio
    FROM (
        SELECT run, metric, median(mean) AS median_of_ranks, count(*) AS ranks,
            unnest(list(rank)) AS rank, unnest(list(mean)) AS mean, unnest(list(max)) AS max,
            unnest(list(n)) AS n
        FROM (SELECT run, metric, rank, avg(value) AS mean, max(value) AS max, count(*) AS n
              FROM samples
              WHERE starts_with(metric, '{SPAN_PREFIX}') AND rank IS NOT NULL AND isfinite(value)
              GROUP BY run, metric, rank)
        GROUP BY run, metric)
    ORDER BY run, ratio DESC NULLS LAST
    """,
    "SELECT span, rank, mean, median_of_ranks, ratio FROM slowest_ranks WHERE run = '01k4-digits'",
)

VIEWS = (_SLOWEST_RANKS,)
