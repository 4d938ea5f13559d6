"""A training whose brokers are killed, frozen, moved and absent goes on; afterwards every step is there, in
order, once (case 13)."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from driftline.admin import ensure_topics
from driftline.connection import KafkaSettings
from driftline.topics import partition_of

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def outage() -> ModuleType:
    name = "outage"
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, Path(__file__).parents[1] / "support" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def train(outage: ModuleType) -> Iterator[Callable[..., Any]]:
    """Starts training processes, which end with the test."""
    started: list[Any] = []

    def start(*arguments: Any, **settings: Any) -> Any:
        started.append(outage.Training(*arguments, **settings))
        return started[-1]

    yield start
    for training in started:
        training.close()


@pytest.mark.long
@pytest.mark.kafka
def test_brokers_are_killed_frozen_moved_and_mostly_away_while_a_training_goes_on(
    kafka_cluster: Any, train: Any, outage: Any
) -> None:
    kafka = KafkaSettings(bootstrap=kafka_cluster.bootstrap, prefix="outage.", partitions=2, replication=3)
    ensure_topics(kafka)
    topic = kafka.topics["telemetry"]
    training = train(kafka, exit_us=60_000_000)

    def leader() -> Any:
        found = kafka_cluster.leaders(topic)[partition_of(training.run, kafka.partitions)]
        assert found is not None
        return found

    training.phase("quiet")
    training.order("pace 0.002")
    training.steps(500)
    training.catches_up()

    training.phase("killed")
    killed = leader()
    killed.kill()
    training.steps(500)
    training.catches_up()
    killed.start()

    training.phase("moved")
    kafka_cluster.until(lambda: kafka_cluster.in_sync(topic), "the killed one caught up")
    kafka_cluster.move_leaders([topic])
    training.steps(500)
    training.catches_up()

    training.phase("frozen")
    frozen = leader()
    frozen.pause()
    try:
        training.steps(500)
        training.catches_up()
    finally:
        frozen.resume()

    training.phase("two-away")
    kafka_cluster.until(lambda: kafka_cluster.in_sync(topic), "the frozen one caught up")
    for node in kafka_cluster.nodes[:2]:
        node.kill()
    before = outage.delivered(training.order("tell"))
    training.steps(1_000)
    held = training.order("tell")
    kafka_cluster.start()
    training.catches_up()

    training.phase("after")
    training.steps(200)
    training.order("pace inf")
    training.order("finish")
    told = training.order("tell")
    code, _, said = training.end(7)
    assert code == 7
    assert "Traceback" not in said
    wanted = [step for step in range(told["step"]) for _ in range(training.metrics)]
    assert outage.steps(outage.read(kafka, training.run)) == wanted
    assert outage.delivered(told) == len(wanted)
    assert outage.delivered(held) - before < 1_000 * training.metrics, "two of three took nothing"
    outage.assert_not_slowed(told, ["killed", "moved", "frozen", "two-away", "after"])


@pytest.mark.long
@pytest.mark.kafka
def test_what_waits_when_a_broker_goes_for_good_is_spooled_said_shown_and_sent_to_another_one(
    jvm_kafka: Any, kafka: Any, train: Any, outage: Any, tmp_path: Path
) -> None:
    """In mid-run: exit code kept, within the bound, one line; in order and once afterwards."""
    gone, spool = (
        KafkaSettings(bootstrap=jvm_kafka.bootstrap, prefix="gone.", partitions=2),
        tmp_path / "spool",
    )
    ensure_topics(gone)
    training = train(gone, spool=str(spool), exit_us=2_000_000)
    training.order("pace 0.002")
    training.steps(200)
    training.catches_up()
    jvm_kafka.kill()
    training.steps(200)
    training.until(lambda told: told["counters"].get("spool_written", 0), "it spools")
    training.steps(200)
    left = outage.left_behind(training, spool, exit_us=2_000_000)
    assert 0 < left["delivered_before"] < left["logged"]
    another = kafka.settings(partitions=gone.partitions)
    ensure_topics(another)
    outage.assert_sent_to_another(another, spool, training, left)


@pytest.mark.kafka
def test_what_was_not_acknowledged_when_its_topic_was_deleted_goes_in_order_to_the_one_made_again(
    kafka: Any, train: Any, outage: Any
) -> None:
    """Twice, so that the second time the client knew the topic by an older identity."""
    settings: KafkaSettings = kafka.settings(partitions=2)
    topic = settings.topics["telemetry"]
    training = train(settings, exit_us=60_000_000)
    training.order("pace 0.002")
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=settings.bootstrap)) as admin:
        for _ in range(2):
            ensure_topics(settings)
            training.steps(200)
            training.catches_up()
            admin.delete_topics([topic])
            outage.until(lambda: topic not in admin.list_topics(), "the topic is gone")
            arrived = outage.delivered(training.order("tell"))
            training.steps(200)
    ensure_topics(settings)
    training.order("pace inf")
    training.catches_up()
    training.order("finish")
    told = training.order("tell")
    code, _, said = training.end(7)
    assert code == 7
    assert "Traceback" not in said
    found = outage.steps(outage.read(settings, training.run, whole=False))
    every = [step for step in range(told["step"]) for _ in range(training.metrics)]
    assert len(found) >= len(every) - arrived, "nothing that the deleted topic had not is missing"
    assert found == every[-len(found) :]


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that accepts connections and never says a word, as a frozen broker."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for link in held:
        link.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_broker_that_accepts_and_never_answers_ends_training_in_time_with_its_exit_code(
    mute: str, protocol: Any, train: Any, outage: Any
) -> None:
    """From the start and for good; the samples are in the spool, and one line says so."""
    training = train(KafkaSettings(bootstrap=mute, security_protocol=protocol), exit_us=2_000_000)
    training.phase("quiet")
    training.order("pace 0.002")
    training.until(lambda told: told["counters"].get("connection_failures", 0) >= 2, "it tried")
    told = training.order("tell")
    outage.assert_not_slowed(told, ["quiet"])
    code, seconds, said = training.end(7)
    assert code == 7
    assert seconds < 60, "the bound is 2 s"
    waits = [line for line in said.splitlines() if "wait" in line and "spool" in line]
    assert len(waits) >= 1, said
    assert "Traceback" not in said
