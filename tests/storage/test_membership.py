"""A sink's place in the group, without a group: for how long its partitions are its own."""

from __future__ import annotations

from driftline.clock import SECOND_US, ManualClock
from driftline.connection import KafkaSettings
from driftline.storage.membership import Membership


class Unheard(Membership):
    """Its thread asks nobody."""

    def _live(self) -> None:
        pass


def test_partitions_count_only_as_long_as_the_group_was_heard_within_a_session() -> None:
    """A sink that was paused for longer reads nothing, since others may have its partitions."""
    clock = ManualClock()
    sink = Unheard(KafkaSettings(), "sink", session_us=6 * SECOND_US, clock=clock)
    assert sink.partitions is None
    sink._assign(frozenset({1, 2}))
    clock.advance(6 * SECOND_US)
    assert sink.partitions == {1, 2}
    clock.advance(1)
    assert sink.partitions is None
    sink._assign(frozenset({2}))
    assert sink.partitions == {2}
    sink.close()
