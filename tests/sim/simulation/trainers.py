"""Training runs: ranks with the real SDK (``Run``, ``Worker``, framer, outbox, delivery) on virtual threads.

A rank logs, and its SDK thread takes a round, in one callback of its life. Every sample that a rank logs is
noted (``Rank.logged``), so that the checkers can say of each what became of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftline import events
from driftline.errors import Unavailable
from driftline.identity import Identity
from driftline.producers import worker as sdk
from driftline.producers.birth import Birth
from driftline.producers.run import Run
from driftline.producers.spool_format import run_part
from driftline.producers.transport import Outcome
from driftline.topics import partition_of

from .broker import Stored
from .clients import Port
from .clockwork import LIFE, Life, SimClock
from .samples import Sample, spooled

if TYPE_CHECKING:
    from .world import World

METRICS = ("loss", "grad_norm", "tokens", "learning_rate")


class SimTransport:
    """The SDK's way to the broker in memory."""

    def __init__(self, world: World, life: Life, run: str) -> None:
        self._world, self._life = world, life
        self._topic = world.settings.kafka.topics["telemetry"]
        self._partition = partition_of(run, world.broker.partitions)
        self._key = run.encode()
        self._port: Port | None = None
        self._broken = False
        self._outcomes: deque[Outcome] = deque()
        self._notify: Callable[[], None] = lambda: None

    def open(self, *, timeout_us: int, notify: Callable[[], None]) -> None:
        if self._world.broker.away:
            self._world.loop.block(min(timeout_us, 50_000))
            raise Unavailable("the broker is away")
        self._port, self._broken, self._notify = Port(self._world, self._life, own_thread=True), False, notify
        self._outcomes = deque()

    def send(self, seq: int, payload: bytes) -> None:
        port = self._port
        if port is None:
            raise Unavailable("not connected")
        outcomes = self._outcomes

        def done(record: Stored | None) -> None:
            lost = record is None or self._port is not port or self._broken
            outcomes.append(Outcome(seq, "connection lost" if lost else None))
            self._notify()

        port.send(self._topic, self._partition, self._key, payload, done)
        if self._world.faults.hit("connection lost", self._life.name):
            self._broken = True
            if self._world.faults.chance("connection lost").hit(0.5):
                port.fail(self._topic, self._partition)

    def outcomes(self) -> list[Outcome]:
        found = list(self._outcomes)
        self._outcomes.clear()
        return found

    def remarks(self) -> list[str]:
        return []

    def close(self, *, timeout_us: int) -> None:
        port, self._port = self._port, None
        if port is not None:
            port.close()

    def forget(self) -> None:
        self._port = None

    def again(self) -> SimTransport:
        raise NotImplementedError("nobody forks in the simulation")


class SimBell:
    """In the place of the SDK thread's bell: waiting lets virtual time pass."""

    def ring(self) -> None: ...

    def wait(self, timeout_us: int) -> bool:
        life = LIFE.get()
        assert life is not None
        life.loop.block(timeout_us)
        return False


class Rank:
    """One SDK process of a run, from its start until it finishes or is killed."""

    def __init__(
        self, world: World, training: Training, rank: int | None, world_size: int | None, step: int
    ) -> None:
        self._world, self._training, self.rank = world, training, rank
        self.process = world.next_name("p")
        self.life = world.life(f"{training.run}/{rank}/{self.process}")
        self.disk = world.disk.another_process()
        self.clock: SimClock = world.clock_of(self.life)
        self.step = step
        self.done = False
        self.logged: list[Sample] = []
        self.refused = 0
        """Values that are no numbers."""
        self._silent_until_us = 0
        self._chance = world.chance(f"rank/{self.process}")
        settings = world.settings.sdk
        self.run = Run(Birth(self._identity(world_size), "sim", settings, world.settings.kafka))
        self.worker = sdk.Worker(
            queue=self.run._queue,
            drained=self.run._drained,
            started=events.ProcessStarted(
                run=training.run,
                process=self.process,
                seq=0,
                time_us=self.clock.now_us(),
                rank=rank,
                world_size=world_size,
                host="host",
            ),
            settings=settings,
            transport=SimTransport(world, self.life, training.run),
            counters=self.run._counters,
            notes=self.run._notes,
            clock=self.clock,
            broker="sim:9092",
            disk=self.disk,
        )
        self.run._worker = self.worker
        self.life.mourners += [self._note_what_is_left, self.disk.die, lambda: training.died(self)]
        self.life.later(self._chance.randrange(300_000), self._begin)

    def _identity(self, world_size: int | None) -> Identity:
        return Identity(
            run=self._training.run,
            run_source="argument",
            process=self.process,
            rank=self.rank,
            world_size=world_size,
            local_rank=None,
            host="host",
            role="trainer",
            restart_hint=None,
        )

    def _note_what_is_left(self) -> None:
        """It was killed: what it had on its disk must arrive all the same."""
        mine = [name for name, owner in self._world.disk.faults.owners.items() if owner is self.disk]
        for process, left in (spooled(self._world.disk, *mine) if mine else {}).items():
            self._world.left.setdefault(process, set()).update(left)

    def _begin(self) -> None:
        self.worker.begin()
        self._turn()

    def _turn(self) -> None:
        """Some training, and a round of the SDK's thread."""
        world, faults = self._world, self._world.faults
        if world.loop.now_us >= self._silent_until_us:
            self._train()
            if faults.hit("rank silent", self.life.name):
                self._silent_until_us = world.loop.now_us + self._chance.randrange(2_000_000, 15_000_000)
        self.worker._guarded(self.worker.round)
        if self._training.over or self.step >= self._training.steps:
            self._finish()
        else:
            self.life.later(self._chance.randrange(150_000, 700_000), self._turn)

    def _train(self) -> None:
        chance = self._chance
        if chance.hit(0.65):
            return  # nothing to log in this turn: a heartbeat, perhaps
        for _ in range(chance.randrange(1, 3)):
            self.step += 1
            values: dict[str, Any] = {
                name: chance.gauss(2.0, 0.2) for name in METRICS[: chance.randrange(1, len(METRICS) + 1)]
            }
            if chance.hit(0.01):
                values["loss"] = chance.choice((math.nan, math.inf, 1e9))
            step = None if chance.hit(0.05) else self.step
            weight = float(chance.randrange(1, 9)) if chance.hit(0.1) else None
            self._log(values, step, weight)
        if chance.hit(0.03):
            self.run.log({"note": "text is refused", "x": None}, self.step)
            self.refused += 2
        if self.rank == 0 and chance.hit(0.15):
            self.run.checkpoint(
                f"/ckpt/{self._training.run}/{self.step}", step=self.step, epoch=self.step / 40
            )
        if self.rank == 0 and self._world.faults.hit("rewind", self.life.name):
            self.step = max(0, self.step - chance.randrange(1, 20))
            self.run.rewind(self.step)

    def _log(self, values: dict[str, Any], step: int | None, weight: float | None) -> None:
        # No two samples of a process with the same metric, step and time: the ledger tells them apart.
        now_us = self._last_us = max(self.clock.now_us(), getattr(self, "_last_us", 0) + 1)
        self._world.trainer_ns = now_us * 1000
        self.run.log(values, step, weight)
        for metric, value in values.items():
            self.logged.append(
                Sample(self._training.run, self.process, metric, step, now_us, repr(value), weight or 1.0)
            )

    def _finish(self) -> None:
        """As ``Worker.run`` ends."""
        worker = self.worker
        deadline_us = self.clock.steady_us() + self._world.settings.sdk.exit_us
        self.run._closed, self.run._room = True, -1
        worker.end("finished", deadline_us=deadline_us)
        worker.conclude()
        self.done = True
        self.disk.die()
        self._world.trace.add("finished", self.life.name, self.run.counters())
        self.life.dead = True
        self._training.ended(self)


class Mop(Rank):
    """A later process of a run that logs nothing: it is there to send what dead ones left."""

    def __init__(self, world: World, training: Training) -> None:
        super().__init__(world, training, None, None, 0)
        self._patience = 40

    def _turn(self) -> None:
        self._patience -= 1
        self.worker._guarded(self.worker.round)
        if self._patience and any(name.startswith(run_part(self.run.id)) for name in self.disk.names()):
            self.life.later(500_000, self._turn)
        else:
            self._finish()


class Training:
    """One run: its ranks, their restarts, changes of the world size."""

    def __init__(self, world: World, run: str, ranks: int, steps: int) -> None:
        self._world = world
        self.run = run
        self.steps = steps
        self.over = False
        self.ranks: list[Rank] = []
        self.all: list[Rank] = []
        self._chance = world.chance(f"training/{run}")
        self._starting = 0
        self._launch(ranks, 0)

    def _launch(self, ranks: int, step: int) -> None:
        self._world_size = ranks
        self.ranks = [Rank(self._world, self, rank, ranks, step) for rank in range(ranks)]
        self.all += self.ranks

    def relaunch(self, ranks: int) -> None:
        """All ranks are killed, and as many as said start again from an earlier step."""
        step = max(0, max((rank.step for rank in self.ranks), default=0) - self._chance.randrange(1, 30))
        old, self.ranks = self.ranks, []
        for rank in old:
            rank.life.kill()
        self._soon(1_500_000, lambda: self._launch(ranks, step))

    def died(self, rank: Rank) -> None:
        """A rank was killed by itself: its successor takes its place in the same world."""
        if rank not in self.ranks:
            return
        self.ranks.remove(rank)

        def again() -> None:
            successor = Rank(self._world, self, rank.rank, self._world_size, max(0, rank.step - 5))
            self.ranks.append(successor)
            self.all.append(successor)

        self._soon(self._chance.randrange(300_000, 2_000_000), again)

    def _soon(self, delay_us: int, start: Callable[[], None]) -> None:
        self._starting += 1

        def begin() -> None:
            self._starting -= 1
            if not self.over:
                start()

        self._world.soon(delay_us, begin)

    def ended(self, rank: Rank) -> None:
        if rank in self.ranks:
            self.ranks.remove(rank)

    def mop_up(self) -> None:
        """Starts a process that sends the spools which are left."""
        mop = Mop(self._world, self)
        self.ranks.append(mop)
        self.all.append(mop)

    @property
    def quiet(self) -> bool:
        """Whether no rank lives or is about to start."""
        return not self.ranks and not self._starting
