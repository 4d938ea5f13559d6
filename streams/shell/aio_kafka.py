"""aiokafka (which Faust brings along): KafkaSettings as its arguments."""

from __future__ import annotations

from typing import Any

from driftline.connection import KafkaSettings, ssl_context


def options(settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments for an aiokafka producer or consumer."""
    found: dict[str, Any] = {
        "bootstrap_servers": settings.servers,
        "security_protocol": settings.security_protocol,
    }
    if (context := ssl_context(settings)) is not None:
        found["ssl_context"] = context
    if settings.sasl_mechanism:
        found |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    return found
