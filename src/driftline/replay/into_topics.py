"""A recorded log into topics under a prefix of its own: same partitions, same order, at a chosen speed.

Each record carries two headers: ``driftline-replay-time`` (its original record time in milliseconds, which
the broker's own stamp replaces) and ``driftline-replay-from`` (topic UUID, partition and offset that it comes
from). The second says, after any interruption, where to go on: the last record of the target partition is
read back. So the topics themselves are the state; nothing comes twice (one sender, in order, retried without
end) and nothing is left out. Two replays at once into one prefix are not guarded against.

Nothing else reads such a prefix: no alarm, evaluation or control of the live one is woken.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from driftline import admin, frames, handshake
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import SettingsError, Unavailable
from driftline.records import Framed, Record
from driftline.replay.player import Source
from driftline.rights import in_words
from driftline.storage.replay_source import Hole, Part

TIME, FROM = "driftline-replay-time", "driftline-replay-from"
FLUSH_RECORDS = 2_000
SILENCE_S = 30.0
Sleep = Callable[[float], None]


class Copied(msgspec.Struct):
    """What a replay into topics did."""

    sent: int = 0
    there: int = 0
    """Offsets that were written before an interruption."""
    holes: int = 0
    """Offsets that the stream worker had found lost: they are left out."""


def target_of(live: KafkaSettings, prefix: str) -> KafkaSettings:
    """The settings of the prefix that is written to. Raises SettingsError for the live one."""
    if prefix == live.prefix or not prefix:
        raise SettingsError("--to-prefix", prefix, "give a prefix that is not the live one, such as replay1.")
    return msgspec.structs.replace(live, prefix=prefix)


def speed_of(text: str) -> float | None:
    """How many times real time; None for as fast as possible. Raises SettingsError.

    >>> speed_of("10x"), speed_of("0.5"), speed_of("max")
    (10.0, 0.5, None)
    """
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise SettingsError("--speed", text, 'give e.g. "10x" (times real time) or "max"')
    return speed


def copy(
    source: Source,
    target: KafkaSettings,
    *,
    speed: float | None = None,
    tell: Callable[[int], None] = lambda records: None,
    sleep: Sleep = time.sleep,
) -> Copied:
    """Writes all records of the source. Raises SettingsError, BadData, Unavailable."""
    uuids = admin.ensure_topics(target)
    topic = target.topics["telemetry"]
    assert topic in uuids
    count = admin.partitions(target, topic)
    done = Copied()
    producer: Any = opened(
        KafkaProducer,
        client_id="driftline-replay",
        acks="all",
        enable_idempotence=not admin.is_embedded(target),
        max_in_flight_requests_per_connection=1,
        linger_ms=5,
        delivery_timeout_ms=86_400_000,
        bootstrap_timeout_ms=5_000,
        **kafka_python(handshake.let_in(target)),
    )
    try:
        streams = []
        for part in source.parts():
            if count is not None and part.partition >= count:
                raise SettingsError(
                    "kafka.partitions",
                    count,
                    f"the log has partition {part.partition}: give the prefix as many",
                )
            last = last_offset(target, part)
            streams.append(_records(source, part, last, done))
        _send(
            heapq.merge(*streams, key=lambda one: (one[1].time_ms, one[0].partition)),
            producer,
            topic,
            speed,
            tell,
            sleep,
            done,
        )
    except KafkaError as error:
        raise Unavailable(f"broker {target.bootstrap}: {in_words(error)}; start it again to go on") from error
    finally:
        producer.close(timeout=10)
    return done


def _records(source: Source, part: Part, last: int, done: Copied) -> Iterator[tuple[Part, Record | Framed]]:
    done.there += max(0, last + 1 - part.start)
    for item in source.stretches(part, last + 1 if last >= 0 else None):
        if isinstance(item, Hole):
            done.holes += item.end - item.start
            continue
        for record in item:
            if record.offset > last:  # configurations from before come first in a replay of some runs
                yield part, record


def _send(
    records: Iterator[tuple[Part, Record | Framed]],
    producer: Any,
    topic: str,
    speed: float | None,
    tell: Callable[[int], None],
    sleep: Sleep,
    done: Copied,
) -> None:
    begin: tuple[float, int] | None = None
    waiting: list[Any] = []
    for part, record in records:
        if speed is not None:
            if begin is None:
                begin = time.monotonic(), record.time_ms
            due_s = begin[0] + (record.time_ms - begin[1]) / 1000 / speed
            if (left := due_s - time.monotonic()) > 0:
                sleep(left)
        waiting.append(_put(producer, topic, part, record))
        if len(waiting) >= FLUSH_RECORDS:
            _delivered(waiting)
            done.sent += len(waiting)
            tell(len(waiting))
            waiting = []
    _delivered(waiting)
    done.sent += len(waiting)
    tell(len(waiting))


def _put(producer: Any, topic: str, part: Part, record: Record | Framed) -> Any:
    value = frames.encode(record.frame) if isinstance(record, Framed) else record.value
    run = record.frame.run.encode() if isinstance(record, Framed) else None
    came = f"{part.topic_uuid}/{part.partition}/{record.offset}"
    return producer.send(
        topic,
        value=value,
        key=run,
        partition=part.partition,
        timestamp_ms=record.time_ms,
        headers=[(TIME, str(record.time_ms).encode()), (FROM, came.encode())],
    )


def _delivered(waiting: list[Any]) -> None:
    for future in waiting:
        future.get(timeout=86_400)


def last_offset(target: KafkaSettings, part: Part) -> int:
    """The offset of the last record of ``part`` that the target has, -1 for none.

    Raises SettingsError if the target's partition holds something else."""
    consumer: Any = opened(
        KafkaConsumer,
        client_id="driftline-replay",
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        bootstrap_timeout_ms=5_000,
        **kafka_python(handshake.let_in(target)),
    )
    try:
        at = TopicPartition(target.topics["telemetry"], part.partition)
        start = admin.offsets(consumer.beginning_offsets, [at])[at]
        consumer.assign([at])
        consumer.seek(at, start)
        last = _last_record(consumer, at, start)
    except KafkaError as error:
        raise Unavailable(f"broker {target.bootstrap}: {in_words(error)}") from error
    finally:
        consumer.close(autocommit=False)
    if last is None:
        return -1
    came = dict(last.headers or ()).get(FROM, b"").decode().rsplit("/", 2)
    if len(came) != 3 or came[:2] != [part.topic_uuid, str(part.partition)]:
        raise SettingsError(
            "--to-prefix", target.prefix, f"{at.topic} holds records of something else: choose another prefix"
        )
    return int(came[2])


def _last_record(consumer: Any, at: Any, start: int) -> Any:
    """What lies at the high watermark that fetches carry; None in an empty partition."""
    begin, last = time.monotonic(), None
    while time.monotonic() - begin < SILENCE_S:
        found = consumer.poll(timeout_ms=200, max_records=500).get(at, [])
        end = consumer.highwater(at)
        if found:
            begin, last = time.monotonic(), found[-1]
        if end is None:
            continue
        if end <= start:
            return None
        if last is not None and last.offset >= end - 1:
            return last
        if last is not None and last.offset < end - 500:
            consumer.seek(at, end - 500)
    if last is None:
        raise Unavailable(f"{at}: no answer for {SILENCE_S:.0f} s")
    return last
