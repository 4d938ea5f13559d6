"""What ``run.define`` takes: checked, cut to its bounds, and compared with what the process said before."""

from __future__ import annotations

from typing import Any, get_args

from driftline.events import Goal, Reduce
from driftline.producers.counters import words
from driftline.producers.entries import Defined
from driftline.producers.naming import metric_name

UNIT_CHARS_MAX = 100
DESCRIPTION_CHARS_MAX = 1_000
SENT_MAX = 10_000
"""Declarations that one process sends; a trainer that declares without end is stopped there."""


def checked(name: Any, goal: Any, unit: Any, reduce: Any, description: Any) -> Defined:
    """The declaration. Raises ValueError, in words, for what it cannot be.

    >>> checked("reward", "max", "tokens/s", None, None).unit
    'tokens/s'
    >>> checked("reward", "up", None, None, None)
    Traceback (most recent call last):
    ...
    ValueError: goal 'up' is none of 'max', 'min'
    """
    if not isinstance(name, str):
        raise ValueError(f"the name {words(name, 80)} is not text")
    _one_of("goal", goal, get_args(Goal))
    _one_of("reduce", reduce, get_args(Reduce))
    return Defined(
        metric_name(str(name))[0],
        goal if goal is None else str(goal),  # type: ignore[arg-type]  # one of its words
        _text("unit", unit, UNIT_CHARS_MAX),
        reduce if reduce is None else str(reduce),  # type: ignore[arg-type]
        _text("description", description, DESCRIPTION_CHARS_MAX),
    )


def news(known: Defined | None, said: Defined) -> Defined | None:
    """All that is known then, or None if ``said`` says nothing that was not ``known``.

    >>> first = Defined("loss", goal="min")
    >>> news(first, Defined("loss", unit="nats")), news(first, first)
    (Defined(metric='loss', goal='min', unit='nats', reduce=None, description=None), None)
    """
    before = known or Defined(said.metric)
    fields = {name: value for name, value in said._asdict().items() if value is not None}
    both = before._replace(**fields)
    return None if both == known else both


def _one_of(field: str, value: Any, accepted: tuple[str, ...]) -> None:
    if value is not None and not (isinstance(value, str) and value in accepted):
        raise ValueError(f"{field} {words(value, 80)} is none of {', '.join(map(repr, accepted))}")


def _text(field: str, value: Any, limit: int) -> str | None:
    """Text that UTF-8 can carry, cut where it is too long."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{field} {words(value, 80)} is not text")
    return str(value).encode(errors="replace").decode()[:limit]
