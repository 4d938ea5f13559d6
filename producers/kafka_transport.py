"""The transport to Kafka, and what kafka-python needs so that it neither blocks, wedges nor talks.

Measured with kafka-python 3.0.12, and guarded here:

- its constructor waits 30 s and ``send`` 60 s for a broker: the first steps of a connection go first
  (:func:`driftline.handshake.let_in`), both waits are set to what the caller allows;
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
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from driftline import handshake
from driftline.broker import EMBEDDED_CLUSTER
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import Refused, Unavailable
from driftline.producers import forks
from driftline.producers.transport import Outcome
from driftline.rights import in_words
from driftline.topic_rules import Count, few_copies, keyed_by_run, may_send, no_append_time
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
        self._remarks: deque[str] = deque()
        self._knows_times = False

    def open(self, *, timeout_us: int, notify: Callable[[], None]) -> None:
        end_s = time.monotonic() + timeout_us / 1e6
        self._notify = notify
        if self._producer is None:
            self._connect(end_s)
        # A producer that only lacks the topic is kept for the next attempt: making one is dear.
        count = self._count(self._topic, end_s)
        if count == "hidden":
            raise Unavailable(in_words(f"TopicAuthorizationFailedError {self._topic}"))
        if count is None:
            raise Unavailable(
                f"{self._settings.bootstrap} shows no topic {self._topic} yet (missing, or no permission); "
                "`driftline streams` makes the topics"
            )
        self._check(count, end_s)
        self._partition = partition_of(self._run, count)

    def _count(self, topic: str, end_s: float) -> Count:
        """Partitions of a topic. Raises Unavailable."""
        self._producer.config["max_block_ms"] = max(100, int((end_s - time.monotonic()) * 1000))
        try:
            return len(self._producer.partitions_for(topic)) or None
        except Exception as error:
            kind = type(error).__name__
            if kind == "KafkaTimeoutError":
                return None
            if kind == "TopicAuthorizationFailedError":
                return "hidden"
            self.close(timeout_us=0)
            raise Unavailable(f"{self._settings.bootstrap}: {_words(error)}") from error

    def _check(self, count: int, end_s: float) -> None:
        """Raises Refused, as a trainer of this pipeline would send to a topic that must be deleted."""
        topic, wanted = self._topic, self._settings.partitions
        others: dict[str, Count] = {}
        for name in keyed_by_run(self._settings.prefix) if count != wanted else ():
            others[name] = self._count(name, end_s)
            if others[name] not in (count, "hidden"):
                break
        sending = may_send(topic, count, wanted=wanted, others=others)
        if not sending.allowed:
            self.close(timeout_us=0)  # the client would go on to believe in the topic that it knows
            raise Refused(f"topic {topic}", f"{count} partitions", sending.remark)
        self._remark(sending.remark)
        with contextlib.suppress(AttributeError, KeyError, ValueError):
            copies = min(len(p.replica_nodes) for p in self._producer._metadata._partitions[topic].values())
            if copies < self._settings.replication:
                self._remark(few_copies(topic, copies, self._settings.replication))

    def _connect(self, end_s: float) -> None:
        reached = handshake.let_in(self._settings, timeout_s=min(_PROBE_S, end_s - time.monotonic()))
        with forks.importing():
            import kafka  # 0.5 s, so only on the SDK's thread, and only where somebody answers
        _quieten()
        timeout_ms = max(200, int((end_s - time.monotonic()) * 1000))
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
            if not self._knows_times:
                self._look_at_times(producer, future)
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

    def remarks(self) -> list[str]:
        found: list[str] = []
        while self._remarks:
            found.append(self._remarks.popleft())
        return found

    def _remark(self, text: str) -> None:
        if text:
            self._remarks.append(text)

    def _look_at_times(self, producer: Any, future: Any) -> None:
        """The first acknowledgement says whether the broker stamps records: without the right to ask it."""
        self._knows_times = True
        with contextlib.suppress(AttributeError, TypeError, IndexError):
            stamped_ms = future._produce_future.value[1]
            if stamped_ms == -1 and producer._metadata.cluster_id != EMBEDDED_CLUSTER:
                self._remark(no_append_time(self._topic))

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


def _words(error: BaseException) -> str:
    return in_words(f"{type(error).__name__} {error}")


def _quieten() -> None:
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
