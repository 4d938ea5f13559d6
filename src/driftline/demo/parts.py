"""The processes of the demonstration: started with a log file each, watched, and ended in order.

Each part runs in a session of its own, so that Ctrl-C in the terminal reaches only the demonstration, which
then ends them in the right order. A part that dies is an error that shows the end of its log. On Linux a part
also ends when the demonstration itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from driftline.errors import DriftlineError

STOP_SECONDS = 20.0
TAIL_LINES = 12
_PR_SET_PDEATHSIG = 1


class PartDied(DriftlineError):
    """A part ended before it was told to; the message shows the end of its log and where the rest is."""


class Part:
    """One process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, *, finite: bool) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.finite = finite
        """It may end by itself, with exit code 0."""

    @property
    def code(self) -> int | None:
        """Exit code, None while it runs; negative for a signal."""
        return self.process.poll()

    def died(self) -> PartDied:
        """The error that says how it ended."""
        how = f"with exit code {self.code}" if (self.code or 0) >= 0 else f"by signal {-(self.code or 0)}"
        return PartDied(f"{self.name} ended {how}; its log {self.log} ends with:\n{tail(self.log)}")


class Parts:
    """All processes; ``with Parts(...) as parts`` ends what still runs, whatever happened."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = {**environment, "PYTHONUNBUFFERED": "1"}
        self._running: list[Part] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        finite: bool = False,
    ) -> Part:
        """Starts ``python ARGUMENTS``, output to ``NAME.log``."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**self._environment, **(environment or {})},
                start_new_session=True,
                preexec_fn=_end_with_parent() if sys.platform == "linux" else None,
            )
        part = Part(name, process, log, finite=finite)
        self._running.append(part)
        return part

    def check(self) -> None:
        """Raises PartDied if a part ended without being told to."""
        for part in self._running:
            if part.code is not None and not (part.finite and part.code == 0):
                raise part.died()

    def stop(self, parts: Sequence[Part], *, seconds: float = STOP_SECONDS) -> list[Part]:
        """SIGTERM to all, SIGKILL to those that still run after ``seconds``; returns those."""
        for part in parts:
            if part.code is None:
                part.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        killed = []
        for part in parts:
            try:
                part.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()
                killed.append(part)
        self._running = [part for part in self._running if part not in parts]
        return killed

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(list(self._running), seconds=5.0)


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, indented."""
    text = ""
    with contextlib.suppress(OSError):
        text = log.read_text(errors="replace")
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (nothing)"


def _end_with_parent() -> Callable[[], None]:
    """For the child, before it becomes the part: SIGTERM when the parent is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask
