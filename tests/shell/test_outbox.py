"""The outbox on a real Kafka: what failed is not overtaken, whatever aiokafka does with what is behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.streams.shell.outbox import Outbox
from driftline.streams.shell.seams import Lane

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
LARGE = b"a" * 600_000
"""Fills a batch by itself, so that what comes behind it waits in the next one."""


@pytest.fixture
def narrow(kafka: Any) -> KafkaSettings:
    """Where "facts" takes no such record, which a worker cannot know."""
    settings: KafkaSettings = kafka.settings(partitions=1)
    facts = NewTopic(settings.topics["facts"], 1, 1, topic_configs={"max.message.bytes": "100000"})
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=settings.bootstrap)) as admin:
        admin.create_topics([facts])
    return settings


def test_what_waits_behind_a_failed_output_is_not_delivered_before_it(
    narrow: KafkaSettings, read_all: Callable[..., list[Any]]
) -> None:
    """Neither by itself nor by the flush at the stop, in a partition where the broker knows no sequence yet:
    readers would take it for the newest output, and drop the failed one when it is sent again."""
    topic = narrow.topics["facts"]

    async def fail() -> None:
        outbox = Outbox(narrow, "first")
        await outbox.start()
        lane = Lane()
        await outbox.send(lane, topic, 0, key=b"k", value=LARGE)
        for behind in (b"b", b"c"):
            await outbox.send(lane, topic, 0, key=b"k", value=behind)
        with pytest.raises(Unavailable, match="MessageSizeTooLarge"):
            await asyncio.wait_for(outbox.settled(lane), 120)
        with pytest.raises(Unavailable):
            await outbox.send(lane, topic, 0, key=b"k", value=b"d")
        await outbox.stop()

    asyncio.run(fail())
    assert read_all(narrow, "facts", 0) == []


def test_a_stop_delivers_what_waits_in_order(
    narrow: KafkaSettings, read_all: Callable[..., list[Any]]
) -> None:
    async def work() -> None:
        outbox = Outbox(narrow, "second")
        await outbox.start()
        for number in range(100):
            await outbox.send(Lane(), narrow.topics["facts"], 0, key=b"k", value=b"%d" % number)
        await outbox.stop()

    asyncio.run(work())
    assert [record.value for record in read_all(narrow, "facts", 0)] == [b"%d" % n for n in range(100)]
