"""The commit log of a table (``_delta_log``) after a crash of the machine: which of its files is broken.

    0.json .. 100.json   100.checkpoint.parquet   _last_checkpoint   101.json ..   (of 20 digits each)

It grows by a file per commit, and delta-rs lists all of them each time: with 10,000 commits there a commit
took 170 ms, with 50,000 734 ms (CPU time, 1.6.6) [measured]; its own clean-up keeps 30 days, far more than a
sink that commits every two seconds could bear. So :func:`trim` keeps what tables and handles need, no more.

delta-rs writes each file whole and renames it, so no process can leave half of one; but a power cut can,
since nothing waits for the disk. It says that a log is broken, yet not which file; and a commit file of 0
bytes it takes for a commit that does nothing, so its rows would be missing without a word [seen with 1.6.6].
Looks at what comes after the last checkpoint only. A file that is cut between two of its lines looks whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_MAGIC = b"PAR1"
_REMOVED = ("path", "deletionTimestamp")
KEEP_LOG_S = 600
"""Handles that were loaded longer ago may find that what they rest on is gone; see :mod:`.opening`."""


def fault(folder: Path) -> str | None:
    """The first broken file of the table's log and what to do about it, None if all look whole."""
    log = folder / "_delta_log"
    names = sorted(path.name for path in log.iterdir())
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    for name in checkpoints[-1:]:
        if not _is_parquet(log / name):
            sink = "start a sink, which sets it aside; or " if _is_spare(log, names) else ""
            return f"{log / name} is broken; {sink}{_without_checkpoint(log / name)}"
    hint = _hinted(log)
    if hint is not None and f"{hint:020d}.checkpoint.parquet" not in checkpoints:
        named = log / f"{hint:020d}.checkpoint.parquet"
        return f"{named} is missing; {_without_checkpoint(named)}"
    commits = _commits(names)
    for name in commits:
        if not _is_commit(log / name):
            other = ", or start a sink, which stores its rows again" if name == commits[-1] else ""
            return f"{log / name} is broken; bring it back from a copy{other}"
    return None


def empty_commit(folder: Path, version: int) -> Path | None:
    """A commit file of 0 bytes among the last 200 before ``version``; a checkpoint is never further, even if
    one was torn."""
    for at in range(version, max(version - 200, -1), -1):
        path = folder / "_delta_log" / f"{at:020d}.json"
        try:
            if path.stat().st_size == 0:
                return path
        except FileNotFoundError:
            return None  # cleaned up behind a checkpoint
    return None


def set_aside_torn_end(folder: Path) -> list[Path]:
    """Renames the last commits of a table as long as they are broken, so that the table is as it was before
    them, positions too; gives the new names. For writers, which then read again what those commits held.

    A broken newest checkpoint goes first, if what it sums up is there without it."""
    log = folder / "_delta_log"
    if not log.is_dir():
        return []
    done = _set_aside_checkpoint(log)
    for name in reversed(_commits(sorted(path.name for path in log.iterdir()))):
        if _is_commit(log / name):
            break
        done.append((log / name).rename(log / f"{name}.torn"))
    return done


def _set_aside_checkpoint(log: Path) -> list[Path]:
    names = sorted(path.name for path in log.iterdir())
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
    if not checkpoints or _is_parquet(log / checkpoints[-1]) or not _is_spare(log, names):
        return []
    if _hinted(log) == int(checkpoints[-1][:20]):
        (log / "_last_checkpoint").unlink(missing_ok=True)
    return [(log / checkpoints[-1]).rename(log / f"{checkpoints[-1]}.torn")]


def _is_spare(log: Path, names: list[str]) -> bool:
    """Whether the table can be read without its newest checkpoint."""
    *older, newest = (name for name in names if _CHECKPOINT.fullmatch(name))
    if older and not _is_parquet(log / older[-1]):
        return False
    first = int(older[-1][:20]) + 1 if older else 0
    return {f"{at:020d}.json" for at in range(first, int(newest[:20]) + 1)} <= set(names)


def checkpoints(folder: Path) -> list[Path]:
    """Those of the table's log, oldest first."""
    return sorted(path for path in (folder / "_delta_log").iterdir() if _CHECKPOINT.fullmatch(path.name))


def trim(folder: Path, old: Collection[str]) -> int:
    """Removes the commits and checkpoints before the newest checkpoint that is one of ``old`` (names of those
    that have been there for ``KEEP_LOG_S``) and not the last one; how many. The table stays what it is, and
    so does every handle of the last minutes.

    Does nothing unless that checkpoint and the last one look whole: each may have to stand in for the other.
    """
    log = folder / "_delta_log"
    names = sorted(path.name for path in log.iterdir())
    found = [name for name in names if _CHECKPOINT.fullmatch(name)]
    past = [name for name in found[:-1] if name in old]
    if not past or not (_is_parquet(log / past[-1]) and _is_parquet(log / found[-1])):
        return 0
    kinds = (COMMIT, _CHECKPOINT)
    gone = [n for n in names if any(kind.fullmatch(n) for kind in kinds) and int(n[:20]) < int(past[-1][:20])]
    for name in gone:
        (log / name).unlink(missing_ok=True)  # another sink may trim too
    return len(gone)


def removals(folder: Path) -> dict[str, int]:
    """Names of files that the log says are no longer part of the table, with when that was (ms since 1970, by
    the clock of who removed them): all that it still tells, whatever the time. A file may have come back.

    Raises OSError or ValueError if the log cannot be read, also if it is trimmed meanwhile."""
    import pyarrow.compute as pc  # 0.03 s, and readers of the tables ask for no removals
    import pyarrow.parquet as pq

    log = folder / "_delta_log"
    names = sorted(path.name for path in log.iterdir())
    found: dict[str, int] = {}
    for name in [name for name in names if _CHECKPOINT.fullmatch(name)][-1:]:
        # Only what is needed, as columns: a week of commits leaves some 100,000 of them.
        with pq.ParquetFile(log / name) as file:
            removed = file.read([f"remove.{field}" for field in _REMOVED]).column("remove")
        paths, stamps = (
            pc.struct_field(removed.filter(removed.is_valid()), field).to_pylist() for field in _REMOVED
        )
        found.update((unquote(path), stamp or 0) for path, stamp in zip(paths, stamps, strict=True))
    for name in _commits(names):
        for line in (log / name).read_bytes().splitlines():
            if b'"remove"' in line and (remove := json.loads(line).get("remove")) is not None:
                found[unquote(remove["path"])] = remove.get("deletionTimestamp") or 0
    return found


def _commits(names: list[str]) -> list[str]:
    """Those after the last checkpoint, in order."""
    last = max((int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))), default=-1)
    return [name for name in names if COMMIT.fullmatch(name) and int(name[:20]) > last]


def _is_commit(path: Path) -> bool:
    """Whether every line is JSON, and there is one."""
    try:
        lines = path.read_bytes().splitlines()
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def _is_parquet(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size < 12 or file.read(4) != _MAGIC:
            return False
        file.seek(-4, 2)
        return file.read() == _MAGIC


def _hinted(log: Path) -> int | None:
    """The version that ``_last_checkpoint`` names; a broken one is ignored by delta-rs."""
    try:
        return int(json.loads((log / "_last_checkpoint").read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _without_checkpoint(path: Path) -> str:
    hint = path.parent / "_last_checkpoint"
    kept = "the checkpoint before it and the commits since stay"
    return f"bring it back from a copy, or delete it and {hint} ({kept})"
