"""The sink: reads the topics and appends their rows to the tables, each record's rows exactly once.

    poll -> rows -> (after commit_us or commit_rows) one commit per table, with each partition's offset

Positions come from the tables' own transactions, never from a consumer group: at start, and after any
conflict or failed write, everything that waits is dropped, the positions are read again, and each partition
is read from the smallest position of the tables it feeds; a table that is further on skips what it has. One
sink reads all partitions. A second one on the same tables does no harm and no good: every commit of one makes
the other start again.

A table that got no rows is moved on by an empty commit every ``EMPTY_US`` and at the end. Ticks alone wait
that long too. Every hour it deletes what ``storage.retention`` no longer keeps (:mod:`.upkeep`).

On SIGTERM or Ctrl-C the sink first reads what the topics held at that moment (at most ``CATCH_UP_US``),
commits, compacts, writes ``catalog.duckdb`` and ends with 0; a second signal skips the reading. So stop the
producers and stream workers first, the sink last. Told to stop while broker or disk are away, it tries once
more and says if something stays for the next sink.

Broker away: one line, then tries again until it answers. Folder not writable, or refused by the broker, at
start: one line, exit code 2.
Disk full or a failed write later: one line, nothing is committed, tries again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError

from driftline import admin, handshake
from driftline.clock import SECOND_US, Clock, SystemClock
from driftline.connection import kafka_python
from driftline.errors import BadData, Refused, SettingsError, Unavailable
from driftline.records import Record
from driftline.settings import Settings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.dead_letters import DeadLetters
from driftline.storage.lake import Lake
from driftline.storage.store import Conflict
from driftline.storage.tables import FEEDS
from driftline.storage.upkeep import Upkeep
from driftline.visible import visible

EMPTY_US = 30 * SECOND_US
CATCH_UP_US = 15 * SECOND_US
_HEALTH_US = 10 * SECOND_US
_RETRY_US = SECOND_US
_QUIET_US = 10 * SECOND_US
_POLL_MS = 200
_POLL_RECORDS = 4_000
_MAX_WAITING_BYTES = 256 * 1024 * 1024

Say = Callable[[str], None]


def run_sink(
    settings: Settings,
    *,
    stop: threading.Event | None = None,
    say: Say | None = None,
    clock: Clock | None = None,
) -> int:
    """Runs until SIGTERM, Ctrl-C or ``stop`` is set; returns the exit code.

    0 after a clean stop, 1 if a table is broken, 2 if a setting or the folder must be mended. Signals are
    handled only when called on the main thread. ``say`` gets one line at a time (default: standard error).
    """
    say = say or _to_stderr
    stopping = _Stopping(stop or threading.Event())
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its lines repeat what ours say once
    with stopping.on_signals():
        try:
            sink = Sink(settings, say=say, clock=clock or SystemClock())
            sink.run(stopping)
        except SettingsError as error:
            say(f"sink: {error}")
            return 2
        except BadData as error:
            say(f"sink: {error}")
            return 1
    return 0


class _Stopping:
    """Whether to stop, and whether to hurry."""

    def __init__(self, event: threading.Event) -> None:
        self.event = event
        self.hurry = False

    def _signal(self, *_: object) -> None:
        self.hurry = self.event.is_set()
        self.event.set()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Sink:
    """One sink over all partitions; :meth:`run` is its life.

    Raises SettingsError or BadData where the folder or its tables cannot be used.
    """

    def __init__(self, settings: Settings, *, say: Say, clock: Clock) -> None:
        self._kafka = settings.kafka
        self._storage = settings.storage
        self._say = say
        self._clock = clock
        self._lake = Lake(settings.storage.root)
        self._core = SinkCore(self._lake)
        self._counts = self._core.counts
        self._spots: dict[Any, Spot] = {}
        self._upkeep = Upkeep(self._lake, settings.storage, counts=self._counts, say=say, clock=clock)
        self._dead = DeadLetters(settings.kafka, clock)
        now = clock.steady_us()
        self._waiting_since: int | None = None
        self._last_empty = self._last_health = now
        self._last_said: Counter[str] = Counter()
        self._last_heard = now
        self._behind = 0
        """Records that the topics had and we had not, when last looked."""
        self._trouble: str | None = None
        self._let_in = False
        """The broker has let us in before."""

    # --- life ----------------------------------------------------------------------------------------------

    def run(self, stopping: _Stopping) -> None:
        """Reads and commits until told to stop; waits where broker or disk are away.

        Told to stop while it has no session, it tries one more, to store what the topics hold.
        """
        done = last = False
        while not (done or last or stopping.hurry):
            last = stopping.event.is_set()
            try:
                self._session(stopping)
                done = True
            except (Unavailable, KafkaError) as error:
                if isinstance(error, Refused) and not self._let_in:
                    raise error.at_start() from error
                self._wait(str(error), stopping)
            except Conflict as error:
                self._counts["conflicts"] += 1
                self._wait(f"another sink writes the same tables: {error}", stopping)
        if not done:
            self._say("sink: stopped before all was stored; the next sink goes on where this one stood")
        self._upkeep.finish()
        self._health()

    def _session(self, stopping: _Stopping) -> None:
        """From connecting to the end or the first trouble."""
        uuids = admin.ensure_topics(self._kafka)
        self._let_in = True
        with self._consumer() as consumer:
            self._resume(consumer, uuids)
            while not stopping.event.is_set():
                self._read(consumer)
                self._on_time(consumer)
            self._catch_up(consumer, stopping)
            self._commit(empty=True)

    def _wait(self, trouble: str, stopping: _Stopping) -> None:
        """One line for a new trouble, then a pause, unless told to stop."""
        if trouble != self._trouble:
            self._say(f"sink: waiting, trying again every second: {trouble}")
            self._trouble = trouble
        stopping.event.wait(_RETRY_US / SECOND_US)

    # --- reading -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _consumer(self, **options: Any) -> Iterator[Any]:
        consumer = KafkaConsumer(
            client_id="driftline-sink",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            fetch_max_wait_ms=_POLL_MS,
            max_partition_fetch_bytes=8 * 1024 * 1024,
            bootstrap_timeout_ms=5_000,
            **kafka_python(handshake.let_in(self._kafka)),
            **options,
        )
        try:
            yield consumer
        finally:
            with contextlib.suppress(KafkaError):
                consumer.close(autocommit=False)

    def _resume(self, consumer: Any, uuids: dict[str, str]) -> None:
        """Forgets what waits, reads positions and marks from the tables, and seeks there."""
        topics = self._kafka.topics
        self._spots = {
            TopicPartition(topics[name], partition): Spot(name, uuids[topics[name]], partition)
            for name in FEEDS
            for partition in range(self._kafka.partitions)
        }
        consumer.assign(list(self._spots))
        oldest = admin.offsets(consumer.beginning_offsets, self._spots)
        starts = self._core.resume({spot: oldest[place] for place, spot in self._spots.items()})
        for place, spot in self._spots.items():
            consumer.seek(place, starts[spot])
        for gap in self._core.gaps:
            self._say(
                f"sink: {topics[gap.spot.topic]}/{gap.spot.partition} no longer has offsets {gap.first} to "
                f"{gap.last}: their rows are lost (raise the topic's retention above the sink's longest "
                "outage)"
            )
        self._waiting_since = None
        self._last_heard = self._clock.steady_us()
        if self._trouble is None:
            self._say(f"sink: reading from {self._kafka.bootstrap} into {self._lake.root}")

    def _read(self, consumer: Any) -> int:
        """One poll; returns the number of records."""
        try:
            polled = consumer.poll(timeout_ms=_POLL_MS, max_records=_POLL_RECORDS)
        except OffsetOutOfRangeError as error:
            raise Unavailable(
                f"the broker does not have the position that the tables stand at ({error}); if its log was "
                "cut, delete the topic: driftline makes it anew and keeps all rows"
            ) from error
        now = self._clock.steady_us()
        if polled:
            self._last_heard = now
            if self._trouble is not None:
                self._say("sink: going on")
            self._trouble = None
        elif now - self._last_heard > _QUIET_US:
            self._last_heard = now  # the client hides a lost broker: ask it something that must be answered
            admin.offsets(consumer.beginning_offsets, [next(iter(self._spots))], timeout_ms=5_000)
        for place, found in polled.items():
            records = (Record(raw.partition, raw.offset, raw.timestamp, raw.value) for raw in found)
            self._core.take(self._spots[place], records)
        return sum(map(len, polled.values()))

    def _catch_up(self, consumer: Any, stopping: _Stopping) -> None:
        """Reads to the end of what is there, within a bound."""
        until = self._clock.steady_us() + CATCH_UP_US
        ends = self._ends(consumer, stopping, until)
        while True:
            self._behind = sum(max(0, end - consumer.position(spot)) for spot, end in ends.items())
            if not self._behind or stopping.hurry or self._clock.steady_us() > until:
                return
            self._read(consumer)
            self._on_time(consumer)

    def _ends(self, consumer: Any, stopping: _Stopping, until: int) -> dict[Any, int]:
        """Where each partition ends now: the high watermark in the first fetch of another consumer.

        Ours tells only of partitions that it has come to, and the embedded broker's ListOffsets is wrong.
        """
        with self._consumer(fetch_max_bytes=1) as scout:
            scout.assign(consumer.assignment())
            for spot in consumer.assignment():
                scout.seek(spot, consumer.position(spot))
            while True:
                scout.poll(timeout_ms=_POLL_MS)
                ends = {spot: scout.highwater(spot) for spot in consumer.assignment()}
                if None not in ends.values() or stopping.hurry:
                    return {spot: end for spot, end in ends.items() if end is not None}
                if self._clock.steady_us() > until:
                    raise Unavailable(f"{self._kafka.bootstrap} does not say where its topics end")

    # --- writing -------------------------------------------------------------------------------------------

    def _on_time(self, consumer: Any) -> None:
        """Retention, commits, the catalog and the health line, each when it is due."""
        telemetry = next(spot for spot in self._spots.values() if spot.topic == "telemetry")
        self._upkeep.expire(telemetry.uuid, self._kafka.partitions)
        now = self._clock.steady_us()
        if self._core.pressing and self._waiting_since is None:
            self._waiting_since = now
        late = self._waiting_since is not None and now - self._waiting_since >= self._storage.commit_us
        empty = now - self._last_empty >= EMPTY_US
        full = self._core.waiting >= self._storage.commit_rows
        full = full or self._core.waiting_bytes > _MAX_WAITING_BYTES
        if late or full or empty:
            self._commit(empty=empty)
            self._upkeep.compact()
        self._upkeep.renew_catalog()
        if now - self._last_health >= _HEALTH_US:
            self._behind = _lag(consumer)
            self._health()

    def _commit(self, *, empty: bool) -> None:
        """Commits what waits; with ``empty`` also moves on the tables that got no rows."""
        if self._core.letters:
            self._dead.send(self._core.letters)
            self._core.letters.clear()
        self._waiting_since = None
        for committed in self._core.commits(empty=empty):
            if committed.rows:
                self._upkeep.changed()
        if empty:
            self._last_empty = self._clock.steady_us()

    def _health(self) -> None:
        """One line of counters, if any of them moved."""
        self._last_health = self._clock.steady_us()
        counts = self._counts
        if counts == self._last_said:
            return
        self._last_said = counts.copy()
        named = ("received", "samples", "rows", "commits", "duplicate", "undecodable", "unknown")
        rare = ("rows expired", "gaps", "conflicts", "catalog_errors")
        shown = [f"{name} {counts[name]:,}" for name in named] + [f"behind {self._behind:,}"]
        self._say(
            "sink: " + ", ".join([*shown, *(f"{name} {counts[name]:,}" for name in rare if counts[name])])
        )


def _lag(consumer: Any) -> int:
    """Records between the reading positions and the high watermarks of the last fetches."""
    spots = consumer.assignment()
    return sum(max(0, (consumer.highwater(spot) or 0) - consumer.position(spot)) for spot in spots)


def _to_stderr(line: str) -> None:
    print(visible(line), file=sys.stderr, flush=True)


def main() -> int:
    """``python -m driftline.storage.sink``: settings from the file and the environment."""
    from driftline.settings import load

    try:
        settings = load()
    except SettingsError as error:
        _to_stderr(f"sink: {error}")
        return 2
    return run_sink(settings)


if __name__ == "__main__":
    sys.exit(main())
