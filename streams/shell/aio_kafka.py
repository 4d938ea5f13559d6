"""aiokafka (which Faust brings along): KafkaSettings as its arguments, and LZ4 without another package.

The SDK compresses with LZ4. aiokafka reads that only through ``cramjam``; the base install has ``lz4``, so
where cramjam is absent, :func:`lend_lz4` puts ``lz4`` in its place. Without either, a compressed record stops
the consumer for good.
"""

from __future__ import annotations

from typing import Any

import aiokafka.codec
import lz4.frame

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


def lend_lz4() -> None:
    """Lets aiokafka read and write LZ4 in this process; does nothing where it already can."""
    if aiokafka.codec.cramjam is None:
        aiokafka.codec.cramjam = _Lz4InPlaceOfCramjam


class _Compressor:
    """The part of ``cramjam.lz4.Compressor`` that aiokafka uses."""

    def __init__(self, *, level: int, content_checksum: bool, block_linked: bool) -> None:
        self._options = {"content_checksum": content_checksum, "block_linked": block_linked}
        self._frame = b""

    def compress(self, payload: Any) -> None:
        self._frame = lz4.frame.compress(bytes(payload), compression_level=0, **self._options)

    def finish(self) -> bytes:
        return self._frame


class _Lz4InPlaceOfCramjam:
    class lz4:  # noqa: N801 - the name that aiokafka looks up
        Compressor = _Compressor

        @staticmethod
        def decompress(payload: Any) -> bytes:
            data: bytes = lz4.frame.decompress(payload)
            return data

    class _Absent:
        def __getattr__(self, name: str) -> Any:
            raise aiokafka.errors.UnsupportedCodecError(
                "records are compressed with snappy or zstd: pip install cramjam"
            )

    snappy = _Absent()
    zstd = _Absent()
