"""Logs and groups that are not as one would like, on a real Kafka: nothing is skipped in silence."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from driftline import admin, events
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.records import OutputId
from driftline.streams.shell import snapshots

pytestmark = pytest.mark.kafka


def write(settings: KafkaSettings, *values: bytes, compression: str | None = None) -> None:
    producer = KafkaProducer(acks="all", compression_type=compression, **kafka_python(settings))
    for value in values:
        producer.send(settings.topics["telemetry"], value, partition=0)
    producer.flush()
    producer.close()


def numbered(start: int, end: int) -> list[bytes]:
    return [b"k%d:%d" % (number % 3, number) for number in range(start, end)]


def once(found: list[Any]) -> list[bytes]:
    """Values as a reader keeps them: a worker that had to begin again has sent some of them twice."""
    return list(dict.fromkeys(record.value for record in found))


def bodies(found: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(value) for value in once(found)]


def test_what_the_group_skipped_and_a_broken_snapshot_do_not_matter(
    kafka: Any,
    toy: ModuleType,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    """The committed offset is ahead of the state, ``state`` holds a half snapshot, records are LZ4."""
    settings = kafka.settings(partitions=1)
    topic = settings.topics["telemetry"]
    uuid = ensure_topics(settings)[topic]
    write(settings, *numbered(0, 400), b"big:", *numbered(400, 500), compression="lz4")
    app_id = f"{settings.prefix}toy"
    group = KafkaConsumer(group_id=app_id, enable_auto_commit=False, **kafka_python(settings))
    group.commit({TopicPartition(topic, 0): OffsetAndMetadata(300, "", -1)})
    group.close()
    half = snapshots.write(
        snapshots.Source(app_id, uuid, 0), snapshots.SnapshotId(490, "zombie"), b'{"not": "state"}'
    )
    producer = KafkaProducer(acks="all", **kafka_python(settings))
    producer.send(settings.topics["state"], key=half.manifest[0], value=half.manifest[1], partition=0)
    producer.close()

    worker = start_worker(settings)
    until(lambda: len(once(read_all(settings, "windows", 0))) >= 500, what="outputs")
    assert worker.stop() == 0
    core = toy.ToyCore()
    wanted = core.step(core.fresh(uuid, 0), as_records(read_all(settings, "telemetry", 0)))
    seen = once(read_all(settings, "windows", 0))
    assert seen == [o.value for o in wanted if len(o.value) < 1_000_000][: len(seen)]
    assert len(seen) >= 500
    assert "reading offsets 0 to 300 again" in worker.text(), "the group's offset was ahead of the state"
    letters = [events.decode(record.value) for record in read_all(settings, "dead-letter", 0)]
    assert letters
    for letter in letters:
        assert isinstance(letter, events.DeadLetter)
        assert (letter.offset, letter.topic) == (400, topic)
        assert "too large" in letter.reason


def test_what_retention_took_is_a_gap_and_said_loudly(
    kafka: Any,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    until: Callable[..., None],
) -> None:
    settings = kafka.settings(partitions=1)
    ensure_topics(settings)
    write(settings, *numbered(0, 100))
    first = start_worker(settings)
    until(lambda: len(once(read_all(settings, "windows", 0))) >= 100, what="outputs")
    assert first.stop() == 0
    write(settings, *numbered(100, 500))
    last = OutputId.parse(bodies(read_all(settings, "windows", 0))[-1]["id"]).offset
    client = admin.connect(settings)
    client.delete_records({TopicPartition(settings.topics["telemetry"], 0): 300})
    client.close()

    second = start_worker(settings)
    until(lambda: "the log no longer has offsets" in second.text(), what="a loud line")
    until(lambda: len(once(read_all(settings, "windows", 0))) >= last + 200, what="outputs after the gap")
    assert second.stop() == 0
    after = [OutputId.parse(body["id"]).offset for body in bodies(read_all(settings, "windows", 0))]
    first_after = bodies(read_all(settings, "windows", 0))[last + 1]
    assert first_after["key"] == "gap"
    assert OutputId.parse(first_after["id"]).offset == last + 1
    assert after[last + 2] == 300
    assert after[last + 2 :] == list(range(300, after[-1] + 1))


def test_a_topic_that_was_made_again_starts_anew(
    kafka: Any,
    toy: ModuleType,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    """Offsets of the new topic mean something else: its UUID keeps old state and old ids apart."""
    settings = kafka.settings(partitions=1)
    topic = settings.topics["telemetry"]
    old = ensure_topics(settings)[topic]
    write(settings, *numbered(0, 100))
    worker = start_worker(settings, TOY_TOPICS_S="1")
    until(lambda: len(read_all(settings, "windows", 0)) >= 100, what="outputs of the old topic")
    client = admin.connect(settings)
    client.delete_topics([topic])
    client.close()
    until(lambda: ensure_topics(settings)[topic] != old, what="the topic is made again")
    uuid = ensure_topics(settings)[topic]
    write(settings, *numbered(500, 700))

    def of_new() -> list[bytes]:
        found = read_all(settings, "windows", 0)
        return [record.value for record in found if uuid.encode() in record.value]

    until(lambda: len(of_new()) >= 200, what="outputs of the new topic")
    assert worker.stop() == 0
    assert "Traceback" not in worker.text()
    core = toy.ToyCore()
    wanted = core.step(core.fresh(uuid, 0), as_records(read_all(settings, "telemetry", 0)))
    kept = list(dict.fromkeys(of_new()))
    assert kept == [output.value for output in wanted][: len(kept)]


@pytest.mark.parametrize("wrong", ["partitions", "time stamps"])
def test_topics_that_do_not_fit_end_the_worker_with_one_message(
    kafka: Any, start_worker: Callable[..., Any], wrong: str
) -> None:
    """A topic that the broker made by itself: exit code 2 and what to do, no restart loop (case S17)."""
    settings = kafka.settings(partitions=8)
    made = {"partitions": {"num_partitions": 1}, "time stamps": {"num_partitions": 8}}[wrong]
    client = admin.connect(settings)
    client.create_topics({settings.topics["telemetry"]: made | {"replication_factor": 1}})
    client.close()
    worker = start_worker(settings)
    assert worker.process.wait(240) == 2
    (line,) = worker.text().splitlines()
    assert settings.topics["telemetry"] in line
    assert {"partitions": "delete the topic", "time stamps": "--add-config"}[wrong] in line


def test_a_broker_that_is_away_is_waited_for_with_one_line(
    start_worker: Callable[..., Any], until: Callable[..., None]
) -> None:
    worker = start_worker(KafkaSettings(bootstrap="127.0.0.1:9", prefix="x."), TOY_PARTITIONS="1")
    until(lambda: "waiting" in worker.text(), what="a line")
    with pytest.raises(subprocess.TimeoutExpired):  # it goes on waiting, and says no more
        worker.process.wait(5)
    assert worker.stop() == 0
    first, *rest = worker.text().splitlines()
    assert "waiting: no broker answers at 127.0.0.1:9" in first
    assert len(rest) <= 1
