"""What an evaluator knows of its leases: which one is next, whether the running one is still wanted.

:class:`Leases` is pure: assignments in, decisions out. :class:`Desk` is the same behind a lock, since two
threads meet there: the link (Kafka) puts assignments in and takes deliveries out, the main thread takes
leases and puts results in.

Rules. Only leases for this evaluator count. A request that was closed by another's result is dropped while it
waits, and stopped while it runs. A lease that was given to someone else since is dropped while it waits, but
goes on while it runs: the first complete result is accepted, whoever sends it. A lease that is seen twice is
run once.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from driftline.clock import Clock
from driftline.evaluator.parcels import Delivery
from driftline.events import Event, Lease, RequestClosed, Unknown

REMEMBERED_MAX = 10_000
WAITING_MAX = 64


class Stopped(Exception):
    """Nobody wants the running evaluation any more, or the evaluator is to end."""


class Leases:
    """The pure part."""

    def __init__(self, evaluator: str) -> None:
        self._evaluator = evaluator
        self._waiting: deque[Lease] = deque()
        self._seen: deque[str] = deque(maxlen=REMEMBERED_MAX)
        self._closed: deque[str] = deque(maxlen=REMEMBERED_MAX)
        self.running: Lease | None = None
        self.unwanted = False
        """The running lease's request was closed by another's result."""

    def apply(self, event: Event | Unknown) -> None:
        """Takes one record of ``assignments``."""
        if isinstance(event, Lease):
            self._leased(event)
        elif isinstance(event, RequestClosed):
            self._close(event)

    def next(self) -> Lease | None:
        """The lease to run now, which becomes the running one."""
        assert self.running is None
        while self._waiting:
            lease = self._waiting.popleft()
            if lease.request not in self._closed:
                self.running, self.unwanted = lease, False
                return lease
        return None

    def finish(self) -> None:
        self.running, self.unwanted = None, False

    def _leased(self, lease: Lease) -> None:
        others = (one for one in self._waiting if one.request != lease.request or one.lease == lease.lease)
        self._waiting = deque(others)
        if lease.evaluator != self._evaluator or lease.lease in self._seen:
            return
        if len(self._waiting) < WAITING_MAX:  # beyond it the lease runs out and is given again
            self._seen.append(lease.lease)
            self._waiting.append(lease)

    def _close(self, closed: RequestClosed) -> None:
        self._closed.append(closed.request)
        running = self.running
        if running and running.request == closed.request and running.lease != closed.lease:
            self.unwanted = True


class Standing(NamedTuple):
    """What the link tells the world: the lease, how far it is, when its code last gave a sign of life."""

    lease: Lease | None
    done: int
    total: int
    alive_us: int


class Desk:
    """The meeting point of link and main thread."""

    def __init__(self, evaluator: str, clock: Clock) -> None:
        self._clock = clock
        self._leases = Leases(evaluator)
        self._condition = threading.Condition()
        self._delivery: Delivery | None = None
        self._done = self._total = 0
        self._alive_us = clock.steady_us()

    # the link's side

    def apply(self, events: list[Event | Unknown]) -> None:
        with self._condition:
            for event in events:
                self._leases.apply(event)
            self._condition.notify_all()

    def standing(self) -> Standing:
        with self._condition:
            return Standing(self._leases.running, self._done, self._total, self._alive_us)

    def delivery(self) -> Delivery | None:
        """The result that is to be delivered; it stays, and its lease counts as worked on, until then."""
        with self._condition:
            return self._delivery

    def delivered(self) -> None:
        with self._condition:
            self._delivery = None
            self._leases.finish()
            self._condition.notify_all()

    # the main thread's side

    def take(self, timeout_s: float) -> Lease | None:
        """The next lease, None if none came in time or the last result is still to be delivered."""
        with self._condition:
            if self._delivery is not None or (lease := self._leases.next()) is None:
                self._condition.wait(timeout_s)
                return None
            self._done = self._total = 0
            self._alive_us = self._clock.steady_us()
            return lease

    def sign_of_life(self, done: int | None = None, total: int = 0) -> bool:
        """Notes progress; False when nobody wants the running lease's result any more."""
        with self._condition:
            self._alive_us = self._clock.steady_us()
            if done is not None:
                self._done, self._total = done, total
            return not self._leases.unwanted

    def put(self, delivery: Delivery | None) -> None:
        """Ends the running lease, with its result or (stopped) without."""
        with self._condition:
            self._delivery = delivery
            if delivery is None:
                self._leases.finish()
            self._condition.notify_all()

    def notify(self) -> None:
        """Wakes whoever waits."""
        with self._condition:
            self._condition.notify_all()
