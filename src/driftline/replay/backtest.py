"""Two configurations over one recorded log: what the other one would have said.

Both are played side by side over each stretch, so the log is read once and the comparison rests on nothing
that is stored. The first is the log's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from driftline import events, frames
from driftline.config import PipelineConfig
from driftline.records import Framed, Output
from driftline.replay import episodes, labels
from driftline.replay.outputs import Outputs
from driftline.replay.player import Player, Source, samples_in
from driftline.replay.playing import Tell
from driftline.replay.proof import compared_columns, log_us
from driftline.storage.recorded.compare import OUTPUTS, Reach, WindowCounts, window_counts
from driftline.storage.recorded.source import Item, Part


class Trigger(NamedTuple):
    """An evaluation that was asked for."""

    run: str
    attempt: int
    suite: str
    checkpoint: str
    step: int | None
    reason: str
    time_us: int

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.run, self.attempt, self.suite, self.checkpoint


@dataclass
class Backtest:
    """What another configuration would have said of the same log."""

    alerts: episodes.AlertDiff
    triggers_same: int
    triggers_gained: list[Trigger]
    triggers_lost: list[Trigger]
    windows: list[WindowCounts]
    scores_before: list[labels.Score] = field(default_factory=list)
    scores_after: list[labels.Score] = field(default_factory=list)
    missed: list[labels.Incident] = field(default_factory=list)
    """Incidents that no alert of the other configuration speaks of."""
    outside: list[labels.Incident] = field(default_factory=list)
    """Incidents of which nothing was replayed; they count as neither found nor missed."""
    notes: list[str] = field(default_factory=list)
    samples: int = 0
    records: int = 0
    log_us: int = 0

    @property
    def no_difference(self) -> bool:
        """Alerts, triggers and windows are the same, each at its place."""
        alerts, windows = self.alerts, self.windows
        moved = [alerts.moved, alerts.gained, alerts.lost, self.triggers_gained, self.triggers_lost]
        return not any(moved) and not any(one.changed or one.gained or one.lost for one in windows)


class _Side:
    """What one configuration says."""

    def __init__(self, folder: Path, runs: Sequence[str]) -> None:
        folder.mkdir()
        self.outputs = Outputs(folder, runs, {name: compared_columns(name, True) for name in OUTPUTS})
        self.episodes = episodes.Episodes()
        self._runs = frozenset(runs)

    def add(self, outputs: Sequence[Output], reach: Reach) -> None:
        for output in outputs:
            if output.topic == "alerts" and (not self._runs or output.run in self._runs):
                event = events.decode(output.value)
                assert isinstance(event, events.Alert)
                if reach.start <= output.id.offset < reach.end:
                    self.episodes.add(event, output.id.offset)
        self.outputs.add([o for o in outputs if o.topic in ("windows", "evals")], reach, reach.end)

    def triggers(self) -> dict[tuple[str, int, str, str], Trigger]:
        made: dict[tuple[str, int, str, str], Trigger] = {}
        for event in self.outputs.requests:
            saved = event.checkpoint
            trigger = Trigger(
                *(event.run, event.attempt, event.suite.name, saved.digest, saved.step),
                *(event.reason, event.time_us),
            )
            made.setdefault(trigger.key, trigger)
        return made


def backtest(
    source: Source,
    other: PipelineConfig,
    *,
    runs: Sequence[str] = (),
    window: Callable[[Part], tuple[int, int]] | None = None,
    judged_by: labels.Labels | None = None,
    tell: Tell = lambda samples, log_us: None,
) -> Backtest:
    """Plays the log with its own configuration and with ``other``. Raises BadData, Unavailable."""
    notes: list[str] = []
    reached: dict[str, labels.Reached] = {}
    samples = records = 0
    with tempfile.TemporaryDirectory(prefix="driftline-replay-") as folder:
        before, after = (_Side(Path(folder) / name, runs) for name in ("before", "after"))
        parts = source.parts()
        for part in parts:
            start, end = (part.start, part.end) if window is None else window(part)
            reach = Reach(part.topic_uuid, part.partition, start, end)
            configurations = source.configurations(part)
            players = Player(part, configurations), Player(part, configurations, other)
            for item in source.stretches(part, None, end):
                for player, side in zip(players, (before, after), strict=True):
                    side.add(player.play(item), reach)
                if judged_by is not None:
                    _reach(reached, item, reach)
                some = samples_in(item)
                samples += some
                if isinstance(item, list) and item:
                    tell(some, max(0, item[-1].time_ms * 1000 - part.first_us))
                    if item[-1].offset > part.last and all(player.over() for player in players):
                        break
            records += players[0].records
            notes += [f"own configuration: {note}" for note in players[0].told()]
            notes += [f"other configuration: {note}" for note in players[1].told()]
        for side in (before, after):
            side.outputs.finish()
        windows = window_counts(before.outputs.file("windows"), after.outputs.file("windows"))
    old, new = before.triggers(), after.triggers()
    found = before.episodes.list(), after.episodes.list()
    result = Backtest(
        episodes.compare(*found),
        len(old.keys() & new.keys()),
        [trigger for key, trigger in new.items() if key not in old],
        [trigger for key, trigger in old.items() if key not in new],
        windows,
        notes=[*source.notes, *notes],
        samples=samples,
        records=records,
        log_us=log_us(parts),
    )
    if old and not other.suites:
        result.notes.append("the other configuration names no suite: it would evaluate nothing")
    if judged_by is not None:
        _judge(result, found, judged_by, reached)
    return result


def _judge(
    result: Backtest,
    found: tuple[list[episodes.Episode], list[episodes.Episode]],
    judged_by: labels.Labels,
    reached: dict[str, labels.Reached],
) -> None:
    result.outside = [one for one in judged_by.incidents if not labels.inside(one, reached)]
    inside = [one for one in judged_by.incidents if labels.inside(one, reached)]
    judged_by = judged_by._replace(incidents=inside)
    rules = sorted({episode.rule for side in found for episode in side})
    result.scores_before, result.scores_after = (labels.score(side, judged_by, rules) for side in found)
    result.missed = [one for one in inside if not any(labels.fits(e, one) for e in found[1])]
    if not judged_by.runs & reached.keys():
        result.notes.append("no label names a run that was replayed: nothing is judged")


def _reach(reached: dict[str, labels.Reached], item: Item, reach: Reach) -> None:
    """Notes which steps and times of each run the records have."""
    for record in item if isinstance(item, list) else ():
        if not isinstance(record, Framed) or not reach.start <= record.offset < reach.end:
            continue
        frame = record.frame
        if not len(frame.metric):
            continue
        steps = frame.step[frame.step != frames.NO_STEP]
        span = labels.Reached(int(frame.time_us.min()), int(frame.time_us.max()))
        if len(steps):
            span = span._replace(first_step=int(steps.min()), last_step=int(steps.max()))
        known = reached.get(frame.run)
        reached[frame.run] = span if known is None else known.joined(span)
