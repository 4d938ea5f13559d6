"""Durations, sizes and percentages as people write them in the settings, and back.

    duration   "100ms", "30s", "10m", "2h", "7d", "1h30m"   -> integer microseconds
    size       "512KiB", "64MiB", "2GB", 1048576              -> integer bytes (KB = 1000, KiB = 1024)
    fraction   0.15, "15%"                                    -> 0.15
    flops      6e9, "6 GFLOP", "989 TFLOPS", "989 TFLOP/s"    -> 6e9 (k = 1000)

Each function raises ``ValueError`` with a remedy; :mod:`driftline.settings_read` adds the key.
A bare number is no duration: its unit would be a guess.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

DURATION_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_WORDS = {
    "µs": "us",
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "min": "m",
    "mins": "m",
    "minute": "m",
    "minutes": "m",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    "week": "w",
    "weeks": "w",
}
DURATION_MAX_US = 100 * 365 * DURATION_UNITS_US["d"]
SIZE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
SIZE_MAX = 2**50
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)", re.IGNORECASE)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_FLOPS = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?:([kmgtpe]?)flops?(?:/s)?)?\s*", re.IGNORECASE)
_DURATION_REMEDY = 'write a number with its unit: "100ms", "30s", "10m", "2h" or "7d"'


def duration_us(value: object) -> int:
    """Microseconds of a duration.

    >>> duration_us("100ms"), duration_us("1h30m"), duration_us("7d")
    (100000, 5400000000, 604800000000)
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(_DURATION_REMEDY)
    total, at, text = Decimal(0), 0, value.strip()
    while at < len(text):
        part = _PART.match(text, at)
        unit = _WORDS.get(part[2].lower(), part[2].lower()) if part else ""
        if part is None or unit not in DURATION_UNITS_US:
            raise ValueError(_DURATION_REMEDY)
        total += Decimal(part[1]) * DURATION_UNITS_US[unit]
        at = part.end()
    if total != total.to_integral_value():
        raise ValueError("the smallest unit is 1us")
    if total > DURATION_MAX_US:
        raise ValueError("longer than 100 years")
    return int(total)


def duration_text(us: int) -> str:
    """A duration in its largest whole unit.

    >>> duration_text(600_000_000), duration_text(1_500_000), duration_text(0)
    ('10m', '1500ms', '0s')
    """
    if us == 0:
        return "0s"
    for unit in ("w", "d", "h", "m", "s", "ms"):
        if us % DURATION_UNITS_US[unit] == 0 and (unit != "w" or us >= 2 * DURATION_UNITS_US["w"]):
            return f"{us // DURATION_UNITS_US[unit]}{unit}"
    return f"{us}us"


def size_bytes(value: object) -> int:
    """Bytes of a size; a bare whole number is bytes.

    >>> size_bytes("64MiB"), size_bytes("2 GB"), size_bytes(512)
    (67108864, 2000000000, 512)
    """
    remedy = 'write a number with its unit: "512KiB", "64MiB" or "2GB"'
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(remedy)
    part = _SIZE.fullmatch(str(value))
    unit = (part[2].lower() or "b") if part else ""
    if part is None or unit not in SIZE_UNITS:
        raise ValueError(remedy)
    total = Decimal(part[1]) * SIZE_UNITS[unit]
    if total > SIZE_MAX:
        raise ValueError("larger than 1 PiB")
    if total != total.to_integral_value():
        raise ValueError("not a whole number of bytes")
    return int(total)


def size_text(size: int) -> str:
    """A size in its largest whole unit.

    >>> size_text(64 * 2**20), size_text(1000)
    ('64MiB', '1000B')
    """
    for unit, name in (("gib", "GiB"), ("mib", "MiB"), ("kib", "KiB")):
        if size and size % SIZE_UNITS[unit] == 0:
            return f"{size // SIZE_UNITS[unit]}{name}"
    return f"{size}B"


def number(value: object) -> float:
    """A finite number; text is read too, since YAML takes ``1e-3`` for text.

    >>> number("1e-3"), number(5)
    (0.001, 5.0)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("write a number")
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise ValueError("write a number") from None
    if not math.isfinite(result):
        raise ValueError("write a finite number")
    return result


def fraction(value: object) -> float:
    """A part of a whole, between 0 and 1.

    >>> fraction("15%"), fraction(0.15)
    (0.15, 0.15)
    """
    remedy = 'write a part of a whole between 0 and 1, or a percentage: 0.15 or "15%"'
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            result = float(Decimal(repr(number(value.strip()[:-1]))) / 100)
        else:
            result = number(value)
    except ValueError:
        raise ValueError(remedy) from None
    if not 0 <= result <= 1:
        raise ValueError(remedy)
    return result


def flops(value: object) -> float:
    """Floating point operations, or so many in a second: the key says which.

    >>> flops("989 TFLOPS"), flops("6 GFLOP"), flops(1e15)
    (989000000000000.0, 6000000000.0, 1000000000000000.0)
    """
    remedy = 'write a number above 0, with a unit where it helps: 6e9, "6 GFLOP" or "989 TFLOPS"'
    part = None if isinstance(value, bool) else _FLOPS.fullmatch(str(value))
    if part is None:
        raise ValueError(remedy)
    power = "kmgtpe".index(part[2].lower()) + 1 if part[2] else 0
    result = float(Decimal(part[1]) * 1000**power) if abs(Decimal(part[1]).adjusted()) < 300 else 0.0
    if not 0 < result < 1e300:
        raise ValueError(remedy)
    return result
