"""What keeps a client out is named with the setting and the remedy; nobody tries for ever in silence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import driftline
from driftline import events
from driftline.admin import connect
from driftline.cli.watch import watch
from driftline.clock import SystemClock
from driftline.connection import KafkaSettings
from driftline.errors import Refused, SettingsError, Unavailable
from driftline.evaluator.desk import Desk
from driftline.evaluator.link import Link
from driftline.evaluator.transport import KafkaTransport, MemoryTransport, Transport
from driftline.handshake import refusal
from driftline.settings import EvaluatorSettings, SdkSettings, Settings, StorageSettings
from driftline.storage.sink import run_sink
from driftline.streams.worker import run_streams

real = pytest.mark.kafka
WRONG = "wr0ng-Pa55-of-the-test"


def on_host(settings: KafkaSettings, host: str) -> str:
    return f"{host}:{settings.bootstrap.rpartition(':')[2]}"


Spoil = Callable[[Any], KafkaSettings]
CASES: dict[str, tuple[Spoil, str, str]] = {
    "wrong password, PLAIN": (
        lambda k: k.sasl("x.", sasl_password=WRONG), "kafka.sasl_password", "sasl_password_file"
    ),
    "wrong password, SCRAM": (
        lambda k: k.sasl("x.", sasl_password=WRONG, sasl_mechanism="SCRAM-SHA-256"),
        "kafka.sasl_password", "user 'trainer' by SCRAM-SHA-256",
    ),
    "unknown user": (lambda k: k.sasl("x.", sasl_username="nobody"), "kafka.sasl_password", "'nobody'"),
    "mechanism not offered": (
        lambda k: k.sasl("x.", sasl_mechanism="SCRAM-SHA-512"), "kafka.sasl_mechanism", "PLAIN, SCRAM-SHA-256"
    ),
    "another authority": (
        lambda k: k.sasl("x.", ssl_cafile=str(k.authority.other_ca)), "kafka.ssl_cafile", "not trusted"
    ),
    "no authority": (lambda k: k.sasl("x.", ssl_cafile=None), "kafka.ssl_cafile", "file of its authority"),
    "another host name": (
        lambda k: k.sasl("x.", bootstrap=on_host(k.sasl("x."), "localhost")),
        "kafka.bootstrap", "not valid for 'localhost'",
    ),
    "no client certificate": (
        lambda k: k.mutual("x.", ssl_certfile=None, ssl_keyfile=None),
        "kafka.ssl_certfile", "kafka.ssl_keyfile",
    ),
    "key without its password": (
        lambda k: k.mutual("x.", ssl_keyfile=str(k.authority.locked_key)),
        "kafka.ssl_key_password", "DRIFTLINE_KAFKA__SSL_KEY_PASSWORD",
    ),
    "key with another password": (
        lambda k: k.mutual("x.", ssl_keyfile=str(k.authority.locked_key), ssl_key_password=WRONG),
        "kafka.ssl_key_password", "does not open the key",
    ),
    "no TLS where the broker wants it": (
        lambda k: k.sasl("x.", security_protocol="SASL_PLAINTEXT"), "kafka.security_protocol", "SASL_SSL"
    ),
    "nothing where the broker wants TLS": (
        lambda k: k.mutual("x.", security_protocol="PLAINTEXT"), "kafka.security_protocol", "write SSL"
    ),
    "TLS where the broker has none": (
        lambda k: k.sasl("x.", bootstrap=k.broker.bootstrap), "kafka.security_protocol", "speaks no TLS"
    ),
    "login where the broker has none": (
        lambda k: k.sasl("x.", bootstrap=k.broker.bootstrap, security_protocol="SASL_PLAINTEXT"),
        "kafka.security_protocol", "no login on that port",
    ),
    "no login where the broker wants one": (
        lambda k: k.sasl("x.", security_protocol="SSL", sasl_mechanism=None),
        "kafka.security_protocol", "asks for a login",
    ),
}  # fmt: skip


@real
@pytest.mark.parametrize("case", CASES)
def test_what_keeps_us_out_is_named_with_its_remedy(secure_kafka: Any, case: str) -> None:
    spoil, key, remedy = CASES[case]
    found = refusal(spoil(secure_kafka), timeout_s=60)
    assert found is not None
    assert found.key == key
    assert remedy in str(found)
    assert "\n" not in str(found)
    assert WRONG not in str(found)


@real
def test_a_plain_client_at_a_port_with_tls_is_told_so(secure_kafka: Any) -> None:
    with pytest.raises(Refused, match="write SSL"):
        connect(secure_kafka.mutual("x.", security_protocol="PLAINTEXT"))


def test_a_broker_that_is_away_or_says_nonsense_is_no_refusal() -> None:
    """Waiting can help there; only what the other side said itself ends a role."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                with link:
                    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        nonsense = f"127.0.0.1:{server.getsockname()[1]}"
        for protocol in ("PLAINTEXT", "SSL"):
            for bootstrap in ("127.0.0.1:1", nonsense):
                settings = KafkaSettings(bootstrap=bootstrap, security_protocol=protocol)  # type: ignore[arg-type]
                assert refusal(settings, timeout_s=2) is None
        server.shutdown(socket.SHUT_RDWR)


def wrong(secure_kafka: Any) -> Settings:
    return Settings(kafka=secure_kafka.sasl("x.", sasl_password=WRONG))


@real
def test_roles_that_were_never_let_in_end_with_2_and_one_line(
    secure_kafka: Any, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(kafka=wrong(secure_kafka).kafka, storage=StorageSettings(root=str(tmp_path / "data")))
    assert run_streams(settings) == 2
    told = [line for line in capfd.readouterr().err.splitlines() if "driftline streams:" in line]
    assert len(told) == 1
    assert "kafka.sasl_password" in told[0]
    lines: list[str] = []
    assert run_sink(settings, say=lines.append) == 2
    assert [line for line in lines if "kafka.sasl_password" in line] == lines
    assert len(lines) == 1
    link = _link(lambda: KafkaTransport(settings.kafka, client_id="test"))
    link.start()
    link.join(240)
    assert isinstance(link.failure, SettingsError)
    with pytest.raises(Refused):  # exit code 2 of every command
        watch(settings.kafka, lines=True)


@real
def test_a_command_ends_with_2_and_one_line_without_the_password(
    secure_kafka: Any, parts: Callable[..., Any], support: Any
) -> None:
    kafka = secure_kafka.sasl("x.")
    named = ("bootstrap", "security_protocol", "sasl_mechanism", "sasl_username", "ssl_cafile")
    here = parts(
        {"kafka": {name: getattr(kafka, name) for name in named}}, DRIFTLINE_KAFKA__SASL_PASSWORD=WRONG
    )
    done = here.run("watch", "--once")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "driftline watch: kafka.sasl_password: '***'" in done.stderr


@real
def test_training_with_a_wrong_password_goes_on_says_so_once_and_ends_in_time(
    secure_kafka: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sdk = SdkSettings(system=(), exit_us=2_000_000)
    run = driftline.init(settings=Settings(kafka=wrong(secure_kafka).kafka, sdk=sdk), rank=0)
    end = time.monotonic() + 240
    while not any("kafka.sasl_password" in message for message in caplog.messages):
        run.log({"loss": 1.0}, step=1)
        assert time.monotonic() < end
        time.sleep(0.01)
    before = time.monotonic()
    run.finish()
    assert time.monotonic() - before < 60, "the bound is 2 s"
    assert sum("nothing can be sent" in message for message in caplog.messages) == 1
    assert sum("not delivered" in message for message in caplog.messages) == 1
    assert WRONG not in caplog.text


def _link(connect: Callable[[], Transport]) -> Link:
    settings, clock = EvaluatorSettings(announce_us=20_000), SystemClock()
    return Link(
        connect,
        Desk("me", clock),
        evaluator="me",
        suites=[],
        device="cpu",
        settings=settings,
        clock=clock,
    )


def test_an_evaluator_that_was_let_in_waits_when_it_is_refused_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that restarts may not know its users for a moment; only at the start is it a matter of
    settings."""
    monkeypatch.setattr("driftline.evaluator.link.RETRY_US", 10_000)
    first, second = MemoryTransport(), MemoryTransport()
    answers: list[Any] = [first, Refused("kafka.sasl_password", "***", "refused"), second]
    asked = threading.Event()

    def connect() -> Transport:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        if not answers:
            asked.set()
        return answer  # type: ignore[no-any-return]

    link = _link(connect)
    link.start()
    first.connected = False
    try:
        assert asked.wait(120)
    finally:
        link.stop()
        link.join(120)
    assert link.failure is None
    told = [events.decode(parcel.value) for parcel in second.sent]
    assert any(isinstance(event, events.EvaluatorGone) for event in told)
