"""What the processes of one test session (pytest-xdist) share: folders made once, one broker of each kind.

Processes meet in a folder of the session, by file locks. A test that runs without xdist is a session of one
process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

START_SECONDS = 300.0
"""A broker that comes up among busy tests."""


def made_once(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """``folder/name``, filled by ``make`` in the process that asks first; the others wait for it.

    Those who get it only read it, or copy it. If ``make`` fails, whoever asks next tries anew.
    """
    target, complete = folder / name, folder / f"{name}.complete"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            make(target)
            complete.touch()
    return target


class BrokerOnDemand:
    """In the process that started the workers: starts a broker when the first of them asks for it.

    ``start`` gives a context that yields the broker's address; what it raises is told to those who ask by its
    ``name``.
    """

    def __init__(
        self, folder: Path, name: str, start: Callable[[], contextlib.AbstractContextManager[str]]
    ) -> None:
        self._wanted, self._address = folder / f"{name}.wanted", folder / f"{name}.json"
        self._start = start
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="broker on demand", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the broker, if there is one."""
        self._ended.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._wanted.exists():
            if self._ended.wait(0.1):
                return
        try:
            with self._start() as bootstrap:
                self._answer({"bootstrap": bootstrap})
                self._ended.wait()
        except Exception as error:  # noqa: BLE001  told to whoever asked
            self._answer({"reason": str(error)})

    def _answer(self, answer: dict[str, str]) -> None:
        partial = self._address.with_suffix(".partial")
        partial.write_text(json.dumps(answer))
        partial.rename(self._address)


def ask_for_broker(folder: Path, name: str) -> str:
    """The address of a broker of the session. Raises RuntimeError with the reason if it cannot be started."""
    (folder / f"{name}.wanted").touch()
    answer, deadline = folder / f"{name}.json", time.monotonic() + START_SECONDS
    while not answer.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no broker within {START_SECONDS:.0f} s")
        time.sleep(0.05)
    found: dict[str, str] = json.loads(answer.read_text())
    if "reason" in found:
        raise RuntimeError(found["reason"])
    return found["bootstrap"]
