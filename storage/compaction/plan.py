"""Which files of a table are merged into one, and where the result is cut. Pure.

Files are grouped by the days that their rows speak of. In a group the smallest are merged, and ever larger
ones as long as each is no larger than all before it together: so a row is written anew a few times (at most
the logarithm of how much the table has grown since), however small the commits are, and few files remain.
Files that are large enough are left alone. Older days, to which only late rows still come, keep fewer
files. The result is cut between days, so that retention drops whole files; days with few rows share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

DAY_US = 86_400_000_000
FULL_ROWS = 8_000_000
FULL_BYTES = 64 * 1024 * 1024
"""A file with so much is not merged again."""
CUT_ROWS = 16_000_000
CUT_BYTES = 128 * 1024 * 1024
"""No file gets more."""
JOB_ROWS = 32_000_000
JOB_FILES = 48
JOB_BYTES = 512 * 1024 * 1024
"""What is merged in one go."""
SMALL_ROWS = 50_000
"""Files so small are always worth merging."""
PERIOD_ROWS = 1_000_000
"""Days are put together until they have so many rows."""
_OLD_GROWTH = 4
"""Of an older period a file may be so many times larger than those before it together."""


class Piece(NamedTuple):
    """A file of a table; days are counted from 1970 (UTC), None in tables that have no time."""

    path: str
    rows: int
    bytes: int
    first_day: int | None = None
    last_day: int | None = None

    @property
    def full(self) -> bool:
        return self.rows >= FULL_ROWS or self.bytes >= FULL_BYTES


class Job(NamedTuple):
    """Files to merge, in the order in which their rows came. ``stays``: the result is unlikely to be merged
    again."""

    pieces: tuple[Piece, ...]
    stays: bool


def next_job(pieces: Sequence[Piece], *, fully: bool = False) -> Job | None:
    """What to merge next of these files (oldest first); None if they are few enough.

    ``fully``: as few files as can be, however much is written for it.

    >>> few = [Piece(str(at), 10, 100) for at in range(3)]
    >>> next_job(few).pieces == tuple(few), next_job(few[:1])
    (True, None)
    >>> next_job([Piece("a", 7_000_000, 100), *few]).pieces == tuple(few)
    True
    """
    periods = _periods(pieces)
    for at, period in enumerate(reversed(periods)):
        newest = at == 0
        growth = 1 if newest else _OLD_GROWTH
        chosen = _chosen(period, None if fully else growth)
        if len(chosen) > 1:
            rows = sum(piece.rows for piece in chosen)
            size = sum(piece.bytes for piece in chosen)
            large = rows >= FULL_ROWS or size >= FULL_BYTES
            kept = set(chosen)
            last = fully and len(chosen) < JOB_FILES
            return Job(tuple(p for p in pieces if p in kept), last or large or not newest)
    return None


def _chosen(period: Iterable[Piece], growth: int | None) -> list[Piece]:
    """The smallest files of a period that are worth merging."""
    chosen: list[Piece] = []
    rows = size = 0
    for piece in sorted((p for p in period if not p.full), key=lambda p: (p.rows, p.path)):
        small = piece.rows <= SMALL_ROWS or growth is None or piece.rows <= growth * rows
        room = len(chosen) < JOB_FILES and rows + piece.rows <= JOB_ROWS and size + piece.bytes <= JOB_BYTES
        if chosen and not (small and room):
            if growth is None or not room or len(chosen) > 1:
                break
            chosen = []  # one small file alone: perhaps larger ones fit each other
            rows = size = 0
        chosen.append(piece)
        rows += piece.rows
        size += piece.bytes
    return chosen


def _periods(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Files by the last day of their rows, oldest first; days with few rows together."""
    periods: list[list[Piece]] = []
    rows, last = 0, None
    for piece in sorted(pieces, key=lambda p: -1 if p.last_day is None else p.last_day):
        if not periods or (piece.last_day != last and rows >= PERIOD_ROWS):
            periods.append([])
            rows = 0
        periods[-1].append(piece)
        rows += piece.rows
        last = piece.last_day
    return periods


def cuts(rows_of_day: Mapping[int, int]) -> list[int]:
    """Days before which a new file begins, so that each file but the last has ``PERIOD_ROWS`` or more.

    >>> cuts({10: 900_000, 11: 200_000, 12: 5, 13: 2_000_000})
    [12]
    >>> cuts({10: 2_000_000, 11: 10}), cuts({})
    ([11], [])
    """
    found = []
    rows = 0
    for day in sorted(rows_of_day):
        if rows >= PERIOD_ROWS:
            found.append(day)
            rows = 0
        rows += rows_of_day[day]
    return found
