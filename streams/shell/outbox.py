"""Sends outputs in order, knows what was delivered, and lets nothing overtake what failed.

Readers drop what they have seen by a high-water mark of ids, so an output must never be delivered after a
later one of its partition. The producer is idempotent and retries for ever; if a send fails for good all the
same, the outbox is broken: every further call raises, and the worker starts again from its snapshots.

aiokafka 0.14 goes on with the batches behind a failed one, and its ``stop`` flushes them. The broker refuses
them for their sequence numbers where it knows the producer, but not in a partition to which this producer has
delivered nothing so far, nor in a topic made again. So the first failure ends its sender, before it takes the
next batch of that partition.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError

from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.rights import in_words
from driftline.streams.shell.aio_kafka import options
from driftline.streams.shell.seams import Lane, Oversized

MAX_VALUE_BYTES = 1_000_000
"""Key and value; brokers take 1 MiB with the record's own bytes."""
STOP_S = 5.0


class Outbox:
    """A ``Sender``; idempotent except on the embedded broker, which gives out no producer ids."""

    def __init__(self, settings: KafkaSettings, client_id: str, *, idempotent: bool = True) -> None:
        self._idempotent = idempotent
        self._settings = settings
        self._client_id = client_id
        self._producer: Any = None
        self.failure: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """Done, with an exception, once a send has failed for good."""

    async def start(self) -> None:
        """Connects. Raises Unavailable."""
        self._producer = AIOKafkaProducer(
            client_id=self._client_id,
            acks="all",
            enable_idempotence=self._idempotent,
            linger_ms=5,
            max_batch_size=512 * 1024,
            max_request_size=MAX_VALUE_BYTES + 40_000,
            request_timeout_ms=40_000,
            **options(self._settings),
        )
        try:
            await self._producer.start()
        except KafkaError as error:
            await self.stop()
            raise Unavailable(f"broker {self._settings.bootstrap}: {in_words(error)}") from error

    async def stop(self) -> None:
        """Closes within a bound; what is not delivered then is sent again after the next start."""
        try:
            await asyncio.wait_for(self._producer.stop(), STOP_S)
        except (KafkaError, TimeoutError, asyncio.CancelledError):
            self._silence()  # nothing rests on it: snapshots hold only what was delivered
        if not self.failure.done():
            self.failure.cancel()

    async def send(
        self, lane: Lane, topic: str, partition: int, *, key: bytes | None, value: bytes | None
    ) -> None:
        """Hands one record to the producer; waits while its buffer is full.

        Raises:
            Oversized: this record can never be sent; later ones can.
            Unavailable: the outbox is broken.
        """
        if len(key or b"") + len(value or b"") > MAX_VALUE_BYTES:
            raise Oversized(f"{len(value or b'')} bytes for {topic}")
        while True:
            self._check()
            try:
                future = await self._producer.send(topic, value, key=key, partition=partition)
                break
            except KafkaTimeoutError:
                continue  # the buffer is still full: not accepted, so nothing is out of order
            except MessageSizeTooLargeError as error:
                raise Oversized(str(error)) from error
            except KafkaError as error:
                self._break(error)
        lane.sent()
        future.add_done_callback(lambda done: self._delivered(lane, done))

    async def settled(self, lane: Lane) -> None:
        """Returns when all that the lane sent is delivered. Raises Unavailable if it never will be."""
        waiting: asyncio.Future[Any] = asyncio.ensure_future(lane.idle.wait())
        try:
            await asyncio.wait([waiting, self.failure], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._check()

    def _delivered(self, lane: Lane, done: asyncio.Future[Any]) -> None:
        lane.delivered()
        if done.cancelled():
            self._break(KafkaError("send cancelled"))
        elif (error := done.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(Unavailable(f"a send failed for good: {in_words(error)}"))
            self.failure.exception()  # seen: whoever waits raises it again
        self._silence()

    def _silence(self) -> None:
        """Has the producer begin no further request. aiokafka has no public way to stop without a flush."""
        sender = self._producer._sender
        if sender is not None and sender.sender_task is not None:
            sender.sender_task.cancel()

    def _check(self) -> None:
        if self.failure.done():
            self.failure.result()
