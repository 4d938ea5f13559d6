"""The SDK's thread: takes what was logged, frames it, keeps it within bounds, hands it to the transport.

One round drains the queue, flushes what is due, and pumps the outbox; rounds begin by interval, by size, or
at once when the trainer's thread rings (first NaN, checkpoint, full queue, end). The trainer calls nothing
here but ``end`` and ``flush``, and no error leaves: what fails is counted under ``errors`` and said once.

The interval grows with the world size, so that all ranks together make at most about 2,000 frames a second.

All that is outside comes as arguments, so one thread can also drive several workers, by ``round()``, over a
:class:`.transport.MemoryTransport`, a :class:`.memory_disk.MemoryDisk` (each worker its own view of it) and
a clock; at the end ``_finish`` and ``_leave``, or, for a kill, ``disk.die()``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
import numpy as np

from driftline import events, frames
from driftline.clock import Clock
from driftline.errors import BadData
from driftline.producers import checkpoint, forks
from driftline.producers.bell import Bell
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes, words
from driftline.producers.delivery import OPEN_US, Delivery
from driftline.producers.disk import Disk
from driftline.producers.entries import Defined, QueueEntry, Rewound, Saved
from driftline.producers.framer import Framer, halves
from driftline.producers.intake import Intake
from driftline.producers.pace import Pace, world_us
from driftline.producers.protect import Protector
from driftline.producers.recovery import Broker, Recovery
from driftline.producers.spool import Spool
from driftline.producers.spool_format import Header
from driftline.producers.transport import Transport
from driftline.settings import SdkSettings
from driftline.topics import DEFAULT_PREFIX

DEVICE_POLL_US = 2_000
NAME_CHARS_MAX = 1000
OVERTAKE_US = 1_000_000
"""So long may the thread be in the middle of something when the time to end is over."""
LEAVE_US = 300_000
"""Of the time to end, what is kept for writing the rest to disk."""

EndReason = Literal["finished", "exception", "signal"]


class _Overtaken(BaseException):
    """Ends the thread: another one has done the rest."""


class Worker:
    """See the module's docstring. ``run`` is the thread's body; everything else is called from it."""

    def __init__(
        self,
        *,
        queue: deque[QueueEntry],
        drained: Callable[[int], None],
        started: events.ProcessStarted,
        settings: SdkSettings,
        transport: Transport,
        counters: Counters,
        notes: Notes,
        clock: Clock,
        broker: str,
        prefix: str = DEFAULT_PREFIX,
        disk: Disk | None = None,
    ) -> None:
        self._started = started
        self._settings = settings
        self._counters, self._notes = counters, notes
        self._clock = clock
        self.broker = broker
        """Where records go, in words for people."""
        self._disk = disk
        self._turn = threading.Lock()
        """Free while the thread is in foreign code that may hang: whoever has it may touch what is here."""
        self._turn.acquire()
        self.bell = Bell()
        self.outbox = Outbox(
            limit_bytes=settings.buffer_bytes,
            spool=_spool(disk, started, settings, broker, prefix, counters, notes, clock),
        )
        self.delivery = Delivery(
            self.outbox,
            transport,
            notify=self.bell.ring,
            counters=counters,
            notes=notes,
            clock=clock,
            outside=self._outside,
        )
        self.framer = Framer(
            run=started.run,
            process=started.process,
            rank=started.rank,
            frame_samples=settings.frame_samples,
            counters=counters,
            notes=notes,
        )
        self._intake = Intake(
            queue,
            self.framer,
            drained=drained,
            full=lambda: self._frame(full_only=True),
            mark=self._mark,
            failed=self._failed,
            counters=counters,
            notes=notes,
            clock=clock,
        )
        self.recovery = (
            Recovery(
                disk,
                self.delivery,
                run=started.run,
                broker=Broker(broker, prefix, started.host),
                counters=counters,
                notes=notes,
                clock=clock,
            )
            if disk is not None and settings.spool_bytes
            else None
        )
        self._protector = Protector(started.process, settings, counters, notes)
        self._pace = Pace(
            flush_us=settings.flush_us,
            rank=started.rank,
            world_size=started.world_size,
            now_us=clock.steady_us(),
        )
        self._heartbeat_us = max(settings.heartbeat_us, world_us(started.world_size))
        self._spoke_us = clock.steady_us()
        self._told_counters = 0
        self._flushes_wanted = 0
        self._end: tuple[EndReason, int] | None = None
        self.flushes_done = 0
        self.ended = False
        self._accounted = self._overtaken = self._end_said = False

    # --- called from other threads: plain writes and the bell ------------------------------------------

    def end(self, reason: EndReason, *, deadline_us: int) -> None:
        """Asks the thread to send what is left and to stop by the steady time ``deadline_us``."""
        if self._end is None:
            self._end = (reason, deadline_us)
        self.bell.ring()

    def flush(self) -> int:
        """Has all that was logged so far sent now: done when ``flushes_done`` is the returned number."""
        self._flushes_wanted += 1
        wanted = self._flushes_wanted
        self.bell.ring()
        return wanted

    # --- the thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until :meth:`end`; never raises."""
        try:
            self._guarded(_warm_up)
            self.begin()
            while self._end is None:
                self._guarded(self.round)
                if self._end is None:
                    self.bell.wait(self._pause_us())
            self.conclude()
        except _Overtaken:
            self.delivery.close(timeout_us=0)
        finally:
            self._turn.release()

    def begin(self) -> None:
        """The first record."""
        self._guarded(lambda: self._emit(self._started))

    def conclude(self) -> None:
        """After :meth:`end`: what is left goes to the broker, or to disk, within the deadline."""
        assert self._end is not None, "told to end"
        reason, deadline_us = self._end
        self._guarded(lambda: self._finish(reason, deadline_us))
        self._guarded(self._leave)
        self._guarded(
            lambda: self.delivery.close(timeout_us=max(0, deadline_us - self._clock.steady_us()) // 2)
        )
        self._guarded(self._notes.write)
        self.ended = True

    def overtake(self) -> None:
        """On another thread, when the time to end is over and ours has not: everything is accounted for.

        A client that takes its time to be imported or to connect is left to itself, and what it would have
        sent goes to disk. If ours hangs elsewhere (a disk that does not answer), what is not on disk is lost,
        and counted.
        """
        assert self._end is not None, "told to end"
        reason = self._end[0]
        if self._accounted:
            return
        if self._turn.acquire(timeout=OVERTAKE_US / 1e6):
            if not self._accounted:
                self._guarded(lambda: self._finish(reason, 0))
                self._guarded(self._leave)
                self._overtaken = self.ended = True
            self._turn.release()
        elif not self._accounted:
            self._accounted = self._overtaken = self.ended = True
            unframed = self._intake.abandon()
            self._counters.add("samples_logged", unframed)
            self._counters.add("dropped_end", unframed + self.framer.samples + self.outbox.memory_samples)
            self._counters.add("samples_spooled", self.outbox.spooled_samples)

    @contextmanager
    def _outside(self) -> Iterator[None]:
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
            if self._overtaken:
                raise _Overtaken

    def round(self) -> None:
        """One turn: drain, flush what is due, send, speak."""
        wanted = self._flushes_wanted  # read before the queue, so that it covers what was logged before it
        self._intake.drain()
        now_us = self._clock.steady_us()
        if wanted > self.flushes_done or self.framer.urgent:
            self._pace.sent(now_us)
            self._frame()
        else:
            self._frame(full_only=not self._pace.due(now_us, self.framer.samples > 0))
        if now_us - self._spoke_us >= self._heartbeat_us:
            self._frame()  # a heartbeat tells how far we are: it must not overtake samples
            if len(self.outbox):  # what waits says more than that we live, once it arrives
                self._spoke_us = now_us
            else:
                self._heartbeat()
        self._protector.turn(now_us)
        self.delivery.pump(OPEN_US)
        if self.recovery is not None:
            self.recovery.round()
        if wanted > self.flushes_done and not (self._intake.waiting or len(self.outbox)):
            self.flushes_done = wanted
        self._notes.write()

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._overtaken:
            raise _Overtaken
        try:
            action()
        except Exception as error:  # noqa: BLE001  nothing may end this thread; counted and named
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._counters.add("errors")
        self._notes.once(
            ("error", words(error)), f"an error inside the SDK, training is not affected: {words(error, 500)}"
        )

    def _pause_us(self) -> int:
        if self._intake.waiting:
            return DEVICE_POLL_US
        now_us = self._clock.steady_us()
        return min(
            max(1000, self._pace.next_us - now_us),
            max(1000, self._spoke_us + self._heartbeat_us - now_us),
        )

    def _mark(self, entry: QueueEntry) -> None:
        try:
            self._marker(entry)
        except Exception as error:  # noqa: BLE001  foreign files and values; counted and named
            if isinstance(entry[3], Saved):
                self._counters.add("checkpoints_refused")
            self._failed(error)

    def _marker(self, entry: QueueEntry) -> None:
        """A declaration; or a checkpoint or a rewind: samples logged before it go first."""
        time_us, step, marker = entry[0] // 1000, entry[1], entry[3]
        if isinstance(marker, Defined):
            self._emit(
                events.MetricDefined(
                    run=self._started.run,
                    process=self._started.process,
                    seq=self.outbox.next_seq,
                    time_us=time_us,
                    **marker._asdict(),
                )
            )
            return
        self._frame()
        if isinstance(marker, Saved):
            try:
                found = checkpoint.describe(marker.path, step=step, epoch=marker.epoch, format=marker.format)
            except BadData as error:
                self._counters.add("checkpoints_refused")
                self._notes.once(("checkpoint", str(error)), f"not announced: {error}")
                return
            copy = self._protector.protect(found)
            if copy:
                found = msgspec.structs.replace(found, copy=copy)
            self._emit(
                events.CheckpointSaved(
                    run=self._started.run,
                    process=self._started.process,
                    seq=self.outbox.next_seq,
                    time_us=time_us,
                    checkpoint=events.with_bounded_manifest(found),
                    rank=self._started.rank,
                )
            )
            self._counters.add("checkpoints_saved")
        elif isinstance(marker, Rewound):
            self._intake.step = step
            self._emit(
                events.RunRewound(
                    run=self._started.run,
                    process=self._started.process,
                    seq=self.outbox.next_seq,
                    time_us=time_us,
                    step=step,
                )
            )

    def _heartbeat(self) -> None:
        self._emit(
            events.Heartbeat(
                run=self._started.run,
                process=self._started.process,
                seq=self.outbox.next_seq,
                time_us=self._clock.now_us(),
                step=self._intake.step,
                counters=self._counters.snapshot(),
            )
        )

    def _frame(self, *, full_only: bool = False) -> None:
        """What the framer holds goes to the outbox."""
        for frame in self.framer.take(full_only=full_only):
            self._put(frame)

    def _put(self, frame: frames.Frame) -> None:
        samples = len(frame.metric)
        if self.outbox.full:
            self._drop(samples)
            return
        changed, counters = self._counters.exceptional()
        if changed == self._told_counters:
            counters = ""
        payload = frames.encode(frame._replace(seq=self.outbox.next_seq, counters=counters))
        if len(payload) > self.delivery.record_bytes_max and samples > 1:
            self._counters.add("frames_split")
            for half in halves(frame):
                self._put(half)
        elif self.outbox.put(payload, samples=samples):
            self._told_counters = changed
            self._counters.add("frames_made")
            self._spoke_us = self._clock.steady_us()
        else:
            self._drop(samples)

    def _drop(self, samples: int) -> None:
        self._counters.add("dropped_buffer", samples)
        self._notes.once(
            "buffer",
            f"{self._settings.buffer_bytes} bytes of frames wait in memory for the broker ({self.broker}), "
            "which takes nothing, and no more goes to disk: new samples are dropped, counted; training is "
            "not affected",
        )

    def _emit(self, event: events.FromProcess) -> None:
        if not self.outbox.put(events.encode(event), samples=0, event=True):
            self._counters.add("events_dropped")
            self._notes.once(
                ("event", events.kind_of(event)), f"no room for the event {events.kind_of(event)}: dropped"
            )
        self._spoke_us = self._clock.steady_us()

    def _finish(self, reason: EndReason, deadline_us: int) -> None:
        """Everything out, the last event, and patience until the deadline."""
        self._intake.drain()
        patience_us = deadline_us - self._settings.exit_us // 2
        while self._intake.waiting and self._clock.steady_us() < patience_us:
            time.sleep(DEVICE_POLL_US / 1e6)
            self._intake.drain()
        self._intake.give_up()
        self._frame()
        if not self._end_said:  # else our thread had come so far, and hangs in the connection
            self._end_said = True
            self._emit(
                events.ProcessEnded(
                    run=self._started.run,
                    process=self._started.process,
                    seq=self.outbox.next_seq,
                    time_us=self._clock.now_us(),
                    outcome=reason,
                    counters=self._counters.snapshot(),
                )
            )
        margin_us = min(LEAVE_US, self._settings.exit_us // 10)
        self.delivery.pump_until(deadline_us - margin_us, wait=self.bell.wait)

    def _leave(self) -> None:
        """What the broker does not have goes to disk; then every sample that was logged is accounted for."""
        if self.recovery is not None:
            self.recovery.close()
        self._counters.add("dropped_end", self.outbox.close())
        self._counters.add("samples_spooled", self.outbox.spooled_samples)
        self._accounted = True

    @property
    def spooled_to(self) -> str:
        """The folder of the spools, in words for people."""
        return self._disk.where if self._disk is not None else ""

    def forget(self) -> None:
        """In a forked child: connection and files are the parent's."""
        self.delivery.forget()
        self.outbox.forget()
        if self.recovery is not None:
            self.recovery.forget()


def _spool(
    disk: Disk | None,
    started: events.ProcessStarted,
    settings: SdkSettings,
    broker: str,
    prefix: str,
    counters: Counters,
    notes: Notes,
    clock: Clock,
) -> Spool | None:
    if disk is None or not settings.spool_bytes:
        return None
    header = Header(
        run=started.run,
        process=started.process,
        name=started.name[:NAME_CHARS_MAX],
        rank=started.rank,
        host=started.host,
        pid=started.pid,
        bootstrap=broker,
        prefix=prefix,
        created_us=clock.now_us(),
    )
    return Spool(
        disk,
        header,
        limit_bytes=settings.spool_bytes,
        reserve_bytes=settings.spool_reserve_bytes,
        counters=counters,
        notes=notes,
        clock=clock,
    )


def _warm_up() -> None:
    """What libraries import at their first use (pyarrow: numpy.ma) is imported here, between forks."""
    floats, integers = np.zeros(0), np.zeros(0, np.int64)
    with forks.importing():
        empty = frames.Frame("", "", None, 0, [], np.zeros(0, np.int16), integers, integers, floats, floats)
        frames.encode(empty)
        "localhost".encode("idna")
