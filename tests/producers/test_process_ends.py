"""However a process ends, training is not hurt: exit code kept, bounded time, last event, no noise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from driftline import events, frames, records

HEAD = """
import os, signal, sys, time
import driftline
from driftline.connection import KafkaSettings
from driftline.producers.transport import MemoryTransport
from driftline.settings import SdkSettings, Settings

class FileTransport(MemoryTransport):
    def send(self, seq, payload):
        super().send(seq, payload)
        with open(sys.argv[1], "ab") as file:
            file.write(len(payload).to_bytes(4, "big") + payload)

def start(transport=True, **sdk):
    quiet = {"system": (), "flush_us": 20_000, "spool": sys.argv[1] + "/../spool"}
    sdk = quiet | {"exit_us": 60_000_000 if transport else 1_000_000} | sdk
    settings = Settings(sdk=SdkSettings(**sdk), kafka=KafkaSettings(bootstrap=sys.argv[2]))
    return driftline.init("x", settings=settings, transport=FileTransport() if transport else None)
"""


class Ended(NamedTuple):
    code: int
    seconds: float
    stderr: str
    stdout: str
    records: list[Any]


NOBODY = "127.0.0.1:1"
"""Refuses connections."""


def read(path: Path) -> list[Any]:
    data, found = path.read_bytes() if path.exists() else b"", []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(records.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return found


def child(tmp_path: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + code, str(tmp_path / "log"), NOBODY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(tmp_path: Path, process: subprocess.Popen[str]) -> Ended:
    start = time.monotonic()
    stdout, stderr = process.communicate(timeout=300)
    return Ended(process.returncode, time.monotonic() - start, stderr, stdout, read(tmp_path / "log"))


def outcome(found: Ended) -> str:
    assert isinstance(found.records[-1], events.ProcessEnded)
    return found.records[-1].outcome


@pytest.mark.parametrize(
    ("code", "exit_code", "right", "says"),
    [
        ("", 0, "finished", ""),
        ("sys.exit(3)", 3, "finished", ""),
        ("raise ValueError('mine')", 1, "exception", "ValueError: mine"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(120)", -15, "signal", ""),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(120)", -2, "signal", "KeyboardInterrupt"),
    ],
)
def test_samples_and_the_outcome_arrive_and_the_exit_code_stays(
    tmp_path: Path, code: str, exit_code: int, right: str, says: str
) -> None:
    found = ended(tmp_path, child(tmp_path, f"run = start()\nrun.log({{'a': 1.0}}, step=1)\n{code}"))
    assert found.code == exit_code
    assert outcome(found) == right
    assert sum(len(record.value) for record in found.records if isinstance(record, frames.Frame)) == 1
    assert says in found.stderr
    assert "driftline:" not in found.stderr
    assert "Exception ignored" not in found.stderr


def test_sigterm_from_outside_in_a_long_loop(tmp_path: Path) -> None:
    process = child(
        tmp_path, "run = start()\nprint('up', flush=True)\nwhile True: run.log({'a': 1.0}); time.sleep(0.001)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    found = ended(tmp_path, process)
    assert found.code == -signal.SIGTERM
    assert outcome(found) == "signal"


def test_a_handler_of_the_trainer_stays(tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
run = start()
run.log({"a": 1.0})
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(120)
"""
    found = ended(tmp_path, child(tmp_path, code))
    assert found.code == 7
    assert isinstance(found.records[-1], events.ProcessEnded)


@pytest.mark.parametrize("code", ["", "sys.exit(3)", "run.finish(); run.finish(); sys.exit(3)"])
def test_without_a_broker_the_end_is_bounded_and_one_line_says_what_is_lost(
    tmp_path: Path, code: str
) -> None:
    """The first half of case 13: absent for the whole run, no exception, no wait, count reported."""
    body = f"""
run = start(transport=False)
slow = 0.0
for step in range(500):
    before = time.perf_counter()
    run.log({{"a": 1.0, "b": 2.0}}, step=step)
    slow = max(slow, time.perf_counter() - before)
    time.sleep(0.001)
print(slow)
{code}
"""
    found = ended(tmp_path, child(tmp_path, body))
    assert found.code == (3 if code else 0)
    lines = [line for line in found.stderr.splitlines() if "not delivered" in line]
    assert len(lines) == 1
    assert "1000 of 1000 samples" in lines[0]
    assert "refused" in lines[0]
    assert f": 1000 wait in {tmp_path}/spool; `driftline spool send`" in lines[0]
    assert len(found.stderr.splitlines()) <= 2, found.stderr
    assert float(found.stdout) < 10, "kafka-python would wait 30 s and more"


def test_the_end_waits_no_longer_than_asked(tmp_path: Path) -> None:
    body = """
run = start(transport=False, exit_us=500_000)
run.log({"a": 1.0})
before = time.monotonic()
run.finish()
print(time.monotonic() - before)
"""
    found = ended(tmp_path, child(tmp_path, body))
    assert 0.3 < float(found.stdout) < 20


def test_os_fork_and_a_normal_exit_of_the_child(tmp_path: Path) -> None:
    body = """
run = start()
run.log({"before": 1.0})
run.flush()
child = os.fork()
if child == 0:
    sys.exit(5)  # runs the atexit hooks of the child
_, status = os.waitpid(child, 0)
run.log({"after": 1.0})
sys.exit(os.waitstatus_to_exitcode(status))
"""
    found = ended(tmp_path, child(tmp_path, body))
    assert found.code == 5
    assert outcome(found) == "finished"
    assert sum(isinstance(record, events.ProcessEnded) for record in found.records) == 1


def test_wrong_settings_are_the_only_error_of_init(tmp_path: Path) -> None:
    (tmp_path / "driftline.yaml").write_text("monitorin: {}\n")
    code = """
os.chdir(os.path.dirname(sys.argv[1]))
try: driftline.init('x')
except Exception as error: print(type(error).__name__, error)
"""
    found = ended(tmp_path, child(tmp_path, code))
    assert found.stdout.startswith("SettingsError")
    assert "monitorin" in found.stdout
    assert os.environ.get("DRIFTLINE_CONFIG") is None
