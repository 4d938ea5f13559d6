"""What the window engine shows to detectors and triggers, and what they answer: plain data, no behaviour.

The engine (``pipeline``) closes panes and keeps liveness; detectors and triggers see only these views.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from driftline.config import Axis, PipelineConfig
from driftline.events import AlertState, Checkpoint, Severity


class PaneView(NamedTuple):
    """One closed pane [start, end) of one metric of a run: whole-run aggregate and, where asked, by rank."""

    axis: Axis
    metric: str
    start: int
    end: int
    samples: int
    nan: int
    inf: int
    mean: float | None
    """Weighted mean of the finite samples over all ranks."""
    min: float | None
    min_rank: int | None
    max: float | None
    max_rank: int | None
    by_rank: dict[int, float]
    """Weighted mean of each rank's finite samples, in order of ranks, for metrics in
    :meth:`Detection.per_rank`; else empty."""
    now_us: int
    """The run's "now" when the pane closed."""


class NonFinite(NamedTuple):
    """A NaN or infinity as it arrived; engine calls with the first of each (metric, rank, step)."""

    metric: str
    rank: int | None
    step: int | None
    value: float
    now_us: int


class Liveness(NamedTuple):
    """A process of the current attempt as the engine sees it at a tick."""

    process: str
    rank: int | None
    role: str
    host: str
    last_seen_us: int
    """Record time of its newest record, moved forward over holes in the ticks (nobody watched then)."""
    last_step: int | None
    ended: bool


class Watched(Sequence[Liveness]):
    """The processes of the current attempt, in order of their names: made only where somebody looks."""

    @abstractmethod
    def heard_since(self, time_us: int) -> bool:
        """True: all that have not ended gave a sign of life at that time or later. False: perhaps not."""


class AlertChange(NamedTuple):
    """A detector's word; the engine adds run, attempt and output id and sends it as an ``Alert``."""

    alert: str
    """Stable from opening to resolution; unique within the run (e.g. rule, metric, rank, opening step)."""
    rule: str
    detector: str
    severity: Severity
    state: AlertState
    opened_us: int
    resolved_us: int | None
    metric: str | None
    rank: int | None
    step: int | None
    last_step: int | None
    value: float | None
    expected: float | None
    score: float | None
    explanation: str
    evidence: dict[str, Any]


class Detection(Protocol):
    """All detectors and rules of one run and attempt, with their lifecycles; mutable."""

    def per_rank(self) -> frozenset[str]:
        """Metrics of which panes must carry ``by_rank``."""
        ...

    def wants(self, axis: Axis, metrics: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which of these metrics' closed panes on this axis are to be shown now. The list only grows."""
        ...

    def non_finite(self, seen: NonFinite) -> list[AlertChange]: ...

    def pane(self, view: PaneView) -> list[AlertChange]:
        """Panes of one (axis, metric) come in order; metrics of one position in order of their names."""
        ...

    def tick(self, now_us: int, processes: Sequence[Liveness]) -> list[AlertChange]:
        """Time moved on; processes in order of their names."""
        ...

    def end(self, now_us: int) -> list[AlertChange]:
        """The attempt is over: what is still open and can no longer be observed is resolved."""
        ...

    def dump(self) -> Any:
        """Plain data (dicts, lists, numbers, text, None), the input of the class's ``load``."""
        ...


TriggerReason = Literal["epochs", "steps", "seconds", "start", "end"]


class CheckpointView(NamedTuple):
    """A checkpoint event as the engine read it from the log."""

    checkpoint: Checkpoint
    attempt: int
    now_us: int


class TriggerState(Protocol):
    """When to evaluate, for one run; mutable, dumped as plain data."""

    def started(self, now_us: int) -> None: ...

    def checkpoint(self, view: CheckpointView) -> list[tuple[TriggerReason, CheckpointView]]:
        """Reasons to evaluate this checkpoint now (none, one; the first that is due)."""
        ...

    def ended(self, now_us: int) -> list[tuple[TriggerReason, CheckpointView]]:
        """The run ended: the last checkpoint, unless it was picked before."""
        ...

    def dump(self) -> Any: ...


class Factories(Protocol):
    """Makes detectors and triggers of a run."""

    def detection(self, config: PipelineConfig, dumped: object | None = None) -> Detection: ...

    def triggers(self, config: PipelineConfig, dumped: object | None = None) -> TriggerState: ...
