"""Kills and pauses at any moment do not show: the outputs are those of the core over the recorded log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.records import OutputId

pytestmark = pytest.mark.kafka
PARTITIONS = 2
RATE = 500
"""Records a second."""
LEAD = 2_000
"""Records by partition that may wait for a worker, so that a slow machine is not buried."""


class Traffic:
    """Writes numbered records to all partitions, evenly, until stopped."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._producer = KafkaProducer(acks="all", **kafka_python(kafka))
        self._topic = kafka.topics["telemetry"]
        self._stop = threading.Event()
        self.written = 0
        self.seen = 0
        """Input offset that the outputs have come to."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.is_set():
            allowed = min((time.monotonic() - begin) * RATE, (self.seen + LEAD) * PARTITIONS)
            while self.written < allowed:
                value = b"k%d:%d" % (self.written % 7, self.written)
                self._producer.send(self._topic, value, partition=self.written % PARTITIONS)
                self.written += 1
            self._stop.wait(0.01)
        self._producer.flush()
        self._producer.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def topics(kafka: Any) -> tuple[KafkaSettings, str]:
    settings = kafka.settings(partitions=PARTITIONS)
    return settings, ensure_topics(settings)[settings.topics["telemetry"]]


@pytest.fixture
def traffic(topics: tuple[KafkaSettings, str]) -> Iterator[Traffic]:
    running = Traffic(topics[0])
    yield running
    running.stop()


@pytest.fixture
def check(
    topics: tuple[KafkaSettings, str],
    toy: ModuleType,
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
) -> Callable[[int], dict[str, int]]:
    """Compares outputs with the oracle up to the offset that each partition must have reached."""

    def compare(at_least: int) -> dict[str, int]:
        settings, uuid = topics
        total = repeats = 0
        for partition in range(PARTITIONS):
            core = toy.ToyCore()
            log = as_records(read_all(settings, "telemetry", partition))
            wanted = {o.id: o.value for o in core.step(core.fresh(uuid, partition), log)}
            mark = OutputId("", -1, -1, -1)
            kept: dict[OutputId, bytes] = {}
            for record in read_all(settings, "windows", partition):
                this = OutputId.parse(json.loads(record.value)["id"])
                assert record.value == wanted[this], f"{this} differs from the oracle"
                if this[2:] > mark[2:]:  # what a reader with a high-water mark keeps
                    kept[this], mark = record.value, this
                else:
                    repeats += 1
            missing = [this for this in wanted if this.offset <= mark.offset and this not in kept]
            assert not missing, f"partition {partition}: {len(missing)} missing, first {missing[:3]}"
            assert len(kept) >= at_least, f"partition {partition} stopped at {mark}"
            total += len(kept)
        return {"outputs": total, "repeats": repeats}

    return compare


class Outputs:
    """Follows the outputs, to wait until every partition's have come to an input offset."""

    def __init__(self, kafka: KafkaSettings, traffic: Traffic) -> None:
        self._traffic = traffic
        self._consumer = KafkaConsumer(enable_auto_commit=False, **kafka_python(kafka))
        at = [TopicPartition(kafka.topics["windows"], partition) for partition in range(PARTITIONS)]
        self._consumer.assign(at)
        self._consumer.seek_to_beginning(*at)
        self.reached = dict.fromkeys(range(PARTITIONS), -1)

    def wait_for(self, offset: int, what: str) -> None:
        self.wait_until(lambda: min(self.reached.values()) >= offset, f"{what} ({offset})")

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 240) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"not within {timeout_s} s: {what}; outputs at {self.reached}"
            self.poll(300)

    def poll(self, timeout_ms: int) -> None:
        for at, batch in self._consumer.poll(timeout_ms).items():
            offsets = [OutputId.parse(json.loads(record.value)["id"]).offset for record in batch]
            self.reached[at.partition] = max(self.reached[at.partition], *offsets)
        self._traffic.seen = min(self.reached.values())

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def outputs(topics: tuple[KafkaSettings, str], traffic: Traffic) -> Iterator[Outputs]:
    follower = Outputs(topics[0], traffic)
    yield follower
    follower.close()


def test_kill_9_in_mid_stream(
    topics: tuple[KafkaSettings, str],
    traffic: Traffic,
    check: Callable[[int], dict[str, int]],
    start_worker: Callable[..., Any],
    snapshot_offset: Callable[[KafkaSettings, str, str, int], int],
    outputs: Outputs,
) -> None:
    """Two workers in turn are killed with kill -9 while they work; the third stops in order.

    Killed where a snapshot exists and outputs are sent beyond it, so that the next one has something to go on
    from and something to send again.
    """
    settings, uuid = topics

    def stands_beyond_a_snapshot(worker: Any) -> bool:
        """Whether to kill now; leaves the worker paused then, so that it stays so."""
        worker.pause()
        outputs.poll(100)
        found = [snapshot_offset(settings, "toy", uuid, partition) for partition in range(PARTITIONS)]
        if all(0 <= found[partition] <= outputs.reached[partition] for partition in range(PARTITIONS)):
            return True
        worker.resume()
        return False

    workers = []
    for _kill in range(2):
        started_at = traffic.written // PARTITIONS
        worker = start_worker(settings)
        outputs.wait_for(started_at + 300, "outputs of what it saw written")
        outputs.wait_until(
            lambda worker=worker: stands_beyond_a_snapshot(worker), "outputs beyond a snapshot"
        )
        worker.kill()
        workers.append(worker)
    last = start_worker(settings)
    traffic.stop()
    end = traffic.written // PARTITIONS - 1
    outputs.wait_for(end, f"outputs at {end}")
    assert last.stop() == 0
    told = check(end)
    print("kill -9:", told)
    assert told["repeats"] > 0, "nothing was sent twice: the kills missed"
    for later in (workers[1], last):
        for partition in range(PARTITIONS):
            assert f"partition {partition}: goes on from the snapshot at" in later.text(), later.text()


def test_a_paused_worker_that_wakes_up_as_a_zombie(
    topics: tuple[KafkaSettings, str],
    traffic: Traffic,
    check: Callable[[int], dict[str, int]],
    start_worker: Callable[..., Any],
    outputs: Outputs,
) -> None:
    """SIGSTOP beyond the session timeout, a second worker takes over, the first one goes on as a zombie."""
    settings, _ = topics
    first = start_worker(settings)
    outputs.wait_for(500, "outputs of the first worker")
    second = start_worker(settings)
    outputs.wait_until(lambda: "assigned here: [" in second.text(), "partitions of the second worker")
    first.pause()
    paused_at = traffic.written // PARTITIONS
    outputs.wait_for(paused_at + 400, "the second worker has all partitions")
    first.resume()
    resumed_at = traffic.written // PARTITIONS
    outputs.wait_for(resumed_at + 400, "both work again")
    second.kill()
    killed_at = traffic.written // PARTITIONS
    outputs.wait_for(killed_at + 200, "the first has all partitions again")
    traffic.stop()
    end = traffic.written // PARTITIONS - 1
    outputs.wait_for(end, f"outputs at {end}")
    assert first.stop() == 0
    print("zombie:", check(end))
