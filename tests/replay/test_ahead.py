"""Reading ahead changes nothing but when things are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from driftline.errors import BadData
from driftline.replay.ahead import ITEMS, ahead


def test_what_the_source_raises_is_raised_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise BadData("a file is gone")

    with ahead(source()) as items:
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(BadData, match="a file is gone"):
            next(items)


def test_a_consumer_that_stops_ends_the_reading_and_no_more_than_a_few_items_wait() -> None:
    read, closed = [], threading.Event()

    def source() -> Iterator[int]:
        try:
            for number in range(1000):
                read.append(number)
                yield number
        finally:
            closed.set()

    with ahead(source()) as items:
        assert next(items) == 0
    assert closed.is_set()
    assert len(read) <= ITEMS + 3
    assert not [thread for thread in threading.enumerate() if "driftline-replay-ahead" in thread.name]
