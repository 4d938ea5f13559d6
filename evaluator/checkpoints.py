"""Is a checkpoint whole? Looks at a safetensors file or folder without loading it, and waits within a limit.

Whole means: every file of the event's manifest has its size; every shard that the index names is there, no
shard is cut (header length = file size) and holds the tensors that the index says; nothing still carries a
temporary name; the sampled digest is the announced one, so nobody wrote to the files since. Otherwise the
last look says why: "gone" (nothing there), "incomplete" (something missing or cut), "unreadable" (there,
but not what it should be). A URI comes off the wire: it must be an absolute path, names from manifest and
index must stay inside the folder, and nothing is ever unpickled or executed.

A checkpoint lies in up to two places: the copy that the SDK made of links, which outlives the trainer's
rotation, and where the trainer saved it, which outlives the copy. The first that is whole is used.

:func:`look` reads the disk once; :func:`decide` is pure; :func:`wait_until_whole` joins them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from driftline.checkpoint_files import SAMPLING, list_files, sampled_digest
from driftline.clock import Clock
from driftline.errors import BadData
from driftline.evaluator.safetensors_header import Cut, Header, check_regular, read_header
from driftline.events import Checkpoint, EvalStatus, FileEntry

if TYPE_CHECKING:
    import torch

INDEX_MAX_BYTES = 64 * 1024 * 1024
FILES_MAX = 100_000
_HASH_CHUNK_BYTES = 8 * 1024 * 1024
_SHARD = re.compile(r"-(\d{5,6})-of-(\d{5,6})\.safetensors$")
_TEMPORARY = re.compile(r"^(\.?tmp[-_.]|\.tmp)|\.(tmp|temp|part|partial|incomplete)$", re.IGNORECASE)


class Look(NamedTuple):
    """What one look at a checkpoint saw; ``weights`` are the files to load, in name order."""

    state: Literal["whole", "incomplete", "gone", "unreadable"]
    reason: str = ""
    weights: tuple[Path, ...] = ()
    path: Path | None = None
    """Where the weights lie."""
    final: bool = False
    """Waiting cannot change it."""


class Found(NamedTuple):
    """A whole checkpoint, and how long it took to become whole."""

    folder: CheckpointFolder
    waited_us: int


class NotWhole(Exception):
    """The checkpoint was not whole within the limit; ``status`` is the evaluation's outcome."""

    def __init__(self, status: EvalStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Changed(BadData):
    """The weights changed while they were being read."""


class CheckpointFolder:
    """A whole checkpoint as suites see it."""

    def __init__(self, path: Path, weights: Sequence[Path], event: Checkpoint) -> None:
        self.path = path
        """The folder (or the one file)."""
        self.weights = tuple(weights)
        """The safetensors files."""
        self.event = event
        """The event that announced it: step, epoch, manifest."""
        self._stamps = self._stamp()

    def state_dict(self, device: str = "cpu") -> dict[str, torch.Tensor]:
        """All tensors of all shards, on a device."""
        from safetensors.torch import load_file

        tensors: dict[str, torch.Tensor] = {}
        for file in self.weights:
            tensors |= load_file(file, device=device)
        return tensors

    def json(self, name: str) -> Any:
        """A JSON file of the folder, such as ``config.json``."""
        folder = self.path if self.path.is_dir() else self.path.parent
        return json.loads((folder / name).read_text(encoding="utf-8"))

    def digest(self, progress: Callable[[], None] = lambda: None) -> str:
        """SHA-256 over names, sizes and all bytes of the weights; ``progress`` is called every few MB."""
        whole = hashlib.sha256()
        for file in self.weights:
            one = hashlib.sha256()
            with file.open("rb") as stream:
                while chunk := stream.read(_HASH_CHUNK_BYTES):
                    one.update(chunk)
                    progress()
            whole.update(f"{file.name}\0{file.stat().st_size}\0{one.hexdigest()}\n".encode())
        return whole.hexdigest()

    def check_unchanged(self) -> None:
        """Raises Changed when a weight file is not the one that was checked (size, time, inode)."""
        try:
            now = self._stamp()
        except OSError as error:
            raise Changed(f"the checkpoint vanished while it was being read: {error}") from error
        if now != self._stamps:
            raise Changed(
                "the weights were written to while they were being read; save to a new folder instead"
            )

    def _stamp(self) -> list[tuple[int, int, int]]:
        stats = [file.stat() for file in self.weights]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def path_of(uri: str) -> Path:
    """The local path of a checkpoint's URI. Raises BadData unless it is absolute, without "..".

    >>> path_of("file:///data/step-5").as_posix()
    '/data/step-5'
    """
    text = uri
    if "://" in uri:
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise BadData(f"{uri!r} is no local path: save to a folder that the evaluator sees")
        text = unquote(parts.path)
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or "\0" in text:
        raise BadData(f"{uri!r} is no absolute path: pass an absolute path to run.checkpoint()")
    return path


def look(checkpoint: Checkpoint) -> Look:
    """One look at the disk, at the copy first."""
    if checkpoint.format != "safetensors":
        return Look(
            "unreadable",
            f"format {checkpoint.format!r} is not read: save the weights as safetensors",
            final=True,
        )
    copy = _look_in(checkpoint.copy, checkpoint) if checkpoint.copy else None
    if copy is not None and copy.state == "whole":
        return copy
    saved = _look_in(checkpoint.uri, checkpoint)
    return copy if copy is not None and saved.state == "gone" and copy.state != "gone" else saved


def is_there(checkpoint: Checkpoint) -> bool:
    """Whether anything is left in one of its places."""
    return any(_look_in(uri, checkpoint).state != "gone" for uri in (checkpoint.copy, checkpoint.uri) if uri)


def _look_in(uri: str, checkpoint: Checkpoint) -> Look:
    try:
        path = path_of(uri)
        _check_manifest(checkpoint.files)
    except BadData as error:
        return Look("unreadable", str(error), final=True)
    try:
        return _look_at(path, checkpoint)
    except (Cut, _Missing) as error:
        return Look("incomplete", str(error))
    except BadData as error:
        return Look("unreadable", str(error))
    except FileNotFoundError as error:
        return Look("incomplete", f"{error.filename} vanished")
    except OSError as error:
        return Look("unreadable", f"{error.filename or path}: {error.strerror}")


def decide(seen: Look, *, waited_us: int, wait_us: int) -> Literal["use", "wait", "give up"]:
    """What to do after a look."""
    if seen.state == "whole":
        return "use"
    return "give up" if seen.final or waited_us >= wait_us else "wait"


def wait_until_whole(
    checkpoint: Checkpoint,
    *,
    wait_us: int,
    poll_us: int,
    clock: Clock,
    sleep: Callable[[int], None],
) -> Found:
    """Looks every ``poll_us`` until the checkpoint is whole, for ``wait_us`` at most.

    ``sleep`` takes microseconds; it may raise to stop the wait. Raises NotWhole with the last look's verdict.
    """
    began_us = clock.steady_us()
    while True:
        seen = look(checkpoint)
        waited_us = clock.steady_us() - began_us
        match decide(seen, waited_us=waited_us, wait_us=wait_us):
            case "use":
                assert seen.path is not None
                return Found(CheckpointFolder(seen.path, seen.weights, checkpoint), waited_us)
            case "give up":
                assert seen.state != "whole"
                waited = "" if seen.final else f" (waited {waited_us / 1e6:.1f} s)"
                raise NotWhole(seen.state, seen.reason + waited)
            case "wait":
                sleep(min(poll_us, wait_us - waited_us))


class _Missing(BadData):
    """A file is not there yet."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _check_manifest(files: Sequence[FileEntry]) -> None:
    if len(files) > FILES_MAX:
        raise BadData(f"the manifest names {len(files)} files; at most {FILES_MAX} are checked")
    for entry in files:
        _inside(entry.path, "the manifest")


def _inside(name: str, source: str) -> None:
    parts = PurePosixPath(name)
    if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
        raise BadData(f"{source} names {name!r}, which is not inside the checkpoint")


def _look_at(path: Path, checkpoint: Checkpoint) -> Look:
    if _TEMPORARY.search(path.name):
        return Look("incomplete", f"{path.name} is a temporary name: rename it, then announce it")
    if not path.exists():
        return _absent(path)
    if path.is_dir():
        files = _files_of(path, checkpoint)
        weights = _weights_of(path, {entry.path for entry in files})
        _check_digest(path, files, checkpoint)
        return _whole(path, weights)
    if path.suffix != ".safetensors":
        raise BadData(f"{path.name} is no safetensors file: save the weights as safetensors")
    files = [entry for entry in checkpoint.files if entry.path == path.name]
    _match_manifest(path.parent, files)
    read_header(path)
    _check_digest(path, files, checkpoint)
    return _whole(path, [path])


def _absent(path: Path) -> Look:
    staged = [path.with_name(prefix + path.name) for prefix in ("tmp-", ".tmp-", "tmp_")]
    staged += [path.with_name(path.name + suffix) for suffix in (".tmp", ".partial", ".incomplete")]
    for other in staged:
        if other.exists():
            return Look("incomplete", f"it is still named {other.name}")
    return Look("gone", f"{path} is not there: deleted, or on a disk that this evaluator does not see")


def _whole(path: Path, weights: Sequence[Path]) -> Look:
    return Look("whole", weights=tuple(sorted(weights)), path=path)


def _files_of(path: Path, checkpoint: Checkpoint) -> list[FileEntry]:
    """The files as announced, each with its size there; listed anew where the list was too long to travel."""
    if not checkpoint.count:
        _match_manifest(path, checkpoint.files)
        return checkpoint.files
    files = list_files(str(path))
    size = sum(entry.size for entry in files)
    announced = f"{checkpoint.count} files of {checkpoint.size} bytes were announced"
    if len(files) < checkpoint.count or size < (checkpoint.size or 0):
        raise _Missing(f"{path.name} has {len(files)} files of {size} bytes, {announced}")
    return files


def _check_digest(path: Path, files: list[FileEntry], checkpoint: Checkpoint) -> None:
    """Raises BadData when the content is not the announced one, as far as the event says how to tell."""
    if checkpoint.sampling == SAMPLING and files and sampled_digest(str(path), files) != checkpoint.digest:
        raise BadData(
            f"{path.name} is not what was announced: it was written to after run.checkpoint(); save each "
            "checkpoint to a place of its own"
        )


def _match_manifest(folder: Path, files: Sequence[FileEntry]) -> None:
    for entry in files:
        file = folder / entry.path
        if not file.exists():
            raise _Missing(f"{entry.path} is missing (the manifest names {len(files)} files)")
        check_regular(file)
        size = file.stat().st_size
        if size < entry.size:
            raise Cut(f"{entry.path} has {size} of {entry.size} bytes")
        if size > entry.size:
            raise BadData(
                f"{entry.path} has {size} bytes, the manifest says {entry.size}: it was written again"
            )


def _weights_of(folder: Path, manifest: set[str]) -> list[Path]:
    """The weight files of a folder, each checked."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _weights_of_index(folder, index)
    if index.name in manifest:
        raise _Missing(f"{index.name} is missing")
    single = folder / "model.safetensors"
    files = [file for file in folder.glob("*.safetensors") if not _TEMPORARY.search(file.name)]
    files = [single] if single in files else files
    if any(_SHARD.search(file.name) for file in files):
        raise _Missing(f"shards are there, {index.name} is not")
    if not files:
        pickled = sorted(
            file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt")
        )
        if pickled:
            raise BadData(f"only {pickled[0]} is there: save the weights as safetensors")
        raise _Missing("no safetensors file is there")
    _union([(file.name, read_header(file)) for file in files])
    return files


def _weights_of_index(folder: Path, index: Path) -> list[Path]:
    check_regular(index)
    if index.stat().st_size > INDEX_MAX_BYTES:
        raise BadData(f"{index.name} is larger than {INDEX_MAX_BYTES} bytes")
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.ValidationError as error:
        raise BadData(f"{index.name} is no index: {error}") from error
    except msgspec.DecodeError as error:
        raise Cut(f"{index.name} is not whole JSON: {error}") from error
    shards: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        shards.setdefault(shard, set()).add(tensor)
    if not 0 < len(shards) <= FILES_MAX:
        raise BadData(f"{index.name} names {len(shards)} shards")
    headers = [(shard, _shard_header(folder, shard, len(shards))) for shard in sorted(shards)]
    _union(headers)
    for shard, header in headers:
        if lacking := sorted(shards[shard] - header.tensors):
            raise BadData(f"{shard} lacks {lacking[0]!r} and {len(lacking) - 1} more tensors of the index")
    return [folder / shard for shard in shards]


def _shard_header(folder: Path, shard: str, shards: int) -> Header:
    _inside(shard, "the index")
    file = folder / shard
    if not file.exists():
        raise _Missing(f"{shard} is missing (the index names {shards} shards)")
    return read_header(file)


def _union(headers: Sequence[tuple[str, Header]]) -> None:
    """Two files with the same tensor: nobody knows which one is meant."""
    owner: dict[str, str] = {}
    for name, header in headers:
        for tensor in header.tensors:
            if owner.setdefault(tensor, name) != name:
                raise BadData(f"tensor {tensor!r} is in {owner[tensor]} and in {name}")
