"""How every client reaches Kafka: one settings struct, one translation per client library.

Secrets come from the environment or a file, never from the command line, and are never shown.
"""

from __future__ import annotations

import ssl
from typing import Any, Literal

import msgspec

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


def kafka_python(settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments for any kafka-python client."""
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
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        if getattr(settings, name):
            options[name] = getattr(settings, name)
    return options


def ssl_context(settings: KafkaSettings) -> ssl.SSLContext | None:
    """For clients that take a context (Faust); None without TLS."""
    if "SSL" not in settings.security_protocol.split("_"):
        return None
    context = ssl.create_default_context(cafile=settings.ssl_cafile)
    if settings.ssl_certfile:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    return context
