"""What dead processes of a run left is sent by a live one: to the right broker, once, damage counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from driftline.clock import ManualClock
from driftline.producers import spool as spool_module
from driftline.producers import spool_format
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes
from driftline.producers.delivery import RETRY_US, Delivery
from driftline.producers.memory_disk import MemoryDisk
from driftline.producers.recovery import LOOK_US, STRANGER_US, Broker, Recovery, is_same_broker
from driftline.producers.spool import Spool
from driftline.producers.spool_format import Header
from driftline.producers.survey import survey
from driftline.producers.transport import MemoryTransport

HERE = Broker("k1:9092", "x.", "here")


def leave(
    disk: MemoryDisk, count: int, *, process: str = "dead", run: str = "run", at: Broker = HERE, size: int = 0
) -> None:
    """A process spools ``count`` records, numbered from 3 on, and is killed."""
    view = disk.another_process()
    header = Header(run=run, process=process, host=at.host, bootstrap=at.bootstrap, prefix=at.prefix)
    tools: Any = {"counters": Counters(), "notes": Notes(), "clock": ManualClock(now_us=1)}
    spool = Spool(view, header, limit_bytes=1 << 30, reserve_bytes=0, **tools)
    for seq in range(3, 3 + count):
        assert spool.append(seq, f"{process}{seq}:".encode().ljust(size, b"."), samples=10)
    view.die()


class Live:
    """A process of the run that is connected."""

    def __init__(self, disk: MemoryDisk, *, run: str = "run", broker: Broker = HERE) -> None:
        self.clock = ManualClock(now_us=STRANGER_US)
        self.way, self.disk = MemoryTransport(), disk.another_process()
        self.counters, self.notes = Counters(), Notes()
        tools: Any = {"counters": self.counters, "notes": self.notes, "clock": self.clock}
        self.outbox = Outbox(limit_bytes=1 << 20)
        self.delivery = Delivery(self.outbox, self.way, notify=lambda: None, **tools)
        self.recovery = Recovery(self.disk, self.delivery, run=run, broker=broker, **tools)
        self.outbox.put(b"live:", samples=1)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.delivery.pump(1000)
            self.recovery.round()
            self.clock.advance(RETRY_US)

    @property
    def arrived(self) -> list[str]:
        return [payload.partition(b":")[0].decode() for _, payload in self.way.log]


def left(process: str, count: int) -> list[str]:
    return [f"{process}{seq}" for seq in range(3, 3 + count)]


def test_it_is_sent_in_order_with_its_own_numbers_behind_what_is_live_and_goes_away() -> None:
    disk = MemoryDisk()
    leave(disk, 20)
    live = Live(disk)
    live.turn(5)
    assert live.arrived == ["live", *left("dead", 20)]
    assert live.counters["spool_recovered"] == 200
    assert live.counters["samples_delivered"] == 1
    assert disk.names() == []
    assert any("process dead" in note for note in live.notes._waiting)


def test_spools_of_several_dead_processes_are_sent_one_after_the_other() -> None:
    disk = MemoryDisk()
    for process in ("a", "b", "c"):
        leave(disk, 4, process=process)
    live = Live(disk)
    live.turn(12)
    assert sorted(live.arrived[1:]) == sorted(left("a", 4) + left("b", 4) + left("c", 4))
    for process in ("a", "b", "c"):
        assert [name for name in live.arrived if name.startswith(process)] == left(process, 4)
    assert disk.names() == []


def test_two_live_processes_never_send_the_same_spool() -> None:
    disk = MemoryDisk()
    for number in range(6):
        leave(disk, 3, process=f"d{number}-")
    one, two = Live(disk), Live(disk)
    for _ in range(20):
        one.turn()
        two.turn()
    assert len(one.arrived + two.arrived) == 2 + 18
    assert one.counters["spool_recovered"] + two.counters["spool_recovered"] == 180
    assert two.counters["spool_recovered"] > 0


def test_live_records_go_first_while_a_large_spool_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In flight at once is a bounded part of the spool, so a live record waits behind that only."""
    monkeypatch.setattr("driftline.producers.delivery.IN_FLIGHT_BYTES", 500)
    disk = MemoryDisk()
    leave(disk, 50, size=100)
    live = Live(disk)
    live.turn(3)
    assert len(live.arrived) < 30
    before = len(live.arrived)
    live.outbox.put(b"news:", samples=1)
    live.turn()
    assert live.arrived.index("news") <= before + 5
    live.turn(20)
    assert sorted(live.arrived) == sorted(["live", "news", *left("dead", 50)])


def test_a_spool_is_taken_segment_by_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds one of them at a time, and each is deleted as soon as the broker has it."""
    monkeypatch.setattr(spool_module, "SEGMENT_BYTES", 1000)
    disk = MemoryDisk()
    leave(disk, 30, size=200)
    live = Live(disk)
    counts = []
    for _ in range(20):
        live.turn()
        counts.append(sum(map(len, disk.faults.folders.values())))
    assert counts[0] > 5
    assert all(before - after <= 1 for before, after in itertools.pairwise(counts))
    assert live.arrived == ["live", *left("dead", 30)]
    assert disk.names() == []


def test_one_that_ends_in_the_middle_leaves_the_rest_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.producers.delivery.IN_FLIGHT_BYTES", 500)
    disk = MemoryDisk()
    leave(disk, 20, size=100)
    first = Live(disk)
    first.turn(3)
    assert 1 < len(first.arrived) < 15
    first.delivery.pump(1000)
    first.recovery.close()
    second = Live(disk)
    second.turn(20)
    assert first.arrived[1:] + second.arrived[1:] == left("dead", 20)
    assert disk.names() == []


def test_one_that_is_killed_in_the_middle_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.producers.delivery.IN_FLIGHT_BYTES", 500)
    disk = MemoryDisk()
    leave(disk, 20, size=100)
    first = Live(disk)
    first.turn(3)
    assert 1 < len(first.arrived) < 15
    first.disk.die()
    second = Live(disk)
    second.turn(20)
    assert second.arrived[1:] == left("dead", 20)


def test_failures_of_the_broker_do_not_change_the_order() -> None:
    disk = MemoryDisk()
    leave(disk, 20)
    live = Live(disk)
    live.turn()
    live.way.fail_seqs = {1 << 48 | 7: 2, 1 << 48 | 12: 1}
    live.turn(20)
    assert list(dict.fromkeys(live.arrived)) == ["live", *left("dead", 20)]
    assert disk.names() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda disk: leave(disk, 3, run="other"),
        lambda disk: leave(disk, 3, at=HERE._replace(prefix="y.")),
        lambda disk: leave(disk, 3, at=HERE._replace(bootstrap="k9:9092")),
    ],
    ids=["run", "prefix", "broker"],
)
def test_what_belongs_elsewhere_is_left_where_it_is(change: Callable[[MemoryDisk], None]) -> None:
    disk = MemoryDisk()
    change(disk)
    live = Live(disk)
    live.turn(5)
    assert live.arrived == ["live"]
    assert [spool.records for spool in survey(disk)] == [3]


def test_a_folder_that_says_it_is_of_another_run_is_left_where_it_is() -> None:
    """A name can be copied; what counts is written inside."""
    disk = MemoryDisk()
    leave(disk, 3, run="other")
    disk.faults.folders = {spool_format.folder_of("run", "dead", 1): disk.faults.folders.popitem()[1]}
    live = Live(disk)
    live.turn(5)
    assert live.arrived == ["live"]


@pytest.mark.parametrize(
    ("wrote", "now", "right"),
    [
        ("k1:9092", "k1:9092", True),
        ("k1:9092,k2:9092", "K2:9092, k3:9092", True),
        ("SASL_SSL://k1:9092", "k1:9092", True),
        ("k1:9092", "k1:9093", False),
        ("127.0.0.1:9092", "127.0.0.1:9092", True),
        ("", "", False),
    ],
)
def test_a_broker_is_the_same_by_a_server_in_common(wrote: str, now: str, right: bool) -> None:
    header = Header(run="r", process="p", host="here", bootstrap=wrote, prefix="x.")
    assert is_same_broker(header, Broker(now, "x.", "here")) == right


@pytest.mark.parametrize("server", ["127.0.0.1:9092", "localhost:9092", "[::1]:9092"])
def test_the_loopback_of_another_host_is_another_broker(server: str) -> None:
    header = Header(run="r", process="p", host="there", bootstrap=server, prefix="x.")
    assert not is_same_broker(header, Broker(server, "x.", "here"))


def test_a_spool_of_another_host_is_taken_only_when_it_was_untouched_for_long() -> None:
    """Where locks are not seen across hosts, its owner may live."""
    disk = MemoryDisk()
    leave(disk, 3, at=HERE._replace(host="there"))
    live = Live(disk)
    disk.faults.changed_us = {disk.names()[0]: live.clock.now_us()}
    live.turn(70)
    assert live.arrived == ["live"]
    live.clock.advance(STRANGER_US)
    live.turn(5)
    assert live.arrived == ["live", *left("dead", 3)]


def test_the_spool_of_a_process_that_dies_later_is_found_within_a_minute() -> None:
    disk = MemoryDisk()
    live = Live(disk)
    live.turn(3)
    leave(disk, 3)
    live.clock.advance(LOOK_US)
    live.turn(3)
    assert live.arrived == ["live", *left("dead", 3)]


def test_damage_is_counted_and_named_and_the_rest_arrives() -> None:
    disk = MemoryDisk()
    leave(disk, 5, size=50)
    ((_, files),) = disk.faults.folders.items()
    data = files["00000001.seg"]
    data[data.index(b"dead4:") + 20] ^= 1
    del data[-5:]
    live = Live(disk)
    live.turn(5)
    assert live.arrived == ["live", "dead3", "dead5", "dead6"]
    assert live.counters["spool_damaged"] == 2
    assert any("2 places are damaged" in note for note in live.notes._waiting)
    assert disk.names() == []


def test_a_segment_of_a_later_version_is_left_for_that_version() -> None:
    disk = MemoryDisk()
    leave(disk, 2)
    ((_, files),) = disk.faults.folders.items()
    later = spool_format.encode_header(Header(format=9, run="run", process="dead"))
    files["00000002.seg"] = bytearray(later)
    live = Live(disk)
    live.turn(130)
    assert live.arrived == ["live", *left("dead", 2)]
    assert list(files) == ["00000002.seg"]
    assert sum("newer driftline" in note for note in live.notes._waiting) == 1


def test_an_empty_spool_of_a_process_that_died_at_once_is_cleared_away() -> None:
    disk = MemoryDisk()
    disk.another_process().create(spool_format.folder_of("run", "dead", 1))
    disk.faults.owners.clear()
    Live(disk).turn(2)
    assert disk.names() == []


def test_a_disk_that_cannot_be_read_does_not_disturb_live_records() -> None:
    disk = MemoryDisk()
    leave(disk, 3)
    disk.faults.unreadable = True
    live = Live(disk)
    live.turn(3)
    live.outbox.put(b"news:", samples=1)
    live.turn(3)
    assert live.arrived == ["live", "news"]
    disk.faults.unreadable = False
    live.turn(70)
    assert live.arrived == ["live", "news", *left("dead", 3)]
