"""Random evaluators that die, stall, fail and answer twice: one answer each, none forgotten, same bytes."""

from __future__ import annotations

import collections
import random

import pytest

from driftline import events, records
from driftline.streams.scheduler import Scheduler

QUIET_S = 600


class Worker:
    """An evaluator as it may behave: it reads assignments late, stalls, dies, fails, answers twice."""

    def __init__(self, name, dice):
        self.name = name
        self.dice = dice
        self.lease = None
        self.given = []
        self.left_s = 0
        self.stalled_s = 0
        self.dead = False

    def take(self, lease):
        """An assignment for it arrives; a dead one never reads it."""
        if not self.dead:
            self.given.append(lease)

    def second(self, desk, calm):
        """One second of its life."""
        if self.dead:
            if self.dice.random() < 0.02 or calm:
                self.dead, self.lease, self.given = False, None, []
            return []
        if self.stalled_s:
            self.stalled_s = 0 if calm else self.stalled_s - 1
            return []
        luck = self.dice.random()
        if not calm and luck < 0.01:
            self.dead = True
            return desk.gone(self.name) if luck < 0.003 else []
        if not calm and luck < 0.03:
            self.stalled_s = self.dice.randint(5, 120)
            return []
        if self.lease is None and self.given:
            self.lease, self.left_s = self.given.pop(0), self.dice.randint(1, 40)
        said = desk.present(self.name, lease=self.lease.lease if self.lease else None)
        if self.lease is not None:
            self.left_s -= 1
            said += desk.progress(self.lease)
            if self.left_s <= 0:
                lease, self.lease = self.lease, None
                status = "done" if calm or luck > 0.3 else self.dice.choice(["failed", "incomplete", "gone"])
                said += desk.result(lease, status)
                if luck > 0.9:
                    said += desk.result(lease, "done")
        return said


def live(desk, seed):
    """A life of requests and evaluators; at the end all evaluators are well for a while."""
    dice = random.Random(seed)
    one = desk(lease_us=30_000_000, present_us=10_000_000, starve_us=100_000_000)
    workers = [Worker(f"e{number}", dice) for number in range(3)]
    asked = set()
    said, read = [], 0
    for second in range(300 + QUIET_S):
        calm = second >= 300
        if not calm and dice.random() < 0.2:
            request, run = f"r{dice.randrange(30)}", f"run{dice.randrange(3)}"
            asked.add((run, request))
            said += one.ask(request, run)
        for worker in workers:
            said += worker.second(one, calm)
        said += one.hole(300) if not calm and dice.random() < 0.005 else one.wait(1)
        for output in said[read:]:
            if isinstance(output.event, events.Lease):
                next(worker for worker in workers if worker.name == output.event.evaluator).take(output.event)
        read = len(said)
    return one, asked, said


@pytest.mark.parametrize("seed", range(8))
def test_every_run_gets_one_answer_per_request_and_none_is_forgotten(desk, seed):
    one, asked, said = live(desk, seed)
    answers = collections.Counter(
        (output.run, output.event.request) for output in said if isinstance(output.event, events.EvalAccepted)
    )
    assert set(answers.values()) == {1}
    assert set(answers) == asked
    assert one.state.requests == {}
    leases = [output.event.lease for output in said if isinstance(output.event, events.Lease)]
    assert len(leases) == len(set(leases))
    ids = [output.id for output in one.outputs]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("seed", range(8))
def test_at_most_one_complete_result_per_request_is_accepted(desk, seed):
    _, _, said = live(desk, seed)
    results = collections.defaultdict(set)
    for output in said:
        if isinstance(output.event, events.EvalAccepted) and output.event.outcome.status == "done":
            results[output.event.request].add((output.event.lease, output.event.evaluator))
    assert all(len(one) == 1 for one in results.values())


@pytest.mark.parametrize("seed", range(4))
def test_any_cut_into_batches_with_dumps_between_gives_the_same_bytes(desk, seed):
    one, _, _ = live(desk, seed)
    dice = random.Random(-seed)
    core = Scheduler()
    state = core.fresh("topic", 0)
    outputs = []
    at = 0
    while at < len(one.log):
        size = dice.choice([1, 2, 7, 100, 500])
        outputs += core.step(state, one.log[at : at + size])
        at += size
        state = core.load(core.dump(state))
    assert outputs == one.outputs
    assert core.dump(state) == core.dump(one.state)
    assert all(records.decode(output.value) for output in outputs)


def test_the_state_of_a_long_life_stays_small(desk, lease_of):
    one = desk()
    one.present("e1")
    sizes = []
    for number in range(2_500):
        one.result(lease_of(one.ask(f"r{number}", id=f"t/0/{number}/0")))
        if number in (1_200, 2_499):
            sizes.append(len(one.core.dump(one.state)))
    assert sizes[1] <= sizes[0] * 1.05
