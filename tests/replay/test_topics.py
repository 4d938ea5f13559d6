"""Kafka as the source, and topics under a prefix of their own as the target, on the embedded broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline import admin, frames
from driftline.connection import KafkaSettings, kafka_python
from driftline.errors import SettingsError, Unavailable
from driftline.records import Framed, Record
from driftline.replay import lease
from driftline.replay.into_topics import FROM, SAID, TIME, copy, speed_of, target_of
from driftline.replay.kafka_log import KafkaLog
from driftline.replay.player import Player
from driftline.storage.recorded.source import TableLog
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline

pytestmark = pytest.mark.embedded


def read(kafka: Any, partition: int, topic: Any = "telemetry") -> list[Any]:
    """All records of a partition, with headers."""
    consumer = KafkaConsumer(auto_offset_reset="earliest", enable_auto_commit=False, **kafka_python(kafka))
    place = TopicPartition(kafka.topics[topic], partition)
    consumer.assign([place])
    consumer.seek(place, 0)
    found: list[Any] = []
    while consumer.highwater(place) is None or len(found) < consumer.highwater(place):
        found += consumer.poll(timeout_ms=200).get(place, [])
    consumer.close(autocommit=False)
    return found


def content(record: Record | Framed) -> Any:
    """What a record says: of a frame the samples by name, whatever the order of its names."""
    if not isinstance(record, Framed) and not (record.value or b"").startswith(b"\xff"):
        return record.time_ms, record.value
    frame = record.frame if isinstance(record, Framed) else frames.decode(record.value or b"")
    names = [frame.names[at] for at in frame.metric.tolist()]
    return record.time_ms, frame.process, frame.seq, names, frame.value.tobytes(), frame.step.tolist()


def test_a_log_in_kafka_is_replayed_to_its_end_of_now(embedded: Any, log: Any) -> None:
    kafka = embedded.settings(partitions=2)
    uuids = admin.ensure_topics(kafka)
    topic = kafka.topics["telemetry"]
    one = log(uuid=uuids[topic], partition=1)
    one.train("a", range(30))
    producer = KafkaProducer(acks="all", **kafka_python(kafka))
    for record in one.records:
        producer.send(topic, value=record.value, partition=1, timestamp_ms=record.time_ms)
    producer.flush()
    source = KafkaLog(kafka)
    producer.send(topic, value=b"later", partition=1)
    producer.flush()
    (part,) = source.parts()
    assert (part.partition, part.end, part.beginning) == (1, len(one.records), True)
    player = Player(part, source.configurations(part))
    made = [output for item in source.stretches(part) for output in player.play(item)]
    core = Pipeline()
    assert made == core.step(beginning(core, one.uuid, 1, one.records), one.records)
    half = part.start + 10
    assert source.offset_at(part, one.records[half].time_ms * 1000) <= half
    source.close()
    producer.close()


def test_a_replay_into_topics_keeps_order_and_times_and_goes_on_after_an_interruption(
    embedded: Any, log: Any, stored: Callable[..., Path]
) -> None:
    """Killed anywhere: what is there is there once, the rest follows."""
    live = embedded.settings(partitions=2)
    target = target_of(live, f"{live.prefix}replay1.")
    one = log()
    one.train("a", range(60))
    one.put(b"junk")
    root = stored(one)
    items = [
        record
        for part in TableLog(root).parts()
        for item in TableLog(root).stretches(part)
        for record in item
    ]

    class Cut(TableLog):
        """Ends with an error in the middle, as a kill would."""

        def stretches(self, *where: Any) -> Any:
            for item in super().stretches(*where):
                yield item[: len(item) // 3]
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(Cut(root), target)
    done = copy(TableLog(root), target)
    again = copy(TableLog(root), target)
    assert (again.sent, done.sent > 0) == (0, True)
    found = read(target, 0)
    came = [int(dict(raw.headers)[FROM].decode().rsplit("/", 1)[1]) for raw in found]
    assert came == [record.offset for record in items]
    times = [int(dict(raw.headers)[TIME]) for raw in found]
    assert times == [record.time_ms for record in items]
    sent = [Record(0, raw.offset, time, raw.value) for raw, time in zip(found, times, strict=True)]
    assert [content(record) for record in sent] == [content(record) for record in items]


def test_what_the_pipeline_says_is_sent_once_with_the_ids_that_it_had(
    embedded: Any, log: Any, stored: Callable[..., Path]
) -> None:
    """Also after an interruption between a record and what is said of it."""
    live = embedded.settings(partitions=2)
    target = target_of(live, f"{live.prefix}replay2.")
    one = log()
    one.train("a", range(80))
    root = stored(one)

    class Cut(TableLog):
        def stretches(self, *where: Any) -> Any:
            for item in super().stretches(*where):
                yield item[: len(item) // 2]
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(Cut(root), target, said=SAID)
    copy(TableLog(root), target, said=SAID)
    assert copy(TableLog(root), target, said=SAID).outputs == 0
    core = Pipeline()
    wanted = core.step(beginning(core, one.uuid, 0, one.records), one.records)
    for topic in SAID:
        values = [raw.value for raw in read(target, 0, topic)]
        assert values == [output.value for output in wanted if output.topic == topic]


def test_the_live_prefix_and_foreign_topics_are_refused(
    embedded: Any, log: Any, stored: Callable[..., Path]
) -> None:
    live = embedded.settings(partitions=2)
    with pytest.raises(SettingsError, match="not the live one"):
        target_of(live, live.prefix)
    target = target_of(live, f"{live.prefix}taken.")
    admin.ensure_topics(target)
    producer = KafkaProducer(acks="all", **kafka_python(target))
    producer.send(target.topics["telemetry"], value=b"theirs", partition=0)
    producer.flush()
    producer.close()
    one = log()
    one.train("a", range(3))
    with pytest.raises(SettingsError, match="holds records of something else"):
        copy(TableLog(stored(one)), target)


def test_speed_is_kept(embedded: Any, log: Any, stored: Callable[..., Path]) -> None:
    """The pauses asked for add up to the log's time by the speed."""
    target = target_of(embedded.settings(partitions=2), "slow.")
    one = log()
    one.train("a", range(40))
    asked: list[float] = []
    copy(TableLog(stored(one)), target, speed=1000.0, sleep=asked.append)
    span_s = (one.records[-1].time_ms - one.records[0].time_ms) / 1000
    assert max(asked, default=0.0) <= span_s / 1000
    for text in ("0", "-1x", "fast", ""):
        with pytest.raises(SettingsError, match="--speed"):
            speed_of(text)


def test_of_two_replays_into_one_prefix_the_second_is_refused_and_a_dead_one_is_followed(
    embedded: Any, log: Any, stored: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes twice; what is left of one that was killed keeps the next waiting, not out."""
    monkeypatch.setattr(lease, "SILENT_S", 2.0)
    live = embedded.settings(partitions=2)
    target = target_of(live, f"{live.prefix}shared.")
    one = log()
    one.train("a", range(20))
    root = stored(one)
    refused: list[str] = []

    def meanwhile(records: int) -> None:
        if not refused:
            with pytest.raises(SettingsError, match="another replay writes to this prefix") as told:
                copy(TableLog(root), target)
            refused.append(str(told.value))

    copy(TableLog(root), target, tell=meanwhile)
    assert refused
    assert [raw.offset for raw in read(target, 0)] == list(range(len(one.records)))
    monkeypatch.setattr(lease.Holding, "release", lambda self: self._over.set())
    copy(TableLog(root), target)  # killed: it releases nothing
    assert copy(TableLog(root), target).sent == 0


def test_nothing_comes_behind_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign of life that is under way then would keep the next replay waiting."""
    monkeypatch.setattr(lease, "SILENT_S", 4.0)
    said: list[str] = []
    under_way, go_on = threading.Event(), threading.Event()

    class Slow:
        def send(self, topic: str, value: bytes, partition: int) -> Any:
            what = json.loads(value)["what"]
            if what == "alive":
                under_way.set()
                go_on.wait()
            said.append(what)
            return SimpleNamespace(get=lambda timeout: None)

    holding = lease.Holding(KafkaSettings(prefix="r."), Slow(), "me")
    holding.begin()
    assert under_way.wait(60)
    threading.Timer(0.2, go_on.set).start()
    holding.release()
    assert said == ["alive", "released"]


def test_a_replay_that_gave_no_sign_of_life_stops_by_itself(
    embedded: Any, log: Any, stored: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been frozen, and another may write by now."""
    monkeypatch.setattr(lease, "SILENT_S", 0.5)
    monkeypatch.setattr(lease.Holding, "keep", lambda self: None)
    one = log()
    one.train("a", range(20))
    target = target_of(embedded.settings(partitions=2), "frozen.")
    with pytest.raises(Unavailable, match="no sign of life"):
        copy(TableLog(stored(one)), target, speed=10.0)
