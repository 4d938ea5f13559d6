"""Workers share runs by partition: more of them, or fewer, move partitions and change no result."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.topics import partition_of

pytestmark = [pytest.mark.long, pytest.mark.kafka]
PARTITIONS = 4
RUNS = [f"run-{number}" for number in range(8)]
assert {partition_of(run, PARTITIONS) for run in RUNS} == set(range(PARTITIONS))
ASSIGNED = re.compile(r"assigned here: (none|\[.*\])")


def held(worker: Any) -> int:
    """How many partitions a worker was last given."""
    found = ASSIGNED.findall(worker.text())
    return 0 if not found or found[-1] == "none" else found[-1].count(",") + 1


class Trainings:
    """Eight runs that log twenty steps a turn until stopped, while the log is not too far ahead."""

    def __init__(self, kafka: KafkaSettings, training: ModuleType) -> None:
        self._producer = KafkaProducer(acks="all", **kafka_python(kafka))
        self._topic, self._training = kafka.topics["telemetry"], training
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        steps = 0
        for run in RUNS:
            self._send(run, self._training.starts_of(run))
        while not self._stop.is_set():
            for run in RUNS:
                self._send(run, self._training.frames_of(run, range(steps, steps + 20)))
            steps += 20
            self._stop.wait(0.5)
        self._producer.close()

    def _send(self, run: str, values: list[bytes]) -> None:
        for value in values:
            self._producer.send(self._topic, value, key=run.encode(), partition=partition_of(run, PARTITIONS))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_one_two_and_four_workers_give_the_same_windows(
    kafka: Any,
    training: ModuleType,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    snapshot_offset: Callable[[KafkaSettings, str, str, int], int],
    until: Callable[..., None],
) -> None:
    """While eight runs log: one worker has all, a second takes half within seconds, four have one partition
    each, two of them leave again. Every output is that of the pure pipeline over the recorded log."""
    settings: KafkaSettings = kafka.settings(partitions=PARTITIONS)
    uuid = ensure_topics(settings)[settings.topics["telemetry"]]

    consumer = KafkaConsumer(**kafka_python(settings))

    def ends_of(topic: str) -> list[int]:
        """Where each partition ends."""
        at = [TopicPartition(settings.topics[topic], partition) for partition in range(PARTITIONS)]
        ends = consumer.end_offsets(at)
        return [int(ends[one]) for one in at]

    def start(name: str) -> Any:
        return start_worker(
            settings,
            [sys.executable, "-m", "driftline.streams.worker", "streams"],
            DRIFTLINE_KAFKA__PARTITIONS=str(PARTITIONS),
            DRIFTLINE_STREAMS__SNAPSHOT="2s",
            DRIFTLINE_STREAMS__SESSION_TIMEOUT="6s",
            DRIFTLINE_STREAMS__STATE_DIR=str(tmp_path / name),
        )

    def snapshots() -> list[int]:
        return [snapshot_offset(settings, "streams", uuid, partition) for partition in range(PARTITIONS)]

    def shared(workers: list[Any], what: str) -> float:
        """Seconds until the partitions are spread evenly and each has come further than where it was."""
        begin = time.monotonic()
        until(lambda: all(held(w) == PARTITIONS // len(workers) for w in workers), what=what)
        moved = time.monotonic() - begin
        before = ends_of("windows")
        until(lambda: all(map(int.__gt__, ends_of("windows"), before)), what=f"{what}: windows of all")
        return moved

    trainings = Trainings(settings, training)
    workers = [start("a")]
    seconds = {1: shared(workers, "one has all")}
    workers.append(start("b"))
    seconds[2] = shared(workers, "two share")
    workers += [start("c"), start("d")]
    seconds[4] = shared(workers, "four share")
    assert [worker.stop() for worker in workers[:2]] == [0, 0]
    shared(workers[2:], "two are left")
    trainings.stop()
    ends = ends_of("telemetry")
    until(lambda: all(map(int.__ge__, snapshots(), ends)), what="all is processed")
    assert [worker.stop() for worker in workers[2:]] == [0, 0]
    consumer.close()
    windows = 0
    for partition, end in enumerate(snapshots()):
        log = [r for r in as_records(read_all(settings, "telemetry", partition)) if r.offset < end]
        windows += training.compare(
            uuid, partition, log, lambda topic, partition=partition: read_all(settings, topic, partition)
        ).windows
    print("seconds until shared:", {n: round(s, 1) for n, s in seconds.items()}, "windows:", windows)
    assert windows > 20
