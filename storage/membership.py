"""Which partitions this sink reads: a consumer group divides them, and does nothing else.

Nothing is committed to the group; positions come from the tables. The group has one member per sink and is
subscribed to ``telemetry`` alone: partition ``p`` of every topic that feeds tables goes with partition ``p``
of telemetry. Sinks with the same tables are one group (its id holds the id of the tables), sinks with other
tables another: each of the two gets everything.

A thread of its own answers the group, so that a long commit or compaction neither loses the partitions nor
holds up the others when a sink comes or goes. If the sink does not :meth:`Membership.beat` for ``HANG_US``,
the thread leaves the group, and joins again at the next beat. What the group says may be out of date at any
moment (this process was paused, the answer is on its way): then two sinks read the same partition, and the
tables refuse the commit of one.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError

from driftline import admin, handshake
from driftline.clock import SECOND_US, Clock
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import Unavailable

EMBEDDED_SESSION_US = 2 * SECOND_US
"""The embedded broker lets a group join only after half the session timeout."""
KAFKA_SESSION_US = 6 * SECOND_US
"""Apache Kafka refuses shorter sessions."""
HANG_US = 600 * SECOND_US
_POLL_MS = 200
_REJOIN_MS = 60_000
"""As long as the group waits for a member that is alive; its thread answers within ``_POLL_MS``."""
_METADATA_MS = 5_000
"""A topic that was made again is noticed after so long."""
_RETRY_S = 1.0


class Membership:
    """One sink's place in the group; :meth:`close` leaves it."""

    def __init__(self, kafka: KafkaSettings, group: str, *, session_us: int, clock: Clock) -> None:
        self.group = kafka.prefix + group
        self._kafka = kafka
        self._clock = clock
        self._session_us = session_us
        self._lock = threading.Lock()
        self._partitions: frozenset[int] | None = None
        self._heard_us = self._beat_us = clock.steady_us()
        self._closing = threading.Event()
        self.trouble: str | None = None
        """Why there is no assignment, if it is known."""
        self._thread = threading.Thread(target=self._live, name="driftline-sink-group", daemon=True)
        self._thread.start()

    @property
    def partitions(self) -> frozenset[int] | None:
        """The partitions to read; None while the group has not said, or may have given them to others."""
        with self._lock:
            paused = self._clock.steady_us() - self._heard_us > self._session_us
            return None if paused else self._partitions

    def beat(self) -> None:
        """Says that the sink is at work."""
        self._beat_us = self._clock.steady_us()

    def close(self) -> None:
        """Leaves the group, so that others get the partitions at once."""
        self._closing.set()
        self._thread.join(30)

    # --- the thread ----------------------------------------------------------------------------------------

    def _live(self) -> None:
        while not self._closing.is_set():
            if self._hangs():
                self._closing.wait(_RETRY_S)
                continue
            try:
                self._member()
                self.trouble = None
            except (KafkaError, Unavailable) as error:
                self.trouble = f"group {self.group}: {error!r}"
            self._assign(None)
            self._closing.wait(0 if self.trouble is None else _RETRY_S)

    def _hangs(self) -> bool:
        return self._clock.steady_us() - self._beat_us > HANG_US

    def _member(self) -> None:
        """From joining to leaving."""
        with contextlib.closing(self._consumer()) as consumer:
            topic = self._kafka.topics["telemetry"]
            consumer.partitions_for_topic(topic)  # else the first of a group finds nothing to divide
            consumer.subscribe([topic], listener=_Listener(self))
            while not (self._closing.is_set() or self._hangs()):
                consumer.poll(timeout_ms=_POLL_MS)
                consumer.pause(*consumer.assignment())  # others read; here nothing is
                with self._lock:
                    self._heard_us = self._clock.steady_us()

    def _consumer(self) -> Any:
        embedded = admin.is_embedded(self._kafka)
        session = self._session_us
        session = min(session, EMBEDDED_SESSION_US) if embedded else max(session, KAFKA_SESSION_US)
        with self._lock:
            self._session_us = session
        return opened(
            KafkaConsumer,
            client_id="driftline-sink",
            group_id=self.group,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            allow_auto_create_topics=False,
            partition_assignment_strategy=[StickyPartitionAssignor],
            session_timeout_ms=session // 1000,
            heartbeat_interval_ms=session // 5000,
            max_poll_interval_ms=_REJOIN_MS,
            metadata_max_age_ms=_METADATA_MS,
            max_partition_fetch_bytes=1,
            bootstrap_timeout_ms=5_000,
            **kafka_python(handshake.let_in(self._kafka)),
        )

    def _assign(self, partitions: frozenset[int] | None) -> None:
        with self._lock:
            self._partitions = partitions
            self._heard_us = self._clock.steady_us()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes on what the group says. Revoked is only an announcement: until the new assignment is known the
    sink goes on with the old one."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._membership._assign(frozenset(place.partition for place in assigned))

    def on_partitions_lost(self, lost: Any) -> None:
        self._membership._assign(None)
