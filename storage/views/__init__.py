"""The SQL views and macros over the tables, in the order in which they are made. Pure text.

They use nothing but what DuckDB has built in. Each has one line that says what a row is, and an example;
``docs/sql.md`` shows its answer. All times are instants (TIMESTAMPTZ), whatever the reader's time zone;
``utc_day`` gives the UTC date of one.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable

from driftline.storage.tables import TABLE_NAMES, TableName
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


_WORDS = re.compile(r"\w+")
_OF_ALL = re.compile(
    r"\b(show|describe|summarize|pragma|duckdb_\w+|information_schema|pg_\w+|sqlite_\w+)\b", re.I
)
"""SQL that may ask what there is."""


def mentioned(sql: str) -> list[View]:
    """The views and macros that ``sql`` may use, with those that they rest on, in the order in which they are
    made: to define all of them takes a second of CPU time [measured], and most queries need a few.

    A name that SQL puts together from pieces is not seen.

    >>> [view.name for view in mentioned("FROM curves")]
    ['attempts', 'restarted', 'curves']
    """
    if _OF_ALL.search(sql):
        return list(VIEWS)
    names = set(_WORDS.findall(sql.lower()))
    chosen: set[str] = set()
    for view in VIEWS:
        if view.name in names:
            chosen |= {view.name, *_rests_on(view.name)}
    return [view for view in VIEWS if view.name in chosen]


def tables_of(sql: str, views: Iterable[View]) -> list[TableName]:
    """The tables whose plain views ``sql``, or these views, may use. (To define one opens a file of it; that
    of a table that got columns later, all its files.)

    >>> tables_of("FROM curves", mentioned("FROM curves"))
    ['samples', 'facts', 'processes', 'metrics']
    """
    if _OF_ALL.search(sql):
        return list(TABLE_NAMES)
    words = set(_WORDS.findall(sql.lower())).union(*(_words(view) for view in views))
    return [name for name in TABLE_NAMES if BASE_VIEW.get(name, name) in words]


@functools.cache
def _words(view: View) -> frozenset[str]:
    return frozenset(_WORDS.findall(view.sql.lower()))


_MISSING = re.compile(r"\bwith name \"?(\w+)")
"""In DuckDB's word of a table or function that is not there."""


def meant(error: str) -> list[View]:
    """The views and macros that DuckDB missed when it said so, or with names like the missing one, with those
    that they rest on.

    >>> [view.name for view in meant("Catalog Error: Table with name restrated does not exist!")]
    ['restarted']
    """
    missing = _MISSING.search(error)
    if missing is None:
        return []
    names = [view.name for view in VIEWS]
    return mentioned(" ".join(difflib.get_close_matches(missing[1].lower(), names)))


@functools.cache
def _rests_on(name: str) -> frozenset[str]:
    """Views that come earlier and are named in its SQL, and what these rest on."""
    found: set[str] = set()
    words: set[str] = set()
    for view in reversed(VIEWS):
        if view.name == name or view.name in words:
            found.add(view.name)
            words |= _words(view)
    return frozenset(found - {name})


def statement(view: View) -> str:
    """The SQL that makes the view or macro, over the plain views of the tables."""
    if view.macro is None:
        return f'CREATE OR REPLACE VIEW "{view.name}" AS {view.sql.strip()}'
    return f'CREATE OR REPLACE MACRO "{view.name}"({view.macro}) AS {view.sql.strip()}'
