"""What the sink could not read, sent to ``dead-letter``: at least once, before the commit that passes it."""

from __future__ import annotations

from collections.abc import Iterable

from kafka import KafkaProducer

from driftline import events, handshake
from driftline.clock import Clock
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.storage.core import Letter

_MOST_BYTES = 64 * 1024
"""Of a record's value; the letter also has its size."""


class DeadLetters:
    """Sends letters."""

    def __init__(self, kafka: KafkaSettings, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock

    def send(self, letters: Iterable[Letter]) -> None:
        """Sends all of them and waits until the broker has them. Raises KafkaError; then send all again."""
        producer = opened(
            KafkaProducer,
            client_id="driftline-sink",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=5_000,
            max_block_ms=10_000,
            **kafka_python(handshake.let_in(self._kafka)),
        )
        try:
            topic = self._kafka.topics["dead-letter"]
            values = [events.encode(self._event(letter)) for letter in letters]
            for future in [producer.send(topic, value, partition=0) for value in values]:
                future.get(timeout=20)
        finally:
            producer.close(timeout=5)

    def _event(self, letter: Letter) -> events.DeadLetter:
        value = letter.record.value or b""
        return events.DeadLetter(
            topic=letter.spot.topic,
            partition=letter.record.partition,
            offset=letter.record.offset,
            reason=str(letter.reason),
            reader="sink",
            time_us=self._clock.now_us(),
            value=value[:_MOST_BYTES],
            size=len(value),
        )
