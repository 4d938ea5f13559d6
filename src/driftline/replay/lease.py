"""Who may write to a prefix: one replay at a time, by records in the prefix's own topic ``control``.

Every record of partition 0 is a claim, a sign of life or a release, and all readers follow them in the same
order, so they agree on who holds the lease without any clock: a claim counts if nobody holds it, or if it
names the last sign of life of the one who does (then nothing came from that one since). Whoever finds a
holder waits for ``SILENT_S``. It hears something: another replay writes there, and it is refused. It hears
nothing: that one is dead, and it claims. A holder that could give no sign of life for ``SILENT_S`` stops
writing by itself; what it had handed to its Kafka client by then may still arrive.

The records look like events of an unknown kind, which every reader of ``control`` passes over.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka import TopicPartition
from kafka.errors import KafkaError

from driftline import admin
from driftline.connection import KafkaSettings
from driftline.errors import SettingsError, Unavailable
from driftline.rights import in_words
from driftline.storage.reading import POLL_MS, groupless

SILENT_S = 20.0
KIND = "replay_lease"
_TAIL = 1_000
"""Records that are looked at: a holder gives a sign of life every quarter of SILENT_S."""


class Lease(NamedTuple):
    """Who holds it, and the offset of the last sign of life."""

    holder: str | None = None
    offset: int = -1


def follow(lease: Lease, value: bytes | None, offset: int) -> Lease:
    """The lease after one more record. Pure.

    >>> lease = follow(Lease(), claim("a", Lease()), 4)
    >>> follow(lease, claim("b", Lease("a", 3)), 5).holder, follow(lease, claim("b", lease), 5).holder
    ('a', 'b')
    """
    try:
        said = json.loads(value or b"")
        kind, who, what, after = (said[name] for name in ("kind", "holder", "what", "after"))
    except (ValueError, KeyError, TypeError):
        return lease
    if kind != KIND:
        return lease
    if what == "alive" and lease.holder in (who, None):
        return Lease(who, offset)
    if what == "claimed" and (lease.holder is None or lease.offset == after):
        return Lease(who, offset)
    if what == "released" and lease.holder == who:
        return Lease(None, offset)
    return lease


def claim(who: str, lease: Lease) -> bytes:
    """The record with which ``who`` claims what it found."""
    return _record(who, "claimed", lease.offset)


def _record(who: str, what: str, after: int = -1) -> bytes:
    return json.dumps({"kind": KIND, "v": 1, "holder": who, "what": what, "after": after}).encode()


class Holding:
    """The lease while it is held."""

    def __init__(self, target: KafkaSettings, producer: Any, who: str) -> None:
        self._topic = target.topics["control"]
        self._prefix = target.prefix
        self._producer = producer
        self._who = who
        self._alive_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.keep, name="driftline-replay-lease", daemon=True)

    def begin(self) -> None:
        """Gives signs of life from now on."""
        self._thread.start()

    def check(self) -> None:
        """Raises Unavailable if no sign of life could be given for too long: another may write by now."""
        if time.monotonic() > self._alive_s + SILENT_S:
            raise Unavailable(
                f"{self._prefix}: no sign of life for {SILENT_S:.0f} s; start it again to go on"
            )

    def keep(self) -> None:
        """Gives signs of life until it is over; runs in a thread of its own."""
        while not self._over.wait(SILENT_S / 4):
            begin = time.monotonic()
            with contextlib.suppress(KafkaError):
                self._send("alive")
                self._alive_s = begin

    def release(self) -> None:
        """Says that it is over. No sign of life may come behind that: it would be taken for a holder."""
        self._over.set()
        self._thread.join(timeout=SILENT_S)
        with contextlib.suppress(KafkaError):
            self._send("released")

    def _send(self, what: str) -> None:
        future = self._producer.send(self._topic, value=_record(self._who, what), partition=0)
        future.get(timeout=SILENT_S / 2)


@contextlib.contextmanager
def held(target: KafkaSettings, producer: Any) -> Iterator[Holding]:
    """Holds the lease of the prefix for a while. Raises SettingsError if another replay does, Unavailable."""
    who = secrets.token_hex(8)
    holding = Holding(target, producer, who)
    at = TopicPartition(target.topics["control"], 0)
    consumer: Any = groupless(target, client_id="driftline-replay")
    try:
        lease = _read(consumer, at, Lease())
        if lease.holder is not None:
            lease = _silence(consumer, at, lease, target.prefix)
        claimed = producer.send(at.topic, value=claim(who, lease), partition=0).get(timeout=60)
        if _read(consumer, at, lease, claimed.offset).holder != who:
            raise _taken(target.prefix)
    except KafkaError as error:
        raise Unavailable(f"broker {target.bootstrap}: {in_words(error)}") from error
    finally:
        consumer.close(autocommit=False)
    holding.begin()
    try:
        yield holding
    finally:
        holding.release()


def _taken(prefix: str) -> SettingsError:
    remedy = "another replay writes to this prefix now: let it end, or choose another prefix"
    return SettingsError("--to-prefix", prefix, remedy)


def _silence(consumer: Any, at: Any, lease: Lease, prefix: str) -> Lease:
    """Waits until the holder has been silent for long enough. Raises SettingsError if it is not."""
    deadline_s = time.monotonic() + SILENT_S
    while time.monotonic() < deadline_s:
        now = _read(consumer, at, lease)
        if now.holder is None:
            return now
        if now != lease:
            raise _taken(prefix)
    return lease


def _read(consumer: Any, at: Any, lease: Lease, upto: int = -1) -> Lease:
    """Follows the partition to its end of now, beyond ``upto``."""
    if at not in (consumer.assignment() or ()):
        consumer.assign([at])
        start = admin.offsets(consumer.beginning_offsets, [at])[at]
        consumer.seek(at, start)
    heard_s, first = time.monotonic(), True
    while time.monotonic() < heard_s + SILENT_S:
        found = consumer.poll(timeout_ms=POLL_MS, max_records=_TAIL).get(at, [])
        for record in found:
            lease = follow(lease, record.value, record.offset)
        end = consumer.highwater(at)
        if end is None:
            continue
        position = consumer.position(at)
        if position >= end and position > upto:
            return lease
        if first and end - position > 2 * _TAIL:
            consumer.seek(at, end - _TAIL)
        first = False
        if found:
            heard_s = time.monotonic()
    raise Unavailable(f"{at.topic}: no answer for {SILENT_S:.0f} s")
