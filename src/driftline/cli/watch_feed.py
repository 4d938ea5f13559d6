"""Reads the topics of the live view from any broker, without a consumer group and without making topics.

A view must never slow or change what it watches: nothing is committed and nothing is written. Of a long log
only the last part is read (``newest_per_partition`` records of each partition, and not older than
``since_us``), so that the view is current within seconds. On the embedded broker, whose "latest" offset is
wrong, everything is read.
"""

from __future__ import annotations

from typing import Any

from driftline import handshake
from driftline.admin import is_embedded, no_broker, offsets
from driftline.cli.watch_state import WATCHED, WatchState
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import Unavailable
from driftline.rights import in_words

NEWEST_PER_PARTITION = 3_000


class Feed:
    """Feeds a :class:`WatchState` with what the broker holds and gets.

    ``since_us``: oldest record time of ``telemetry`` to read, None for all of it.

    Raises:
        Unavailable: no broker answers, now or later; make a new feed to try again.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        since_us: int | None = None,
        newest_per_partition: int | None = NEWEST_PER_PARTITION,
    ) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError

        self._settings = settings
        self._error: type[Exception] = KafkaError
        self._since_us = since_us
        self._limit = newest_per_partition
        self._names = {settings.topics[name]: name for name in WATCHED}
        self._embedded = is_embedded(settings)
        try:
            self._consumer = opened(
                KafkaConsumer,
                **kafka_python(handshake.let_in(settings)),
                client_id="driftline-watch",
                group_id=None,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                auto_offset_reset="earliest",  # what retention removed is only a view's loss
                bootstrap_timeout_ms=5_000,
                metadata_max_age_ms=5_000,
            )
        except (KafkaError, OSError) as error:
            raise no_broker(settings, error) from error
        self._found: set[str] = set()

    def poll(self, state: WatchState, timeout_s: float) -> int:
        """Folds what came, waiting at most so long for the first record; returns how many records came."""
        try:
            if len(self._found) < len(self._names):
                self._look_for_topics()
            if not self._found:
                return 0
            polled = self._consumer.poll(timeout_ms=max(1, int(timeout_s * 1000)))
        except (self._error, OSError) as error:
            raise Unavailable(f"broker {self._settings.bootstrap}: {in_words(error)}") from error
        count = 0
        for place, records in polled.items():
            for record in records:
                state.see(self._names[place.topic], record.value, record.timestamp * 1000)
            count += len(records)
        return count

    @property
    def missing(self) -> list[str]:
        """Topics that do not exist so far."""
        return sorted(set(self._names) - self._found)

    def caught_up(self) -> bool:
        """Whether everything that the broker had at the last fetch was read."""
        for place in self._consumer.assignment():
            high = self._consumer.highwater(place)
            if high is None or self._consumer.position(place) < high:
                return False
        return not self.missing

    def close(self) -> None:
        """Ends the connection; does not raise."""
        try:
            self._consumer.close()
        except (self._error, OSError):
            pass

    def _look_for_topics(self) -> None:
        """Takes up the partitions of topics that are there now."""
        from kafka import TopicPartition

        existing = self._consumer.topics() & set(self._names)
        fresh = existing - self._found
        if not fresh:
            return
        places = [TopicPartition(t, p) for t in sorted(fresh) for p in self._consumer.partitions_for_topic(t)]
        before = {place: self._consumer.position(place) for place in self._consumer.assignment()}
        self._consumer.assign([*before, *places])
        for place, position in before.items():
            self._consumer.seek(place, position)
        for place, position in self._starts(places).items():
            self._consumer.seek(place, position)
        self._found |= fresh

    def _starts(self, places: list[Any]) -> dict[Any, int]:
        first: dict[Any, int] = offsets(self._consumer.beginning_offsets, places)
        if self._embedded:
            return first
        ends = offsets(self._consumer.end_offsets, places)
        starts = {}
        for place in places:
            start = first[place]
            if self._limit is not None:
                start = max(start, ends[place] - self._limit)
            starts[place] = start
        if self._since_us is not None:
            telemetry = [place for place in places if self._names[place.topic] == "telemetry"]
            found = self._consumer.offsets_for_times(dict.fromkeys(telemetry, self._since_us // 1000))
            for place in telemetry:
                entry = found.get(place)
                starts[place] = max(starts[place], entry.offset if entry else ends[place])
        return starts
