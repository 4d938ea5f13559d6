"""What the sink could not read, sent to ``dead-letter``: at least once, before the commit that passes it."""

from __future__ import annotations

from kafka import KafkaProducer

from driftline import events
from driftline.clock import Clock
from driftline.connection import KafkaSettings, kafka_python
from driftline.errors import BadRecord
from driftline.records import Record
from driftline.topics import TopicName

_MOST_BYTES = 64 * 1024
"""Of a record's value; the letter also has its size."""


class DeadLetters:
    """Letters that wait to be sent."""

    def __init__(self, kafka: KafkaSettings, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock
        self._waiting: list[events.DeadLetter] = []

    def add(self, topic: TopicName, record: Record, bad: BadRecord) -> None:
        """A letter about a record of ``topic`` that cannot be decoded."""
        value = record.value or b""
        letter = events.DeadLetter(
            topic=topic,
            partition=record.partition,
            offset=record.offset,
            reason=str(bad),
            reader="sink",
            time_us=self._clock.now_us(),
            value=value[:_MOST_BYTES],
            size=len(value),
        )
        self._waiting.append(letter)

    def forget(self) -> None:
        """Drops what waits: its records will be read again."""
        self._waiting = []

    def send(self) -> None:
        """Sends what waits and waits until the broker has it. Raises KafkaError; then all of it waits on."""
        if not self._waiting:
            return
        producer = KafkaProducer(
            client_id="driftline-sink",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=5_000,
            max_block_ms=10_000,
            **kafka_python(self._kafka),
        )
        try:
            topic = self._kafka.topics["dead-letter"]
            sent = [producer.send(topic, events.encode(letter), partition=0) for letter in self._waiting]
            for future in sent:
                future.get(timeout=20)
            self._waiting = []
        finally:
            producer.close(timeout=5)
