"""Values as text, for people (:func:`shown`) and for programs (:func:`jsonable`, :func:`csv_cell`).

Non-finite numbers are "NaN", "Infinity" and "-Infinity" for programs (text in JSON, which has none), times
are ISO 8601 in UTC, bytes hexadecimal; null is null in JSON and empty elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from driftline.events import number
from driftline.metric_names import SPAN_PREFIX

PARTS = {
    "(work)": "all work",
    "(barrier)": "waiting for the slowest rank",
    "(rest)": "outside of spans",
    "(untold)": "not told",
}
"""Parts of a step that are no spans."""
_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """A line of block characters, at most ``width`` wide, scaled between the smallest and largest value.

    >>> sparkline([0, 1, 2, 3]), sparkline([5, 5]), sparkline([])
    ('▁▃▆█', '▁▁', '')
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    if len(finite) > width:
        cuts = [len(finite) * at // width for at in range(width + 1)]
        finite = [_mean(finite[first:end]) for first, end in pairwise(cuts)]
    low, high = min(finite), max(finite)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in finite)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def quantity(value: float, unit: str = "") -> str:
    """A number for people, with its unit.

    >>> quantity(0.0123, "s"), quantity(3 * 2**30, "bytes"), quantity(97.3, "%"), quantity(float("nan"))
    ('12.3 ms', '3.0 GiB', '97.3 %', 'nan')
    """
    if not math.isfinite(value):
        return str(value)
    if unit in ("bytes", "bytes/s"):
        for name in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024:
                return f"{value:.1f} {name}{unit[5:]}"
            value /= 1024
        return f"{value:.1f} TiB{unit[5:]}"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if unit in ("%", "W", "°C"):
        return f"{value:.1f} {unit}"
    text = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{text} {unit}" if unit not in ("", "fraction") else text


def duration(seconds: float) -> str:
    """A stretch of time for people: two units at most.

    >>> [duration(s) for s in (0.0, 0.0123, 3.21, 75, 3 * 3600 + 120, 200_000)]
    ['0 s', '12.3 ms', '3.21 s', '1 min 15 s', '3 h 2 min', '2 d 7 h']
    """
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 60:
        return "0 s" if seconds == 0 else quantity(seconds, "s")
    left = round(seconds)
    for size, name, smaller, smaller_name in (
        (86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"),
    ):  # fmt: skip
        if left >= size:
            rest = left % size // smaller
            return f"{left // size} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{left} s"


def unit_of_time(seconds: float) -> tuple[float, str]:
    """The unit of an axis that goes to so many seconds, and how many seconds it is.

    >>> unit_of_time(90), unit_of_time(900), unit_of_time(9000), unit_of_time(900_000)
    ((1.0, 's'), (60.0, 'min'), (3600.0, 'h'), (86400.0, 'd'))
    """
    for size, name in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return size, name
    return 1.0, "s"


def share(value: float) -> str:
    """A part of a whole.

    >>> share(0.123), share(0.0004), share(1.0), share(0.99996)
    ('12.3 %', '0.04 %', '100 %', '99.996 %')
    """
    if not math.isfinite(value):
        return str(value)
    percent = 100 * value
    near = min(abs(percent), abs(100 - percent))
    digits = 0 if near == 0 else 1 if near >= 0.1 else min(3, 1 - math.floor(math.log10(near)) - 1)
    return f"{percent:.{digits}f} %"


def shown(value: Any, form: str = "", unit: str = "") -> str:
    """A cell of a table for people.

    ``form``: "seconds", "share", "ratio", "bytes", "time", "count", or "" for whatever it is; None is empty.

    >>> shown(2.4, "ratio"), shown(0.5, "share"), shown(1234567, "count"), shown(None), shown(1.23456789)
    ('2.40x', '50.0 %', '1,234,567', '', '1.235')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, int | float):
        return _number(value, form, unit)
    if form == "part":
        return PARTS.get(str(value), str(value).removeprefix(SPAN_PREFIX))
    return plain(value)


def _number(value: float, form: str, unit: str) -> str:
    if form == "seconds":
        return duration(value)
    if form == "share":
        return share(value)
    if form == "ratio":
        return f"{value:.2f}x" if math.isfinite(value) else str(value)
    if form == "bytes":
        return quantity(value, "bytes")
    if form == "p":
        return "<0.001" if 0 <= value < 0.001 else f"{value:.3f}"
    if form == "count":
        return f"{value:,.0f}" if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    return quantity(value, unit)


def plain(value: Any) -> str:
    """Any value as one text."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict | list | tuple):
        return json.dumps(jsonable(value), ensure_ascii=False)
    return str(value)


def csv_cell(value: Any) -> Any:
    """A cell of CSV: a number, or text."""
    if isinstance(value, float) and not math.isfinite(value):
        return number(value)
    return value if isinstance(value, int | float) else "" if value is None else plain(value)


def jsonable(value: Any) -> Any:
    """What ``json.dumps`` writes so that any program reads it."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
