"""Files beside a table that its log does not know: what they are, and setting them aside.

    part-*-c000.zstd.parquet, ..#1   ours: of a commit on its way, or of a writer that was killed ("ours")
    0 bytes                          "empty"
    *.parquet without both its ends  "torn"
    .x.parquet, _x, x.parquet.tmp    of something that writes or was killed ("unfinished")
    part-* with another ending       of another writer of Delta tables, which may be about to commit ("delta";
                                     until then it is empty, torn or unfinished, too)
    any other *.parquet              "foreign"
    anything else                    "other"; it can be taken for rows by nobody, and stays

Nothing here is ever deleted or read as rows: it moves to ``quarantine/<table>/`` in the root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from driftline.storage.sightings import DOUBT_S

Kind = Literal["ours", "empty", "torn", "unfinished", "delta", "foreign", "other"]
QUARANTINE = "quarantine"
OURS = re.compile(r"part-.*-c000\.zstd\.parquet(#\d+)?")
"""Data files as the sink writes them, and as they are called until they are whole."""
LOCKS = frozenset({"_writing", "_compacting", "_catalog", "_delta_log"})
DELTA_AGE_S = 86_400.0
"""What another writer of Delta tables left is set aside when it is so old: no commit takes so long."""
LOG_AGE_S = 600.0
"""An empty file in a log is set aside when it is so old: a younger one may become a commit."""
_OF_LOG = re.compile(r"\d{20}\.(json|json\.torn|crc|checkpoint(\..*)?\.parquet(\.torn)?|.*\.compacted\.json)")
_MAGIC = b"PAR1"


class Stray(NamedTuple):
    """One of them."""

    path: Path
    kind: Kind
    bytes: int
    age_s: float

    @property
    def wait_s(self) -> float | None:
        """How long it must have lain there before it is certainly of no commit on its way, and may be set
        aside while others write; None: never."""
        if self.kind in ("ours", "other"):
            return None
        if self.path.name.startswith("part-"):  # of another writer of Delta tables, whole or not yet
            return DELTA_AGE_S
        return LOG_AGE_S if self.path.parent.name == "_delta_log" else 0.0

    @property
    def movable(self) -> bool:
        """Whether one who looks only once may set it aside: by its time, and clocks may be wrong."""
        wait_s = self.wait_s
        return wait_s is not None and (not wait_s or self.age_s >= wait_s + DOUBT_S)


def strays(folder: Path, known: Collection[str], now_s: float) -> list[Stray]:
    """What lies in a table's folder and its log beside the ``known`` names of data files. Raises OSError."""
    found = [stray for entry in _files(folder) if (stray := _stray(entry, known, now_s)) is not None]
    for entry in _files(folder / "_delta_log"):
        if not _OF_LOG.fullmatch(entry.name) and entry.name != "_last_checkpoint":
            try:
                state = entry.stat()
            except FileNotFoundError:
                continue  # of a commit that has just landed
            kind: Kind = "other" if state.st_size else "empty"  # which may yet become a commit
            found.append(Stray(Path(entry.path), kind, state.st_size, now_s - state.st_mtime))
    return sorted(found)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in LOCKS:
                yield entry


def _stray(entry: os.DirEntry[str], known: Collection[str], now_s: float) -> Stray | None:
    if entry.name in known:
        return None
    try:
        state = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    path = Path(entry.path)
    kind: Kind
    if not entry.is_file(follow_symlinks=False):
        kind = "other"
    elif OURS.fullmatch(entry.name):
        kind = "ours"
    elif not state.st_size:
        kind = "empty"
    elif ".parquet" not in entry.name:
        kind = "other"
    elif entry.name.startswith((".", "_")) or not entry.name.endswith(".parquet"):
        kind = "unfinished"
    elif not is_parquet(path):
        kind = "torn"
    else:
        kind = "delta" if entry.name.startswith("part-") else "foreign"
    return Stray(path, kind, state.st_size, now_s - state.st_mtime)


def is_parquet(path: Path) -> bool:
    """Whether it begins and ends like a Parquet file."""
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC or file.seek(0, 2) < 12:
                return False
            file.seek(-4, 2)
            return file.read() == _MAGIC
    except OSError:
        return False


def set_aside(root: Path, table: str, path: Path) -> Path | None:
    """Moves a file of a table to the quarantine, under a name that is free there; None if it is gone.

    Raises OSError. Needs no room for the file itself.
    """
    folder = root / QUARANTINE / table
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / path.name, 1
    while target.exists():
        target, number = folder / f"{path.name}.{number}", number + 1
    try:
        return path.rename(target)
    except FileNotFoundError:
        return None
