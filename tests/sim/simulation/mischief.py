"""Faults that no process brings about by itself; each has its opportunity twice a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftline.producers.recovery import header_of
from driftline.storage.store import App
from driftline.storage.tables import FEEDS

from .clockwork import Life
from .faults import Chance

if TYPE_CHECKING:
    from .world import World

ROOMY = 1 << 40
"""Bytes of a disk that is not full."""
POISON = (b"\xff\xff\xff\xffbroken", b"{", b"", b'{"kind":"tick"}')
"""Records that nobody can decode."""


class Mischief:
    """What befalls the parts of one world from outside."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults = world.faults

    def turn(self) -> None:
        """One opportunity for each fault."""
        self._befall_broker()
        self._befall_disks()
        self._befall_processes()
        self._befall_logs()

    # --- broker and groups ------------------------------------------------------------------------------

    def _befall_broker(self) -> None:
        world, faults = self._world, self._faults
        if not world.broker.away and faults.hit("broker away"):
            world.broker.leave()
            world.soon(faults.chance("broker away").randrange(500_000, 8_000_000), world.broker.come_back)
        if faults.hit("broker clock jump"):
            world.broker.clock_ahead_us += faults.chance("broker clock jump").randrange(-3_000_000, 3_000_000)
        for group in world.groups.values():
            if faults.hit("partition moved", group.name):
                group.deal()

    # --- processes --------------------------------------------------------------------------------------

    def _befall_processes(self) -> None:
        world, faults = self._world, self._faults
        if faults.hit("second sink"):
            intruder = world.sinks.intruder()
            world.soon(faults.chance("second sink").randrange(1_000_000, 6_000_000), intruder.life.kill)
        for role in (world.streams, world.schedulers):
            if faults.hit("worker paused", role.role):
                self._pause(faults.chance("worker paused"), role.lives, 4_000_000, 12_000_000)
        if faults.hit("hole in the ticks"):
            for life in world.streams.lives:
                self._pause(faults.chance("hole in the ticks"), [life], 10_000_000, 10_000_001)
        for training in world.trainings:
            if training.ranks and faults.hit("rank restarted", training.run):
                faults.chance("rank restarted").choice(training.ranks).life.kill()
            if training.ranks and faults.hit("world size changed", training.run):
                training.relaunch(faults.chance("world size changed").randrange(1, 5))
        if world.clocks and faults.hit("clock jump"):
            which = faults.chance("clock jump").choice(sorted(world.clocks))
            world.clocks[which].skew_us += faults.chance("clock jump").randrange(-60_000_000, 60_000_000)

    def _pause(self, chance: Chance, lives: list[Life], least_us: int, most_us: int) -> None:
        alive = [life for life in lives if not life.dead and not life.paused]
        if alive:
            life = chance.choice(alive)
            life.pause()
            self._world.trace.add("paused", life.name)
            self._world.soon(chance.randrange(least_us, most_us), life.resume)

    # --- logs -------------------------------------------------------------------------------------------

    def _befall_logs(self) -> None:
        world, faults = self._world, self._faults
        if faults.hit("log cut"):
            self._cut_logs()
        if faults.hit("topic made again"):
            self._make_again()
        if faults.hit("poison"):
            value = faults.chance("poison").choice(POISON)
            topic = world.settings.kafka.topics[faults.chance("poison").choice(("telemetry", "evals"))]
            world.broker.append(topic, 0, None, value, "poison")

    def _cut_logs(self) -> None:
        """Retention, of all that a snapshot has passed and the sinks have stored: nobody must miss it, nor a
        zombie whose state is older than the newest snapshot."""
        world = self._world
        topic = world.broker.topics[world.settings.kafka.topics["telemetry"]]
        for partition, log in enumerate(topic.logs):
            log.cut(min(self._stored(partition) + 1, world.watch.snapshots.get((topic.uuid, partition), 0)))

    def _make_again(self) -> None:
        """Telemetry is deleted and made again; what no sink had stored by then may be lost."""
        world = self._world
        topic = world.broker.topics[world.settings.kafka.topics["telemetry"]]
        for partition, log in enumerate(topic.logs):
            world.lost[topic.uuid, partition] = range(self._stored(partition) + 1, log.end)
        world.broker.make_again("telemetry")

    def _stored(self, partition: int) -> int:
        """The last offset of telemetry that every table has."""
        world = self._world
        app = App.id(world.broker.topics[world.settings.kafka.topics["telemetry"]].uuid, partition)
        return min(world.tables.version(name, app) for name in FEEDS["telemetry"])

    # --- disks ------------------------------------------------------------------------------------------

    def _befall_disks(self) -> None:
        world, faults = self._world, self._faults
        if not world.sink_disk_full and faults.hit("sink disk full"):
            world.sink_disk_full = True
            world.soon(faults.chance("sink disk full").randrange(500_000, 5_000_000), self._sink_disk_free)
        shared = world.disk.faults
        if shared.space_bytes == ROOMY and faults.hit("spool disk full"):
            left = faults.chance("spool disk full").randrange(2_000)
            shared.space_bytes = ROOMY - shared.free_bytes() + left
            world.soon(faults.chance("spool disk full").randrange(500_000, 5_000_000), self._spool_disk_free)
        if faults.hit("spool damaged"):
            self._damage_a_spool()

    def _sink_disk_free(self) -> None:
        self._world.sink_disk_full = False

    def _spool_disk_free(self) -> None:
        self._world.disk.faults.space_bytes = ROOMY

    def _damage_a_spool(self) -> None:
        """A file of a dead process is changed in one byte, or gone."""
        chance, disk = self._faults.chance("spool damaged"), self._world.disk
        found = [name for name in disk.names() if not disk.owned(name) and disk.faults.folders[name]]
        if not found:
            return
        name = chance.choice(found)
        files = disk.faults.folders[name]
        file = chance.choice(sorted(files))
        if (header := header_of(disk.look(name))) is not None:
            self._world.damaged.add(header.process)
        if chance.hit(0.3) or not files[file]:
            del files[file]
        else:
            at = chance.randrange(len(files[file]))
            files[file][at] ^= 1 << chance.randrange(8)
