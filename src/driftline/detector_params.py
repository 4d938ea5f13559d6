"""The parameters of every detector: name, default, unit, range and meaning, in one table.

The settings check against it (:func:`check`), the detectors read their numbers from it (:func:`resolve`),
and ``docs/alerts.md`` prints it (:func:`as_markdown`). A *pane* is the smallest piece of an axis: one step
where the step windows slide by 1, one second where the time windows slide by 1 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, get_args

from driftline.config import DetectorKind, DetectorSpec
from driftline.errors import SettingsError


class Param(NamedTuple):
    """One number that a detector may be given."""

    default: float
    unit: str
    low: float
    high: float
    doc: str
    whole: bool = False
    """True: a count; 2.5 is refused."""


_UPDATE = Param(10.0, "s", 1.0, 86_400.0, "an open alert is updated at most this often, of the run's time")
_MAX_ALERTS = Param(
    4, "alerts", 1, 1_000, "open at once for one metric; further ones share one rolled-up alert", True
)
_COMMON = {"update_s": _UPDATE, "max_alerts": _MAX_ALERTS}

PARAMS: dict[DetectorKind, dict[str, Param]] = {
    "non_finite": {
        "clean_panes": Param(20, "panes", 1, 100_000, "resolved after so many panes without one", True),
        **_COMMON,
    },
    "loss_spike": {
        "window": Param(64, "panes", 8, 4_096, "recent history that says what is normal", True),
        "warmup": Param(20, "panes", 3, 4_096, "nothing is said before so many panes of history", True),
        "score": Param(5.0, "robust sigmas", 1.0, 1e6, "height above the median that is a spike"),
        "min_rise": Param(0.2, "of the median", 0.0, 1e6, "and at least this part of the median's size"),
        "min_progress": Param(
            0.05, "of the progress", 0.0, 1e6, "and of all that the loss has fallen so far"
        ),
        "calm_panes": Param(
            3, "panes", 1, 10_000, "resolved after so many panes under half of the score", True
        ),
        **_COMMON,
    },
    "loss_divergence": {
        "window": Param(100, "panes", 8, 4_096, "recent history that says what is normal", True),
        "warmup": Param(2, "panes", 2, 4_096, "nothing is said before so many panes of history", True),
        "score": Param(6.0, "robust sigmas", 1.0, 1e6, "height above the best level that counts as risen"),
        "min_rise": Param(0.25, "of the level", 0.0, 1e6, "and at least this part of the level's size"),
        "min_progress": Param(0.1, "of the progress", 0.0, 1e6, "and of all that the loss has fallen so far"),
        "rise_panes": Param(
            4, "panes", 2, 10_000, "a new high so long after the rise began is a divergence", True
        ),
        "rise_steps": Param(
            10, "steps", 2, 1e9, "or so many steps after, where steps are logged sparsely", True
        ),
        "patience": Param(
            50, "panes", 3, 100_000, "risen for so many panes is one too, new high or not", True
        ),
        "calm_panes": Param(5, "panes", 1, 10_000, "back at the level for so many panes ends it", True),
        "relearn_panes": Param(
            1_000, "panes", 10, 1e6, "after so many, the new level counts as normal", True
        ),
        **_COMMON,
    },
    "slow_rank": {
        "ratio": Param(1.3, "times", 1.01, 1_000.0, "typical time against the median of the other ranks"),
        "window": Param(20, "panes", 4, 1_000, "recent panes that are looked at", True),
        "share": Param(
            0.8, "of the window", 0.5, 1.0, "so many of them must be slow by half of the ratio's excess"
        ),
        "min_excess_s": Param(0.001, "s", 0.0, 3_600.0, "and slower by at least this much time"),
        "min_ranks": Param(3, "ranks", 2, 100_000, "fewer ranks are not compared", True),
        "max_share": Param(0.34, "of the ranks", 0.0, 1.0, "more slow ranks at once are a group's pattern"),
        "calm_panes": Param(20, "panes", 1, 10_000, "resolved when most of so many panes are normal", True),
        **_COMMON,
    },
    "silent_rank": {
        "silent_s": Param(30.0, "s", 1.0, 86_400.0, "a process that was not heard of for so long is silent"),
        **_COMMON,
    },
}

assert set(PARAMS) == set(get_args(DetectorKind))


def check(kind: DetectorKind, params: Mapping[str, float], key: str = "params") -> None:
    """Refuses parameters that the detector does not have or cannot use.

    ``key`` is the path of the mapping in the settings, for the message.

    Raises:
        SettingsError: an unknown name, a value that is no number, out of its range or not whole.
    """
    known = PARAMS[kind]
    for name, value in params.items():
        where = f"{key}.{name}"
        if name not in known:
            raise SettingsError(
                where, value, f"{kind} has no such parameter; it has {', '.join(sorted(known))}"
            )
        param = known[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SettingsError(where, value, f"give a number ({param.unit})")
        if not param.low <= value <= param.high:
            raise SettingsError(where, value, f"give {param.low:g} to {param.high:g} ({param.unit})")
        if param.whole and value != int(value):
            raise SettingsError(where, value, f"give a whole number ({param.unit})")


def resolve(spec: DetectorSpec) -> dict[str, float]:
    """Every parameter of a detector, defaults filled in. Raises SettingsError as :func:`check` does."""
    check(spec.kind, spec.params, f"detectors.{spec.name}.params")
    return {name: spec.params.get(name, param.default) for name, param in PARAMS[spec.kind].items()}


def as_markdown(kind: DetectorKind) -> str:
    """The parameters of one detector as a table for the documentation."""
    rows = [
        f"| `{name}` | {param.default:g} | {param.unit} | {param.doc} |"
        for name, param in PARAMS[kind].items()
    ]
    return "\n".join(["| parameter | default | unit | meaning |", "|---|---|---|---|", *rows])
