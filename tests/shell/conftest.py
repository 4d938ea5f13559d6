"""What the shell's tests share: the toy core, worker processes, and reading whole topics."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from driftline.connection import KafkaSettings, kafka_python
from driftline.records import Record
from driftline.streams.shell.snapshots import Collected, Source

HERE = Path(__file__).parent


def load(name: str, path: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    return load("shell_toy", HERE / "toy.py")


@pytest.fixture(scope="session")
def training() -> ModuleType:
    return load("shell_training", HERE / "training.py")


@pytest.fixture(scope="session")
def memory() -> ModuleType:
    return load("shell_memory", HERE / "memory.py")


@pytest.fixture(scope="session")
def naive() -> ModuleType:
    return load("driftline_tests_naive", HERE.parent / "naive.py")


class Worker:
    """A worker process; its lines go to a file."""

    def __init__(self, command: list[str], environ: dict[str, str], lines: Path) -> None:
        self.lines = lines
        with lines.open("wb") as sink:
            self.process = subprocess.Popen(
                command, env=os.environ | environ, stdout=sink, stderr=subprocess.STDOUT
            )

    def text(self) -> str:
        return self.lines.read_text()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self, timeout_s: float = 120) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts worker processes that end with the test; their output is shown if it fails."""
    started: list[Worker] = []

    def start(kafka: KafkaSettings, command: list[str] | None = None, **environ: str) -> Worker:
        name = f"worker-{len(started)}"
        base = {
            "DRIFTLINE_BOOTSTRAP": kafka.bootstrap,
            "DRIFTLINE_PREFIX": kafka.prefix,
            "TOY_PARTITIONS": str(kafka.partitions),
            "TOY_STATE_DIR": str(tmp_path / name),
        }
        line = command or [sys.executable, str(HERE / "toy.py")]
        worker = Worker(line, base | environ, tmp_path / f"{name}.log")
        started.append(worker)
        return worker

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.resume()
            worker.kill()
        print(f"--- {worker.lines.name}\n{worker.text()[-4000:]}")


def read_topic(kafka: KafkaSettings, topic: str, partition: int) -> list[Any]:
    """Every record of a partition, up to the high watermark that a fetch response carried."""
    at = TopicPartition(kafka.prefix + topic, partition)
    consumer = KafkaConsumer(auto_offset_reset="earliest", enable_auto_commit=False, **kafka_python(kafka))
    try:
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        found: list[Any] = []
        end: int | None = None
        while end is None or consumer.position(at) < end:
            for batch in consumer.poll(200).values():
                found.extend(batch)
            end = end if end is not None else consumer.highwater(at)
        return found
    finally:
        consumer.close()


@pytest.fixture(scope="session")
def read_all() -> Callable[[KafkaSettings, str, int], list[Any]]:
    return read_topic


@pytest.fixture(scope="session")
def snapshot_offset() -> Callable[[KafkaSettings, str, str, int], int]:
    """Offset of the newest complete snapshot of a role's input topic (by UUID) and partition; -1 for none."""

    def newest(kafka: KafkaSettings, role: str, topic_uuid: str, partition: int) -> int:
        found = Collected(Source(f"{kafka.prefix}{role}", topic_uuid, partition))
        for record in read_topic(kafka, "state", partition):
            found.add(record.key, record.value)
        return max((snapshot.offset for snapshot in found.complete), default=-1)

    return newest


@pytest.fixture(scope="session")
def as_records() -> Callable[[list[Any]], list[Record]]:
    return lambda found: [Record(r.partition, r.offset, r.timestamp, r.value) for r in found]


def wait_until(condition: Callable[[], bool], timeout_s: float = 240, what: str = "") -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.1)


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    return wait_until
