"""Any error of the tables' upkeep as one line: none of them may end a sink, or a thread, without a word.

Unavailable, BadData, SettingsError     words already
DuckDB, delta-rs, the system            as they say it, with the remedy where one is known
no memory                               so
anything else                           a fault of driftline: its kind, and the lines where it arose
"""

from __future__ import annotations

import logging
import traceback

import duckdb
from deltalake.exceptions import DeltaError

from driftline.errors import BadData, SettingsError, Unavailable
from driftline.storage.patience import Failure
from driftline.storage.remedies import told

_LOG = logging.getLogger("driftline.storage")
_FRAMES = 3


def failure_of(error: BaseException) -> Failure:
    """The error in words; it holds nothing of the error, whose frames may hold much memory."""
    if isinstance(error, Unavailable | BadData | SettingsError):
        return Failure(told(error), ours=False)
    if isinstance(error, MemoryError):
        return Failure(f"not enough memory ({type(error).__name__})", ours=False)
    if isinstance(error, duckdb.Error | DeltaError | OSError):
        return Failure(told(error), ours=False)
    _LOG.debug("a fault of the upkeep", exc_info=error)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)
    said = " ".join(str(error).split())[:300]
    return Failure(f"{type(error).__name__}: {said} (at {where})", ours=True)
