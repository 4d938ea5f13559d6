"""One seed, one run: all parts of Driftline and everything that goes wrong with them, then rest, then
checks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from driftline.producers.memory_disk import MemoryDisk
from driftline.storage.core import Gap
from driftline.storage.memory_lake import MemoryRoot

from . import bounds, workers
from .broker import Broker
from .clockwork import LIFE, Life, SimClock, VirtualLoop, lay_to_rest
from .drawn_settings import PARTITIONS, settings_of
from .edges import quiet, replaced
from .evaluators import FakeEvaluator
from .faults import Chance, Faults, Trace
from .groups import Group
from .mischief import Mischief
from .samples import Sample
from .sinks import SESSION_US, SinkGroup
from .trainers import Training
from .watch import Watch

RUNS = ("run-a", "run-b", "run-4")
TRAINING_US = 60_000_000
SILENCE_US = 12_000_000
"""After so long without a record that says something, nothing is left to do."""
REST_US = 240_000_000
"""Everything must come to rest within this virtual time after the last fault."""


class World:
    """The parts of one seed and what they share."""

    def __init__(
        self,
        seed: int,
        rates: Mapping[str, float] | None = None,
        *,
        training_us: int = TRAINING_US,
        least_records: int = 0,
    ) -> None:
        self.seed = seed
        self._training_us, self._least_records = training_us, least_records
        self.loop = VirtualLoop(limit_us=training_us + REST_US)
        self.trace = Trace()
        self.trace.now_us = lambda: self.loop.now_us
        self.faults = Faults(seed, self.trace, rates)
        self.settings = settings_of(seed)
        self.broker = Broker(self.loop, self.trace, partitions=PARTITIONS)
        self.trainer_ns = 0
        self.ending = False
        self.lives: list[Life] = []
        self._chances: dict[str, Chance] = {}
        self.groups: dict[str, Group] = {}
        self.clocks: dict[str, SimClock] = {}
        self._names: dict[str, int] = {}
        self.trainings: list[Training] = []
        self.evaluators: list[FakeEvaluator] = []
        self.tables = MemoryRoot()
        self.disk = MemoryDisk()
        self.disk.faults.before, self.disk.faults.after = self._before_write, self._after_write
        self.watch = Watch(self)
        self.sink_disk_full = False
        self.sink_gaps: list[Gap] = []
        self.broken_bounds: set[str] = set()
        self.failed: list[asyncio.Task[None]] = []
        """Partition tasks that ended with an error and of which no worker knew when it was looked at last."""
        self.damaged: set[str] = set()
        """Processes whose spools were damaged after their end."""
        self.left: dict[str, set[Sample]] = {}
        """What killed processes had in their spools, by process."""
        self.lost: dict[tuple[str, int], range] = {}
        """Offsets of (topic uuid, partition) that were deleted before a sink had stored all of their rows."""

    # --- what the parts share ---------------------------------------------------------------------------

    def chance(self, use: str) -> Chance:
        found = self._chances.get(use)
        if found is None:
            found = self._chances[use] = Chance(self.seed, use)
        return found

    def next_name(self, prefix: str) -> str:
        self._names[prefix] = self._names.get(prefix, 0) + 1
        return f"{prefix}{self._names[prefix]}"

    def life(self, name: str) -> Life:
        life = Life(self.loop, name, self._judge)
        life.world = self  # type: ignore[attr-defined]
        self.lives.append(life)
        self.trace.add("starts", name)
        return life

    def _judge(self, life: Life, when: str, effect: str) -> None:
        if self.faults.hit(f"killed {when} {effect}", life.name):
            life.kill()

    def _before_write(self, what: str, folder: str, file: str) -> None:
        if (life := LIFE.get()) is not None:
            life.touch("spool write")

    def _after_write(self, what: str, folder: str, file: str) -> None:
        life = LIFE.get()
        if life is None:
            return
        self.trace.add(life.name, what, folder[-20:], file)
        if what == "append" and self.faults.hit("torn file", life.name):
            data = self.disk.faults.folders[folder][file]
            del data[len(data) - self.faults.chance("torn file").randrange(1, 60) :]
            life.kill()
        life.touched("spool write")

    def clock_of(self, life: Life) -> SimClock:
        """Each process has a host of its own, whose clock may be wrong."""
        clock = self.clocks.get(life.name)
        if clock is None:
            clock = self.clocks[life.name] = SimClock(self.loop)
            if self.faults.hit("clock skew", life.name):
                clock.skew_us = self.faults.chance("clock skew").randrange(-10_000_000, 10_000_000)
        return clock

    def group(self, name: str, topic: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self, name, topic)
        return group

    def soon(self, delay_us: int, call: Callable[[], None]) -> None:
        """Calls something that belongs to no process."""
        self.loop.call_later(delay_us / 1e6, call, context=contextvars.Context())

    # --- the run ----------------------------------------------------------------------------------------

    async def play(self) -> None:
        """From the start to rest."""
        chance = self.chance("play")
        self.streams = workers.StreamRole(self, "streams", chance.randrange(1, 4))
        self.schedulers = workers.StreamRole(self, "scheduler", chance.randrange(1, 3))
        self.sinks = SinkGroup(self, chance.randrange(1, 4))
        for number in range(chance.randrange(1, 4)):
            self.evaluators.append(FakeEvaluator(self, number))
        for run in RUNS:
            await asyncio.sleep(chance.randrange(0, 3_000_000) / 1e6)
            self.trainings.append(Training(self, run, chance.randrange(2, 5), 10_000))
        self._coordinate()
        mischief = Mischief(self)
        end_us = self.loop.now_us + self._training_us
        while self.loop.now_us < end_us or self.broker.count < self._least_records:
            await asyncio.sleep(0.5)
            mischief.turn()
        self._heal()
        await self._rest()

    def _coordinate(self) -> None:
        """The groups take those off their lists that were not heard of."""
        for group in self.groups.values():
            group.expire()
        self.sinks.expire()
        if self.chance("compaction").hit(0.1):
            for log in self.broker.topics[self.settings.kafka.topics["state"]].logs:
                log.compact()
        self.broken_bounds.update(bounds.broken(self))
        self.soon(500_000, self._coordinate)

    def _heal(self) -> None:
        self.trace.add("heals")
        self.faults.heal()
        if self.broker.away:
            self.broker.come_back()
        for training in self.trainings:
            training.over = True

    async def _rest(self) -> None:
        """Waits until nothing is left to do, then stops everything in order."""
        for mop in (lambda _: None, Training.mop_up):
            for training in self.trainings:
                mop(training)
            await self._until(lambda: all(training.quiet for training in self.trainings))
        await self._until(lambda: not self.watch.open and self.watch.silent_us() > SILENCE_US)
        self.ending = True
        for role in (self.streams, self.schedulers):
            mains = role.stop()
            if mains:
                await asyncio.wait(mains)
        await asyncio.sleep(SESSION_US / 1e6 + 1)  # what was paused has woken up, what is dead is noticed
        sinks = [sink for sink in self.sinks.sinks if not sink.life.dead]
        for sink in sinks:
            sink.drain = True
        await self._until(lambda: all(sink.done or sink.life.dead for sink in sinks))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.2)

    def run(self, planted: AbstractContextManager[None] | None = None) -> None:
        """Plays to the end, with a bug planted perhaps. Raises Stuck if it does not come to one."""
        with replaced(self), quiet(), planted or contextlib.nullcontext():
            asyncio.set_event_loop(None)
            try:
                self.loop.run_until_complete(self.play())
            finally:
                lay_to_rest(self.lives)
                self.loop.close()
