"""What a sink does for its tables beside appending: few files, no expired rows, a fresh ``catalog.duckdb``.

Small files are merged in a thread of its own where there is one (:mod:`.merger`); the rest takes moments, but
for retention (``storage.retention``). That is done ``FIRST_US`` after the start and then every ``EVERY_US``,
whether or not rows arrive; it comes before the commits, since it may be what frees the disk. A table that
somebody merges just then has its turn right after.

What fails of all this (a disk that has room for rows, but not for a second copy of a table; a fault of ours)
is one line, stops nothing, counts in "upkeep errors", and is tried again (:mod:`.patience`), the catalog at
its next turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from driftline.clock import SECOND_US, Clock
from driftline.settings import StorageSettings
from driftline.storage import catalog, retention
from driftline.storage.checking.strays import QUARANTINE
from driftline.storage.compaction.merging import Stop, go_on
from driftline.storage.faults import failure_of
from driftline.storage.lake import COMPACT_FILES
from driftline.storage.lakes import AnyLake
from driftline.storage.merger import Merger
from driftline.storage.object_lake import ObjectLake
from driftline.storage.patience import Failure, Patience, in_words
from driftline.storage.store import Conflict
from driftline.storage.tables import TABLE_NAMES, TableName
from driftline.storage.trouble import Trouble

FIRST_US = 10 * SECOND_US
EVERY_US = 3600 * SECOND_US
BUSY_US = 60 * SECOND_US
"""After so long retention tries again what somebody else was rewriting."""
TURN_US = 10 * SECOND_US
"""For so long nothing is merged where retention waits for its turn."""
TRIM_US = 60 * SECOND_US
_END_COMPACT_BYTES = 256 * 1024 * 1024
"""Larger tables are not compacted at the end."""


class Upkeep:
    """Keeps one lake. ``counts`` gets "merges", "rows expired", "upkeep errors", "catalog_errors" and "files
    set aside"; ``say`` one line per trouble. Without a ``merger`` it merges itself, when asked."""

    def __init__(
        self,
        lake: AnyLake,
        storage: StorageSettings,
        *,
        counts: Counter[str],
        say: Callable[[str], None],
        clock: Clock,
        merger: Merger | None = None,
    ) -> None:
        self._lake = lake
        self._storage = storage
        self._counts = counts
        self._say = say
        self._clock = clock
        self._merger = merger
        now = self._last_catalog = clock.steady_us()
        self._next_expiry: dict[TableName, int] = dict.fromkeys(retention.EXPIRING, now + FIRST_US)
        self._next_trim = self._next_tidy = now
        self._patience = Patience()
        self._catalog_trouble = Trouble()
        self._fewest: dict[TableName, int] = dict.fromkeys(TABLE_NAMES, 0)
        """Files of each table after the merger was done with it."""
        self._waits: dict[TableName, int] = {}
        """Tables that are merged though rows of theirs have expired, and when that was last so."""
        self._changed = True
        self._closed = False

    def changed(self) -> None:
        """To be called after rows were committed: the catalog lacks their files."""
        self._changed = True

    @property
    def doing(self) -> str | None:
        """What goes on beside the sink, in words."""
        found = self._merger.merging if self._merger is not None else None
        return None if found is None else f"merging {found[0]} for {found[1]} s"

    def _try(self, what: str, name: TableName, do: Callable[[TableName], object]) -> None:
        """Does it unless it failed lately; what goes wrong is said and counted."""
        if not self._patience.due((what, name), self._clock.steady_us()):
            return
        try:
            do(name)
        except (Conflict, KeyboardInterrupt, SystemExit):
            raise  # the sink begins again, or ends
        except BaseException as error:  # noqa: BLE001  delta-rs's panics are no Exception
            self._failed(what, name, failure_of(error))
        else:
            self._worked(what, name)

    def _failed(self, what: str, name: TableName, failure: Failure) -> None:
        self._changed = True  # perhaps only the clean-up after it failed
        self._counts["upkeep errors"] += 1
        wait_us, say = self._patience.failed((what, name), failure, self._clock.steady_us())
        wait = f"trying again in {in_words(wait_us)}"
        if failure.ours:
            fault = f"{what} of table {name} failed by a fault of driftline, please report it; {wait}"
            line = f"sink: rows are safe; {fault}, then more and more rarely: {failure.line}"
        elif what == "retention":
            line = f"sink: old rows of {name} stay for now, {wait}: {failure.line}"
        else:
            line = f"sink: rows are safe, {wait}: {failure.line}"
        if say:
            self._say(line)

    def _worked(self, what: str, name: TableName) -> None:
        if self._patience.worked((what, name)):
            self._say(f"sink: {what} of table {name} works again")

    # --- few files -----------------------------------------------------------------------------------------

    def compact(self, *, at_least: int = COMPACT_FILES) -> None:
        """Has what has become ``at_least`` files more compacted; never raises."""
        if self._merger is None:
            for name in TABLE_NAMES:
                self._try("merging", name, lambda table: self._compact(table, at_least, go_on))
            return
        merger = self._merger
        self._hear(merger)
        for name in TABLE_NAMES:
            self._try("counting files", name, lambda table: self._ask(merger, table, at_least))

    def _compact(self, name: TableName, at_least: int, stop: Stop) -> None:
        if self._lake.compact(name, at_least=at_least, stop=stop):
            self._changed = True

    def _ask(self, merger: Merger, name: TableName, at_least: int) -> None:
        """Has the table merged if it has grown so much, unless that failed lately or retention waits."""
        count = self._lake.count(name)
        self._fewest[name] = min(self._fewest[name], count)
        if count - self._fewest[name] < at_least:
            return
        now = self._clock.steady_us()
        turn_of_retention = now - self._waits.get(name, now - TURN_US) < TURN_US
        if self._patience.due(("merging", name), now) and not turn_of_retention:
            merger.ask(name, self._fewest[name] + at_least)

    def _hear(self, merger: Merger) -> None:
        """What the merger did since it was heard last."""
        for news in merger.news():
            if news.failure is not None:
                self._failed("merging", news.table, news.failure)
                continue
            self._worked("merging", news.table)
            if news.merged and news.files is not None:
                self._changed = True
                self._counts["merges"] += 1
                self._fewest[news.table] = news.files
            self._try("refreshing", news.table, self._lake.refresh)

    def trim(self) -> None:
        """Keeps the tables' logs short, if it is time to: each of their files costs each commit something."""
        now = self._clock.steady_us()
        if now < self._next_trim:
            return
        self._next_trim = now + TRIM_US
        for name in TABLE_NAMES:
            self._try("trimming the log", name, self._lake.trim_log)

    def tidy(self) -> None:
        """Sets aside, if it is time to, what lies beside the tables' files and is not theirs; says what."""
        now = self._clock.steady_us()
        if now < self._next_tidy:
            return
        self._next_tidy = now + EVERY_US
        for name in TABLE_NAMES:
            self._try("tidying", name, self._tidy)

    def _tidy(self, name: TableName) -> None:
        found = self._lake.set_aside(name)
        self._counts["files set aside"] += len(found)
        if found:
            names = ", ".join(f"{stray.path.name} ({stray.kind})" for stray in found[:5])
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            self._say(
                f"sink: set aside in {self._lake.root}/{QUARANTINE}/{name}, since the table's log does "
                f"not know them: {names}{more}; look at them and delete them"
            )

    # --- no expired rows -----------------------------------------------------------------------------------

    def expire(self, telemetry_uuid: str, partitions: int) -> None:
        """Deletes what has expired, if it is time to (see :mod:`driftline.storage.retention`)."""
        for name in retention.EXPIRING:
            if not self._expires(name):
                continue
            if self._merger is not None:
                self._merger.take_back(name)
                if (merging := self._merger.merging) is not None and merging[0] == name:
                    self._waits[name] = self._clock.steady_us()
                    continue
            self._try("retention", name, lambda table: self._expire(table, telemetry_uuid, partitions))

    def _expires(self, name: TableName) -> bool:
        now = self._clock.steady_us()
        if self._storage.retention_us is None or now < self._next_expiry.get(name, now):
            return False
        return self._patience.due(("retention", name), now)

    def _expire(self, name: TableName, telemetry_uuid: str, partitions: int) -> None:
        assert self._storage.retention_us is not None
        self._next_expiry.pop(name, None)  # if it fails, as soon as patience allows
        instant = retention.now(self._lake, self._clock.now_us())
        before = retention.cutoff(self._storage.retention_us, instant)
        wait_us = EVERY_US
        if before is not None:
            for old in retention.expired(self._lake, name, before, telemetry_uuid, partitions):
                deleted = self._lake.delete(name, old.predicate, cutoff_us=before, upto=old.upto)
                if deleted is None:
                    wait_us = BUSY_US
                    break
                self._counts["rows expired"] += deleted
                self._changed |= deleted > 0
            self._lake.vacuum(name)
        self._next_expiry[name] = self._clock.steady_us() + wait_us

    # --- the catalog ---------------------------------------------------------------------------------------

    def renew_catalog(self) -> None:
        """Writes the catalog if files changed and the last one is old enough."""
        if self._changed and self._clock.steady_us() - self._last_catalog >= self._storage.catalog_us:
            self._write_catalog()

    def stop(self) -> None:
        """Has the merger end soon; does not wait."""
        if self._merger is not None:
            self._merger.stop()

    def close(self) -> None:
        """Ends the merger, whatever it was doing; waits for it once."""
        if self._merger is None or self._closed:
            return
        self._closed = True
        if not self._merger.close():
            self._say(f"sink: not waiting any longer: {self.doing}; what it leaves, the next sink removes")
        self._hear(self._merger)

    def finish(self, *, within_s: float | None = None, stop: Stop = go_on) -> None:
        """At the end, when rows are safe: the catalog, few files, and the catalog of those. Merging takes
        ``within_s`` at most, and less if ``stop()`` holds."""
        self.close()
        self._write_catalog()
        began = self._clock.steady_us()

        def over() -> bool:
            late = within_s is not None and self._clock.steady_us() - began > within_s * SECOND_US
            return late or stop()

        for name in TABLE_NAMES:
            if not over():
                self._try("merging", name, lambda table: self._merge_small(table, over))
        if self._changed:
            self._write_catalog()

    def _merge_small(self, name: TableName, stop: Stop) -> None:
        if self._lake.size(name) <= _END_COMPACT_BYTES:
            self._compact(name, 2, stop)

    def _write_catalog(self) -> None:
        self._last_catalog = self._clock.steady_us()
        if isinstance(self._lake, ObjectLake):  # a catalog could not be read there without an extension
            self._changed = False
            return
        try:
            self._changed = not catalog.write(self._lake.root, self._files)
            self._catalog_trouble.over()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  as in _try
            self._changed = True
            self._counts["catalog_errors"] += 1
            where = self._lake.root / catalog.CATALOG
            line = f"{where} was not renewed (rows are safe): {failure_of(error).line}"
            if said := self._catalog_trouble.line(line, self._last_catalog):
                self._say(f"sink: {said}")

    def _files(self) -> dict[TableName, list[str]]:
        """The files of all tables now, those of other sinks too."""
        self._lake.refresh()
        return {name: self._lake.files(name) for name in TABLE_NAMES}
