"""How two metrics move together."""

from __future__ import annotations

from driftline.storage.views.view import View

_CORRELATION = View(
    "correlation",
    "Pearson correlation of metric_a at step s with metric_b at step s + lag, for lags -max_lag..max_lag; no "
    "test: `correlate` has one",
    """
    TABLE
    WITH a AS (SELECT step, value FROM run_curves(of_run) AS k WHERE k.metric = metric_a
               AND abs(value) < 1e150),
    b AS (SELECT step, value FROM run_curves(of_run) AS k WHERE k.metric = metric_b
          AND abs(value) < 1e150),
    lags AS (SELECT unnest(range(-max_lag, max_lag + 1)) AS lag)
    SELECT lags.lag, corr(a.value, b.value) AS correlation, count(*) AS n
    FROM lags CROSS JOIN a JOIN b ON b.step = a.step + lags.lag
    GROUP BY lags.lag HAVING count(*) >= 3 ORDER BY lags.lag
    """,
    "FROM correlation('01k4-digits', 'loss', 'grad_norm', max_lag := 1)",
    "of_run, metric_a, metric_b, max_lag := 0",
)

VIEWS = (_CORRELATION,)
