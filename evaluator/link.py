"""The thread between the desk and the topics: reads assignments, announces, renews, delivers.

It goes on while the main thread evaluates. Presence says which lease is worked on; progress renews the
lease as long as the evaluation gives signs of life (``stall_us``). A result is delivered in order: its
items, flushed, then the result, flushed, then "idle". While the broker is away nothing piles up: an
announcement is only sent once the one before it has arrived, and results wait.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from driftline import events
from driftline.clock import SECOND_US, Clock
from driftline.errors import Refused, SettingsError, Unavailable
from driftline.evaluator.desk import Desk, Standing
from driftline.evaluator.parcels import Parcel
from driftline.evaluator.transport import Connect, Sent, Transport
from driftline.events import EvalProgress, EvaluatorGone, EvaluatorPresent, Event
from driftline.settings import EvaluatorSettings

log = logging.getLogger("driftline.evaluator")

POLL_US = 100_000
RETRY_US = 2 * SECOND_US
SILENT_US = 10 * SECOND_US
"""A broker that has not answered for so long is called away."""
GOODBYE_US = 3 * SECOND_US
"""The longest that the end waits for the broker."""


class Link(threading.Thread):
    """Runs until :meth:`stop`; ``failure`` holds what ended it otherwise."""

    def __init__(
        self,
        connect: Connect,
        desk: Desk,
        *,
        evaluator: str,
        suites: list[str],
        device: str,
        settings: EvaluatorSettings,
        clock: Clock,
    ) -> None:
        super().__init__(name="driftline-evaluator-link", daemon=True)
        self.failure: Exception | None = None
        self._connect = connect
        self._desk = desk
        self._evaluator = evaluator
        self._suites = suites
        self._device = device
        self._settings = settings
        self._clock = clock
        self._ending = threading.Event()
        self._away = False
        self._let_in = False
        """The broker has let us in before; one that never did is a matter of settings."""

    def stop(self) -> None:
        """Asks it to deliver what is left, say goodbye and end, within :data:`GOODBYE_US`."""
        self._ending.set()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._session()
        except SettingsError as error:
            self.failure = error
        except Exception as error:
            log.exception("the link to the broker broke")
            self.failure = error
        finally:
            self._ending.set()
            self._desk.notify()

    def _session(self) -> None:
        """From connecting until the end or until the transport must be made again."""
        try:
            transport = self._connect()
        except Unavailable as error:
            if isinstance(error, Refused) and not self._let_in:
                raise error.at_start() from error
            self._say_away(str(error))
            self._ending.wait(RETRY_US / 1e6)
            return
        self._let_in = True
        self._say_back("connected")
        try:
            courier = _Courier(self._desk)
            self._serve(transport, courier)
            self._goodbye(transport, courier)
        except Unavailable as error:
            self._say_away(str(error))
            transport.close(0)
            self._ending.wait(RETRY_US / 1e6)
        else:
            transport.close(0 if self._away else GOODBYE_US)

    def _serve(self, transport: Transport, courier: _Courier) -> None:
        announcer = _Announcer(self._clock, self._settings.announce_us, self._announcement)
        while not self._ending.is_set():
            self._desk.apply(transport.poll(POLL_US))
            courier.carry(transport)
            announcer.announce(transport, self._desk.standing())
            if announcer.waits_us() > SILENT_US:
                self._say_away("no answer")
            elif self._away:
                self._say_back("answers again")

    def _goodbye(self, transport: Transport, courier: _Courier) -> None:
        """Undelivered results get a last chance, then the others learn that this evaluator is gone."""
        until_us = self._clock.steady_us() + (0 if self._away else GOODBYE_US)
        while self._desk.delivery() is not None and self._clock.steady_us() < until_us:
            courier.carry(transport)
            transport.poll(POLL_US)
        if self._desk.delivery() is not None:
            log.warning("a result could not be delivered before the end; the evaluation will be done again")
        gone = EvaluatorGone(evaluator=self._evaluator, time_us=self._clock.now_us())
        transport.send([_parcel(gone)])

    def _announcement(self, standing: Standing) -> list[Parcel]:
        lease = standing.lease
        told: list[Event] = [
            EvaluatorPresent(
                evaluator=self._evaluator,
                time_us=self._clock.now_us(),
                host=socket.gethostname(),
                device=self._device,
                suites=self._suites,
                lease=lease.lease if lease else None,
            )
        ]
        silent_us = self._clock.steady_us() - standing.alive_us
        if lease and silent_us <= self._settings.stall_us:
            told.append(
                EvalProgress(
                    evaluator=self._evaluator,
                    lease=lease.lease,
                    request=lease.request,
                    time_us=self._clock.now_us(),
                    done=standing.done,
                    total=standing.total,
                )
            )
        return [_parcel(event) for event in told]

    def _say_away(self, reason: str) -> None:
        if not self._away:
            log.warning("waiting for the broker (%s)", reason)
        self._away = True

    def _say_back(self, how: str) -> None:
        log.info("broker %s", how)
        self._away = False


class _Announcer:
    """Sends presence and progress every so often, one at a time."""

    def __init__(self, clock: Clock, every_us: int, make: Callable[[Standing], list[Parcel]]) -> None:
        self._lease: str | None = None
        self._clock = clock
        self._every_us = every_us
        self._make = make
        self._sent: Sent | None = None
        self._sent_us: int | None = None

    def announce(self, transport: Transport, standing: Standing) -> None:
        """Announces when it is time or the lease changed; not while the last announcement is on its way."""
        if self._sent is not None and not self._sent.done():
            return
        self._sent = None
        at_us = self._clock.steady_us()
        lease = standing.lease.lease if standing.lease else None
        due = self._sent_us is None or at_us - self._sent_us >= self._every_us
        if not due and lease == self._lease:
            return
        self._sent = transport.send(self._make(standing))
        self._sent_us = at_us
        self._lease = lease

    def waits_us(self) -> int:
        """How long the last announcement has been on its way."""
        if self._sent is None or self._sent_us is None:
            return 0
        return self._clock.steady_us() - self._sent_us


class _Courier:
    """Delivers one result after the other: items, then the result.

    Begins again after a lost connection; what is then sent twice is the same, and readers know it by lease
    and position.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._items: Sent | None = None
        self._result: Sent | None = None

    def carry(self, transport: Transport) -> None:
        """One step, without waiting."""
        delivery = self._desk.delivery()
        if delivery is None:
            return
        if self._items is None:
            self._items = transport.send(delivery.items)
        if self._result is None and self._items.done():
            self._result = transport.send([delivery.result])
        if self._result is not None and self._result.done():
            self._items = self._result = None
            self._desk.delivered()


def _parcel(event: Event) -> Parcel:
    return Parcel("evals", "", events.encode(event))
