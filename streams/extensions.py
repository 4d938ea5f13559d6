"""Finds and tries the classes of custom aggregates.

A target is a short name of :data:`~driftline.streams.named_aggregates.BUILT_IN`, an entry point of the group
``driftline.aggregates``, or ``module:attribute``. What cannot be used is a SettingsError in words: a worker
that lacks the class refuses the configuration instead of giving other windows than its peers.

Whoever may write to the log may write a configuration into it. So a ``module:attribute`` is imported, and
called, only where the settings of this very process say the same (:func:`trust`): by the log alone anyone
could have ``os:system`` called.
"""

from __future__ import annotations

import functools
import importlib
import math
from importlib.metadata import entry_points
from typing import Any

import msgspec
import numpy as np

from driftline.aggregate import Aggregate, check_plain
from driftline.config import AggregateSpec, PipelineConfig
from driftline.errors import SettingsError
from driftline.streams.named_aggregates import BUILT_IN

GROUP = "driftline.aggregates"
MAX_AGGREGATES = 64


_trusted: set[bytes] = set()
"""Targets with their settings, as :func:`_same` writes them."""


def trust(config: PipelineConfig) -> None:
    """Lets this process import the classes that ``config`` names: for what its own settings say."""
    _trusted.update(_same(spec) for spec in config.aggregates)


def trusted() -> frozenset[bytes]:
    """What this process trusts, for another one that does its work: see :func:`trust_likewise`."""
    return frozenset(_trusted)


def trust_likewise(known: frozenset[bytes]) -> None:
    """Trusts what the process does that started this one."""
    _trusted.update(known)


def _same(spec: AggregateSpec) -> bytes:
    return msgspec.json.encode([spec.target, spec.settings], order="deterministic")


def find(spec: AggregateSpec) -> Any:
    """The class. Raises SettingsError."""
    key = f"aggregates.{spec.name}"
    if ":" in spec.target and _same(spec) not in _trusted:
        remedy = (
            "is in the log's configuration and not in this process's own: a class is imported only where "
            "both name it, with the same settings; write it into this worker's settings file, if you know it"
        )
        raise SettingsError(f"{key}.target", spec.target, remedy)
    try:
        made: Any = _load(BUILT_IN.get(spec.target, spec.target))
    except Exception as error:
        remedy = f"cannot be loaded by this worker ({_said(error)}): install it on every stream worker"
        raise SettingsError(f"{key}.target", spec.target, remedy) from error
    version = str(getattr(made, "version", spec.version))
    if version != spec.version:
        remedy = f"this worker has version {version!r} of {spec.target}: install the same on every worker"
        raise SettingsError(f"{key}.version", spec.version, remedy)
    return made


@functools.cache
def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    if attribute:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    installed = sorted(point.name for point in entry_points(group=GROUP))
    if target not in installed:
        known = ", ".join([*BUILT_IN, *installed])
        raise LookupError(
            f"no entry point of {GROUP} has this name; known: {known}, or write module:attribute"
        )
    return entry_points(group=GROUP)[target].load()


def check_all(config: PipelineConfig) -> None:
    """Raises SettingsError for a declaration that cannot be used here."""
    names = [spec.name for spec in config.aggregates]
    if len(names) > MAX_AGGREGATES or len(set(names)) < len(names):
        remedy = f"write at most {MAX_AGGREGATES} aggregates, each with a name of its own"
        raise SettingsError("aggregates", names, remedy)
    for spec in config.aggregates:
        check(spec)
    for metric, quantiles in config.weighted_quantiles.items():
        if not quantiles or not all(0 < q < 1 for q in quantiles):
            raise SettingsError(f"weighted_quantiles.{metric}", quantiles, "write numbers between 0 and 1")


def check(spec: AggregateSpec) -> None:
    """Makes one and runs it through everything once. Raises SettingsError."""
    made = find(spec)
    try:
        first, second = make(made, spec), make(made, spec)
        first.update(np.array([1.0, 2.0]), np.ones(2))
        second.merge(first)
        number(second.value())
        check_plain(second.dump())
        first.load(second.dump())
    except Exception as error:
        remedy = f"{_said(error)}: check it with driftline.testing.check_aggregate"
        raise SettingsError(f"aggregates.{spec.name}", spec.target, remedy) from error


def make(found: Any, spec: AggregateSpec) -> Aggregate:
    made: Aggregate = found(**spec.settings)
    return made


def number(value: object) -> float | None:
    """What goes into the column: a float, None for NaN."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"value() gave {value!r}, not a float or None")
    return None if math.isnan(value) else float(value)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]
