"""Two workers that both believe they own a partition cannot contradict each other, nor what the log says.

Nobody is fenced: what a worker puts out and keeps is a function of the log. Both send the same outputs under
the same ids; a reader with a high-water mark keeps each once, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from driftline import config, events, records, window_rows
from driftline.records import Output, OutputId, Record
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline
from driftline.streams.scheduler import Scheduler
from driftline.streams.shell import snapshots

PIPELINE = config.PipelineConfig(allowed_lateness_us=1_000_000, idle_us=8_000_000)
OUTPUTS = ("windows", "facts", "alerts", "evals", "assignments", "telemetry")


def id_of(topic: str, value: bytes) -> OutputId:
    if topic == "windows":
        return window_rows.decode(value)[0]
    return OutputId.parse(events.decode(value).id)  # type: ignore[union-attr]


def requests(chance: random.Random, seconds: int) -> list[tuple[int, bytes]]:
    """Time and bytes of what goes on ``evals`` but for ticks: evaluators that work, stall, fail."""
    suite = events.SuiteRef(name="sums", target="suites:sums")
    found: list[tuple[int, events.Event]] = []
    for number in range(seconds // 2):
        checkpoint = events.Checkpoint(digest=f"d{number}", uri=f"/c/{number}")
        asked = events.EvalRequested(
            id=f"telemetry/0/{number}/0",
            request=f"r{number}",
            run="run",
            attempt=0,
            suite=suite,
            checkpoint=checkpoint,
            reason="steps",
            time_us=0,
        )
        found.append((number * 2_000_000, asked))
    for second in range(seconds):
        for name in ("e1", "e2", "e3"):
            if chance.random() < 0.8:
                found.append((second * 1_000_000, events.EvaluatorPresent(evaluator=name, time_us=0)))
    for number in range(seconds // 2):
        lease = f"r{number}.1.{number}"
        outcome = events.EvalOutcome(status=chance.choice(["done", "failed"]))
        result = events.EvalResult(
            evaluator="e1", lease=lease, request=f"r{number}", time_us=0, outcome=outcome
        )
        found.append((chance.randrange(seconds) * 1_000_000, result))
    return [(at, events.encode(event)) for at, event in sorted(found, key=lambda pair: pair[0])]


def oracle(core: Any, memory: ModuleType, log: Sequence[Any]) -> list[Output]:
    told = [Record(0, entry.offset, entry.timestamp, entry.value) for entry in log]
    state = beginning(core, memory.UUID, 0, told)
    outputs: list[Output] = core.step(state, told)
    return outputs


async def both_own_it(
    memory: ModuleType, make: Callable[[], Any], body: bytes, input_: list[tuple[int, bytes]], seed: int
) -> Any:
    """Two workers on one partition from beginning to end; each is stopped for a while, one is killed."""
    broker = memory.MemoryBroker()
    chance = random.Random(seed)
    source = f"m.{make().source}"
    workers = [memory.MemoryWorker(make(), broker, name, seed, body) for name in ("a", "b")]
    for worker in workers:
        worker.assignments.assigned({0})

    async def produce() -> None:
        loop = asyncio.get_running_loop()
        for at_us, value in input_:
            await asyncio.sleep(max(0.0, at_us / 1e6 - loop.time()))
            broker.append(source, 0, b"run", value)

    producing = asyncio.create_task(produce())
    while not producing.done():
        await asyncio.sleep(chance.uniform(0.5, 4))
        at = chance.randrange(2)
        luck = chance.random()
        if luck < 0.2:  # kill -9, and another process takes its place while the other never let go
            workers[at].kill()
            name = f"{workers[at].name}'"
            workers[at] = memory.MemoryWorker(make(), broker, name, seed, body)
            workers[at].position = chance.randrange(len(broker.log(source, 0)))
            workers[at].assignments.assigned({0})
        elif luck < 0.7:
            workers[at].pause()
            await asyncio.sleep(chance.uniform(1, 15))
            workers[at].resume()
    await asyncio.sleep(40)
    for worker in workers:
        await worker.stop()
        assert worker.errors == []
    return broker


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("what", ["pipeline", "scheduler"])
def test_two_owners_of_a_partition_give_one_set_of_outputs(
    memory: ModuleType, naive: ModuleType, what: str, seed: int
) -> None:
    """Whatever either sends, early, late or again, has the oracle's bytes; together they lack nothing."""
    if what == "pipeline":
        make: Callable[[], Any] = Pipeline
        body = config.encode(PIPELINE)
        log = naive.make_log(seed, ranks=2, seconds=10)
        start = log[0].time_ms
        input_ = [
            ((record.time_ms - start) * 1000, record.value)
            for record in log
            if not isinstance(records.decode(record.value), events.Tick)
        ]
    else:
        make, body = Scheduler, config.encode(config.SchedulerConfig(lease_us=10_000_000))
        input_ = requests(random.Random(seed), 40)
    broker = memory.run(both_own_it(memory, make, body, input_, seed))
    source = f"m.{make().source}"
    wanted = {output.id: output for output in oracle(make(), memory, broker.log(source, 0))}
    sent = 0
    for topic in OUTPUTS:
        if f"m.{topic}" == source:
            continue
        seen = []
        mark: tuple[int, int] = (-1, -1)
        for entry in broker.log(f"m.{topic}", 0):
            this = id_of(topic, entry.value)
            assert entry.value == wanted[this].value, f"{topic} {this}: another content"
            sent += 1
            if (this.offset, this.ordinal) > mark:
                mark = (this.offset, this.ordinal)
                seen.append(this)
        assert seen == [this for this, output in wanted.items() if output.topic == topic]
    assert sent > 1.2 * len(wanted), "they never both worked"
    kept = snapshots.Collected(snapshots.Source("m.app", memory.UUID, 0))
    for entry in broker.log("m.state", 0):
        kept.add(entry.key, entry.value)
    assert {found.writer[0] for found in kept.complete} == {"a", "b"}
    for found in kept.ranked(len(broker.log(source, 0))):
        told = [Record(0, e.offset, e.timestamp, e.value) for e in broker.log(source, 0)]
        state = beginning(make(), memory.UUID, 0, told)
        make().step(state, told[: found.id.offset])
        assert found.data == make().dump(state), f"snapshot {found.id} is not the log's state"
