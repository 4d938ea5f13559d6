"""The disk tier: what is on disk while the broker is away, and that all of it comes back, once, in order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from driftline.clock import ManualClock
from driftline.errors import Unavailable
from driftline.producers import spool as spool_module
from driftline.producers import spool_format
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes
from driftline.producers.delivery import RETRY_US, SILENCE_US, Delivery
from driftline.producers.memory_disk import MemoryDisk
from driftline.producers.recovery import Broker, Recovery
from driftline.producers.spool import AGAIN_US, Spool
from driftline.producers.spool_format import Header
from driftline.producers.transport import MemoryTransport

BROKER = Broker("k1:9092", "x.", "host")


class Rig:
    """One process of a run: outbox, spool, delivery and recovery over a disk and a transport in memory."""

    def __init__(
        self,
        disk: MemoryDisk,
        *,
        process: str = "p0",
        run: str = "run",
        clock: ManualClock | None = None,
        broker: Broker = BROKER,
        **spool: Any,
    ) -> None:
        self.clock = clock or ManualClock(now_us=1)
        self.disk, self.way = disk, MemoryTransport()
        self.counters, self.notes = Counters(), Notes()
        header = Header(
            run=run, process=process, host=broker.host, bootstrap=broker.bootstrap, prefix=broker.prefix
        )
        limits = {"limit_bytes": 1 << 30, "reserve_bytes": 1 << 20} | spool
        shared: Any = {"counters": self.counters, "notes": self.notes, "clock": self.clock}
        self.spool = Spool(disk, header, **limits, **shared)
        self.outbox = Outbox(limit_bytes=1 << 20, spool=self.spool)
        self.delivery = Delivery(self.outbox, self.way, notify=lambda: None, **shared)
        self.recovery = Recovery(disk, self.delivery, run=run, broker=broker, **shared)

    def put(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            payload = f"{self.outbox.next_seq}:".encode().ljust(size, b".")
            if not self.outbox.put(payload, samples=1):
                self.counters.add("dropped_buffer", 1)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.delivery.pump(1000)
            self.recovery.round()
            self.clock.advance(RETRY_US)

    def die(self) -> None:
        self.disk.die()

    def end(self) -> None:
        self.recovery.close()
        self.counters.add("dropped_end", self.outbox.close())
        self.counters.add("samples_spooled", self.outbox.spooled_samples)

    @property
    def arrived(self) -> list[int]:
        """Numbers as they are in the payloads."""
        return [int(payload.partition(b":")[0]) for _, payload in self.way.log]


def first(seqs: list[int]) -> list[int]:
    return list(dict.fromkeys(seqs))


def on_disk(disk: MemoryDisk) -> list[int]:
    """Numbers of the records that anybody would find on the disk, and send."""
    return [
        entry.seq
        for folder in disk.names()
        for data in disk.faults.folders[folder].values()
        for entry in spool_format.read(bytes(data)).entries
    ]


def test_nothing_touches_the_disk_while_the_broker_is_well() -> None:
    disk = MemoryDisk()
    disk.faults.broken = disk.faults.unreadable = True
    rig = Rig(disk)
    for _ in range(20):
        rig.put(5)
        rig.turn()
    assert rig.arrived == list(range(100))
    assert rig.counters["spool_errors"] == 0


def test_what_was_framed_while_the_broker_was_away_is_on_disk_at_once() -> None:
    """kill -9 after any record loses none: each is handed to the kernel before the next is framed."""
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(3)
    rig.turn()
    for _ in range(10):
        rig.put(1)
        assert on_disk(disk) == list(range(rig.outbox.next_seq))
    assert rig.outbox.size_bytes == 0


def test_a_broker_that_acknowledges_nothing_for_a_second_is_away() -> None:
    """A frozen broker takes records and says nothing: what it was given is on disk as well."""
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.put(1)
    rig.turn()
    rig.way.silent = True
    rig.put(3)
    rig.delivery.pump(1000)
    assert on_disk(disk) == []
    rig.clock.advance(SILENCE_US)
    rig.delivery.pump(1000)
    rig.put(2)
    assert on_disk(disk) == [1, 2, 3, 4, 5]


def test_the_spool_is_sent_in_order_before_what_came_later_and_goes_away() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(50)
    rig.turn(2)
    rig.put(50)
    rig.way.away = False
    rig.turn()
    rig.put(5)
    rig.turn()
    assert rig.arrived == list(range(105))
    assert disk.names() == []
    assert len(rig.outbox) == rig.outbox.samples == rig.outbox.in_flight_bytes == 0
    rig.put(5)
    assert rig.outbox.size_bytes > 0, "a broker that is well gets records from memory again"


def test_while_the_backlog_is_sent_new_records_go_to_disk_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle of a long catch-up loses none of them."""
    monkeypatch.setattr("driftline.producers.delivery.IN_FLIGHT_BYTES", 200)
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(30, size=100)
    rig.turn()
    rig.way.away = False
    for _ in range(5):
        rig.turn()
        rig.put(1, size=100)
        assert rig.arrived
        assert set(on_disk(disk)) >= set(range(rig.outbox.next_seq)) - set(rig.arrived)


def test_each_outage_of_a_process_has_a_spool_of_its_own() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    for _ in range(3):
        rig.way.away = True
        rig.put(2)
        rig.turn(2)
        assert len(disk.names()) == 1
        rig.way.away = False
        rig.turn(2)
        assert disk.names() == []
    assert first(rig.arrived) == list(range(6))


def test_memory_that_is_half_full_goes_to_disk_though_the_broker_answers() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.put(20, size=100_000)
    assert rig.counters["dropped_buffer"] == 0
    assert rig.outbox.size_bytes < 1 << 20
    rig.turn(5)
    assert rig.arrived == list(range(20))
    assert disk.names() == []


def test_segments_are_deleted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disk is given back while the rest is still being sent."""
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr("driftline.producers.delivery.IN_FLIGHT_BYTES", 1000)
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(1)
    rig.turn()
    rig.put(40, size=400)
    (folder,) = disk.names()
    sizes = [len(disk.faults.folders[folder])]
    rig.way.away = False
    while disk.names():
        rig.turn()
        sizes.append(len(disk.faults.folders.get(folder, ())))
    assert sizes[0] > 8
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 4
    assert rig.arrived == list(range(41))


def test_a_full_disk_falls_back_to_memory_then_drops_and_goes_on_when_there_is_room() -> None:
    """Case 39 in the spool: no hole in the numbers, all counted."""
    disk = MemoryDisk()
    rig = Rig(disk, reserve_bytes=0)
    rig.way.away = True
    rig.put(1)
    rig.turn()
    disk.faults.space_bytes = 50_000
    rig.put(1300, size=1000)
    dropped = rig.counters["dropped_buffer"]
    assert 0 < dropped < 400
    assert rig.counters["spool_errors"] >= 1
    disk.faults.space_bytes = 1 << 30
    rig.clock.advance(AGAIN_US)
    rig.put(10, size=1000)
    assert rig.counters["dropped_buffer"] == dropped
    assert rig.outbox.size_bytes == 0
    assert on_disk(disk) == list(range(1301 - dropped + 10))
    rig.way.away = False
    rig.turn(3)
    assert first(rig.arrived) == list(range(1301 - dropped + 10))


def test_free_space_is_left_on_the_disk() -> None:
    disk = MemoryDisk()
    rig = Rig(disk, reserve_bytes=40_000)
    disk.faults.space_bytes = 60_000
    rig.way.away = True
    rig.put(1)
    rig.turn()
    rig.put(100, size=1000)
    assert disk.free_bytes() >= 40_000
    assert rig.counters["spool_errors"] == 0
    assert rig.outbox.samples == 101
    assert rig.outbox.spooled_samples < 25


def test_the_spool_keeps_its_bound() -> None:
    disk = MemoryDisk()
    rig = Rig(disk, limit_bytes=30_000)
    rig.way.away = True
    rig.put(1)
    rig.turn()
    rig.put(100, size=1000)
    assert sum(len(data) for files in disk.faults.folders.values() for data in files.values()) <= 30_000
    assert rig.outbox.samples == 101


@pytest.mark.parametrize("torn", [0, 1, 20, 40, 500])
def test_a_write_that_fails_in_the_middle_leaves_no_hole(torn: int) -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(2, size=300)
    rig.turn()
    disk.faults.tear = torn
    rig.put(1, size=600)
    rig.clock.advance(AGAIN_US)
    rig.put(2, size=300)
    assert on_disk(disk) == [0, 1, 2, 3, 4]
    for folder in disk.names():
        for data in disk.faults.folders[folder].values():
            assert not spool_format.read(bytes(data)).damages
    rig.way.away = False
    rig.turn(2)
    assert rig.arrived == [0, 1, 2, 3, 4]


def test_after_a_torn_write_that_cannot_be_cut_off_a_new_segment_begins() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(2, size=300)
    rig.turn()

    def refuse(what: str, folder: str, file: str) -> None:
        if what == "truncate":
            raise OSError("no")

    disk.faults.before, disk.faults.tear = refuse, 40
    rig.put(1, size=600)
    rig.clock.advance(AGAIN_US)
    rig.put(2, size=300)
    assert on_disk(disk) == [0, 1, 2, 3, 4]
    assert sum(map(len, disk.faults.folders.values())) == 2
    rig.way.away = False
    rig.turn(2)
    assert rig.arrived == [0, 1, 2, 3, 4]
    assert disk.names() == []


def test_what_the_broker_had_of_a_segment_is_not_sent_again_by_the_next_process() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(10)
    rig.turn()
    for seq in range(6):
        rig.outbox.acknowledge(seq)
    rig.end()
    assert on_disk(disk) == [6, 7, 8, 9]
    assert rig.counters["samples_spooled"] == 4


def test_a_disk_that_was_taken_away_holds_up_live_records_for_a_minute_at_most() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(5)
    rig.turn()
    rig.way.away = False
    disk.faults.unreadable = True
    rig.put(1)
    rig.turn(80)
    rig.clock.advance(AGAIN_US)
    rig.put(1)
    rig.turn(20)
    assert rig.counters["dropped_spool"] == 6
    disk.faults.unreadable = False
    rig.put(1)
    rig.turn(20)
    assert rig.arrived[-1] == 7


def test_a_disk_that_cannot_be_written_leaves_samples_in_memory_and_is_named_once() -> None:
    disk = MemoryDisk()
    disk.faults.broken = True
    rig = Rig(disk)
    rig.way.away = True
    rig.put(3)
    rig.turn(5)
    assert rig.outbox.samples == 3
    assert len([note for note in rig.notes._waiting if "cannot be written" in note]) == 1
    rig.way.away = False
    rig.turn(2)
    assert rig.arrived == [0, 1, 2]


def test_a_disk_that_cannot_be_read_for_a_while_loses_nothing() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(5)
    rig.turn()
    rig.way.away = False
    disk.faults.unreadable = True
    rig.turn(3)
    assert rig.arrived == []
    with pytest.raises(Unavailable):
        rig.outbox.next()
    disk.faults.unreadable = False
    rig.turn(20)
    assert first(rig.arrived) == [0, 1, 2, 3, 4]
    assert disk.names() == []


def test_a_record_that_comes_back_damaged_is_counted_and_the_others_arrive() -> None:
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(5, size=100)
    rig.turn()
    ((_, files),) = disk.faults.folders.items()
    ((_, data),) = files.items()
    data[data.index(b"2:...") + 50] ^= 1
    rig.way.away = False
    rig.turn(2)
    assert rig.arrived == [0, 1, 3, 4]
    assert rig.counters["dropped_spool"] == 1
    assert disk.names() == []


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_every_sample_is_accounted_for_and_arrives_in_order(seed: int) -> None:
    """logged = delivered + dropped + spooled; a next process sends what is spooled; nothing is lost."""
    chance = random.Random(seed)
    disk = MemoryDisk()
    rig = Rig(disk, limit_bytes=chance.choice([20_000, 1 << 20]), reserve_bytes=0)
    made = 0
    for _ in range(60):
        many = chance.randrange(8)
        rig.put(many, size=chance.choice([0, 2000]))
        made += many
        rig.way.away = chance.random() < 0.4
        rig.way.silent = not rig.way.away and chance.random() < 0.2
        if chance.random() < 0.1:
            rig.way.fail_seqs[chance.randrange(rig.outbox.next_seq + 2)] = 1
        disk.faults.space_bytes = chance.choice([5_000, 1 << 30])
        disk.faults.tear = chance.choice([None, None, 7])
        disk.faults.unreadable = chance.random() < 0.1
        rig.turn()
        if rig.way.silent:
            rig.way.silent, rig.way.away = False, True
            rig.put(1)
            made += 1
            rig.turn()
    disk.faults.tear, disk.faults.unreadable, disk.faults.space_bytes = None, False, 1 << 30
    rig.clock.advance(AGAIN_US)
    rig.end()
    counts = rig.counters
    ends = ("samples_delivered", "samples_spooled", "dropped_buffer", "dropped_end", "dropped_spool")
    assert sum(counts[name] for name in ends) == made
    assert counts["dropped_spool"] == 0
    rig.die()
    later = Rig(disk.another_process(), process="p1", clock=rig.clock)
    later.turn(4)  # nothing of its own to say: no connection, no look
    later.put(1)
    later.turn(20)
    found = rig.arrived + later.arrived[1:]
    assert first(found) == list(range(rig.outbox.next_seq))[: len(first(found))]
    assert len(first(found)) == counts["samples_delivered"] + counts["samples_spooled"]
    assert later.counters["spool_recovered"] == counts["samples_spooled"]
    assert disk.names() == []


def test_what_a_kill_left_of_a_spool_that_was_sent_is_swept_away() -> None:
    """Killed between the deletion of its last segment and the removal of the folder (found by tests/sim)."""
    disk = MemoryDisk()
    rig = Rig(disk)
    rig.way.away = True
    rig.put(2)
    rig.turn()
    rig.way.away = False

    def killed(what: str, folder: str, file: str) -> None:
        if what == "remove":
            raise KeyboardInterrupt

    disk.faults.before = killed
    with pytest.raises(KeyboardInterrupt):
        rig.turn(5)
    disk.faults.before = lambda what, folder, file: None
    rig.die()
    assert [len(files) for files in disk.faults.folders.values()] == [0]
    heir = Rig(disk.another_process(), process="p1")
    heir.put(1)
    heir.turn(3)
    assert disk.names() == []
