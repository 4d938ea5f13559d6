"""``driftline spool``: what waits on this host's disk, sent by hand, or dropped.

A spool whose owner lives is never touched. The commands need no other process but the broker.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from driftline.clock import SECOND_US, Clock, SystemClock
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.producers.bell import Bell
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes
from driftline.producers.delivery import OPEN_US, Delivery
from driftline.producers.disk import Disk
from driftline.producers.kafka_transport import KafkaTransport
from driftline.producers.recovery import Broker, Left, claim, is_same_broker, may_live_elsewhere
from driftline.producers.survey import Standing, survey
from driftline.producers.transport import Transport
from driftline.visible import visible

Connect = Callable[[KafkaSettings, str], Transport]
HEAR_US = 20_000
_PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}
"""Texts of users are shown as they are."""


def print_status(disk: Disk, *, as_json: bool) -> int:
    """A table, or a JSON object per spool."""
    found = list(survey(disk))
    if as_json:
        for spool in found:
            print(json.dumps(msgspec.to_builtins(spool), ensure_ascii=False))
        return 0
    console = Console()
    if not found:
        console.print(f"nothing waits in {disk.where}", **_PLAIN)
        return 0
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("run", "process", "records", "samples", "size", "first", "last", "owner", "for"):
        right = name in ("records", "samples", "size")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for spool in found:
        table.add_row(*(Text(visible(cell)) for cell in _row(spool)))
    if not console.is_terminal:
        console.width = max(console.width, 240)
    console.print(table)
    for trouble in (trouble for spool in found for trouble in spool.troubles):
        console.print(f"damaged: {trouble}", style="red", **_PLAIN)
    waiting = [spool for spool in found if not spool.alive and spool.records]
    samples = sum(spool.samples for spool in waiting)
    if waiting:
        console.print(
            f"{samples:,} samples of {_dead(len(waiting))} wait in {disk.where}: `driftline spool send`",
            **_PLAIN,
        )
    return 0


def _row(spool: Standing) -> list[str]:
    header = spool.header
    run = process = broker = "?"
    if header is not None:
        run = f"{header.name} {header.run}".strip()
        process = header.process + ("" if header.rank is None else f" rank {header.rank}")
        broker = f"{header.bootstrap} {header.prefix}"
    owner = "alive" if spool.alive else "dead"
    if header is not None and header.host != socket.gethostname():
        owner += f" on {header.host}"
    size = (
        f"{spool.bytes / 1024:,.1f} KiB" if spool.bytes < 1 << 20 else f"{spool.bytes / (1 << 20):,.1f} MiB"
    )
    times = [_time(spool.first_us), _time(spool.last_us)]
    return [run, process, f"{spool.records:,}", f"{spool.samples:,}", size, *times, owner, broker]


def _dead(count: int) -> str:
    return "1 dead process" if count == 1 else f"{count} dead processes"


def _time(time_us: int | None) -> str:
    if time_us is None:
        return ""
    return datetime.fromtimestamp(time_us // SECOND_US, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def send(
    disk: Disk,
    kafka: KafkaSettings,
    *,
    run: str | None,
    other_brokers: bool,
    patience_us: int,
    connect: Connect = KafkaTransport,
    clock: Clock | None = None,
) -> int:
    """Sends the spools of dead processes, with a progress bar.

    Args:
        disk: where they are.
        kafka: the broker to send to.
        run: only those of this run, by id or name.
        other_brokers: also those that were written for another broker or prefix.
        patience_us: the broker may take nothing for so long.

    Raises:
        Unavailable: the broker took nothing for so long; what is left stays where it is.
    """
    clock = clock or SystemClock()
    broker = Broker(kafka.bootstrap, kafka.prefix, socket.gethostname())
    console = Console(stderr=True)
    chosen = list(_chosen(disk, broker, run, other_brokers, clock.now_us(), console))
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    records = samples = damaged = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("sending", total=sum(spool.bytes for spool in chosen))
        for spool in chosen:
            assert spool.header is not None
            left = claim(disk, spool.folder, spool.header)
            if left is None:
                console.print(f"not sent: {spool.folder}: somebody else sends it now", **_PLAIN)
                continue
            progress.update(task, description=escape(f"run {spool.header.run}"))
            sender = _Sender(kafka, spool.header.run, connect, patience_us, clock)
            try:
                sent = sender.send(left, lambda size: progress.advance(task, size))
            finally:
                left.close(now_us=clock.now_us())
                sender.close()
            records, samples = records + sent[0], samples + sent[1]
            damaged += left.damaged
            for trouble in left.unreadable:
                console.print(f"left where it is: {trouble}", **_PLAIN)
    if damaged:
        console.print(f"{damaged} places were damaged: their records are lost", style="red", **_PLAIN)
    if not chosen:
        print(f"nothing to send in {disk.where}")
        return 0
    print(f"sent {samples:,} samples in {records:,} records of {_dead(len(chosen))} to {kafka.bootstrap}")
    return 0


def _chosen(
    disk: Disk, broker: Broker, run: str | None, other_brokers: bool, now_us: int, console: Console
) -> Iterator[Standing]:
    """The spools that can be sent; says of the others why not."""
    for spool in survey(disk):
        header = spool.header
        if not _is_wanted(spool, run):
            continue
        reason = ""
        if header is None:
            reason = "nothing of it can be read"
        elif spool.alive:
            reason = f"its process {header.process} of run {header.run} lives and sends it by itself"
        elif may_live_elsewhere(header, broker.host, now_us - spool.changed_us):
            reason = (
                f"it was written on {header.host} within the last ten minutes: its process may live there"
            )
        elif not other_brokers and not is_same_broker(header, broker):
            reason = (
                f"it is for {header.bootstrap} with prefix {header.prefix}"
                + (f", written on {header.host}" if header.host != broker.host else "")
                + " (--all sends it all the same)"
            )
        if reason:
            console.print(f"not sent: {spool.folder}: {reason}", **_PLAIN)
        else:
            yield spool


def _is_wanted(spool: Standing, run: str | None) -> bool:
    return run is None or (spool.header is not None and run in (spool.header.run, spool.header.name))


def _is_dead(spool: Standing, host: str, now_us: int) -> bool:
    if spool.alive:
        return False
    header = spool.header
    return header is None or not may_live_elsewhere(header, host, now_us - spool.changed_us)


class _Sender:
    """Sends one spool after the other to the partition of its run."""

    def __init__(
        self, kafka: KafkaSettings, run: str, connect: Connect, patience_us: int, clock: Clock
    ) -> None:
        self._kafka, self._patience_us, self._clock = kafka, patience_us, clock
        self._transport = connect(kafka, run)
        self._bell = Bell()
        self._counters = Counters()

    def send(self, left: Left, advance: Callable[[int], Any]) -> tuple[int, int]:
        """Records and samples that were sent; ``advance`` hears of bytes."""
        while (outbox := left.load()) is not None:
            self._deliver(outbox, left, advance)
            left.delivered()
        refused = self._counters["records_refused"]
        if refused:
            print(f"the broker refused {refused} records for good: they are lost", file=sys.stderr)
        return self._counters["records_acknowledged"], self._counters["samples_delivered"]

    def _deliver(self, outbox: Outbox, left: Left, advance: Callable[[int], Any]) -> None:
        delivery = Delivery(
            outbox,
            self._transport,
            notify=self._bell.ring,
            counters=self._counters,
            notes=Notes(),
            clock=self._clock,
        )
        size = outbox.size_bytes
        heard_us = self._clock.steady_us()
        while len(outbox):
            delivery.pump(min(OPEN_US, self._patience_us))
            now_us = self._clock.steady_us()
            if outbox.size_bytes < size:
                advance(size - outbox.size_bytes)
                size, heard_us = outbox.size_bytes, now_us
            elif now_us - heard_us >= self._patience_us:
                delivery.close(timeout_us=0)
                raise Unavailable(
                    f"{self._kafka.bootstrap} took nothing for {self._patience_us / SECOND_US:g} s "
                    f"({delivery.trouble or 'no answer'}): what is left of run {left.header.run} stays here"
                )
            self._bell.wait(HEAR_US)

    def close(self) -> None:
        self._transport.close(timeout_us=SECOND_US)


def drop(disk: Disk, *, run: str | None, confirm: Callable[[str], bool], clock: Clock | None = None) -> int:
    """Deletes the spools of dead processes, after a confirmation that says how much."""
    now_us, host = (clock or SystemClock()).now_us(), socket.gethostname()
    found = [spool for spool in survey(disk) if _is_wanted(spool, run) and _is_dead(spool, host, now_us)]
    if not found:
        print(f"nothing to drop in {disk.where}")
        return 0
    samples = sum(spool.samples for spool in found)
    if not confirm(f"Delete {samples:,} samples of {_dead(len(found))} that no broker has?"):
        return 1
    for spool in found:
        folder = disk.claim(spool.folder)
        if folder is None:
            continue
        for file in folder.names():
            folder.delete(file)
        folder.remove()
    print(f"dropped {samples:,} samples of {_dead(len(found))}")
    return 0
