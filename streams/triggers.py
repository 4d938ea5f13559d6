"""When a checkpoint is evaluated: every so many epochs, steps or seconds, at the start, at the end.

Only a checkpoint can be evaluated, so a due point picks the first checkpoint at or after it:

- *steps* and *epochs*: due points are the multiples of the interval. A checkpoint is picked when it lies in
  a later interval than the last one that was passed: with ``steps: 500`` and checkpoints at 480, 520, 960,
  1,600 those at 520 and 1,600 are picked (one for 1,000 and 1,500 together: no catching up). Step 0 is no
  due point.
- *seconds*: the interval since the last picked checkpoint (or since the run started), by the run's "now".
- *start*: the first checkpoint of the run, whatever it is. *end*: the last one, when the run ends, unless
  picked.

One checkpoint is picked at most once, with the first reason in the order start, epochs, steps, seconds. A
new attempt goes on from the newest checkpoint that lies before its own first one, so that a due point which
it passes again is evaluated again (the weights differ; if they do not, the request has the same id).
Checkpoints without step or epoch can be picked by seconds, start and end only. Within an attempt, older
steps pick nothing.

Bounds: the last 64 picked digests and the last 256 positions are remembered.
"""

from __future__ import annotations

from typing import Any

import msgspec

from driftline.config import PipelineConfig
from driftline.events import Checkpoint
from driftline.streams.views import CheckpointView, TriggerReason

_PICKED_MAX = 64
_POSITIONS_MAX = 256
_EXACT = 1e-9
"""Epochs are floats: 2.9999999999 is epoch 3."""
_FAR = 2.0**53
"""An absurd epoch counts as this many intervals."""


class Progress(msgspec.Struct):
    """Along one axis (steps or epochs): the last interval passed, and where checkpoints were."""

    passed: int = 0
    seen: list[int | float] = []


class State(msgspec.Struct):
    """All that is remembered of one run."""

    started_us: int | None = None
    attempt: int | None = None
    first: bool = False
    """A first checkpoint was seen."""
    steps: Progress = msgspec.field(default_factory=Progress)
    epochs: Progress = msgspec.field(default_factory=Progress)
    new_steps: bool = False
    """The attempt is new: its first checkpoint with a step says where it goes on."""
    new_epochs: bool = False
    timed_us: int | None = None
    picked: list[str] = []
    last: Checkpoint | None = None
    last_attempt: int = 0


class RunTriggers:
    """Implements ``views.TriggerState`` for one run; ``dumped`` is what :meth:`dump` gave."""

    def __init__(self, config: PipelineConfig, dumped: Any | None = None) -> None:
        self._when = config.triggers
        self._state = State() if dumped is None else msgspec.convert(dumped, State)

    def started(self, now_us: int) -> None:
        """The run was heard of for the first time; later calls change nothing."""
        if self._state.started_us is None:
            self._state.started_us = now_us

    def checkpoint(self, view: CheckpointView) -> list[tuple[TriggerReason, CheckpointView]]:
        """The reason to evaluate this checkpoint now, if there is one."""
        state = self._state
        self.started(view.now_us)
        if state.attempt is None or view.attempt > state.attempt:
            state.new_steps = state.new_epochs = state.attempt is not None
            state.attempt = view.attempt
        elif view.attempt < state.attempt:
            return []  # a late word of an attempt that is over
        due = self._due(view)
        state.first = True
        self._remember_last(view)
        if due is None or view.checkpoint.digest in state.picked:
            return []
        self._pick(view)
        return [(due, view)]

    def ended(self, now_us: int) -> list[tuple[TriggerReason, CheckpointView]]:
        """The run ended: its last checkpoint, unless it was picked before."""
        state = self._state
        if not self._when.at_end or state.last is None or state.last.digest in state.picked:
            return []
        view = CheckpointView(state.last, state.last_attempt, now_us)
        self._pick(view)
        return [("end", view)]

    def dump(self) -> Any:
        """Plain data for the constructor."""
        return msgspec.to_builtins(self._state)

    def _due(self, view: CheckpointView) -> TriggerReason | None:
        """The first reason that is due; every axis moves on, whichever it is."""
        state, when, saved = self._state, self._when, view.checkpoint
        due: list[TriggerReason] = []
        if when.at_start and not state.first:
            due.append("start")
        if when.epochs is not None and saved.epoch is not None:
            if passes(state.epochs, saved.epoch, when.epochs, new=state.new_epochs):
                due.append("epochs")
            state.new_epochs = False
        if when.steps is not None and saved.step is not None:
            if passes(state.steps, saved.step, when.steps, new=state.new_steps):
                due.append("steps")
            state.new_steps = False
        since_us = state.timed_us if state.timed_us is not None else state.started_us
        if when.every_us is not None and since_us is not None and view.now_us - since_us >= when.every_us:
            due.append("seconds")
        return due[0] if due else None

    def _pick(self, view: CheckpointView) -> None:
        state = self._state
        state.timed_us = view.now_us
        state.picked.append(view.checkpoint.digest)
        del state.picked[:-_PICKED_MAX]

    def _remember_last(self, view: CheckpointView) -> None:
        """The last checkpoint: of the newest attempt, its highest step, and of equal ones the newest."""
        state, saved = self._state, view.checkpoint
        older = (
            state.last is not None
            and state.last_attempt == view.attempt
            and saved.step is not None
            and state.last.step is not None
            and saved.step < state.last.step
        )
        if not older:
            state.last, state.last_attempt = saved, view.attempt


def passes(progress: Progress, position: float, interval: float, *, new: bool) -> bool:
    """Whether a checkpoint at ``position`` passes a due point that none before it has passed.

    ``new``: it is the first of a new attempt, which goes on from the newest checkpoint before ``position``.
    """
    if new:
        before = [seen for seen in progress.seen if seen < position]
        progress.passed = interval_of(max(before), interval) if before else 0
        progress.seen = before
    progress.seen.append(position)
    del progress.seen[:-_POSITIONS_MAX]
    at = interval_of(position, interval)
    if at <= progress.passed:
        return False
    progress.passed = at
    return True


def interval_of(position: float, interval: float) -> int:
    """How many whole intervals lie before ``position``; exact for integers.

    >>> interval_of(999, 500), interval_of(0.1 + 0.2, 0.1), interval_of(2.9999999999, 1.0)
    (1, 3, 3)
    """
    if isinstance(position, int) and isinstance(interval, int):
        return position // interval
    ratio = max(-_FAR, min(_FAR, position / interval))
    nearest = round(ratio)
    return nearest if abs(ratio - nearest) <= _EXACT * max(1.0, abs(ratio)) else int(ratio // 1)
