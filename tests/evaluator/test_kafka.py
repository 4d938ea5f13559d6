"""The evaluator as a process on real brokers: signals, kills, absence, and where its records arrive."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline import events
from driftline.admin import ensure_topics
from driftline.clock import SystemClock
from driftline.config import PipelineConfig
from driftline.connection import KafkaSettings, kafka_python
from driftline.evaluator.service import Service
from driftline.evaluator.transport import KafkaTransport
from driftline.events import (
    Checkpoint,
    EvalItems,
    EvalResult,
    EvaluatorGone,
    EvaluatorPresent,
    Lease,
    SuiteRef,
    decode,
)
from driftline.settings import EvaluatorSettings, Settings
from driftline.topics import partition_of

SUITE = SuiteRef(name="tiny", target="tiny_disk_suites:suite")
SLOW = SuiteRef(name="slow", target="tiny_disk_suites:slow")

MODULE = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("tiny_conftest", {conftest!r})
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)
here = pathlib.Path({here!r})

def load(checkpoint, device):
    (here / "loading").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    return tiny.TinyModel()

suite = tiny.generation_suite()
slow = tiny.generation_suite(load=load)
"""

CONFIG = """
kafka: {{bootstrap: "{bootstrap}", prefix: "{prefix}", partitions: 4}}
evaluator: {{device: cpu, threads: 1, announce: 200ms, wait: 20s, poll: 50ms, nice: 0}}
evaluation:
  suites: [{{name: tiny, target: "tiny_disk_suites:suite"}}, {{name: slow, target: "tiny_disk_suites:slow"}}]
"""


def until(condition: Callable[[], Any], what: str, *, timeout_s: float = 240.0) -> Any:
    end = time.monotonic() + timeout_s
    while not (got := condition()):
        assert time.monotonic() < end, f"did not happen in time: {what}"
        time.sleep(0.02)
    return got


class Bench:
    """A folder with suites and settings, a hand at the topics, and evaluators as processes."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        conftest = str(Path(__file__).with_name("conftest.py"))
        (folder / "tiny_disk_suites.py").write_text(MODULE.format(conftest=conftest, here=str(folder)))
        (folder / "driftline.yaml").write_text(CONFIG.format(bootstrap=kafka.bootstrap, prefix=kafka.prefix))
        self.processes: list[subprocess.Popen[str]] = []
        self.seen: list[tuple[int, Any]] = []

    def connect(self) -> None:
        ensure_topics(self.kafka)
        self.producer = KafkaProducer(**kafka_python(self.kafka), allow_auto_create_topics=False)
        self.consumer = KafkaConsumer(
            **kafka_python(self.kafka),
            group_id=None,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
        )
        partitions = [TopicPartition(self.kafka.topics["evals"], 0)]
        partitions += [TopicPartition(self.kafka.topics["eval-items"], at) for at in range(4)]
        self.consumer.assign(partitions)
        self.consumer.seek_to_beginning(*partitions)

    def start(self) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTLINE_")}
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "driftline.evaluator.service"],
                cwd=self.folder,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.processes[-1]

    def put(self, value: bytes) -> None:
        self.producer.send(self.kafka.topics["assignments"], value=value, partition=0).get(timeout=120)

    def lease(
        self, checkpoint: Checkpoint, evaluator: str, *, name: str = "L1", suite: SuiteRef = SUITE
    ) -> None:
        lease = Lease(
            id="t/0/0/0",
            lease=name,
            request=f"request-of-{name}",
            evaluator=evaluator,
            tried=1,
            run="run-7",
            suite=suite,
            checkpoint=checkpoint,
            expires_us=0,
        )
        self.put(events.encode(lease))

    def all(self, kind: type[Any]) -> list[Any]:
        for records in self.consumer.poll(timeout_ms=50).values():
            self.seen += [(record.partition, decode(record.value)) for record in records]
        return [event for _, event in self.seen if isinstance(event, kind)]

    def evaluator(self, *, but: str = "") -> str:
        """The id of a present evaluator."""
        names = until(
            lambda: {event.evaluator for event in self.all(EvaluatorPresent)} - {but},
            "an evaluator is present",
        )
        return str(names.pop())

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        if hasattr(self, "producer"):
            self.producer.close()
            self.consumer.close()


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Callable[[KafkaSettings], Bench]]:
    made: list[Bench] = []

    def make(settings: KafkaSettings) -> Bench:
        made.append(Bench(settings, tmp_path))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.embedded),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ]
)
def broker(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_a_lease_becomes_items_on_the_runs_partition_and_a_result(
    broker: Any, on: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that it is quick; a bad record before the lease is skipped."""
    bench = on(broker.settings())
    bench.connect()
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = Settings(
        pipeline=PipelineConfig(suites=[SUITE]),
        evaluator=EvaluatorSettings(device="cpu", threads=1, nice=0, announce_us=100_000),
    )
    bench.put(b"neither frame nor event")
    bench.lease(tiny.write(tmp_path / "old"), "me", name="L0")
    service = Service(
        settings,
        evaluator="me",
        connect=lambda: KafkaTransport(bench.kafka, client_id="test"),
        clock=SystemClock(),
    )
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        bench.lease(tiny.write(tmp_path / "step-10"), "me")
        results = until(lambda: found if len(found := bench.all(EvalResult)) == 2 else None, "two results")
    finally:
        service.stop()
        thread.join(120)
    assert [(result.lease, result.outcome.status) for result in results] == [("L0", "done"), ("L1", "done")]
    until(lambda: bench.all(EvaluatorGone), "goodbye")
    until(lambda: sum(len(event.items) for event in bench.all(EvalItems)) >= 14, "items of both")
    items = [(partition, event) for partition, event in bench.seen if isinstance(event, EvalItems)]
    assert {partition for partition, _ in items} == {partition_of("run-7", 4)}
    assert sum(len(event.items) for _, event in items) == 14
    assert not thread.is_alive()


@pytest.mark.kafka
def test_kill_and_sigterm_within_suite_code(kafka: Any, on: Any, tiny: Any, tmp_path: Path) -> None:
    """Killed: another does its lease, with one result (case 29's variant; the test plays the scheduler).
    SIGTERM: no result, goodbye, exit code 0."""
    bench = on(kafka.settings())
    bench.connect()
    loading, go = tmp_path / "loading", tmp_path / "go"
    checkpoint = tiny.write(tmp_path / "step-10")
    first = bench.start()
    name = bench.evaluator()
    second = bench.start()
    bench.lease(checkpoint, name, suite=SLOW)
    until(loading.exists, "suite code runs")
    first.kill()
    other = bench.evaluator(but=name)
    go.touch()
    bench.lease(checkpoint, other, name="L2", suite=SLOW)
    (result,) = until(lambda: bench.all(EvalResult), "a result")
    assert (result.lease, result.outcome.status, result.outcome.items) == ("L2", "done", 7)
    until(lambda: bench.all(EvalItems), "items")
    assert {event.lease for event in bench.all(EvalItems)} == {"L2"}

    loading.unlink()
    go.unlink()
    bench.lease(checkpoint, other, name="L3", suite=SLOW)
    until(loading.exists, "suite code runs")
    second.send_signal(signal.SIGTERM)
    assert second.wait(120) == 0
    until(lambda: [event for event in bench.all(EvaluatorGone) if event.evaluator == other], "goodbye")
    assert [event.lease for event in bench.all(EvalResult)] == ["L2"]
    assert "Traceback" not in second.stderr.read()


def test_an_unreachable_broker_is_one_clear_line_and_sigterm_still_ends_it(on: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bench = on(KafkaSettings(bootstrap=f"127.0.0.1:{free.getsockname()[1]}"))
        process = bench.start()
        line = ""
        while "waiting for the broker" not in line:
            line = process.stderr.readline()
            assert line, "it ended without saying that it waits"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        rest = process.stderr.read()
    assert bench.kafka.bootstrap in line
    assert "Traceback" not in rest
    assert "waiting" not in rest, "said once"


def test_wrong_settings_end_it_with_exit_code_2_and_one_line(on: Any, tmp_path: Path) -> None:
    bench = on(KafkaSettings(bootstrap="127.0.0.1:1"))
    (tmp_path / "driftline.yaml").write_text("evaluation: {suites: [no_such_module:x]}\n")
    process = bench.start()
    _, told = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "evaluation.suites" in told
    assert "Traceback" not in told
