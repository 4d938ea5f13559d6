"""From the outbox to the broker: bounded, in order, again after failures, never blocked by one bad record."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from driftline import events, frames, records
from driftline.clock import ManualClock
from driftline.producers.buffer import EVENT_RESERVE_BYTES, RECORD_OVERHEAD_BYTES, Outbox
from driftline.producers.counters import Counters, Notes
from driftline.producers.delivery import RETRY_US, Delivery
from driftline.producers.transport import MemoryTransport


class Rig:
    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.clock = ManualClock(now_us=1)
        self.way = MemoryTransport()
        self.counters = Counters()
        self.outbox = Outbox(limit_bytes=limit_bytes)
        self.delivery = Delivery(
            self.outbox,
            self.way,
            notify=lambda: None,
            counters=self.counters,
            notes=Notes(),
            clock=self.clock,
        )

    def put(self, count: int) -> None:
        for _ in range(count):
            assert self.outbox.put(b"%d" % self.outbox.next_seq, samples=2)

    def turn(self) -> None:
        self.delivery.pump(1000)
        self.clock.advance(RETRY_US)

    @property
    def arrived(self) -> list[int]:
        return [seq for seq, _ in self.way.log]


def first_arrivals(seqs: list[int]) -> list[int]:
    return list(dict.fromkeys(seqs))


def test_records_arrive_once_in_order() -> None:
    rig = Rig()
    rig.put(5)
    rig.turn()
    rig.put(2)
    rig.turn()
    assert rig.arrived == list(range(7))
    assert len(rig.outbox) == 0
    assert rig.outbox.size_bytes == rig.outbox.samples == rig.outbox.in_flight_bytes == 0
    assert rig.counters["samples_delivered"] == 14


def test_a_broker_that_is_away_for_a_while_loses_nothing() -> None:
    rig = Rig()
    rig.way.away = True
    rig.put(3)
    rig.turn()
    rig.turn()
    assert rig.counters["connection_failures"] == 2
    rig.way.away = False
    rig.turn()
    assert rig.arrived == [0, 1, 2]


def test_attempts_to_connect_are_a_second_apart() -> None:
    rig = Rig()
    rig.way.away = True
    rig.put(1)
    for _ in range(100):
        rig.delivery.pump(1000)
        rig.clock.advance(RETRY_US // 10)
    assert rig.counters["connection_failures"] == 10


@pytest.mark.parametrize("seed", range(30))
def test_after_any_failures_the_log_has_every_record_in_order(seed: int) -> None:
    """First arrivals are in the order of the numbers, whatever failed, was lost or came twice."""
    chance = random.Random(seed)
    rig = Rig()
    for _ in range(60):
        rig.put(chance.randrange(3))
        what = chance.random()
        if what < 0.2:
            rig.way.fail_seqs[chance.randrange(rig.outbox.next_seq + 2)] = chance.randrange(1, 3)
        elif what < 0.3:
            rig.way.away = True
        elif what < 0.4:
            rig.way.silent = True
            rig.turn()
            rig.way.silent, rig.way.away = False, True
            rig.put(1)
        else:
            rig.way.away = rig.way.silent = False
        rig.turn()
    rig.way.away = rig.way.silent = False
    rig.way.fail_seqs.clear()
    for _ in range(5):
        rig.put(1)
        rig.turn()
    assert first_arrivals(rig.arrived) == list(range(rig.outbox.next_seq))
    assert len(rig.outbox) == 0


def test_a_record_that_is_refused_twice_and_then_taken_is_not_given_up() -> None:
    """A broker that refuses for a moment (a permission, a full disk) costs no sample."""
    rig = Rig()
    rig.way.final_seqs.add(1)
    rig.put(3)
    for _ in range(2):
        rig.turn()
    rig.way.final_seqs.clear()
    for _ in range(3):
        rig.turn()
    assert first_arrivals(rig.arrived) == [0, 1, 2]
    assert (rig.counters["records_refused"], rig.counters["samples_delivered"]) == (0, 6)


def test_a_record_that_the_broker_never_takes_is_given_up_after_three_tries() -> None:
    rig = Rig()
    rig.way.final_seqs.add(1)
    rig.put(4)
    for _ in range(6):
        rig.turn()
    assert first_arrivals(rig.arrived) == [0, 2, 3]
    assert rig.counters["records_refused"] == 1
    assert rig.counters["dropped_broker"] == 2
    assert len(rig.outbox) == 0


def whole_call(outbox: Outbox, count: int, start: int = 0) -> None:
    """A frame of so many samples, numbered by the outbox, as the SDK makes them."""
    names = [f"a metric number {at}" for at in range(start, start + count)]
    frame = frames.Frame(
        run="r",
        process="p",
        rank=0,
        seq=outbox.next_seq,
        names=names,
        metric=np.arange(count, dtype=np.int16),
        step=np.zeros(count, np.int64),
        time_us=np.arange(start, start + count, dtype=np.int64),
        value=np.ones(count),
        weight=np.ones(count),
    )
    assert outbox.put(frames.encode(frame), samples=count)


def names_of(rig: Rig) -> list[str]:
    """The names in the log, in its order; asserts that record and log have the same gapless numbers."""
    found: list[str] = []
    decoded = [records.decode(payload) for _, payload in rig.way.log]
    assert [record.seq for record in decoded] == list(range(len(decoded)))
    for record in decoded:
        if isinstance(record, frames.Frame):
            found += [record.names[number] for number in record.metric.tolist()]
    return found


@pytest.mark.parametrize("limit_bytes", [100_000, 20_000, 5_000])
def test_a_record_over_the_topics_limit_goes_in_parts(limit_bytes: int) -> None:
    """Case 17: small, large, small; everything arrives once, in order, the large ones in parts."""
    rig = Rig(limit_bytes=1 << 24)
    rig.way.limit_bytes = limit_bytes
    for count, start in ((1, 0), (8000, 1), (1, 8001), (4000, 8002), (1, 12002)):
        whole_call(rig.outbox, count, start)
    for _ in range(12):
        rig.turn()
    assert names_of(rig) == [f"a metric number {at}" for at in range(12003)]
    assert rig.counters["samples_delivered"] == 12003
    assert rig.counters["records_refused"] == rig.counters["dropped_broker"] == 0
    assert rig.counters["frames_split"] >= 3
    assert rig.delivery.record_bytes_max <= limit_bytes, "the next ones are made small at once"
    assert rig.counters["connections"] <= 9, "each refusal halves the limit, none is tried twice"
    assert len(rig.outbox) == rig.outbox.samples == rig.outbox.size_bytes == 0


def test_an_event_over_the_topics_limit_goes_without_what_makes_it_large() -> None:
    rig = Rig()
    rig.way.limit_bytes = 5_000
    head: dict[str, Any] = {"run": "r", "process": "p", "time_us": 1}
    files = [events.FileEntry(f"part-{at}", 7) for at in range(1000)]
    checkpoint = events.Checkpoint(digest="d", uri="/c", files=files)
    config = {"lr": 0.1, "text": "x" * 9000}
    for event in (
        events.ProcessStarted(**head, seq=0, config=config),
        events.CheckpointSaved(**head, seq=1, checkpoint=checkpoint),
        events.RunRewound(**head, seq=2, step=4),
    ):
        assert rig.outbox.put(events.encode(event), samples=0, event=True)
    for _ in range(6):
        rig.turn()
    started, saved, rewound = (records.decode(payload) for _, payload in rig.way.log)
    assert "left out" in started.config["..."]
    assert (saved.checkpoint.files, saved.checkpoint.count, saved.checkpoint.size) == ([], 1000, 7000)
    assert rewound == events.RunRewound(**head, seq=2, step=4)


def test_what_cannot_be_cut_is_given_up_counted_and_holds_up_nothing() -> None:
    rig = Rig()
    rig.way.limit_bytes = 2_500
    whole_call(rig.outbox, 1)
    rig.outbox.put(
        events.encode(events.ProcessStarted(run="r", process="p", seq=1, time_us=1, name="x" * 5000)),
        samples=0,
    )
    whole_call(rig.outbox, 1, 2)
    for _ in range(8):
        rig.turn()
    assert first_arrivals(rig.arrived) == [0, 2]
    assert rig.counters["records_refused"] == 1


def test_only_so_much_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.producers.delivery.IN_FLIGHT_BYTES", 3)
    rig = Rig()
    rig.way.silent = True
    rig.put(9)
    rig.turn()
    assert rig.counters["records_sent"] == 3


def test_the_outbox_drops_the_newest_without_a_hole_in_the_numbers() -> None:
    box = Outbox(limit_bytes=3 * (RECORD_OVERHEAD_BYTES + 100))
    taken = [box.put(bytes(100), samples=1) for _ in range(5)]
    assert taken == [True, True, True, False, False]
    assert box.full
    assert box.put(bytes(100), samples=0, event=True)
    assert box.next_seq == 4
    assert not box.put(bytes(EVENT_RESERVE_BYTES), samples=0, event=True)
    box.acknowledge(0)
    box.acknowledge(1)
    assert box.put(bytes(100), samples=1)
    assert box.next_seq == 5


def test_the_end_is_bounded() -> None:
    rig = Rig()
    rig.way.silent = True
    rig.put(2)

    def wait(timeout_us: int) -> bool:
        rig.clock.advance(timeout_us)
        return False

    rig.delivery.pump_until(rig.clock.steady_us() + 500_000, wait=wait)
    assert len(rig.outbox) == 2
    assert rig.clock.steady_us() <= 500_001


def test_a_broker_that_acknowledges_nothing_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Frozen, or with too few copies in step: the client tries for ever and says nothing itself."""
    rig = Rig()
    rig.way.silent = True
    rig.put(1)
    for _ in range(30):
        rig.turn()
    rig.delivery._notes.write()
    (line,) = caplog.messages
    assert "acknowledges none" in line
    assert "min.insync.replicas" in line
