"""What was seen already: high-water marks by which records that were sent again are recognised. Pure.

A process's records carry a seq that only grows, an output carries an id that only grows within its input
partition, and an evaluated item has a position under its lease. All of it can be read back from the tables,
and none of it starts anew when a topic is made again.
"""

from __future__ import annotations

from driftline.records import OutputId

MAX_PROCESSES = 200_000
"""Processes remembered; beyond it the one that was silent longest is forgotten."""
MAX_LEASES = 2_000


class SeenProcesses:
    """Highest seq per (run, process).

    ``lacking``: numbers below it that are stored nowhere, of a topic that is gone; new when they come again.
    """

    def __init__(self, limit: int = MAX_PROCESSES) -> None:
        self._seq: dict[tuple[str, str], int] = {}
        self._limit = limit
        self.lacking: set[tuple[str, str, int]] = set()

    def is_new(self, run: str, process: str, seq: int) -> bool:
        """True if ``seq`` is above all that came before, which it then belongs to.

        >>> seen = SeenProcesses()
        >>> [seen.is_new("r", "p", seq) for seq in (1, 2, 2, 1, 4)]
        [True, True, False, False, True]
        """
        key = (run, process)
        last = self._seq.pop(key, -1)  # popped and set again: the dict stays in order of last use
        self._seq[key] = max(last, seq)
        if len(self._seq) > self._limit:
            del self._seq[next(iter(self._seq))]
        if self.lacking and (run, process, seq) in self.lacking:
            self.lacking.remove((run, process, seq))
            return True
        return seq > last


class SeenOutputs:
    """Highest (offset, ordinal) per reader's key and input partition."""

    def __init__(self) -> None:
        self._high: dict[tuple[str, str, int], tuple[int, int]] = {}

    def is_new(self, where: str, output: OutputId) -> bool:
        """True if the output comes after all that ``where`` has seen of its input partition."""
        key = (where, output.topic_uuid, output.partition)
        position = (output.offset, output.ordinal)
        if position <= self._high.get(key, (-1, -1)):
            return False
        self._high[key] = position
        return True


class SeenItems:
    """Positions seen per lease, as disjoint half-open ranges in order."""

    def __init__(self, limit: int = MAX_LEASES) -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        self._limit = limit

    def new(self, lease: str, first: int, count: int) -> list[int]:
        """Those of the positions [first, first + count) that are new; they are then seen.

        >>> seen = SeenItems()
        >>> seen.new("a", 0, 3), seen.new("a", 2, 3), seen.new("a", 0, 5)
        ([0, 1, 2], [3, 4], [])
        """
        ranges = self._ranges.pop(lease, [])
        fresh = [at for at in range(first, first + count) if not any(a <= at < b for a, b in ranges)]
        if fresh:
            ranges = _merged([*ranges, (first, first + count)])
        self._ranges[lease] = ranges
        if len(self._ranges) > self._limit:
            del self._ranges[next(iter(self._ranges))]
        return fresh


class Seen:
    """All marks of a sink."""

    def __init__(self) -> None:
        self.processes = SeenProcesses()
        self.outputs = SeenOutputs()
        self.items = SeenItems()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
