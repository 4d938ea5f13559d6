"""What tests and benchmarks of outages share: a hand at a training process, and what its log must be."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from driftline import events, frames, records
from driftline.connection import KafkaSettings, kafka_python
from driftline.settings import SdkSettings
from driftline.topics import partition_of

TRAINER = Path(__file__).with_name("trainer.py")


class Training:
    """A training process; every order is answered with what it knows of itself."""

    def __init__(self, kafka: KafkaSettings, *, metrics: int = 3, **sdk: Any) -> None:
        quiet: dict[str, Any] = {"system": (), "flush_us": 50_000}
        given = {
            "sdk": msgspec.to_builtins(SdkSettings(**(quiet | sdk))),
            "kafka": msgspec.structs.asdict(kafka),
            "metrics": metrics,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(TRAINER), json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.run: str = self._answer()["run"]
        self.metrics = metrics

    def order(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def phase(self, name: str) -> None:
        self.order(f"phase {name}")

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str, seconds: float = 300) -> Any:
        """Waits for something that the training tells of itself."""
        end = time.monotonic() + seconds
        while not condition(told := self.order("tell")):
            assert time.monotonic() < end, f"not within {seconds} s: {what}: {told}"
            time.sleep(0.1)
        return told

    def catches_up(self, seconds: float = 300) -> dict[str, Any]:
        """Waits until the broker has what was logged until now."""
        goal = self.order("tell")["step"] * self.metrics
        return self.until(lambda told: delivered(told) >= goal, "all was delivered", seconds)  # type: ignore[no-any-return]

    def steps(self, count: int) -> None:
        """Waits until so many further steps were logged."""
        goal = self.order("tell")["step"] + count
        self.until(lambda told: told["step"] >= goal, f"step {goal}")

    def end(self, code: int = 0, *, seconds: float = 240) -> tuple[int, float, str]:
        """Has it call ``sys.exit``: exit code, seconds until then, standard error."""
        assert self.process.stdin is not None
        began = time.monotonic()
        self.process.stdin.write(f"exit {code}\n")
        self.process.stdin.flush()
        _, said = self.process.communicate(timeout=seconds)
        return self.process.returncode, time.monotonic() - began, said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the training ended: {self.process.communicate()[1]}"
        found: dict[str, Any] = json.loads(line)
        return found


def until(condition: Callable[[], bool], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def delivered(told: dict[str, Any]) -> int:
    return int(told["counters"].get("samples_delivered", 0))


def read(kafka: KafkaSettings, run: str, seconds: float = 300, *, whole: bool = True) -> list[Any]:
    """The records of a run's partition, decoded, up to its last event; first arrivals of each number.

    Asserts that numbers grow by one, so that nothing is lost and nothing is out of order; from 0 on, unless
    it is not the ``whole`` log that this broker has.
    """
    from kafka import KafkaConsumer, TopicPartition

    spot = TopicPartition(kafka.topics["telemetry"], partition_of(run, kafka.partitions))
    found: dict[int, Any] = {}
    with contextlib.closing(
        KafkaConsumer(**kafka_python(kafka), auto_offset_reset="earliest", enable_auto_commit=False)
    ) as consumer:
        consumer.assign([spot])
        consumer.seek_to_beginning(spot)
        end = time.monotonic() + seconds
        while not (found and isinstance(found[next(reversed(found))], events.ProcessEnded)):
            assert time.monotonic() < end, f"the last event did not arrive; {len(found)} records did"
            for messages in consumer.poll(timeout_ms=200).values():
                for message in messages:
                    record: Any = records.decode(message.value)
                    if record.run == run:
                        found.setdefault(record.seq, record)
    first = 0 if whole else next(iter(found))
    wanted = list(range(first, first + len(found)))
    assert list(found) == wanted, "records in the order of their numbers, without a hole"
    return list(found.values())


def steps(found: list[Any]) -> list[int]:
    """The step of every sample, in order."""
    return [step for one in found if isinstance(one, frames.Frame) for step in one.step.tolist()]


def driftline(*command: str) -> subprocess.CompletedProcess[str]:
    """``driftline COMMAND...`` to its end, with no settings of whoever runs this."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
    return subprocess.run(
        [sys.executable, "-m", "driftline.cli", *command],
        env=kept,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def left_behind(training: Training, spool: Path, *, exit_us: int) -> dict[str, Any]:
    """Ends a training whose broker is gone for good: all that was not acknowledged waits in the spool.

    Asserts that it keeps its exit code, takes no longer than its bound (and what the interpreter needs on a
    busy machine), says one line, and that ``driftline spool status`` shows exactly what waits.
    """
    training.order("pace inf")
    told = training.order("tell")
    logged, arrived = told["step"] * training.metrics, delivered(told)
    code, took_s, said = training.end(7)
    assert code == 7, said
    assert took_s < exit_us / 1e6 + 60, took_s
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if "were not delivered" in line]
    assert len(lines) == 1, said
    assert f"{logged - arrived} wait in {spool}" in lines[0], lines
    status = driftline("spool", "status", "--spool", str(spool), "--json")
    assert status.returncode == 0, status.stderr
    shown = [json.loads(line) for line in status.stdout.splitlines()]
    assert [one["samples"] for one in shown] == [logged - arrived]
    return {"exit_code": code, "exit_s": round(took_s, 2), "logged": logged, "delivered_before": arrived}


def assert_sent_to_another(
    kafka: KafkaSettings, spool: Path, training: Training, left: dict[str, Any]
) -> None:
    """``driftline spool send`` brings all that was left to a broker without it: in order, once."""
    arguments = ["--spool", str(spool), "--bootstrap", kafka.bootstrap, "--prefix", kafka.prefix]
    sent = driftline("spool", "send", "--all", *arguments)
    assert sent.returncode == 0, sent.stderr
    found = steps(read(kafka, training.run, whole=False))
    every = [step for step in range(left["logged"] // training.metrics) for _ in range(training.metrics)]
    assert found == every[left["delivered_before"] :], (len(found), left)
    status = driftline("spool", "status", "--spool", str(spool), "--json")
    assert (status.returncode, status.stdout) == (0, ""), "nothing waits any more"


def assert_not_slowed(told: dict[str, Any], phases: list[str], *, quiet: str = "quiet") -> None:
    """A call that waited for a broker would take a second: the 99th percentile stays far below that.

    That it is under 5 ms is for benchmarks to show; brokers that start beside it on two cores can cost more.
    """
    allowed_us = max(50_000, 10 * told["times"][quiet]["p99_us"])
    slow = {phase: told["times"][phase] for phase in phases if told["times"][phase]["p99_us"] > allowed_us}
    assert not slow, f"allowed {allowed_us} us: {told['times']}"
