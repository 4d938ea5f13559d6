"""Encoded records waiting for the broker: bounded, numbered without holes, acknowledged in any order.

Two tiers keyed by number. While the broker is well, records are in memory only. Once it is known to be away
(:meth:`Outbox.broker_away`), or half of the memory is used, those that wait are moved to the disk tier
(:mod:`.spool`), in order, and those that follow are put there at once; that ends when the broker takes
records again and all of them were handed out (:meth:`Outbox.broker_well`). What the disk does not take stays
in memory, within its bound.

A record gets its sequence number only when there is room for it, so a drop leaves no hole in the numbers. The
newest are dropped, never those that have a number. Events (a process started, a checkpoint) may use a reserve
that samples may not, since samples must not push them out.
"""

from __future__ import annotations

from collections.abc import Iterable

from driftline.producers.cutting import renumbered
from driftline.producers.spool import Spool, Waiting

EVENT_RESERVE_BYTES = 2 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 200
"""What a waiting record costs in memory beside its payload."""


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

    def __init__(self, *, limit_bytes: int, spool: Spool | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._spool = spool
        self._spooling = False
        self._memory: dict[int, Waiting] = {}
        self._memory_samples = 0
        self._cursor = 0
        self._sent_below = 0
        self.next_seq = 0
        """The number that the next record gets."""
        self.size_bytes = 0
        """In memory."""
        self.in_flight_bytes = 0

    @classmethod
    def of(cls, records: Iterable[Waiting]) -> Outbox:
        """Records that have their numbers, which grow; none can be put behind them."""
        box = cls(limit_bytes=0)
        for record in records:
            box._keep(record)
        box._cursor = box._sent_below = min(box._memory, default=0)
        return box

    def __len__(self) -> int:
        return len(self._memory) + (len(self._spool) if self._spool else 0)

    @property
    def samples(self) -> int:
        """Samples in the waiting records."""
        return self._memory_samples + self.spooled_samples

    @property
    def memory_samples(self) -> int:
        """Of these, those in memory."""
        return self._memory_samples

    @property
    def spooled_samples(self) -> int:
        """Of these, those on disk."""
        return self._spool.samples if self._spool else 0

    @property
    def full(self) -> bool:
        """True if no frame fits: making one would be wasted."""
        return self.size_bytes >= self._limit_bytes and not (self._spool and self._spool.room)

    @property
    def unsent(self) -> bool:
        """True if :meth:`next` may have something."""
        return self._cursor < self.next_seq

    def put(self, payload: bytes, *, samples: int, event: bool = False) -> bool:
        """Appends a record numbered :attr:`next_seq`; False if there is no room."""
        if self._spool is not None and (self._spooling or self.size_bytes > self._limit_bytes // 2):
            self._spooling = True
            if self._move() and self._spool.append(self.next_seq, payload, samples):
                self.next_seq += 1
                return True
        limit = self._limit_bytes + (EVENT_RESERVE_BYTES if event else 0)
        if self.size_bytes + len(payload) + RECORD_OVERHEAD_BYTES > limit:
            return False
        self._keep(Waiting(self.next_seq, payload, samples))
        return True

    def next(self) -> Waiting | None:
        """The first record not handed out since the start or since :meth:`back`.

        Raises:
            Unavailable: it is on a disk that cannot be read now.
        """
        while self._cursor < self.next_seq:
            record = self._memory.get(self._cursor)
            if record is None and self._spool is not None:
                record = self._spool.find(self._cursor)
            self._cursor += 1
            if record is not None:
                self.in_flight_bytes += len(record.payload)
                self._sent_below = max(self._sent_below, self._cursor)
                return record
        return None

    def back(self) -> None:
        """All that is not acknowledged is handed out again, from the first."""
        spooled = self._spool.first_waiting() if self._spool else None
        in_memory = next(iter(self._memory), None)
        waiting = [seq for seq in (spooled, in_memory) if seq is not None]
        self._cursor = min(waiting, default=self.next_seq)
        self.in_flight_bytes = 0

    def sent_waiting(self) -> int:
        """Records that were handed out and are not acknowledged."""
        on_disk = self._spool.waiting_below(self._sent_below) if self._spool else 0
        return on_disk + sum(1 for seq in self._memory if seq < self._sent_below)

    def first_waiting(self) -> int:
        """The number below which everything is acknowledged."""
        return min(self._memory, default=self.next_seq)

    def acknowledge(self, seq: int) -> int | None:
        """The broker has it (or it is given up): its samples, or None if it does not wait (said twice)."""
        record = self._memory.get(seq)
        if record is not None:
            self._let_go(record)
            samples, size = record.samples, len(record.payload)
        else:
            found = self._spool.acknowledge(seq) if self._spool else None
            if found is None:
                return None
            samples, size = found
        if seq < self._cursor:
            self.in_flight_bytes = max(0, self.in_flight_bytes - size)
        return samples

    def size_of(self, seq: int) -> int | None:
        """Bytes of a record that waits. Raises Unavailable if it is on a disk that cannot be read now."""
        record = self._memory.get(seq)
        if record is None and self._spool is not None:
            record = self._spool.find(seq)
        return None if record is None else len(record.payload)

    def cut(self, seq: int, limit_bytes: int) -> int:
        """Cuts what waits from record ``seq`` on to records of ``limit_bytes``, numbered anew from there on.

        For a record that the broker refused because of its size, while it has none of those behind it.
        Returns how many records more it is then; 0 if nothing was done, since some of them are on disk,
        where they keep their numbers. Raises BadRecord for what is no record of an SDK process.
        """
        waiting = [record for record in self._memory.values() if record.seq >= seq]
        if (self._spool and len(self._spool)) or len(waiting) != self.next_seq - seq:
            return 0
        made = renumbered(waiting, limit_bytes)
        for record in waiting:
            self._let_go(record)
        for record in made:
            self._keep(record)
        self._cursor, self._sent_below = min(self._cursor, seq), min(self._sent_below, seq)
        self.in_flight_bytes = 0
        return len(made) - len(waiting)

    def broker_away(self) -> None:
        """What waits, and what comes, goes to disk, as far as there is one with room."""
        if self._spool is not None:
            self._spooling = True
            self._move()

    def broker_well(self) -> None:
        """Records may stay in memory again, once nothing is left that was not handed out."""
        if not self.unsent:
            self._spooling = False

    def close(self) -> int:
        """Moves what is left to disk and lets go of it. Returns the samples that only memory has: lost."""
        if self._spool is not None:
            self._move()
            self._spool.close()
        return self._memory_samples

    def forget(self) -> None:
        """In a forked child: what is on disk is the parent's."""
        if self._spool is not None:
            self._spool.forget()

    def _keep(self, record: Waiting) -> None:
        self._memory[record.seq] = record
        self.next_seq = record.seq + 1
        self.size_bytes += len(record.payload) + RECORD_OVERHEAD_BYTES
        self._memory_samples += record.samples

    def _let_go(self, record: Waiting) -> None:
        del self._memory[record.seq]
        self.size_bytes -= len(record.payload) + RECORD_OVERHEAD_BYTES
        self._memory_samples -= record.samples

    def _move(self) -> bool:
        """Records in memory go to disk, in order, as long as it takes them; True if none is left."""
        assert self._spool is not None
        if not self._memory or not self._spool.room:
            return not self._memory
        for record in list(self._memory.values()):
            if not self._spool.append(*record):
                return False
            self._let_go(record)
        return True
