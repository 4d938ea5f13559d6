"""Which files a checkpoint has, and a digest that samples their content: equal for the SDK and the evaluator.

Names and sizes are equal for all checkpoints of a run, so the digest also hashes, of each file, the first
and the last 64 KiB and eight pieces of 16 KiB spread evenly between. Two checkpoints whose weights differ
anywhere in those pieces differ in their digest; reading costs about 260 KiB per file, whatever its size.
:data:`SAMPLING` names this way; an event that carries the name can be checked against the disk.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence

from driftline.errors import BadData
from driftline.events import FileEntry

SAMPLING = "pieces-1"
EDGE_BYTES = 64 * 1024
PIECE_BYTES = 16 * 1024
PIECES = 8
FILES_MAX = 20_000


def list_files(path: str) -> list[FileEntry]:
    """The files of a folder, also in folders below it, in a fixed order; or the one file.

    Raises:
        OSError: nothing there, or unreadable.
        BadData: more than :data:`FILES_MAX`, or a pipe or device among them.
    """
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


def sampled_digest(path: str, files: Sequence[FileEntry]) -> str:
    """32 hex digits over names, sizes and pieces of the files, in the order given. Raises OSError."""
    digest = hashlib.sha256()
    for entry in files:
        _sample(digest, os.path.join(path, entry.path) if os.path.isdir(path) else path, entry)
    return digest.hexdigest()[:32]


def _size(path: str) -> int:
    """Of a regular file; to open a pipe would wait for whoever writes into it."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise BadData(f"checkpoint: {path!r:.500} is no regular file: leave it out of the folder")
    return found.st_size


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
