"""Reads the blocks ``derived`` and ``aggregates`` into the structs of :mod:`driftline.config`.

Names, also those of the metrics that one is made of, become long ones as in rules (``tps`` is
``tokens_per_second``). An ``mfu`` is a rate of tokens, times the FLOPs of one, over the peak of all devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from driftline import derivations, units
from driftline.config import AggregateSpec, Derived, PipelineConfig
from driftline.errors import SettingsError
from driftline.metric_names import canonical
from driftline.settings_schema import AggregateEntry, DerivedEntry, Mfu

TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*|[A-Za-z_][\w.-]*")
"""``module:attribute`` or the name of an entry point."""
HALF_LIFE_STEPS_MAX = 1_000_000_000
_KINDS = ("rate", "ratio", "mfu", "ema", "spread")
_ONE = "write one of rate, ratio, mfu, ema and spread, e.g. {name: tokens_per_second, rate: tokens}"


def derived(entries: list[DerivedEntry], where: Callable[[str], str]) -> list[Derived]:
    """The declared metrics in their order; whether they fit each other, :func:`check` says."""
    return [_derived(entry, where(f"derived[{at}]")) for at, entry in enumerate(entries)]


def check(config: PipelineConfig, where: Callable[[str], str]) -> None:
    """Raises SettingsError for what cannot be made."""
    derivations.check(config, where("derived"))


def aggregates(entries: list[AggregateEntry], where: Callable[[str], str]) -> list[AggregateSpec]:
    """The declared ones; whether the class is there, each stream worker says."""
    found: list[AggregateSpec] = []
    for at, entry in enumerate(entries):
        here = where(f"aggregates[{at}]")
        if not TARGET.fullmatch(entry.target):
            remedy = "write package.module:attribute, or the name of an entry point"
            raise SettingsError(f"{here}.target", entry.target, remedy)
        name = entry.name or entry.target.rpartition(":")[2]
        if any(spec.name == name for spec in found):
            raise SettingsError(f"{here}.name", name, "is used twice: give each a name of its own")
        if not entry.metrics:
            raise SettingsError(f"{here}.metrics", entry.metrics, "name the metrics that get it: [latency]")
        metrics = list(dict.fromkeys(map(canonical, entry.metrics)))
        found.append(
            AggregateSpec(
                name=name,
                target=entry.target,
                metrics=metrics,
                version=entry.version,
                settings=entry.settings,
            )
        )
    return found


def _derived(entry: DerivedEntry, here: str) -> Derived:
    written = [kind for kind in _KINDS if getattr(entry, kind) is not None]
    if len(written) != 1:
        raise SettingsError(here, " and ".join(written) or entry.name, _ONE)
    kind = written[0]
    _check_companions(entry, kind, here)
    name = canonical(entry.name)
    times, over = entry.times or 1.0, entry.over or 1.0
    if entry.mfu is not None:
        return _mfu(name, entry.mfu)
    if entry.ratio is not None:
        if len(entry.ratio) != 2:
            raise SettingsError(f"{here}.ratio", entry.ratio, "write two metrics: [loss_sum, tokens]")
        of, per = map(canonical, entry.ratio)
        return Derived(name=name, kind="ratio", of=of, per=per, times=times, over=over)
    if entry.ema is not None:
        us, steps = _half_life(entry.half_life, f"{here}.half_life")
        return Derived(name=name, kind="ema", of=canonical(entry.ema), half_life_us=us, half_life_steps=steps)
    if entry.rate is not None:
        return Derived(name=name, kind="rate", of=canonical(entry.rate), times=times, over=over)
    assert entry.spread is not None
    return Derived(name=name, kind="spread", of=canonical(entry.spread))


def _check_companions(entry: DerivedEntry, kind: str, here: str) -> None:
    """Keys that mean nothing beside this kind."""
    for key, kinds in (("half_life", ("ema",)), ("times", ("rate", "ratio")), ("over", ("rate", "ratio"))):
        if getattr(entry, key) is not None and kind not in kinds:
            remedy = f"has no meaning beside {kind}: it belongs to {' and '.join(kinds)}; remove it"
            raise SettingsError(f"{here}.{key}", getattr(entry, key), remedy)


def _mfu(name: str, entry: Mfu) -> Derived:
    return Derived(
        name=name,
        kind="rate",
        of=canonical(entry.tokens),
        times=entry.flops_per_token,
        over=entry.peak_flops,
        devices=entry.devices,
    )


def _half_life(value: int | str | None, key: str) -> tuple[int, int]:
    """Microseconds and steps, one of them 0."""
    remedy = 'write a duration or a number of steps: "30s" or "50 steps"'
    words = value.split() if isinstance(value, str) else []
    if len(words) == 2 and words[1] in ("step", "steps") and words[0].isdecimal():
        steps = int(words[0])
        if not 1 <= steps <= HALF_LIFE_STEPS_MAX:
            raise SettingsError(key, value, f"write 1 to {HALF_LIFE_STEPS_MAX:,} steps")
        return 0, steps
    try:
        us = units.duration_us(value)
    except ValueError:
        raise SettingsError(key, value, remedy) from None
    if us < 1_000:
        raise SettingsError(key, value, "write at least 1ms")
    return us, 0
