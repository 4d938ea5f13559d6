"""Lines of a file that may grow while it is read: bounded memory, each line with its number.

A line is given when its end is there. What stands between the last line break and the limit is kept for the
next call, unless the caller says that nothing more will come.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from driftline.importing.unpacked import opened

MAX_LINE = 16 * 1024 * 1024
_BLOCK = 1024 * 1024


class Line(NamedTuple):
    """One line without its end; ``data`` is None where it is longer than :data:`MAX_LINE`."""

    number: int
    data: bytes | None
    ended: bool
    """False: it stands at the end of the file and has no line break."""


class Lines:
    """The lines of one file, from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.position = 0
        """Bytes read, unpacked."""
        self._number = 0
        self._rest = bytearray()
        self._long = False
        """The rest of a line that is too long is being skipped."""

    @property
    def unfinished(self) -> bool:
        """Whether something without a line break was read and not given."""
        return bool(self._rest) or self._long

    def upto(self, limit: int, *, whole: bool) -> Iterator[Line]:
        """The lines that end at or before byte ``limit`` and were not given yet."""
        with opened(self._path, self.position) as file:
            while self.position < limit:
                block = file.read(min(_BLOCK, limit - self.position))
                if not block:
                    break  # the file was cut since the limit was taken
                self.position += len(block)
                yield from self._split(block)
        if whole and (self._rest or self._long):
            yield self._line(ended=False)

    def _split(self, block: bytes) -> Iterator[Line]:
        start = 0
        while (end := block.find(b"\n", start)) >= 0:
            self._rest += block[start:end]
            yield self._line(ended=True)
            start = end + 1
        self._rest += block[start:]
        if len(self._rest) > MAX_LINE:
            self._rest.clear()
            self._long = True

    def _line(self, *, ended: bool) -> Line:
        self._number += 1
        data = None if self._long or len(self._rest) > MAX_LINE else bytes(self._rest).removesuffix(b"\r")
        self._rest, self._long = bytearray(), False
        return Line(self._number, data, ended)
