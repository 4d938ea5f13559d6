"""The processes: actors (a place for a process of a role, which has many lives) and ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from driftline.connection import KafkaSettings

from .plan import PARTITIONS, SESSION_S, Role

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
READY: dict[Role, str] = {
    "streams": r"assigned here: \[",
    "scheduler": r"assigned here:",  # a second one stands by with none
    "sink": r"sink: reading from",
    "evaluator": r"evaluator \S+ on cpu",
}
SETTINGS = """
kafka: {{bootstrap: "{bootstrap}", prefix: "{prefix}", partitions: {partitions}, replication: {replication}}}
storage: {{root: "{root}", commit: 1s, catalog: 30s}}
windows: [{{axis: time, size: 4s, every: 2s}}, {{axis: step, size: 100, every: 50}}]
streams: {{per_rank: [loss], snapshot: 1s, session_timeout: {session}s}}
alerting:
  rules: [{{when: "pressure > 0.999"}}, {{when: "reward > 0.9 for 5 steps", severity: error}}]
scheduler: {{lease: 8s, present: 6s, retries: 100}}
sdk: {{exit_wait: 120s}}
evaluator: {{device: cpu, threads: 1, announce: 500ms, wait: 60s, poll: 200ms, nice: 0}}
evaluation:
  suites: [{{name: letters, target: "suites:suite"}}]
  every: {{steps: 40}}
  at_start: true
"""


def write_settings(folder: Path, kafka: KafkaSettings) -> Path:
    """The settings file of all roles."""
    path = folder / "driftline.yaml"
    path.write_text(
        SETTINGS.format(
            bootstrap=kafka.bootstrap,
            prefix=kafka.prefix,
            partitions=PARTITIONS,
            replication=kafka.replication,
            root=folder / "tables",
            session=int(SESSION_S),
        )
    )
    return path


def environ(folder: Path, **more: str) -> dict[str, str]:
    """The environment of every process: these settings, no others; one thread for what computes."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("DRIFTLINE_")}
    path = os.pathsep.join([str(SOURCE), str(HERE)])
    given = {"PYTHONPATH": path, "DRIFTLINE_CONFIG": str(folder / "driftline.yaml"), "OMP_NUM_THREADS": "1"}
    return plain | given | more


class Actor:
    """A place for a process of a role. ``state`` says what was last done to the process in it."""

    def __init__(self, role: Role, number: int, folder: Path) -> None:
        self.role: Role = role
        self.number = number
        self.name = f"{role}-{number}"
        self.state: Literal["new", "up", "paused", "stopping", "down"] = "new"
        self.lives = 0
        self.resumed_at = 0
        """Length of the log when it was last resumed."""
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._folder / "logs" / f"{self.name}.{self.lives}.log"

    def start(self) -> None:
        """A new life."""
        assert self.state in ("new", "down")
        self.lives += 1
        self.resumed_at = 0
        self.log.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "driftline.cli", self.role]
        with self.log.open("wb") as lines:
            self.process = subprocess.Popen(
                command, stdout=lines, stderr=lines, cwd=self._folder, env=environ(self._folder)
            )
        self.state = "up"

    def kill(self) -> None:
        """kill -9, in whatever state."""
        self.running.kill()
        self.running.wait()
        self.state = "down"

    def pause(self) -> None:
        self.running.send_signal(signal.SIGSTOP)
        self.state = "paused"

    def resume(self) -> None:
        if self.state == "paused":
            self.resumed_at = len(self.text())
            self.running.send_signal(signal.SIGCONT)
            self.state = "up"

    def ask_to_stop(self) -> None:
        """SIGTERM; :meth:`stopped` tells when it has ended."""
        self.running.send_signal(signal.SIGTERM)
        self.state = "stopping"

    def stopped(self) -> bool:
        """Whether it has ended after :meth:`ask_to_stop`."""
        if self.state == "stopping" and self.running.poll() is not None:
            self.state = "down"
        return self.state == "down"

    def ended_by_itself(self) -> int | None:
        """The exit code of a process that nobody asked to end; it is then down."""
        if self.state == "up" and (code := self.running.poll()) is not None:
            self.state = "down"
            return code
        return None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "started before"
        return self.process

    @property
    def ready(self) -> bool:
        """Whether this life has come so far as to work."""
        return self.state == "up" and re.search(READY[self.role], self.text()) is not None

    def text(self) -> str:
        """What this life has printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def evaluator(self) -> str | None:
        """The evaluator's id in this life."""
        found = re.search(r"evaluator (\S+) on cpu", self.text())
        return found[1] if found else None

    def counted(self, name: str) -> int:
        """The highest ``name=`` of the health lines, summed over all lives."""
        total = 0
        for life in range(1, self.lives + 1):
            text = (self._folder / "logs" / f"{self.name}.{life}.log").read_text(errors="replace")
            total += max((int(found) for found in re.findall(rf"\b{name}=(\d+)", text)), default=0)
        return total


class RawRanks:
    """The raw ranks as a process."""

    def __init__(self, folder: Path, frames_per_s: int) -> None:
        self._gate = folder / "gate"
        self.held_s = 0.0
        """How long they were held in all."""
        self._held_since: float | None = None
        self.hold(False)
        with (folder / "logs" / "ranks.log").open("wb") as lines:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "ranks.py"), str(frames_per_s), str(self._gate)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=lines,
                cwd=folder,
                env=environ(folder),
            )

    def hold(self, held: bool) -> None:
        """They wait while held, so that those who read can follow."""
        now = time.monotonic()
        if self._held_since is not None:
            self.held_s += now - self._held_since
        self._held_since = now if held else None
        new = self._gate.with_suffix(".new")
        new.write_text("hold" if held else "go")
        new.replace(self._gate)

    def died(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> dict[str, int]:
        """Frames that the broker took, by process. Raises RuntimeError if they failed."""
        out, _ = self._process.communicate(timeout=300)
        if self._process.returncode:
            raise RuntimeError(f"the raw ranks ended with {self._process.returncode}, see ranks.log")
        taken: dict[str, int] = json.loads(out)["frames"]
        return taken

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Trainers:
    """Runs of two ranks that use the SDK, one run after the other."""

    RANKS = 2

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = folder
        self._steps = steps
        self._runs = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self.said: list[dict[str, Any]] = []
        """What each rank that has ended printed."""
        self.failed: list[str] = []

    def turn(self, *, go_on: bool) -> bool:
        """Begins the next run when the last one is over; False when none runs."""
        if self._processes and all(process.poll() is not None for process in self._processes):
            self._collect()
        if not self._processes and go_on:
            self._begin()
        return bool(self._processes)

    def _begin(self) -> None:
        run = f"sdk-{self._runs}"
        self._runs += 1
        for rank in range(self.RANKS):
            given = {"DRIFTLINE_RUN_ID": run, "RANK": str(rank), "WORLD_SIZE": str(self.RANKS)}
            command = [
                sys.executable,
                str(HERE / "trainer.py"),
                str(self._folder / "checkpoints" / run),
                str(self._steps),
            ]
            with (self._folder / "logs" / f"{run}.{rank}.log").open("wb") as lines:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdout=subprocess.PIPE,
                        stderr=lines,
                        cwd=self._folder,
                        env=environ(self._folder, **given),
                    )
                )

    def _collect(self) -> None:
        for process in self._processes:
            out, _ = process.communicate()
            if process.returncode:
                self.failed.append(f"a rank that uses the SDK ended with {process.returncode}")
            else:
                self.said.append(json.loads(out))
        self._processes = []

    def kill(self) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.kill()
            process.communicate()


def wait_for(condition: Any, limit_s: float, what: str) -> None:
    """Until the condition holds. Raises TimeoutError."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.2)
