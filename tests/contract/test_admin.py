"""Topics are made as the design says, and one that does not fit is named with the remedy."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient

from driftline import admin
from driftline.connection import KafkaSettings, kafka_python
from driftline.errors import SettingsError, Unavailable
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
