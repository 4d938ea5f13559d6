"""Makes the topics and checks that what is there fits; the one place that asks the broker about topics.

A topic that the broker made by itself with one partition, or without ``LogAppendTime``, would break what the
parts promise each other, so a role that finds one stops with a message that says what to do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError

from driftline import handshake
from driftline.broker import EMBEDDED_CLUSTER
from driftline.connection import KafkaSettings, kafka_python, opened
from driftline.errors import Unavailable
from driftline.rights import in_words
from driftline.topic_rules import check_partitions, wrong_time_stamps
from driftline.topics import SPECS, TopicSpec

CLIENT_ID = "driftline-admin"
MAKE_S = 20.0
"""So long the broker may take until it shows the topics that it was told to make."""


def ensure_topics(settings: KafkaSettings) -> dict[str, str]:
    """Makes missing topics, checks existing ones; returns full topic name -> topic UUID.

    Raises:
        SettingsError: a topic has another partition count or time stamp type than driftline needs.
        Unavailable: no broker answers, or (Refused) it does not let us in.
    """
    with _asking(settings) as client:
        return ensure(client, settings)


def connect(settings: KafkaSettings) -> KafkaAdminClient:
    """An admin client. Raises Unavailable if no broker answers, Refused if it does not let us in."""
    reached = handshake.let_in(settings)
    try:
        return opened(
            KafkaAdminClient,
            client_id=CLIENT_ID,
            request_timeout_ms=15_000,
            bootstrap_timeout_ms=3_000,
            **kafka_python(reached),
        )
    except KafkaError as error:
        raise handshake.refusal(settings) or no_broker(settings, error) from error


@contextlib.contextmanager
def _asking(settings: KafkaSettings) -> Iterator[KafkaAdminClient]:
    """A client for one question. Raises Unavailable for what goes wrong meanwhile."""
    client = connect(settings)
    try:
        yield client
    except KafkaError as error:
        raise Unavailable(f"broker {settings.bootstrap}: {in_words(error)}") from error
    finally:
        client.close()


def offsets(ask: Callable[..., dict[Any, int]], places: Collection[Any], **options: Any) -> dict[Any, int]:
    """What a consumer's ``beginning_offsets`` or ``end_offsets`` says of partitions.

    kafka-python 3.0.12 leaves out a partition that has no leader, or none that it has heard of yet, and fails
    with a KeyError then. Raises Unavailable instead, and whatever KafkaError comes.
    """
    try:
        return dict(ask(list(places), **options))
    except KeyError as error:
        raise Unavailable(f"nobody leads {error.args[0]} now") from error


def no_broker(settings: KafkaSettings, error: Exception) -> Unavailable:
    """What to say where nothing answers, with the remedy."""
    return Unavailable(
        f"no broker answers at {settings.bootstrap}: {error!r} (DRIFTLINE_BOOTSTRAP or --bootstrap names "
        "another one; `driftline broker` starts one for a first look)"
    )


def is_embedded(settings: KafkaSettings) -> bool:
    """Whether the broker is the embedded one, which ignores LogAppendTime and wants short sessions."""
    with _asking(settings) as client:
        return bool(client.describe_cluster().get("cluster_id") == EMBEDDED_CLUSTER)


def topic_uuid(settings: KafkaSettings, topic: str) -> str | None:
    """The UUID of a topic by its full name, None if it does not exist. Raises Unavailable."""
    with _asking(settings) as client:
        found = _described(client, [topic])
    return str(found[topic]["topic_id"]) if topic in found else None


def partitions(settings: KafkaSettings, topic: str) -> int | None:
    """Partition count of a topic by its full name, None if it does not exist. Raises Unavailable."""
    with _asking(settings) as client:
        found = _described(client, [topic])
    return len(found[topic]["partitions"]) if topic in found else None


def uuids(client: KafkaAdminClient, names: list[str]) -> dict[str, str]:
    """Full topic name -> UUID of those topics that exist. Raises KafkaError."""
    return {name: str(topic["topic_id"]) for name, topic in _described(client, names).items()}


def ensure(client: KafkaAdminClient, settings: KafkaSettings) -> dict[str, str]:
    """:func:`ensure_topics` over a client that is connected. Raises KafkaError too."""
    names = {settings.prefix + spec.name: spec for spec in SPECS}
    found = _made(client, names, settings)
    for name, spec in names.items():
        check_partitions(name, spec, len(found[name]["partitions"]), settings.partitions)
    if client.describe_cluster().get("cluster_id") != EMBEDDED_CLUSTER:
        _check_time_stamps(client, {name: spec for name, spec in names.items() if spec.append_time})
    return {name: str(found[name]["topic_id"]) for name in names}


def _made(
    client: KafkaAdminClient, names: dict[str, TopicSpec], settings: KafkaSettings
) -> dict[str, dict[str, Any]]:
    """What the broker says of the topics, once it has all of them. Raises KafkaError, and Unavailable.

    One that was only just deleted may still be in its way when it is made, and gone a moment later.
    """
    end_s = time.monotonic() + MAKE_S
    while missing := [name for name in names if name not in (found := _described(client, list(names)))]:
        if time.monotonic() > end_s:
            raise Unavailable(
                f"{settings.bootstrap} shows no topic {missing[0]} {MAKE_S:g} s after it was made: "
                "is it being deleted, or made by somebody else meanwhile?"
            )
        with contextlib.suppress(TopicAlreadyExistsError):  # another role was faster: what it made is checked
            client.create_topics({name: _options(names[name], settings) for name in missing})
        with contextlib.suppress(KafkaTimeoutError):
            client.wait_for_topics(missing, timeout_ms=1_000)
    return found


class Retention(NamedTuple):
    """How long and how much of a partition a topic keeps; None: without end, or the broker does not say."""

    ms: int | None = None
    bytes: int | None = None


def retention(client: KafkaAdminClient, names: Collection[str]) -> dict[str, Retention]:
    """Full topic name -> what the topic keeps; nothing of the embedded broker, which ends the connection when
    it is asked for a topic's settings. Raises KafkaError."""
    from kafka.admin import ConfigResource

    if client.describe_cluster().get("cluster_id") == EMBEDDED_CLUSTER:
        return {}
    keys = ["retention.ms", "retention.bytes"]
    answers = client.describe_configs(
        [ConfigResource("TOPIC", name, keys) for name in names], config_filter="all"
    ).get("topic", {})

    def limit(name: str, key: str) -> int | None:
        value = answers.get(name, {}).get(key, {}).get("value")
        return None if value is None or int(value) < 0 else int(value)

    return {name: Retention(*(limit(name, key) for key in keys)) for name in names}


def _described(client: KafkaAdminClient, names: list[str]) -> dict[str, dict[str, Any]]:
    return {topic["name"]: topic for topic in client.describe_topics(names) if topic["error_code"] == 0}


def _options(spec: TopicSpec, settings: KafkaSettings) -> dict[str, Any]:
    configs = {"max.message.bytes": str(1024 * 1024)}
    if spec.append_time:
        configs["message.timestamp.type"] = "LogAppendTime"
    if spec.compacted:
        configs["cleanup.policy"] = "compact"
    return {
        "num_partitions": 1 if spec.single else settings.partitions,
        "replication_factor": settings.replication,
        "configs": configs,
    }


def _check_time_stamps(client: KafkaAdminClient, specs: dict[str, TopicSpec]) -> None:
    from kafka.admin import ConfigResource

    asked = [ConfigResource("TOPIC", name, ["message.timestamp.type"]) for name in specs]
    answers = client.describe_configs(asked, config_filter="all").get("topic", {})
    for name in specs:
        value = answers.get(name, {}).get("message.timestamp.type", {}).get("value")
        if value != "LogAppendTime":
            raise wrong_time_stamps(name, value)
