"""A fake evaluator: it takes leases, reports progress, and answers with made-up items and results.

It has the manners of the real one (``evaluator.link``): no consumer group, presence and progress while it
works, items before the result, and nothing but the result counts. It stands in for model, data and device
only, and its mishaps are those of a real one: it is killed in mid-run, says nothing until its lease is lost
and answers then, runs out of memory, sends its result twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftline import events, records
from driftline.errors import BadRecord
from driftline.topics import partition_of

from .broker import OutOfRange, Stored
from .clients import Port

if TYPE_CHECKING:
    from .world import World

ANNOUNCE_US = 1_000_000
POLL_US = 200_000
ITEMS = 6


class FakeEvaluator:
    """One process; its successor starts when it was killed."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self.name = world.next_name(f"evaluator-{number}.")
        self.life = world.life(self.name)
        self._clock = world.clock_of(self.life)
        self._port = Port(world, self.life)
        self._topics = world.settings.kafka.topics
        self._chance = world.chance(self.name)
        self._position = world.broker.log(self._topics["assignments"], 0).end
        self._leases: list[events.Lease] = []
        self._work: events.Lease | None = None
        self._until_us = self._spoke_us = 0
        self._silent_until_us = 0
        self.life.mourners.append(
            lambda: world.soon(self._chance.randrange(300_000, 3_000_000), self._successor)
        )
        self.life.later(self._chance.randrange(500_000), self._turn)

    def _successor(self) -> None:
        if not self._world.ending:
            self._world.evaluators.append(FakeEvaluator(self._world, self._number))

    @property
    def idle(self) -> bool:
        return self.life.dead or (self._work is None and not self._leases)

    def _turn(self) -> None:
        now_us = self._world.loop.now_us
        if not self._world.broker.away:
            self._read()
            if self._work is None and self._leases:
                self._begin(self._leases.pop(0))
            elif self._work is not None and now_us >= self._until_us:
                self._finish(self._work)
            if now_us >= max(self._spoke_us + ANNOUNCE_US, self._silent_until_us):
                self._announce()
            if self._work is not None:
                self._mishap(now_us)
        self.life.later(POLL_US, self._turn)

    def _mishap(self, now_us: int) -> None:
        faults = self._world.faults
        if faults.hit("evaluator lost", self.name):
            self.life.kill()
            self.life.check()
        if faults.hit("evaluator stalled", self.name):
            stall_us = self._world.settings.scheduler.lease_us + self._chance.randrange(1_000_000, 4_000_000)
            self._silent_until_us = self._until_us = now_us + stall_us

    def _read(self) -> None:
        log = self._world.broker.log(self._topics["assignments"], 0)
        try:
            found = log.read(self._position, 100)
        except OutOfRange:
            found = log.read(log.start, 100)
        for record in found:
            self._position = record.offset + 1
            try:
                event = records.decode(record.value)
            except BadRecord:
                continue
            if isinstance(event, events.Lease) and event.evaluator == self.name:
                if event.lease not in {lease.lease for lease in self._leases}:
                    self._leases.append(event)
            elif isinstance(event, events.RequestClosed):
                self._leases = [lease for lease in self._leases if lease.request != event.request]

    def _begin(self, lease: events.Lease) -> None:
        self._work = lease
        self._until_us = self._world.loop.now_us + self._chance.randrange(500_000, 5_000_000)
        self._announce()

    def _announce(self) -> None:
        self._spoke_us = self._world.loop.now_us
        work = self._work
        now_us = self._clock.now_us()
        self._say(
            events.EvaluatorPresent(
                evaluator=self.name, time_us=now_us, lease=None if work is None else work.lease
            )
        )
        if work is not None:
            self._say(
                events.EvalProgress(
                    evaluator=self.name,
                    lease=work.lease,
                    request=work.request,
                    time_us=now_us,
                    done=1,
                    total=ITEMS,
                )
            )

    def _finish(self, lease: events.Lease) -> None:
        """Items, then the result, then the next lease."""
        faults = self._world.faults
        if faults.hit("out of memory", self.name):
            self._result(lease, events.EvalOutcome(status="failed", reason="out of memory"))
        else:
            twice = 1 + faults.hit("result twice", self.name)
            for _ in range(twice):
                self._items(lease)
            value = self._chance.random()
            metrics = [events.Metric(name="accuracy", value=value, count=ITEMS)]
            outcome = events.EvalOutcome(status="done", metrics=metrics, items=ITEMS)
            for _ in range(twice):
                self._result(lease, outcome)
        self._work = None

    def _items(self, lease: events.Lease) -> None:
        partition = partition_of(lease.run, self._world.broker.partitions)
        for first in range(0, ITEMS, 3):
            items = [
                events.Item(item=f"i{at}", status="correct", score=1.0) for at in range(first, first + 3)
            ]
            event = events.EvalItems(
                run=lease.run, request=lease.request, lease=lease.lease, first=first, items=items
            )
            topic = self._topics["eval-items"]
            self._port.send(topic, partition, lease.run.encode(), events.encode(event))

    def _result(self, lease: events.Lease, outcome: events.EvalOutcome) -> None:
        self._say(
            events.EvalResult(
                evaluator=self.name,
                lease=lease.lease,
                request=lease.request,
                time_us=self._clock.now_us(),
                outcome=outcome,
            )
        )

    def _say(self, event: events.Event) -> None:
        self._port.send(self._topics["evals"], 0, None, events.encode(event), _ignore)


def _ignore(_record: Stored | None) -> None: ...
