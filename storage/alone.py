"""One at a time, over all processes that share a folder: a file lock, freed when its process ends.

Or several that do one thing, while nobody does another: :func:`together`, of the same file. Files are opened
for reading and writing, since NFS gives the one lock only to readers and the other only to writers.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

WAIT_S = 10.0
"""Longer than a look at a table takes, on a slow file server too; a repair may be alone for longer."""
_TRY_S = 0.02


@contextlib.contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether nobody else holds the lock file ``path``; if so, nobody does until the block ends."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def together(path: Path) -> Iterator[None]:
    """Until the block ends nobody is :func:`alone` with ``path``; waits ``WAIT_S``. Raises OSError."""
    with path.open("a+") as file:
        for tries in range(int(WAIT_S / _TRY_S), -1, -1):
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries:
                    raise
                time.sleep(_TRY_S)
        yield
