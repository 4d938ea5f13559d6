"""Kafka records as the pure core sees them, and the identity of what it puts out.

:func:`decode` is the one place that turns the bytes of a record of ``telemetry``, ``evals`` or
``assignments`` into a :class:`~driftline.frames.Frame` or an event. Frames start with Arrow's continuation
marker (0xFF), events are JSON objects.
"""

from __future__ import annotations

from typing import NamedTuple

from driftline import events, frames
from driftline.errors import BadRecord
from driftline.topics import TopicName

TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
_ARROW_MARKER = b"\xff\xff\xff\xff"


class Record(NamedTuple):
    """One record of the log: position, the broker's time of it, and its bytes."""

    partition: int
    offset: int
    time_ms: int
    value: bytes | None


def received(partition: int, offset: int, time_ms: int, value: bytes | None) -> Record:
    """A record as a client gives it. Its time is a writer's where the broker does not stamp records, so it is
    bounded to what calendars have."""
    return Record(partition, offset, max(-1, min(time_ms, TIME_MS_MAX)), value)


class Framed(NamedTuple):
    """A record that carries a frame which is decoded already: as a replay has it. It stands for a
    :class:`Record` with the frame's bytes."""

    partition: int
    offset: int
    time_ms: int
    frame: frames.Frame


class OutputId(NamedTuple):
    """Names an output by the input position that caused it: the same after every crash and in every replay.

    ``ordinal`` counts the outputs of one input record from 0. Within an output partition ids only grow, so a
    reader drops what was sent again with one high-water mark per (topic UUID, partition).
    """

    topic_uuid: str
    partition: int
    offset: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.topic_uuid}/{self.partition}/{self.offset}/{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> OutputId:
        """Reads what ``str`` wrote. Raises BadRecord on anything else."""
        parts = text.split("/")
        try:
            uuid, partition, offset, ordinal = parts
            return cls(uuid, int(partition), int(offset), int(ordinal))
        except ValueError as error:
            raise BadRecord(f"not an output id: {text!r}") from error


class Output(NamedTuple):
    """What the pure core wants sent: it goes to the partition that it came from, or to that
    of ``run`` where input and output topic are partitioned differently (``evals`` has one partition)."""

    topic: TopicName
    run: str
    value: bytes
    id: OutputId


def decode(value: bytes | None) -> frames.Frame | events.Event | events.Unknown:
    """Decodes a record's value.

    Raises:
        BadRecord: empty, neither a frame nor an event, or an event with missing or wrong fields.
    """
    if not value:
        raise BadRecord("empty record")
    if value.startswith(_ARROW_MARKER):
        try:
            return frames.decode(value)
        except BadRecord:
            claim = frames.claim_of(value)
            if claim is not None and claim.format != frames.FORMAT:
                return events.Unknown("frame", *claim)
            raise
    return events.decode(value)
