"""What every detector can be asked, and how its sentences name things."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from driftline.config import Axis, DetectorSpec
from driftline.detector_params import resolve
from driftline.streams.detectors.lifecycle import Lifecycle
from driftline.streams.views import AlertChange, Liveness, NonFinite, PaneView

S = TypeVar("S", bound=msgspec.Struct)

ENDED = "the attempt is over"


class Detector(Generic[S]):
    """One detector of the configuration: scores what it is shown, then learns from it.

    ``state`` and the lifecycle's state are all that it remembers; both are plain data when dumped.
    """

    state_type: ClassVar[type[msgspec.Struct]]
    state: S
    alerts: Lifecycle

    def wants(self, axis: Axis, metric: str) -> bool:
        """Whether panes of this metric are shown to it."""
        return False

    def awaited(self) -> Collection[str] | None:
        """The only metrics of which it needs to be shown panes now, whatever it wants; None: all it wants."""
        return None

    def per_rank(self) -> frozenset[str]:
        """Metrics that it needs by rank."""
        return frozenset()

    def non_finite(self, seen: NonFinite) -> list[AlertChange]:
        """A NaN or infinity arrived."""
        return []

    def pane(self, view: PaneView) -> list[AlertChange]:
        """A pane that it wants has closed."""
        return []

    def tick(self, now_us: int, processes: Sequence[Liveness]) -> list[AlertChange]:
        """Time moved on."""
        return []

    def end(self, now_us: int) -> list[AlertChange]:
        """The attempt is over."""
        return self.alerts.end(now_us, ENDED)

    def dump(self) -> dict[str, Any]:
        """Plain data for :meth:`load`."""
        return {
            "state": msgspec.to_builtins(self.state, str_keys=True),
            "alerts": msgspec.to_builtins(self.alerts.state, str_keys=True),
        }

    def load(self, data: dict[str, Any]) -> None:
        """Takes what :meth:`dump` gave, also after a round through JSON or MessagePack."""
        self.state = msgspec.convert(data["state"], self.state_type, str_keys=True)  # type: ignore[assignment]
        self.alerts.state = msgspec.convert(data["alerts"], type(self.alerts.state), str_keys=True)


def lifecycle_of(spec: DetectorSpec) -> tuple[Lifecycle, dict[str, float]]:
    """The lifecycle of a detector with its parameters. Raises SettingsError for an unknown parameter."""
    params = resolve(spec)
    alerts = Lifecycle(
        spec.name,
        spec.kind,
        spec.severity,
        update_us=int(params["update_s"] * 1_000_000),
        max_alerts=int(params["max_alerts"]),
    )
    return alerts, params


def matches(metric: str, wanted: list[str]) -> bool:
    """Whether a name is among those wanted: equal, or, for ``*ending``, with that ending.

    >>> matches("actor/loss", ["loss", "*/loss"]), matches("loss[0]", ["loss"])
    (True, False)
    """
    return any(metric == name or (name.startswith("*") and metric.endswith(name[1:])) for name in wanted)


LOSSES = ["loss", "*/loss", "train_loss", "*/train_loss", "lm_loss", "*/lm_loss"]
"""Training losses by their usual names, the default of the loss detectors."""
_HELD_OUT = ("eval", "val", "test", "valid", "validation", "evaluation", "dev")


def is_training_loss(metric: str) -> bool:
    """The written default of the loss detectors: named as in ``LOSSES``, and no part of the name (between
    slashes, up to an underscore) says that it is of held-out data.

    >>> [is_training_loss(name) for name in ("loss", "train/loss", "eval/loss", "val_0/loss", "policy_loss")]
    [True, True, False, False, False]
    """
    parts = metric.split("/")
    return matches(metric, LOSSES) and not any(part.split("_")[0].lower() in _HELD_OUT for part in parts)


def named(metric: str) -> str:
    """A metric in a sentence: long names are cut there (never in the data)."""
    return metric if len(metric) <= 80 else metric[:77] + "..."


def figure(value: float) -> str:
    """A number in a sentence, four figures."""
    return f"{value:.4g}"


def place(rank: int | None) -> str:
    """A rank in a sentence."""
    return "" if rank is None else f" on rank {rank}"
