"""How far the pipeline is, as anyone can see it: ends of topics, offsets of groups, positions of tables, and
the requests and evaluators on ``evals``."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, NoError
from kafka.structs import OffsetAndMetadata

from driftline import admin, events
from driftline.connection import KafkaSettings, kafka_python
from driftline.errors import BadRecord, Unavailable

from .plan import PARTITIONS

ENDS_MS = 5_000
ANEW_S = 5.0
"""A client of the admin's is not made more often."""


class Progress:
    """``update`` looks; the attributes hold what it saw last. All offsets count from the next record."""

    def __init__(self, kafka: KafkaSettings, uuids: dict[str, str], tables: Path) -> None:
        self._topics = kafka.topics
        self._prefix = kafka.prefix
        self._uuid = uuids[kafka.topics["telemetry"]]
        self._tables = tables
        self._handle: DeltaTable | None = None
        self._connect = functools.partial(admin.connect, kafka)
        self._admin = self._connect()
        self._asked_anew = 0.0
        self._ends = KafkaConsumer(group_id=None, **kafka_python(kafka))
        self._kafka = kafka
        self._consumer = KafkaConsumer(
            group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", **kafka_python(kafka)
        )
        followed = [TopicPartition(self._topics["evals"], 0), TopicPartition(self._topics["assignments"], 0)]
        self._consumer.assign(followed)
        self._consumer.seek_to_beginning(*followed)
        self.ends = [0] * PARTITIONS
        self.evals_end = 0
        self.applied = [0] * PARTITIONS
        self._skipped: list[int | None] = [None] * PARTITIONS
        """Offsets that we set ourselves, which tell nothing of the workers."""
        self.scheduled = 0
        self.stored = [0] * PARTITIONS
        self.requests: set[str] = set()
        self.closed: set[str] = set()
        self.present: dict[str, float] = {}
        """When each evaluator was last seen to announce itself."""

    def update(self) -> None:
        telemetry = [TopicPartition(self._topics["telemetry"], p) for p in range(PARTITIONS)]
        evals = TopicPartition(self._topics["evals"], 0)
        try:
            ends = self._ends.end_offsets([*telemetry, evals], timeout_ms=ENDS_MS)
        except (KeyError, KafkaError):
            # A leader that is not known yet, or (kafka-python 3.0.12) one that moved and is asked in vain
            # until the client's metadata is five minutes old.
            self._ends.close()
            self._ends = KafkaConsumer(group_id=None, **kafka_python(self._kafka))
            return
        self.ends = [ends[tp] for tp in telemetry]
        self.evals_end = ends[evals]
        applied = self._group("streams")
        for p, tp in enumerate(telemetry):
            if applied.get(tp, self._skipped[p]) != self._skipped[p]:
                self.applied[p], self._skipped[p] = applied[tp], None
        self.scheduled = self._group("scheduler").get(evals, self.scheduled)
        self._read_tables()
        self._follow()

    @property
    def behind(self) -> int:
        """Records that workers or tables lack, the worse of the two."""
        return sum(self.ends) - min(sum(self.applied), sum(self.stored))

    def open_requests(self) -> set[str]:
        return self.requests - self.closed

    def _group(self, role: str) -> dict[TopicPartition, int]:
        try:
            found = self._admin.list_group_offsets({f"{self._prefix}{role}": None})
        except KafkaError:  # no group yet, or a coordinator that moved, which this client would not notice
            self._ask_anew()
            return {}
        return {tp: at.offset for offsets in found.values() for tp, at in offsets.items()}

    def _ask_anew(self) -> None:
        """Another client, which asks again who coordinates the groups."""
        if time.monotonic() - self._asked_anew < ANEW_S:
            return
        self._asked_anew = time.monotonic()
        try:
            fresh = self._connect()
        except (KafkaError, Unavailable):
            return
        self._admin.close()
        self._admin = fresh

    def skip_to_the_end(self) -> bool:
        """Moves the offsets of the workers' group to the log's end; False while the group has members."""
        topic = self._topics["telemetry"]
        ends = {TopicPartition(topic, p): OffsetAndMetadata(end, "", -1) for p, end in enumerate(self.ends)}
        try:
            told = self._admin.alter_group_offsets(f"{self._prefix}streams", ends)
        except KafkaError:
            self._ask_anew()
            return False
        done = all(error is NoError for error in told.values())
        if done:
            self._skipped = list(self.ends)
        return done

    def _read_tables(self) -> None:
        try:
            if self._handle is None:
                self._handle = DeltaTable(str(self._tables / "log"))
            else:
                self._handle.update_incremental()
        except (TableNotFoundError, DeltaError):
            self._handle = None
            return
        found = [self._handle.transaction_version(f"{self._uuid}/{p}") for p in range(PARTITIONS)]
        self.stored = [0 if version is None else version + 1 for version in found]

    def _follow(self) -> None:
        for records in self._consumer.poll(timeout_ms=20, max_records=5_000).values():
            for record in records:
                try:
                    self._note(events.decode(record.value))
                except BadRecord:
                    pass

    def _note(self, event: Any) -> None:
        if isinstance(event, events.EvalRequested):
            self.requests.add(event.request)
        elif isinstance(event, events.RequestClosed):
            self.closed.add(event.request)
        elif isinstance(event, events.EvaluatorPresent):
            self.present[event.evaluator] = time.monotonic()

    def close(self) -> None:
        self._ends.close()
        self._consumer.close()
        self._admin.close()
