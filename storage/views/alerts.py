"""Alerts as they stand."""

from __future__ import annotations

from driftline.storage.views.view import View

_ALERTS_LATEST = View(
    "alerts_latest",
    "each alert once, as it was last said",
    """
    SELECT * FROM alerts
    QUALIFY row_number() OVER (PARTITION BY run, alert ORDER BY time DESC, "offset" DESC, ordinal DESC) = 1
    """,
    "SELECT rule, state, step, rank FROM alerts_latest ORDER BY rule",
)

_ALERTS_OPEN = View(
    "alerts_open",
    "alerts that are not resolved",
    "SELECT * FROM alerts_latest WHERE state <> 'resolved'",
    "SELECT rule, severity, step, rank, explanation FROM alerts_open",
)

VIEWS = (
    _ALERTS_LATEST,
    _ALERTS_OPEN,
)
