"""What a checkpoint event says of its files: names, sizes, format, and a digest that samples content.

Names and sizes are equal for all checkpoints of a run, so the digest also hashes, of each file, the first
and the last 64 KiB and eight pieces of 16 KiB spread evenly between. Two checkpoints whose weights differ
anywhere in those pieces differ in their digest; reading costs about 260 KiB per file, whatever its size.
(The evaluator hashes everything while it loads: that is the key of results.)

Runs on the SDK's thread, after the save: the files are complete and still.
"""

from __future__ import annotations

import hashlib
import os
import stat
from urllib.parse import unquote, urlsplit

from driftline.errors import BadData
from driftline.events import Checkpoint, FileEntry

EDGE_BYTES = 64 * 1024
PIECE_BYTES = 16 * 1024
PIECES = 8
FILES_MAX = 20_000


def local_path(uri: str) -> str:
    """The absolute path of a path or file:// URI. Raises BadData for what is not a local file.

    >>> local_path("file:///tmp/a%20b")
    '/tmp/a b'
    """
    if "://" in uri:
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise BadData(
                f"checkpoint {uri}: only local paths and file:// are read; save it to a shared folder"
            )
        return os.path.abspath(unquote(parts.path))
    return os.path.abspath(uri)


def describe(
    path: str,
    *,
    step: int | None = None,
    epoch: float | None = None,
    format: str | None = None,  # noqa: A002
) -> Checkpoint:
    """Reads a checkpoint folder or file.

    Raises:
        BadData: nothing there, nothing in it, or unreadable; says which and what to do.
    """
    try:
        path = local_path(path)
        files = _files(path)
        if not files:
            raise BadData(f"checkpoint {path} has no files: call checkpoint() after the save is complete")
        digest = hashlib.sha256()
        for entry in files:
            _sample(digest, path if os.path.isfile(path) else os.path.join(path, entry.path), entry)
    except OSError as error:
        raise BadData(
            f"checkpoint {path} cannot be read ({error.strerror or error}): call checkpoint() after "
            "the save is complete, on the host that has the files"
        ) from error
    except ValueError as error:  # a null byte in the path, "http://[x"
        raise BadData(f"checkpoint {path!r:.500} is no path: {error}") from error
    for name in (path, *(entry.path for entry in files)):
        if not _is_utf8(name):
            raise BadData(f"checkpoint {path!r:.500}: {name!r:.200} is not UTF-8, rename it")
    return Checkpoint(
        digest=digest.hexdigest()[:32],
        uri=path,
        format=format or guess_format([entry.path for entry in files]),
        step=step,
        epoch=epoch,
        files=files,
    )


def guess_format(names: list[str]) -> str:
    """The format that file names tell.

    >>> guess_format(["config.json", "model.safetensors"]), guess_format([".metadata", "__0_0.distcp"])
    ('safetensors', 'dcp')
    """
    for format_name, endings in (
        ("safetensors", (".safetensors", ".safetensors.index.json")),
        ("dcp", (".distcp",)),
        ("torch", (".pt", ".pth", ".bin", ".ckpt")),
    ):
        if any(name.endswith(endings) for name in names):
            return format_name
    return "unknown"


def _files(path: str) -> list[FileEntry]:
    if not os.path.isdir(path):
        return [FileEntry(os.path.basename(path), _size(path))]
    found = []
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            found.append(FileEntry(os.path.relpath(full, path), _size(full)))
            if len(found) > FILES_MAX:
                raise BadData(
                    f"checkpoint {path} has over {FILES_MAX} files: name the folder of one checkpoint"
                )
    return found


def _size(path: str) -> int:
    """Of a regular file; to open a pipe would wait for whoever writes into it."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise BadData(f"checkpoint: {path!r:.500} is no regular file: leave it out of the folder")
    return found.st_size


def _is_utf8(name: str) -> bool:
    """Whether the name can travel as JSON; the names of files may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _raise(error: OSError) -> None:
    raise error


def _sample(digest: hashlib._Hash, full: str, entry: FileEntry) -> None:
    digest.update(f"{entry.path}\0{entry.size}\0".encode(errors="surrogateescape"))
    with open(full, "rb") as file:
        if entry.size <= 2 * EDGE_BYTES + PIECES * PIECE_BYTES:
            digest.update(file.read(entry.size))
            return
        for start, length in pieces(entry.size):
            file.seek(start)
            digest.update(file.read(length))


def pieces(size: int) -> list[tuple[int, int]]:
    """Start and length of what is hashed of a large file: both ends and pieces between.

    >>> pieces(10_000_000)[:3], pieces(10_000_000)[-1]
    ([(0, 65536), (1111111, 16384), (2222222, 16384)], (9934464, 65536))
    """
    between = [(size * (at + 1) // (PIECES + 1), PIECE_BYTES) for at in range(PIECES)]
    return [(0, EDGE_BYTES), *between, (size - EDGE_BYTES, EDGE_BYTES)]
