"""Merges small files in a thread of its own, so that a sink goes on reading and committing meanwhile.

    sink: ask(tables) -> thread: refresh, compact by a lake of its own -> news -> sink

The thread is to the tables what another process is: its handles are its own, and the file locks of design 003
keep it apart from whoever else compacts, deletes or cleans up. It touches nothing of the sink's but what is
here, says nothing itself, and outlives every error: that is news, too, and the sink decides when to retry.

:meth:`Merger.close` is quick: a merge asks before each block of rows whether to go on, and removes its files
if not. Only delta-rs's own compaction (object stores, tables with columns of a later version) cannot be
stopped; after a while it is left to end with the process, like one that is killed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from driftline.clock import SECOND_US, Clock
from driftline.storage.faults import failure_of
from driftline.storage.lakes import AnyLake
from driftline.storage.patience import Failure
from driftline.storage.tables import TableName

CLOSE_S = 20.0


class News(NamedTuple):
    """One table was looked at: how many files it has now (None: not known), whether that is new, and what
    went wrong."""

    table: TableName
    files: int | None
    merged: bool = False
    failure: Failure | None = None


class Merger:
    """The thread, which starts when first asked. All methods are for the sink's own thread."""

    def __init__(self, open_lake: Callable[[], AnyLake], *, clock: Clock) -> None:
        self._open = open_lake
        self._clock = clock
        self._changed = threading.Condition()
        self._wanted: dict[TableName, int] = {}
        self._now: tuple[TableName, int] | None = None
        self._stop = threading.Event()
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, name: TableName, at_least: int) -> None:
        """Has the table merged if it has so many files then."""
        if self._stop.is_set():
            return
        with self._changed:
            self._wanted.setdefault(name, at_least)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="driftline-merge", daemon=True)
            self._thread.start()

    def take_back(self, name: TableName) -> None:
        """Has it not merged, if that has not begun."""
        with self._changed:
            self._wanted.pop(name, None)

    @property
    def merging(self) -> tuple[TableName, int] | None:
        """The table that is being merged, and for how many seconds by now."""
        now = self._now
        return None if now is None else (now[0], (self._clock.steady_us() - now[1]) // SECOND_US)

    def news(self) -> Iterator[News]:
        """What happened since this was asked last."""
        while True:
            try:
                yield self._news.get_nowait()
            except queue.Empty:
                return

    def stop(self) -> None:
        """Has it end soon, and does not wait."""
        self._stop.set()
        with self._changed:
            self._wanted.clear()
            self._changed.notify()

    def close(self, within_s: float = CLOSE_S) -> bool:
        """Stops it, and waits; whether it has ended."""
        self.stop()
        if self._thread is None:
            return True
        self._thread.join(within_s)
        return not self._thread.is_alive()

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        lake: AnyLake | None = None
        while (asked := self._next()) is not None:
            name, at_least = asked
            try:
                lake = lake or self._open()
                lake.refresh(name)
                merged = lake.count(name) >= at_least
                merged = merged and lake.compact(name, at_least=0, stop=self._stop.is_set)
                self._news.put(News(name, lake.count(name), merged))
            except BaseException as error:  # noqa: BLE001  the thread has nobody above it who could say it
                failure = failure_of(error)
                if failure.ours:  # a handle in which delta-rs panicked may fail each time from then on
                    lake = None
                self._news.put(News(name, None, failure=failure))
            finally:
                self._now = None

    def _next(self) -> tuple[TableName, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._stop.is_set())
            if self._stop.is_set():
                return None
            name = next(iter(self._wanted))
            self._now = name, self._clock.steady_us()
            return name, self._wanted.pop(name)
