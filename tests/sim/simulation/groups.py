"""Consumer groups, and the part of Faust that the shell uses, over the broker in memory.

A group deals the partitions of one topic out to its members, anew whenever one comes or goes. A member that
was not heard of for a session is taken off the list without its knowledge: it goes on with the partitions
that it had until it hears of it (a *zombie*). What a member is handed is not to be relied on: records come
twice, late or not at all, and the committed offsets may be anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aiokafka import TopicPartition

from .broker import OutOfRange, Stored, Topic
from .clients import current, reached
from .clockwork import Life

if TYPE_CHECKING:
    from .world import World

SESSION_US = 3_000_000
HEARTBEAT_US = 500_000
FETCH_US = 40_000


class Group:
    """The coordinator of one group over the partitions of one topic."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        self._world = world
        self.name = name
        self.topic = topic
        self.members: dict[str, FakeFaust] = {}
        self.offsets: dict[int, int] = {}
        self.generation = 0
        self._chance = world.chance(f"group/{name}")
        self.clients: list[FakeFaust] = []
        """Everybody who ever joined, zombies included."""
        world.broker.appended.append(self._appended)

    def join(self, member: FakeFaust) -> None:
        self.clients = [client for client in self.clients if not client.life.dead and client is not member]
        self.clients.append(member)
        self.members[member.life.name] = member
        self.deal()

    def _appended(self, topic: Topic, _partition: int, _record: Stored) -> None:
        if topic.name in self.topic:
            for client in self.clients:
                client.more.set()

    def leave(self, member: FakeFaust) -> None:
        if self.members.pop(member.life.name, None) is not None:
            self.deal()

    def deal(self) -> None:
        """Gives each partition to one member; each hears of it at its next heartbeat."""
        self.generation += 1
        names = sorted(self.members)
        self._chance.shuffle(names)
        count = len(self._world.broker.topics[self.topic].logs)
        for member in self.members.values():
            member.owed = set()
        for partition in range(count):
            if names:
                self.members[names[partition % len(names)]].owed.add(partition)
        dealt = {name: sorted(member.owed) for name, member in sorted(self.members.items())}
        self._world.trace.add("group", self.name, self.generation, dealt)

    def expire(self) -> None:
        """Takes members off the list that were not heard of."""
        now_us = self._world.loop.now_us
        gone = [name for name, member in self.members.items() if now_us - member.heard_us > SESSION_US]
        for name in gone:
            self._world.trace.add("group", self.name, "loses", name)
            del self.members[name]
        if gone:
            self.deal()

    def commit(self, member: FakeFaust, partition: int, offset: int) -> str | None:
        if self.members.get(member.life.name) is not member or partition not in member.owed:
            return "not a member"
        faults = self._world.faults
        if faults.hit("group ahead", self.name):
            offset += faults.chance("group ahead").randrange(1, 60)
        self.offsets[partition] = offset
        return None


class _Signal:
    """In the place of a Faust signal."""

    def __init__(self) -> None:
        self.handlers: list[Callable[..., Any]] = []

    def connect(self, handler: Callable[..., Any]) -> None:
        self.handlers.append(handler)

    async def send(self, app: Any, partitions: set[TopicPartition]) -> None:
        for handler in self.handlers:
            await handler(app, partitions)


class FakeFaust:
    """What the shell calls an app: a member of a group, its agent, its signals."""

    def __init__(self, app_id: str) -> None:
        self.world, self.life = current()
        self.app_id = app_id
        self.on_partitions_revoked, self.on_partitions_assigned = _Signal(), _Signal()
        self.crashed = False
        self.crash_reason: BaseException | None = None
        self.owed: set[int] = set()
        """What the group gave, heard of or not."""
        self.heard_us = 0
        self.cut_off_until_us = 0
        self.more = asyncio.Event()
        """There may be something to fetch."""
        self._held: dict[int, int] = {}
        """Partition -> position of the fetches."""
        self._generation = -1
        self._agent: Callable[[Any], Any] | None = None
        self._messages: asyncio.Queue[Any] = asyncio.Queue(maxsize=4)
        """Fetches, each of one partition."""
        self._work: list[asyncio.Task[Any]] = []
        self._topic = ""
        self._chance = self.world.chance(f"fetch/{self.life.name}")

    # --- what the shell calls ---------------------------------------------------------------------------

    def topic(self, name: str, **_how: Any) -> str:
        self._topic = name
        return name

    def agent(self, _topic: str, *, name: str) -> Callable[[Callable[[Any], Any]], None]:
        def take(agent: Callable[[Any], Any]) -> None:
            self._agent = agent

        return take

    async def start(self) -> None:
        await reached(self.world)
        assert self._agent is not None
        self.group = self.world.group(self.app_id, self._topic)
        self.heard_us = self.world.loop.now_us
        self.group.join(self)
        stream = SimpleNamespace(noack=lambda: SimpleNamespace(events=self._events))
        self._work = [
            asyncio.create_task(self._agent(stream)),
            asyncio.create_task(self._heartbeats()),
            asyncio.create_task(self._fetches()),
        ]

    async def stop(self) -> None:
        for work in self._work:
            work.cancel()
        if self._work:
            self.group.leave(self)

    async def commit(self, partition: int, offset: int) -> str | None:
        if self.world.broker.away:
            await asyncio.sleep(0.2)
            return "the broker is away"
        self.life.touch("group commit")
        why_not = self.group.commit(self, partition, offset)
        self.life.touched("group commit")
        return why_not

    def highwater(self, partition: int) -> int:
        return self.world.broker.log(self._topic, partition).end

    # --- membership -------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            world = self.world
            now_us = world.loop.now_us
            if not world.broker.away and now_us >= self.cut_off_until_us:
                self.heard_us = now_us
                if self.group.members.get(self.life.name) is not self:
                    await self._rejoin()
                elif self._generation != self.group.generation:
                    await self._take_over()
            if world.faults.hit("zombie worker", self.life.name):
                self.cut_off_until_us = now_us + SESSION_US + self._chance.randrange(2_000_000, 8_000_000)
            await asyncio.sleep(HEARTBEAT_US / 1e6)

    async def _rejoin(self) -> None:
        """It was a zombie: it gives up what it had, and comes back."""
        await self._revoke(set(self._held))
        self.group.join(self)
        await asyncio.sleep(0.05)
        await self._take_over()

    async def _take_over(self) -> None:
        self._generation = self.group.generation
        owed = set(self.owed)
        await self._revoke(set(self._held))
        await asyncio.sleep(self._chance.randrange(10_000, 300_000) / 1e6)
        for partition in sorted(owed):
            self._held[partition] = self.group.offsets.get(partition, 0)
        self.more.set()
        await self.on_partitions_assigned.send(self, {TopicPartition(self._topic, p) for p in sorted(owed)})

    async def _revoke(self, partitions: set[int]) -> None:
        self._held.clear()
        while not self._messages.empty():
            self._messages.get_nowait()  # Faust clears its buffers
        await self.on_partitions_revoked.send(
            self, {TopicPartition(self._topic, p) for p in sorted(partitions)}
        )

    # --- records ----------------------------------------------------------------------------------------

    async def _fetches(self) -> None:
        faults = self.world.faults
        while True:
            await self.more.wait()
            await asyncio.sleep(FETCH_US / 1e6)
            if faults.hit("record delayed", self.life.name):
                await asyncio.sleep(faults.chance("record delayed").random() * 2)
            if self.world.broker.away:
                await asyncio.sleep(0.2)
                continue
            self.more.clear()
            for partition in sorted(self._held):
                await self._fetch(partition)

    async def _fetch(self, partition: int) -> None:
        faults, log = self.world.faults, self.world.broker.log(self._topic, partition)
        position = self._held[partition]
        if faults.hit("record duplicated", self.life.name):
            position = max(log.start, position - faults.chance("record duplicated").randrange(1, 40))
        if position < log.end and faults.hit("record skipped", self.life.name):
            position = min(log.end, position + faults.chance("record skipped").randrange(1, 40))
        self.life.touch("fetch")
        try:
            found = log.read(position, self._chance.choice((5, 50, 500)))
        except OutOfRange:
            found, position = [], log.start  # auto_offset_reset="earliest"
        self._held[partition] = found[-1].offset + 1 if found else position
        if self._held[partition] < log.end:
            self.more.set()
        if found:
            records = [
                SimpleNamespace(partition=partition, offset=r.offset, timestamp=r.timestamp, value=r.value)
                for r in found
            ]
            await self._messages.put(SimpleNamespace(message=SimpleNamespace(records=records)))

    async def _events(self) -> AsyncIterator[Any]:
        while True:
            yield await self._messages.get()


def make(_kafka: Any, _streams: Any, *, app_id: str, **_how: Any) -> FakeFaust:
    """In the place of ``faust_app.make``."""
    return FakeFaust(app_id)


async def commit(app: FakeFaust, _topic: str, offsets: dict[int, int]) -> str | None:
    """In the place of ``faust_app.commit``."""
    for partition, offset in offsets.items():
        return await app.commit(partition, offset)
    return None


def highwater(app: FakeFaust, _topic: str, partition: int) -> int | None:
    """In the place of ``faust_app.highwater``."""
    return app.highwater(partition)


def lives_of(group: Group) -> list[Life]:
    return [member.life for _, member in sorted(group.members.items())]
