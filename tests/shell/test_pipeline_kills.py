"""The real pipeline in workers that are killed: what readers keep is what the pure pipeline gives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka import KafkaProducer

from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.topics import partition_of

pytestmark = [pytest.mark.long, pytest.mark.kafka]
PARTITIONS = 2
RUNS = ("run-a", "run-b", "run-4")
assert {0, 1} == {partition_of(run, PARTITIONS) for run in RUNS}


def test_the_pipeline_killed_in_mid_stream(
    kafka: Any,
    training: ModuleType,
    tmp_path: Path,
    start_worker: Callable[..., Any],
    read_all: Callable[..., list[Any]],
    as_records: Callable[..., Any],
    snapshot_offset: Callable[[KafkaSettings, str, str, int], int],
    until: Callable[..., None],
) -> None:
    settings: KafkaSettings = kafka.settings(partitions=PARTITIONS)
    uuid = ensure_topics(settings)[settings.topics["telemetry"]]
    producer = KafkaProducer(acks="all", compression_type="lz4", **kafka_python(settings))

    def write(values: dict[str, list[bytes]]) -> int:
        """The highest offset of what was written."""
        sent = [
            producer.send(
                settings.topics["telemetry"],
                key=run.encode(),
                value=value,
                partition=partition_of(run, PARTITIONS),
            )
            for run, found in values.items()
            for value in found
        ]
        return max(int(future.get(120).offset) for future in sent)

    def start() -> Any:
        return start_worker(
            settings,
            [sys.executable, "-m", "driftline.streams.worker", "streams"],
            DRIFTLINE_KAFKA__PARTITIONS=str(PARTITIONS),
            DRIFTLINE_STREAMS__SNAPSHOT="2s",
            DRIFTLINE_STREAMS__SESSION_TIMEOUT="6s",
            DRIFTLINE_STREAMS__STATE_DIR=str(tmp_path / "state"),
        )

    def snapshot(partition: int) -> int:
        return snapshot_offset(settings, "streams", uuid, partition)

    def stands_beyond_a_snapshot(worker: Any) -> bool:
        """Whether it has sent what the next one must send again; leaves it paused then, to be killed."""
        worker.pause()
        for partition in range(PARTITIONS):
            sent = read_all(settings, "windows", partition)
            if sent and training.id_of("windows", sent[-1].value).offset >= snapshot(partition) >= 0:
                return True
        worker.resume()
        return False

    # before the first worker, and so before any configuration
    write({run: training.starts_of(run) for run in RUNS})
    worker = start()
    steps = 0

    def train(more: int) -> int:
        nonlocal steps
        steps += more
        return write({run: training.frames_of(run, range(steps - more, steps)) for run in RUNS})

    def caught_beyond_a_snapshot(worker: Any) -> bool:
        train(50)
        time.sleep(0.5)  # so that it is at work on it; else another turn
        return stands_beyond_a_snapshot(worker)

    for at in range(3):
        end = train(200)
        until(lambda end=end: max(map(snapshot, range(PARTITIONS))) >= end - 20, what="progress")
        if at < 2:
            until(lambda worker=worker: caught_beyond_a_snapshot(worker), what="outputs beyond the snapshot")
            worker.kill()
            worker = start()
    ends = [read_all(settings, "telemetry", partition)[-1].offset for partition in range(PARTITIONS)]
    until(lambda: all(snapshot(p) > ends[p] for p in range(PARTITIONS)), what="all is processed")
    assert worker.stop() == 0
    producer.close()

    repeats = windows = 0
    for partition in range(PARTITIONS):
        end = snapshot(partition)
        log = [r for r in as_records(read_all(settings, "telemetry", partition)) if r.offset < end]
        found = training.compare(
            uuid, partition, log, lambda topic, partition=partition: read_all(settings, topic, partition)
        )
        repeats, windows = repeats + found.repeats, windows + found.windows
    print(f"windows: {windows} outputs, {repeats} repeats")
    assert windows > 0
    assert repeats > 0, "nothing was sent twice: the kills missed"
