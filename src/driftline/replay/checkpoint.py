"""Where a replay is, in a folder of its own, so that an interrupted one goes on and does not begin again.

    replay.json           what is replayed: another replay does not go on with it
    part-<n>.state        of the n-th partition: offset, state of the pipeline, digests, rows collected so far
    part-<n>-<table>*.parquet    rows that belong to it

A state is written beside and renamed, with a digest: after ``kill -9`` or a power cut there is the old one or
the new one. It names the files that belong to it; others are of after it and are written anew. The states
are versioned, and the pipeline's own is its snapshot (``streams.snapshot``). Reading runs no code from them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from driftline.errors import BadData, SettingsError
from driftline.replay.outputs import Collected
from driftline.storage.alone import alone

VERSION = 1
_MAGIC = b"DLRP"
_NAME = "replay.json"
_OPTION = "--resume"


class Progress(msgspec.Struct):
    """What one partition of a replay has given so far."""

    number: int
    next: int
    """The offset to go on with."""
    over: bool
    state: bytes
    """Of the pipeline; empty once over."""
    samples: int
    records: int
    notes: list[str]
    collected: Collected
    version: int = VERSION


class Folder:
    """The folder of one replay; made if it is missing. Nobody else works in it until it is left.

    ``told`` says what is replayed, texts by name. Raises SettingsError if the folder is of another replay, in
    use, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def held(cls, path: Path, told: Mapping[str, Any]) -> Iterator[Folder]:
        with contextlib.ExitStack() as stack:
            try:
                path.mkdir(parents=True, exist_ok=True)
                mine = stack.enter_context(alone(path / "lock"))
                if not mine:
                    raise SettingsError(_OPTION, str(path), "another replay works in this folder now")
                folder = cls(path)
                folder._bind(dict(told))
            except OSError as error:
                raise SettingsError(_OPTION, str(path), f"cannot be used: {error.strerror}") from error
            yield folder

    @property
    def begun(self) -> bool:
        """Whether there is progress to go on from."""
        return any(self.path.glob("part-*.state"))

    def plan(self) -> list[Any] | None:
        """The partitions, as they were when the replay began."""
        plan: list[Any] | None = json.loads((self.path / _NAME).read_text(encoding="utf-8")).get("plan")
        return plan

    def set_plan(self, plan: list[Any]) -> None:
        """Keeps the partitions."""
        said = json.loads((self.path / _NAME).read_text(encoding="utf-8"))
        _write(self.path / _NAME, json.dumps(said | {"plan": plan}, indent=1).encode())

    def finished(self) -> None:
        """The replay is over: takes away what belongs to it."""
        mine = ("part-*.state", "part-*.parquet", ".part-*.new")
        names = [*(name for pattern in mine for name in self.path.glob(pattern)), self.path / _NAME]
        for name in [*names, _beside(self.path / _NAME), self.path / "lock"]:
            name.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something else in it
            self.path.rmdir()

    def _bind(self, told: dict[str, Any]) -> None:
        told = {"version": VERSION, **told}
        file = self.path / _NAME
        if not file.exists():
            if any(each.name not in ("lock", _beside(file).name) for each in self.path.iterdir()):
                remedy = "the folder holds something else: name an empty one"
                raise SettingsError(_OPTION, str(self.path), remedy)
            _write(file, json.dumps({"replays": told}, indent=1).encode())
            return
        try:
            was = json.loads(file.read_text(encoding="utf-8"))["replays"]
        except (ValueError, KeyError, TypeError):
            was = {}
        changed = sorted(name for name in {*was, *told} if was.get(name) != told.get(name))
        if changed:
            one = changed[0]
            raise SettingsError(
                _OPTION,
                str(self.path),
                f"its progress is of another replay ({one} was {was.get(one)!r}, is {told.get(one)!r}): "
                "name another folder, or remove this one to begin anew",
            )


def write(folder: Path, progress: Progress) -> None:
    """Keeps the progress of a partition."""
    body = msgspec.msgpack.encode(progress)
    _write(folder / f"part-{progress.number}.state", _MAGIC + hashlib.sha256(body).digest() + body)


def read(folder: Path, number: int) -> Progress | None:
    """The progress of a partition, None before the first. Raises BadData."""
    file = folder / f"part-{number}.state"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    remedy = f"{file} is broken: remove {folder} to begin the replay anew"
    magic, digest, body = data[:4], data[4:36], data[36:]
    if magic != _MAGIC or hashlib.sha256(body).digest() != digest:
        raise BadData(remedy)
    try:
        progress = msgspec.msgpack.decode(body, type=Progress)
    except msgspec.MsgspecError as error:
        raise BadData(f"{remedy} ({error})") from error
    if progress.version != VERSION:
        raise BadData(f"{file} is of another version of driftline: remove {folder} to begin the replay anew")
    return progress


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    beside = _beside(path)
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
