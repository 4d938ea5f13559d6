"""Case 29 with the real scheduler and evaluators, as processes on a real Kafka: each checkpoint has exactly
one accepted result, whoever is killed, paused or late."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from safetensors.numpy import save_file

from driftline import events
from driftline.admin import ensure_topics
from driftline.config import request_id
from driftline.connection import KafkaSettings, kafka_python
from driftline.topics import partition_of

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.timeout(1_200)]
RUN = "case-29"
SUITE = events.SuiteRef(name="gated", target="gated:suite")
SETTINGS = """
kafka: {{bootstrap: "{bootstrap}", prefix: "{prefix}", partitions: 2}}
scheduler: {{lease: 5s, present: 5s, retries: 100}}
streams: {{session_timeout: 6s}}
evaluator: {{device: cpu, threads: 1, announce: 300ms, wait: 60s, poll: 100ms, nice: 0}}
evaluation: {{suites: [{{name: gated, target: "gated:suite"}}]}}
"""
MODULE = """
import os, pathlib, time
from driftline.evaluator.suites import ScoringSuite, Text
from suites import LETTERS, Bigrams

HERE = pathlib.Path({here!r})

def load(checkpoint, device):
    name = checkpoint.path.name
    (HERE / f"loading-{{name}}-{{os.getpid()}}").touch()
    while not any((HERE / f"go-{{name}}-{{who}}").exists() for who in (os.getpid(), "all")):
        time.sleep(0.02)
    return Bigrams(checkpoint.state_dict(device)["scores"]).to(device)

def encode(text):
    return [LETTERS.index(letter) for letter in text]

suite = ScoringSuite(load=load, items=[Text("t", "abc")], encode=encode)
"""


class Bench:
    """A scheduler and evaluators as processes, a hand at ``evals``, and all that they say."""

    def __init__(self, world: ModuleType, kafka: KafkaSettings, folder: Path) -> None:
        self.folder, self._world = folder, world
        self._topics, self._kafka = kafka.topics, kafka
        (folder / "driftline.yaml").write_text(
            SETTINGS.format(bootstrap=kafka.bootstrap, prefix=kafka.prefix)
        )
        (folder / "gated.py").write_text(MODULE.format(here=str(folder)))
        ensure_topics(kafka)
        self._producer = KafkaProducer(allow_auto_create_topics=False, **kafka_python(kafka))
        self._consumer = KafkaConsumer(group_id=None, **kafka_python(kafka))
        of_run = TopicPartition(self._topics["telemetry"], partition_of(RUN, kafka.partitions))
        tps = [of_run, *(TopicPartition(self._topics[name], 0) for name in ("evals", "assignments"))]
        self._consumer.assign(tps)
        self._consumer.seek_to_beginning(*tps)
        self._said: list[Any] = []
        self._actors: list[Any] = []
        self._asked = 0

    def start(self, role: str, number: int) -> Any:
        actor = self._world.Actor(role, number, self.folder)
        self._actors.append(actor)
        actor.start()
        return actor

    def said(self, kind: type[Any]) -> list[Any]:
        """All events of a kind so far."""
        for some in self._consumer.poll(timeout_ms=50).values():
            self._said += [events.decode(record.value) for record in some]
        return [event for event in self._said if isinstance(event, kind)]

    def put(self, event: events.Event) -> None:
        self._producer.send(self._topics["evals"], events.encode(event), partition=0).get(timeout=120)

    def ask(self, name: str) -> str:
        """A checkpoint and the request to evaluate it."""
        folder = self.folder / name
        folder.mkdir()
        scores = np.random.default_rng(self._asked).normal(size=(27, 27)).astype(np.float32)
        save_file({"scores": scores}, folder / "model.safetensors")
        checkpoint = events.Checkpoint(digest=f"digest-{name}", uri=str(folder))
        request = request_id(checkpoint, SUITE)
        self.put(
            events.EvalRequested(
                id=f"hand/0/{self._asked}/0",
                request=request,
                run=RUN,
                attempt=0,
                suite=SUITE,
                checkpoint=checkpoint,
                reason="asked",
                time_us=0,
            )
        )
        self._asked += 1
        return request

    def go(self, name: str, who: object = "all") -> None:
        """Lets the evaluation of a checkpoint go on, in one process or in all."""
        (self.folder / f"go-{name}-{who}").touch()

    def at_work(self, request: str, name: str, *, but: Any = None) -> tuple[Any, events.Lease]:
        """The evaluator that has the newest lease of a request, once it is in the middle of it."""

        def found() -> tuple[Any, events.Lease] | None:
            leases = [lease for lease in self.said(events.Lease) if lease.request == request]
            for actor in self._actors:
                if leases and actor is not but and actor.evaluator() == leases[-1].evaluator:
                    loading = self.folder / f"loading-{name}-{actor.running.pid}"
                    return (actor, leases[-1]) if loading.exists() else None
            return None

        got: tuple[Any, events.Lease] = until(found, f"somebody works on {name}")
        return got

    def accepted(self, request: str) -> list[events.EvalAccepted]:
        return [event for event in self.said(events.EvalAccepted) if event.request == request]

    def close(self) -> None:
        for actor in self._actors:
            if actor.process.poll() is None:
                actor.kill()
        self._producer.close()
        self._consumer.close()


def until(condition: Callable[[], Any], what: str, *, timeout_s: float = 240.0) -> Any:
    end = time.monotonic() + timeout_s
    while not (got := condition()):
        assert time.monotonic() < end, f"did not happen in time: {what}"
        time.sleep(0.05)
    return got


@pytest.fixture
def bench(kafka: Any, chaos: ModuleType, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(chaos.world, kafka.settings(partitions=2), tmp_path)
    yield made
    made.close()


def test_two_evaluators_one_killed_one_late_and_each_checkpoint_has_one_result(bench: Bench) -> None:
    """B is not held up by A; A's evaluator is killed in the middle, the next is paused until its lease is
    lost; it is woken and first with a result, which counts; later ones, and one sent again, do not."""
    bench.start("scheduler", 0)
    first, second = bench.start("evaluator", 0), bench.start("evaluator", 1)
    until(lambda: len({e.evaluator for e in bench.said(events.EvaluatorPresent)}) == 2, "both are present")
    a, b = bench.ask("a"), bench.ask("b")
    bench.go("b")
    until(lambda: bench.accepted(b), "B is done")
    killed, _ = bench.at_work(a, "a")
    assert not bench.accepted(a), "B was not held up by A"
    killed.kill()

    late, lost = bench.at_work(a, "a", but=killed)
    assert late in (first, second)
    third = bench.start("evaluator", 2)
    until(lambda: third.evaluator() in {e.evaluator for e in bench.said(events.EvaluatorPresent)}, "a third")
    late.pause()
    at_work, lease = bench.at_work(a, "a", but=late)
    assert at_work is third
    assert lease.lease != lost.lease
    late.resume()
    bench.go("a", late.running.pid)
    (result,) = until(lambda: bench.accepted(a), "A is done")
    assert (result.lease, result.evaluator) == (lost.lease, late.evaluator()), "the first result counts"

    bench.go("a")
    raw = next(event for event in bench.said(events.EvalResult) if event.lease == lost.lease)
    bench.put(raw)
    c = bench.ask("c")
    bench.go("c")
    until(lambda: bench.accepted(c), "C is done")  # so the scheduler has seen all that came before
    done = [[event.outcome.status for event in bench.accepted(request)] for request in (a, b, c)]
    assert done == [["done"]] * 3
    closed = sorted(event.request for event in bench.said(events.RequestClosed))
    assert closed == sorted([a, b, c])
