"""The shell on the embedded broker: one plain run, stopped in order and started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaProducer

from driftline import events
from driftline.admin import ensure_topics
from driftline.connection import kafka_python


@pytest.mark.embedded
def test_a_run_on_the_embedded_broker_gives_the_outputs_of_the_pure_core(
    embedded: Any,
    toy: ModuleType,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    kafka = embedded.settings(partitions=2)
    uuids = ensure_topics(kafka)
    producer = KafkaProducer(acks="all", **kafka_python(kafka))
    topic = kafka.topics["telemetry"]

    def write(start: int, end: int) -> None:
        for number in range(start, end):
            producer.send(topic, b"k%d:%d" % (number % 3, number), partition=number % 2)
        producer.flush()

    def outputs(partition: int) -> set[bytes]:
        """Each once: some may be sent again."""
        return {record.value for record in read_all(kafka, "windows", partition)}

    write(0, 300)
    first = start_worker(kafka)
    until(lambda: len(outputs(0)) >= 150, what="outputs of the first worker")
    assert first.stop() == 0
    write(300, 600)
    second = start_worker(kafka)
    until(lambda: min(len(outputs(0)), len(outputs(1))) >= 300, what="outputs of the second worker")
    assert second.stop() == 0
    producer.close()
    assert "Traceback" not in first.text() + second.text()
    for partition in range(2):
        core = toy.ToyCore()
        state = core.fresh(uuids[topic], partition)
        wanted = core.step(state, as_records(read_all(kafka, "telemetry", partition)))
        seen = outputs(partition)
        assert seen <= {output.value for output in wanted}
        assert len(seen) >= 300
        assert core.config_digest(state) is not None


@pytest.mark.embedded
@pytest.mark.parametrize(("role", "topic"), [("streams", "telemetry"), ("scheduler", "evals")])
def test_each_role_starts_logs_its_configuration_ticks_and_stops_in_order(
    embedded: Any,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    until: Callable[..., None],
    role: str,
    topic: str,
) -> None:
    kafka = embedded.settings(partitions=1)
    worker = start_worker(
        kafka,
        [sys.executable, "-m", "driftline.streams.worker", role],
        DRIFTLINE_KAFKA__PARTITIONS="1",
        DRIFTLINE_STREAMS__STATE_DIR=str(tmp_path / "state"),
    )
    ensure_topics(kafka)

    def kinds() -> list[type]:
        return [type(events.decode(record.value)) for record in read_all(kafka, topic, 0)]

    until(lambda: kinds().count(events.Tick) >= 3, what="ticks")
    assert worker.stop() == 0
    assert kinds().count(events.ConfigChanged) == 1
    assert "Traceback" not in worker.text()


@pytest.mark.embedded
def test_a_run_that_began_before_the_first_worker_is_worked_on_with_its_configuration(
    embedded: Any,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    until: Callable[..., None],
) -> None:
    """Roles and trainers start in any order: a checkpoint from before the first worker is evaluated."""
    kafka = embedded.settings(partitions=1)
    ensure_topics(kafka)
    run = {"run": "early", "process": "p0", "time_us": 0}
    checkpoint = events.Checkpoint(digest="d", uri="/ckpt/step-10", step=10)
    producer = KafkaProducer(acks="all", **kafka_python(kafka))
    for event in (
        events.ProcessStarted(**run, seq=0, rank=0, world_size=1),
        events.CheckpointSaved(**run, seq=1, checkpoint=checkpoint, rank=0),
        events.ProcessEnded(**run, seq=2),
    ):
        producer.send(kafka.topics["telemetry"], events.encode(event), partition=0)
    producer.close()
    worker = start_worker(
        kafka,
        [sys.executable, "-m", "driftline.streams.worker", "streams"],
        DRIFTLINE_KAFKA__PARTITIONS="1",
        DRIFTLINE_STREAMS__STATE_DIR=str(tmp_path / "state"),
        DRIFTLINE_EVALUATION__SUITES="[{name: sums, target: 'my:sums'}]",
        DRIFTLINE_EVALUATION__EVERY__STEPS="10",
    )

    def requests() -> list[str]:
        found = [events.decode(record.value) for record in read_all(kafka, "evals", 0)]
        return [event.checkpoint.uri for event in found if isinstance(event, events.EvalRequested)]

    until(lambda: bool(requests()), what="a request")
    assert requests() == ["/ckpt/step-10"]
    assert worker.stop() == 0


def test_the_module_as_a_command_names_its_roles() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "driftline.streams.worker", "dance"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "streams|scheduler" in found.stderr
