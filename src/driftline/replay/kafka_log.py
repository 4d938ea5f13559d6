"""The input log from Kafka: a consumer without a group, from the topic's beginning to its high watermark.

The end is what fetch responses carry at the moment the log is opened (the embedded broker's ListOffsets is
wrong), so a replay beside a live training ends. All runs of a partition are read; a replay looks at those
that were asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from driftline import admin
from driftline.connection import KafkaSettings
from driftline.errors import SettingsError, Unavailable
from driftline.records import Framed, Record, received
from driftline.rights import in_words
from driftline.storage.reading import POLL_MS, groupless
from driftline.storage.recorded.source import Item, Part
from driftline.streams.core import is_configuration
from driftline.topics import partition_of

RECORDS = 4_000
SILENCE_S = 30.0


class KafkaLog:
    """``telemetry`` under the prefix of the settings; ``runs`` chooses partitions.

    Raises SettingsError if the topic does not exist, Unavailable if no broker answers.
    """

    def __init__(self, kafka: KafkaSettings, runs: Collection[str] = ()) -> None:
        self._kafka = kafka
        self._topic = kafka.topics["telemetry"]
        self.notes: list[str] = []
        count = admin.partitions(kafka, self._topic)
        uuid = admin.topic_uuid(kafka, self._topic)
        if count is None or uuid is None:
            raise SettingsError(
                "kafka.prefix", kafka.prefix, f"topic {self._topic} is not on {kafka.bootstrap}"
            )
        self._uuid = uuid
        mine = {partition_of(run, count) for run in runs} if runs else set(range(count))
        self._consumer: Any = groupless(kafka, client_id="driftline-replay")
        self._parts = [part for partition in sorted(mine) if (part := self._part(partition)) is not None]

    def close(self) -> None:
        self._consumer.close(autocommit=False)

    def parts(self) -> list[Part]:
        return self._parts

    def configurations(self, part: Part) -> list[Record]:
        """The first configuration of the log, which holds from its beginning."""
        for item in self.stretches(part):
            for record in item if isinstance(item, list) else ():
                if isinstance(record, Record) and is_configuration(record.value):
                    return [record]
        return []

    def offset_at(self, part: Part, time_us: int) -> int:
        """The first offset whose record came at this time or later."""
        at = TopicPartition(self._topic, part.partition)
        found = self._asked(lambda: self._consumer.offsets_for_times({at: time_us // 1000}))[at]
        return part.end if found is None else min(int(found.offset), part.end)

    def stretches(self, part: Part, start: int | None = None, end: int | None = None) -> Iterator[Item]:
        """The records of offsets [start, end), in order, as their bytes."""
        start, end = max(part.start, start or 0), part.end if end is None else min(part.end, end)
        if start >= end:
            return
        at = TopicPartition(self._topic, part.partition)
        self._consumer.assign([at])
        self._consumer.seek(at, start)
        heard = time.monotonic()
        while self._asked(lambda: self._consumer.position(at)) < end:
            found = self._poll(at, RECORDS)
            if found:
                heard = time.monotonic()
                made: list[Record | Framed] = [
                    received(raw.partition, raw.offset, raw.timestamp, raw.value)
                    for raw in found
                    if raw.offset < end
                ]
                yield made
                if found[-1].offset >= end - 1:
                    return
            elif time.monotonic() - heard > SILENCE_S:
                raise Unavailable(f"{at}: nothing from {self._kafka.bootstrap} for {SILENCE_S:.0f} s")

    def _part(self, partition: int) -> Part | None:
        at = TopicPartition(self._topic, partition)
        start = self._asked(lambda: admin.offsets(self._consumer.beginning_offsets, [at]))[at]
        self._consumer.assign([at])
        self._consumer.seek(at, start)
        heard, first = time.monotonic(), None
        while self._consumer.highwater(at) is None or first is None:
            found = self._poll(at, 1)
            first = found[0] if found else first
            end = self._consumer.highwater(at)
            if end is not None and end <= start:
                return None
            if time.monotonic() - heard > SILENCE_S:
                raise Unavailable(f"{at}: {self._kafka.bootstrap} does not say where it ends")
        end = int(self._consumer.highwater(at))
        if start:
            self.notes.append(
                f"partition {partition}: the topic no longer has what came before offset {start}: the replay "
                "begins there without what was known; the tables may have it (leave --bootstrap out)"
            )
        first_us = first.timestamp * 1000
        return Part(
            self._uuid,
            partition,
            start,
            end,
            start,
            end - 1,
            0,
            first_us,
            self._last_us(at, end, first_us),
            start == 0,
        )

    def _last_us(self, at: Any, end: int, first_us: int) -> int:
        """Time of the last record; the last offsets may be none of records."""
        self._consumer.seek(at, max(0, end - 1))
        found = self._poll(at, 1)
        return int(found[-1].timestamp) * 1000 if found else first_us

    def _poll(self, at: Any, most: int) -> list[Any]:
        polled = self._asked(lambda: self._consumer.poll(timeout_ms=POLL_MS, max_records=most))
        found: list[Any] = polled.get(at, [])
        return found

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except KafkaError as error:
            raise Unavailable(f"broker {self._kafka.bootstrap}: {in_words(error)}") from error
