"""The SQL views and macros over the tables, in the order in which they are made. Pure text.

They use nothing but what DuckDB has built in. Each has one line that says what a row is, and an example;
``docs/sql.md`` shows its answer. All times are instants (TIMESTAMPTZ), whatever the reader's time zone;
``utc_day`` gives the UTC date of one.
"""

from __future__ import annotations

from driftline.storage.views import (
    alerts,
    attempts,
    compare,
    correlate,
    correlation,
    cost,
    curve,
    curves,
    drivers,
    eval_analysis,
    evals,
    goodput,
    lineage,
    names,
    ranks,
    runs,
    scaling,
    skew,
    spans,
    statistics,
    steps,
    trend,
    utilisation,
)
from driftline.storage.views.view import View

VIEWS: tuple[View, ...] = (
    *names.VIEWS,
    *attempts.VIEWS,
    *curves.VIEWS,
    *curve.VIEWS,
    *statistics.VIEWS,
    *trend.VIEWS,
    *compare.VIEWS,
    *alerts.VIEWS,
    *ranks.VIEWS,
    *runs.VIEWS,
    *evals.VIEWS,
    *eval_analysis.VIEWS,
    *cost.VIEWS,
    *correlate.VIEWS,
    *correlation.VIEWS,
    *spans.VIEWS,
    *steps.VIEWS,
    *skew.VIEWS,
    *drivers.VIEWS,
    *goodput.VIEWS,
    *utilisation.VIEWS,
    *scaling.VIEWS,
    *lineage.VIEWS,
)
BASE_VIEW = {"processes": "process_events", "metrics": "metric_definitions"}
"""Tables whose plain view has another name than the table, since a view of one row per thing has it."""


def statements() -> list[str]:
    """The SQL that makes all views and macros, over the plain views of the tables."""
    made = []
    for view in VIEWS:
        if view.macro is None:
            made.append(f'CREATE OR REPLACE VIEW "{view.name}" AS {view.sql.strip()}')
        else:
            made.append(f'CREATE OR REPLACE MACRO "{view.name}"({view.macro}) AS {view.sql.strip()}')
    return made
