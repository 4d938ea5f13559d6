"""What the Faust shell runs: a pure core over the records of one input partition.

The shell knows nothing of windows or leases; the pipeline and the scheduler know nothing of Kafka. Simulation
and replay drive the same protocol. A core is free of clock, randomness, files and network: for one recorded
log, however it is cut into batches, it gives the same outputs, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

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

    def dump(self, state: S) -> bytes:
        """The state as bytes, to be read by :meth:`load` of the same or a later version."""
        ...

    def load(self, data: bytes) -> S:
        """Reads what :meth:`dump` wrote. Raises BadData."""
        ...
