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
import numpy.typing as npt

from driftline.streams.aggregates import I64, U64, Bool
from driftline.streams.bits import pick, trimmed, widen
from driftline.streams.kernels.merge import MANY, one_of, popcount
from driftline.streams.watermark import FREE, Watermark

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
    needed: tuple[I64 | None, ...]
    """Of the groups, what others than windows read (detectors, derived metrics): all that an axis without
    windows keeps."""


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
        self._seats: tuple[frozenset[str], I64, I64] | None = None
        self.texts: Any = None
        """Names and groups in the form of those who write them; None where a series is new."""

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
        self._order = self._whole = self._seats = self.texts = None
        if number >= len(self.bits):
            self.bits = np.concatenate([self.bits, np.zeros_like(self.bits)])
        return number

    def without(self, series: I64, process: int) -> I64:
        """Those of the series in which a process does not take part."""
        word, bit = process >> 6, np.uint64(1 << (process & 63))
        return series if word >= self.bits.shape[1] else series[self.bits[series, word] & bit == 0]

    def takes_part(self, series: int | I64, process: int) -> None:
        """Notes that a process takes part."""
        word, bit = process >> 6, np.uint64(1 << (process & 63))
        if word >= self.bits.shape[1]:
            self.bits = widen(self.bits, max(word + 1, 2 * self.bits.shape[1]))
        self.bits[series, word] |= bit

    def leaves(self, process: int) -> None:
        """A process takes part in nothing any more."""
        word = process >> 6
        if word < self.bits.shape[1]:
            self.bits[:, word] &= ~np.uint64(1 << (process & 63))

    def renumber(self, kept: list[int]) -> None:
        """Keeps these processes, in this order."""
        self.bits = pick(self.bits, np.array(kept, np.int64))

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

    def seats(self, watched: frozenset[str]) -> tuple[I64, I64]:
        """For each series its rank, and a number of its metric (that of the first such series): both -1 where
        it is not of one rank, or its metric is none of ``watched``."""
        if self._seats is None or self._seats[0] != watched:
            ranks, firsts = np.full(len(self), -1, np.int64), np.full(len(self), -1, np.int64)
            numbers: dict[str, int] = {}
            for at, (metric, rank) in enumerate(zip(self.metrics, self.ranks, strict=True)):
                if rank is not None and metric in watched:
                    ranks[at], firsts[at] = rank, numbers.setdefault(metric, at)
            self._seats = watched, ranks, firsts
        return self._seats[1:]

    def dump(self) -> dict[str, Any]:
        """Series of one process, of which there are thousands, give its number instead of bits."""
        bits = self.bits[: len(self)]
        several = popcount(bits) > 1
        return {
            "groups": self.groups,
            "metrics": self.metrics,
            "public": self.public,
            "only": one_of(bits, several),
            "many": trimmed(bits[several]),
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        self.groups, self.metrics, self.public = dumped["groups"], dumped["metrics"], dumped["public"]
        pairs = zip(self.groups, self.metrics, strict=True)
        self.ids = {pair: number for number, pair in enumerate(pairs)}
        self.ranks = [_rank_of(group) for group in self.groups]
        self.names = self.groups.count("")
        only, many = dumped["only"], dumped["many"]
        words = max(many.shape[1], int(only.max(initial=0) // 64) + 1)
        self.bits = np.zeros((len(only) + max(32, len(only)), words), np.uint64)
        self.bits[np.flatnonzero(only == MANY), : many.shape[1]] = many
        one = np.flatnonzero(only >= 0)
        self.bits[one, only[one] >> 6] = np.uint64(1) << (only[one] & 63).astype(np.uint64)


def _rank_of(group: str) -> int | None:
    kind, _, label = group.partition("=")
    return int(label) if kind == "rank" else None


class Presence(NamedTuple):
    """What a closing pane or window needs to know of the processes, as it was at one record."""

    first: I64
    """Where each process began on the axis; beyond every end where it has not."""
    newest: I64
    """How far each is, and beyond every start where it still holds the watermark."""
    awaited: int
    """Ranks of the announced world that have not started, within the grace."""

    @classmethod
    def of(cls, mark: Watermark, awaited: int) -> Presence:
        """As it is now."""
        held = mark.held()
        newest = np.where(held != FREE, FREE, np.array(mark.newest, np.int64))
        return cls(np.array(mark.first, np.int64), newest, awaited)

    def mask(self, starts: I64, ends: I64) -> U64:
        """Bits of the processes that could give a sample in each [start, end); ``ends`` follow ``starts``."""
        distinct, index, inverse = np.unique(starts, return_index=True, return_inverse=True)
        could = self.first[None, :] < ends[index][:, None]
        could &= self.newest[None, :] >= distinct[:, None]
        padded = np.zeros((len(distinct), (len(self.first) + 63) // 64 * 64), np.bool_)
        padded[:, : len(self.first)] = could
        packed = np.packbits(padded, axis=1, bitorder="little")
        return packed.view("<u8").astype(np.uint64, copy=False)[inverse]


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
    """Which processes are missing in which series now, so that each absence is told once."""

    def __init__(self) -> None:
        self._absent: dict[int, U64] = {}
        """Series -> bits of the processes that are missing now."""
        self._told: dict[int, npt.NDArray[np.uint8]] = {}
        """Series -> how often that was told, by process."""
        self._noted = 0
        """Pairs that were told of."""

    def note(self, table: Series, pane: I64, series: I64, present: U64, mask: U64) -> list[Missed]:
        """Whole-run cells of closing panes, in order of panes; ``mask`` per cell."""
        words = max(table.bits.shape[1], present.shape[1], mask.shape[1])
        present = widen(present, words)
        lacks = widen(table.bits[series], words) & widen(mask, words) & ~present
        self._came_back(series, present)
        new: dict[int, Missed] = {}
        for at in np.flatnonzero(lacks.any(axis=1)).tolist():
            number, position = int(series[at]), int(pane[at])
            processes = self._first_told(number, lacks[at])
            if processes:
                missed = new.setdefault(number, Missed(table.metrics[number], [], position, position))
                missed.processes.extend(processes)
                new[number] = missed._replace(end=position)
        return list(new.values())

    def _came_back(self, series: I64, present: U64) -> None:
        """Who gave a sample in the last of the panes is no longer missing."""
        if not self._absent:
            return
        last = {number: at for at, number in enumerate(series.tolist())}
        for number in self._absent.keys() & last.keys():
            absent = self._absent[number]
            absent &= ~present[last[number], : len(absent)]
            if not absent.any():
                del self._absent[number]

    def _first_told(self, series: int, lacks: U64) -> list[int]:
        """Of those that a series lacks, who is to be told of now."""
        absent = self._absent.get(series, _NOBODY)
        if len(absent) < len(lacks):
            absent = np.pad(absent, (0, len(lacks) - len(absent)))
        found = _places(lacks & ~absent)
        if not len(found):
            return []
        told = self._told.get(series, _NEVER)
        if len(told) <= found[-1]:
            told = np.pad(told, (0, len(lacks) * 64 - len(told)))
        times = told[found]
        found = found[(times < MAX_TOLD) & _at_most(times == 0, MAX_NOTED - self._noted)]
        if not len(found):
            return []
        self._noted += int(np.count_nonzero(told[found] == 0))
        told[found] += 1
        np.bitwise_or.at(absent, found >> 6, np.uint64(1) << (found & 63).astype(np.uint64))
        self._absent[series], self._told[series] = absent, told
        return list(found.tolist())

    def forget(self, process: int) -> None:
        """Nothing is missing of a process that is gone for good."""
        word, bit = process >> 6, np.uint64(1 << (process & 63))
        for absent in self._absent.values():
            if word < len(absent):
                absent[word] &= ~bit
        for told in self._told.values():
            if process < len(told) and told[process]:
                told[process] = 0
                self._noted -= 1

    def renumber(self, found: dict[int, int]) -> None:
        """Processes have new numbers; of those that have none nothing is noted."""
        self.restore([[series, found[at], *rest] for series, at, *rest in self.dump().tolist()])

    def dump(self) -> I64:
        """Rows of series, process, how often it was told, whether it is missing now."""
        rows: list[list[int]] = []
        for series in sorted(self._told):
            told = self._told[series]
            absent = set(_places(self._absent[series]).tolist()) if series in self._absent else set()
            rows += [[series, at, int(told[at]), int(at in absent)] for at in np.flatnonzero(told).tolist()]
        return np.array(rows, np.int64).reshape(-1, 4)

    def restore(self, dumped: I64 | list[list[int]]) -> None:
        self._absent, self._told = {}, {}
        rows = np.array(dumped, np.int64).reshape(-1, 4)
        self._noted = len(rows)
        for series in np.unique(rows[:, 0]).tolist():
            _, process, times, is_absent = rows[rows[:, 0] == series].T
            told = np.zeros((int(process.max()) // 64 + 1) * 64, np.uint8)
            told[process] = times
            self._told[series] = told
            if is_absent.any():
                flags = np.zeros(len(told), np.bool_)
                flags[process[is_absent > 0]] = True
                packed = np.packbits(flags, bitorder="little")
                self._absent[series] = packed.view("<u8").astype(np.uint64)


_NOBODY: U64 = np.empty(0, np.uint64)
_NEVER: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


def _places(words: U64) -> I64:
    """Numbers of the bits that are set."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def _at_most(chosen: Bool, limit: int) -> Bool:
    """All, but only the first ``limit`` of those that are ``chosen``."""
    kept: Bool = ~chosen | (np.cumsum(chosen) <= limit)
    return kept
