"""Each record of a process counts once: (run, process, seq) with seq counting up by one.

>>> admit(4, 4).duplicate, admit(4, 5), admit(-1, 2).hole
(True, Verdict(duplicate=False, hole=None), (0, 2))
"""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """``hole``: sequence numbers [start, end) that the log never showed."""

    duplicate: bool
    hole: tuple[int, int] | None


_NEXT = Verdict(False, None)
_DUPLICATE = Verdict(True, None)


def admit(highest: int, seq: int) -> Verdict:
    """What a record with ``seq`` is to a process whose highest so far was ``highest`` (-1: none)."""
    if seq == highest + 1:
        return _NEXT
    if seq <= highest:
        return _DUPLICATE
    return Verdict(False, (highest + 1, seq))
