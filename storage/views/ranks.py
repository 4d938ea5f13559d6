"""Ranks compared with each other."""

from __future__ import annotations

from driftline.metric_names import SPAN_PREFIX
from driftline.storage.views.view import View

_SLOWEST_RANKS = View(
    "slowest_ranks",
    "one rank in one span (seconds): its mean against the median of all ranks, slowest first",
    f"""
    SELECT *, mean / nullif(median_of_ranks, 0) AS ratio FROM (
        SELECT *, median(mean) OVER (PARTITION BY run, span) AS median_of_ranks,
            count(*) OVER (PARTITION BY run, span) AS ranks
        FROM (SELECT run, substr(metric, {len(SPAN_PREFIX) + 1}) AS span, rank, avg(value) AS mean,
                  max(value) AS max, count(*) AS n
              FROM samples
              WHERE starts_with(metric, '{SPAN_PREFIX}') AND rank IS NOT NULL AND isfinite(value)
              GROUP BY ALL))
    ORDER BY run, ratio DESC NULLS LAST
    """,
    "SELECT span, rank, mean, median_of_ranks, ratio FROM slowest_ranks WHERE run = '01k4-digits'",
)

VIEWS = (_SLOWEST_RANKS,)
