"""Alerts as episodes, from opening to resolution, and two lists of them compared. Pure.

Two episodes are the same alert if run, attempt, rule, metric and rank are equal and they overlap, or begin
within ``NEAR_US`` or ``NEAR_STEPS`` of each other; of several the nearest. A rule that only one side has (its
name may contain its threshold) is matched by its detector instead. What has no partner was gained or lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from driftline import events

NEAR_US = 60_000_000
NEAR_STEPS = 50
FOREVER = (1 << 63) - 1
"""Step and time at which an alert ends that was not resolved: with the data."""


@dataclass(slots=True)
class Episode:
    """One alert."""

    alert: str
    run: str
    attempt: int
    rule: str
    detector: str
    severity: str
    metric: str | None
    rank: int | None
    opened_us: int
    step: int | None
    """Step at which it began."""
    last_step: int | None
    resolved_us: int | None
    explanation: str
    offset: int
    """Of the record that opened it."""
    came_step: int | None = None
    """The newest step that it rested on when it was opened; None: ``step``."""

    def end_us(self) -> int:
        """An alert that was not resolved lasts until the data end."""
        return FOREVER if self.resolved_us is None else max(self.opened_us, self.resolved_us)


class Episodes:
    """Reads alert events in the order of the log. ``all`` holds one entry per alert."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, int, str, int], Episode] = {}

    def add(self, event: events.Alert, offset: int) -> None:
        key = (event.run, event.attempt, event.alert, event.opened_us)
        known = self.all.get(key)
        if known is None:
            self.all[key] = Episode(
                event.alert,
                event.run,
                event.attempt,
                event.rule,
                event.detector,
                event.severity,
                event.metric,
                event.rank,
                event.opened_us,
                event.step,
                event.last_step,
                event.resolved_us,
                event.explanation,
                offset,
                event.last_step,
            )
            return
        known.last_step, known.resolved_us = event.last_step, event.resolved_us

    def list(self) -> list[Episode]:
        return list(self.all.values())


class Moved(NamedTuple):
    """The same alert on both sides, not at the same place."""

    before: Episode
    after: Episode
    steps: int | None
    """Positive: later than before; None without steps."""
    seconds: float
    severity: bool
    """Whether the severity is another one."""


class AlertDiff(NamedTuple):
    """What another configuration did to the alerts."""

    same: int
    moved: list[Moved]
    gained: list[Episode]
    lost: list[Episode]


def compare(before: Sequence[Episode], after: Sequence[Episode]) -> AlertDiff:
    """Matches the alerts of two replays of one log."""
    pairs, lost, gained = _matched(before, after, lambda e: (e.run, e.attempt, e.rule, e.metric, e.rank))
    old = {e.rule for e in before} - {e.rule for e in after}
    new = {e.rule for e in after} - {e.rule for e in before}
    renamed = _matched(
        [e for e in lost if e.rule in old],
        [e for e in gained if e.rule in new],
        lambda e: (e.run, e.attempt, e.detector, e.metric, e.rank),
    )
    pairs += renamed[0]
    lost = [e for e in lost if e.rule not in old] + renamed[1]
    gained = [e for e in gained if e.rule not in new] + renamed[2]
    moved, same = [], 0
    for one, other in pairs:
        steps = None if one.step is None or other.step is None else other.step - one.step
        seconds = (other.opened_us - one.opened_us) / 1e6
        severity = one.severity != other.severity
        if steps or seconds or severity:
            moved.append(Moved(one, other, steps, seconds, severity))
        else:
            same += 1
    return AlertDiff(same, sorted(moved, key=lambda m: m.before.offset), _sorted(gained), _sorted(lost))


def _matched(
    before: Iterable[Episode], after: Iterable[Episode], key: Callable[[Episode], Hashable]
) -> tuple[list[tuple[Episode, Episode]], list[Episode], list[Episode]]:
    """Pairs, what is left of the first, what is left of the second."""
    of: dict[Hashable, list[Episode]] = {}
    for episode in after:
        of.setdefault(key(episode), []).append(episode)
    pairs, lost = [], []
    for episode in before:
        near = [other for other in of.get(key(episode), []) if _near(episode, other)]
        if not near:
            lost.append(episode)
            continue
        found = min(near, key=lambda other: (abs(other.opened_us - episode.opened_us), other.offset))
        of[key(episode)].remove(found)
        pairs.append((episode, found))
    return pairs, lost, [episode for some in of.values() for episode in some]


def _near(one: Episode, other: Episode) -> bool:
    if one.opened_us <= other.end_us() and other.opened_us <= one.end_us():
        return True
    if abs(one.opened_us - other.opened_us) <= NEAR_US:
        return True
    return one.step is not None and other.step is not None and abs(one.step - other.step) <= NEAR_STEPS


def _sorted(some: Iterable[Episode]) -> list[Episode]:
    return sorted(
        some, key=lambda e: (e.run, e.offset, e.rule, e.metric or "", -1 if e.rank is None else e.rank)
    )
