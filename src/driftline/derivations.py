"""What may be declared as a derived metric: on which axes it has values, and what cannot be.

    rate     time axis       sum of the metric in a pane / seconds of the pane * times / over / devices
    ratio    where both are  sum of `of` in a pane / sum of `per` in it * times / over
    ema      its half-life's exponential moving average of the pane means
    spread   its metric's    largest mean of a rank in a pane, minus the median of the ranks' means

The settings and the stream workers both ask :func:`check`, so that what the one accepts the other does too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftline.config import Axis, Derived, PipelineConfig
from driftline.errors import SettingsError
from driftline.frames import MAX_NAME_BYTES

MAX_DERIVED = 256
_BOTH: frozenset[Axis] = frozenset({"time", "step"})


def sources(one: Derived) -> tuple[str, ...]:
    """The metrics that it is made of."""
    return (one.of, one.per) if one.kind == "ratio" else (one.of,)


def axes(derived: Sequence[Derived]) -> dict[str, frozenset[Axis]]:
    """On which axes each has values; a metric that is logged has some on both.

    >>> axes([Derived(name="tokens_per_second", kind="rate", of="tokens")])
    {'tokens_per_second': frozenset({'time'})}
    """
    found: dict[str, frozenset[Axis]] = {}
    for one in derived:
        own = _BOTH
        if one.kind == "rate":
            own = frozenset({"time"})
        elif one.kind == "ema":
            own = frozenset({"step"} if one.half_life_steps else {"time"})
        for source in sources(one):
            own &= found.get(source, _BOTH)
        found[one.name] = own
    return found


def check(config: PipelineConfig, key: str = "derived") -> None:
    """Raises SettingsError, naming ``key`` and the place in its list, for what cannot be made."""
    names = [one.name for one in config.derived]
    if len(names) > MAX_DERIVED:
        raise SettingsError(key, len(names), f"write at most {MAX_DERIVED} derived metrics")
    where = axes(config.derived)
    for at, one in enumerate(config.derived):
        here = f"{key}[{at}]"
        _check_name(one.name, names, here)
        for source in sources(one):
            if source in names[at:]:
                what = "itself" if source == one.name else f"{source!r}, which is declared after it"
                remedy = f"is made of {what}: name metrics that are logged or declared before it"
                raise SettingsError(f"{here}.{one.kind}", one.name, remedy)
        _check_numbers(one, here)
        if not where[one.name]:
            raise SettingsError(f"{here}.{one.kind}", one.name, _no_axis(one, where))
    for kind in ("per_rank", "per_host", "per_role"):
        for one in config.derived:
            if one.kind == "spread" and one.name in getattr(config, kind):
                remedy = "is a difference between the ranks of the run: it has no value per group, remove it"
                raise SettingsError(f"streams.{kind}", one.name, remedy)


def _check_name(name: str, names: list[str], here: str) -> None:
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise SettingsError(f"{here}.name", name[:40], f"write a name of 1 to {MAX_NAME_BYTES} bytes")
    if names.count(name) > 1:
        raise SettingsError(f"{here}.name", name, "is declared twice: give each a name of its own")


def _check_numbers(one: Derived, here: str) -> None:
    for field in ("times", "over"):
        value = getattr(one, field)
        if not (math.isfinite(value) and value > 0):
            raise SettingsError(f"{here}.{field}", value, "write a number above 0")
    if one.devices is not None and one.devices < 1:
        raise SettingsError(f"{here}.devices", one.devices, "write how many there are, or leave the key out")
    lives = one.half_life_us, one.half_life_steps
    if one.kind == "ema" and (min(lives) < 0 or (lives[0] > 0) == (lives[1] > 0)):
        raise SettingsError(f"{here}.half_life", lives, 'write a duration or steps: "30s" or "50 steps"')
    if one.kind == "ratio" and not one.per:
        raise SettingsError(f"{here}.ratio", one.of, "write two metrics: [loss_sum, tokens]")


def _no_axis(one: Derived, where: dict[str, frozenset[Axis]]) -> str:
    own: dict[str, str] = {"rate": "a rate", "ema": "this half-life"}
    axis = "step" if one.half_life_steps else "time"
    have = [f"{name!r} on the {at} axis" for name in sources(one) for at in sorted(where.get(name, ()))]
    have += [f"{own[one.kind]} on the {axis} axis"] if one.kind in own else []
    return f"would never have a value: {' and '.join(have)} have nothing in common"
