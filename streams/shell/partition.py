"""One assigned partition: recover its state, apply records in order, send outputs, write snapshots.

A partition's task is never cancelled in the middle of a batch: a state whose outputs were sent by half would
be wrong to go on with. It is *retired* instead: it ends after the batch at hand, with a snapshot, and its
cursor may serve the next task of the same partition (state is a function of the log, so it is as good as any
snapshot).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from driftline import events
from driftline.errors import Unavailable
from driftline.records import Output, Record, received
from driftline.streams.shell import recovery, snapshots
from driftline.streams.shell.cursor import Cursor
from driftline.streams.shell.seams import Lane, LogRecord, OutOfLog, Oversized, Parts
from driftline.topics import SPECS, TopicName, partition_of

S = TypeVar("S")
log = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 2
"""Newest snapshots without a tombstone: a reader of the older one is not disturbed."""
FEW_RECORDS = 10
QUIET_PERIODS = 10
"""A partition with fewer new records (only ticks, say) is saved at every tenth turn."""
_SINGLE = frozenset(spec.name for spec in SPECS if spec.single)


def destination(output: Output, source: TopicName, source_partition: int, partitions: int) -> int:
    """The partition that an output goes to."""
    if output.topic in _SINGLE:
        return 0
    if source in _SINGLE:
        return partition_of(output.run, partitions)
    return source_partition


class PartitionTask(Generic[S]):
    """The life of one partition with this worker, from assignment to retirement."""

    def __init__(self, parts: Parts[S], partition: int, predecessor: PartitionTask[S] | None) -> None:
        self._parts = parts
        self.partition = partition
        self._predecessor = predecessor
        self._source = snapshots.Source(parts.app_id, parts.topic_uuid, partition)
        self.cursor: Cursor[S] | None = None
        """Set once recovered."""
        self._buffer: deque[Record] = deque()
        self._arrived, self._full = asyncio.Event(), asyncio.Event()
        self._retired = False
        self._lane = Lane()
        self.tick_lane = Lane()
        self._known: dict[snapshots.SnapshotId, list[bytes]] = {}
        self._snapshot_offset = -1
        self._snapshot_us = self._snapshot_due_us = self._ticked_us = 0
        self._caught_up_at: int | None = None
        self._last_put = -1
        self._jumped = False
        self.task: asyncio.Task[None] = asyncio.create_task(self._run(), name=f"partition-{partition}")

    # --- what the shell calls ---------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """Takes a record that the consumer group delivered."""
        self._jumped = self._jumped or record.offset <= self._last_put
        self._last_put = record.offset
        self._buffer.append(record)
        self._arrived.set()
        if len(self._buffer) >= self._parts.settings.streams.batch_records:
            self._full.set()

    def repositioned(self) -> None:
        """The group was rebalanced: it may well deliver older records again."""
        self._last_put = -1

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def retire(self) -> None:
        """Ends the task after the batch at hand; records that wait are for the next owner."""
        self._retired = True
        self._buffer.clear()
        self._arrived.set()
        self._full.set()

    def stuck_us(self) -> int:
        """How long the last tick has been under way; 0 if it arrived."""
        return self._parts.clock.steady_us() - self._ticked_us if self.tick_lane.pending else 0

    async def tick(self) -> None:
        """Appends a tick to the source partition, unless the last one is still under way."""
        if self.tick_lane.pending or self._retired:
            return
        self._ticked_us = self._parts.clock.steady_us()
        parts = self._parts
        now_us = parts.clock.now_us()
        await self._append(events.Tick(worker=parts.worker, time_us=now_us, append_time=parts.append_time))

    # --- its life ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        cursor = self.cursor = await self._recover()
        self._parts.health.recoveries += 1
        self._snapshot_offset, self._snapshot_us = cursor.next, self._parts.clock.steady_us()
        self._plan_snapshot()
        while not self._retired:
            await self._check_config()
            if records := await self._collect():
                await self._verify()
                await self._apply(records)
                await asyncio.sleep(0)
            await self._maybe_snapshot()
        if self._at.next > self._snapshot_offset:
            await self._snapshot()

    async def _recover(self) -> Cursor[S]:
        before = None
        if (predecessor := self._predecessor) is not None:
            await asyncio.wait({predecessor.task})
            if not predecessor.task.cancelled() and predecessor.task.exception() is None:
                before = predecessor.cursor  # else its outputs may have gone out by half
        found = await recovery.recover(self._parts, self._source, before, self._append_own_configuration)
        self._predecessor = None
        self._caught_up_at, self._known = found.log_end, found.keys
        if found.stale:
            log.info("partition %d: snapshots of a topic that is no more are removed", self.partition)
        for key in found.stale:
            await self._write_state(key, None)
        return found.cursor

    async def _append_own_configuration(self) -> None:
        await self._append_configuration()
        await self._parts.outbox.settled(self.tick_lane)

    async def _verify(self) -> None:
        """Delivery went back without a rebalance: was the log cut, or the topic made again?"""
        if self._jumped:
            self._jumped = False
            if await self._parts.uuid_now() != self._parts.topic_uuid:
                raise Unavailable(f"topic {self._parts.source_topic} was deleted or made again")

    async def _collect(self) -> list[Record]:
        """Up to ``batch_records`` records; fewer after ``batch_wait_us``; none when a snapshot is due."""
        streams = self._parts.settings.streams
        if not self._buffer:
            self._arrived.clear()
            await _within(self._arrived, self._snapshot_due_us - self._parts.clock.steady_us())
        if self._buffer and len(self._buffer) < streams.batch_records and not self._retired:
            self._full.clear()
            await _within(self._full, streams.batch_wait_us)
        count = min(len(self._buffer), streams.batch_records)
        return [self._buffer.popleft() for _ in range(count)]

    async def _apply(self, records: Sequence[Record]) -> None:
        while records and not self._retired:
            fed = self._at.feed(records)
            self._parts.health.applied += fed.applied
            if fed.repeated:
                self._parts.health.dropped["repeated"] += fed.repeated
            await self._send(fed.outputs)
            if fed.ahead:
                await self._fill(fed.ahead[0].offset)
            records = fed.ahead

    async def _fill(self, through: int) -> None:
        """Reads offsets ``cursor.next`` to ``through`` from the log itself: the group skipped them."""
        log.info("partition %d: reading offsets %d to %d again", self.partition, self._at.next, through)
        async with self._parts.open_log(self._parts.source_topic, self.partition) as reader:
            while self._at.next <= through and not self._retired:
                try:
                    async for batch in reader.read(self._at.next, through + 1):
                        await self._apply_plain(batch)
                        if self._retired:
                            return
                    break
                except OutOfLog:
                    await self._skip((await reader.bounds()).start, through)

    async def _apply_plain(self, batch: Sequence[LogRecord]) -> None:
        records = [received(self.partition, r.offset, r.timestamp, r.value) for r in batch]
        fed = self._at.feed(records, plain=True)
        self._parts.health.received += len(records)
        self._parts.health.applied += fed.applied
        self._parts.health.filled += fed.applied
        await self._send(fed.outputs)
        await self._maybe_snapshot()

    async def _skip(self, log_start: int, through: int) -> None:
        """The log begins behind the cursor: go on from another snapshot, or loudly note what is lost.

        What another worker's snapshot has passed was worked on, and its outputs were sent: to call that a gap
        would contradict them. The record at hand is not lost.
        """
        cursor = self._at
        if (ahead := await recovery.further(self._parts, self._source, cursor)) is not None:
            self.cursor = ahead
            self._snapshot_offset = ahead.next
            return
        end = min(log_start, through)
        if end <= cursor.next:
            raise Unavailable(
                f"{self._parts.source_topic} partition {self.partition}: the log has no offset {cursor.next} "
                f"and begins at {log_start}: was it cut or made again?"
            )
        log.error(
            "partition %d: the log no longer has offsets %d to %d (retention was shorter than this worker's "
            "absence): %d records are lost and noted as a gap; raise the topic's retention",
            *(self.partition, cursor.next, end - 1, end - cursor.next),
        )
        self._parts.health.lost += end - cursor.next
        await self._send(cursor.gap(end))

    # --- sending ----------------------------------------------------------------------------------------

    async def _send(self, outputs: Sequence[Output]) -> None:
        parts, kafka = self._parts, self._parts.settings.kafka
        for output in outputs:
            to = destination(output, parts.core.source, self.partition, kafka.partitions)
            topic = kafka.topics[output.topic]
            try:
                await parts.outbox.send(
                    self._lane, topic, to, key=output.run.encode() or None, value=output.value
                )
                parts.health.sent += 1
            except Oversized as error:
                await self._refuse(output, str(error))

    async def _refuse(self, output: Output, reason: str) -> None:
        parts = self._parts
        parts.health.dropped["oversized"] += 1
        log.error("output %s is too large for Kafka and dropped: %s", output.id, reason)
        letter = events.DeadLetter(
            topic=parts.source_topic,
            partition=self.partition,
            offset=output.id.offset,
            reason=f"output {output.id.ordinal} of this record is too large: {reason}",
            reader=parts.app_id,
            time_us=parts.clock.now_us(),
            size=len(output.value),
        )
        topic = parts.settings.kafka.topics["dead-letter"]
        await parts.outbox.send(self._lane, topic, 0, key=None, value=events.encode(letter))

    async def _append(self, event: events.Event) -> None:
        """Appends an event of the worker's own to the source partition."""
        await self._parts.outbox.send(
            *(self.tick_lane, self._parts.source_topic, self.partition),
            key=None,
            value=events.encode(event),
        )

    async def _check_config(self) -> None:
        """Once, when the log is read up to where it ended at assignment: append the configuration if new."""
        if self._caught_up_at is None or self._at.next < self._caught_up_at:
            return
        self._caught_up_at = None
        parts = self._parts
        if parts.core.config_digest(self._at.state) == parts.config_digest:
            return
        await self._append_configuration()

    async def _append_configuration(self) -> None:
        parts = self._parts
        log.info("partition %d: configuration %s goes into the log", self.partition, parts.config_digest)
        await self._append(
            events.ConfigChanged(
                worker=parts.worker,
                time_us=parts.clock.now_us(),
                digest=parts.config_digest,
                body=msgspec.Raw(parts.config_body),
            )
        )

    # --- snapshots and recovery -------------------------------------------------------------------------

    async def _maybe_snapshot(self) -> None:
        now_us = self._parts.clock.steady_us()
        if now_us < self._snapshot_due_us:
            return
        new = self._at.next - self._snapshot_offset
        quiet_us = QUIET_PERIODS * self._parts.settings.streams.snapshot_us
        if new >= FEW_RECORDS or (new and now_us - self._snapshot_us >= quiet_us):
            await self._snapshot()
        self._plan_snapshot()

    def _plan_snapshot(self) -> None:
        self._snapshot_due_us = self._parts.clock.steady_us() + self._parts.settings.streams.snapshot_us

    async def _snapshot(self) -> None:
        """All outputs delivered, then chunks, then the manifest, then the group's offset, then tombstones."""
        parts, cursor = self._parts, self._at
        await parts.outbox.settled(self._lane)
        this = snapshots.SnapshotId(cursor.next, parts.worker)
        written = snapshots.write(self._source, this, parts.core.dump(cursor.state))
        for key, value in written.chunks:
            await self._write_state(key, value)
        await parts.outbox.settled(self._lane)
        await self._write_state(*written.manifest)
        await parts.outbox.settled(self._lane)
        self._snapshot_offset, self._snapshot_us = cursor.next, parts.clock.steady_us()
        self._known[this] = written.keys
        parts.health.snapshots += 1
        await self._bury(this)
        if (why_not := await parts.commit(self.partition, cursor.next)) is not None:
            log.debug("partition %d: group offset not committed: %s", self.partition, why_not)

    async def _bury(self, newest: snapshots.SnapshotId) -> None:
        """Tombstones for snapshots that lie below the newest ones of ours."""
        lower = sorted(found for found in self._known if found <= newest)
        for old in lower[:-KEPT_SNAPSHOTS]:
            for key in self._known.pop(old):
                await self._write_state(key, None)

    async def _write_state(self, key: bytes, value: bytes | None) -> None:
        topic = self._parts.settings.kafka.topics["state"]
        await self._parts.outbox.send(self._lane, topic, self.partition, key=key, value=value)

    @property
    def _at(self) -> Cursor[S]:
        assert self.cursor is not None, "recovered before use"
        return self.cursor


async def _within(event: asyncio.Event, wait_us: int) -> None:
    """Until the event, at most so long."""
    if wait_us <= 0:
        return
    try:
        await asyncio.wait_for(event.wait(), wait_us / 1e6)
    except TimeoutError:
        pass
