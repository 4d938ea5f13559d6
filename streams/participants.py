"""The series of an attempt, and who takes part in each: learned from the log, never configured.

A series is a metric in a group: "" (the whole run), "rank=3", "host=a", "role=trainer". A process takes part
in a series from the first frame in which it gives a sample of it. ``expected`` of a window counts those that
take part and could have given one: not those whose first position on the axis is at or after the window's
end, nor those that ended, or fell idle, before its start. While ranks of the announced world have not started
yet, and within the start grace, they are expected too in whole-run series that at least two processes log.

Bounds: ``MAX_METRICS`` names and ``MAX_SERIES`` series per attempt; what is over is refused and counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from driftline.streams.aggregates import I64, U64, Bool
from driftline.streams.kernels.merge import popcount
from driftline.streams.panes import pick, widen

MAX_METRICS = 10_000
MAX_SERIES = 131_072
MAX_NOTED = 65_536
"""Pairs of series and process whose absence an attempt keeps in mind; further ones are not told."""
MAX_TOLD = 3
"""A process that misses and comes back is told so often per series, then counts as irregular."""


class FrameMap(NamedTuple):
    """Series of each name of a frame of one process (-1: none): of the run, and by kind of group."""

    run: I64
    groups: tuple[I64 | None, ...]


class Series:
    """The series of one attempt, numbered from 0 in the order in which the log brought them."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str], int] = {}
        self.groups: list[str] = []
        self.metrics: list[str] = []
        self.public: list[bool] = []
        """Whether its windows go out; False for series that only detectors see."""
        self.bits: U64 = np.zeros((32, 1), np.uint64)
        """Which processes take part, by series."""
        self.ranks: list[int | None] = []
        """The rank of a series of one rank."""
        self.names = 0
        self._order: I64 | None = None
        self._whole: Bool | None = None

    def __len__(self) -> int:
        return len(self.metrics)

    def find(self, group: str, metric: str, *, public: bool) -> int:
        """The number of a series, made if new; -1 where a bound forbids it."""
        known = self.ids.get((group, metric))
        if known is not None:
            self.public[known] = self.public[known] or public
            return known
        if len(self) >= MAX_SERIES or (not group and self.names >= MAX_METRICS):
            return -1
        number = len(self)
        self.ids[(group, metric)] = number
        self.groups.append(group)
        self.metrics.append(metric)
        self.public.append(public)
        self.ranks.append(_rank_of(group))
        self.names += not group
        self._order = self._whole = None
        if number >= len(self.bits):
            self.bits = np.concatenate([self.bits, np.zeros_like(self.bits)])
        return number

    def has(self, series: int, process: int) -> bool:
        """Whether a process takes part."""
        word = process >> 6
        return word < self.bits.shape[1] and bool(int(self.bits[series, word]) >> (process & 63) & 1)

    def takes_part(self, series: int, process: int) -> None:
        """Notes that a process takes part."""
        word, bit = process >> 6, np.uint64(1 << (process & 63))
        if word >= self.bits.shape[1]:
            self.bits = widen(self.bits, word + 1)
        self.bits[series, word] |= bit

    def leaves(self, process: int) -> None:
        """A process takes part in nothing any more."""
        word = process >> 6
        if word < self.bits.shape[1]:
            self.bits[:, word] &= ~np.uint64(1 << (process & 63))

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order."""
        self.bits = pick(self.bits, kept)

    def order(self) -> I64:
        """Rank of each series by (metric, group)."""
        if self._order is None:
            by_name = sorted(range(len(self)), key=lambda s: (self.metrics[s], self.groups[s]))
            self._order = np.empty(len(self), np.int64)
            self._order[by_name] = np.arange(len(self))
        return self._order

    def whole(self) -> Bool:
        """Which series are of the whole run."""
        if self._whole is None:
            self._whole = np.array([not group for group in self.groups], np.bool_)
        return self._whole

    def dump(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "metrics": self.metrics,
            "public": self.public,
            "bits": self.bits[: len(self)],
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        self.groups, self.metrics, self.public = dumped["groups"], dumped["metrics"], dumped["public"]
        pairs = zip(self.groups, self.metrics, strict=True)
        self.ids = {pair: number for number, pair in enumerate(pairs)}
        self.ranks = [_rank_of(group) for group in self.groups]
        self.names = self.groups.count("")
        bits: U64 = dumped["bits"]
        self.bits = np.pad(bits, ((0, max(32, len(bits))), (0, 0)))


def _rank_of(group: str) -> int | None:
    kind, _, label = group.partition("=")
    return int(label) if kind == "rank" else None


class Presence(NamedTuple):
    """What a closing pane or window needs to know of the processes, as it was at one record."""

    first: list[int | None]
    newest: list[int | None]
    holds: list[bool]
    awaited: int
    """Ranks of the announced world that have not started, within the grace."""

    def mask(self, starts: I64, ends: I64) -> U64:
        """Bits of the processes that could give a sample in each [start, end)."""
        low = np.iinfo(np.int64).min
        first = np.array([-low - 1 if f is None else f for f in self.first], np.int64)
        newest = np.array([low if n is None else n for n in self.newest], np.int64)
        could = (first[None, :] < ends[:, None]) & (
            np.array(self.holds, np.bool_)[None, :] | (newest[None, :] >= starts[:, None])
        )
        words = (len(first) + 63) // 64
        padded = np.zeros((len(starts), words * 64), np.bool_)
        padded[:, : len(first)] = could
        packed = np.packbits(padded, axis=1, bitorder="little")
        return packed.view("<u8").astype(np.uint64, copy=False)


def expected(table: Series, series: I64, present: U64, mask: U64, awaited: int) -> I64:
    """Processes that should have given a sample, per (window, series)."""
    words = max(table.bits.shape[1], present.shape[1], mask.shape[1])
    part = widen(table.bits[series], words)
    count: I64 = popcount(np.ascontiguousarray((part & widen(mask, words)) | widen(present, words)))
    if awaited:
        shared = table.whole()[series] & (popcount(part) >= 2)
        count = count + np.where(shared, awaited, 0)
    return count


class Missed(NamedTuple):
    """Processes that stopped giving samples of a metric: first told now."""

    metric: str
    processes: list[int]
    start: int
    end: int


class MissingNotes:
    """Which (series, process) pairs are missing now, so that each absence is told once."""

    def __init__(self) -> None:
        self.absent: dict[tuple[int, int], int] = {}
        """Pairs that are missing now."""
        self.told: dict[tuple[int, int], int] = {}

    def note(self, table: Series, pane: I64, series: I64, present: U64, mask: U64) -> list[Missed]:
        """Whole-run cells of closing panes, in order of panes; ``mask`` per cell."""
        words = max(table.bits.shape[1], present.shape[1], mask.shape[1])
        lacks = widen(table.bits[series], words) & widen(mask, words) & ~widen(present, words)
        chosen = np.flatnonzero(lacks.any(axis=1))
        self._came_back(series, present, lacks)
        new: dict[int, Missed] = {}
        for at in chosen.tolist():
            number, position = int(series[at]), int(pane[at])
            for process in _bits(lacks[at]):
                pair = (number, process)
                if self.absent.get(pair) or self.told.get(pair, 0) >= MAX_TOLD:
                    continue
                if len(self.told) >= MAX_NOTED and pair not in self.told:
                    continue
                self.absent[pair] = 1
                self.told[pair] = self.told.get(pair, 0) + 1
                missed = new.setdefault(number, Missed(table.metrics[number], [], position, position))
                missed.processes.append(process)
                new[number] = missed._replace(end=position)
        return list(new.values())

    def forget(self, process: int) -> None:
        """Nothing is missing of a process that is gone for good."""
        self.told = {pair: told for pair, told in self.told.items() if pair[1] != process}
        self.absent = {pair: 1 for pair in self.absent if pair[1] != process}

    def renumber(self, found: dict[int, int]) -> None:
        self.told = {(series, found[at]): told for (series, at), told in self.told.items()}
        self.absent = {(series, found[at]): 1 for series, at in self.absent}

    def dump(self) -> list[list[int]]:
        return [[*pair, told, self.absent.get(pair, 0)] for pair, told in self.told.items()]

    def restore(self, dumped: list[list[int]]) -> None:
        self.told = {(series, process): told for series, process, told, _ in dumped}
        self.absent = {(series, process): 1 for series, process, _, absent in dumped if absent}

    def _came_back(self, series: I64, present: U64, lacks: U64) -> None:
        if not any(self.absent.values()):
            return
        last = {int(number): at for at, number in enumerate(series.tolist())}
        for pair, is_absent in list(self.absent.items()):
            at = last.get(pair[0])
            word = pair[1] >> 6
            if not is_absent or at is None or word >= present.shape[1]:
                continue
            if int(present[at, word]) >> (pair[1] & 63) & 1:
                del self.absent[pair]


def _bits(words: U64) -> list[int]:
    return [
        index * 64 + bit
        for index, word in enumerate(words.tolist())
        if word
        for bit in range(64)
        if word >> bit & 1
    ]
