"""The peers of ``windows.py``: programs under ``peers/`` with environments of their own.

Each is started as ``command... bootstrap input output state-dir name=value...`` and writes closed windows to
``output`` until it is ended. Environments are made once under ``.cache/peers`` of the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from window_stream import Stream

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "peers"
JAVA_HEAP = "1g"


class Missing(RuntimeError):
    """A peer's environment cannot be made here; the message says why."""


class Peer(NamedTuple):
    """One tool in one form. ``samples``: how many it gets, None for all; ``quick_samples`` likewise."""

    name: str
    command: Callable[[], list[str]]
    wide: bool = False
    tuned: tuple[str, ...] = ()
    samples: int | None = None
    quick_samples: int | None = None
    wall_clock: bool = False
    """It closes windows by the wall clock, so its samples are dated now, and only its work until the last
    sample counts."""
    quiet_s: float = 40.0
    """Without a new window for so long it is taken to be through; it may be slow."""

    def arguments(self, stream: Stream) -> list[str]:
        """What the program is told of its stream."""
        return [f"measure={stream.measured_from_ms}", f"samples={stream.measured}", *self.tuned]


def python(name: str) -> list[str]:
    """A Python peer: its own venv with what its requirements.txt pins."""
    folder, venv = HERE / "peers" / name, CACHE / name
    wanted = (folder / "requirements.txt").read_text()
    mark = venv / "complete"
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(venv)])
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "-r"]
        _run([*pip, str(folder / "requirements.txt")])
        mark.write_text(wanted)
    return [str(venv / "bin" / "python"), str(folder / "peer.py")]


def kafka_streams() -> list[str]:
    """The Java peer: Kafka Streams' jars by Maven, and our one class compiled beside them."""
    folder, target = HERE / "peers" / "kafka_streams", CACHE / "kafka_streams"
    source = folder / "src" / "main" / "java" / "KafkaStreamsPeer.java"
    wanted = (folder / "pom.xml").read_text() + source.read_text()
    mark = target / "complete"
    if not mark.exists() or mark.read_text() != wanted:
        for tool in ("java", "javac", "mvn"):
            if not shutil.which(tool):
                raise Missing(f"no {tool} is here")
        target.mkdir(parents=True, exist_ok=True)
        maven = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
        _run([*maven, f"-DoutputDirectory={target / 'jars'}"])
        _run(["javac", "-cp", f"{target / 'jars'}/*", "-d", str(target / "classes"), str(source)])
        mark.write_text(wanted)
    options = [f"-Xmx{JAVA_HEAP}", f"-Xms{JAVA_HEAP}", "-XX:+UseParallelGC", "-cp"]
    return ["java", *options, f"{target / 'classes'}:{target / 'jars'}/*", "KafkaStreamsPeer"]


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "faust_hopping",
            lambda: python("faust_hopping"),
            samples=6_400,
            quick_samples=1_280,
            tuned=("expires=1",),
            wall_clock=True,
        ),
        Peer("kafka_streams", kafka_streams, tuned=("final=emit",), quick_samples=100_000),
        Peer("kafka_streams_20", kafka_streams, wide=True, tuned=("final=emit",), quick_samples=200_000),
        Peer("quix", lambda: python("quix"), samples=100_000, quick_samples=40_000),
        Peer("quix_20", lambda: python("quix"), wide=True, tuned=("form=wide",), quick_samples=200_000),
    )
}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode:
        raise Missing(f"{command[0]} failed: {(done.stdout + done.stderr)[-800:]}")
