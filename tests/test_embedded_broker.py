"""The embedded broker as a process: it does not outlive the one that made it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from driftline import broker as broker_module
from driftline.broker import EmbeddedBroker
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.handshake import refusal

pytestmark = pytest.mark.embedded


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_its_log_is_nobody_elses_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """F30: it had a name in the common folder that anybody could foresee, and followed links."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broker = EmbeddedBroker()
    broker.start()
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["broker.log"]
    getattr(broker, end)()
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\necho no memory for a broker >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(broker_module, "_binary", lambda: str(program))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Unavailable, match="no memory for a broker"):
        EmbeddedBroker().start()
    assert list(tmp_path.iterdir()) == [program]


def test_it_is_not_said_to_ask_for_a_login() -> None:
    """F22: it has none, and answers a question about logins as one that offers others would."""
    with EmbeddedBroker() as broker:
        assert refusal(KafkaSettings(bootstrap=broker.bootstrap), timeout_s=20) is None


MAKER = """
import time
from driftline.broker import EmbeddedBroker
broker = EmbeddedBroker()
broker.start()
print(broker.port, broker._process.pid, flush=True)
time.sleep(600)
"""


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_broker_ends_with_its_maker_also_of_kill_9(how: signal.Signals) -> None:
    """It would hold its port and its memory for ever, and nobody would know whose it is."""
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    port, group = map(int, maker.stdout.readline().split())
    try:
        assert is_listening(port)
        maker.send_signal(how)
        maker.wait()
        end = time.monotonic() + 120
        while is_listening(port):
            assert time.monotonic() < end, "it lives on"
            time.sleep(0.05)
    finally:
        maker.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
