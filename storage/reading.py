"""The sink's eyes on Kafka: a consumer without a group that reads the partitions it is told to.

What :meth:`Reader.poll` hands over certainly comes from the topics whose UUIDs it was given. Offsets start
anew in a topic that was made again, and a fetch asks by name; so what was fetched is held back, for
``PROVE_US`` at most, until the broker gives the same UUIDs after it. UUIDs never come back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from driftline import admin, handshake
from driftline.clock import SECOND_US, Clock
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import Unavailable
from driftline.records import Record, received
from driftline.storage.core import Spot
from driftline.storage.foresight import Unread
from driftline.storage.tables import FEEDS
from driftline.topics import TopicName

POLL_MS = 200
_POLL_RECORDS = 4_000
_QUIET_US = 10 * SECOND_US
PROVE_US = SECOND_US // 10


class Reader:
    """Made by :func:`reading`. All methods raise KafkaError or Unavailable where the broker is away."""

    def __init__(self, kafka: KafkaSettings, consumer: Any, client: Any, clock: Clock) -> None:
        self._kafka = kafka
        self._consumer = consumer
        self._admin = client
        self._clock = clock
        self._spots: dict[Any, Spot] = {}
        self._last_heard = self._proven_us = clock.steady_us()
        self._unproven: dict[Spot, list[Record]] = {}
        self.uuids = admin.ensure(client, kafka)
        """Full topic name -> UUID, as of now; missing topics are made."""

    def assign(self, partitions: Collection[int]) -> dict[Spot, int]:
        """Turns to these partitions of all topics that feed tables; gives the oldest offset that each has."""
        topics = self._kafka.topics
        self._spots = {
            TopicPartition(topics[name], partition): Spot(name, self.uuids[topics[name]], partition)
            for name in FEEDS
            for partition in sorted(partitions)
        }
        self._consumer.assign(list(self._spots))
        return self.oldest()

    def oldest(self) -> dict[Spot, int]:
        """The first offset that each partition still has."""
        if not self._spots:
            return {}
        found = admin.offsets(self._consumer.beginning_offsets, self._spots)
        return {spot: found[place] for place, spot in self._spots.items()}

    def seek(self, starts: Mapping[Spot, int]) -> None:
        """Goes to these offsets; what was fetched before is dropped."""
        self._unproven = {}
        for place, spot in self._spots.items():
            self._consumer.seek(place, starts[spot])
        self._last_heard = self._clock.steady_us()

    def poll(self) -> dict[Spot, list[Record]]:
        """Records of the last ``PROVE_US`` and the next ``POLL_MS``, in order per partition.

        Raises Unavailable, with no record of that topic, if one is no longer the one that it was."""
        try:
            polled = self._consumer.poll(timeout_ms=POLL_MS, max_records=_POLL_RECORDS)
        except OffsetOutOfRangeError as error:
            raise Unavailable(
                f"the broker does not have the position that the tables stand at ({error}); if it has lost "
                "the end of its log, delete the topic: driftline makes it anew and keeps all rows"
            ) from error
        now = self._clock.steady_us()
        if polled:
            self._last_heard = now
        elif now - self._last_heard > _QUIET_US:
            self._last_heard = now  # the client hides a lost broker: ask something that must be answered
            self.check()
        for place, found in polled.items():
            self._unproven.setdefault(self._spots[place], []).extend(
                received(raw.partition, raw.offset, raw.timestamp, raw.value) for raw in found
            )
        if not self._held or (now - self._proven_us < PROVE_US and self._held < _POLL_RECORDS):
            return {}
        self.check()
        self._proven_us = now
        proven, self._unproven = self._unproven, {}
        return proven

    @property
    def _held(self) -> int:
        return sum(map(len, self._unproven.values()))

    def check(self) -> None:
        """Raises Unavailable if a topic is no longer the one that it was."""
        names = sorted({place.topic for place in self._spots})
        if not names:
            return
        found = admin.uuids(self._admin, names)
        for name in names:
            if found.get(name) != self.uuids[name]:
                raise Unavailable(f"topic {name} was deleted or made again")

    def ends(self, within_us: int, *, give_up: Callable[[], bool]) -> dict[Spot, int]:
        """Where each partition ends now: the high watermark in the first fetch of another consumer.

        Ours tells only of partitions that it has come to, and the embedded broker's ListOffsets is wrong.
        """
        until = self._clock.steady_us() + within_us
        with consuming(self._kafka, fetch_max_bytes=1) as scout:
            scout.assign(list(self._spots))
            for place in self._spots:
                scout.seek(place, self._consumer.position(place))
            while True:
                scout.poll(timeout_ms=POLL_MS)
                ends = {spot: scout.highwater(place) for place, spot in self._spots.items()}
                if None not in ends.values() or give_up():
                    return {spot: end for spot, end in ends.items() if end is not None}
                if self._clock.steady_us() > until:
                    raise Unavailable(f"{self._kafka.bootstrap} does not say where its topics end")

    def unread(self, polled: Mapping[Spot, list[Record]]) -> dict[Spot, Unread]:
        """What was still to be read before the records that a poll gave."""
        places = {spot: place for place, spot in self._spots.items()}
        found = {}
        for spot, records in polled.items():
            behind = (self._consumer.highwater(places[spot]) or 0) - records[0].offset
            size = sum(len(record.value or b"") for record in records) // len(records)
            found[spot] = Unread(records[0].time_ms, behind * size)
        return found

    def kept(self) -> dict[TopicName, admin.Retention]:
        """What the topics keep now."""
        names = {self._kafka.topics[name]: name for name in FEEDS}
        found = admin.retention(self._admin, names)
        return {short: found[full] for full, short in names.items() if full in found}

    def short_of(self, ends: Mapping[Spot, int]) -> int:
        """Records between where it reads and ``ends``."""
        places = {spot: place for place, spot in self._spots.items()}
        known = ((places[spot], end) for spot, end in ends.items() if spot in places)
        return self._held + sum(max(0, end - int(self._consumer.position(place))) for place, end in known)

    def lag(self) -> int:
        """Records between where it reads and the high watermarks of the last fetches (the embedded broker's
        ListOffsets is wrong)."""
        ends = ((place, self._consumer.highwater(place) or 0) for place in self._spots)
        return self._held + sum(max(0, end - int(self._consumer.position(place))) for place, end in ends)


@contextlib.contextmanager
def reading(kafka: KafkaSettings, clock: Clock) -> Iterator[Reader]:
    """A reader that is connected until the block ends.

    Raises SettingsError where the topics do not fit, Unavailable where no broker answers."""
    with contextlib.closing(admin.connect(kafka)) as client, consuming(kafka) as consumer:
        yield Reader(kafka, consumer, client, clock)


@contextlib.contextmanager
def consuming(kafka: KafkaSettings, **options: Any) -> Iterator[Any]:
    """A consumer without a group, that neither commits nor makes topics, until the block ends."""
    consumer = groupless(kafka, client_id="driftline-sink", **options)
    try:
        yield consumer
    finally:
        with contextlib.suppress(KafkaError):
            consumer.close(autocommit=False)


def groupless(kafka: KafkaSettings, *, client_id: str, **options: Any) -> Any:
    """A consumer without a group, that neither commits nor makes topics; close it with
    ``close(autocommit=False)``. Raises Unavailable, Refused."""
    return opened(
        KafkaConsumer,
        client_id=client_id,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        fetch_max_wait_ms=POLL_MS,
        max_partition_fetch_bytes=8 * 1024 * 1024,
        bootstrap_timeout_ms=5_000,
        **kafka_python(handshake.let_in(kafka)),
        **options,
    )
