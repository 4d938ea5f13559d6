"""The SDK's Kafka client where it does something else than the transport promises (found by tests/sim)."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors
from kafka.future import Future

from driftline.connection import KafkaSettings
from driftline.producers import kafka_transport
from driftline.producers.kafka_transport import KafkaTransport


class Sender:
    """Records when the client's thread was told to stop."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def initiate_close(self) -> None:
        self.told.append("initiate_close")

    def force_close(self) -> None:
        self.told.append("force_close")


class Client:
    """As much of kafka-python's producer as the transport uses."""

    def __init__(self, **_options: Any) -> None:
        self.config: dict[str, Any] = {}
        self.futures: list[Any] = []
        self._sender = Sender()
        self._closed = False

    def partitions_for(self, _topic: str) -> set[int]:
        return set(range(8))

    def send(self, *_what: Any, **_how: Any) -> Any:
        self.futures.append(Future())
        return self.futures[-1]

    def _unregister_cleanup(self) -> None: ...

    def close(self, timeout: float) -> None: ...


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> KafkaTransport:
    monkeypatch.setattr("kafka.KafkaProducer", Client)
    monkeypatch.setattr(kafka_transport.handshake, "let_in", lambda settings, timeout_s: settings)
    way = KafkaTransport(KafkaSettings(), "run")
    way.open(timeout_us=1_000_000, notify=lambda: None)
    return way


@pytest.mark.parametrize("error", [errors.OutOfOrderSequenceNumberError, errors.KafkaTimeoutError])
def test_nothing_behind_a_record_that_failed_is_sent_before_it(opened: KafkaTransport, error: Any) -> None:
    """After a lost sequence kafka-python goes on with the records behind the failed one, under a new epoch;
    they would be in the log before it, and readers would take it for a copy."""
    client: Any = opened._producer
    for seq in range(3):
        opened.send(seq, b"x")
    client.futures[0].success(None)
    assert client._sender.told == []
    client.futures[1].failure(error("no"))
    assert client._sender.told == ["initiate_close", "force_close"]
    assert [(o.seq, o.error is None) for o in opened.outcomes()] == [(0, True), (1, False)]


def test_so_it_is_behind_a_record_that_is_too_large(opened: KafkaTransport) -> None:
    """It is cut, and its parts keep its place."""
    client: Any = opened._producer
    opened.send(0, b"x")
    client.futures[0].failure(errors.MessageSizeTooLargeError("no"))
    assert client._sender.told == ["initiate_close", "force_close"]
    assert [(o.final, o.too_large) for o in opened.outcomes()] == [(True, True)]
