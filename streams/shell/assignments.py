"""Which partitions a worker has: starts, feeds and retires their tasks as the consumer group tells it.

The worker process (``shell``, told by Faust) and the simulation use it alike. A partition that is taken away
and comes back continues from what its last task knew; the new task waits for the old one, so there are never
two of one partition in a process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from driftline.records import Record
from driftline.streams.shell.partition import PartitionTask
from driftline.streams.shell.seams import Parts

S = TypeVar("S")
log = logging.getLogger(__name__)

BUFFER_RECORDS = 4_000
BUFFER_BYTES = 64 * 1024 * 1024
"""Records that wait for their partition; beyond either bound the consumer is held back."""
_ROOM_S = 0.005


class Assignments(Generic[S]):
    """The partition tasks of one worker; ``failed`` is called with the error that ended one."""

    def __init__(self, parts: Parts[S], failed: Callable[[BaseException], None]) -> None:
        self._parts = parts
        self._failed = failed
        self.tasks: dict[int, PartitionTask[S]] = {}
        """The partitions that the group gave, by number."""
        self._retired: dict[int, PartitionTask[S]] = {}
        """Between a revocation and the assignment that follows."""
        self._ending: list[PartitionTask[S]] = []
        """Tasks of partitions that others own now, until they are through."""
        self._buffered_bytes = 0

    # --- what the group says ----------------------------------------------------------------------------

    def revoked(self, partitions: Iterable[int]) -> None:
        """The group takes partitions away: their tasks end after the batch at hand."""
        for partition in sorted(partitions):
            self._retire(partition)

    def assigned(self, partitions: Collection[int]) -> None:
        """The group's whole assignment from now on; what is not in it was taken away."""
        for partition in sorted(set(self.tasks) - set(partitions)):  # the group told no revocation
            self._retire(partition)
        gone = [task for partition, task in sorted(self._retired.items()) if partition not in partitions]
        self._ending = [task for task in self._ending if not task.task.done()] + gone
        for partition in sorted(partitions):
            if (task := self.tasks.get(partition)) is not None:
                task.repositioned()
                continue
            task = PartitionTask(self._parts, partition, self._retired.pop(partition, None))
            task.task.add_done_callback(self._ended)
            self.tasks[partition] = task
        self._retired.clear()  # what others own now need not be remembered
        named = sorted(partitions) or "none"
        log.info("partitions of %s assigned here: %s", self._parts.source_topic, named)

    def deliver(self, record: Record) -> bool:
        """Hands a record that the group delivered to its partition; False: await ``room()`` first."""
        health = self._parts.health
        health.received += 1
        task = self.tasks.get(record.partition)
        if task is None:
            health.dropped["unassigned"] += 1
            return True
        task.put(record)
        self._buffered_bytes += len(record.value or b"")
        return self._buffered_bytes <= BUFFER_BYTES and task.buffered <= BUFFER_RECORDS

    async def room(self) -> None:
        """Returns when most of what was delivered is worked on."""
        while sum(task.buffered for task in self.tasks.values()) > BUFFER_RECORDS // 4:
            await asyncio.sleep(_ROOM_S)
        self._buffered_bytes = 0

    # --- time and end -----------------------------------------------------------------------------------

    async def tick_forever(self) -> None:
        """Appends a tick to each assigned partition, once a period."""
        period_s = self._parts.settings.streams.tick_us / 1e6
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for task in list(self.tasks.values()):
                await task.tick()
            due = max(due + period_s, loop.time())
            await asyncio.sleep(due - loop.time())

    def stuck_us(self) -> int:
        """How long the oldest tick that has not arrived is under way."""
        return max((task.stuck_us() for task in self.tasks.values()), default=0)

    def retire_all(self) -> list[asyncio.Task[None]]:
        """Ends all partitions in order, each with a last snapshot; returns the tasks that are not through."""
        tasks = [*self.tasks.values(), *self._retired.values(), *self._ending]
        for task in tasks:
            task.retire()
        return [task.task for task in tasks if not task.task.done()]

    def _retire(self, partition: int) -> None:
        if (task := self.tasks.pop(partition, None)) is not None:
            task.retire()
            self._retired[partition] = task
            self._parts.health.lag.pop(partition, None)

    def _ended(self, done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._failed(error)
