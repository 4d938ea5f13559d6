"""All parts of Driftline as processes with one settings file, as their users start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from driftline.errors import BadData
from driftline.storage.open import open_catalog

TRAINING = """
import driftline, pathlib, sys
run = driftline.init("secured", config={"lr": 0.1})
for step in range(200):
    run.log({"loss": 1 / (step + 1)}, step=step)
run.checkpoint(sys.argv[1], step=200)
assert run.flush(120), run.counters()
run.finish()
print(run.id)
"""
"""A training of 200 steps that announces the checkpoint that its argument names, and prints its run's id."""


class Parts:
    """A folder with a settings file, and processes in it."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "driftline.yaml").write_text(yaml.safe_dump(dict(settings)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
        self.environ = kept | dict(environ)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """``driftline COMMAND...`` in the background; its lines go to a file named like the command."""
        with self.lines(command[0]).open("ab") as lines:
            process = subprocess.Popen(
                [sys.executable, "-m", "driftline.cli", *command],
                cwd=self.folder,
                env=self.environ,
                stdout=lines,
                stderr=lines,
            )
        self.running[command[0]] = process
        return process

    def run(self, *command: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """``driftline COMMAND...`` to its end."""
        return self.python("-m", "driftline.cli", *command, timeout_s=timeout_s)

    def python(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def lines(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def stop(self, name: str, timeout_s: float = 240) -> int:
        """SIGTERM; the exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout_s)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def told(self, most: int = 3_000) -> str:
        """The end of what every part said."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-most:]}" for path in sorted(self.folder.glob("*.log"))
        )


def written(settings: Any) -> dict[str, Any]:
    """Settings for quick tests of all parts, as a user writes them, of KafkaSettings; without secrets."""
    secrets = ("sasl_password", "ssl_key_password")
    kafka = {k: v for k, v in msgspec.structs.asdict(settings).items() if v is not None and k not in secrets}
    return {
        "kafka": kafka,
        "sdk": {"flush": "50ms"},
        "storage": {"commit": "500ms", "catalog": "500ms"},
        "evaluator": {"device": "cpu", "threads": 1, "announce": "200ms", "nice": 0},
        "evaluation": {
            "suites": [{"name": "sums", "target": "driftline.demo.suite:addition", "settings": {"count": 4}}]
        },
        "metrics": {"system": []},
    }


def ask(root: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the tables, none where they are not there so far."""
    try:
        with open_catalog(root) as catalog:
            return catalog.rows(sql)
    except BadData:
        return []


def until(condition: Callable[[], Any], what: str, timeout_s: float = 240) -> Any:
    """Waits for what the condition gives."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.1)
    return found
