"""One seed, one run: all parts of Driftline and everything that goes wrong with them, then rest, then
checks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from driftline import events, records
from driftline.config import PipelineConfig, SchedulerConfig, Triggers, WindowSpec
from driftline.connection import KafkaSettings
from driftline.producers.disk import MemoryDisk
from driftline.producers.recovery import header_of
from driftline.settings import SdkSettings, Settings, StorageSettings, StreamsSettings
from driftline.storage.core import Gap
from driftline.storage.memory_lake import MemoryRoot
from driftline.storage.store import App
from driftline.storage.tables import FEEDS

from . import bounds, workers
from .broker import Broker, Stored, Topic
from .clockwork import LIFE, Life, SimClock, VirtualLoop, lay_to_rest
from .evaluators import FakeEvaluator
from .faults import Chance, Faults, Trace
from .groups import Group
from .sinks import SESSION_US, SinkGroup
from .trainers import SimBell, Training

RUNS = ("run-a", "run-b", "run-4")
PARTITIONS = 2
TRAINING_US = 60_000_000
ROOMY = 1 << 40
"""Bytes of a disk that is not full."""
SILENCE_US = 12_000_000
"""After so long without a record that says something, nothing is left to do."""
REST_US = 240_000_000
"""Everything must come to rest within this virtual time after the last fault."""


def settings_of(seed: int) -> Settings:
    """Small windows and short times, so that a minute holds a whole life; some drawn by the seed."""
    chance = Chance(seed, "settings")
    suites = [events.SuiteRef(name=name, target="sim:suite") for name in ("small", "large")]
    return Settings(
        kafka=KafkaSettings(bootstrap="sim", partitions=PARTITIONS),
        sdk=SdkSettings(
            flush_us=chance.choice((200_000, 500_000)),
            frame_samples=chance.choice((6, 50)),
            heartbeat_us=300_000,
            exit_us=3_000_000,
            buffer_bytes=chance.choice((20_000, 200_000)),
            spool_bytes=chance.choice((0, 20_000, 1_000_000)),
            spool_reserve_bytes=0,
            protect_bytes=0,  # its checkpoints have no files
            queue_samples=200,
            system=(),
        ),
        streams=StreamsSettings(
            snapshot_us=chance.choice((500_000, 1_500_000, 4_000_000)),
            batch_records=chance.choice((20, 100, 500)),
            batch_wait_us=chance.choice((20_000, 200_000)),
        ),
        storage=StorageSettings(commit_us=chance.choice((500_000, 2_000_000))),
        pipeline=PipelineConfig(
            windows=[WindowSpec("time", 10_000_000, 5_000_000), WindowSpec("step", 20, 10)],
            per_rank=["loss"] if chance.hit(0.3) else [],
            triggers=Triggers(steps=chance.choice((10, 25)), at_start=chance.hit(0.5)),
            suites=suites[: chance.randrange(1, 3)],
            allowed_lateness_us=chance.choice((1_000_000, 2_000_000)),
            idle_us=8_000_000,
            expire_us=40_000_000,
            hole_us=6_000_000,
            start_grace_us=10_000_000,
        ),
        scheduler=SchedulerConfig(
            lease_us=6_000_000, present_us=4_000_000, starve_us=20_000_000, hole_us=6_000_000, retries=2
        ),
    )


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
        self._groups: dict[str, Group] = {}
        self._clocks: dict[str, SimClock] = {}
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
        self.damaged: set[str] = set()
        """Processes whose spools were damaged after their end."""
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
        clock = self._clocks.get(life.name)
        if clock is None:
            clock = self._clocks[life.name] = SimClock(self.loop)
            if self.faults.hit("clock skew", life.name):
                clock.skew_us = self.faults.chance("clock skew").randrange(-10_000_000, 10_000_000)
        return clock

    def group(self, name: str, topic: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(self, name, topic)
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
        end_us = self.loop.now_us + self._training_us
        while self.loop.now_us < end_us or self.broker.count < self._least_records:
            await asyncio.sleep(0.5)
            self._mischief()
        self._heal()
        await self._rest()

    def _coordinate(self) -> None:
        """The groups take those off their lists that were not heard of."""
        for group in self._groups.values():
            group.expire()
        self.sinks.expire()
        if self.chance("compaction").hit(0.1):
            for log in self.broker.topics[self.settings.kafka.topics["state"]].logs:
                log.compact()
        self.broken_bounds.update(bounds.broken(self))
        self.soon(500_000, self._coordinate)

    def _mischief(self) -> None:
        """Faults that no process brings about by itself; each has its opportunity twice a second."""
        faults = self.faults
        if not self.broker.away and faults.hit("broker away"):
            self.broker.leave()
            self.soon(faults.chance("broker away").randrange(500_000, 8_000_000), self.broker.come_back)
        if faults.hit("broker clock jump"):
            self.broker.clock_ahead_us += faults.chance("broker clock jump").randrange(-3_000_000, 3_000_000)
        for group in self._groups.values():
            if faults.hit("partition moved", group.name):
                group.deal()
        if faults.hit("second sink"):
            intruder = self.sinks.intruder()
            self.soon(faults.chance("second sink").randrange(1_000_000, 6_000_000), intruder.life.kill)
        if not self.sink_disk_full and faults.hit("sink disk full"):
            self.sink_disk_full = True
            self.soon(faults.chance("sink disk full").randrange(500_000, 5_000_000), self._sink_disk_free)
        shared = self.disk.faults
        if shared.space_bytes == ROOMY and faults.hit("spool disk full"):
            shared.space_bytes = (
                ROOMY - shared.free_bytes() + faults.chance("spool disk full").randrange(2_000)
            )
            self.soon(faults.chance("spool disk full").randrange(500_000, 5_000_000), self._spool_disk_free)
        for role in (self.streams, self.schedulers):
            if faults.hit("worker paused", role.role):
                self._pause(faults.chance("worker paused"), role.lives, 4_000_000, 12_000_000)
        if faults.hit("hole in the ticks"):
            for life in self.streams.lives:
                self._pause(faults.chance("hole in the ticks"), [life], 10_000_000, 10_000_001)
        for training in self.trainings:
            if training.ranks and faults.hit("rank restarted", training.run):
                faults.chance("rank restarted").choice(training.ranks).life.kill()
            if training.ranks and faults.hit("world size changed", training.run):
                training.relaunch(faults.chance("world size changed").randrange(1, 5))
        if self._clocks and faults.hit("clock jump"):
            which = faults.chance("clock jump").choice(sorted(self._clocks))
            self._clocks[which].skew_us += faults.chance("clock jump").randrange(-60_000_000, 60_000_000)
        if faults.hit("log cut"):
            self._cut_logs()
        if faults.hit("topic made again"):
            self._make_again()
        if faults.hit("spool damaged"):
            self._damage_a_spool()
        if faults.hit("poison"):
            value = faults.chance("poison").choice((b"\xff\xff\xff\xffbroken", b"{", b"", b'{"kind":"tick"}'))
            topic = self.settings.kafka.topics[faults.chance("poison").choice(("telemetry", "evals"))]
            self.broker.append(topic, 0, None, value, "poison")

    def _pause(self, chance: Chance, lives: list[Life], least_us: int, most_us: int) -> None:
        alive = [life for life in lives if not life.dead and not life.paused]
        if alive:
            life = chance.choice(alive)
            life.pause()
            self.trace.add("paused", life.name)
            self.soon(chance.randrange(least_us, most_us), life.resume)

    def _sink_disk_free(self) -> None:
        self.sink_disk_full = False

    def _cut_logs(self) -> None:
        """Retention, of all that a snapshot has passed and the sinks have stored: nobody must miss it, nor a
        zombie whose state is older than the newest snapshot."""
        topic = self.broker.topics[self.settings.kafka.topics["telemetry"]]
        for partition, log in enumerate(topic.logs):
            app = App.id(topic.uuid, partition)
            stored = min(self.tables.version(name, app) for name in FEEDS["telemetry"]) + 1
            log.cut(min(stored, self.watch.snapshots.get((topic.uuid, partition), 0)))

    def _make_again(self) -> None:
        """Telemetry is deleted and made again; what no sink had stored by then may be lost."""
        topic = self.broker.topics[self.settings.kafka.topics["telemetry"]]
        for partition, log in enumerate(topic.logs):
            app = App.id(topic.uuid, partition)
            stored = min(self.tables.version(name, app) for name in FEEDS["telemetry"])
            self.lost[topic.uuid, partition] = range(stored + 1, log.end)
        self.broker.make_again("telemetry")

    def _damage_a_spool(self) -> None:
        """A file of a dead process is changed in one byte, or gone."""
        chance, disk = self.faults.chance("spool damaged"), self.disk
        found = [name for name in disk.names() if not disk.owned(name) and disk.faults.folders[name]]
        if not found:
            return
        name = chance.choice(found)
        files = disk.faults.folders[name]
        file = chance.choice(sorted(files))
        if (header := header_of(disk.look(name))) is not None:
            self.damaged.add(header.process)
        if chance.hit(0.3) or not files[file]:
            del files[file]
        else:
            at = chance.randrange(len(files[file]))
            files[file][at] ^= 1 << chance.randrange(8)

    def _spool_disk_free(self) -> None:
        self.disk.faults.space_bytes = ROOMY

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


class Watch:
    """Looks at what is appended, to tell when nothing is left to do."""

    _RESTLESS = (b'"kind":"tick"', b'"kind":"evaluator_present"')

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._last_us = 0
        self.open: set[tuple[str, str]] = set()
        """Requests of runs without an answer."""
        self._answered: set[tuple[str, str]] = set()
        self.snapshots: dict[tuple[str, int], int] = {}
        """Offset of the highest snapshot, by topic UUID and partition."""
        world.broker.appended.append(self._appended)

    def silent_us(self) -> int:
        """Since something other than the passing of time was written."""
        return self._loop.now_us - self._last_us

    def _appended(self, topic: Topic, _partition: int, record: Stored) -> None:
        if topic.name == "state" and record.value is not None and (record.key or b"").endswith(b"/manifest"):
            _, uuid, partition, offset, *_ = (record.key or b"").decode().split("/")
            where = uuid, int(partition)
            self.snapshots[where] = max(self.snapshots.get(where, 0), int(offset))
        head = (record.value or b"")[:48]
        if topic.name == "state" or any(kind in head for kind in self._RESTLESS):
            return
        self._last_us = self._loop.now_us
        if b'"kind":"eval_requested"' in head or b'"kind":"eval_accepted"' in head:
            event = records.decode(record.value)
            if isinstance(event, events.EvalRequested):
                self.open |= {(event.request, event.run)} - self._answered
            elif isinstance(event, events.EvalAccepted):
                self._answered.add((event.request, event.run))
                self.open.discard((event.request, event.run))


@contextlib.contextmanager
def replaced(world: World) -> Iterator[None]:
    """The outermost edges of the product, replaced by the world's."""
    known: dict[bytes | None, Any] = {}
    decode = records.decode

    def decode_once(value: bytes | None) -> Any:
        found = known.get(value)
        if found is None:
            found = known[value] = decode(value)
        return found

    edges = {
        **workers.REPLACED,
        "driftline.producers.worker.Bell": SimBell,
        "driftline.producers.recovery.LOOK_US": 5_000_000,
        "driftline.producers.worker.checkpoint.describe": _describe,
        "driftline.producers.run._time_ns": lambda: world.trainer_ns or world.loop.now_us * 1000,
        "driftline.records.decode": decode_once,
    }
    before = []
    for path, value in edges.items():
        owner, name = _owner(path)
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _owner(path: str) -> tuple[Any, str]:
    head, _, name = path.rpartition(".")
    try:
        return importlib.import_module(head), name
    except ModuleNotFoundError:
        owner, last = _owner(head)
        return getattr(owner, last), name


def _describe(path: str, *, step: int | None, epoch: float | None, format: str | None) -> Any:  # noqa: A002
    """A checkpoint without files; runs that start again save the same weights at the same step."""
    return events.Checkpoint(digest=f"weights-{step}", uri=path, step=step, epoch=epoch)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the product's log lines, and without a garbage collection at a random moment."""
    logger = logging.getLogger("driftline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(level)
        if collecting:
            gc.enable()
