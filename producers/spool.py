"""The disk tier of the outbox: the records of one process while its broker is away.

Nothing is on disk while the broker is well. The first record that is appended makes a folder
(:mod:`.spool_format` says what is in it) which this process owns (:mod:`.disk`) until it has no record left.
A record is handed to the kernel by ``append``: it survives the end of the process in any way, kill -9
included. It is not synced: a crash of the operating system or a power cut loses what the kernel had not
written back (on Linux up to about 30 s), and never more than that, since what is torn or missing is seen by
its checksum.

Records are appended in the order of their numbers. Segments of 8 MiB are deleted one by one as soon as the
broker has all that is in them. Bounds: ``limit_bytes`` on disk, and ``reserve_bytes`` that stay free on the
file system, whoever fills it; in memory about 25 bytes for each record. An append that fails is cut off
again, counted, said once, and not tried again for a second: meanwhile ``append`` returns False.

Used by the SDK's thread only::

    disk = FileDisk(folder)                                  # or MemoryDisk()
    spool = Spool(disk, Header(run=..., process=...), limit_bytes=1 << 30, reserve_bytes=1 << 30,
                  counters=counters, notes=notes, clock=clock)
    spool.append(7, payload, samples=3)                      # True: it is on disk
    spool.find(7)                                            # Waiting(7, payload, 3)
    spool.acknowledge(7)                                     # gone from the disk
    spool.close()                                            # what waits stays, for the next process
"""

from __future__ import annotations

import bisect
import contextlib
from array import array
from typing import NamedTuple

from driftline.clock import Clock
from driftline.errors import Unavailable
from driftline.producers import spool_format
from driftline.producers.counters import Counters, Notes
from driftline.producers.disk import Disk, Folder
from driftline.producers.spool_format import Header

SEGMENT_BYTES = 8 * 1024 * 1024
AGAIN_US = 1_000_000
"""Pause after an operation that failed."""
UNREADABLE_US = 60_000_000
MARK_US = 1_000_000
"""How often it is written down how far the broker has come."""
FREE_BYTES_CHECKED = 1024 * 1024
"""The free space is asked for again after so much was written."""
_NEVER = 1 << 64


class Waiting(NamedTuple):
    """A record without an acknowledgement."""

    seq: int
    payload: bytes
    samples: int


class _Segment:
    """A file and the index of its records."""

    __slots__ = ("done", "name", "offsets", "samples", "seqs", "size", "sizes", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.seqs, self.offsets = array("Q"), array("I")
        self.sizes, self.samples = array("I"), array("I")
        self.done = bytearray()
        self.waiting = 0

    def find(self, seq: int) -> int | None:
        """The index of a record that waits."""
        at = bisect.bisect_left(self.seqs, seq)
        return at if at < len(self.seqs) and self.seqs[at] == seq and not self.done[at] else None

    def first(self) -> int:
        return self.seqs[0] if self.seqs else _NEVER

    def first_waiting(self) -> int:
        return self.seqs[self.done.index(0)]


class Spool:
    """See the module's docstring."""

    def __init__(
        self,
        disk: Disk,
        header: Header,
        *,
        limit_bytes: int,
        reserve_bytes: int,
        counters: Counters,
        notes: Notes,
        clock: Clock,
    ) -> None:
        self._disk, self._header = disk, header
        self._limit_bytes, self._reserve_bytes = limit_bytes, reserve_bytes
        self._counters, self._notes, self._clock = counters, notes, clock
        self._folder: Folder | None = None
        self._segments: list[_Segment] = []
        self._outages = self._made = 0
        self._again_us = 0
        self._free_bytes = 0
        self._free_until_bytes = 0
        self._written_bytes = 0
        self._mark_us = 0
        self._unreadable_us = 0
        self._marked = 0
        self._closed = False
        self.size_bytes = 0
        """On disk."""
        self.samples = 0
        """In the records that wait."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def where(self) -> str:
        return self._disk.where

    @property
    def room(self) -> bool:
        """False if the next append would not even be tried."""
        return (
            not self._closed
            and self.size_bytes < self._limit_bytes
            and self._clock.steady_us() >= self._again_us
        )

    def append(self, seq: int, payload: bytes, samples: int) -> bool:
        """Writes a record, whose number is above all before it; False if there is no room or it failed."""
        if not self.room:
            return False
        entry = spool_format.encode_record(
            seq=seq, time_us=self._clock.now_us(), samples=samples, payload=payload
        )
        if self.size_bytes + len(entry) > self._limit_bytes:
            self._full(f"its {self._limit_bytes} bytes are used (sdk.spool_bytes)")
            return False
        try:
            if not self._leaves_reserve(len(entry)):
                self._full(
                    f"less than {self._reserve_bytes} bytes are left on that file system (sdk.spool_reserve)"
                )
                return False
            segment = self._segment_for(len(entry))
            offset = segment.size
            self._write(segment, entry)
        except OSError as error:
            self._failed(error)
            return False
        assert not segment.seqs or seq > segment.seqs[-1], "records are spooled in the order of their numbers"
        segment.seqs.append(seq)
        segment.offsets.append(offset)
        segment.sizes.append(len(payload))
        segment.samples.append(samples)
        segment.done.append(0)
        segment.waiting += 1
        self._waiting += 1
        self.samples += samples
        self._counters.add("spool_written", samples)
        return True

    def find(self, seq: int) -> Waiting | None:
        """A record that waits, read from disk; None if it does not wait here.

        A record that comes back damaged is lost: counted, and no longer waits. So is one that could not be
        read for a minute: somebody took the disk away, and what is behind it must not wait for ever.

        Raises:
            Unavailable: the disk cannot be read now.
        """
        segment = self._holding(seq)
        at = None if segment is None else segment.find(seq)
        if segment is None or at is None or self._folder is None:
            return None
        size = spool_format.ENTRY_BYTES + segment.sizes[at]
        try:
            entry = self._folder.read(segment.name, segment.offsets[at], size)
        except FileNotFoundError:
            entry = b""  # somebody deleted it
        except OSError as error:
            self._counters.add("spool_errors")
            now_us = self._clock.steady_us()
            self._unreadable_us = self._unreadable_us or now_us
            if now_us - self._unreadable_us < UNREADABLE_US:
                raise Unavailable(f"the spool in {self.where} cannot be read: {error}") from error
            self._again_us = now_us + UNREADABLE_US  # what comes is better off in memory
            entry = b""
        else:
            self._unreadable_us = 0
        payload = spool_format.payload_in(entry)
        if payload is not None and len(entry) == size:
            return Waiting(seq, payload, segment.samples[at])
        self._counters.add("dropped_spool", segment.samples[at])
        self._notes.once(
            "damaged", f"records of the spool in {self.where} did not come back whole: lost, counted"
        )
        self.acknowledge(seq)
        return None

    def acknowledge(self, seq: int) -> tuple[int, int] | None:
        """The record is no longer needed: its samples and the size of its payload; None if it is not here."""
        segment = self._holding(seq)
        at = None if segment is None else segment.find(seq)
        if segment is None or at is None:
            return None
        segment.done[at] = 1
        segment.waiting -= 1
        self._waiting -= 1
        self.samples -= segment.samples[at]
        found = segment.samples[at], segment.sizes[at]
        self._tidy(segment)
        return found

    def first_waiting(self) -> int | None:
        """The lowest number that waits."""
        return next((segment.first_waiting() for segment in self._segments if segment.waiting), None)

    def waiting_below(self, seq: int) -> int:
        """How many records with lower numbers wait."""
        return sum(
            segment.done.count(0, 0, bisect.bisect_left(segment.seqs, seq)) for segment in self._segments
        )

    def close(self) -> None:
        """Lets go of the folder; what waits stays in it. Never raises."""
        self._closed = True
        if self._folder is None:
            return
        self._mark(self._clock.steady_us())
        self._folder.release()
        self._folder = None

    def forget(self) -> None:
        """In a forked child: the files are the parent's."""
        self._closed = True
        if self._folder is not None:
            self._folder.forget()
            self._folder = None

    # --- inside ----------------------------------------------------------------------------------------

    def _holding(self, seq: int) -> _Segment | None:
        """The segment that can hold a number."""
        at = bisect.bisect_right(self._segments, seq, key=_Segment.first)
        return self._segments[at - 1] if at else None

    def _leaves_reserve(self, size: int) -> bool:
        if self._written_bytes >= self._free_until_bytes:
            self._free_bytes = self._disk.free_bytes() + self._written_bytes
            self._free_until_bytes = self._written_bytes + FREE_BYTES_CHECKED
        return self._free_bytes - self._written_bytes - size >= self._reserve_bytes

    def _segment_for(self, size: int) -> _Segment:
        """The last segment, or a new one with its header."""
        if self._folder is None:
            self._outages += 1
            self._folder = self._disk.create(
                spool_format.folder_of(self._header.run, self._header.process, self._outages)
            )
        if self._segments and self._segments[-1].size + size <= SEGMENT_BYTES:
            return self._segments[-1]
        self._made += 1
        segment = _Segment(spool_format.segment_name(self._made))
        self._write(segment, spool_format.encode_header(self._header))
        self._segments.append(segment)
        return segment

    def _write(self, segment: _Segment, data: bytes) -> None:
        """Appends all of it or nothing; after a failure to cut off, the next record begins a segment."""
        assert self._folder is not None
        try:
            self._folder.append(segment.name, data)
        except OSError:
            try:
                if segment.size:
                    self._folder.truncate(segment.name, segment.size)
                else:
                    self._folder.delete(segment.name)
            except OSError:
                segment.size += SEGMENT_BYTES  # torn at its end: nothing may follow there
            raise
        segment.size += len(data)
        self.size_bytes += len(data)
        self._written_bytes += len(data)

    def _full(self, why: str) -> None:
        self._again_us = self._clock.steady_us() + AGAIN_US
        self._free_until_bytes = 0
        self._notes.once(
            "spool",
            f"no more is spooled to {self.where}: {why}; further samples wait in memory, then they are "
            "dropped, counted",
        )

    def _failed(self, error: OSError) -> None:
        self._counters.add("spool_errors")
        self._again_us = self._clock.steady_us() + AGAIN_US
        self._free_until_bytes = 0
        self._notes.once(
            "spool",
            f"the spool in {self.where} cannot be written ({error}; sdk.spool names another folder): "
            "samples wait in memory only, then they are dropped, counted",
        )
        if not self._segments:
            self._leave()

    def _tidy(self, segment: _Segment) -> None:
        """Deletes what the broker has; notes how far it has come."""
        if self._folder is None:
            return
        if not self._waiting:
            for each in self._segments:
                self._delete(each)
            self._segments.clear()
            self._leave()
            self._notes.again("spool")
        elif not segment.waiting and segment is not self._segments[-1]:
            self._delete(segment)
            self._segments.remove(segment)
        elif self._clock.steady_us() - self._mark_us >= MARK_US:
            self._mark(self._clock.steady_us())

    def _leave(self) -> None:
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
        self.size_bytes = self._made = 0

    def _delete(self, segment: _Segment) -> None:
        assert self._folder is not None
        try:
            self._folder.delete(segment.name)
        except OSError as error:  # sent again by whoever finds it; readers drop that
            self._counters.add("spool_errors")
            self._notes.once("delete", f"{segment.name} in {self.where} cannot be deleted: {error}")
        self.size_bytes -= min(self.size_bytes, segment.size)

    def _mark(self, now_us: int) -> None:
        """Writes into the oldest segment what the broker has, so that it is not sent again by the next."""
        self._mark_us = now_us
        oldest = next((segment for segment in self._segments if segment.waiting), None)
        if oldest is None or oldest.first_waiting() in (oldest.first(), self._marked):
            return
        below = oldest.first_waiting()
        mark = spool_format.encode_acknowledged(below=below, time_us=self._clock.now_us())
        with contextlib.suppress(OSError):  # costs nothing but records sent twice
            self._write(oldest, mark)
            self._marked = below
