"""Sinks: the real logic (``SinkCore``, ``Rows``, ``Seen``) on tables in memory, one turn after the other.

The turns are those of ``storage.sink.Sink``, without its Kafka client. Sinks share the partitions as a
group does: a sink that did not take its turn for a session loses its partitions without its knowledge, and
goes on with them when it wakes up. It can stop, or be killed, before and after the commit of every single
table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from driftline.errors import Unavailable
from driftline.records import Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.dead_letters import encoded
from driftline.storage.memory_lake import MemoryLake
from driftline.storage.store import Conflict
from driftline.storage.tables import FEEDS, TableName
from driftline.topics import TopicName

from .broker import OutOfRange, Stored
from .clients import Port
from .clockwork import Life

if TYPE_CHECKING:
    from .world import World

TURN_US = 150_000
RETRY_US = 700_000
SESSION_US = 3_000_000
EMPTY_US = 6_000_000
READ_RECORDS = 400


class SinkGroup:
    """Keeps ``count`` sinks alive and deals the partitions out to those that are heard of."""

    def __init__(self, world: World, count: int) -> None:
        self._world = world
        self._chance = world.chance("sinks")
        self.sinks: list[SimSink] = []
        self.dealt: dict[str, list[int]] = {}
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        if not self._world.ending:
            self.sinks = [sink for sink in self.sinks if not sink.life.dead]
            self.sinks.append(SimSink(self._world, self._start_soon))
            self.deal()

    def _start_soon(self) -> None:
        self._world.soon(self._chance.randrange(200_000, 3_000_000), self._start)

    def intruder(self) -> SimSink:
        """A sink that asks nobody and takes all partitions, for a while."""
        sink = SimSink(self._world, lambda: None, intrudes=True)
        self.sinks.append(sink)
        return sink

    def deal(self) -> None:
        """Anew, over the sinks that took a turn lately."""
        now_us = self._world.loop.now_us
        alive = [
            sink.life.name
            for sink in self.sinks
            if not sink.life.dead and not sink.intrudes and now_us - sink.heard_us <= SESSION_US
        ]
        self._chance.shuffle(alive)
        self.dealt = {name: [] for name in alive}
        for partition in range(self._world.broker.partitions if alive else 0):
            self.dealt[alive[partition % len(alive)]].append(partition)
        self._world.trace.add("sinks", self.dealt)

    def expire(self) -> None:
        """Deals anew if one of the sinks is gone or was not heard of, or came back."""
        now_us = self._world.loop.now_us
        for sink in self.sinks:
            if sink.intrudes:
                continue
            heard = not sink.life.dead and now_us - sink.heard_us <= SESSION_US
            if heard != (sink.life.name in self.dealt):
                self.deal()
                return


class SimSink:
    """One sink process."""

    def __init__(self, world: World, died: Callable[[], None], *, intrudes: bool = False) -> None:
        self._world = world
        self.intrudes = intrudes
        self.life: Life = world.life(world.next_name("intruder-" if intrudes else "sink-"))
        self.life.mourners.append(died)
        self.heard_us = world.loop.now_us
        self._lake = MemoryLake(world.tables, self._around_commit)
        self.core = SinkCore(self._lake)
        self._port = Port(world, self.life)
        self._mine: list[int] | None = None
        self._positions: dict[Spot, int] = {}
        self._slow: dict[Spot, int] = {}
        """Partitions that nothing is fetched of until then."""
        self._waiting_since: int | None = None
        self._emptied_us = world.loop.now_us
        self._drained = False
        self.drain = False
        """True: it reads to the end, commits all, and ends."""
        self.life.later(50_000, self._turn)

    @property
    def done(self) -> bool:
        return self._drained

    def _turn(self) -> None:
        world = self._world
        self.heard_us = world.loop.now_us
        pause_us = TURN_US
        try:
            if world.broker.away:
                raise Unavailable("the broker is away")
            self._take_part()
            read = self._read()
            self._commit_on_time(read)
        except (Unavailable, Conflict) as error:
            world.trace.add(self.life.name, "starts again:", error)
            self._mine = None
            pause_us = RETRY_US
        if not self._drained:
            self.life.later(pause_us, self._turn)

    def _take_part(self) -> None:
        """Resumes where the partitions have changed, or after trouble."""
        world = self._world
        mine = (
            list(range(world.broker.partitions))
            if self.intrudes
            else world.sinks.dealt.get(self.life.name, [])
        )
        if self._mine == mine:
            return
        self.life.touch("fetch")
        topics, oldest = world.settings.kafka.topics, {}
        for name in FEEDS:
            topic = world.broker.topics[topics[name]]
            for partition in mine:
                oldest[Spot(name, topic.uuid, partition)] = topic.logs[partition].start
        self._positions = self.core.resume(oldest)
        for gap in self.core.gaps:
            world.trace.add(self.life.name, "gap", gap)
            world.sink_gaps.append(gap)
        self._mine = mine
        self._waiting_since = None

    def _read(self) -> int:
        """As ``reading.Reader.poll``: what was fetched counts once its topics are known to be the same."""
        polled = self._poll()
        if polled:
            self._check()
        for spot, found in polled.items():
            records = (Record(spot.partition, r.offset, r.timestamp, r.value) for r in found)
            self.core.take(spot, records)
            self._positions[spot] = found[-1].offset + 1
        return sum(map(len, polled.values()))

    def _poll(self) -> dict[Spot, list[Stored]]:
        """By the topics' names, as a poll of Kafka: of some partitions, some records; of all at the end."""
        polled, now_us, faults = {}, self._world.loop.now_us, self._world.faults
        chance = self._world.chance("polls")
        for spot, position in self._positions.items():
            if faults.hit("record delayed", self.life.name):
                self._slow[spot] = now_us + faults.chance("record delayed").randrange(3_000_000)
            if not self.drain and (now_us < self._slow.get(spot, 0) or chance.hit(0.3)):
                continue
            log = self._world.broker.log(self._topic(spot.topic), spot.partition)
            try:
                found = log.read(position, READ_RECORDS)
            except OutOfRange as error:
                raise Unavailable(f"{spot.topic}: {error}") from error
            if found:
                polled[spot] = found
        return polled

    def _check(self) -> None:
        """Raises Unavailable if a topic is no longer the one that it was. An offset alone does not tell: that
        at which an idle partition is read from may be in the new topic as well."""
        for spot in self._positions:
            if self._world.broker.topics[self._topic(spot.topic)].uuid != spot.uuid:
                raise Unavailable(f"topic {spot.topic} was deleted or made again")

    def _commit_on_time(self, read: int) -> None:
        now_us = self._world.loop.now_us
        if self.core.pressing and self._waiting_since is None:
            self._waiting_since = now_us
        storage = self._world.settings.storage
        late = self._waiting_since is not None and now_us - self._waiting_since >= storage.commit_us
        empty = now_us - self._emptied_us >= EMPTY_US
        last = self.drain and not read
        if not (late or empty or last):
            return
        self._send_letters()
        self._waiting_since = None
        for _ in self.core.commits(empty=empty or last):
            pass
        if empty or last:
            self._emptied_us = self._world.loop.now_us
        self._drained = last

    def _send_letters(self) -> None:
        letters, topic = list(self.core.letters), self._topic("dead-letter")
        self.core.letters.clear()
        for letter in letters:
            self._port.send(topic, 0, *encoded(letter))

    def _around_commit(self, moment: str, name: TableName) -> None:
        world, faults, who = self._world, self._world.faults, self.life.name
        if moment == "before":
            self.life.touch("table commit")
            if faults.hit("sink paused", who):
                world.loop.block(faults.chance("sink paused").randrange(3_500_000, 10_000_000))
            if world.sink_disk_full:
                raise Unavailable("no space left on the disk")
            return
        world.trace.add(who, "commits", name)
        self.life.touched("table commit")
        if faults.hit("commit answer lost", who):
            raise Unavailable("the answer to a commit was lost")

    def _topic(self, name: TopicName) -> str:
        return self._world.settings.kafka.topics[name]
