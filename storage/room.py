"""A disk without room: not tried again as long as nothing has changed."""

from __future__ import annotations

import os
from pathlib import Path

from driftline.errors import Unavailable

_FULL_PASSES = 60
_FULL_BYTES = 256 * 1024 * 1024
"""A disk with more than that was full for another reason (inodes, a quota)."""


class Full:
    """A disk that had no room for a commit. As long as it has no more room than then, trying again is
    pointless, and delta-rs 1.6.6 prints a panic of one of its threads each time [seen]."""

    def __init__(self, line: str, free: int) -> None:
        self._line = line
        self._free = free
        self._passes = _FULL_PASSES if free < _FULL_BYTES else 0

    def check(self, root: Path) -> None:
        """Raises Unavailable if nothing has changed; now and then it lets one try pass."""
        if self._passes and free_bytes(root) <= self._free:
            self._passes -= 1
            raise Unavailable(self._line)


def free_bytes(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_bavail * found.f_frsize
