"""The spools of dead processes: found, claimed, sent, removed; by a later process of the run, or by hand.

A process looks once it is connected, and then every minute, for folders of its own run and broker whose owner
is dead (and, if they were written on another host, untouched for ten minutes). It claims one at a time, so
that the ranks of a run share them, and sends it segment by segment (8 MiB in memory) with the original
process and numbers, in their order, while it has nothing of its own to send. A segment is deleted when the
broker has all of it. Whoever is killed meanwhile leaves the rest to the next one, which may send records of
that segment again; readers drop those by their numbers.

What is damaged is left out, counted (``spool_damaged``) and named. A segment of a later format, and a spool
without any readable header, are left where they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from driftline.clock import Clock
from driftline.producers import spool_format
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes
from driftline.producers.delivery import Delivery
from driftline.producers.disk import Disk, Folder
from driftline.producers.spool import Waiting
from driftline.producers.spool_format import Header, Segment

LOOK_US = 60_000_000
STRANGER_US = 600_000_000
"""So long must the spool of another host be untouched: its lock may not be visible from here (NFS)."""
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")


class Broker(NamedTuple):
    """Where a process sends to."""

    bootstrap: str
    prefix: str
    host: str


def is_same_broker(header: Header, broker: Broker) -> bool:
    """Whether a spool was written for this broker: the same prefix and a server in common.

    A server on the loopback is a different one on each host.

    >>> header = Header(run="r", process="p", host="a", prefix="x.", bootstrap="k1:9092,k2:9092")
    >>> [is_same_broker(header, Broker("k2:9092", prefix, "b")) for prefix in ("x.", "y.")]
    [True, False]
    """
    return header.prefix == broker.prefix and bool(
        _servers(header.bootstrap, header.host) & _servers(broker.bootstrap, broker.host)
    )


def _servers(bootstrap: str, host: str) -> set[str]:
    named = {part.strip().rpartition("://")[2].lower() for part in bootstrap.split(",") if part.strip()}
    return {f"{server} on {host}" if server.startswith(_LOOPBACK) else server for server in named}


def may_live_elsewhere(header: Header, host: str, untouched_us: int) -> bool:
    """Whether the owner may live on another host, although its lock is free as seen from here."""
    return header.host != host and untouched_us < STRANGER_US


def header_of(folder: Folder) -> Header | None:
    """The first readable header of a spool. Raises OSError."""
    for file in folder.names():
        head = folder.read(file, 0, spool_format.HEADER_BYTES_MAX + 256)
        if header := spool_format.read(head).header:
            return header
    return None


def segments_of(folder: Folder) -> Iterator[tuple[str, bytes, Segment]]:
    """The segments of a spool, in order: file, bytes, what is in them. Raises OSError."""
    for file in folder.names():
        data = folder.read(file, 0, spool_format.SEGMENT_BYTES_MAX)
        yield file, data, spool_format.read(data)


class Left:
    """A claimed spool whose owner is dead: loaded segment by segment, each deleted when it was delivered."""

    def __init__(self, folder: Folder, header: Header) -> None:
        self._folder = folder
        self.name = folder.name
        self.header = header
        self._segments = segments_of(folder)
        self._loaded: tuple[str, Outbox] | None = None
        self._stay = False
        self.damaged = 0
        """Places at which records are missing."""
        self.unreadable: list[str] = []
        """Segments that are left where they are, with the reason."""

    def load(self) -> Outbox | None:
        """The waiting records of the next segment; None after the last. Raises OSError."""
        for file, data, found in self._segments:
            self.damaged += len(found.damages) + bool(found.torn)
            if found.foreign:
                self.unreadable.append(f"{self._folder.name}/{file}: {found.trouble}")
                continue
            outbox = Outbox.of(
                Waiting(entry.seq, data[entry.offset : entry.offset + entry.size], entry.samples)
                for entry in found.entries
            )
            self._loaded = file, outbox
            return outbox
        return None

    def delivered(self) -> None:
        """The broker has everything that was loaded last: it is deleted. Raises OSError."""
        if self._loaded is not None:
            self._folder.delete(self._loaded[0])
            self._loaded = None

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        self._folder.forget()

    def close(self, *, now_us: int) -> None:
        """Lets go of the spool; what is left of it can be claimed by others. Never raises."""
        if self._loaded is not None:
            file, outbox = self._loaded
            if len(outbox):
                below = outbox.first_waiting()
                mark = spool_format.encode_acknowledged(below=below, time_us=now_us)
                with contextlib.suppress(OSError):  # costs nothing but records sent twice
                    self._folder.append(file, mark)
            else:
                with contextlib.suppress(OSError):
                    self.delivered()
        with contextlib.suppress(OSError):
            if not self._folder.names():
                self._folder.remove()
                return
        self._folder.release()


def claim(disk: Disk, name: str, header: Header) -> Left | None:
    """The spool of a dead process, now ours; None if it is somebody's. Raises OSError."""
    folder = disk.claim(name)
    return None if folder is None else Left(folder, header)


class Recovery:
    """Has a live process send what dead ones of its run left; see the module's docstring."""

    def __init__(
        self,
        disk: Disk,
        delivery: Delivery,
        *,
        run: str,
        broker: Broker,
        counters: Counters,
        notes: Notes,
        clock: Clock,
    ) -> None:
        self._disk, self._delivery = disk, delivery
        self._run, self._broker = run, broker
        self._counters, self._notes, self._clock = counters, notes, clock
        self._look_us = 0
        self._done_with: set[str] = set()
        self._left: Left | None = None
        self._lane: tuple[int, Outbox] | None = None

    def round(self) -> None:
        """One small step, after each round of the delivery."""
        if self._lane is not None:
            number, outbox = self._lane
            if len(outbox):
                return
            self._delivery.drop(number)
            self._lane = None
        if not self._delivery.idle:
            return
        try:
            self._go_on()
        except OSError as error:
            self._counters.add("spool_errors")
            self._notes.once("recovery", f"a spool in {self._disk.where} cannot be read: {error}")
            self._done_with.discard(self._left.name if self._left else "")
            self._let_go()

    def close(self) -> None:
        """Leaves the rest to others."""
        if self._lane is not None:
            self._delivery.drop(self._lane[0])
            self._lane = None
        self._let_go()

    def forget(self) -> None:
        """In a forked child: what was claimed is the parent's."""
        if self._left is not None:
            self._left.forget()
        self._left = self._lane = None

    def _go_on(self) -> None:
        if self._left is None:
            if self._clock.steady_us() >= self._look_us:
                self._look()
            return
        try:
            self._left.delivered()
        except OSError as error:  # it stays with us, or it would be sent again each minute
            self._counters.add("spool_errors")
            where = f"{self._left.name} in {self._disk.where}"
            self._notes.once("delete", f"{where} was sent and cannot be deleted: {error}; delete it by hand")
            self._let_go()
            return
        outbox = self._left.load()
        if outbox is None:
            self._let_go()
            self._look_us = 0  # there may be more of them
        else:
            self._lane = self._delivery.adopt(outbox), outbox

    def _look(self) -> None:
        self._look_us = self._clock.steady_us() + LOOK_US
        for name in self._disk.names():
            ours = spool_format.is_folder(name) and name.startswith(spool_format.run_part(self._run))
            if not ours or name in self._done_with:
                continue
            try:
                self._left = self._claimed(name)
            except OSError:
                continue  # another user's, or gone meanwhile
            if self._left is not None:
                self._done_with.add(name)
                self._notes.once(
                    ("recovery", name),
                    f"sends what process {self._left.header.process} of this run left in {self._disk.where}",
                )
                return

    def _claimed(self, name: str) -> Left | None:
        """The spool, if it is one of ours to send, now. Raises OSError."""
        folder = self._disk.look(name)
        try:
            header = header_of(folder)
            empty = header is None and not folder.names()
            untouched_us = self._clock.now_us() - folder.changed_us()
        finally:
            folder.release()
        if empty and (nothing := self._disk.claim(name)):
            nothing.remove()  # its owner died, or lost its disk, before it wrote anything
        if header is None or header.run != self._run or not is_same_broker(header, self._broker):
            return None
        if may_live_elsewhere(header, self._broker.host, untouched_us):
            return None
        return claim(self._disk, name, header)

    def _let_go(self) -> None:
        if self._left is None:
            return
        left, self._left = self._left, None
        left.close(now_us=self._clock.now_us())
        self._counters.add("spool_damaged", left.damaged)
        if left.damaged or left.unreadable:
            what = [f"{left.damaged} places are damaged, their records are lost"] if left.damaged else []
            self._notes.once(
                ("damage", left.header.process),
                f"the spool of process {left.header.process}: {'; '.join(what + left.unreadable)}",
            )
