"""Encoded records waiting for the broker: bounded, numbered without holes, acknowledged in any order. Pure.

A record gets its sequence number only when there is room for it, so a drop leaves no hole in the numbers. The
newest are dropped, never those that have a number. Events (a process started, a checkpoint) may use a reserve
that samples may not, since samples must not push them out.
"""

from __future__ import annotations

from typing import NamedTuple

EVENT_RESERVE_BYTES = 2 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 200
"""What a waiting record costs beside its payload."""


class Waiting(NamedTuple):
    """A record without an acknowledgement."""

    seq: int
    payload: bytes
    samples: int


class Outbox:
    """See the module's docstring.

    >>> box = Outbox(limit_bytes=1000)
    >>> box.put(b"frame", samples=3), box.put(b"next", samples=1)
    (True, True)
    >>> box.next().seq, box.next().seq, box.next()
    (0, 1, None)
    >>> box.acknowledge(1)
    1
    >>> box.back(); box.next().seq  # 0 failed: again from the first not acknowledged
    0
    >>> box.next() is None, box.acknowledge(0), len(box)
    (True, 3, 0)
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._records: dict[int, Waiting] = {}
        self._cursor = 0
        self._sent_below = 0
        self.next_seq = 0
        """The number that the next record gets."""
        self.size_bytes = 0
        self.samples = 0
        """Samples in the waiting records."""
        self.in_flight_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def full(self) -> bool:
        """True if no frame fits: making one would be wasted."""
        return self.size_bytes >= self._limit_bytes

    @property
    def unsent(self) -> bool:
        """True if :meth:`next` may have something."""
        return self._cursor < self.next_seq

    def put(self, payload: bytes, *, samples: int, event: bool = False) -> bool:
        """Appends a record numbered :attr:`next_seq`; False if there is no room."""
        size = len(payload) + RECORD_OVERHEAD_BYTES
        limit = self._limit_bytes + (EVENT_RESERVE_BYTES if event else 0)
        if self.size_bytes + size > limit:
            return False
        self._records[self.next_seq] = Waiting(self.next_seq, payload, samples)
        self.next_seq += 1
        self.size_bytes += size
        self.samples += samples
        return True

    def next(self) -> Waiting | None:
        """The first record not handed out since the start or since :meth:`back`."""
        while self._cursor < self.next_seq:
            record = self._records.get(self._cursor)
            self._cursor += 1
            if record is not None:
                self.in_flight_bytes += len(record.payload)
                self._sent_below = max(self._sent_below, self._cursor)
                return record
        return None

    def back(self) -> None:
        """All that is not acknowledged is handed out again, from the first."""
        self._cursor = min(self._records, default=self.next_seq)
        self.in_flight_bytes = 0

    def sent_waiting(self) -> int:
        """Records that were handed out and are not acknowledged."""
        return sum(1 for seq in self._records if seq < self._sent_below)

    def acknowledge(self, seq: int) -> int | None:
        """The broker has it (or it is given up): its samples, or None if it does not wait (said twice)."""
        record = self._records.pop(seq, None)
        if record is None:
            return None
        self.size_bytes -= len(record.payload) + RECORD_OVERHEAD_BYTES
        self.samples -= record.samples
        if seq < self._cursor:
            self.in_flight_bytes = max(0, self.in_flight_bytes - len(record.payload))
        return record.samples
