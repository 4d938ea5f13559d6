"""Files in the folders of tables that are no longer, were never, or may yet become part of them.

    replaced   part of the table once; readers that listed it before still use it
    orphans    data files of ours that the log never knew: of a writer that failed, or was killed
    strays     what others left there (:mod:`.checking.strays`)
    the log    entries behind a checkpoint, which handles and readers of a moment ago still rest on

What was part of the table its log says, whatever time stands beside it: delta-rs counts by this host's
clock, and with one that was set back it forgets what was replaced "later" than now. Each look loads the table
anew: a handle that stood still while others went on would take their files for nobody's. What is taken away
because it is old was seen to be old by this process (:mod:`.sightings`).
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from driftline.clock import SECOND_US, Clock
from driftline.errors import Unavailable
from driftline.storage.alone import alone
from driftline.storage.checking.strays import OURS, Stray, set_aside, strays
from driftline.storage.listing import file_paths
from driftline.storage.remedies import told
from driftline.storage.sightings import Sightings
from driftline.storage.table_log import KEEP_LOG_S, checkpoints, removals, trim
from driftline.storage.tables import TableName

WRITING = "_writing"
"""A lock file in each table's folder: many may write, or one may remove what nobody has committed."""


class Leftovers:
    """Those of the tables in one local root; remembers what it has seen."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._seen: defaultdict[tuple[str, TableName], Sightings] = defaultdict(Sightings)

    def vacuum(self, name: TableName, *, keep_s: float, by_clock: bool = False) -> tuple[int, int]:
        """Removes files that the table has not used for ``keep_s``; how many, and their bytes.

        ``by_clock``: the clocks of all hosts are taken to be right. Raises Unavailable if it cannot. Writes
        nothing, so it can free what fills a disk (delta-rs's own writes to the table's log first)."""
        folder = self._root / name
        try:
            now_s = self._now_s(folder)
            stamps_ms = removals(folder)  # most of them are gone by now
            ages = {
                file: now_s - max(stamps_ms[file] / 1000, found.st_mtime)
                for file in os.listdir(folder)
                if file in stamps_ms and (found := _state(folder / file)) is not None
            }
            for file in _active(folder):
                ages.pop(file, None)
            if by_clock:
                old = {file for file, age_s in ages.items() if age_s >= keep_s or not keep_s}
            else:
                old = self._seen["replaced", name].settled(ages, steady_s=self._steady_s(), for_s=keep_s)
            return _unlink(folder, old)
        except (DeltaError, OSError, ValueError) as error:
            raise Unavailable(
                f"table {name} in {self._root} cannot be rid of old files: {told(error)}"
            ) from error

    def remove_orphans(self, name: TableName) -> None:
        """Removes data files that were written and never became part of the table, if nobody writes now.

        delta-rs leaves the file of a write that failed: a compaction that found too little room would keep
        the disk full for ever [seen]. A writer that was killed leaves one too. What fails here, the next
        failure or compaction does. The lock is held only for looking: who writes later writes other files.
        """
        folder = self._root / name
        with contextlib.suppress(DeltaError, OSError, ValueError):
            with alone(folder / WRITING) as mine:
                if not mine:
                    return
                here = [path.name for path in folder.glob("part-*") if OURS.fullmatch(path.name)]
                known = known_names(folder)
                left = [file for file in here if file not in known]
                torn = any((folder / "_delta_log").glob("*.json.torn"))
            if torn:  # of a commit that a power cut tore: perhaps the only copy of its rows
                for file in left:
                    set_aside(self._root, name, folder / file)
            else:
                _unlink(folder, left)

    def set_aside(self, name: TableName) -> list[Stray]:
        """Moves what does not belong to the table and could be taken for its rows to the quarantine; gives
        what it moved. Never what a commit on its way may have written. Raises Unavailable if it cannot."""
        folder = self._root / name
        try:
            found = strays(folder, known_names(folder), self._now_s(folder))
            moved: list[Stray] = []
            for wait_s in sorted({stray.wait_s for stray in found if stray.wait_s is not None}):
                waiting = {f"{stray.bytes} {stray.path}": stray for stray in found if stray.wait_s == wait_s}
                ages = {key: stray.age_s for key, stray in waiting.items()}
                seen = self._seen[f"stray {wait_s}", name]
                old = seen.settled(ages, steady_s=self._steady_s(), for_s=wait_s)
                moved += [waiting[key] for key in sorted(old)]
            return [stray for stray in moved if set_aside(self._root, name, stray.path) is not None]
        except (DeltaError, OSError, ValueError) as error:
            raise Unavailable(f"{folder} cannot be rid of foreign files: {told(error)}") from error

    def trim_log(self, name: TableName, *, by_clock: bool = False) -> int:
        """Removes entries of the table's log that nobody needs; how many. Raises Unavailable if it cannot."""
        folder = self._root / name
        try:
            now_s = self._now_s(folder)
            ages = {
                file.name: now_s - found.st_mtime
                for file in checkpoints(folder)
                if (found := _state(file)) is not None
            }
            if by_clock:
                old = {file for file, age_s in ages.items() if age_s >= KEEP_LOG_S}
            else:
                seen = self._seen["checkpoint", name]
                old = seen.settled(ages, steady_s=self._steady_s(), for_s=KEEP_LOG_S)
            return trim(folder, old)
        except OSError as error:
            raise Unavailable(
                f"the log of table {name} in {self._root} cannot be trimmed: {told(error)}"
            ) from error

    def _steady_s(self) -> float:
        return self._clock.steady_us() / SECOND_US

    def _now_s(self, folder: Path) -> float:
        """By this host's clock or that of the file server, whose times files have: the earlier one."""
        host_s = self._clock.now_us() / SECOND_US
        try:
            os.utime(folder / WRITING)
            return min(host_s, (folder / WRITING).stat().st_mtime)
        except OSError:  # no such file before the first commit
            return host_s


def known_names(folder: Path) -> set[str]:
    """Names of the files that the table has or had."""
    handle = DeltaTable(str(folder))
    active = {Path(file).name for file in file_paths(folder, handle)}
    old = handle.vacuum(0, dry_run=True, enforce_retention_duration=False)
    return {*active, *removals(folder), *map(unquote, old)}


def _active(folder: Path) -> set[str]:
    return {Path(file).name for file in file_paths(folder, DeltaTable(str(folder)))}


def _state(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.stat()
    return None


def _unlink(folder: Path, files: Iterable[str]) -> tuple[int, int]:
    count = size = 0
    for file in files:
        path = folder / file
        found = _state(path)  # another process, or the thread that merges, may remove it too
        if Path(file).name != file or found is None:  # our files lie in the folder itself
            continue
        count, size = count + 1, size + found.st_size
        path.unlink(missing_ok=True)
    return count, size
