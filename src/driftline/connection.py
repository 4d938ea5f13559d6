"""How every client reaches Kafka: one settings struct, one translation per client library.

Secrets come from the environment or a file, never from the command line, and are never shown.
"""

from __future__ import annotations

import ssl
from typing import Any, Literal, TypeVar

import msgspec

from driftline.errors import Refused
from driftline.topics import DEFAULT_PARTITIONS, DEFAULT_PREFIX, Topics

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class KafkaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the broker is and how to talk to it."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    """host:port, several joined by commas."""
    prefix: str = DEFAULT_PREFIX
    """Begins every topic name."""
    partitions: int = DEFAULT_PARTITIONS
    """Partitions of the topics that are keyed by run; fixed when the topics are made."""
    replication: int = 1
    """Copies of each partition when driftline makes the topics."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_key_password: str | None = None

    @property
    def topics(self) -> Topics:
        return Topics(self.prefix)

    @property
    def servers(self) -> list[str]:
        return [part.strip() for part in self.bootstrap.split(",") if part.strip()]

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap={self.bootstrap!r}, prefix={self.prefix!r})"


RECONNECT_MAX_MS = 1_000
"""The longest pause between attempts to reach a broker that is away. kafka-python's own grows to 30 s, and
every client would be that late after an outage."""


SECRETS = ("sasl_password", "ssl_key_password")
"""Fields that must not leave the process."""


def without_secrets(settings: KafkaSettings) -> KafkaSettings:
    """The settings as they may be written somewhere."""
    return msgspec.structs.replace(settings, **dict.fromkeys(SECRETS))


def with_secrets_of(settings: KafkaSettings, other: KafkaSettings) -> KafkaSettings:
    """The settings, with the secrets that they lack taken from ``other``."""
    lacking = {name: getattr(other, name) for name in SECRETS if getattr(settings, name) is None}
    return msgspec.structs.replace(settings, **lacking)


def kafka_python(settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments for any kafka-python client. Raises Refused for certificates that cannot be used."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.servers,
        "security_protocol": settings.security_protocol,
        "reconnect_backoff_max_ms": RECONNECT_MAX_MS,
    }
    if settings.sasl_mechanism:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    if (context := ssl_context(settings)) is not None:
        options["ssl_context"] = context
    return options


def ssl_context(settings: KafkaSettings) -> ssl.SSLContext | None:
    """What all clients check the broker with and show themselves by; None without TLS.

    The broker's certificate must come from a trusted authority (``ssl_cafile``, else the system's) and name
    the host that is asked for; there is no switch to skip that.

    Raises:
        Refused: a certificate or key file cannot be used; names which and the remedy.
    """
    if "SSL" not in settings.security_protocol.split("_"):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ssl_cafile)
    except (OSError, ValueError) as error:
        remedy = f"cannot be read as PEM certificates: {_reason(error)}"
        raise Refused("kafka.ssl_cafile", settings.ssl_cafile, remedy) from None
    if settings.ssl_certfile:
        _show(context, settings)
    return context


def _show(context: ssl.SSLContext, settings: KafkaSettings) -> None:
    """Adds the client's own certificate. A locked key without a password would make OpenSSL ask on the
    terminal, for ever: the callback keeps it from that."""
    assert settings.ssl_certfile
    password = settings.ssl_key_password
    asked = False

    def answer() -> str:
        nonlocal asked
        asked = True
        return password or ""

    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, answer)
    except (OSError, ValueError) as error:
        if asked:
            shown = "***" if password else None
            remedy = "does not open the key: " if password else "the key is locked: "
            remedy += "set DRIFTLINE_KAFKA__SSL_KEY_PASSWORD or kafka.ssl_key_password_file"
            raise Refused("kafka.ssl_key_password", shown, remedy) from None
        files = f"{settings.ssl_certfile}, {settings.ssl_keyfile or 'no ssl_keyfile'}"
        remedy = f"certificate and key cannot be used together: {_reason(error)}"
        raise Refused("kafka.ssl_certfile", files, remedy) from None


def _reason(error: Exception) -> str:
    """What OpenSSL or the system says, without its file and line."""
    told = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(str(told).replace("_", " ").split()).lower()


C = TypeVar("C")


def opened(kind: type[C], **options: Any) -> C:
    """A kafka-python client that makes no topics; one that cannot be made leaves no thread behind.

    The constructors start a thread before they look for a broker, and kafka-python 3.0.12 forgets it when
    there is none: a role that waits for an hour would collect thousands. It also keeps the option
    ``allow_auto_create_topics`` to itself: whoever asked for a topic first had it made, with as many
    partitions as the broker likes.
    """
    client: Any = kind.__new__(kind)
    try:
        client.__init__(**options)
    except BaseException:
        if (network := getattr(client, "_net", None)) is not None:
            network.stop()
        raise
    for cluster in (getattr(client, name, None) for name in ("_metadata", "_cluster")):
        if cluster is not None:
            cluster.config["allow_auto_create_topics"] = False
    made: C = client
    return made
