"""What the sink could not read, sent to ``dead-letter``: at least once, before the commit that passes it.

A sink that was killed between the two sends it again. A letter is a function of its record alone, so copies
are the same bytes under the same key, ``sink/<topic>/<topic uuid>/<partition>/<offset>``: readers can drop
them. (Telemetry's undecodable records have a row in ``log``, once; their letters are the stream workers'.)
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka import KafkaProducer

from driftline import events, handshake
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.storage.core import Letter

_MOST_BYTES = 64 * 1024
"""Of a record's value; the letter also has its size."""


class DeadLetters:
    """Sends letters."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka

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
            sent = [producer.send(topic, body, key=key, partition=0) for key, body in map(encoded, letters)]
            for future in sent:
                future.get(timeout=20)
        finally:
            producer.close(timeout=5)


def encoded(letter: Letter) -> tuple[bytes, bytes]:
    """Key and value of a letter."""
    spot, record = letter.spot, letter.record
    value = record.value or b""
    event = events.DeadLetter(
        topic=spot.topic,
        topic_uuid=spot.uuid,
        partition=record.partition,
        offset=record.offset,
        reason=str(letter.reason),
        reader="sink",
        time_us=record.time_ms * 1000,
        value=value[:_MOST_BYTES],
        size=len(value),
    )
    return f"sink/{spot.topic}/{spot.uuid}/{record.partition}/{record.offset}".encode(), events.encode(event)
