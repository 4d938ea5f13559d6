"""The ends of a process: normal, by an exception, by SIGTERM, and forks. Hooks are set once.

- ``atexit`` finishes live runs within ``sdk.exit_wait`` each and changes nothing of the exit code;
- the exception hook notes that the outcome is "exception" (or "signal" for Ctrl-C), then calls the one
  before;
- SIGTERM is handled only if nothing handles it (and only from the main thread, as Python demands): the runs
  end with outcome "signal", then the process dies of the signal as it would have;
- in a forked child the runs let go of what belongs to the parent, and SIGTERM kills at once again.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from driftline.producers.run import Run, outcome_of

_live: weakref.WeakSet[Run] = weakref.WeakSet()
_installed = False


def watch(run: Run) -> None:
    """Has ``run`` finished when the process ends."""
    global _installed
    _live.add(run)
    if not _installed:
        _installed = True
        atexit.register(_finish_all)
        sys.excepthook = _noting(sys.excepthook)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)
    _handle_sigterm()


def _handle_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    try:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _on_sigterm)
    except (ValueError, OSError):
        return  # an interpreter that allows no handlers


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for run in list(_live):
        run.finish("signal")
    os.kill(os.getpid(), number)


def _noting(before: Callable[..., Any]) -> Callable[..., Any]:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in list(_live):
            run._exit_outcome = outcome_of(error)
        before(kind, error, trace)

    return hook


def _finish_all() -> None:
    for run in list(_live):
        run.finish()


def _after_fork() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:  # a child has nothing to send: it dies at once
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for run in list(_live):
        run._forked()
