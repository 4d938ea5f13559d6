"""The Faust app: consuming, group membership and rebalances, with everything else switched off.

No tables, no changelogs, no leader topic, no web server, no topic creation, no acknowledgement by streams
(the shell commits after a snapshot). Faust's own offsets are only where reading starts; see ``cursor``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import faust
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.auth import SASLCredentials
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types.tuples import ConsumerMessage
from yarl import URL

from driftline.connection import KafkaSettings, ssl_context
from driftline.errors import SettingsError
from driftline.settings import StreamsSettings

EMBEDDED_SESSION_US = 2_000_000
"""The embedded broker lets a group join only after half the session timeout."""
FETCH_WAIT_MS = 50
KAFKA_SESSION_US = 6_000_000
"""Apache Kafka refuses shorter sessions, and Faust dies of that."""


def make(
    kafka: KafkaSettings, streams: StreamsSettings, *, app_id: str, embedded: bool, buffer_fetches: int
) -> Any:
    """A Faust app that consumes and nothing else; its files (hardly any) go to ``streams.state_dir``."""
    session_us = streams.session_timeout_us
    session_us = min(session_us, EMBEDDED_SESSION_US) if embedded else max(session_us, KAFKA_SESSION_US)
    session_s = session_us / 1e6
    data = Path(streams.state_dir) / app_id
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError("streams.state_dir", streams.state_dir, f"not writable: {error}") from error
    app = faust.App(
        app_id,
        broker=[URL(f"kafka://{server}") for server in kafka.servers],
        broker_credentials=_credentials(kafka),
        ssl_context=ssl_context(kafka) if kafka.security_protocol == "SSL" else None,
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 5,
        broker_request_timeout=max(90.0, session_s),
        broker_rebalance_timeout=max(10.0, session_s),
        broker_commit_interval=3600.0,
        broker_commit_livelock_soft_timeout=1e9,
        broker_max_poll_records=2_000,
        consumer_max_fetch_size=16 * 1024 * 1024,
        consumer_auto_offset_reset="earliest",
        stream_buffer_maxsize=buffer_fetches,
        stream_wait_empty=False,
        stream_processing_timeout=1e9,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        autodiscover=False,
        worker_redirect_stdouts=False,
        datadir=data,
        loop=None,
    )
    app.transport.Consumer = _BatchConsumer  # type: ignore[misc]
    return app


class _PromptThread(AIOKafkaConsumerThread):
    """Faust asks the broker to hold an empty fetch for 1.5 s, and aiokafka has one fetch under way at a time.

    While records of one partition are worked on, the fetch that is under way asks for the *others*; when they
    are quiet, the busy partition can have to wait for their next tick. (From reading the clients; how much it
    costs was not measured on a quiet machine.)
    """

    logger = logging.getLogger("faust.consumer")

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer


class Fetched(ConsumerMessage):
    """A Faust message that stands for all records of one partition that one fetch gave."""

    records: Sequence[Any]
    """aiokafka's, in order of offsets; the message's own fields are those of the last."""


class _BatchConsumer(Consumer):
    """Hands each fetch on as a whole.

    Faust makes an event of every record, decodes it, queues it and wakes its stream for it, which was over
    half of the worker's CPU time (``benchmarks/windows.py``). The group, its rebalances, flow control and the
    agent are Faust's as before.
    """

    logger = logging.getLogger("faust.consumer")

    def _new_consumer_thread(self) -> Any:
        return _PromptThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[Any, Fetched]]:
        fetched, active = await self._wait_next_records(timeout)
        generation = self.app.consumer_generation_id
        for tp, records in (fetched or {}).items():
            if self.should_stop or not self.flow_active or self.app.consumer_generation_id != generation:
                return  # a rebalance: what is left is read again from where the group stands
            if active is None or tp in active or tp in self._buffered_partitions:
                yield tp, self._whole(tp, records)

    def _whole(self, tp: Any, records: Sequence[Any]) -> Fetched:
        last = records[-1]
        message = Fetched(
            last.topic,
            last.partition,
            last.offset,
            last.timestamp / 1000.0,
            last.timestamp_type,
            headers=[],
            key=None,
            value=b"",
            checksum=None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )
        message.records = records
        return message


async def commit(app: Any, topic: str, offsets: dict[int, int]) -> str | None:
    """Tells the group how far each partition is; returns why not, if it could not be.

    Goes past Faust's own commit, which crashes the app where the broker merely does not answer: nothing
    rests on the group's offsets, they only save reading.
    """
    thread = app.consumer._thread
    wanted = {TopicPartition(topic, p): OffsetAndMetadata(offset, "") for p, offset in offsets.items()}
    held = {(tp.topic, tp.partition) for tp in thread.assignment()}
    wanted = {tp: offset for tp, offset in wanted.items() if (tp.topic, tp.partition) in held}
    if not wanted:
        return "not assigned"
    try:
        await thread.call_thread(thread._ensure_consumer().commit, wanted)
    except (KafkaError, ValueError, TypeError) as error:
        return repr(error)
    return None


def highwater(app: Any, topic: str, partition: int) -> int | None:
    """Where the partition ended when Faust last fetched it."""
    try:
        found: int | None = app.consumer._thread._ensure_consumer().highwater(
            TopicPartition(topic, partition)
        )
    except (AssertionError, KafkaError):
        return None
    return found


def _credentials(kafka: KafkaSettings) -> Any:
    if not kafka.sasl_mechanism:
        return None
    return SASLCredentials(
        mechanism=kafka.sasl_mechanism,
        username=kafka.sasl_username,
        password=kafka.sasl_password,
        ssl_context=ssl_context(kafka),
    )
