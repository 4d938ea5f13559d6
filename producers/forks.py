"""No fork in the middle of an import by the SDK.

A child inherits the modules that another thread was importing at the fork as they are, half made, and their
locks, with no thread that would go on or release them: its own ``import kafka`` would wait for ever, or find
a module without its names. The SDK imports such modules on its threads, within seconds of ``init``, just when
loaders fork their workers. So an import holds a lock that a fork waits for: once, for as long as the import
takes, at most ten seconds. After that the fork goes on, and the child forgets what was half made, so that it
imports it anew.

The lock is taken before those that the standard library takes at a fork (:mod:`logging`), which an import may
need: what is registered last is called first, so their modules are imported here before ours is registered.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  has a hook for forks
import contextlib
import importlib._bootstrap as machinery
import logging  # noqa: F401  has a hook for forks
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

IMPORT_WAIT_S = 10.0


class _Gate:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.held = False
        self.importer = 0
        """The thread that imports, 0 for none."""

    def before(self) -> None:
        self.held = self.lock.acquire(timeout=IMPORT_WAIT_S)

    def after(self) -> None:
        if self.held:
            self.lock.release()

    def in_child(self) -> None:
        if not self.held:
            _forget_imports_of(self.importer)
        self.lock, self.held, self.importer = threading.RLock(), False, 0


def _forget_imports_of(thread: int) -> None:
    """Modules that a thread, which is gone, was importing are as if it had never begun."""
    with contextlib.suppress(AttributeError):  # an interpreter that keeps its locks elsewhere
        locks: dict[str, Any] = machinery._module_locks  # type: ignore[attr-defined]
        for name, reference in list(locks.items()):
            lock = reference()
            if lock is None or lock.owner != thread:
                continue
            del locks[name]
            for each in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[each]


_gate = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_gate.before, after_in_parent=_gate.after, after_in_child=_gate.in_child)


@contextmanager
def importing() -> Iterator[None]:
    """Around an import on one of the SDK's threads."""
    with _gate.lock:
        _gate.importer = threading.get_ident()
        try:
            yield
        finally:
            _gate.importer = 0
