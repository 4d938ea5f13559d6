"""What is held in memory and on disk, looked at twice a second: nothing may grow beyond its bound, every
sample is somewhere, and every end of a partition is noticed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from driftline.producers.buffer import EVENT_RESERVE_BYTES
from driftline.streams.shell.assignments import BUFFER_RECORDS

if TYPE_CHECKING:
    from .trainers import Rank
    from .world import World

OWN_APPENDS_MAX = 2
"""Of a partition's worker under way to its own input: a tick and a configuration."""
SINK_ROWS_MAX = 5_000
SNAPSHOTS_MAX = 12
"""Without a tombstone, of one partition, whoever wrote them."""


def broken(world: World) -> Iterator[str]:
    """What is beyond its bound now."""
    sdk = world.settings.sdk
    for rank in (rank for training in world.trainings for rank in training.ranks):
        held = rank.worker.outbox.size_bytes
        if held > sdk.buffer_bytes + EVENT_RESERVE_BYTES:
            yield f"{rank.process} holds {held} bytes in memory"
        if rank.run._queued > sdk.queue_samples:
            yield f"{rank.process} has {rank.run._queued} samples in its queue"
        if not rank.life.paused and not rank.life.dead:  # else it is in the middle of a round
            yield from _unaccounted(rank)
    for folder, files in world.disk.faults.folders.items():
        size = sum(map(len, files.values()))
        if size > sdk.spool_bytes + 2_000:  # a note of how far the broker has come, and headers
            yield f"spool {folder} has {size} bytes"
    for group in world.groups.values():
        for client in group.clients:
            yield from _tasks(world, client)
    for sink in world.sinks.sinks:
        if sink.core.waiting > SINK_ROWS_MAX:
            yield f"{sink.life.name} holds {sink.core.waiting} rows"


def _unaccounted(rank: Rank) -> Iterator[str]:
    """Whatever was framed is held, delivered or counted as dropped, at any time."""
    counts = Counter(rank.run.counters())
    held = rank.worker.framer.samples + rank.worker.outbox.samples
    gone = sum(counts[f"dropped_{why}"] for why in ("buffer", "broker", "spool", "end"))
    accounted = counts["samples_delivered"] + counts["samples_spooled"] + held + gone
    if counts["samples_logged"] != accounted:
        yield f"{rank.process} framed {counts['samples_logged']}, {accounted} accounted for: {dict(counts)}"


def _tasks(world: World, client: object) -> Iterator[str]:
    (handler,) = client.on_partitions_revoked.handlers  # type: ignore[attr-defined]
    shell = handler.__self__
    idle = client.life.dead or client.life.paused  # type: ignore[attr-defined]
    for task in shell._assignments.tasks.values():
        if _failed(task.task) and not shell._failed.done() and not idle:
            if task.task in world.failed:  # it had half a second to notice
                yield f"partition {task.partition} has failed, and its worker does not know"
            world.failed.append(task.task)
        if task.buffered > BUFFER_RECORDS + 1:
            yield f"partition {task.partition} buffers {task.buffered} records"
        if task.tick_lane.pending > OWN_APPENDS_MAX:
            yield f"partition {task.partition} has {task.tick_lane.pending} ticks under way"


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def too_many_snapshots(world: World) -> Iterator[str]:
    """At rest few snapshots of a partition are left."""
    topic = world.broker.topics[world.settings.kafka.topics["state"]]
    for log in topic.logs:
        log.compact()
        left: dict[str, set[str]] = {}
        for record in log.records:
            if record.value is not None and record.key is not None:
                app, uuid, partition, offset, writer, _ = record.key.decode().split("/")
                left.setdefault(f"{app}/{uuid}/{partition}", set()).add(f"{offset}/{writer}")
        for source, found in left.items():
            if len(found) > SNAPSHOTS_MAX:
                yield f"{len(found)} snapshots of {source} are left"
