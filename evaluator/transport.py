"""How an evaluator reaches the topics: three methods, over Kafka or in memory.

A transport belongs to one thread. ``assignments`` is read from its beginning without a consumer group, so no
poll limit and no rebalance can take work away; an evaluator's id is new in each process, so old leases are
nobody's. Reading starts where the log starts, never at "latest", which the embedded broker gets wrong.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from driftline import handshake
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import BadRecord, Unavailable
from driftline.evaluator.parcels import Parcel
from driftline.events import Event, Unknown
from driftline.frames import Frame
from driftline.records import decode
from driftline.rights import in_words
from driftline.topics import partition_of

log = logging.getLogger("driftline.evaluator")

DAY_MS = 86_400_000


class Sent(Protocol):
    """Records on their way."""

    def done(self) -> bool:
        """All of them are at the broker. Raises Unavailable when one was refused."""
        ...


class Transport(Protocol):
    """Raises Unavailable from any method when it must be made again."""

    def poll(self, timeout_us: int) -> list[Event | Unknown]:
        """Records of ``assignments`` that came since, waiting for the first for so long at most."""
        ...

    def send(self, parcels: Sequence[Parcel]) -> Sent:
        """Sends, in order per partition, without waiting for the broker's answer."""
        ...

    def close(self, timeout_us: int) -> None:
        """Ends; waits for what was sent for so long at most. Does not raise."""
        ...


Connect = Callable[[], Transport]


class KafkaTransport:
    """Over kafka-python."""

    def __init__(self, settings: KafkaSettings, *, client_id: str) -> None:
        """Checks the topics and connects. Raises Unavailable, or SettingsError for topics that do not fit."""
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition
        from kafka.errors import KafkaError

        self._error: type[Exception] = KafkaError
        ensure_topics(settings)
        self._settings = settings
        self._partitions: dict[str, int] = {}
        common: dict[str, Any] = kafka_python(handshake.let_in(settings)) | {
            "client_id": client_id,
            "allow_auto_create_topics": False,
            "bootstrap_timeout_ms": 5_000,
        }
        self._source = TopicPartition(settings.topics["assignments"], 0)
        try:
            # With a short delivery timeout the idempotent producer wedges once a batch expires.
            self._producer = opened(
                KafkaProducer,
                **common,
                delivery_timeout_ms=DAY_MS,
                max_block_ms=5_000,
                linger_ms=5,
                compression_type="lz4",
            )
        except (KafkaError, OSError) as error:
            raise Unavailable(f"broker {settings.bootstrap}: {in_words(error)}") from error
        try:
            self._consumer = opened(
                KafkaConsumer, **common, group_id=None, enable_auto_commit=False, auto_offset_reset="none"
            )
            self._consumer.assign([self._source])
            self._consumer.seek_to_beginning(self._source)
        except (KafkaError, OSError) as error:
            self._close_producer(0)
            raise Unavailable(f"broker {settings.bootstrap}: {in_words(error)}") from error

    def poll(self, timeout_us: int) -> list[Event | Unknown]:
        from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

        try:
            polled = self._consumer.poll(timeout_ms=max(1, timeout_us // 1000))
        except (NoOffsetForPartitionError, OffsetOutOfRangeError):
            log.warning(
                "%s no longer has the records to be read next: reading what is left", self._source.topic
            )
            self._consumer.seek_to_beginning(self._source)
            return []
        except self._error as error:
            raise Unavailable(f"broker {self._settings.bootstrap}: {in_words(error)}") from error
        return [event for records in polled.values() for record in records for event in self._event(record)]

    def _event(self, record: Any) -> list[Event | Unknown]:
        try:
            decoded = decode(record.value)
        except BadRecord as error:
            log.warning("%s offset %d skipped: %s", record.topic, record.offset, error)
            return []
        return [] if isinstance(decoded, Frame) else [decoded]

    def send(self, parcels: Sequence[Parcel]) -> Sent:
        try:
            return _Futures([self._send(parcel) for parcel in parcels], self._error)
        except self._error as error:
            raise Unavailable(f"broker {self._settings.bootstrap}: {in_words(error)}") from error

    def _send(self, parcel: Parcel) -> Any:
        topic = self._settings.topics[parcel.topic]
        if topic not in self._partitions:
            self._partitions[topic] = len(self._producer.partitions_for(topic))
        return self._producer.send(
            topic,
            key=parcel.run.encode() or None,
            value=parcel.value,
            partition=partition_of(parcel.run, self._partitions[topic]),
        )

    def close(self, timeout_us: int) -> None:
        self._close_producer(timeout_us)
        try:
            self._consumer.close(autocommit=False, timeout_ms=1_000)
        except (self._error, OSError, RuntimeError) as error:
            log.debug("closing the consumer: %r", error)

    def _close_producer(self, timeout_us: int) -> None:
        try:
            self._producer.close(timeout=timeout_us / 1e6)
        except (self._error, OSError, RuntimeError) as error:  # what was not delivered is said by the caller
            log.debug("closing the producer: %r", error)
            _abandon(self._producer)


def _abandon(producer: Any) -> None:
    """Ends a producer whose ``close`` raised, so that its thread stops and its ``__del__`` does not try again
    and print."""
    try:
        producer._sender.force_close()
    except AttributeError as error:  # another version of kafka-python
        log.debug("abandoning the producer: %r", error)
    producer._closed = True


class _Futures:
    def __init__(self, futures: list[Any], error: type[Exception]) -> None:
        self._futures = futures
        self._error = error

    def done(self) -> bool:
        for future in self._futures:
            if future.is_done and future.failed():
                raise Unavailable(f"the broker refused a record: {in_words(future.exception)}")
        return all(future.is_done for future in self._futures)


class MemoryTransport:
    """Topics in this process, for tests and simulation: put events into ``inbox``, read ``sent``.

    ``connected`` False makes it answer like a broker that is away.
    """

    def __init__(self) -> None:
        self.inbox: list[Event | Unknown] = []
        self.sent: list[Parcel] = []
        self.connected = True

    def poll(self, timeout_us: int) -> list[Event | Unknown]:
        self._check()
        time.sleep(min(timeout_us, 1_000) / 1e6)
        taken, self.inbox = self.inbox, []
        return taken

    def send(self, parcels: Sequence[Parcel]) -> Sent:
        self._check()
        self.sent += parcels
        return self

    def done(self) -> bool:
        self._check()
        return True

    def close(self, timeout_us: int) -> None:
        self.connected = False

    def _check(self) -> None:
        if not self.connected:
            raise Unavailable("planted: no broker")
