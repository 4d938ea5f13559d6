"""Topics read whole, and outputs as readers keep them: the first of each id, ids only growing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from driftline.connection import KafkaSettings, kafka_python
from driftline.records import OutputId, Record

CHUNK = 20_000


def read(kafka: KafkaSettings, topic: str, partition: int) -> Iterator[list[Any]]:
    """All records of a partition that nobody writes to any more, in chunks."""
    at = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=8 * 1024 * 1024,
        **kafka_python(kafka),
    )
    try:
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        end = consumer.end_offsets([at])[at]
        chunk: list[Any] = []
        while consumer.position(at) < end:
            for records in consumer.poll(500, max_records=CHUNK).values():
                chunk += records
            if len(chunk) >= CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk
    finally:
        consumer.close()


def as_records(chunk: list[Any]) -> list[Record]:
    return [Record(r.partition, r.offset, r.timestamp, r.value) for r in chunk]


def fingerprint(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16).digest()


class Source(NamedTuple):
    """A partition of a log whose records cause outputs."""

    uuid: str
    partition: int


class Place(NamedTuple):
    """Outputs of one source in one partition of a topic: what a reader keeps one mark for."""

    topic: str
    partition: int
    source: Source


class Told(NamedTuple):
    """An output by its id's position, and its content's fingerprint."""

    offset: int
    ordinal: int
    content: bytes


@dataclass
class Outputs:
    """What should stand in the topics, and what does, by place in order."""

    wanted: dict[Place, list[Told]] = field(default_factory=dict)
    kept: dict[Place, list[Told]] = field(default_factory=dict)
    repeated: int = 0
    contradictions: int = 0
    contradicting: list[str] = field(default_factory=list)
    _seen: dict[Place, dict[tuple[int, int], bytes]] = field(default_factory=dict)

    def want(self, topic: str, partition: int, id_: OutputId, value: bytes) -> None:
        """The core says that this follows from the log."""
        place = Place(topic, partition, Source(id_.topic_uuid, id_.partition))
        told = Told(id_.offset, id_.ordinal, fingerprint(value))
        self.wanted.setdefault(place, []).append(told)

    def take(self, topic: str, partition: int, id_: OutputId, value: bytes) -> bool:
        """A record that stands in the topic; True if a reader keeps it."""
        place = Place(topic, partition, Source(id_.topic_uuid, id_.partition))
        told = Told(id_.offset, id_.ordinal, fingerprint(value))
        seen = self._seen.setdefault(place, {})
        before = seen.setdefault(told[:2], told.content)
        if before != told.content:
            self.contradictions += 1
            self.contradicting.append(f"{topic}/{partition} {id_}: two contents")
        kept = self.kept.setdefault(place, [])
        if kept and told[:2] <= kept[-1][:2]:
            self.repeated += 1
            return False
        kept.append(told)
        return True

    def problems(self, covered: dict[Source, int]) -> list[str]:
        """Where readers have something else than the core says; outputs of records from ``covered`` on may be
        missing, since nobody had worked on these."""
        found = list(self.contradicting)
        for place in sorted({*self.wanted, *self.kept}):
            wanted, kept = self.wanted.get(place, []), self.kept.get(place, [])
            due = sum(told.offset < covered[place.source] for told in wanted)
            where = f"{place.topic}/{place.partition} of {place.source.partition}"
            if len(kept) < due:
                found.append(f"{where}: {len(kept)} outputs, the core says {due}")
            wrong = next((a for a, b in zip(kept, wanted, strict=False) if a != b), None)
            if wrong is not None:
                found.append(f"{where}: output {wrong[0]}/{wrong[1]} is not what the core says")
            if len(kept) > len(wanted):
                found.append(f"{where}: {len(kept) - len(wanted)} outputs that the core does not know")
        return found
