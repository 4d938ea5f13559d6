"""The simulation's sinks keep what the real ones keep at their outermost edge, which they replace."""

from __future__ import annotations

import asyncio

from simulation.faults import FAULTS
from simulation.sinks import SinkGroup
from simulation.world import World


class _OneSink(World):
    """One sink that stands at the start of an empty topic when that is made again and gets a record."""

    async def play(self) -> None:
        self.sinks = SinkGroup(self, 1)
        await asyncio.sleep(1)
        self.broker.make_again("telemetry")
        self.broker.append(self.settings.kafka.topics["telemetry"], 0, None, b"{", "somebody")
        await asyncio.sleep(20)


def test_a_record_of_a_topic_made_again_is_not_stored_as_one_of_its_predecessor() -> None:
    """Where its offset fits both: a poll goes by the topic's name, as it does with Kafka."""
    world = _OneSink(1, dict.fromkeys(FAULTS, 0.0))
    world.run()
    stored = world.tables.rows("log").select(["topic_uuid", "offset"]).to_pylist()
    now = world.broker.topics[world.settings.kafka.topics["telemetry"]]
    assert stored == [{"topic_uuid": now.uuid, "offset": 0}]
