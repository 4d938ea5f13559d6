"""A broker in memory: topics with UUIDs, partitions in order, append times, retention, compaction, outages.

What was ever appended is kept beside the logs (:attr:`Broker.recorded`), whatever retention, compaction or
the deletion of a topic take away: the checkers read it. The only ways in are :meth:`Broker.append` and
:meth:`Broker.read`; how a client gets there, and what goes wrong on the way, is in ``clients``.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import NamedTuple

from driftline.topics import SPECS, TopicName, Topics

from .clockwork import EPOCH_US, VirtualLoop
from .faults import Trace


class Stored(NamedTuple):
    """A record of a log; ``timestamp`` in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class OutOfRange(Exception):
    """The log does not have this offset."""


class Log:
    """One partition of one incarnation of a topic."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.records: list[Stored] = []

    def append(self, timestamp: int, key: bytes | None, value: bytes | None) -> Stored:
        record = Stored(self.end, timestamp, key, value)
        self.records.append(record)
        self.end += 1
        return record

    def read(self, offset: int, count: int) -> list[Stored]:
        """Up to ``count`` records from ``offset`` on; none at the end. Raises OutOfRange."""
        if not self.start <= offset <= self.end:
            raise OutOfRange(f"{offset} is not in [{self.start}, {self.end}]")
        at = bisect.bisect_left(self.records, offset, key=lambda record: record.offset)
        return self.records[at : at + count]

    def cut(self, start: int) -> None:
        """Retention: what lies below ``start`` goes."""
        self.start = max(self.start, min(start, self.end))
        self.records = self.records[bisect.bisect_left(self.records, self.start, key=lambda r: r.offset) :]

    def compact(self) -> None:
        """Only the newest value of each key stays; a key whose newest is a tombstone goes."""
        newest = {record.key: record.offset for record in self.records}
        self.records = [
            record
            for record in self.records
            if newest[record.key] == record.offset
            and (record.value is not None or record.offset > self.end - 5)
        ]


class Topic:
    """One incarnation of a topic."""

    def __init__(self, name: TopicName, uuid: str, partitions: int) -> None:
        self.name = name
        self.uuid = uuid
        self.logs = [Log() for _ in range(partitions)]


class Recorded(NamedTuple):
    """What was appended to one partition of one incarnation, all of it."""

    topic: TopicName
    uuid: str
    partition: int


class Broker:
    """See the module's docstring. ``partitions`` is the count of the topics that are keyed by run."""

    def __init__(self, loop: VirtualLoop, trace: Trace, *, partitions: int) -> None:
        self._loop = loop
        self._trace = trace
        self.partitions = partitions
        self.clock_ahead_us = 0
        self.away = False
        self.count = 0
        """Records ever appended."""
        self._full = Topics()
        self._generation = 0
        self.recorded: dict[Recorded, list[Stored]] = {}
        self.topics: dict[str, Topic] = {}
        self._specs = {spec.name: spec for spec in SPECS}
        for spec in SPECS:
            self._make(spec.name)
        self.back: list[Callable[[], None]] = []
        """Called once when the broker is reached again."""
        self.appended: list[Callable[[Topic, int, Stored], None]] = []

    def _make(self, name: TopicName) -> Topic:
        self._generation += 1
        count = 1 if self._specs[name].single else self.partitions
        topic = self.topics[self._full[name]] = Topic(name, f"uuid-{self._generation}-{name}", count)
        for partition in range(count):
            self.recorded[Recorded(name, topic.uuid, partition)] = []
        return topic

    def log(self, full_name: str, partition: int) -> Log:
        return self.topics[full_name].logs[partition]

    def uuids(self) -> dict[str, str]:
        return {name: topic.uuid for name, topic in self.topics.items()}

    def append(
        self, full_name: str, partition: int, key: bytes | None, value: bytes | None, who: str
    ) -> Stored:
        """Appends a record with the broker's time. (Times may go back: the broker's clock can.)"""
        topic = self.topics[full_name]
        self.count += 1
        now_ms = (EPOCH_US + self._loop.now_us + self.clock_ahead_us) // 1000
        record = topic.logs[partition].append(now_ms, key, value)
        self.recorded[Recorded(topic.name, topic.uuid, partition)].append(record)
        self._trace.add(who, "->", topic.name, partition, record.offset, hash_of(value))
        for told in self.appended:
            told(topic, partition, record)
        return record

    def make_again(self, name: TopicName) -> None:
        """Deletes a topic with all that is in it, and makes it anew: another UUID, offsets from 0."""
        self._make(name)

    def leave(self) -> None:
        self.away = True

    def come_back(self) -> None:
        self.away = False
        waiting, self.back = self.back, []
        for call in waiting:
            call()


def hash_of(value: bytes | None) -> str:
    """A few digits that tell values apart in the trace."""
    import zlib

    return "-" if value is None else f"{zlib.crc32(value):08x}/{len(value)}"
