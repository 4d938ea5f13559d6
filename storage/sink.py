"""The sink: reads the topics and appends their rows to the tables, each record's rows exactly once.

    poll -> rows -> (after commit_us or commit_rows) one commit per table, with each partition's offset

Positions come from the tables' own transactions, never from a consumer group (:mod:`.core`). The group only
divides the partitions between the sinks of the same tables (:mod:`.membership`): start a second one, and each
reads half; when one ends, is killed or paused, the others read its part within seconds. Whenever its share
changes, a sink commits what waits, reads positions and marks again and goes on from there. Where two believe
that a partition is theirs, the tables refuse the commit of one, which then starts again.

A table that got no rows is moved on by an empty commit every ``EMPTY_US`` and at the end. Ticks alone wait
that long too. Every hour the sink that has partition 0 deletes what ``storage.retention`` no longer keeps;
small files are merged in a thread of its own (:mod:`.upkeep`).

On SIGTERM or Ctrl-C the sink first reads what its partitions held at that moment (at most ``CATCH_UP_US``),
commits, leaves the group, gives up a merge that it is at, merges for ``_END_S`` at most, writes
``catalog.duckdb`` and ends with 0; a second signal skips reading and merging. So stop the producers and
stream workers first, the sinks last. Told to stop while broker or disk are away, it tries once more and says
if something stays for the next sink.

Broker away: one line, then tries again until it answers. Folder not writable, or refused by the broker, at
start: one line, exit code 2. Disk full or a failed write later: one line, nothing is committed, tries again.
While trouble lasts, the line comes again every minute.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from kafka.errors import KafkaError

from driftline.admin import Retention
from driftline.clock import SECOND_US, Clock, SystemClock
from driftline.errors import BadData, Refused, SettingsError, Unavailable
from driftline.records import Record
from driftline.rights import in_words
from driftline.settings import Settings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.dead_letters import DeadLetters
from driftline.storage.foresight import warnings
from driftline.storage.lakes import open_lake
from driftline.storage.membership import Membership
from driftline.storage.merger import Merger
from driftline.storage.reading import Reader, reading
from driftline.storage.store import Conflict
from driftline.storage.trouble import AGAIN_US, Trouble
from driftline.storage.upkeep import Upkeep
from driftline.topics import TopicName
from driftline.visible import visible

EMPTY_US = 30 * SECOND_US
CATCH_UP_US = 15 * SECOND_US
_HEALTH_US = 10 * SECOND_US
_RETRY_US = SECOND_US
_NO_GROUP_US = 20 * SECOND_US
"""A sink that has no partitions for so long says why."""
_END_S = 10.0
"""Of merging at the end."""
_MAX_WAITING_BYTES = 256 * 1024 * 1024
_RARE = (
    "merges",
    "rows expired",
    "gaps",
    "records lost",
    "conflicts",
    "catalog_errors",
    "upkeep errors",
    "files set aside",
)
"""Counts that are shown only if they are not 0."""

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
    """One sink; :meth:`run` is its life.

    Raises SettingsError or BadData where the folder or its tables cannot be used.
    """

    def __init__(self, settings: Settings, *, say: Say, clock: Clock) -> None:
        self._kafka = settings.kafka
        self._storage = settings.storage
        self._say = say
        self._clock = clock
        self._lake = open_lake(settings.storage.root)
        self._core = SinkCore(self._lake)
        self._counts = self._core.counts
        merger = Merger(lambda: open_lake(settings.storage.root), clock=clock)
        self._upkeep = Upkeep(
            self._lake, settings.storage, counts=self._counts, say=say, clock=clock, merger=merger
        )
        self._dead = DeadLetters(settings.kafka)
        self._trouble = Trouble()
        self._danger = Trouble()
        """Of topics that are about to delete what is not stored."""
        self._kept: dict[TopicName, Retention] | None = None
        self._asked_us = 0
        self._membership: Membership | None = None
        self._mine: frozenset[int] | None = None
        """The partitions that are being read; None: none yet, or no longer."""
        self._said_share: frozenset[int] | None = None
        now = clock.steady_us()
        self._waiting_since: int | None = None
        self._last_empty = self._last_health = now
        self._idle_since = now
        """Since when the group has given no partitions, while ``_mine`` is None."""
        self._last_said: Counter[str] = Counter()
        self._behind = 0
        """Records that the topics had and we had not, when last looked."""
        self._let_in = False
        """The broker has let us in before."""

    # --- life ----------------------------------------------------------------------------------------------

    def run(self, stopping: _Stopping) -> None:
        """Reads and commits until told to stop; waits where broker or disk are away.

        Told to stop while it has no session, it tries one more, to store what the topics hold.
        """
        done = last = False
        try:
            while not (done or last or stopping.hurry):
                last = stopping.event.is_set()
                try:
                    self._session(stopping)
                    done = True
                except (Unavailable, KafkaError) as error:
                    if isinstance(error, Refused) and not self._let_in:
                        raise error.at_start() from error
                    self._keep()
                    self._wait(_in_words(error), stopping)
                except Conflict as error:
                    self._counts["conflicts"] += 1
                    self._wait(f"another sink wrote what this one was about to: {error}", stopping)
        finally:
            self._upkeep.stop()
            if self._membership is not None:
                self._membership.close()
            self._upkeep.close()
        if not done:
            self._say("sink: stopped before all was stored; the next sink goes on where this one stood")
        self._upkeep.finish(within_s=_END_S, stop=lambda: stopping.hurry)
        self._health()

    def _session(self, stopping: _Stopping) -> None:
        """From connecting to the end or the first trouble."""
        with reading(self._kafka, self._clock) as reader:
            self._let_in = True
            self._mine, self._idle_since = None, self._clock.steady_us()
            if self._membership is None:
                session_us = self._storage.session_timeout_us
                group = f"sink-{self._lake.id}"
                self._membership = Membership(self._kafka, group, session_us=session_us, clock=self._clock)
            while not stopping.event.is_set():
                self._turn(reader, self._membership)
            self._upkeep.stop()
            self._catch_up(reader, self._membership, stopping)
            if self._mine is None:
                raise Unavailable(self._membership.trouble or "the group gave this sink no answer")
            self._commit(empty=True)
            self._well()

    def _wait(self, trouble: str, stopping: _Stopping) -> None:
        """A line for a new trouble, or one that lasts; then a pause, unless told to stop."""
        if line := self._trouble.line(trouble, self._clock.steady_us()):
            self._say(f"sink: waiting, trying again every second: {line}")
        stopping.event.wait(_RETRY_US / SECOND_US)

    # --- reading -------------------------------------------------------------------------------------------

    def _turn(self, reader: Reader, membership: Membership) -> None:
        """One round: follow the group, read, and do what is due."""
        membership.beat()
        partitions = membership.partitions
        if partitions is None:
            if self._mine is not None:
                self._mine, self._idle_since = None, self._clock.steady_us()
            if self._clock.steady_us() - self._idle_since > _NO_GROUP_US:
                raise Unavailable(membership.trouble or f"group {membership.group} is being divided anew")
            time.sleep(0.05)
            return
        if partitions != self._mine:
            self._follow(reader, partitions)
        polled = reader.poll()
        for spot, records in polled.items():
            self._core.take(spot, records)
        self._foresee(reader, polled)
        self._on_time(reader)

    def _foresee(self, reader: Reader, polled: Mapping[Spot, list[Record]]) -> None:
        """Says that rows will be lost, at once and every minute; the topics may be changed at any time."""
        if not polled:
            return
        now = self._clock.steady_us()
        if self._kept is None or now - self._asked_us > AGAIN_US:
            self._kept, self._asked_us = reader.kept(), now
        found = warnings(reader.unread(polled), self._kept, self._clock.now_us() // 1000, self._kafka.prefix)
        for text in found:
            if line := self._danger.line(text, now):
                self._say(f"sink: {line}")
        if not found:
            self._danger.over()

    def _follow(self, reader: Reader, partitions: frozenset[int]) -> None:
        """Takes over these partitions, after a commit of what waits of the old ones."""
        self._keep()
        self._mine = None
        starts = self._core.resume(reader.assign(partitions), now_us=self._clock.now_us())
        reader.seek(starts)
        self._mine = partitions
        for gap in self._core.gaps:
            self._upkeep.changed()
            self._say(
                f"sink: {self._kafka.prefix}{gap.spot.topic}/{gap.spot.partition} no longer has offsets "
                f"{gap.first} to {gap.last}: their rows are lost, and counted in the table gaps (raise the "
                "topic's retention above the sink's longest outage)"
            )
        self._waiting_since = None
        if self._trouble.quiet or partitions != self._said_share:
            self._said_share = partitions
            self._say(f"sink: reading from {self._kafka.bootstrap} into {self._lake.root}: {self._share()}")

    def _share(self) -> str:
        mine = sorted(self._mine or ())
        if len(mine) == self._kafka.partitions:
            return "all partitions"
        return f"partitions {', '.join(map(str, mine))}" if mine else "nothing (others have all partitions)"

    def _catch_up(self, reader: Reader, membership: Membership, stopping: _Stopping) -> None:
        """Reads to the end of what is there, within a bound."""
        until = self._clock.steady_us() + CATCH_UP_US
        ends: dict[Spot, int] = {}
        asked: frozenset[int] | None = None
        while not stopping.hurry:
            if self._mine is not None and self._mine != asked:
                left_us = until - self._clock.steady_us()
                ends, asked = reader.ends(left_us, give_up=lambda: stopping.hurry), self._mine
            self._behind = reader.short_of(ends)
            done = self._mine is not None and not self._behind
            if done or self._clock.steady_us() > until:
                return
            self._turn(reader, membership)

    # --- writing -------------------------------------------------------------------------------------------

    def _on_time(self, reader: Reader) -> None:
        """Retention, commits, the catalog and the health line, each when it is due."""
        if self._mine and 0 in self._mine:
            telemetry = reader.uuids[self._kafka.topics["telemetry"]]
            self._upkeep.expire(telemetry, self._kafka.partitions)
            self._upkeep.tidy()
        now = self._clock.steady_us()
        if self._core.pressing and self._waiting_since is None:
            self._waiting_since = now
        late = self._waiting_since is not None and now - self._waiting_since >= self._storage.commit_us
        empty = now - self._last_empty >= EMPTY_US
        full = self._core.waiting >= self._storage.commit_rows
        full = full or self._core.waiting_bytes > _MAX_WAITING_BYTES
        if late or full or empty:
            self._commit(empty=empty)
            self._well()
            self._upkeep.compact()
            self._upkeep.trim()
        self._upkeep.renew_catalog()
        if now - self._last_health >= _HEALTH_US:
            self._behind = reader.lag()
            self._health()

    def _keep(self) -> None:
        """Commits what waits before it would be dropped: mostly it could be read again, but not if its topic
        was deleted."""
        if not self._core.ready:
            return
        try:
            self._commit()
        except Conflict:
            self._counts["conflicts"] += 1  # the others were faster: what waited they have read, or will
        except (Unavailable, KafkaError) as error:
            trouble = f"what was read is not stored yet: {_in_words(error)}"
            if line := self._trouble.line(trouble, self._clock.steady_us()):
                self._say(f"sink: {line}")

    def _commit(self, *, empty: bool = False) -> None:
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

    def _well(self) -> None:
        if not self._trouble.quiet:
            self._say("sink: going on")
            self._trouble.over()

    def _health(self) -> None:
        """One line of counters, if any of them moved."""
        self._last_health = self._clock.steady_us()
        counts = self._counts
        if counts == self._last_said:
            return
        self._last_said = counts.copy()
        named = ("received", "samples", "rows", "commits", "duplicate", "undecodable", "unknown")
        shown = [f"{name} {counts[name]:,}" for name in named] + [f"behind {self._behind:,}"]
        shown += [f"{name} {counts[name]:,}" for name in _RARE if counts[name]]
        shown += [doing] if (doing := self._upkeep.doing) else []
        self._say("sink: " + ", ".join(shown))


def _in_words(error: Unavailable | KafkaError) -> str:
    """Ours are words already."""
    return str(error) if isinstance(error, Unavailable) else in_words(error)


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
