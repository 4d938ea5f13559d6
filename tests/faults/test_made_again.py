"""Topics that are deleted and made again under a whole pipeline that goes on: nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline import admin, frames, records
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.topics import partition_of

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.timeout(900)]
FED = ("telemetry", "windows", "facts", "alerts", "eval-items")


def make_again(kafka: KafkaSettings, until: Callable[..., Any]) -> None:
    """Deletes what feeds tables, and makes it (or lets a part make it) again."""
    topics = [kafka.topics[name] for name in FED]  # type: ignore[index]
    before = ensure_topics(kafka)
    client = admin.connect(kafka)
    with contextlib.closing(client):
        client.delete_topics(topics)

    def new() -> bool:
        with contextlib.suppress(Exception):  # some are still going, or come meanwhile from another part
            after = ensure_topics(kafka)
            return all(after[topic] != before[topic] for topic in topics)
        return False

    until(new, "the topics are there again")


def read(kafka: KafkaSettings, partition: int) -> list[bytes]:
    """All values of a telemetry partition now."""
    spot = TopicPartition(kafka.topics["telemetry"], partition)
    found: list[bytes] = []
    with contextlib.closing(KafkaConsumer(**kafka_python(kafka), enable_auto_commit=False)) as consumer:
        consumer.assign([spot])
        consumer.seek_to_beginning(spot)
        end = consumer.end_offsets([spot])[spot]
        while consumer.position(spot) < end:
            found += [record.value for record in consumer.poll(200).get(spot, [])]
    return found


def frames_of(values: list[bytes]) -> list[tuple[bytes, frames.Frame]]:
    decoded = ((value, records.decode(value)) for value in values)
    return [(value, frame) for value, frame in decoded if isinstance(frame, frames.Frame)]


def test_topics_made_again_under_all_parts_store_nothing_twice_and_lose_nothing_accepted_after(
    kafka: Any, support: Any, parts: Callable[..., Any]
) -> None:
    """Once while all parts run and once while the sink is stopped; and what the old topic had acknowledged
    comes again, as after lost acknowledgements."""
    shared, outage = support("parts"), support("outage")
    ask, until = shared.ask, shared.until
    settings = kafka.settings(partitions=2)
    ensure_topics(settings)
    plain = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}
    plain = {name: value for name, value in plain.items() if not name.startswith(("sasl", "ssl"))}
    here = parts({"kafka": plain, "storage": {"commit": "200ms", "session_timeout": "6s"}})
    root = here.folder / "driftline-data"
    for role in ("streams", "scheduler", "sink"):
        here.start(role)
    with contextlib.closing(outage.Training(settings)) as training:
        partition = partition_of(training.run, settings.partitions)
        training.order("pace 0.005")

        def stored() -> int:
            found = ask(root, "SELECT max(step) FROM samples")
            return int(found[0][0] or 0) if found else 0

        def goes_on() -> None:
            step = training.order("tell")["step"]
            until(lambda: stored() > step, "the sink goes on")

        def send_again() -> None:
            last = [value for value, _ in frames_of(old)][-5:]
            with contextlib.closing(KafkaProducer(**kafka_python(settings), acks="all")) as producer:
                for value in last:
                    producer.send(settings.topics["telemetry"], value, partition=partition).get(60)

        def stored_by_now() -> list[bytes]:
            values = read(settings, partition)
            newest = max(int(frame.step.max()) for _, frame in frames_of(values))
            until(lambda: stored() >= newest, "what was read is stored")
            return values

        goes_on()
        old = stored_by_now()
        make_again(settings, until)
        send_again()
        goes_on()
        first = old = stored_by_now()
        before = ask(root, "SELECT DISTINCT step FROM samples")
        assert here.stop("sink") == 0
        make_again(settings, until)
        send_again()
        training.steps(100)
        here.start("sink")
        goes_on()
        told = training.catches_up()
        training.order("finish")
        second = read(settings, partition)
        for role in ("scheduler", "streams", "sink"):
            assert here.stop(role) == 0, here.told()
        assert training.end()[0] == 0
    (counted,) = ask(root, "SELECT count(*), count(DISTINCT (metric, step)), max(step) FROM samples")
    assert counted[0] == counted[1], "stored twice"
    assert counted[2] >= told["step"] - 1
    have = {step for (step,) in ask(root, "SELECT DISTINCT step FROM samples")}
    assert {step for (step,) in before} - have == set(), "stored before, and gone"
    sent = {step for log in (first, second) for _, frame in frames_of(log) for step in frame.step.tolist()}
    assert sent - have == set(), "accepted by a topic made again, and not stored"
    log = ask(root, 'SELECT count(*), count(DISTINCT (topic_uuid, "partition", "offset")) FROM log')
    assert log[0][0] == log[0][1]
    assert ask(root, "SELECT count(*) FROM log WHERE outcome = 'duplicate'")[0][0] >= 5
    doubled = """SELECT * FROM (SELECT topic_uuid, "partition", "offset", ordinal FROM facts)
        GROUP BY ALL HAVING count(*) > 1"""
    assert ask(root, doubled) == []
