"""Files as bytes; gzip is unpacked while it is read, whatever the file is called.

A gzip file that ends too early (it is being written, or was torn) gives what unpacks of it; so does one that
is damaged, up to the damage. Positions and sizes are those of the unpacked bytes.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from driftline.errors import BadData

GZIP = b"\x1f\x8b"
MAX_DOCUMENT = 512 * 1024 * 1024
"""Of JSON that is read whole."""
_BLOCK = 256 * 1024
_PACKED, _PIECE = 4 * 1024, 16 * 1024
"""Unpacked at once, from so many bytes: as much is lost where a file is damaged."""
_ANY_HEADER = 31
"""zlib's window size for data with a header of gzip."""


class Bytes(Protocol):
    """What can be read from its beginning to its end."""

    def read(self, size: int, /) -> bytes: ...


def is_gzip(path: Path) -> bool:
    """By what it begins with.

    >>> is_gzip(Path("/dev/null"))
    False
    """
    with open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP


def plain_name(path: Path) -> str:
    """The file's name as it was before it was packed.

    >>> plain_name(Path("a/run.jsonl.gz"))
    'run.jsonl'
    """
    return path.stem if path.suffix.lower() in (".gz", ".gzip") else path.name


@contextmanager
def opened(path: Path, start: int = 0) -> Iterator[Bytes]:
    """The file's bytes from ``start`` on."""
    with open(path, "rb") as file:
        if file.read(len(GZIP)) != GZIP:
            file.seek(start)
            yield file
            return
        file.seek(0)
        unpacked = _Unpacked(file)
        while start > 0 and (passed := len(unpacked.read(min(start, _BLOCK)))):
            start -= passed
        yield unpacked


class Size(NamedTuple):
    """How many bytes there are to read now; ``torn``: a gzip file, and its end is not there or is damaged."""

    bytes: int
    torn: bool = False


def size(path: Path) -> Size:
    """Of a gzip file, by unpacking it."""
    if not is_gzip(path):
        return Size(path.stat().st_size)
    total = 0
    with open(path, "rb") as file:
        unpacked = _Unpacked(file)
        while block := unpacked.read(_BLOCK):
            total += len(block)
    return Size(total, unpacked.torn)


def content(path: Path, limit: int) -> bytes:
    """All of it. Raises BadData where it is larger than ``limit``."""
    with opened(path) as file:
        pieces, left = [], limit + 1
        while left > 0 and (block := file.read(min(left, 8 * 1024 * 1024))):
            pieces.append(block)
            left -= len(block)
    if left <= 0:
        raise BadData(f"{path} is one document of over {limit >> 20:,} MiB: write an object a line")
    return b"".join(pieces)


def digest(path: Path, limit: int) -> bytes:
    """A hash of the first ``limit`` bytes."""
    hashed = hashlib.blake2b(digest_size=16)
    with opened(path) as file:
        while limit > 0 and (block := file.read(min(limit, _BLOCK))):
            hashed.update(block)
            limit -= len(block)
    return hashed.digest()


class _Unpacked:
    """Bytes of a gzip file, of all its members."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._member = zlib.decompressobj(_ANY_HEADER)
        self._packed = self._found = b""
        self._over = False
        self.torn = False

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        while not self._found and not self._over:
            self._found = self._next()
        given, self._found = self._found[:size], self._found[size:]
        return given

    def _next(self) -> bytes:
        packed = self._packed or self._file.read(_PACKED)
        try:
            if not packed:
                self._over = self.torn = True
                return self._member.flush()
            found = self._member.decompress(packed, _PIECE)
        except zlib.error:
            self._over = self.torn = True
            return b""
        self._packed = self._member.unconsumed_tail
        if self._member.eof:
            self._packed = self._member.unused_data.lstrip(b"\0") or self._file.read(_PACKED).lstrip(b"\0")
            self._member = zlib.decompressobj(_ANY_HEADER)
            self._over = not self._packed
        return found
