"""From the outbox to the transport and back: connects, sends within a window, hears what became of records.

After any failure the transport is closed, opened again after a pause, and sending goes on from the first
record without an acknowledgement, so that the log holds a process's records in the order of their numbers.
A record that the broker refuses for good is given up after three tries, counted, so that those behind it go
on.
"""

from __future__ import annotations

from collections.abc import Callable

from driftline.clock import Clock
from driftline.errors import Unavailable
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes, words
from driftline.producers.transport import Transport

IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Handed to the transport and not acknowledged; the client holds a copy of these."""
OPEN_US = 2_000_000
"""The longest that one attempt to connect may hold up the thread."""
RETRY_US = 1_000_000
"""Pause after an attempt that failed: short, since a probe is cheap and samples wait."""
LOSS_PAUSE_US_MAX = 16_000_000
"""The longest pause when the broker lets us in and then takes nothing (no permission, for example)."""
REFUSALS_MAX = 3


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
    ) -> None:
        self._outbox, self._transport, self._notify = outbox, transport, notify
        self._counters, self._notes, self._clock = counters, notes, clock
        self._connected = False
        self._try_open_us = 0
        self._failures = 0
        self._losses = 0
        self.trouble = ""
        """Why the last attempt to connect or to send failed."""
        self._refusals: dict[int, int] = {}

    def pump(self, open_us: int) -> None:
        """Outcomes in, records out, within the window; connects when it is time to."""
        if self._connected:
            self._hear()
        if not self._connected and len(self._outbox) and self._clock.steady_us() >= self._try_open_us:
            self._open(open_us)
        while self._connected and self._outbox.unsent and self._outbox.in_flight_bytes < IN_FLIGHT_BYTES:
            record = self._outbox.next()
            if record is None:
                break
            try:
                self._transport.send(record.seq, record.payload)
            except Unavailable as error:
                self._lost(str(error))
                break
            self._counters.add("records_sent")
        if self._connected:
            self._hear()

    def _open(self, open_us: int) -> None:
        try:
            self._transport.open(timeout_us=open_us, notify=self._notify)
        except Exception as error:  # noqa: BLE001  Unavailable, or the client cannot even be loaded: tried again later
            self._counters.add("connection_failures")
            self._try_open_us = self._clock.steady_us() + RETRY_US
            self.trouble = str(error) if isinstance(error, Unavailable) else words(error)
            self._failures += 1
            if self._failures < 2:  # one slow answer is no news
                return
            self._notes.once(
                "away",
                f"the broker is not there: {self.trouble}; samples wait in memory, training is not affected",
            )
            return
        self._counters.add("connections")
        self._failures = 0
        self._notes.again("away")
        self._connected = True
        again = self._outbox.sent_waiting()
        self._counters.add("records_resent", again)
        self._outbox.back()

    def _hear(self) -> None:
        failure = ""
        for outcome in self._transport.outcomes():
            if outcome.error is None:
                samples = self._outbox.acknowledge(outcome.seq)
                self._losses = 0
                if samples is not None:
                    self._counters.add("records_acknowledged")
                    self._counters.add("samples_delivered", samples)
                continue
            self._counters.add("send_failures")
            failure = failure or outcome.error
            if outcome.final:
                self._refused(outcome.seq, outcome.error)
        if failure:
            self._lost(failure)

    def _refused(self, seq: int, error: str) -> None:
        """A record that the broker never takes is given up after a few tries, so that the others go on."""
        tries = self._refusals[seq] = self._refusals.get(seq, 0) + 1
        if tries < REFUSALS_MAX:
            return
        del self._refusals[seq]
        samples = self._outbox.acknowledge(seq)
        if samples is not None:
            self._counters.add("records_refused")
            self._counters.add("dropped_broker", samples)
            self._notes.once(("refused", error[:60]), f"the broker refuses a record for good: {error}")

    def _lost(self, why: str) -> None:
        """Gives the connection up; another one will send from the first unacknowledged record."""
        self._connected = False
        self.trouble = why
        self._transport.close(timeout_us=0)
        self._try_open_us = self._clock.steady_us() + min(RETRY_US // 4 << self._losses, LOSS_PAUSE_US_MAX)
        self._losses += 1
        self._notes.once(("lost", why[:60]), f"sending failed and is tried again: {why}")

    def pump_until(self, deadline_us: int, *, wait: Callable[[int], bool]) -> None:
        """Sends what is left until all is acknowledged or the steady time is ``deadline_us``."""
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
