"""What a check of the tables finds, in words and as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from driftline.storage.tables import TableName

SHOWN = 8
"""Ranges of offsets that a sentence names; the data have all (at most ``MOST`` per table and partition)."""
MOST = 100_000


class Finding(NamedTuple):
    """One thing about one table. ``wrong``: rows are not what the offsets promise, or may soon not be."""

    table: TableName
    kind: str
    wrong: bool
    says: str
    remedy: str = ""


class Bad(NamedTuple):
    """Offsets of one partition whose rows in one table are missing ("missing") or there more than once
    ("doubled"), as half of ranges [first, last]."""

    table: TableName
    kind: str
    topic_uuid: str
    partition: int
    ranges: tuple[tuple[int, int], ...]
    rows: int
    """Rows missing or too many; 0 where that cannot be known."""

    @property
    def first(self) -> int:
        return self.ranges[0][0]

    @property
    def offsets(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def words(self) -> str:
        rows = f", {self.rows:,} rows" if self.rows else ""
        return (
            f"{self.kind}: {self.offsets:,} offsets of partition {self.partition}{rows}: "
            f"{in_words(self.ranges)} (topic {self.topic_uuid})"
        )


class Verdict(NamedTuple):
    """One table in a line."""

    table: TableName
    files: int
    bytes: int
    rows: int
    ok: bool


@dataclass
class Report:
    """All of one check."""

    root: str
    verdicts: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(finding.wrong for finding in self.findings)


def ranges(offsets: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Sorted offsets as ranges without holes.

    >>> ranges([1, 2, 3, 7, 9, 10])
    ((1, 3), (7, 7), (9, 10))
    """
    made: list[list[int]] = []
    for offset in offsets:
        if made and offset <= made[-1][1] + 1:
            made[-1][1] = offset
        else:
            made.append([offset, offset])
    return tuple((first, last) for first, last in made)


def without(first: int, last: int, known: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of [first, last] when the ``known`` ranges are taken out.

    >>> without(0, 10, [(8, 20), (2, 3)])
    [(0, 1), (4, 7)]
    """
    left = []
    for start, end in sorted(known):
        if end < first or start > last:
            continue
        if start > first:
            left.append((first, start - 1))
        first = max(first, end + 1)
    return [*left, (first, last)] if first <= last else left


def in_words(found: Sequence[tuple[int, int]]) -> str:
    """
    >>> in_words([(1, 3), (7, 7)])
    '1 to 3, 7'
    """
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in found[:SHOWN]]
    more = len(found) - SHOWN
    return ", ".join(shown) + (f" and {more:,} more ranges" if more > 0 else "")
