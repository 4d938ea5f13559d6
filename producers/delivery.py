"""From the outbox to the transport and back: connects, sends within a window, hears what became of records.

After any failure the transport is closed, opened again after a pause, and sending goes on from the first
record without an acknowledgement, so that the log holds a process's records in the order of their numbers.
A record that the broker refuses for good is given up after three tries, counted, so that those behind it go
on.

Known to be away is a broker that could not be reached, that failed, or that acknowledged nothing for a second
while records were on their way; until it acknowledges one again. The outbox is told, and keeps records on
disk.

Beside the outbox of this process there may be those of dead ones (:meth:`Delivery.adopt`): they share the
connection and the window, and send only while ours has nothing to send.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from driftline.clock import Clock
from driftline.errors import BadRecord, Refused, Unavailable
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes, words
from driftline.producers.transport import Outcome, Transport
from driftline.topics import MAX_FRAME_BYTES

IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Handed to the transport and not acknowledged; the client holds a copy of these."""
OPEN_US = 2_000_000
"""The longest that one attempt to connect may hold up the thread."""
RETRY_US = 1_000_000
"""Pause after an attempt that failed: short, since a probe is cheap and samples wait."""
LOSS_PAUSE_US_MAX = 16_000_000
"""The longest pause when the broker lets us in and then takes nothing (no permission, for example)."""
SILENCE_US = 1_000_000
"""Records are on their way and none was acknowledged for so long: the broker is away."""
SILENCE_SAID_US = 10_000_000
"""After so long that is said."""
REFUSALS_MAX = 3
RECORD_BYTES_MIN = 4 * 1024
"""Records are not cut below this because of the topic's limit."""
_LANE_BITS = 48
"""A record is known to the transport by its lane and its number in it; ours is lane 0."""


class _Lane(NamedTuple):
    outbox: Outbox
    delivered: str
    refused: str
    """Names of the counters of samples."""


class Delivery:
    """Owns the transport; used by the SDK's thread only."""

    def __init__(
        self,
        outbox: Outbox,
        transport: Transport,
        *,
        notify: Callable[[], None],
        counters: Counters,
        notes: Notes,
        clock: Clock,
        outside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._outbox, self._transport, self._notify = outbox, transport, notify
        self._outside = outside
        self._counters, self._notes, self._clock = counters, notes, clock
        self._lanes = {0: _Lane(outbox, "samples_delivered", "dropped_broker")}
        self._lanes_made = 1
        self._connected = False
        self._away = False
        self._heard_us = 0
        self._try_open_us = 0
        self._failures = 0
        self._losses = 0
        self._refused_us = 0
        self.trouble = ""
        """Why the last attempt to connect or to send failed."""
        self._refusals: dict[int, int] = {}
        self.record_bytes_max = MAX_FRAME_BYTES
        """What the topic is thought to take; smaller after each refusal because of the size."""

    @property
    def idle(self) -> bool:
        """The broker is well and has been handed everything of ours."""
        return self._connected and not self._away and not self._outbox.unsent

    def adopt(self, outbox: Outbox) -> int:
        """Also sends the records of a dead process; the number is for :meth:`drop`."""
        number, self._lanes_made = self._lanes_made, self._lanes_made + 1
        self._lanes[number] = _Lane(outbox, "spool_recovered", "spool_refused")
        return number

    def drop(self, number: int) -> None:
        """Forgets an outbox that was adopted."""
        del self._lanes[number]

    def pump(self, open_us: int) -> None:
        """Outcomes in, records out, within the window; connects when it is time to."""
        if self._connected:
            self._hear()
        if not self._connected and self._waits() and self._clock.steady_us() >= self._try_open_us:
            self._open(open_us)
        for number, lane in self._lanes.items():
            self._send(number, lane.outbox)
        if self._connected:
            self._hear()
        self._judge()

    def _waits(self) -> bool:
        return any(len(lane.outbox) for lane in self._lanes.values())

    def _in_flight_bytes(self) -> int:
        return sum(lane.outbox.in_flight_bytes for lane in self._lanes.values())

    def _send(self, number: int, outbox: Outbox) -> None:
        while self._connected and outbox.unsent and (in_flight := self._in_flight_bytes()) < IN_FLIGHT_BYTES:
            if not in_flight:
                self._heard_us = self._clock.steady_us()  # silence begins when there is something to hear of
            try:
                record = outbox.next()
                if record is None:
                    return
                self._transport.send(number << _LANE_BITS | record.seq, record.payload)
            except Unavailable as error:
                self._hear()  # what was refused behind its back says more
                if self._connected:
                    self._lost(str(error))
                return
            self._counters.add("records_sent")

    def _open(self, open_us: int) -> None:
        trouble, self.trouble = self.trouble, self.trouble or "the connection was not made in time"
        try:
            with self._outside():  # imports, names, connections: it may take longer than its time
                self._transport.open(timeout_us=open_us, notify=self._notify)
        except Exception as error:  # noqa: BLE001  Unavailable, or the client cannot even be loaded: tried again later
            self._counters.add("connection_failures")
            self._try_open_us = self._clock.steady_us() + RETRY_US
            self.trouble = str(error) if isinstance(error, Unavailable) else words(error)
            self._failures += 1
            self._away = True
            if isinstance(error, Refused):
                self._refused_us = min(LOSS_PAUSE_US_MAX, 2 * self._refused_us or RETRY_US)
                self._try_open_us = self._clock.steady_us() + self._refused_us
                self._notes.once(
                    "refused us",
                    f"nothing can be sent: {self.trouble}; samples wait, training is not affected",
                )
                return
            if self._failures < 2:  # one slow answer is no news
                return
            self._notes.once(
                "away",
                f"the broker is not there: {self.trouble}; samples wait, training is not affected",
            )
            return
        self._counters.add("connections")
        self.trouble = trouble
        self._failures = self._refused_us = 0
        self._notes.again("away")
        self._notes.again("refused us")
        self._connected = True
        self._counters.add("records_resent", sum(lane.outbox.sent_waiting() for lane in self._lanes.values()))
        for lane in self._lanes.values():
            lane.outbox.back()

    def _hear(self) -> None:
        failure, cut = "", False
        for outcome in self._transport.outcomes():
            if outcome.error is not None:
                failure = failure or outcome.error
                cut = cut or self._failed(outcome)
                continue
            self._losses, self._away, self._heard_us = 0, False, self._clock.steady_us()
            self._notes.again("silent")
            lane, samples = self._acknowledge(outcome.seq)
            if lane is not None:
                self._counters.add("records_acknowledged")
                self._counters.add(lane.delivered, samples)
        for remark in self._transport.remarks():
            self._notes.once(("remark", remark), remark)
        if cut:
            self._close()
            self._try_open_us = 0
        elif failure:
            self._lost(failure)

    def _acknowledge(self, token: int) -> tuple[_Lane | None, int]:
        """The lane and the samples of a record that no longer waits; None if it did not."""
        lane = self._lanes.get(token >> _LANE_BITS)
        samples = lane.outbox.acknowledge(token & (1 << _LANE_BITS) - 1) if lane else None
        return (None, 0) if samples is None else (lane, samples)

    def _failed(self, outcome: Outcome) -> bool:
        """A record that the broker never takes is given up after a few tries, so that the others go on.

        True if it was cut into smaller ones instead.
        """
        self._counters.add("send_failures")
        if not outcome.final:
            return False
        if outcome.too_large and self._cut(outcome):
            return True
        tries = self._refusals[outcome.seq] = self._refusals.get(outcome.seq, 0) + 1
        if tries < REFUSALS_MAX:
            return False
        del self._refusals[outcome.seq]
        lane, samples = self._acknowledge(outcome.seq)
        if lane is not None:
            self._counters.add("records_refused")
            self._counters.add(lane.refused, samples)
            self._notes.once(
                ("refused", str(outcome.error)[:60]),
                f"the broker refuses a record for good: {outcome.error}",
            )
        return False

    def _cut(self, outcome: Outcome) -> bool:
        """A record that is too large for the topic goes in parts; so do those that follow."""
        size = None if outcome.seq >> _LANE_BITS else self._outbox.size_of(outcome.seq)
        if size is None:
            return False  # of a dead process, which gives no new numbers
        self.record_bytes_max = min(self.record_bytes_max, max(RECORD_BYTES_MIN, size // 2))
        try:
            more = self._outbox.cut(outcome.seq, self.record_bytes_max)
        except BadRecord:
            more = 0
        if not more and self._outbox.size_of(outcome.seq) == size:
            return False
        self._refusals.clear()
        self._counters.add("frames_split", more)
        self._notes.once(
            "too large",
            f"the topic takes no record of {size} bytes ({outcome.error}): it goes in parts, as do others of "
            "its size; raise the topic's max.message.bytes to 1048576",
        )
        return True

    def _lost(self, why: str) -> None:
        """Gives the connection up; another one will send from the first unacknowledged record."""
        self._away = True
        self.trouble = why
        self._close()
        self._try_open_us = self._clock.steady_us() + min(RETRY_US // 4 << self._losses, LOSS_PAUSE_US_MAX)
        self._losses += 1
        self._notes.once(("lost", why[:60]), f"sending failed and is tried again: {why}")

    def _close(self) -> None:
        self._connected = False
        with self._outside():
            self._transport.close(timeout_us=0)

    def _judge(self) -> None:
        """Tells the outbox whether the broker is there."""
        silent_us = self._clock.steady_us() - self._heard_us if self._in_flight_bytes() else 0
        if silent_us >= SILENCE_US:
            self._away = True
        if silent_us >= SILENCE_SAID_US and self._connected:
            self.trouble = "the broker acknowledges nothing"
            self._notes.once(
                "silent",
                "the broker takes records and acknowledges none: it hangs, or has fewer copies in step than "
                "min.insync.replicas asks for; samples wait, training is not affected",
            )
        if self._away:
            self._outbox.broker_away()
        else:
            self._outbox.broker_well()

    def pump_until(self, deadline_us: int, *, wait: Callable[[int], bool]) -> None:
        """Sends what is left of ours until all is acknowledged or the steady time is ``deadline_us``."""
        self._try_open_us = 0
        while len(self._outbox):
            left_us = deadline_us - self._clock.steady_us()
            if left_us <= 0:
                return
            self.pump(min(OPEN_US, left_us))
            if len(self._outbox):
                wait(min(left_us, 20_000))

    def close(self, *, timeout_us: int) -> None:
        """Lets go of the transport."""
        self._connected = False
        self._transport.close(timeout_us=timeout_us)

    def forget(self) -> None:
        """In a forked child: lets go without touching what belongs to the parent."""
        self._connected = False
        self._transport.forget()
