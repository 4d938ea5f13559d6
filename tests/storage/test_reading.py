"""What the sink's reader hands over certainly comes from the topics that it started with."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from driftline import admin
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.storage.core import Spot
from driftline.storage.reading import Reader
from driftline.storage.tables import FEEDS

KAFKA = KafkaSettings()


class _Consumer:
    """Gives one record of each of these topics at each poll, as if they had all just begun."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._places = [TopicPartition(topic, 0) for topic in topics]

    def assign(self, places: list[TopicPartition]) -> None:
        pass

    def seek(self, place: TopicPartition, offset: int) -> None:
        assert offset == 0

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def poll(self, **_how: Any) -> dict[TopicPartition, list[Any]]:
        record = SimpleNamespace(partition=0, offset=0, timestamp=0, value=b"{")
        return {place: [record] for place in self._places}


def test_an_idle_partition_gives_no_record_of_the_topic_made_again_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stands at offset 0, which both topics have: only their UUIDs tell them apart."""
    telemetry, facts = KAFKA.topics["telemetry"], KAFKA.topics["facts"]
    uuids = {KAFKA.topics[name]: f"old {name}" for name in FEEDS}
    clock: Any = SimpleNamespace(steady_us=iter(range(0, 10**9, 10**6)).__next__)
    monkeypatch.setattr(admin, "ensure", lambda _client, _kafka: dict(uuids))
    monkeypatch.setattr(admin, "uuids", lambda _client, _names: uuids)
    reader = Reader(KAFKA, _Consumer([telemetry, facts]), None, clock)
    reader.seek(reader.assign([0]))
    assert {spot.uuid for spot in reader.poll()} == {"old telemetry", "old facts"}

    uuids[telemetry] = "new telemetry"
    with pytest.raises(Unavailable, match="made again"):
        reader.poll()
    after = Reader(KAFKA, _Consumer([telemetry]), None, clock)
    after.seek(after.assign([0]))
    assert list(after.poll()) == [Spot("telemetry", "new telemetry", 0)]
