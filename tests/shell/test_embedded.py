"""The shell on the embedded broker: one plain run, stopped in order and started again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaProducer

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

    write(0, 300)
    first = start_worker(kafka)
    until(lambda: len(read_all(kafka, "windows", 0)) >= 150, what="outputs of the first worker")
    assert first.stop() == 0
    write(300, 600)
    second = start_worker(kafka)
    until(lambda: len(read_all(kafka, "windows", 0)) >= 300, what="outputs of the second worker")
    assert second.stop() == 0
    producer.close()
    assert "Traceback" not in first.text() + second.text()
    for partition in range(2):
        core = toy.ToyCore()
        state = core.fresh(uuids[topic], partition)
        wanted = core.step(state, as_records(read_all(kafka, "telemetry", partition)))
        seen = {record.value for record in read_all(kafka, "windows", partition)}
        assert seen <= {output.value for output in wanted}
        assert len(seen) >= 300
        assert core.config_digest(state) is not None
