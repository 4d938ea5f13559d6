"""Workers that are stopped while others take over, and go on as zombies: their outputs change nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline import events, frames, window_rows
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.records import Output, OutputId
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline
from driftline.streams.scheduler import Scheduler

pytestmark = pytest.mark.kafka
RUN = "run-a"
SUITE = events.SuiteRef(name="sums", target="suites:sums")
METRICS = ["loss", "grad_norm"]


class Training:
    """A run of one rank and an evaluator that answers nothing, written until stopped: 20 frames a second."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._producer = KafkaProducer(acks="all", compression_type="lz4", **kafka_python(settings))
        self._settings = settings
        self._stop = threading.Event()
        self.turns = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _send(self, topic: Any, value: bytes) -> None:
        self._producer.send(self._settings.topics[topic], value, key=RUN.encode(), partition=0)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            now_us = time.time_ns() // 1000
            rng = np.random.default_rng(self.turns)
            self._send(
                "telemetry",
                frames.encode(
                    frames.Frame(
                        run=RUN,
                        process="p",
                        rank=0,
                        seq=self.turns,
                        names=METRICS,
                        metric=np.tile(np.arange(2, dtype=np.int16), 5),
                        step=np.repeat(np.arange(self.turns * 5, self.turns * 5 + 5, dtype=np.int64), 2),
                        time_us=np.full(10, now_us),
                        value=rng.normal(2.0, 0.3, 10),
                        weight=np.ones(10),
                    )
                ),
            )
            if self.turns % 5 == 0:
                self._evaluation(self.turns // 5)
            self.turns += 1
        self._producer.flush()
        self._producer.close()

    def _evaluation(self, number: int) -> None:
        checkpoint = events.Checkpoint(digest=f"d{number}", uri=f"/c/{number}", step=number)
        asked = events.EvalRequested(
            id=f"by hand {number}",
            request=f"r{number}",
            run=RUN,
            attempt=0,
            suite=SUITE,
            checkpoint=checkpoint,
            reason="steps",
            time_us=0,
        )
        self._send("evals", events.encode(asked))
        for at in range(3):
            here = events.EvaluatorPresent(evaluator=f"e{number - at}", time_us=0)
            self._send("evals", events.encode(here))
        outcome = events.EvalOutcome(status="done")
        late = events.EvalResult(
            evaluator="e", lease=f"r{number - 9}.1.1", request=f"r{number - 9}", time_us=0, outcome=outcome
        )
        self._send("evals", events.encode(late))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def settings(kafka: Any) -> KafkaSettings:
    found: KafkaSettings = kafka.settings(partitions=1)
    return found


@pytest.fixture
def training(settings: KafkaSettings) -> Iterator[Training]:
    ensure_topics(settings)
    running = Training(settings)
    yield running
    running.stop()


class Tail:
    """Follows an output topic: the input offset that it has come to."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._consumer = KafkaConsumer(enable_auto_commit=False, **kafka_python(settings))
        at = TopicPartition(settings.prefix + topic, 0)
        self._consumer.assign([at])
        self._consumer.seek_to_beginning(at)
        self._reached = -1

    def reached(self) -> int:
        for batch in self._consumer.poll(300).values():
            self._reached = max(self._reached, *(id_of(self._topic, r.value).offset for r in batch))
        return self._reached


def id_of(topic: str, value: bytes) -> OutputId:
    if topic == "windows":
        return window_rows.decode(value)[0]
    return OutputId.parse(events.decode(value).id)  # type: ignore[union-attr]


def answers(records: list[Any]) -> list[Any]:
    """What the scheduler put into the log of a run."""
    return [r for r in records if b'"eval_accepted"' in r.value[:64]]


def kept(topic: str, found: list[Any], wanted: list[Output]) -> tuple[list[bytes], int]:
    """What a reader with a high-water mark keeps, and how many it drops; no id may have another content."""
    contents = {output.id: output.value for output in wanted if output.topic == topic}
    values: list[bytes] = []
    mark = (-1, -1)
    for record in found:
        this = id_of(topic, record.value)
        assert record.value == contents[this], f"{topic} {this} was sent with another content"
        if (this.offset, this.ordinal) > mark:
            values.append(record.value)
            mark = (this.offset, this.ordinal)
    return values, len(found) - len(values)


def test_zombies_of_the_pipeline_and_of_the_scheduler_contradict_nothing(
    settings: KafkaSettings,
    training: Training,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    """SIGSTOP beyond the session: a second worker of each kind takes over; SIGCONT: both go on for a while.

    Windows, alerts, leases and accepted results, whoever of the two sent them, are those of the log.
    """
    uuids = ensure_topics(settings)

    def start(role: str, name: str) -> Any:
        return start_worker(
            settings,
            [sys.executable, "-m", "driftline.streams.worker", role],
            DRIFTLINE_KAFKA__PARTITIONS="1",
            DRIFTLINE_STREAMS__SNAPSHOT="2s",
            DRIFTLINE_STREAMS__SESSION_TIMEOUT="6s",
            DRIFTLINE_STREAMS__STATE_DIR=str(tmp_path / name),
        )

    tails = {topic: Tail(settings, topic) for topic in ("windows", "assignments")}

    def reached(topic: str) -> int:
        return tails[topic].reached()

    first = [start("streams", "s1"), start("scheduler", "d1")]
    for topic in ("windows", "assignments"):
        until(lambda topic=topic: reached(topic) >= 100, what=f"{topic} of the first workers")
    second = [start("streams", "s2"), start("scheduler", "d2")]
    for worker in second:
        until(lambda worker=worker: "assigned here" in worker.text(), what="the second workers stand by")
    for worker in first:
        worker.pause()
    stopped_at = {topic: reached(topic) for topic in ("windows", "assignments")}
    for topic, offset in stopped_at.items():
        until(lambda t=topic, o=offset: reached(t) >= o + 100, what=f"{topic} of the second workers")
    for worker in first:
        worker.resume()
    for _ in range(2):  # zombies finish what they have read, and join again
        turn = training.turns
        until(lambda turn=turn: training.turns >= turn + 60, what="both work")
    training.stop()
    ends = {topic: len(read_all(settings, topic, 0)) for topic in ("telemetry", "evals")}
    until(lambda: reached("windows") >= ends["telemetry"] - 20, what="windows of all")
    until(lambda: reached("assignments") >= ends["evals"] - 30, what="leases of all")
    assert [worker.stop() for worker in (*first, *second)] == [0, 0, 0, 0]

    again = {}
    for source, core, topics in (
        ("telemetry", Pipeline(), ("windows", "facts", "alerts")),
        ("evals", Scheduler(), ("assignments", "telemetry")),
    ):
        log = as_records(read_all(settings, source, 0))
        uuid = uuids[settings.topics[source]]  # type: ignore[index]
        state = beginning(core, uuid, 0, log)
        wanted = core.step(state, log)  # type: ignore[arg-type]
        for topic in topics:
            found = read_all(settings, topic, 0)
            found = answers(found) if topic == "telemetry" else found
            values, again[topic] = kept(topic, found, wanted)
            due = [output.value for output in wanted if output.topic == topic]
            assert values == due[: len(values)], f"{topic} differ from the log's"
            assert values or topic == "alerts"
            assert len(due) - len(values) <= 30  # written while the workers were told to stop
    print("sent again:", again)
