"""The live view on real brokers: it reads what is there, waits for what is not, and ends when told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from kafka import KafkaProducer
from rich.console import Console

from driftline import events, frames
from driftline.admin import ensure_topics
from driftline.cli.watch import watch
from driftline.cli.watch_feed import Feed
from driftline.cli.watch_state import WatchState
from driftline.connection import KafkaSettings, kafka_python
from driftline.errors import Unavailable
from driftline.topics import partition_of

RUN = "01watched"


def frame(seq: int) -> bytes:
    return frames.encode(
        frames.Frame(
            run=RUN,
            process="p0",
            rank=0,
            seq=seq,
            names=["loss"],
            metric=np.zeros(1, np.int16),
            step=np.array([seq], np.int64),
            time_us=np.array([time.time_ns() // 1000]),
            value=np.array([1 / seq]),
            weight=np.ones(1),
        )
    )


def opened(state: events.AlertState, at: int) -> bytes:
    alert = events.Alert(
        id=f"u/0/{at}/0",
        alert="a",
        run=RUN,
        attempt=0,
        rule="loss-spike",
        detector="loss_spike",
        severity="warn",
        state=state,
        time_us=time.time_ns() // 1000,
        opened_us=time.time_ns() // 1000,
        explanation="loss is 9 at step 3",
    )
    return events.encode(alert)


def send(settings: KafkaSettings, *records: tuple[str, bytes]) -> None:
    producer = KafkaProducer(**kafka_python(settings), allow_auto_create_topics=False)
    try:
        for topic, value in records:
            producer.send(settings.topics[topic], value, partition=partition_of(RUN, settings.partitions))  # type: ignore[index]
        producer.flush(120)
    finally:
        producer.close()


STARTED = events.encode(
    events.ProcessStarted(run=RUN, process="p0", seq=0, time_us=1, name="watched", rank=0, world_size=1)
)


def read(feed: Feed, state: WatchState, *, frames_wanted: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        feed.poll(state, 0.2)
        if state.runs and state.runs[RUN].frames >= frames_wanted:
            return
    pytest.fail(f"{frames_wanted} frames did not come")


@pytest.fixture(
    params=[
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("embedded", marks=pytest.mark.embedded),
    ]
)
def broker(request: pytest.FixtureRequest) -> KafkaSettings:
    settings: KafkaSettings = request.getfixturevalue(request.param).settings()
    return settings


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--once`` ends when all is read; its bound is for brokers that never let it."""
    monkeypatch.setattr("driftline.cli.watch.ONCE_S", 240.0)


def test_once_shows_what_a_broker_holds(broker: KafkaSettings) -> None:
    ensure_topics(broker)
    send(
        broker,
        ("telemetry", STARTED),
        *[("telemetry", frame(s)) for s in range(1, 6)],
        ("alerts", opened("open", 1)),
    )
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    assert watch(broker, once=True, console=console) == 0
    text = console.export_text()
    console.file.close()
    for expected in ("watched", "step 5", "loss", "OPEN", "loss is 9 at step 3"):
        assert expected in text


def test_once_says_which_runs_there_are_when_the_one_asked_for_is_not(broker: KafkaSettings) -> None:
    ensure_topics(broker)
    send(broker, ("telemetry", STARTED))
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    assert watch(broker, once=True, run="other", console=console) == 0
    text = console.export_text()
    console.file.close()
    assert "no run 'other' on this broker" in text
    assert "watched (" in text


def test_a_feed_takes_up_topics_that_are_made_later(broker: KafkaSettings) -> None:
    feed, state = Feed(broker), WatchState()
    assert feed.poll(state, 0.1) == 0
    assert len(feed.missing) == 4
    ensure_topics(broker)
    send(broker, ("telemetry", STARTED), ("telemetry", frame(1)))
    read(feed, state, frames_wanted=1)
    while feed.missing:  # a broker tells of topics one by one
        feed.poll(state, 0.1)
    feed.close()


@pytest.mark.kafka
def test_of_a_long_log_only_the_last_part_is_read(kafka: Any) -> None:
    settings = kafka.settings()
    ensure_topics(settings)
    send(settings, ("telemetry", STARTED), *[("telemetry", frame(s)) for s in range(1, 21)])
    feed, state = Feed(settings, newest_per_partition=5), WatchState()
    read(feed, state, frames_wanted=5)
    assert (state.runs[RUN].frames, state.runs[RUN].step) == (5, 20)
    feed.close()
    late = Feed(settings, since_us=(time.time_ns() // 1000) + 60_000_000)
    state = WatchState()
    assert late.poll(state, 0.5) == 0
    send(settings, ("telemetry", frame(21)))
    read(late, state, frames_wanted=1)
    late.close()


@contextmanager
def watching(settings: KafkaSettings, *options: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRIFTLINE_")}
    command = [sys.executable, "-u", "-m", "driftline.cli", "watch", *options]
    process = subprocess.Popen(
        command,
        env={**clean, "DRIFTLINE_BOOTSTRAP": settings.bootstrap, "DRIFTLINE_PREFIX": settings.prefix},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.embedded
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_a_pipe_it_prints_lines_and_ends_in_order(embedded: Any, number: int) -> None:
    settings = embedded.settings()
    ensure_topics(settings)
    send(settings, ("telemetry", STARTED), ("alerts", opened("open", 1)), ("alerts", opened("resolved", 2)))
    with watching(settings, "--interval", "0.2") as process:
        assert process.stdout
        lines = sorted(process.stdout.readline().split(" ", 1)[1].strip() for _ in range(3))
        assert [line.partition("alert ")[2].partition(":")[0] for line in lines] == ["opened", "resolved", ""]
        assert "run watched started" in lines[2]
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")


def test_without_a_broker_it_waits_with_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        settings = KafkaSettings(bootstrap=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unavailable, match="no broker answers"):
            Feed(settings)
        with watching(settings) as process:
            assert process.stderr
            assert process.stderr.readline().startswith(
                "waiting for the broker: no broker answers at 127.0.0.1:"
            )
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0
            assert "Traceback" not in err
