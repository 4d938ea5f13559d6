"""What to say where a broker lets a client in, but not to a topic or a group (Kafka's ACLs)."""

from __future__ import annotations

MAX_CHARS = 500
_MAX_DENIED_CHARS = 160
"""Clients quote the whole request."""


def in_words(error: object) -> str:
    """An error of a Kafka client as one line; where a right is missing, with the remedy.

    >>> in_words(ValueError("x"))
    "ValueError('x')"
    >>> in_words(RuntimeError("TopicAuthorizationFailedError: my.telemetry")).partition(":")[0]
    'this login lacks a right'
    """
    text = " ".join((error if isinstance(error, str) else repr(error)).split())
    if "AuthorizationFailed" not in text:
        return text[:MAX_CHARS]
    return (
        f"this login lacks a right: {text[:_MAX_DENIED_CHARS]}; have it granted (SECURITY.md lists the "
        "rights, or ACLs, that are needed), then this goes on by itself"
    )
