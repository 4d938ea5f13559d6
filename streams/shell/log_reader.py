"""Reads ranges of a partition from the log itself, without a consumer group: every offset, or an error.

What the log ends at is taken from fetch responses (the high watermark they carry), never from
``ListOffsets(latest)``, which the embedded broker answers wrongly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.rights import in_words
from driftline.streams.shell.aio_kafka import options
from driftline.streams.shell.seams import Bounds, OutOfLog

FETCH_BYTES = 4 * 1024 * 1024
SILENCE_S = 30.0
"""A broker that answers no fetch for so long is taken for unreachable."""


class LogReader:
    """A ``LogView``: an async context manager around one consumer that is assigned one partition."""

    def __init__(self, settings: KafkaSettings, topic: str, partition: int) -> None:
        self._settings = settings
        self._at = TopicPartition(topic, partition)
        self._consumer: Any = None

    async def __aenter__(self) -> LogReader:
        self._consumer = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_wait_ms=100,
            **options(self._settings),
        )
        try:
            await self._consumer.start()
        except KafkaError as error:
            await self._consumer.stop()
            raise Unavailable(f"broker {self._settings.bootstrap}: {in_words(error)}") from error
        self._consumer.assign([self._at])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._consumer.stop()

    async def bounds(self) -> Bounds:
        """First offset and high watermark as of now."""
        try:
            start = (await self._consumer.beginning_offsets([self._at]))[self._at]
        except KafkaError as error:
            raise Unavailable(f"{self._at}: first offset unknown: {in_words(error)}") from error
        self._consumer.seek(self._at, start)
        async with asyncio.timeout(SILENCE_S):
            while self._consumer.highwater(self._at) is None:
                await self._fetch(max_records=1)
        return Bounds(start, self._consumer.highwater(self._at))

    async def read(self, start: int, end: int) -> AsyncIterator[list[Any]]:
        """Consumer records of [start, end), in batches; may go beyond ``end`` within the last one.

        Raises:
            OutOfLog: ``start`` lies before the log's first offset, or behind its end.
            Unavailable: no answer for 30 s.
        """
        self._consumer.seek(self._at, start)
        position = start
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while position < end:
            batch = await self._fetch(max_records=500)
            moved = await self._consumer.position(self._at)
            if batch or moved > position:
                heard = loop.time()
            elif loop.time() - heard > SILENCE_S:
                raise Unavailable(f"{self._at}: nothing at offset {position} for {SILENCE_S:.0f} s")
            position = moved
            if batch:
                yield batch

    async def _fetch(self, *, max_records: int) -> list[Any]:
        try:
            found = await self._consumer.getmany(self._at, timeout_ms=200, max_records=max_records)
        except OffsetOutOfRangeError as error:
            raise OutOfLog(str(error)) from error
        except KafkaError as error:
            raise Unavailable(f"{self._at}: {in_words(error)}") from error
        batch: list[Any] = found.get(self._at, [])
        return batch
