"""What readers give: rows of numbers, evaluations, rewinds; and what they refuse. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from driftline import events

MAX_EXAMPLES = 20
"""Refusals that are shown with their place; all are counted."""

MAX_NOTES = 200

_LONE = re.compile("[\ud800-\udfff]")


def carried(text: str) -> str:
    """``text`` as UTF-8 can carry it: bytes of a file's name that are none, and halves of a pair of
    surrogates, as JSON may have them, become U+FFFD.

    >>> carried("run\\udcff") == carried("run\\ud83d") == "run\\ufffd"
    True
    """
    return text if text.isascii() else _LONE.sub("\ufffd", text)


class Row(NamedTuple):
    """Numbers that one process logged at one moment. ``run`` "" is the source's own run."""

    values: list[tuple[str, float]]
    step: int | None = None
    time_us: int | None = None
    """None: the source does not say."""
    rank: int | None = None
    run: str = ""
    """Name of the run, where the source has several."""


class Rewound(NamedTuple):
    """From here on the run goes on from ``step``; what it logged at later steps was given up."""

    step: int
    time_us: int | None
    rank: int | None = None
    run: str = ""


class Evaluated(NamedTuple):
    """One evaluation of one checkpoint."""

    suite: str
    metrics: list[events.Metric]
    step: int | None = None
    time_us: int | None = None
    run: str = ""
    version: str = "1"
    uri: str = ""
    seconds: float = 0.0
    settings: Mapping[str, Any] = MappingProxyType({})
    items: Iterator[events.Item] | None = None
    """Outcomes of single items, read when they are wanted."""


Item: TypeAlias = Row | Rewound | Evaluated


class Refused(NamedTuple):
    """One thing that was not taken: file, line (or record), reason, and what it was."""

    part: str
    line: int
    reason: str
    what: str


class Tally:
    """What was refused, by reason, with the first examples; and remarks for people."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.examples: list[Refused] = []
        self.notes: list[str] = []
        self._once: set[tuple[str, str]] = set()

    def refuse(self, part: str, line: int, reason: str, what: str, *, once: str | None = None) -> None:
        """Counts; shows it as an example, or only the first of those that have ``once`` in common."""
        self.refused[reason] += 1
        if once is not None:
            if (reason, once) in self._once:
                return
            if len(self._once) < 10_000:
                self._once.add((reason, once))
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(Refused(part, line, reason, what[:200]))

    def note(self, text: str) -> None:
        """A remark, once."""
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)


class Part(Protocol):
    """One file of a source, read from its beginning, piece by piece."""

    @property
    def position(self) -> int:
        """How far it was read, in the unit of its limit."""
        ...

    def upto(self, limit: int, *, whole: bool) -> Iterator[Item]:
        """The items that end at or before ``limit`` and were not given yet; it never looks beyond.

        ``whole``: what stands before ``limit`` is all there is, so that a last line without an end counts.
        """
        ...


class Source(Protocol):
    """What a reader makes of some files that belong together."""

    tally: Tally

    @property
    def torn(self) -> bool:
        """Its end is not there, as the last call of ``limits`` saw it."""
        ...

    def limits(self) -> dict[str, int]:
        """How far each part goes now, by its name, in a unit of the reader's own that only grows."""
        ...

    def part(self, name: str) -> Part: ...

    def digest(self, limits: dict[str, int]) -> str:
        """A hash of all that the parts hold up to these limits."""
        ...

    @property
    def finished(self) -> bool:
        """It says itself that nothing more will come."""
        ...
