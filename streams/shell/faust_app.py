"""The Faust app: consuming, group membership and rebalances, with everything else switched off.

No tables, no changelogs, no leader topic, no web server, no topic creation, no acknowledgement by streams
(the shell commits after a snapshot). Faust's own offsets are only where reading starts; see ``cursor``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import faust
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.auth import SASLCredentials
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
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
    kafka: KafkaSettings, streams: StreamsSettings, *, app_id: str, embedded: bool, buffer_records: int
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
        stream_buffer_maxsize=buffer_records,
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
    app.transport.Consumer = _PromptConsumer  # type: ignore[misc]
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


class _PromptConsumer(Consumer):
    logger = logging.getLogger("faust.consumer")

    def _new_consumer_thread(self) -> Any:
        return _PromptThread(self, loop=self.loop, beacon=self.beacon)


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
