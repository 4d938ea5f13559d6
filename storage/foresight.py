"""Whether the broker is about to delete what is not stored yet. Pure.

A topic's ``retention.ms`` and ``retention.bytes`` go by its own clock and sizes and wait for nobody. The sink
says so when the oldest record that it has to read is older than half of the first, or what it has to read is
more than half of the second (by the size of what it reads, about): then there is as long again to mend it.
What is lost all the same is counted in the table ``gaps`` (:mod:`.core`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from driftline.admin import Retention
from driftline.storage.core import Spot
from driftline.topics import TopicName


class Unread(NamedTuple):
    """What a partition holds that is not read: its oldest record's time, and about how many bytes."""

    oldest_ms: int
    bytes: int


def warnings(
    unread: Mapping[Spot, Unread], kept: Mapping[TopicName, Retention], now_ms: int, prefix: str
) -> list[str]:
    """A line for each topic of which something is near its end, about the partition that is nearest.

    >>> spot = Spot("facts", "u", 3)
    >>> kept = {"facts": Retention(ms=60_000, bytes=None)}
    >>> warnings({spot: Unread(oldest_ms=10_000, bytes=5)}, kept, 40_000, "p.")
    []
    >>> print(*warnings({spot: Unread(oldest_ms=10_000, bytes=5)}, kept, 41_000, "p."))
    p.facts/3 has records of 31 s ago that are not stored yet, and its broker deletes them after 60 s \
(retention.ms=60000): rows will be lost; raise it, or start more sinks
    """
    worst: dict[TopicName, tuple[float, str]] = {}
    for spot, what in unread.items():
        limit = kept.get(spot.topic, Retention())
        name = f"{prefix}{spot.topic}/{spot.partition}"
        age_ms = now_ms - what.oldest_ms
        found = []
        if limit.ms is not None:
            text = (
                f"{name} has records of {_span(age_ms)} ago that are not stored yet, and its broker deletes "
                f"them after {_span(limit.ms)} (retention.ms={limit.ms})"
            )
            found.append((age_ms / max(1, limit.ms), text))
        if limit.bytes is not None:
            text = (
                f"{name} has about {what.bytes >> 10:,} KiB that are not stored yet, and its broker keeps "
                f"{limit.bytes >> 10:,} KiB (retention.bytes={limit.bytes})"
            )
            found.append((what.bytes / max(1, limit.bytes), text))
        for part, text in found:
            if part > max(0.5, worst.get(spot.topic, (0.0, ""))[0]):
                worst[spot.topic] = part, f"{text}: rows will be lost; raise it, or start more sinks"
    return [text for _, text in worst.values()]


def _span(ms: int) -> str:
    """Whole units of time, two of the larger ones at least."""
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"
