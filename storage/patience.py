"""When to try again what failed, and when to say so. Pure.

What fails for a reason outside (a full disk) is tried again every ten minutes. What fails otherwise is a
fault of ours, and may fail each time: it is tried again after a minute, then after ever longer, at most an
hour. A fault is said when it is new, not each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from driftline.clock import SECOND_US

KNOWN_US = 600 * SECOND_US
FIRST_US = 60 * SECOND_US
LONGEST_US = 3600 * SECOND_US


class Failure(NamedTuple):
    """What went wrong, as one line. ``ours``: nobody expected it."""

    line: str
    ours: bool


@dataclass
class _Failing:
    again_us: int = 0
    wait_us: int = FIRST_US
    said: set[str] = field(default_factory=set)


class Patience:
    """Of several things, each by itself.

    >>> patience, bug = Patience(), Failure("AssertionError: 2 of 3 rows", ours=True)
    >>> patience.failed("merge", bug, 0), patience.due("merge", FIRST_US - 1), patience.due("merge", FIRST_US)
    ((60000000, True), False, True)
    >>> patience.failed("merge", bug, FIRST_US), patience.due("merge", 3 * FIRST_US - 1)
    ((120000000, False), False)
    >>> patience.worked("merge"), patience.due("merge", 0), patience.worked("merge")
    (True, True, False)
    """

    def __init__(self) -> None:
        self._failing: dict[object, _Failing] = {}

    def due(self, what: object, now_us: int) -> bool:
        """Whether to try it; ``now_us`` of a steady clock."""
        return what not in self._failing or now_us >= self._failing[what].again_us

    def failed(self, what: object, failure: Failure, now_us: int) -> tuple[int, bool]:
        """How long it waits now, and whether to say so."""
        found = self._failing.setdefault(what, _Failing())
        wait_us = found.wait_us if failure.ours else KNOWN_US
        if failure.ours:
            found.wait_us = min(2 * wait_us, LONGEST_US)
        found.again_us = now_us + wait_us
        kind = failure.line.partition(":")[0] if failure.ours else ""
        say = not failure.ours or kind not in found.said
        found.said.add(kind)
        return wait_us, say

    def worked(self, what: object) -> bool:
        """Whether it had failed before."""
        return self._failing.pop(what, None) is not None


def in_words(wait_us: int) -> str:
    """
    >>> in_words(60 * SECOND_US), in_words(KNOWN_US), in_words(LONGEST_US)
    ('a minute', '10 minutes', 'an hour')
    """
    minutes = wait_us // (60 * SECOND_US)
    return {1: "a minute", 60: "an hour"}.get(minutes, f"{minutes} minutes")
