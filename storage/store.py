"""What a sink needs of its tables: on disk (:mod:`.lake`) or in memory (:mod:`.memory_lake`).

Several writers may have the same tables open. Each has a handle per table, which shows the table as it was
when it was loaded or last committed with. A commit is refused if one of its application ids was committed by
anyone since that handle was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from driftline.storage.seen import Seen
from driftline.storage.tables import TableName
from driftline.topics import TopicName


class Conflict(Exception):
    """Another writer committed the same partition: read the positions again and start from there."""


class App:
    """Application ids: ``<topic uuid>/<partition>`` for positions, ``<topic>/<partition>`` to keep sinks
    apart that read a topic before and after it was made again."""

    RETENTION = "retention"
    """Its version is the instant, in microseconds since 1970, before which rows have expired."""

    @staticmethod
    def expired(topic_uuid: str, partition: int) -> str:
        """Its version is the last offset of ``log`` that expired in the partition."""
        return f"retention/{topic_uuid}/{partition}"

    @staticmethod
    def id(topic_uuid: str, partition: int) -> str:
        return f"{topic_uuid}/{partition}"

    @staticmethod
    def fence(topic: TopicName, partition: int) -> str:
        return f"{topic}/{partition}"


class Tables(Protocol):
    """All tables, opened for writing by one sink."""

    def reload(self) -> None:
        """Loads every table anew, with all that other writers committed. Raises Unavailable, BadData."""
        ...

    def version(self, name: TableName, app: str) -> int:
        """Last offset of ``app`` (see :class:`App`) that the handle shows, -1 before the first."""
        ...

    def commit(
        self, name: TableName, rows: pa.Table | None, expected: Mapping[str, int], moves: Mapping[str, int]
    ) -> None:
        """Appends ``rows`` (None for none) and moves each app from its ``expected`` to its new offset, all
        or nothing.

        Raises:
            Conflict: an app is not at its expected offset; nothing was written.
            Unavailable: the tables cannot be written. Whether this commit landed is not known, so positions
                must be read again.
        """
        ...

    def seen(self, telemetry_uuid: str, starts: Mapping[int, int]) -> Seen:
        """The marks of what is stored, of the partitions that ``starts`` maps to the offset from which their
        telemetry is read again; only what lies before counts, and what is stored of telemetry topics of other
        UUIDs. Raises BadData."""
        ...
