"""Clients of the broker in memory: what the product knows as aiokafka, and a bare one for the other roles.

``SimProducer`` and ``SimConsumer`` take the place of ``AIOKafkaProducer`` and ``AIOKafkaConsumer`` under
the real ``Outbox`` and ``LogReader``. They belong to the life that makes them; the world is found through
it.

A producer is idempotent and in order per partition: each partition has a queue whose first record is under
way. What has left a process arrives though the process is killed; what waits behind it is lost with it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

from .broker import OutOfRange, Stored
from .clockwork import LIFE, Life

if TYPE_CHECKING:
    from .world import World


def current() -> tuple[World, Life]:
    """The world and the life that the code at hand belongs to."""
    life = LIFE.get()
    assert life is not None, "only a simulated process has clients"
    return life.world, life  # type: ignore[attr-defined]


class _Waiting(NamedTuple):
    topic: str
    key: bytes | None
    value: bytes | None
    done: Callable[[Stored | None], None]
    """With the record, or None if it failed for good."""


class Lane:
    """What a producer sends to one partition, one record after the other."""

    def __init__(self, world: World, life: Life, topic: str, partition: int) -> None:
        self._world, self._life = world, life
        self._topic, self._partition = topic, partition
        self._queue: deque[_Waiting] = deque()
        self._under_way = self._broken = False
        self.closed = False
        self._chance = world.chance("network")

    def put(self, waiting: _Waiting) -> None:
        if self._broken:
            self._world.soon(1, lambda: waiting.done(None))
            return
        self._queue.append(waiting)
        if not self._under_way:
            self._depart()

    def _depart(self) -> None:
        """The next records leave the process: from now on its end does not stop them."""
        self._under_way = True
        faults = self._world.faults
        delay_us = self._chance.randrange(1_000, 8_000)
        if faults.hit("delivery delayed", self._life.name):
            delay_us += faults.chance("delivery delayed").randrange(3_000_000)
        self._world.soon(delay_us, self._arrive)

    def _arrive(self) -> None:
        broker = self._world.broker
        if self._life.dead and self._chance.hit(0.5):
            return  # it was in a buffer of the dead process after all
        if broker.away:
            if not self._life.dead and not self.closed:
                broker.back.append(self._arrive)  # retried for ever
            return
        batch = min(len(self._queue), self._chance.choice((1, 3, 10, 50)))
        for _ in range(batch):
            waiting = self._queue.popleft()
            record = broker.append(
                waiting.topic, self._partition, waiting.key, waiting.value, self._life.name
            )
            if not self._life.dead:
                self._life.hears("after", effect_of(waiting.topic, waiting.key, waiting.value))
            self._acknowledge(waiting, record)
        self._under_way = False
        if self._queue and not self._life.dead and not self.closed:
            self._depart()

    def _acknowledge(self, waiting: _Waiting, record: Stored) -> None:
        faults = self._world.faults
        delay_us = 500
        if faults.hit("acknowledgement lost", self._life.name):
            delay_us += 200_000  # sent again, and recognised by the broker as the same
        self._world.soon(delay_us, lambda: waiting.done(record))

    def fail(self) -> None:
        """Everything that waits fails for good, and so does what comes later: nothing is overtaken."""
        self._broken = True
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            waiting.done(None)


class Port:
    """Sends to any partition, in order per partition, for as long as the life lasts."""

    def __init__(self, world: World, life: Life, *, own_thread: bool = False) -> None:
        self._world, self._life = world, life
        self._own_thread = own_thread
        """It hears of what arrived though the process is busy: its client has a thread."""
        self._lanes: dict[tuple[str, int], Lane] = {}

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        done: Callable[[Stored | None], None] = lambda record: None,
    ) -> None:
        effect = effect_of(topic, key, value)
        self._life.touch(effect)
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = Lane(self._world, self._life, topic, partition)
        lane.put(_Waiting(topic, key, value, self._told(done)))

    def _told(self, done: Callable[[Stored | None], None]) -> Callable[[Stored | None], None]:
        """Runs ``done`` in the life, unless it is over; being told is an effect, too."""
        life = self._life
        context = contextvars.Context() if self._own_thread else contextvars.copy_context()

        def acknowledged(record: Stored | None) -> None:
            if not life.dead:
                life.hears("before", "acknowledge")
            if not life.dead:
                done(record)

        return lambda record: self._world.loop.call_soon(acknowledged, record, context=context)  # type: ignore[return-value]

    def fail(self, topic: str, partition: int) -> None:
        if (lane := self._lanes.get((topic, partition))) is not None:
            lane.fail()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.closed = True


def effect_of(topic: str, key: bytes | None, value: bytes | None) -> str:
    """The name of the effect, as in ``faults.EFFECTS``."""
    if topic.endswith("state"):
        if value is None:
            return "tombstone"
        return "manifest" if key is not None and key.endswith(b"manifest") else "snapshot chunk"
    if topic.endswith("assignments"):
        return "lease"
    if value is not None and value[2:40].find(b"eval_result") >= 0:
        return "result"
    return "send"


class SimProducer:
    """In the place of ``AIOKafkaProducer``."""

    def __init__(self, **_options: Any) -> None:
        self._world, self._life = current()
        self._port = Port(self._world, self._life)
        self._sender = SimpleNamespace(sender_task=SimpleNamespace(cancel=self._port.close))
        """What the outbox reaches for to have no further request begun."""

    async def start(self) -> None:
        await reached(self._world)

    async def stop(self) -> None:
        self._port.close()

    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None, partition: int
    ) -> asyncio.Future[Any]:
        world, faults = self._world, self._world.faults
        future: asyncio.Future[Any] = world.loop.create_future()
        chance = world.chance("client")
        if chance.hit(0.1):
            await asyncio.sleep(chance.randrange(1, 40) / 1000)  # for metadata, for room
        if faults.hit("buffer full", self._life.name):
            await asyncio.sleep(0.3)
            raise KafkaTimeoutError("buffer full")

        def done(record: Stored | None) -> None:
            if future.done():
                return
            if record is None:
                future.set_exception(KafkaConnectionError("failed for good"))
            else:
                future.set_result(record)

        self._port.send(topic, partition, key, value, done)
        if faults.hit("send refused", self._life.name):
            self._port.fail(topic, partition)
        return future


async def reached(world: World) -> None:
    """An answer of the broker. Raises KafkaConnectionError while it is away."""
    await asyncio.sleep(0.002)
    if world.broker.away:
        await asyncio.sleep(1)
        raise KafkaConnectionError("the broker is away")


class SimConsumer:
    """In the place of ``AIOKafkaConsumer``, without a group: one partition, by offset."""

    def __init__(self, **_options: Any) -> None:
        self._world, self._life = current()
        self._position = 0
        self._highwater: int | None = None
        self._at: Any = None

    async def start(self) -> None:
        await reached(self._world)

    async def stop(self) -> None: ...

    def assign(self, partitions: list[Any]) -> None:
        (self._at,) = partitions

    async def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        await reached(self._world)
        return {at: self._log(at).start for at in partitions}

    def seek(self, at: Any, offset: int) -> None:
        self._position = offset

    def highwater(self, at: Any) -> int | None:
        return self._highwater

    async def position(self, at: Any) -> int:
        return self._position

    async def getmany(self, at: Any, *, timeout_ms: int, max_records: int) -> dict[Any, list[Stored]]:
        world = self._world
        await asyncio.sleep(0.003)
        if world.broker.away:
            await asyncio.sleep(timeout_ms / 1000)
            return {}
        self._life.touch("fetch")
        log = self._log(at)
        try:
            found = log.read(self._position, max_records)
        except OutOfRange as error:
            raise OffsetOutOfRangeError(str(error)) from error
        self._highwater = log.end
        if found:
            self._position = found[-1].offset + 1
        else:
            self._position = log.end  # what is missing at the end was compacted away
        return {at: found} if found else {}

    def _log(self, at: Any) -> Any:
        topic = self._world.broker.topics.get(at.topic)
        if topic is None:
            raise UnknownTopicOrPartitionError(at.topic)
        return topic.logs[at.partition]
