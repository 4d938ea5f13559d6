"""A recorded log into topics under a prefix of its own: same partitions, same order, at a chosen speed.

Each record carries two headers: ``driftline-replay-time`` (its original record time in milliseconds, which
the broker's own stamp replaces) and ``driftline-replay-from`` (topic UUID, partition and offset that it comes
from). The second says, after any interruption, where to go on: the last record of the target partition is
read back. So the topics themselves are the state; nothing comes twice (one sender, in order, retried without
end) and nothing is left out. Of two replays into one prefix at once the second is refused (``lease``).

Nothing else reads such a prefix: no alarm, evaluation or control of the live one is woken. No stream worker
belongs there either, since it would add ticks and a configuration of today to the log. What one would say is
sent by the replay itself if asked (``said``): windows, facts and alerts of the pure pipeline over the
recorded offsets and times, so with the ids that they had. Requests for evaluations are never sent: whoever
wants them evaluates the checkpoints.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from driftline import admin, frames, handshake
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import SettingsError, Unavailable
from driftline.records import Framed, Output, Record
from driftline.replay import lease
from driftline.replay.player import Player, Source
from driftline.rights import in_words
from driftline.storage.recorded.source import Hole, Part
from driftline.topics import TopicName

TIME, FROM = "driftline-replay-time", "driftline-replay-from"
FLUSH_RECORDS = 2_000
PLAYED = 200
"""Records that go through the pipeline together, before they are sent."""
SAID: tuple[TopicName, ...] = ("windows", "facts", "alerts")
SILENCE_S = 30.0
Sleep = Callable[[float], None]


class Copied(msgspec.Struct):
    """What a replay into topics did."""

    sent: int = 0
    there: int = 0
    """Offsets that were written before an interruption."""
    outputs: int = 0
    """What the pipeline said, of this prefix: windows, facts, alerts, requests."""
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
    said: Collection[TopicName] = (),
    tell: Callable[[int], None] = lambda records: None,
    sleep: Sleep = time.sleep,
) -> Copied:
    """Writes all records of the source, and of the outputs those for the topics in ``said``.

    Raises SettingsError, BadData, Unavailable.
    """
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
        with lease.held(target, producer) as holding:
            streams = []
            for part in source.parts():
                if count is not None and part.partition >= count:
                    raise SettingsError(
                        "kafka.partitions",
                        count,
                        f"the log has partition {part.partition}: give the prefix as many",
                    )
                last = last_offset(target, part)
                marks = {name: last_output(target, name, part) for name in said}
                streams.append(_entries(source, part, last, marks, done))
            merged = heapq.merge(*streams, key=lambda one: (one.time_ms, one.partition))
            _send(merged, producer, target, speed, tell, sleep, holding.check)
    except KafkaError as error:
        raise Unavailable(f"broker {target.bootstrap}: {in_words(error)}; start it again to go on") from error
    finally:
        producer.close(timeout=10)
    return done


class _Entry(NamedTuple):
    """Something to be sent, and when it was recorded."""

    time_ms: int
    partition: int
    topic: TopicName
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def _entries(
    source: Source, part: Part, last: int, marks: Mapping[TopicName, tuple[int, int]], done: Copied
) -> Iterator[_Entry]:
    """The records behind ``last``, each followed by what is said of it and lies behind the marks."""
    done.there += max(0, last + 1 - part.start)
    start = last + 1 if last >= 0 and not marks else None  # what is said rests on all that came before
    player = Player(part, source.configurations(part)) if marks else None
    for item in source.stretches(part, start):
        if isinstance(item, Hole):
            done.holes += item.end - item.start
            made = player.play(item) if player is not None else []
            yield from _outputs(made, marks, 0, done)
            continue
        for at in range(0, len(item), PLAYED):
            some = item[at : at + PLAYED]
            of = _by_offset(player.play(some)) if player is not None else {}
            for record in some:
                if record.offset > last:
                    done.sent += 1
                    yield _entry(part, record)
                yield from _outputs(of.get(record.offset, ()), marks, record.time_ms, done)


def _by_offset(outputs: Sequence[Output]) -> dict[int, list[Output]]:
    found: dict[int, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.id.offset, []).append(output)
    return found


def _outputs(
    outputs: Sequence[Output], marks: Mapping[TopicName, tuple[int, int]], time_ms: int, done: Copied
) -> Iterator[_Entry]:
    for output in outputs:
        if output.topic in marks and (output.id.offset, output.id.ordinal) > marks[output.topic]:
            partition = output.id.partition
            done.outputs += 1
            came = [(FROM, str(output.id).encode())]
            yield _Entry(time_ms, partition, output.topic, output.run.encode() or None, output.value, came)


def _entry(part: Part, record: Record | Framed) -> _Entry:
    came = f"{part.topic_uuid}/{part.partition}/{record.offset}"
    headers = [(TIME, str(record.time_ms).encode()), (FROM, came.encode())]
    key, value = None, None
    if isinstance(record, Framed):
        key, value = record.frame.run.encode(), frames.encode(record.frame)
    else:
        value = record.value
    return _Entry(record.time_ms, part.partition, "telemetry", key, value, headers)


def _send(
    entries: Iterator[_Entry],
    producer: Any,
    target: KafkaSettings,
    speed: float | None,
    tell: Callable[[int], None],
    sleep: Sleep,
    check: Callable[[], None],
) -> None:
    begin: tuple[float, int] | None = None
    waiting: list[Any] = []
    for entry in entries:
        if speed is not None and entry.time_ms:
            begin = begin or (time.monotonic(), entry.time_ms)
            due_s = begin[0] + (entry.time_ms - begin[1]) / 1000 / speed
            if (left := due_s - time.monotonic()) > 0:
                sleep(left)
        check()
        waiting.append(
            producer.send(
                target.topics[entry.topic],
                value=entry.value,
                key=entry.key,
                partition=entry.partition,
                timestamp_ms=entry.time_ms or None,
                headers=entry.headers,
            )
        )
        if len(waiting) >= FLUSH_RECORDS:
            _delivered(waiting)
            tell(len(waiting))
            waiting = []
    _delivered(waiting)
    tell(len(waiting))


def _delivered(waiting: list[Any]) -> None:
    for future in waiting:
        future.get(timeout=86_400)


def last_offset(target: KafkaSettings, part: Part) -> int:
    """The offset of the last record of ``part`` that the target has, -1 for none.

    Raises SettingsError if the target's partition holds something else."""
    came = _last_came(target, "telemetry", part)
    return -1 if came is None else int(came[2])


def last_output(target: KafkaSettings, topic: TopicName, part: Part) -> tuple[int, int]:
    """Offset and ordinal of the last output that the target has of ``part``, (-1, -1) for none."""
    came = _last_came(target, topic, part)
    return (-1, -1) if came is None else (int(came[2]), int(came[3]))


def _last_came(target: KafkaSettings, topic: TopicName, part: Part) -> list[str] | None:
    """Where the last record of a partition says that it comes from; None in an empty one."""
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
        at = TopicPartition(target.topics[topic], part.partition)
        start = admin.offsets(consumer.beginning_offsets, [at])[at]
        consumer.assign([at])
        consumer.seek(at, start)
        last = _last_record(consumer, at, start)
    except KafkaError as error:
        raise Unavailable(f"broker {target.bootstrap}: {in_words(error)}") from error
    finally:
        consumer.close(autocommit=False)
    if last is None:
        return None
    came: list[str] = dict(last.headers or ()).get(FROM, b"").decode().split("/")
    if len(came) != (3 if topic == "telemetry" else 4) or came[:2] != [part.topic_uuid, str(part.partition)]:
        remedy = f"{at.topic} holds records of something else: choose another prefix"
        raise SettingsError("--to-prefix", target.prefix, remedy)
    return came


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
