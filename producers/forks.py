"""No fork in the middle of an import by the SDK.

A child inherits the locks of modules that another thread was importing at the fork, and no thread that would
release them: its own ``import kafka`` would wait for ever (and so would the trainer's ``import pynvml``). The
SDK imports such modules on its threads, within seconds of ``init``, just when loaders fork their workers. So
an import holds a lock that a fork waits for: once, for as long as the import takes, at most ten seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

IMPORT_WAIT_S = 10.0


class _Gate:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.held = False

    def before(self) -> None:
        self.held = self.lock.acquire(timeout=IMPORT_WAIT_S)

    def after(self) -> None:
        if self.held:
            self.lock.release()

    def in_child(self) -> None:
        self.lock, self.held = threading.RLock(), False


_gate = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_gate.before, after_in_parent=_gate.after, after_in_child=_gate.in_child)


@contextmanager
def importing() -> Iterator[None]:
    """Around an import on one of the SDK's threads."""
    with _gate.lock:
        yield
