"""The transport to Kafka, and what kafka-python needs so that it neither blocks, wedges nor talks.

Measured with kafka-python 3.0.12, and guarded here:

- its constructor waits 30 s and ``send`` 60 s for a broker: a plain TCP probe goes first, both waits are
  set to what the caller allows;
- with a short delivery timeout the idempotent producer wedges for ever once a batch expires: the timeout is a
  day, what is too old is the owner's business;
- its back-off grows to 30 s: at most 1 s in :func:`~driftline.connection.kafka_python`;
- ``close`` raises on a dead broker and ``__del__`` prints: both contained; its own ``atexit`` would close the
  producer before the SDK's last flush: taken off;
- it logs a warning per attempt while the broker is away, for hours: unless the program has set a level for
  the logger "kafka", that is set to CRITICAL (the SDK says once that the broker is away).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from driftline import handshake
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import Unavailable
from driftline.producers import forks
from driftline.producers.transport import Outcome
from driftline.topics import partition_of

_DAY_MS = 24 * 3600 * 1000
_BATCH_BYTES = 512 * 1024
_PROBE_S = 1.0
_TOO_LARGE = ("MessageSizeTooLargeError", "RecordListTooLargeError")


class KafkaTransport:
    """Sends to the partition of one run in ``telemetry``."""

    def __init__(self, settings: KafkaSettings, run: str) -> None:
        self._settings = settings
        self._topic = settings.topics["telemetry"]
        self._key = run.encode()
        self._run = run
        self._producer: Any = None
        self._partition = 0
        self._outcomes: deque[Outcome] = deque()
        self._refused = False

    def open(self, *, timeout_us: int, notify: Callable[[], None]) -> None:
        end = time.monotonic() + timeout_us / 1e6
        self._notify = notify
        if self._producer is None:
            _probe(self._settings.servers, min(_PROBE_S, timeout_us / 1e6))
            self._connect(max(200, int((end - time.monotonic()) * 1000)))
        # A producer that only lacks the topic is kept for the next attempt: making one is dear.
        self._producer.config["max_block_ms"] = max(100, int((end - time.monotonic()) * 1000))
        try:
            partitions = self._producer.partitions_for(self._topic)
        except Exception as error:
            if type(error).__name__ != "KafkaTimeoutError":
                self.close(timeout_us=0)
            raise Unavailable(self._no_topic()) from error
        if not partitions:
            raise Unavailable(self._no_topic())
        self._partition = partition_of(self._run, len(partitions))

    def _no_topic(self) -> str:
        return (
            f"{self._settings.bootstrap} shows no topic {self._topic} yet (missing, or no permission); "
            "`driftline streams` makes the topics"
        )

    def _connect(self, timeout_ms: int) -> None:
        with forks.importing():
            import kafka  # 0.5 s, so only on the SDK's thread
        reached = handshake.let_in(self._settings, timeout_s=min(_PROBE_S, timeout_ms / 1000))

        _quieten()
        try:
            self._producer = opened(
                kafka.KafkaProducer,
                **kafka_python(reached),
                client_id="driftline-sdk",
                acks="all",
                enable_idempotence=True,
                compression_type="lz4",
                batch_size=_BATCH_BYTES,
                linger_ms=5,
                delivery_timeout_ms=_DAY_MS,
                max_block_ms=timeout_ms,
                bootstrap_timeout_ms=timeout_ms,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        except Unavailable:
            raise  # certificates that went away
        except Exception as error:  # foreign: a dozen kinds, all mean "not now"
            if (refused := handshake.refusal(self._settings, timeout_s=_PROBE_S)) is not None:
                raise refused from error
            raise Unavailable(f"{self._settings.bootstrap}: {_words(error)}") from error
        with contextlib.suppress(AttributeError):
            self._producer._unregister_cleanup()

    def send(self, seq: int, payload: bytes) -> None:
        if self._producer is None or self._refused:
            raise Unavailable("not connected")
        try:
            future = self._producer.send(self._topic, payload, key=self._key, partition=self._partition)
        except Exception as error:
            if type(error).__name__ in _TOO_LARGE:
                self._refused = True  # what comes behind it must not get there before it
                self._outcomes.append(Outcome(seq, _words(error), final=True, too_large=True))
                return
            raise Unavailable(_words(error)) from error
        outcomes, notify, producer = self._outcomes, self._notify, self._producer

        def arrived(_: object) -> None:
            outcomes.append(Outcome(seq))
            notify()

        def failed(error: BaseException) -> None:
            # Here, on the client's own thread, before it sends more: else it would go on (behind a record
            # that is too large, after a lost sequence), and what comes later would be in the log first.
            _stop(producer)
            too_large = type(error).__name__ in _TOO_LARGE
            final = too_large or type(error).__name__ == "InvalidRecordError"
            outcomes.append(Outcome(seq, _words(error), final, too_large))
            notify()

        future.add_callback(arrived)
        future.add_errback(failed)

    def outcomes(self) -> list[Outcome]:
        found: list[Outcome] = []
        while self._outcomes:
            found.append(self._outcomes.popleft())
        return found

    def close(self, *, timeout_us: int) -> None:
        producer, self._producer, self._refused = self._producer, None, False
        if producer is None:
            return
        try:
            producer.close(timeout=timeout_us / 1e6)
        except Exception:  # noqa: BLE001  a dead broker; what is lost was never acknowledged
            _abandon(producer)
        self._outcomes = deque()

    def forget(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(AttributeError):
                self._producer._unregister_cleanup()
                self._producer._closed = True

    def again(self) -> KafkaTransport:
        return KafkaTransport(self._settings, self._run)


def _abandon(producer: Any) -> None:
    """Ends a producer that could not be closed, so that its sender stops and ``__del__`` does nothing."""
    _stop(producer)
    with contextlib.suppress(AttributeError):
        producer._closed = True


def _stop(producer: Any) -> None:
    """Has the client's thread send nothing any more and give up what waits; may be called on that thread."""
    with contextlib.suppress(Exception):
        producer._sender.initiate_close()
        producer._sender.force_close()


def _probe(servers: list[str], timeout_s: float) -> None:
    """Raises Unavailable if no server accepts a connection."""
    reasons = []
    for server in servers:
        host, _, port = server.rpartition("://")[2].rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
                return
        except ValueError:
            return  # not host:port: let kafka-python judge it
        except OSError as error:
            reasons.append(f"{server}: {error.strerror or error}")
    raise Unavailable("; ".join(reasons) or "no broker is named: set DRIFTLINE_BOOTSTRAP")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__} {error}"[:300]


def _quieten() -> None:
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
