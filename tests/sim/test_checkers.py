"""What the simulation's checks expect follows from the recorded log alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from simulation.broker import Recorded, Stored
from simulation.checks_of_outputs import naive, outputs_are_the_oracles, windows_agree
from simulation.faults import FAULTS
from simulation.findings import Findings
from simulation.world import World

from driftline import config, events


@pytest.fixture
def world() -> Iterator[World]:
    """One that is not played: only what is recorded in it counts."""
    made = World(1, dict.fromkeys(FAULTS, 0.0))
    yield made
    made.loop.close()


def _record(world: World, *, configured: bool) -> Recorded:
    """Puts a log of telemetry there, and says where."""
    body = config.encode(world.settings.pipeline)
    own = events.ConfigChanged(worker="w", time_us=0, digest=config.digest(body), body=msgspec.Raw(body))
    log = naive().make_log(3, ranks=1, seconds=12)
    values = [(record.time_ms, record.value) for record in log]
    if configured:
        middle = len(log) // 2
        values.insert(middle, (log[middle].time_ms, events.encode(own)))
    place = next(place for place in world.broker.recorded if place.topic == "telemetry")
    world.broker.recorded[place] += [Stored(at, ms, None, value) for at, (ms, value) in enumerate(values)]
    return place


@pytest.mark.parametrize("configured", [False, True])
def test_windows_are_judged_by_the_configuration_of_their_log(world: World, configured: bool) -> None:
    """A topic that is deleted before any worker came to it never has one: the defaults hold then."""
    place = _record(world, configured=configured)
    found = Findings(world)
    assert list(windows_agree(found)) == []
    wanted = world.settings.pipeline if configured else config.PipelineConfig()
    judged = found.judged[place.uuid, place.partition]
    spans = {(row["axis"], row["end"] - row["start"]) for row in naive().rows_of(judged.outputs)}
    assert {(spec.axis, spec.size) for spec in wanted.windows if spec.size} <= spans


def test_nobody_works_on_a_log_before_a_configuration_is_in_it(world: World) -> None:
    """Also where what came of it is what the defaults would give."""
    place = _record(world, configured=False)
    topic = world.settings.kafka.topics["windows"]
    outputs = Findings(world).judged[place.uuid, place.partition].outputs
    output = next(output for output in outputs if output.topic == "windows")
    world.broker.append(topic, place.partition, None, output.value, "a worker in a hurry")
    assert "of a log without a configuration" in " ".join(outputs_are_the_oracles(Findings(world)))
