"""Reads what people write about thresholds into :class:`~driftline.config.Rule` structs.

    when         METRIC OP VALUE [for DURATION | for N steps]
    METRIC       a name without spaces, or in quotes: "loss", "'timing(s)/gen'"; short names become long ones
    OP           > >= < <= == !=
    VALUE        a number, a percentage or a duration, in the metric's unit: 95, 95%, 500ms, 1e-3

A percentage means 95 for a metric in percent and 0.95 for a fraction; a duration becomes seconds. For a
metric that :mod:`driftline.metric_names` does not know a percentage is refused: its meaning would be a guess.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from driftline import units
from driftline.config import Comparison, Rule
from driftline.errors import SettingsError
from driftline.metric_names import canonical, known

_WHEN = re.compile(
    r"""\s*(?:'(?P<single>[^']+)'|"(?P<double>[^"]+)"|`(?P<back>[^`]+)`|(?P<bare>[^\s'"`<>=!]+))
        \s*(?P<op>>=|<=|==|!=|>|<)
        \s*(?P<value>[^\s<>=!]+)
        (?:\s+for\s+(?P<span>.+?))?\s*""",
    re.VERBOSE,
)
_BOUND = re.compile(r"\s*(?P<op>>=|<=|==|!=|>|<)?\s*(?P<value>[^\s<>=!]+)(?:\s+for\s+(?P<span>.+?))?\s*")
_STEPS = re.compile(r"(\d+)\s*steps?")
_REMEDY = 'write METRIC OP VALUE, e.g. "gpu_utilization > 95 for 30s" or "loss > 8 for 20 steps"'
STEPS_MAX = 1_000_000_000


class Condition(NamedTuple):
    """What a rule asks for, without its name and severity."""

    metric: str
    op: Comparison
    bound: float
    for_us: int
    for_steps: int


def condition(text: str, *, key: str) -> Condition:
    """Reads a ``when``; ``key`` names it in errors. Raises SettingsError.

    >>> condition("cpu > 95% for 30s", key="k")
    Condition(metric='cpu_utilization', op='>', bound=95.0, for_us=30000000, for_steps=0)
    >>> condition("'timing(s)/gen' >= 3 for 20 steps", key="k").for_steps
    20
    """
    parts = _WHEN.fullmatch(text)
    if parts is None:
        raise SettingsError(key, text, _REMEDY)
    metric = parts["single"] or parts["double"] or parts["back"] or parts["bare"]
    return _condition(canonical(metric), parts["op"], parts["value"], parts["span"], text, key)


def threshold(metric: str, value: object, *, key: str) -> Rule:
    """One entry of ``thresholds``. Raises SettingsError.

    >>> threshold("latency", "500ms", key="k").bound, threshold("accuracy", "90%", key="k").op
    (0.5, '<')
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SettingsError(key, value, 'write a bound: 95%, 500ms, 0.9 or "> 95% for 30s"')
    text = repr(value) if isinstance(value, float) else str(value)
    parts = _BOUND.fullmatch(text)
    if parts is None:
        raise SettingsError(key, value, 'write a bound: 95%, 500ms, 0.9 or "> 95% for 30s"')
    name = canonical(metric)
    entry = known(metric)
    op = parts["op"] or ("<" if entry and entry.bad_when == "low" else ">")
    found = _condition(name, op, parts["value"], parts["span"], value, key)
    said = f"{name} {op} {parts['value']}" + (f" for {parts['span']}" if parts["span"] else "")
    return rule(found, name=said)


def rule(found: Condition, *, name: str) -> Rule:
    return Rule(
        name=name,
        metric=found.metric,
        op=found.op,
        bound=found.bound,
        for_us=found.for_us,
        for_steps=found.for_steps,
    )


def _condition(metric: str, op: str, value: str, span: str | None, written: object, key: str) -> Condition:
    for_us = for_steps = 0
    if span is not None:
        steps = _STEPS.fullmatch(span)
        if steps and 1 <= int(steps[1]) <= STEPS_MAX:
            for_steps = int(steps[1])
        else:
            try:
                for_us = units.duration_us(span)
            except ValueError as error:
                remedy = f'after "for" comes a duration or a number of steps: {error}, or "20 steps"'
                raise SettingsError(key, written, remedy) from None
    return Condition(metric, op, _bound(metric, value, written, key), for_us, for_steps)  # type: ignore[arg-type]


def _bound(metric: str, value: str, written: object, key: str) -> float:
    """The number in the metric's unit."""
    entry = known(metric)
    unit = entry.unit if entry else None
    try:
        if value.endswith("%"):
            return _percent(metric, unit, units.number(value[:-1]))
        return units.number(value)
    except ValueError as error:
        if value.endswith("%"):
            raise SettingsError(key, written, str(error)) from None
    try:
        seconds = units.duration_us(value) / 1_000_000
    except ValueError:
        raise SettingsError(key, written, f"{value!r} is no number, percentage or duration") from None
    if unit not in ("s", None):
        raise SettingsError(key, written, f"{metric} is in {unit or 'no unit'}, not a time: write a number")
    return seconds


def _percent(metric: str, unit: str | None, number: float) -> float:
    if unit == "%":
        return number
    if unit == "fraction":
        return number / 100
    if unit is None:
        raise ValueError(
            f"what a percentage of {metric} means is not known: write the number as it is logged"
        )
    raise ValueError(f"{metric} is in {unit or 'no unit'}, not a part of something: write a number")
