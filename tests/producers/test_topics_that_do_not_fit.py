"""Case S17 in the trainer: topics that someone made otherwise than Driftline would; training goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import driftline
from driftline import topic_rules
from driftline.admin import connect, ensure_topics
from driftline.connection import KafkaSettings
from driftline.producers.disk import FileDisk
from driftline.settings import SdkSettings, Settings

pytestmark = pytest.mark.kafka


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[[KafkaSettings], driftline.Run]]:
    """Runs that have logged ten samples."""
    made: list[driftline.Run] = []

    def start(kafka: KafkaSettings) -> driftline.Run:
        sdk = SdkSettings(system=(), flush_us=20_000, exit_us=2_000_000, spool=str(tmp_path / "spool"))
        made.append(driftline.init("test", settings=Settings(sdk=sdk, kafka=kafka), rank=0))
        for step in range(10):
            made[-1].log({"loss": 1.0}, step=step)
        return made[-1]

    yield start
    for run in made:
        run.finish()


def make(settings: KafkaSettings, **how: Any) -> None:
    """The telemetry topic by hand."""
    with contextlib.closing(connect(settings)) as admin:
        topic = settings.topics["telemetry"]
        admin.create_topics({topic: {"num_partitions": 4, "replication_factor": 1} | how})
        admin.wait_for_topics([topic])


def delete(settings: KafkaSettings) -> None:
    with contextlib.closing(connect(settings)) as admin:
        admin.delete_topics([settings.topics["telemetry"]])


def lines(caplog: pytest.LogCaptureFixture, *parts: str) -> list[str]:
    return [message for message in caplog.messages if all(part in message for part in parts)]


def test_samples_for_a_topic_that_the_broker_made_by_itself_wait_until_it_is_made_right(
    kafka: Any,
    train: Callable[..., driftline.Run],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    wait_for: Any,
) -> None:
    """It must be deleted, so nothing goes there; one line says so, and afterwards all arrives."""
    settings = kafka.settings()
    make(settings, num_partitions=1)
    run = train(settings)
    wait_for(lambda: run.counters().get("spool_written", 0) >= 10)
    assert "records_sent" not in run.counters()
    (line,) = lines(caplog, settings.topics["telemetry"], "1 partitions")
    assert "set kafka.partitions" in line
    assert "kafka-topics.sh --delete" in line
    assert "training is not affected" in line
    delete(settings)
    ensure_topics(settings)
    assert run.flush(120)
    assert run.counters()["samples_delivered"] == 10
    assert FileDisk(tmp_path / "spool").names() == []


def test_topics_that_all_have_another_count_than_the_trainers_settings_are_sent_to(
    kafka: Any, train: Callable[..., driftline.Run], caplog: pytest.LogCaptureFixture
) -> None:
    """They were made so on purpose; one line says which setting to write."""
    settings = kafka.settings(partitions=3)
    ensure_topics(settings)
    run = train(kafka.settings(prefix=settings.prefix, partitions=8))
    assert run.flush(120)
    run.finish()
    (line,) = lines(caplog, "has 3 partitions")
    assert "set kafka.partitions (DRIFTLINE_KAFKA__PARTITIONS) to 3" in line


@pytest.mark.parametrize(
    ("how", "settings", "says"),
    [
        ({}, {}, "--add-config message.timestamp.type=LogAppendTime"),
        ({"configs": {"message.timestamp.type": "LogAppendTime"}}, {"replication": 3}, "1 of 3 copies"),
        ({"configs": {"message.timestamp.type": "LogAppendTime"}}, {}, None),
    ],
)
def test_other_settings_of_a_topic_are_said_once_and_samples_are_sent(
    kafka: Any,
    train: Callable[..., driftline.Run],
    caplog: pytest.LogCaptureFixture,
    how: dict[str, Any],
    settings: dict[str, Any],
    says: str | None,
) -> None:
    """Without the right to read a topic's settings; a topic that fits gets no line."""
    wanted = kafka.settings(**settings)
    make(wanted, **how)
    run = train(wanted)
    assert run.flush(120)
    run.finish()
    assert len(lines(caplog, "driftline:")) == (says is not None), caplog.messages
    assert says is None or lines(caplog, wanted.topics["telemetry"], says)


def test_topics_that_a_trainer_may_not_see_do_not_hold_up_its_samples() -> None:
    """Nothing speaks against the one that it may write to."""
    others: dict[str, topic_rules.Count] = {"x.windows": "hidden", "x.facts": "hidden"}
    assert topic_rules.may_send("x.telemetry", 16, wanted=8, others=others).allowed
    assert not topic_rules.may_send("x.telemetry", 16, wanted=8, others=others | {"x.facts": 8}).allowed
