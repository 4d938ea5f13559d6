"""Text and JSON values -> numbers, steps and instants, by the rules of docs/sdk.md. Pure.

In a file of text everything is text, so a cell that spells a number is one: what Python's ``float`` reads,
without underscores, "nan" and "inf" in any case too, and "True" and "False". In JSON only numbers (with the
``NaN`` and ``Infinity`` that Python writes) and booleans are: a string is text, whatever it spells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

_WORDS = {"true": 1.0, "false": 0.0}
_NONE = frozenset(("none", "null", "na", "n/a", "<na>"))
_INT64 = range(-(1 << 63) + 1, 1 << 63)
"""Without the number that stands for "no step"."""
_MAX_US = 1 << 62
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
UNITS_US = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}
_SCALE = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


def cell(text: str) -> float | str | None:
    """The number in a cell of text; None where it is empty; else why it is none.

    >>> cell(" 1e-3 "), cell("NaN"), cell("True"), cell(""), cell("1_000"), cell("None")
    (0.001, nan, 1.0, None, 'text', 'none')
    """
    text = text.strip()
    if not text:
        return None
    try:
        if "_" not in text and text.isascii():
            return float(text)
    except ValueError:
        pass
    word = text.lower()
    return _WORDS.get(word) if word in _WORDS else "none" if word in _NONE else "text"


def plain(value: object) -> float | str:
    """The number that a JSON value is, or why it is none.

    >>> plain(True), plain(10**400), plain("1.5"), plain(None), plain([1.0])
    (1.0, 'range', 'text', 'none', 'elements')
    """
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return "range"
    if value is None:
        return "none"
    if isinstance(value, str):
        return "text"
    return "elements" if isinstance(value, list) else "nested"


def flat(found: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Names and values of an object and of those in it, their names joined by "/".

    >>> dict(flat({"loss": 1.5, "timing": {"gen": 2, "more": {}}}))
    {'loss': 1.5, 'timing/gen': 2}
    """
    for name, value in found.items():
        if isinstance(value, dict) and depth < 16:
            yield from flat(value, f"{before}{name}/", depth + 1)
        else:
            yield f"{before}{name}", value


def step_of(value: object) -> int | None:
    """A step: any integer of 64 bits, also as a float without a fraction or as text; None for all else.

    >>> step_of("12"), step_of("1e3"), step_of(7.0), step_of(7.5), step_of("x"), step_of(True)
    (12, 1000, 7, None, None, None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip()
        if re.fullmatch(r"[+-]?\d{1,19}", value):
            value = int(value)
        else:
            found = cell(value)
            value = found if isinstance(found, float) else None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value == int(value) else None
    return value if isinstance(value, int) and value in _INT64 else None


def unit_of(value: str | float) -> str:
    """The unit that a number of that size, counted from 1970, is most likely in.

    >>> unit_of(1.7e9), unit_of(1.7e12), unit_of(1.7e15), unit_of("1.7e18")
    ('s', 'ms', 'us', 'ns')
    """
    size = abs(value if isinstance(value, int) else float(value))
    return "s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns"


def is_number(value: object) -> bool:
    """Whether a value is a number, or text that spells a finite one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def instant(value: object, unit: str | None, zone: str) -> int | None:
    """Microseconds since 1970, UTC, of a number (in ``unit``) or of ISO 8601 text; None if it is neither.

    Text without an offset is of the time zone ``zone``; where its clock was put back, the first of both.

    >>> instant("2024-12-06T00:00:00+03:30", None, "UTC") == instant("2024-12-06", None, "Asia/Tehran")
    True
    >>> instant("1733443200.5", "s", "UTC"), instant("soon", None, "UTC")
    (1733443200500000, None)
    """
    if is_number(value):
        return span(value, unit or unit_of(value))  # type: ignore[arg-type]
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip().removesuffix(" UTC"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(zone))
    try:
        since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:  # in the years 1 and 9999 the hour in UTC may be none
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def span(value: object, unit: str) -> int | None:
    """Microseconds in a number of ``unit``, exact for whole numbers; None where it is no finite number.

    >>> span("1733443200123456789", "ns"), span(1.5, "ms"), span("nan", "s")
    (1733443200123456, 1500, None)
    """
    times, over = _SCALE[unit]
    whole = step_of(value) if not isinstance(value, float) else None
    if whole is not None:
        made = whole * times // over
        return made if abs(made) < _MAX_US else None
    found = cell(value) if isinstance(value, str) else plain(value)
    if not isinstance(found, float) or not math.isfinite(found) or abs(found) * UNITS_US[unit] >= _MAX_US:
        return None
    return round(found * times / over)
