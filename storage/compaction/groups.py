"""Row groups of ``samples`` in files that stay: where each ends, and in which order rows lie inside. Pure.

Between row groups the table's order holds (run, metric, ...), so that a reader who asks for a metric skips
all others. Inside one, rows lie as a process logged them (run, rank, time, place in the log): samples of one
call then follow each other, and their times, steps and places in the log cost next to nothing. So that more
calls lie together, a row group ends where a run does, or else a metric, rather than after a fixed number of
rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROW_GROUP = 122_880
"""Rows, DuckDB's own unit: the most in a row group, except where a whole run is to fit."""
WHOLE_RUN = 2 * ROW_GROUP
LEAST = 16_384
"""Fewer rows are a row group only at the end of a file."""
INNER = ("run", "rank", "time", "offset", "ordinal")
"""The order inside a row group."""
_Codes = npt.NDArray[np.int32]


def first_end(run: _Codes, metric: _Codes, *, more: bool) -> int:
    """How many of these rows, which are sorted by both, are the next row group; ``more``: others follow them.

    With ``more``, :data:`ROW_GROUP` rows or more are needed; those behind :data:`WHOLE_RUN` do not matter.

    >>> runs, metrics = np.repeat([0, 1], [90_000, 160_000]), np.repeat([0, 1, 2], [90_000, 60_000, 100_000])
    >>> first_end(runs, metrics, more=True), first_end(runs[90_000:], metrics[90_000:], more=False)
    (90000, 160000)
    >>> first_end(runs[90_000:], metrics[90_000:], more=True), first_end(runs[:5], metrics[:5], more=False)
    (60000, 5)
    """
    count = len(run)
    if count <= ROW_GROUP and not more:
        return count
    last = [] if more else [count]
    changes = run[1:] != run[:-1]
    run_ends = np.r_[np.flatnonzero(changes) + 1, last]
    metric_ends = np.r_[np.flatnonzero(changes | (metric[1:] != metric[:-1])) + 1, last]
    for ends in (run_ends, metric_ends):
        fitting = ends[(ends >= LEAST) & (ends <= ROW_GROUP)]
        if len(fitting):
            return int(fitting[-1])
        if ends is run_ends and len(fitting := ends[(ends > ROW_GROUP) & (ends <= WHOLE_RUN)]):
            return int(fitting[0])
    return ROW_GROUP


def inner_order(rows: pa.Table) -> pa.Array:
    """The places of the rows of one row group, in the order in which they are written; texts are codes."""
    keys = [pc.fill_null(rows.column(name).cast(pa.int64()), -1).to_numpy() for name in INNER]
    return pa.array(np.lexsort(keys[::-1]))
