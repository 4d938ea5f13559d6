"""What a sink does for its tables beside appending: few files, no expired rows, a fresh ``catalog.duckdb``.

Retention (``storage.retention``) is done ``FIRST_US`` after the start and then every ``EVERY_US``, whether or
not rows arrive; it comes before the commits, since it may be what frees the disk. What fails of all this (a
disk that has room for rows, but not for a second copy of a table) is one line, stops nothing, and is tried
again: retention and compaction after ``RETRY_US``, the catalog at its next turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import duckdb

from driftline.clock import SECOND_US, Clock
from driftline.errors import Unavailable
from driftline.settings import StorageSettings
from driftline.storage import catalog, retention
from driftline.storage.checking.strays import QUARANTINE
from driftline.storage.lake import COMPACT_FILES
from driftline.storage.lakes import AnyLake
from driftline.storage.object_lake import ObjectLake
from driftline.storage.remedies import told
from driftline.storage.tables import TABLE_NAMES, TableName
from driftline.storage.trouble import Trouble

FIRST_US = 10 * SECOND_US
EVERY_US = 3600 * SECOND_US
RETRY_US = 600 * SECOND_US
TRIM_US = 60 * SECOND_US
_END_COMPACT_BYTES = 256 * 1024 * 1024
"""Larger tables are not compacted at the end, so that stopping takes seconds."""


class Upkeep:
    """Keeps one lake. ``counts`` gets "rows expired" and "catalog_errors"; ``say`` one line per trouble."""

    def __init__(
        self,
        lake: AnyLake,
        storage: StorageSettings,
        *,
        counts: Counter[str],
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._lake = lake
        self._storage = storage
        self._counts = counts
        self._say = say
        self._clock = clock
        self._last_catalog = clock.steady_us()
        self._next_expiry = self._last_catalog + FIRST_US
        self._next_compaction = self._last_catalog
        self._next_trim = self._last_catalog
        self._next_tidy = self._last_catalog
        self._catalog_trouble = Trouble()
        self._changed = True

    def changed(self) -> None:
        """To be called after rows were committed: the catalog lacks their files."""
        self._changed = True

    def compact(self, *, at_least: int = COMPACT_FILES) -> None:
        """Compacts what has become ``at_least`` files more; never raises."""
        if self._clock.steady_us() < self._next_compaction:
            return
        for name in TABLE_NAMES:
            self._compact(name, at_least)

    def _compact(self, name: TableName, at_least: int) -> None:
        try:
            self._changed |= self._lake.compact(name, at_least=at_least)
        except Unavailable as error:
            self._changed = True  # perhaps only the clean-up after it failed
            self._say(f"sink: rows are safe, trying again in 10 minutes: {error}")
            self._next_compaction = self._clock.steady_us() + RETRY_US

    def trim(self) -> None:
        """Keeps the tables' logs short, if it is time to: each of their files costs each commit something."""
        now = self._clock.steady_us()
        if now < self._next_trim:
            return
        self._next_trim = now + TRIM_US
        for name in TABLE_NAMES:
            try:
                self._lake.trim_log(name)
            except Unavailable as error:
                self._say(f"sink: rows are safe, trying again in 10 minutes: {error}")
                self._next_trim = now + RETRY_US

    def tidy(self) -> None:
        """Sets aside, if it is time to, what lies beside the tables' files and is not theirs; says what."""
        now = self._clock.steady_us()
        if now < self._next_tidy:
            return
        self._next_tidy = now + EVERY_US
        for name in TABLE_NAMES:
            try:
                found = self._lake.set_aside(name)
            except Unavailable as error:
                self._say(f"sink: rows are safe, trying again in an hour: {error}")
                continue
            self._counts["files set aside"] += len(found)
            if found:
                names = ", ".join(f"{stray.path.name} ({stray.kind})" for stray in found[:5])
                more = f" and {len(found) - 5} more" if len(found) > 5 else ""
                self._say(
                    f"sink: set aside in {self._lake.root}/{QUARANTINE}/{name}, since the table's log does "
                    f"not know them: {names}{more}; look at them and delete them"
                )

    def expire(self, telemetry_uuid: str, partitions: int) -> None:
        """Deletes what has expired, if it is time to (see :mod:`driftline.storage.retention`)."""
        now = self._clock.steady_us()
        if now < self._next_expiry:
            return
        self._next_expiry = now + EVERY_US
        if self._storage.retention_us is None:
            return
        for name in retention.EXPIRING:
            try:
                instant = retention.now(self._lake, self._clock.now_us())
                before = retention.cutoff(self._storage.retention_us, instant)
                if before is None:
                    return
                for old in retention.expired(self._lake, name, before, telemetry_uuid, partitions):
                    self._delete(name, old, before)
                self._lake.vacuum(name)
            except (Unavailable, duckdb.Error) as error:
                line = told(error)
                self._say(f"sink: old rows of {name} stay for now, trying again in 10 minutes: {line}")
                self._next_expiry = now + RETRY_US

    def _delete(self, name: TableName, old: retention.Expired, cutoff_us: int) -> None:
        deleted = self._lake.delete(name, old.predicate, cutoff_us=cutoff_us, upto=old.upto)
        self._counts["rows expired"] += deleted
        self._changed |= deleted > 0

    def renew_catalog(self) -> None:
        """Writes the catalog if files changed and the last one is old enough."""
        if self._changed and self._clock.steady_us() - self._last_catalog >= self._storage.catalog_us:
            self._write_catalog()

    def finish(self) -> None:
        """At the end, when rows are safe: the catalog, few files, and the catalog of those."""
        self._write_catalog()
        for name in TABLE_NAMES:
            if self._lake.size(name) <= _END_COMPACT_BYTES:
                self._compact(name, 2)
        if self._changed:
            self._write_catalog()

    def _write_catalog(self) -> None:
        self._last_catalog = self._clock.steady_us()
        if isinstance(self._lake, ObjectLake):  # a catalog could not be read there without an extension
            self._changed = False
            return
        try:
            self._changed = not catalog.write(self._lake.root, self._files)
            self._catalog_trouble.over()
        except (duckdb.Error, OSError, Unavailable) as error:
            self._changed = True
            self._counts["catalog_errors"] += 1
            where = self._lake.root / catalog.CATALOG
            line = f"{where} was not renewed (rows are safe): {told(error)}"
            if said := self._catalog_trouble.line(line, self._last_catalog):
                self._say(f"sink: {said}")

    def _files(self) -> dict[TableName, list[str]]:
        """The files of all tables now, those of other sinks too."""
        self._lake.refresh()
        return {name: self._lake.files(name) for name in TABLE_NAMES}
