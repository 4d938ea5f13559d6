"""A topic that is made again while a worker starts: nothing of it gets the name of the old one."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest

from driftline import config
from driftline.errors import Unavailable
from driftline.streams.core import is_configuration
from driftline.streams.pipeline import Pipeline
from driftline.streams.shell import snapshots

BODY = config.encode(config.PipelineConfig())


def with_snapshot(memory: ModuleType) -> Any:
    """A broker whose ``state`` topic has a snapshot of the topic as it was, at offset 50."""
    broker, core = memory.MemoryBroker(), Pipeline()
    written = snapshots.write(
        snapshots.Source("m.app", memory.UUID, 0),
        snapshots.SnapshotId(50, "before"),
        core.dump(core.fresh(memory.UUID, 0)),
    )
    for key, value in [*written.chunks, written.manifest]:
        broker.append("m.state", 0, key, value)
    return broker


@pytest.mark.parametrize("made_again", [False, True])
def test_a_worker_that_starts_meanwhile_works_on_nothing(memory: ModuleType, made_again: bool) -> None:
    """Its snapshots lie beyond the end of the new topic, which looks as if the log had been cut. (Found by
    tests/sim: it went on from the beginning, and gave the new topic's outputs the old one's ids.)"""

    async def start() -> tuple[list[BaseException], bool]:
        broker = with_snapshot(memory)
        worker = memory.MemoryWorker(Pipeline(), broker, "w", 1, BODY)
        if made_again:
            broker.uuid = "another"
        worker.assignments.assigned({0})
        await asyncio.sleep(3)
        log = broker.log("m.telemetry", 0)
        return worker.errors, any(is_configuration(entry.value) for entry in log)

    errors, works = memory.run(start())
    assert [type(error) for error in errors] == ([Unavailable] if made_again else [])
    assert works is not made_again
