"""Real processes, real Kafka: however a rank ends while the broker is away, the next one sends the rest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import driftline
from driftline import frames, records
from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings, kafka_python
from driftline.producers.disk import FileDisk
from driftline.producers.survey import survey
from driftline.settings import SdkSettings, Settings
from driftline.topics import partition_of

NOBODY = "127.0.0.1:1"
"""Named first in every list of servers; while it is the only one, the broker is away."""
RANK = """
import os, signal, sys, time
import driftline
from driftline.connection import KafkaSettings
from driftline.settings import SdkSettings, Settings

bootstrap, prefix, spool, run_id, rank, how = sys.argv[1:]
sdk = SdkSettings(system=(), flush_us=20_000, exit_us=5_000_000, spool=spool)
kafka = KafkaSettings(bootstrap=bootstrap, prefix=prefix, partitions=4)
run = driftline.init("a/../../b", settings=Settings(sdk=sdk, kafka=kafka), run_id=run_id, rank=int(rank))
for step in range(300):
    run.log({"loss": 1 / (step + 1), "rank": float(rank)}, step=step)
    time.sleep(0.002)
    if how == "kill" and step == 200:
        while run.counters().get("spool_written", 0) < 2 * 200:
            time.sleep(0.01)
    if how == "kill" and step == 250:
        os.kill(os.getpid(), signal.SIGKILL)
if how == "sigterm":
    os.kill(os.getpid(), signal.SIGTERM)
if how == "exception":
    raise ValueError("mine")
if how == "exit":
    sys.exit(3)
"""
ENDS = {"plain": 0, "exit": 3, "exception": 1, "sigterm": -signal.SIGTERM, "kill": -signal.SIGKILL}


@pytest.fixture
def settings(kafka: Any) -> KafkaSettings:
    made: KafkaSettings = kafka.settings()
    ensure_topics(made)
    return msgspec.structs.replace(made, bootstrap=f"{NOBODY},{made.bootstrap}")


def rank(spool: Path, prefix: str, number: int, how: str) -> subprocess.Popen[str]:
    """A rank of run "r" whose broker is away."""
    arguments = [NOBODY, prefix, str(spool), "r", str(number), how]
    return subprocess.Popen(
        [sys.executable, "-c", RANK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def telemetry(kafka: KafkaSettings) -> list[Any]:
    """All that run "r" has in the topic now, decoded, in its order."""
    from kafka import KafkaConsumer, TopicPartition

    place = TopicPartition(kafka.topics["telemetry"], partition_of("r", kafka.partitions))
    found: list[Any] = []
    with contextlib.closing(
        KafkaConsumer(**kafka_python(kafka), auto_offset_reset="earliest", enable_auto_commit=False)
    ) as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        consumer.seek_to_beginning(place)
        until = time.monotonic() + 240
        while consumer.position(place) < end:
            assert time.monotonic() < until, f"{len(found)} of {end} records came"
            for messages in consumer.poll(timeout_ms=200).values():
                found += [records.decode(message.value) for message in messages]
    return found


def steps_by_process(found: list[Any]) -> Iterator[tuple[int, list[int]]]:
    """Rank and steps of each process; asserts that its records came once each, in order, without a hole."""
    for process in {record.process for record in found}:
        of_it = [record for record in found if record.process == process]
        assert [record.seq for record in of_it] == list(range(len(of_it)))
        logged = [frame for frame in of_it if isinstance(frame, frames.Frame)]
        yield logged[0].rank or 0, [step for frame in logged for step in frame.step.tolist()]


@pytest.mark.kafka
def test_what_ranks_left_however_they_ended_is_sent_once_and_in_order_by_the_next_process_of_the_run(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    """Case 13, never back, for every end: exit code kept, bounded, on disk, one line; nothing is lost."""
    spool = tmp_path / "spool"
    ranks = [rank(spool, settings.prefix, number, how) for number, how in enumerate(ENDS)]
    for process, (how, code) in zip(ranks, ENDS.items(), strict=True):
        start = time.monotonic()
        _, said = process.communicate(timeout=300)
        assert process.returncode == code, said
        assert time.monotonic() - start < 240
        lines = [line for line in said.splitlines() if "not delivered" in line]
        assert len(lines) == (how != "kill")
        if lines:
            assert f"600 of 600 samples were not delivered to {NOBODY}" in lines[0]
            assert (
                f": 600 wait in {spool}; `driftline spool send` or the run's next process sends" in lines[0]
            )
    assert {path.name for path in tmp_path.iterdir()} == {"spool"}, "no name or id becomes part of a path"
    assert len(list(survey(FileDisk(spool)))) == len(ENDS)
    sdk = SdkSettings(system=(), flush_us=20_000, exit_us=60_000_000, spool=str(spool))
    with driftline.init("next", settings=Settings(sdk=sdk, kafka=settings), run_id="r", rank=9) as run:
        until = time.monotonic() + 240
        step = 0
        while any(spool.iterdir()):
            assert time.monotonic() < until, list(spool.rglob("*"))
            run.log({"loss": 1.0}, step=step)
            step += 1
            time.sleep(0.02)
    found = dict(steps_by_process(telemetry(settings)))
    assert found.pop(9) == list(range(step))
    killed = found.pop(list(ENDS).index("kill"))
    assert killed == [at for at in range(len(killed) // 2) for _ in range(2)]
    assert len(killed) >= 2 * 200, "what was framed before the kill"
    assert len(found) == len(ENDS) - 1
    for steps in found.values():
        assert steps == [at for at in range(300) for _ in range(2)]
    left = 600 * (len(ENDS) - 1) + len(killed)
    assert run.counters()["spool_recovered"] == left
    assert run.counters()["samples_delivered"] == step


@pytest.mark.kafka
def test_spool_send_sends_what_a_killed_rank_left_once_and_in_order(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    ranks = [rank(spool, settings.prefix, number, "kill") for number in range(2)]
    for process in ranks:
        process.communicate(timeout=300)
    waiting = sum(standing.samples for standing in survey(FileDisk(spool)))
    assert waiting >= 2 * 2 * 200
    command = [sys.executable, "-m", "driftline.cli", "spool", "send", "--spool", str(spool)]
    env = os.environ | {"DRIFTLINE_BOOTSTRAP": settings.bootstrap, "DRIFTLINE_PREFIX": settings.prefix}
    env |= {"DRIFTLINE_KAFKA__PARTITIONS": str(settings.partitions)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"sent {waiting:,} samples in " in done.stdout
    assert list(spool.iterdir()) == []
    found = dict(steps_by_process(telemetry(settings)))
    assert sum(map(len, found.values())) == waiting
    for steps in found.values():
        assert steps == [at for at in range(len(steps) // 2) for _ in range(2)]
