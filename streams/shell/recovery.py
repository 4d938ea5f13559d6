"""Where a partition goes on: a predecessor's cursor, a snapshot, or the beginning of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from driftline.errors import BadData, Unavailable
from driftline.records import Record, received
from driftline.streams.core import is_configuration
from driftline.streams.shell import snapshots
from driftline.streams.shell.cursor import Cursor
from driftline.streams.shell.seams import Bounds, OutOfLog, Parts

S = TypeVar("S")
log = logging.getLogger(__name__)

_TAIL_RECORDS = 64
_LOOK_AGAIN_S = 0.05


class Recovered(NamedTuple, Generic[S]):
    """A cursor to go on with."""

    cursor: Cursor[S]
    log_end: int
    """Where the log ended at that time."""
    keys: dict[snapshots.SnapshotId, list[bytes]]
    """Keys of ``state`` that hold a snapshot of this source."""
    stale: list[bytes]
    """Keys of ``state`` that hold snapshots of topics that no longer exist, to be made tombstones."""


async def recover(
    parts: Parts[S],
    source: snapshots.Source,
    before: Cursor[S] | None,
    append_configuration: Callable[[], Awaitable[None]],
) -> Recovered[S]:
    """The highest of: the predecessor's cursor, complete snapshots, the beginning of the log.

    ``append_configuration`` puts the worker's own configuration into the log and returns once it is there.
    """
    collected, bounds = await _look(parts, source)
    if before is None and max((found.offset for found in collected.complete), default=0) < bounds.start:
        # What it would go on from is no longer followed by the log. The tail of the topic may hold only what
        # a worker that was late wrote there: perhaps a better one lies before it.
        collected, bounds = await _look(parts, source, whole=True)
    # Only now: the log whose end was read is the one that the snapshots are of, or nothing is worked on.
    if await parts.uuid_now() != parts.topic_uuid:
        raise Unavailable(f"topic {parts.source_topic} was deleted or made again")
    stale = collected.foreign  # a UUID never comes back: all others that were seen are of topics before ours
    cursor = _best(parts, source, collected, before, bounds.end)
    if cursor is None:
        _told(source, "the beginning,", 0, bounds.end)
        state = parts.core.fresh(parts.topic_uuid, source.partition)
        parts.core.prime(state, await _first_configuration(parts, source.partition, append_configuration))
        cursor = Cursor(parts.core, state, 0)
    return Recovered(cursor, bounds.end, dict(collected.keys), stale)


async def further(parts: Parts[S], source: snapshots.Source, cursor: Cursor[S]) -> Cursor[S] | None:
    """A cursor of the highest complete snapshot that lies beyond ``cursor``, which another worker wrote."""
    collected, bounds = await _look(parts, source, whole=True)
    found = _best(parts, source, collected, cursor, bounds.end)
    return found if found is not None and found.next > cursor.next else None


async def _look(
    parts: Parts[S], source: snapshots.Source, *, whole: bool = False
) -> tuple[snapshots.Collected, Bounds]:
    """The snapshots, and then the log's bounds: another worker may have written both meanwhile."""
    collected = await _read_snapshots(parts, source, whole=whole)
    async with parts.open_log(parts.source_topic, source.partition) as view:
        return collected, await view.bounds()


def _best(
    parts: Parts[S],
    source: snapshots.Source,
    collected: snapshots.Collected,
    before: Cursor[S] | None,
    end: int,
) -> Cursor[S] | None:
    if any(found.offset > end for found in collected.complete):
        log.error(
            "partition %d: snapshots lie beyond the end of the log (%d), which was cut: not used",
            *(source.partition, end),
        )
    floor = before.next if before is not None and before.next <= end else -1
    for snapshot in collected.ranked(end):
        if snapshot.id.offset <= floor:
            break
        try:
            cursor = Cursor(parts.core, parts.core.load(snapshot.data), snapshot.id.offset)
        except BadData as error:
            log.error("partition %d: snapshot %s: %s", source.partition, snapshot.id, error)
            continue
        _told(source, "the snapshot at", cursor.next, end)
        return cursor
    if before is not None and floor >= 0:
        _told(source, "what it knew, at", before.next, end)
        return before
    return None


async def _first_configuration(
    parts: Parts[S], partition: int, append_configuration: Callable[[], Awaitable[None]]
) -> Record:
    """The log's first configuration, which is the worker's own where the log has none yet."""
    at, appended = 0, False
    while True:
        async with parts.open_log(parts.source_topic, partition) as view:
            bounds = await view.bounds()
            if bounds.end < at:
                raise Unavailable(f"{parts.source_topic} partition {partition} was cut or made again")
            at = max(at, bounds.start)
            try:
                async for batch in view.read(at, bounds.end):
                    for found in batch:
                        if is_configuration(found.value):
                            return received(partition, found.offset, found.timestamp, found.value)
                    at = batch[-1].offset + 1
            except OutOfLog:  # retention moved the start meanwhile
                continue
        if not appended:
            await append_configuration()
            appended = True
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _read_snapshots(parts: Parts[S], source: snapshots.Source, *, whole: bool) -> snapshots.Collected:
    """From the tail of ``state``, further back until a complete snapshot turns up (any is right), or all."""
    topic = parts.settings.kafka.topics["state"]
    async with parts.open_log(topic, source.partition) as view:
        bounds = await view.bounds()
        tail = _TAIL_RECORDS
        while True:
            start = bounds.start if whole else max(bounds.start, bounds.end - tail)
            found = snapshots.Collected(source)
            try:
                async for batch in view.read(start, bounds.end):
                    for record in batch:
                        found.add(record.key, record.value)
            except OutOfLog:  # the cleaner moved the start meanwhile
                bounds = await view.bounds()
                continue
            if (found.complete and not whole) or start == bounds.start:
                return found
            tail *= 8


def _told(source: snapshots.Source, start: str, offset: int, end: int) -> None:
    log.info("partition %d: goes on from %s offset %d of %d", source.partition, start, offset, end)
