"""The SDK against real brokers: all of it arrives once, in order; outages hurt nobody."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import ConfigResource

import driftline
from driftline import events, frames, records
from driftline.admin import connect, ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.producers.kafka_transport import KafkaTransport
from driftline.settings import SdkSettings, Settings
from driftline.topics import partition_of


def start(kafka: KafkaSettings, **sdk: Any) -> driftline.Run:
    quiet: dict[str, Any] = {"system": (), "flush_us": 20_000, "exit_us": 120_000_000}
    return driftline.init("test", settings=Settings(sdk=SdkSettings(**(quiet | sdk)), kafka=kafka), rank=0)


def read(kafka: KafkaSettings, run: driftline.Run, seconds: float = 120.0) -> list[Any]:
    """All records of the run's partition until its last event."""
    from kafka import KafkaConsumer, TopicPartition

    place = TopicPartition(kafka.topics["telemetry"], partition_of(run.id, kafka.partitions))
    found: list[Any] = []
    with contextlib.closing(
        KafkaConsumer(**kafka_python(kafka), auto_offset_reset="earliest", enable_auto_commit=False)
    ) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for messages in consumer.poll(timeout_ms=200).values():
                for message in messages:
                    assert message.key == run.id.encode()
                    found.append(records.decode(message.value))
            if found and isinstance(found[-1], events.ProcessEnded):
                return found
    raise AssertionError(f"the last event did not arrive; {len(found)} records did")


def once(found: list[Any]) -> list[Any]:
    """First arrivals; asserts that they are in the order of their numbers, without a hole."""
    seen: dict[int, Any] = {}
    for record in found:
        seen.setdefault(record.seq, record)
    assert list(seen) == list(range(len(seen)))
    return list(seen.values())


def steps(found: list[Any]) -> Iterator[int]:
    for record in found:
        if isinstance(record, frames.Frame):
            yield from record.step.tolist()


def drive(run: driftline.Run, count: int) -> list[int]:
    """Logs ``count`` steps of 20 floats; nanoseconds of each call."""
    taken = []
    for step in range(count):
        values = {f"metric/{at}": step / (at + 1) for at in range(20)}
        before = time.perf_counter_ns()
        run.log(values, step=step)
        taken.append(time.perf_counter_ns() - before)
    return taken


@pytest.mark.embedded
def test_everything_arrives_at_the_embedded_broker(embedded: Any) -> None:
    kafka = embedded.settings()
    ensure_topics(kafka)
    with start(kafka) as run:
        drive(run, 2000)
    found = once(read(kafka, run))
    assert list(steps(found)) == [step for step in range(2000) for _ in range(20)]
    assert run.counters()["samples_delivered"] == 40_000


@pytest.mark.kafka
def test_everything_arrives_at_kafka_once_and_in_order(kafka: Any) -> None:
    settings = kafka.settings()
    ensure_topics(settings)
    with start(settings) as run:
        drive(run, 2000)
        assert run.flush(120)
    found = read(settings, run)
    assert once(found) == found
    assert isinstance(found[0], events.ProcessStarted)
    assert list(steps(found)) == [step for step in range(2000) for _ in range(20)]


@pytest.mark.kafka
def test_a_topic_that_is_made_later_gets_what_was_logged_before(
    kafka: Any, caplog: pytest.LogCaptureFixture, wait_for: Any
) -> None:
    settings = kafka.settings()
    run = start(settings)
    drive(run, 10)
    wait_for(lambda: run.counters().get("connection_failures", 0) > 1)
    ensure_topics(settings)
    run.finish()
    assert len(list(steps(once(read(settings, run))))) == 200
    assert sum("shows no topic" in message for message in caplog.messages) == 1


@pytest.mark.long
@pytest.mark.kafka
def test_a_broker_that_is_absent_at_start_and_killed_in_the_middle(jvm_kafka: Any) -> None:
    """Case 13: no exception, no wait, afterwards every step is there, in order, once per number."""
    settings = KafkaSettings(bootstrap=jvm_kafka.bootstrap, prefix="outage.", partitions=4)
    ensure_topics(settings)
    jvm_kafka.stop()
    run = start(settings, exit_us=120_000_000)
    taken = []

    def trainer(first: int, count: int) -> None:
        for step in range(first, first + count):
            before = time.perf_counter_ns()
            run.log({"loss": 1 / (step + 1), "reward": float(step)}, step=step)
            taken.append(time.perf_counter_ns() - before)
            time.sleep(0.005)

    trainer(0, 100)
    jvm_kafka.start()
    assert run.flush(120)
    trainer(100, 100)
    jvm_kafka.kill()
    trainer(200, 200)
    jvm_kafka.start()
    trainer(400, 100)
    run.finish()
    found = once(read(settings, run))
    assert list(steps(found)) == [step for step in range(500) for _ in range(2)]
    assert run.counters()["samples_delivered"] == 1000
    taken.sort()
    assert taken[int(len(taken) * 0.99)] < 200_000_000, "a call that waited for the broker took a second"


@pytest.mark.kafka
def test_a_broker_that_dies_for_good_ends_in_bounded_time(
    jvm_kafka: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = KafkaSettings(bootstrap=jvm_kafka.bootstrap, prefix="gone.", partitions=4)
    ensure_topics(settings)
    run = start(settings, exit_us=2_000_000)
    drive(run, 100)
    assert run.flush(120)
    jvm_kafka.kill()
    drive(run, 100)
    before = time.monotonic()
    run.finish()
    assert time.monotonic() - before < 30
    lines = [message for message in caplog.messages if "not delivered" in message]
    assert len(lines) == 1
    assert "2000 of 4000 samples" in lines[0]
    assert "Exception ignored" not in capfd.readouterr().err


def limit(settings: KafkaSettings, limit_bytes: int) -> None:
    """Has the topic take no larger batches; returns when the broker says so, which takes it a moment."""
    topic, name = settings.topics["telemetry"], "max.message.bytes"
    with contextlib.closing(connect(settings)) as admin:
        admin.alter_configs([ConfigResource("TOPIC", topic, {name: str(limit_bytes)})])
        end = time.monotonic() + 60
        while True:
            found = admin.describe_configs([ConfigResource("TOPIC", topic, [name])], config_filter="all")
            if found["topic"][topic][name]["value"] == str(limit_bytes):
                return
            assert time.monotonic() < end, found
            time.sleep(0.1)


@pytest.mark.kafka
def test_nothing_gets_in_behind_a_record_that_is_too_large(kafka: Any, wait_for: Any) -> None:
    """Else what is cut and sent later would have lower numbers than what readers have seen."""
    settings = kafka.settings()
    ensure_topics(settings)
    limit(settings, 60_000)
    way = KafkaTransport(settings, "r")
    way.open(timeout_us=20_000_000, notify=lambda: None)
    for seq, size in enumerate((10, 200_000, 10, 10)):
        way.send(seq, random.Random(seq).randbytes(size))
    found: list[Any] = []
    wait_for(lambda: found.extend(way.outcomes()) or len(found) == 4, 60)
    assert {outcome.seq for outcome in found if outcome.error is None} <= {0}
    assert [outcome.seq for outcome in found if outcome.too_large] == [1]
    way.close(timeout_us=0)


@pytest.mark.kafka
@pytest.mark.parametrize("limit_bytes", [1024 * 1024, 60_000])
def test_one_call_with_40000_names_between_small_ones_arrives(kafka: Any, limit_bytes: int) -> None:
    """Case 17: at the usual limit, and at a topic that takes less than the SDK's own frames."""
    settings = kafka.settings()
    ensure_topics(settings)
    limit(settings, limit_bytes)
    chance = random.Random(17)
    names = [f"layer {at}: {chance.randbytes(10).hex()}" for at in range(40_000)]
    run = start(settings, exit_us=60_000_000)
    run.log({"small": 1.0}, step=0)
    run.log({name: chance.random() for name in names}, step=1)
    run.log({"small": 2.0}, step=2)
    assert run.flush(60)
    run.finish()
    assert run.counters()["samples_delivered"] == 40_002
    refused = limit_bytes < 512 * 1024
    assert (run.counters()["connections"] > 1) == refused, "the limit is what was tested"
    found = once(read(settings, run))
    rows = [
        (frame.names[number], step)
        for frame in found
        if isinstance(frame, frames.Frame)
        for number, step in zip(frame.metric.tolist(), frame.step.tolist(), strict=True)
    ]
    assert rows == [("small", 0), *((name, 1) for name in names), ("small", 2)]
    assert isinstance(found[0], events.ProcessStarted)
