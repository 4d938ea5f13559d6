"""The ends of a process: normal, by an exception, by SIGTERM, and forks. Hooks are set once.

- ``atexit`` finishes live runs within ``sdk.exit_wait`` each and changes nothing of the exit code;
- children of multiprocessing (forked, spawned, workers of pools and loaders) leave through ``os._exit``,
  which knows no ``atexit``: what runs there are multiprocessing's own finalizers, and ours is the last;
- the exception hook notes that the outcome is "exception" (or "signal" for Ctrl-C), then calls the one
  before;
- SIGTERM is handled only if nothing handles it, C code included (and only from the main thread, as Python
  demands): the runs end with outcome "signal", then the process dies of the signal as it would have;
- in a forked child the runs let go of what belongs to the parent, and SIGTERM kills at once again, until the
  child logs.

What ends by ``os._exit`` of its own, by kill -9 or by a handler of C code (torch gives its loader workers one
for SIGTERM from the loader) runs none of these: what was logged within the last ``sdk.flush`` is lost then.
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
from typing import TYPE_CHECKING, Any

from driftline.producers.worker import EndReason

if TYPE_CHECKING:
    from driftline.producers.run import Run

LAST = -100
"""Priority among multiprocessing's finalizers: after those that may still log."""

_live: weakref.WeakSet[Run] = weakref.WeakSet()
_hooked = False
_forks_known = False
_finalizer_of_pid = 0


def live() -> list[Run]:
    """The runs of this process, those included that have not logged since the fork."""
    return list(_live)


def know(run: Run) -> None:
    """Has ``run`` told of forks."""
    global _forks_known
    _live.add(run)
    if not _forks_known:
        _forks_known = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_after_fork)


def watch(run: Run) -> None:
    """Has ``run`` finished when the process ends."""
    global _hooked
    know(run)
    if not _hooked:
        _hooked = True
        atexit.register(_finish_all)
        sys.excepthook = _noting(sys.excepthook)
    _finish_with_multiprocessing()
    _handle_sigterm()


def outcome_of(error: BaseException | None) -> EndReason:
    """How a process ends that leaves with this exception.

    >>> outcome_of(None), outcome_of(SystemExit(0)), outcome_of(ValueError()), outcome_of(KeyboardInterrupt())
    ('finished', 'finished', 'exception', 'signal')
    """
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "finished"
    return "signal" if isinstance(error, KeyboardInterrupt) else "exception"


def _finish_with_multiprocessing() -> None:
    global _finalizer_of_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _finalizer_of_pid == os.getpid():
        return
    from multiprocessing.util import Finalize

    _finalizer_of_pid = os.getpid()
    Finalize(None, _finish_child, exitpriority=LAST)


def _handle_sigterm() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    try:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and not _caught_by_c(signal.SIGTERM):
            signal.signal(signal.SIGTERM, _on_sigterm)
    except (ValueError, OSError):
        return  # an interpreter that allows no handlers


def _caught_by_c(number: int) -> bool:
    """Whether the system knows a handler of which Python does not (Linux only)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for run in live():
        run.finish("signal")
    os.kill(os.getpid(), number)


def _noting(before: Callable[..., Any]) -> Callable[..., Any]:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for run in live():
            run._exit_outcome = outcome_of(error)
        before(kind, error, trace)

    return hook


def _finish_all() -> None:
    for run in live():
        run.finish()


def _finish_child() -> None:
    """Multiprocessing calls its finalizers before it handles the exception that ends the child."""
    error = sys.exc_info()[1]
    for run in live():
        if error is not None:
            run._exit_outcome = outcome_of(error)
        run.finish()


def _after_fork() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:  # a child that has nothing to send dies at once
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for run in live():
        run._forked()
