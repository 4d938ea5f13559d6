"""Keeps a checkpoint's files while the trainer rotates its folders: hard links beside it, for a while.

``/runs/a/step-100`` gets ``/runs/a/.driftline-protected/<digest>/step-100``, whose files are links to the
same files: made in milliseconds, of no size until the trainer removes its own. An evaluator on another host
may come an hour later and finds the copy. Links need one file system that has them, and the right to write
beside the checkpoint; elsewhere the checkpoint is announced as it is, counted, said once per reason.

Who removes a copy: the SDK, by bounds, and nobody else. The evaluator may have no right to, and cannot know
that no second suite or later trigger wants the same checkpoint; the SDK does not hear what was evaluated.
So the newest are kept: at most ``protect_count``, ``protect_bytes`` in all and ``protect_age_us`` old, per
folder of checkpoints, looked at with each checkpoint and each minute. And the trainer's own saves go first:
while the file system has less free than twice the size of the newest checkpoint, the oldest copies go.
Copies outlive the run, since its last evaluations do; the next run that saves in the same folder clears
them away. It is safe to delete ``.driftline-protected`` at any time.

A link is the same file: it protects from removal, not from a trainer that writes into the files that it
saved (the digest in the event then differs from what the evaluator reads, which it says).

Several processes may protect the same checkpoint: a copy is made under a name of its own and renamed, the
first one stays. Used on the SDK's thread only.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from driftline.events import Checkpoint, FileEntry
from driftline.producers.counters import Counters, Notes
from driftline.settings import SdkSettings

FOLDER = ".driftline-protected"
MAKING = ".making-"
TIDY_US = 60_000_000
"""How often the age of copies is looked at."""
MAKING_AGE_US = 3_600_000_000
"""A copy in the making that is older was left by a process that died."""
ROOTS_MAX = 64
"""Folders of checkpoints that one process looks after."""
FREE_SIZES = 2
"""So many checkpoints of the newest one's size fit into what stays free."""
_DIGEST = re.compile(r"[0-9a-f]{32}")


class Copy(NamedTuple):
    """A protected checkpoint."""

    name: str
    made_us: int
    size: int
    """Bytes that it holds, if the trainer has removed its own."""


class Refused(Exception):
    """This checkpoint is not protected; the message says why."""


def surplus(
    copies: Sequence[Copy], *, now_us: int, count: int, size: int, age_us: int, room: int
) -> list[Copy]:
    """The copies to remove, oldest first: beyond the count, the bytes or the age, or until ``room`` is there.

    ``room``: bytes missing on the file system, 0 if none.

    >>> old, new = Copy("a", 1, 10), Copy("b", 2, 10)
    >>> [copy.name for copy in surplus([new, old], now_us=3, count=9, size=15, age_us=9, room=0)]
    ['a']
    """
    removed: list[Copy] = []
    kept = sorted(copies, key=lambda copy: (copy.made_us, copy.name))
    while kept and (
        len(kept) > count
        or sum(copy.size for copy in kept) > size
        or now_us - kept[0].made_us > age_us
        or sum(copy.size for copy in removed) < room
    ):
        removed.append(kept.pop(0))
    return removed


class Protector:
    """See the module's docstring."""

    def __init__(self, process: str, settings: SdkSettings, counters: Counters, notes: Notes) -> None:
        self._process, self._settings = process, settings
        self._counters, self._notes = counters, notes
        self._roots: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._tidied_us = 0

    def protect(self, saved: Checkpoint) -> str:
        """Path of the copy of this checkpoint, "" if it is not protected (counted, the reason said once)."""
        if not self._settings.protect_bytes or not self._settings.protect_count:
            return ""
        path = os.path.realpath(saved.uri)
        root = os.path.join(os.path.dirname(path), FOLDER)
        size = sum(entry.size for entry in saved.files)
        try:
            self._check_room(root, size)
            copy = self._link(path, root, saved)
        except (OSError, Refused) as error:
            self._counters.add("checkpoints_unprotected")
            why = str(error) if isinstance(error, Refused) else f"{error.strerror or error}"
            self._notes.once(
                ("protect", why),
                f"checkpoint {saved.uri} is not protected from the trainer's own rotation: {why}; it is "
                "announced as it is, and lost to evaluations if it is removed before them",
            )
            return ""
        self._counters.add("checkpoints_protected")
        self._roots[root] = size
        while len(self._roots) > ROOTS_MAX:
            self._roots.pop(next(iter(self._roots)))
        self._tidy(root, size)
        return copy if os.path.lexists(copy) else ""

    def turn(self, steady_us: int) -> None:
        """Once a minute: what became too old goes."""
        if self._roots and steady_us - self._tidied_us >= TIDY_US:
            self._tidied_us = steady_us
            for root, size in self._roots.items():
                self._tidy(root, size)

    def _check_room(self, root: str, size: int) -> None:
        if size > self._settings.protect_bytes:
            raise Refused(
                f"its {size} bytes are more than sdk.protect_space ({self._settings.protect_bytes})"
            )
        if os.path.islink(root):
            raise Refused(f"{root} is a link")
        if self._missing(root, size) and sum(copy.size for copy in self._copies(root)) < self._missing(
            root, size
        ):
            raise Refused(f"less than {FREE_SIZES} times its {size} bytes are free on its file system")

    def _missing(self, root: str, size: int) -> int:
        stat = os.statvfs(os.path.dirname(root))
        return max(0, FREE_SIZES * size - stat.f_bavail * stat.f_frsize)

    def _link(self, path: str, root: str, saved: Checkpoint) -> str:
        place = os.path.join(root, saved.digest)
        copy = os.path.join(place, os.path.basename(path))
        if os.path.lexists(copy):  # another rank was faster, or the same content again
            os.utime(place)
            return copy
        making = os.path.join(root, f"{MAKING}{self._process}")
        shutil.rmtree(making, ignore_errors=True)
        os.makedirs(making)
        try:
            made = os.path.join(making, os.path.basename(path))
            for entry in saved.files:
                _link_one(path, made, entry)
            os.makedirs(place, exist_ok=True)
            try:
                os.rename(made, copy)
            except OSError:
                if not os.path.lexists(copy):
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
        return copy

    def _tidy(self, root: str, size: int) -> None:
        settings, now_us = self._settings, time.time_ns() // 1000
        try:
            room = self._missing(root, size)
        except OSError:
            room = 0  # the folder of checkpoints is gone, and the copies with it
        for copy in surplus(
            self._copies(root),
            now_us=now_us,
            count=settings.protect_count,
            size=settings.protect_bytes,
            age_us=settings.protect_age_us,
            room=room,
        ):
            shutil.rmtree(os.path.join(root, copy.name), ignore_errors=True)
            self._counters.add("checkpoints_released")
        for left in Path(root).glob(f"{MAKING}*"):
            if now_us - _made_us(left) > MAKING_AGE_US:
                shutil.rmtree(left, ignore_errors=True)

    def _copies(self, root: str) -> list[Copy]:
        """What is protected there. Sizes are added up once: a copy may have tens of thousands of files."""
        try:
            names = [name for name in os.listdir(root) if _DIGEST.fullmatch(name)]
        except OSError:
            return []
        paths = {name: os.path.join(root, name) for name in names}
        gone = [path for path in self._sizes if os.path.dirname(path) == root and path not in paths.values()]
        for path in gone:
            del self._sizes[path]
        for path in paths.values():
            if path not in self._sizes:
                self._sizes[path] = _size(path)
        return [Copy(name, _made_us(Path(path)), self._sizes[path]) for name, path in paths.items()]


def _link_one(path: str, made: str, entry: FileEntry) -> None:
    """Links one file of the manifest; a file that is itself a symbolic link gives a link to what it names."""
    source, target = path, made
    if os.path.isdir(path):
        source, target = os.path.join(path, entry.path), os.path.join(made, entry.path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.link(os.path.realpath(source), target)
    if os.stat(target).st_size != entry.size:
        raise Refused("it was written to while it was announced")


def _made_us(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns // 1000
    except OSError:  # removed by another rank meanwhile
        return 0


def _size(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # removed by another rank meanwhile
                continue
    return total
