"""A broker that goes away and comes back costs time, nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaProducer

from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.records import OutputId


def write(settings: KafkaSettings, start: int, end: int) -> None:
    producer = KafkaProducer(acks="all", **kafka_python(settings))
    for number in range(start, end):
        producer.send(settings.topics["telemetry"], b"k%d:%d" % (number % 3, number), partition=0)
    producer.flush()
    producer.close()


@pytest.mark.long
@pytest.mark.kafka
def test_the_worker_outlives_its_broker(
    jvm_kafka: Any,
    toy: ModuleType,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    settings = KafkaSettings(bootstrap=jvm_kafka.bootstrap, prefix="restart.", partitions=1)
    uuid = ensure_topics(settings)[settings.topics["telemetry"]]
    write(settings, 0, 500)
    worker = start_worker(settings)

    def reached() -> int:
        """The last input offset with an output; a worker that began again sends some of them twice."""
        found = read_all(settings, "windows", 0)
        return max((OutputId.parse(json.loads(record.value)["id"]).offset for record in found), default=-1)

    until(lambda: reached() >= 499, what="outputs before the outage")
    jvm_kafka.stop()
    time.sleep(8)  # longer than the session: the outage itself, nothing to wait for
    assert worker.process.poll() is None
    jvm_kafka.start()
    before = read_all(settings, "telemetry", 0)[-1].offset
    write(settings, 500, 1000)
    until(lambda: reached() >= before + 500, what="outputs after the outage")
    assert worker.stop() == 0
    assert "Traceback" not in worker.text()
    core = toy.ToyCore()
    log = as_records(read_all(settings, "telemetry", 0))
    wanted = {o.id: o.value for o in core.step(core.fresh(uuid, 0), log)}
    seen = {}
    for record in read_all(settings, "windows", 0):
        this = OutputId.parse(json.loads(record.value)["id"])
        assert record.value == wanted[this]
        seen[this.offset] = record.value
    assert sorted(seen) == list(range(max(seen) + 1))
    assert max(seen) >= before + 500
