"""Topics are made as the design says, and one that does not fit is named with the remedy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaTimeoutError, TopicAlreadyExistsError

import driftline
from driftline import admin
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import SettingsError, Unavailable
from driftline.settings import SdkSettings, Settings
from driftline.topics import SPECS


@pytest.mark.parametrize("which", [pytest.param("kafka", marks=pytest.mark.kafka), "embedded"])
def test_topics_are_made_once_and_keep_their_identity(which, request) -> None:
    broker = request.getfixturevalue(which)
    settings = broker.settings(partitions=3)
    made = admin.ensure_topics(settings)
    assert sorted(made) == sorted(settings.prefix + spec.name for spec in SPECS)
    assert len(set(made.values())) == len(made)
    assert admin.ensure_topics(settings) == made
    assert admin.partitions(settings, settings.prefix + "telemetry") == 3
    assert admin.partitions(settings, settings.prefix + "evals") == 1
    assert admin.partitions(settings, settings.prefix + "nothing") is None
    assert admin.is_embedded(settings) == (which == "embedded")


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("topic", "options", "says"),
    [
        ("telemetry", {"num_partitions": 1}, "DRIFTLINE_KAFKA__PARTITIONS"),
        ("evals", {"num_partitions": 4}, "delete the topic"),
        ("telemetry", {"num_partitions": 4}, "LogAppendTime"),
    ],
)
def test_a_topic_that_does_not_fit_is_named_with_the_remedy(kafka, topic, options, says) -> None:
    """Case S17: a topic that the broker made by itself, with its own default of partitions."""
    settings = kafka.settings(partitions=4)
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    client.create_topics({settings.prefix + topic: {"replication_factor": 1, **options}})
    client.close()
    with pytest.raises(SettingsError, match=says) as caught:
        admin.ensure_topics(settings)
    assert settings.prefix + topic in str(caught.value)


@pytest.mark.parametrize("which", [pytest.param("kafka", marks=pytest.mark.kafka), "embedded"])
@pytest.mark.parametrize("kind", [KafkaProducer, KafkaConsumer])
def test_who_asks_for_a_topic_does_not_make_it(which: str, kind: Any, request: pytest.FixtureRequest) -> None:
    """F23: on the embedded broker a trainer that was first made ``telemetry`` with 4 partitions, and every
    role refused it."""
    settings = request.getfixturevalue(which).settings()
    name = settings.topics["telemetry"]
    client = opened(kind, **kafka_python(settings), allow_auto_create_topics=False)
    if kind is KafkaProducer:
        client.config["max_block_ms"] = 1_000
        with pytest.raises(KafkaTimeoutError):
            client.partitions_for(name)
    else:
        assert not client.partitions_for_topic(name)
    client.close()
    assert admin.partitions(settings, name) is None


@pytest.mark.parametrize("which", [pytest.param("kafka", marks=pytest.mark.kafka), "embedded"])
def test_trainer_and_roles_that_start_at_once_have_the_same_topics(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings = request.getfixturevalue(which).settings(partitions=3)
    sdk = SdkSettings(system=(), spool=str(tmp_path))
    run = driftline.init("x", run_id="r", settings=Settings(sdk=sdk, kafka=settings))
    run.log({"a": 1.0}, step=0)
    with ThreadPoolExecutor(6) as pool:
        made = [found.result(60) for found in [pool.submit(admin.ensure_topics, settings) for _ in range(6)]]
    assert made == [made[0]] * 6
    assert admin.partitions(settings, settings.topics["telemetry"]) == 3
    assert run.flush(60)
    run.finish()


class Forgetful:
    """A broker's admin client, simulated: a topic that is being deleted is in the way, then it is gone."""

    def __init__(self, deleting: int) -> None:
        self.deleting = deleting
        self.there: set[str] = set()

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        shown = sorted(self.there & set(names))
        return [
            {"name": name, "error_code": 0, "partitions": [0], "topic_id": f"id {name}"} for name in shown
        ]

    def create_topics(self, topics: dict[str, Any]) -> None:
        if self.deleting:
            self.deleting -= 1
            self.there |= topics.keys() - {"x.telemetry"}
            raise TopicAlreadyExistsError
        self.there |= topics.keys()

    def wait_for_topics(self, names: list[str], timeout_ms: int) -> None:
        if not self.there.issuperset(names):
            raise KafkaTimeoutError

    def describe_cluster(self) -> dict[str, str]:
        return {"cluster_id": admin.EMBEDDED_CLUSTER}


def test_a_topic_that_is_being_deleted_is_made_when_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = KafkaSettings(prefix="x.", partitions=1)
    client: Any = Forgetful(deleting=2)
    assert admin.ensure(client, settings)["x.telemetry"] == "id x.telemetry"
    monkeypatch.setattr(admin, "MAKE_S", 0.0)
    with pytest.raises(Unavailable, match=r"shows no topic x\.telemetry"):
        admin.ensure(Forgetful(deleting=1_000_000), settings)  # type: ignore[arg-type]


def test_no_broker_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        admin.ensure_topics(KafkaSettings(bootstrap="127.0.0.1:1"))


def test_a_partition_that_nobody_leads_is_waited_for(embedded) -> None:
    """The client leaves such a partition out of its answer and then fails with a KeyError: what asks must
    wait for a leader as for a broker, not end."""
    settings = embedded.settings(partitions=1)
    admin.ensure_topics(settings)
    led, unled = (TopicPartition(settings.topics["telemetry"], at) for at in (0, 7))
    consumer = KafkaConsumer(**kafka_python(settings))
    try:
        assert admin.offsets(consumer.beginning_offsets, [led]) == {led: 0}
        with pytest.raises(Unavailable, match="partition=7"):
            admin.offsets(consumer.beginning_offsets, [led, unled])
    finally:
        consumer.close()
