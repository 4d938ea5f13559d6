"""The watermark of an axis is a plain minimum, whatever thousands of processes do, and however it is kept."""

from __future__ import annotations

import random

import numpy as np
import pytest

from driftline.streams.participants import MAX_TOLD, MissingNotes, Series
from driftline.streams.watermark import Watermark

IDLE_US = 40


class Plain:
    """The rule by the book: a list of positions, looked through each time."""

    def __init__(self, lateness_us: int, delayed: bool) -> None:
        self.lateness_us, self.delayed = lateness_us, delayed
        self.newest: list[int | None] = []
        self.moved: list[int] = []
        self.holds: list[bool] = []
        self.minima: list[tuple[int, int]] = []
        self.value: int | None = None

    def advance(self, process: int, high: int, now_us: int) -> None:
        before = self.newest[process]
        if before is None or high > before:
            self.newest[process], self.moved[process] = high, now_us
        position = self.newest[process]
        assert position is not None
        if not self.holds[process]:
            self.minima = [(at, min(low, position)) for at, low in self.minima]
        self.holds[process] = True

    def move(self, now_us: int) -> int | None:
        held = [p for p, holds in zip(self.newest, self.holds, strict=True) if holds and p is not None]
        found = []
        if held and not self.delayed:
            found.append(min(held) - self.lateness_us)
        elif held:
            self.minima = [m for m in self.minima if m[0] != now_us or m[1] == min(held)]
            if not self.minima or self.minima[-1][1] != min(held):
                self.minima.append((now_us, min(held)))
        while self.minima and self.minima[0][0] <= now_us - self.lateness_us:
            found.append(self.minima.pop(0)[1])
        for position in found:
            self.value = position if self.value is None else max(self.value, position)
        return self.value


@pytest.mark.parametrize("seed", range(8))
def test_the_watermark_is_the_minimum_of_those_that_hold_it(seed: int) -> None:
    """Processes join, move, fall back, end, rest and are numbered anew, between dumps and loads."""
    chance = random.Random(seed)
    delayed, lateness = seed % 2 == 1, chance.choice([0, 7, 30])
    mark, plain = Watermark(lateness_us=lateness, delayed=delayed), Plain(lateness, delayed)
    now = 0
    for _ in range(600):
        now += chance.choice([0, 0, 1, 3, 12])
        luck, count = chance.random(), len(plain.newest)
        if luck < 0.08 or not count:
            mark.join(now)
            plain.newest.append(None)
            plain.moved.append(now)
            plain.holds.append(False)
        elif luck < 0.75:
            process, high = chance.randrange(count), now + chance.randrange(-60, 20)
            mark.advance(process, high - chance.randrange(5), high, now)
            plain.advance(process, high, now)
        elif luck < 0.8:
            process = chance.randrange(count)
            mark.release(process)
            plain.holds[process] = False
        elif luck < 0.9:
            mark.rest(now - IDLE_US)
            for process, moved in enumerate(plain.moved):
                plain.holds[process] = plain.holds[process] and now - moved <= IDLE_US
        elif luck < 0.95:
            after = Watermark(lateness_us=lateness, delayed=delayed)
            after.restore(mark.dump())
            mark = after
        elif count > 3:
            kept = sorted(chance.sample(range(count), count - 2))
            mark.renumber(kept)
            plain.newest = [plain.newest[at] for at in kept]
            plain.moved = [plain.moved[at] for at in kept]
            plain.holds = [plain.holds[at] for at in kept]
        assert mark.move(now) == plain.move(now)
        assert [mark.holds(at) for at in range(len(plain.holds))] == plain.holds


def test_a_process_far_behind_does_not_make_the_state_grow() -> None:
    """One holds the watermark for hours while a thousand go on: what is kept stays within a bound."""
    mark = Watermark(lateness_us=0, delayed=False)
    for process in range(1_000):
        mark.join(0)
        mark.advance(process, 1, 1, 0)
    for position in range(2, 60):
        for process in range(1, 1_000):
            mark.advance(process, position, position, position)
        assert mark.move(position) == 1
    assert len(mark._heap) <= 9 * 1_000
    mark.release(0)
    assert mark.move(60) == 59


def test_an_absence_is_told_once_and_at_most_three_times_a_process() -> None:
    """Processes stop and come back in one series: each absence once, irregular ones no longer, also after a
    dump; those of other series do not matter."""
    table = Series()
    number = table.find("", "loss", public=True)
    other = table.find("", "other", public=True)
    for process in range(130):
        table.takes_part(number, process)
    everyone = table.bits[number].copy()
    notes = MissingNotes()
    told: dict[int, int] = {}
    for pane in range(12):
        gone = set() if pane % 2 == 0 else {0, 64, 65, 129} if pane < 9 else {7}
        present = everyone.copy()
        for process in gone:
            present[process >> 6] &= ~np.uint64(1 << (process & 63))
        rows = np.array([pane, pane]), np.array([number, other]), np.stack([present, present * 0])
        for missed in notes.note(table, *rows, np.stack([everyone, everyone])):
            assert missed.metric == "loss"
            for process in missed.processes:
                told[process] = told.get(process, 0) + 1
        after = MissingNotes()
        after.restore(notes.dump())
        assert np.array_equal(after.dump(), notes.dump())
        notes = after
    assert told == {0: MAX_TOLD, 64: MAX_TOLD, 65: MAX_TOLD, 129: MAX_TOLD, 7: 2}
