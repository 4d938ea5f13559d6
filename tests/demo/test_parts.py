"""Processes of the demonstration are started, watched and ended, and none is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from driftline.demo.parts import PartDied, Parts


def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "logs", dict(os.environ))


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline, f"{text!r} did not appear in {path}"
        time.sleep(0.02)


def test_a_part_that_dies_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with parts(tmp_path) as running:
        part = running.start("sink", ["-c", "print('the disk is full'); raise SystemExit(3)"])
        part.process.wait(120)
        with pytest.raises(PartDied, match=r"sink ended with exit code 3(.|\n)*the disk is full"):
            running.check()


def test_only_a_finite_part_may_end_by_itself(tmp_path: Path) -> None:
    with parts(tmp_path) as running:
        rank = running.start("rank-0", ["-c", ""], finite=True)
        rank.process.wait(120)
        running.check()
        role = running.start("sink", ["-c", ""])
        role.process.wait(120)
        with pytest.raises(PartDied, match="sink ended with exit code 0"):
            running.check()


def test_a_part_that_was_killed_says_by_which_signal(tmp_path: Path) -> None:
    with parts(tmp_path) as running:
        part = running.start("rank-2", ["-c", "import os; os.kill(os.getpid(), 9)"], finite=True)
        part.process.wait(120)
        with pytest.raises(PartDied, match="rank-2 ended by signal 9"):
            running.check()


def test_stopping_asks_first_and_kills_what_does_not_listen(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(300)"
    kind = deaf.replace("signal.SIG_IGN", "lambda *_: exit(0)")
    with parts(tmp_path) as running:
        started = {name: running.start(name, ["-c", code]) for name, code in (("deaf", deaf), ("kind", kind))}
        for name in started:
            wait_for(tmp_path / "logs" / f"{name}.log", "up")
        assert running.stop([started["kind"]], seconds=120) == []
        killed = running.stop([started["deaf"]], seconds=0.5)
    assert [part.name for part in killed] == ["deaf"]
    assert started["kind"].code == 0
    assert started["deaf"].code == -9


def test_leaving_the_block_ends_everything(tmp_path: Path) -> None:
    with parts(tmp_path) as running:
        part = running.start("role", ["-c", "import time; time.sleep(300)"])
    assert part.code is not None
