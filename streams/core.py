"""What the Faust shell runs: a pure core over the records of one input partition.

The shell knows nothing of windows or leases; the pipeline and the scheduler know nothing of Kafka. Simulation
and replay drive the same protocol. A core is free of clock, randomness, files and network: for one recorded
log, however it is cut into batches, it gives the same outputs, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from driftline import events
from driftline.errors import BadRecord
from driftline.records import Output, Record
from driftline.topics import TopicName

S = TypeVar("S")


class Core(Protocol[S]):
    """A pure step function with its state's life cycle; ``S`` is the state of one input partition."""

    source: TopicName
    """The input topic."""

    def fresh(self, topic_uuid: str, partition: int) -> S:
        """State before the first record of the partition."""
        ...

    def prime(self, state: S, record: Record) -> None:
        """Gives a fresh state the first configuration of its log, which holds from the log's beginning.

        ``record`` carries it (:func:`is_configuration`); it is not applied here, it comes by in its turn. So
        a run that began before the first worker did is not worked on with defaults, and everything still
        follows from the log alone. A configuration that cannot be used changes nothing.
        """
        ...

    def step(self, state: S, records: Sequence[Record]) -> list[Output]:
        """Applies records in offset order, changing ``state``; returns outputs in order.

        The shell promises that offsets go up by one, apart from holes that the log itself has (compaction,
        transaction markers, retention). An undecodable record gives a ``dead-letter`` output, never an error.
        """
        ...

    def gap(self, state: S, start: int, end: int) -> list[Output]:
        """The log no longer has offsets [start, end): note it loudly."""
        ...

    def config_digest(self, state: S) -> str | None:
        """Digest of the configuration that the log last set, None before the first."""
        ...

    def notices(self, state: S) -> list[str]:
        """What the people who run the worker should read in its log as long as it holds, a sentence each."""
        ...

    def dump(self, state: S) -> bytes:
        """The state as bytes, to be read by :meth:`load` of the same or a later version."""
        ...

    def load(self, data: bytes) -> S:
        """Reads what :meth:`dump` wrote. Raises BadData."""
        ...


def is_configuration(value: bytes | None) -> bool:
    """Whether a record's value is a ``ConfigChanged``."""
    if not value or b"config_changed" not in value[:256]:
        return False
    try:
        return isinstance(events.decode(value), events.ConfigChanged)
    except BadRecord:
        return False


def beginning(core: Core[S], topic_uuid: str, partition: int, log: Sequence[Record]) -> S:
    """The state before the first record of ``log``, primed with the first configuration in it."""
    state = core.fresh(topic_uuid, partition)
    first = next((record for record in log if is_configuration(record.value)), None)
    if first is not None:
        core.prime(state, first)
    return state
