"""The embedded broker as a process: it does not outlive the one that made it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.embedded

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
