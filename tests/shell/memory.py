"""Workers in one process: the shell's own partition tasks over a broker in memory, in virtual time.

Nothing assigns partitions here: a test says who owns what, also two workers at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from driftline import config
from driftline.connection import KafkaSettings
from driftline.records import Record
from driftline.settings import Settings, StreamsSettings
from driftline.streams.shell.assignments import Assignments
from driftline.streams.shell.health import Health
from driftline.streams.shell.seams import Bounds, Lane, OutOfLog, Parts

BASE_US = 1_700_000_000_000_000
UUID = "uuid-of-the-topic"


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while something can run, and jumps to what is due next."""

    virtual_s = 0.0

    def time(self) -> float:
        return self.virtual_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.virtual_s = max(self.virtual_s, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class LoopClock:
    def steady_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6)

    def now_us(self) -> int:
        return BASE_US + self.steady_us()


class Entry(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class MemoryBroker:
    """Topics as lists; record times are the broker's."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[Entry]] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.uuid = UUID

    def log(self, topic: str, partition: int) -> list[Entry]:
        return self.logs.setdefault((topic, partition), [])

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        log = self.log(topic, partition)
        log.append(Entry(len(log), LoopClock().now_us() // 1000, key, value))

    def open(self, topic: str, partition: int) -> AbstractAsyncContextManager[View]:
        return View(self, topic, partition)


class View:
    """A ``LogView``."""

    def __init__(self, broker: MemoryBroker, topic: str, partition: int) -> None:
        self._log = broker.log(topic, partition)
        self._start = broker.starts.get((topic, partition), 0)

    async def __aenter__(self) -> View:
        await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def bounds(self) -> Bounds:
        return Bounds(self._start, len(self._log))

    async def read(self, start: int, end: int) -> AsyncIterator[Sequence[Entry]]:
        if not self._start <= start <= len(self._log):
            raise OutOfLog
        for at in range(start, end, 50):
            await asyncio.sleep(0.002)
            yield self._log[at : min(at + 50, end)]


class Outlet:
    """A ``Sender`` of one worker: in order, each delivery after a while of its own."""

    def __init__(self, broker: MemoryBroker, chance: random.Random) -> None:
        self._broker, self._chance = broker, chance
        self._queue: asyncio.Queue[tuple[Lane, tuple[Any, ...]]] = asyncio.Queue()
        self.task = asyncio.create_task(self._deliver())
        self.open = asyncio.Event()
        """Cleared: what was sent waits (the process is stopped, or its network away)."""
        self.open.set()

    async def send(
        self, lane: Lane, topic: str, partition: int, *, key: bytes | None, value: bytes | None
    ) -> None:
        lane.sent()
        self._queue.put_nowait((lane, (topic, partition, key, value)))
        await asyncio.sleep(0)

    async def settled(self, lane: Lane) -> None:
        await lane.idle.wait()

    async def _deliver(self) -> None:
        while True:
            lane, record = await self._queue.get()
            await asyncio.sleep(self._chance.choice([0.0, 0.001, 0.03]))
            await self.open.wait()
            self._broker.append(*record)
            lane.delivered()


class MemoryWorker:
    """One worker: its own outbox, health and partition tasks; fed by the test from its own position."""

    def __init__(self, core: Any, broker: MemoryBroker, name: str, seed: int, body: bytes) -> None:
        self.name = name
        self.broker = broker
        self.chance = random.Random(f"{seed} {name}")
        self.outlet = Outlet(broker, self.chance)
        self.health = Health()
        self.errors: list[BaseException] = []
        streams = StreamsSettings(snapshot_us=3_000_000, batch_records=20, state_dir=str(Path("unused")))
        kafka = KafkaSettings(bootstrap="memory", prefix="m.", partitions=1)
        self.parts = Parts(
            core=core,
            settings=msgspec.structs.replace(Settings(), kafka=kafka, streams=streams),
            app_id="m.app",
            topic_uuid=broker.uuid,
            worker=name,
            config_body=body,
            config_digest=config.digest(body),
            outbox=self.outlet,
            open_log=broker.open,
            health=self.health,
            clock=LoopClock(),
            commit=self._commit,
            uuid_now=self._uuid,
        )
        self.assignments = Assignments(self.parts, self.errors.append)
        self._ticks = asyncio.create_task(self.assignments.tick_forever())
        self._feeding = asyncio.create_task(self._feed())
        self.running = asyncio.Event()
        self.running.set()
        self.position = 0

    async def _commit(self, partition: int, offset: int) -> str | None:
        return None

    async def _uuid(self) -> str | None:
        return self.broker.uuid

    async def _feed(self) -> None:
        """Delivers the log from ``position`` on, a few records at a time, sometimes some again."""
        log = self.broker.log(self.parts.source_topic, 0)
        while True:
            await asyncio.sleep(self.chance.choice([0.01, 0.05, 0.4]))
            await self.running.wait()
            until = min(len(log), self.position + self.chance.randrange(1, 60))
            for at in range(self.position, until):
                entry = log[at]
                if not self.assignments.deliver(Record(0, entry.offset, entry.timestamp, entry.value)):
                    await self.assignments.room()
            self.position = until

    def pause(self) -> None:
        """Neither reads nor delivers what it sent; what it has read it may still work on."""
        self.running.clear()
        self.outlet.open.clear()

    def resume(self) -> None:
        self.running.set()
        self.outlet.open.set()

    def kill(self) -> None:
        """Between two effects, at once: nothing of it goes on."""
        tasks = [task.task for task in self.assignments.tasks.values()]
        for task in (self._ticks, self._feeding, self.outlet.task, *tasks):
            task.cancel()

    async def stop(self) -> None:
        """In order, with last snapshots."""
        self._feeding.cancel()
        self._ticks.cancel()
        await asyncio.gather(*self.assignments.retire_all())
        self.outlet.task.cancel()
