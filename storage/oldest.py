"""What the telemetry topic still has, for a repair that wants to read from it again."""

from __future__ import annotations

import contextlib

from kafka import TopicPartition
from kafka.errors import KafkaError

from driftline import admin
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.rights import in_words
from driftline.storage.reading import consuming


def oldest_offsets(kafka: KafkaSettings) -> dict[tuple[str, int], int]:
    """(topic UUID, partition) -> the first offset that the topic has; empty if there is no such topic.

    Raises Unavailable if the broker is away or refuses.
    """
    name = kafka.topics["telemetry"]
    try:
        with contextlib.closing(admin.connect(kafka)) as client:
            uuid = admin.uuids(client, [name]).get(name)
        count = admin.partitions(kafka, name)
        if uuid is None or count is None:
            return {}
        places = [TopicPartition(name, partition) for partition in range(count)]
        with consuming(kafka) as reader:
            reader.assign(places)
            found = admin.offsets(reader.beginning_offsets, places)
    except KafkaError as error:
        raise Unavailable(f"the broker cannot be asked what it still has: {in_words(error)}") from error
    return {(uuid, place.partition): first for place, first in found.items()}
