"""A worker that wakes up when the log no longer has what it would read next, although others have had it.

What it missed is no gap: another worker's snapshot lies further on. Only what no snapshot has passed is one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

from driftline.records import OutputId, Record
from driftline.streams.shell import recovery, snapshots

SOURCE = "m.telemetry"
APP = "m.app"


async def write(broker: Any, count: int) -> None:
    for number in range(count):
        broker.append(SOURCE, 0, b"run", b"k:%d" % number)
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.1)


def contents(broker: Any) -> dict[OutputId, set[bytes]]:
    """What each output id was ever sent with."""
    found: dict[OutputId, set[bytes]] = {}
    for entry in broker.log("m.windows", 0):
        found.setdefault(OutputId.parse(json.loads(entry.value)["id"]), set()).add(entry.value)
    return found


def oracle(toy: ModuleType, memory: ModuleType, broker: Any) -> dict[OutputId, set[bytes]]:
    core = toy.ToyCore()
    told = [Record(0, entry.offset, entry.timestamp, entry.value) for entry in broker.log(SOURCE, 0)]
    return {output.id: {output.value} for output in core.step(core.fresh(memory.UUID, 0), told)}


def newest_snapshot(memory: ModuleType, broker: Any) -> int:
    found = snapshots.Collected(snapshots.Source(APP, memory.UUID, 0))
    for entry in broker.log("m.state", 0):
        found.add(entry.key, entry.value)
    return max((snapshot.offset for snapshot in found.complete), default=0)


async def wakes_up_late(toy: ModuleType, memory: ModuleType, *, cut_behind: int) -> tuple[Any, Any, int]:
    """``a`` is stopped while ``b`` goes on; then retention takes the log up to ``b``'s newest snapshot and
    ``cut_behind`` records more, and ``a`` wakes up."""
    broker = memory.MemoryBroker()
    a, b = (memory.MemoryWorker(toy.ToyCore(), broker, name, 1, b"{}") for name in ("a", "b"))
    a.assignments.assigned({0})
    await write(broker, 200)
    await until(lambda: newest_snapshot(memory, broker) > 100)
    a.pause()
    stood = a.assignments.tasks[0].cursor.next
    b.assignments.assigned({0})
    await write(broker, 600)
    await until(lambda: newest_snapshot(memory, broker) >= 700)
    b.kill()
    start = newest_snapshot(memory, broker) + cut_behind
    assert start > stood + 300
    while len(broker.log(SOURCE, 0)) <= start:
        broker.append(SOURCE, 0, b"run", b"k:more")
    broker.starts[SOURCE, 0] = a.position = start
    a.resume()
    await write(broker, 50)
    await until(lambda: a.assignments.tasks[0].cursor.next >= start + 40)
    await a.stop()
    assert a.errors == []
    return broker, a, start - cut_behind


def test_a_late_worker_notes_no_gap_where_another_went_on(toy: ModuleType, memory: ModuleType) -> None:
    """It goes on from the other's snapshot: every output id has the content that the whole log gives."""
    broker, late, _ = memory.run(wakes_up_late(toy, memory, cut_behind=0))
    assert late.health.lost == 0
    found, wanted = contents(broker), oracle(toy, memory, broker)
    assert found == {this: wanted[this] for this in found}
    assert len(found) > 700


def test_the_gap_begins_where_the_last_one_who_had_the_log_stood(toy: ModuleType, memory: ModuleType) -> None:
    broker, late, reached = memory.run(wakes_up_late(toy, memory, cut_behind=17))
    assert late.health.lost == 17
    gaps = [json.loads(entry.value) for entry in broker.log("m.windows", 0) if b'"gap"' in entry.value]
    assert [OutputId.parse(gap["id"]).offset for gap in gaps] == [reached]


def test_recovery_looks_for_the_snapshot_that_the_log_still_follows(
    toy: ModuleType, memory: ModuleType
) -> None:
    """The tail of ``state`` may hold nothing but what a zombie wrote late, from before the log's start."""
    source = snapshots.Source(APP, memory.UUID, 0)

    async def recovered() -> Any:
        broker = memory.MemoryBroker()
        for number in range(500):
            broker.append(SOURCE, 0, b"run", b"k:%d" % number)
        broker.starts[SOURCE, 0] = 400

        def save(offset: int, writer: str) -> None:
            core, told = toy.ToyCore(), broker.log(SOURCE, 0)[:offset]
            state = core.fresh(memory.UUID, 0)
            core.step(state, [Record(0, entry.offset, entry.timestamp, entry.value) for entry in told])
            written = snapshots.write(source, snapshots.SnapshotId(offset, writer), core.dump(state))
            for key, value in (*written.chunks, written.manifest):
                broker.append("m.state", 0, key, value)

        save(450, "owner")
        for number in range(100):
            save(300, f"zombie-{number}")
        worker = memory.MemoryWorker(toy.ToyCore(), broker, "w", 1, b"{}")

        async def nothing() -> None: ...

        return await recovery.recover(worker.parts, source, None, nothing)

    assert memory.run(recovered()).cursor.next == 450
