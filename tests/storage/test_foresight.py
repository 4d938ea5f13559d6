"""A sink says that a topic is about to delete what is not stored while there is time to mend it."""

from __future__ import annotations

import re

import pytest

from driftline.admin import Retention
from driftline.storage.core import Spot
from driftline.storage.foresight import Unread, warnings

HOUR = 3_600_000
FACTS, ALERTS = Spot("facts", "u", 0), Spot("alerts", "u", 0)


@pytest.mark.parametrize(
    ("kept", "unread", "expected"),
    [
        (Retention(), Unread(oldest_ms=0, bytes=1 << 40), None),
        (Retention(ms=8 * HOUR), Unread(oldest_ms=6 * HOUR, bytes=0), None),
        (
            Retention(ms=8 * HOUR),
            Unread(oldest_ms=6 * HOUR - 1, bytes=0),
            "4 h ago .* after 8 h .retention.ms",
        ),
        (Retention(ms=8 * HOUR), Unread(oldest_ms=99 * HOUR, bytes=0), None),  # a clock that is behind
        (Retention(bytes=4096), Unread(oldest_ms=0, bytes=2048), None),
        (
            Retention(bytes=4096),
            Unread(oldest_ms=0, bytes=2049),
            "2 KiB .* keeps 4 KiB .retention.bytes=4096",
        ),
        (Retention(ms=8 * HOUR, bytes=4096), Unread(oldest_ms=5 * HOUR, bytes=4000), "retention.bytes"),
        (Retention(ms=0, bytes=0), Unread(oldest_ms=0, bytes=1), "retention.ms=0"),
    ],
)
def test_it_says_so_beyond_half_of_what_the_topic_keeps(
    kept: Retention, unread: Unread, expected: str | None
) -> None:
    found = warnings({FACTS: unread, ALERTS: unread}, {"facts": kept}, 10 * HOUR, "p.")
    assert len(found) == (expected is not None)
    if expected:
        assert re.search(expected, found[0]), found
        assert found[0].startswith("p.facts/0 ")


def test_each_topic_has_one_line_about_its_worst_partition() -> None:
    kept = Retention(ms=8 * HOUR)
    unread = {
        FACTS._replace(partition=at): Unread(oldest_ms=age * HOUR, bytes=0)
        for at, age in enumerate((4, 1, 5))
    }
    (line,) = warnings(unread, {"facts": kept}, 10 * HOUR, "p.")
    assert line.startswith("p.facts/1 has records of 9 h ago")
