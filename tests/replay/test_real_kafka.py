"""Replays from and into Apache Kafka, with no other rights than SECURITY.md asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline import admin
from driftline.connection import kafka_python
from driftline.errors import Unavailable
from driftline.records import Record
from driftline.replay.into_topics import FROM, SAID, copy, target_of
from driftline.replay.kafka_log import KafkaLog
from driftline.replay.player import Player
from driftline.replay.proof import prove
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.source import TableLog
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


def read(kafka: Any, topic: Any, count: int) -> list[Any]:
    consumer = KafkaConsumer(enable_auto_commit=False, **kafka_python(kafka))
    place = TopicPartition(kafka.topics[topic], 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll(timeout_ms=500).get(place, [])
    consumer.close(autocommit=False)
    return found


def test_a_replay_needs_no_more_rights_and_of_what_the_topic_has_lost_the_tables_are_the_source(
    secure_kafka: Any, log: Any, stored: Callable[..., Path]
) -> None:
    """From Kafka by offset and time, after retention cut its beginning, from the tables, into a prefix."""
    live = secure_kafka.sasl("replays.", sasl_mechanism="SCRAM-SHA-256", partitions=1)
    secure_kafka.limit("replays.")
    try:
        uuids = admin.ensure_topics(live)
        topic = live.topics["telemetry"]
        one = log(uuid=uuids[topic])
        one.train("a", range(60))
        producer = KafkaProducer(acks="all", **kafka_python(live))
        for record in one.records:
            producer.send(topic, value=record.value, partition=0).get(60)
        one.records = [
            Record(0, raw.offset, raw.timestamp, raw.value)
            for raw in read(live, "telemetry", len(one.records))
        ]
        root = stored(one)

        source = KafkaLog(live)
        (part,) = source.parts()
        assert (part.start, part.end, part.beginning) == (0, len(one.records), True)
        middle = one.records[len(one.records) // 2]
        at = source.offset_at(part, middle.time_ms * 1000)
        assert one.records[at - 1].time_ms < middle.time_ms == one.records[at].time_ms
        assert source.offset_at(part, one.records[-1].time_ms * 1000 + 10**9) == part.end
        core = Pipeline()
        wanted = core.step(beginning(core, one.uuid, 0, one.records), one.records)
        player = Player(part, source.configurations(part))
        assert [output for item in source.stretches(part) for output in player.play(item)] == wanted
        proof = prove(source, Stored(root), window=lambda part: (at, part.end))
        assert proof.identical, proof.differences
        assert proof.covered[0].start == at

        with secure_kafka._admin() as client:
            client.delete_records({TopicPartition(topic, 0): at})
        with pytest.raises(Unavailable):
            list(source.stretches(part, 0))
        source.close()
        cut = KafkaLog(live)
        assert [p.start for p in cut.parts()] == [at]
        assert any("no longer has what came before" in note for note in cut.notes)
        cut.close()
        proof = prove(TableLog(root), Stored(root))
        assert (proof.identical, proof.records) == (True, len(one.records)), proof.differences

        target = target_of(live, "replays.again.")
        done = copy(TableLog(root), target, said=SAID)
        assert (done.sent, done.outputs > 0) == (len(one.records), True)
        assert (copy(TableLog(root), target, said=SAID).sent) == 0
        came = [dict(raw.headers)[FROM].decode() for raw in read(target, "telemetry", len(one.records))]
        assert came == [f"{one.uuid}/0/{record.offset}" for record in one.records]
        windows = [output.value for output in wanted if output.topic == "windows"]
        assert [raw.value for raw in read(target, "windows", len(windows))] == windows
    finally:
        secure_kafka.unlimit("replays.")
