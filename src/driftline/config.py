"""The configuration that decides results, as plain data with every default filled in.

The stream workers append it to the log (``ConfigChanged``: digest and body) when it changes, and the pure
core uses only what the log says; so a replay needs no file. ``settings`` makes these
structs of the YAML file.
Durations are integer microseconds, sizes on the step axis are integer steps.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from driftline.events import Checkpoint, Severity, SuiteRef

Axis = Literal["time", "step"]
Comparison = Literal[">", ">=", "<", "<=", "==", "!="]
DetectorKind = Literal["non_finite", "loss_spike", "loss_divergence", "slow_rank", "silent_rank"]
DerivedKind = Literal["rate", "ratio", "ema", "spread"]


class WindowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows [k*every, k*every + size) on one axis; ``size`` is a whole multiple of ``every``.

    Size 0 is the whole run so far: windows [first pane of the attempt, k*every).
    """

    axis: Axis
    size: int
    every: int


class Derived(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A metric that the pipeline makes of others, one value per closed pane: see ``derivations``."""

    name: str
    kind: DerivedKind
    of: str
    """The metric that it is made of; the numerator of a ratio."""
    per: str = ""
    """The denominator of a ratio."""
    times: float = 1.0
    over: float = 1.0
    """A rate or ratio is multiplied by ``times`` and divided by ``over``."""
    devices: int | None = 1
    """A rate is also divided by this; None: by the world size that the run announced."""
    half_life_us: int = 0
    """Of an ``ema`` on the time axis."""
    half_life_steps: int = 0
    """Of an ``ema`` on the step axis."""


class AggregateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A custom aggregate: a class of :mod:`driftline.aggregate`, found by name or ``module:attribute``."""

    name: str
    """Its key in the column ``extra`` of windows."""
    target: str
    metrics: list[str]
    version: str = "1"
    settings: dict[str, Any] = {}
    """Keywords for the class."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A user threshold: ``when: "gpu_utilization > 95 for 30s"``."""

    name: str
    metric: str
    op: Comparison
    bound: float
    for_us: int = 0
    """It must hold for so long of event time before the alert opens."""
    for_steps: int = 0
    severity: Severity = "warn"
    per_rank: bool = True
    """Compare each rank by itself, else the mean over ranks."""


class DetectorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One detector with its settings; ``params`` by name, documented beside the detector."""

    name: str
    kind: DetectorKind
    metrics: list[str] = []
    """Metric names; empty means the detector's own default."""
    severity: Severity = "error"
    params: dict[str, float] = {}


class Triggers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a checkpoint is evaluated: any of these that is due picks the checkpoint."""

    epochs: float | None = None
    steps: int | None = None
    every_us: int | None = None
    at_start: bool = False
    """Evaluate the first checkpoint, before training has changed it."""
    at_end: bool = True
    """Evaluate the last checkpoint when the run ends."""


DEFAULT_WINDOWS = (
    WindowSpec(axis="time", size=10_000_000, every=1_000_000),
    WindowSpec(axis="step", size=50, every=1),
)
DEFAULT_DETECTORS = (
    DetectorSpec(name="non-finite", kind="non_finite", severity="page"),
    DetectorSpec(name="loss-spike", kind="loss_spike", severity="warn"),
    DetectorSpec(name="loss-divergence", kind="loss_divergence", severity="page"),
    DetectorSpec(name="slow-rank", kind="slow_rank", severity="error"),
    DetectorSpec(name="silent-rank", kind="silent_rank", severity="error"),
)


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that the pure pipeline needs to know."""

    windows: list[WindowSpec] = msgspec.field(default_factory=lambda: list(DEFAULT_WINDOWS))
    per_rank: list[str] = []
    """Metrics that also get windows per rank."""
    per_host: list[str] = []
    per_role: list[str] = []
    quantiles: dict[str, list[float]] = {}
    """Further quantiles (0 to 1) by metric name."""
    weighted_quantiles: dict[str, list[float]] = {}
    """The same by weight."""
    aggregates: list[AggregateSpec] = []
    derived: list[Derived] = []
    """In order: each is made of metrics that are logged or stand before it."""
    rules: list[Rule] = []
    detectors: list[DetectorSpec] = msgspec.field(default_factory=lambda: list(DEFAULT_DETECTORS))
    triggers: Triggers = Triggers()
    suites: list[SuiteRef] = []
    allowed_lateness_us: int = 2_000_000
    idle_us: int = 30_000_000
    """A process that was silent for so long no longer holds the watermark."""
    future_skew_us: int = 5_000_000
    """A sample dated further ahead of its record's time moves no watermark."""
    expire_us: int = 3_600_000_000
    """State of a process or run is dropped after so long without a record."""
    hole_us: int = 10_000_000
    """A gap in the ticks longer than this is a time in which nobody watched."""
    start_grace_us: int = 60_000_000
    """A rank that never started stops counting as expected after this."""


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that the pure scheduler needs to know."""

    lease_us: int = 60_000_000
    """A lease without progress ends after this."""
    present_us: int = 15_000_000
    """An evaluator that was not heard of for so long is gone."""
    retries: int = 1
    """Further tries after a failed, incomplete or lost one."""
    starve_us: int = 600_000_000
    """A request older than this goes before newer ones."""
    hole_us: int = 10_000_000
    """A gap in the ticks longer than this is a time in which nobody watched: leases last longer by it."""


def encode(config: PipelineConfig | SchedulerConfig) -> bytes:
    """The configuration as JSON, equal for equal configurations, every default written out."""
    return msgspec.json.encode(config, order="deterministic")


def digest(body: bytes) -> str:
    """Names a configuration body in the log.

    >>> digest(b"{}")
    '44136fa355b3678a'
    """
    return hashlib.sha256(body).hexdigest()[:16]


def request_id(checkpoint: Checkpoint, suite: SuiteRef) -> str:
    """Id of an evaluation: the same weights, suite and settings are evaluated once, whichever run asks."""
    parts: list[Any] = [checkpoint.digest, suite.name, suite.target, suite.version, suite.settings]
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:24]
