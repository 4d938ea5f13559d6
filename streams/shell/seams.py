"""What the life of a partition needs from outside, as protocols: the log, an outbox, the group, the clock.

``partition``, ``recovery`` and ``assignments`` know Kafka only through these, so the same code runs in a
worker process (``log_reader``, ``outbox``, ``faust_app``) and in the simulation (``tests/sim``: one loop, a
broker in memory, virtual time). Nothing in them reads a wall clock, starts a thread or depends on the order
of a set.

Every effect is an ``await`` of one of these protocols, and nothing is undone or finished on the way out of a
cancelled task: a worker may be killed between any two effects by cancelling its tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from driftline.clock import Clock
from driftline.settings import Settings
from driftline.streams.core import Core
from driftline.streams.shell.health import Health

S = TypeVar("S")


class Bounds(NamedTuple):
    """Offsets [start, end) that a log has."""

    start: int
    end: int


class OutOfLog(Exception):
    """The log does not have the offset that was asked for (any longer)."""


class Oversized(Exception):
    """An output is larger than Kafka takes."""


class LogRecord(Protocol):
    """A record as a log gives it; ``timestamp`` in milliseconds."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class LogView(Protocol):
    """Reads one partition of a topic by offset, without a consumer group."""

    async def bounds(self) -> Bounds:
        """First offset and the end as of now. Raises Unavailable."""
        ...

    def read(self, start: int, end: int) -> AsyncIterator[Sequence[LogRecord]]:
        """Records of [start, end) in batches; the last one may go beyond ``end``.

        Raises:
            OutOfLog: ``start`` lies before the log's first offset, or behind its end.
            Unavailable: no answer.
        """
        ...


OpenLog = Callable[[str, int], AbstractAsyncContextManager[LogView]]
"""Topic (full name) and partition to a view of that log."""


class Lane:
    """Counts what was sent and not yet delivered; whatever is waited for together is one lane."""

    def __init__(self) -> None:
        self.pending = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def sent(self) -> None:
        self.pending += 1
        self.idle.clear()

    def delivered(self) -> None:
        self.pending -= 1
        if self.pending == 0:
            self.idle.set()


class Sender(Protocol):
    """An outbox: what is sent arrives in order, or nothing more does."""

    async def send(
        self, lane: Lane, topic: str, partition: int, *, key: bytes | None, value: bytes | None
    ) -> None:
        """Takes one record; it is delivered later (or the outbox breaks).

        Raises:
            Oversized: this record can never be sent; later ones can.
            Unavailable: the outbox is broken.
        """
        ...

    async def settled(self, lane: Lane) -> None:
        """Returns when all that the lane sent is delivered. Raises Unavailable if it never will be."""
        ...


@dataclass(frozen=True)
class Parts(Generic[S]):
    """What all partitions of a worker share."""

    core: Core[S]
    settings: Settings
    app_id: str
    topic_uuid: str
    worker: str
    config_body: bytes
    config_digest: str
    outbox: Sender
    open_log: OpenLog
    health: Health
    clock: Clock
    commit: Callable[[int, int], Awaitable[str | None]]
    """Partition and offset to the consumer group; answers why not, if not."""
    uuid_now: Callable[[], Awaitable[str | None]]
    """The UUID that the source topic has now (None: there is no such topic). Raises Unavailable."""

    append_time: bool = True
    """Whether the broker stamps records; ticks say it to the core."""

    @property
    def source_topic(self) -> str:
        return self.settings.kafka.topics[self.core.source]
