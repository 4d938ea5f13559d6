"""The demonstration itself, short: all parts as processes, on the embedded broker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from driftline.demo.verify import check
from driftline.storage.open import open_catalog

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
TOO_SHORT_FOR = {"slow rank", "loss spike", "accuracy"}
"""What a run of 60 steps cannot show; CI runs the whole demonstration with --check for these."""


class Demo:
    """``driftline demo`` in a process of its own."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root
        self.log = root.parent / f"{root.name}.out"
        command = [sys.executable, "-m", "driftline.cli", "demo", "--plain", "--root", str(root), *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTLINE_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until(self, text: str, seconds: float = 400) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.1)

    def children(self) -> dict[str, psutil.Process]:
        """The processes that it started, by a word of their command."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile
                words = child.cmdline()
                name = next((w for w in ("streams", "scheduler", "sink", "evaluator") if w in words), None)
                found[name or f"{child.pid}"] = child
        return found

    def end(self) -> int:
        try:
            return self.process.wait(1200)
        finally:
            if self.process.poll() is None:
                self.process.kill()


@pytest.mark.embedded
@pytest.mark.kafka
def test_a_short_run_stores_everything_once_and_one_that_is_cut_short_lies_beside_it(
    tmp_path: Path, kafka: Any
) -> None:
    """The first on the embedded broker, the second on a Kafka of one's own."""
    root = tmp_path / "data"
    cut_short = ("--steps", "100000", "--seconds-max", "6", "--bootstrap", kafka.bootstrap)
    for number, options in ((1, ("--steps", "60")), (2, cut_short)):
        demo = Demo(root, *options)
        assert demo.end() == 0, demo.said
        assert f"{len(os.listdir(root / 'runs'))}" == str(number)
        run = max(path.name for path in (root / "runs").iterdir())
        failed = [done for done in check(root, run) if not done.holds and done.of not in TOO_SHORT_FOR]
        assert failed == [], demo.said
        with open_catalog(root) as catalog:
            asked = "SELECT metric, goal, unit, reduce FROM metrics WHERE run = ?"
            declared = {("loss", "min", "nats/token", None), ("tokens", None, "tokens", "sum")}
            assert declared <= set(catalog.rows(asked, [run]))
        assert (root / "runs" / run / "report.png").read_bytes().startswith(b"\x89PNG")
        page = (root / "runs" / run / "report.html").read_text()
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", page), "the page must need no network"
        compared = demo.said.split("How do all runs so far compare?")[1].split("Ask your own")[0]
        assert len(re.findall(r"^ +\w{26} ", compared, re.M)) == number, compared


@pytest.mark.embedded
def test_ctrl_c_ends_all_processes_and_says_where_the_data_is(tmp_path: Path) -> None:
    demo = Demo(tmp_path / "data", "--steps", "100000")
    demo.wait_until("checkpoint saved at step 0")
    children = demo.children()
    assert {"streams", "scheduler", "sink", "evaluator"} <= set(children)
    demo.process.send_signal(signal.SIGINT)
    assert demo.end() == 130, demo.said
    assert f"Stopped. What was stored until then is in {tmp_path / 'data'}" in demo.said
    assert not [name for name, child in children.items() if child.is_running()]


@pytest.mark.embedded
def test_a_part_that_dies_ends_the_demonstration_with_its_name_and_log(tmp_path: Path) -> None:
    demo = Demo(tmp_path / "data", "--steps", "100000")
    demo.wait_until("starting stream worker")
    while "sink" not in (children := demo.children()):
        time.sleep(0.1)
    children["sink"].kill()
    assert demo.end() == 1, demo.said
    assert re.search(r"sink ended by signal 9; its log .*logs/\w+/sink.log", demo.said), demo.said
    assert not [name for name, child in children.items() if child.is_running()]
