"""How records leave the process: three methods, and an in-memory twin of the Kafka one.

A transport sends in the order of the calls and reports each record once, as acknowledged or failed, through
:meth:`Transport.outcomes`. Nothing that was handed over behind a record that failed reaches the log. After a
failure the owner closes it, opens it again and sends again from the first record without an acknowledgement;
so the log holds a process's records in order, some of them perhaps twice (the reader drops those by their
number). All methods are called by the SDK's thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from driftline.errors import Unavailable


class Outcome(NamedTuple):
    """What became of a record."""

    seq: int
    error: str | None = None
    """None: acknowledged."""
    final: bool = False
    """The broker will never take it (too large, malformed): sending again is useless."""
    too_large: bool = False
    """Its size is why: parts of it may be taken."""


class Transport(Protocol):
    """A way to the log of one run."""

    def open(self, *, timeout_us: int, notify: Callable[[], None]) -> None:
        """Connects within about ``timeout_us``; ``notify`` is called (from any thread) with new outcomes.

        Raises:
            Unavailable: not now; says why in words for people. Refused: nor later, unless somebody mends it.
        """
        ...

    def send(self, seq: int, payload: bytes) -> None:
        """Hands a record over, without waiting for the broker. Raises Unavailable."""
        ...

    def outcomes(self) -> list[Outcome]:
        """What became known since the last call."""
        ...

    def remarks(self) -> list[str]:
        """What was found odd about the other end since the last call, with the remedy; records go on."""
        ...

    def close(self, *, timeout_us: int) -> None:
        """Lets go of the connection within the time. Never raises; may be called again."""
        ...

    def forget(self) -> None:
        """In a forked child: let go without touching what belongs to the parent."""
        ...

    def again(self) -> Transport:
        """A new way to the same place, not open yet, that shares nothing with this one: for a child."""
        ...


class MemoryTransport:
    """Keeps records in a list, for tests and simulation; faults by switches.

    >>> way = MemoryTransport(); way.open(timeout_us=0, notify=lambda: None)
    >>> way.send(0, b"x"); way.outcomes(), way.log
    ([Outcome(seq=0, error=None, final=False, too_large=False)], [(0, b'x')])
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = []
        """What the "broker" has, in its order."""
        self.away = False
        """True: opening and sending fail."""
        self.silent = False
        """True: records are taken, and nothing becomes known of them."""
        self.fail_seqs: dict[int, int] = {}
        """How often a record still fails, by number; it and what is behind it do not arrive then."""
        self.limit_bytes: int | None = None
        """Larger records are refused for good."""
        self.final_seqs: set[int] = set()
        """Records that are refused for good."""
        self.opened = 0
        self._open = False
        self._broken = False
        self._outcomes: deque[Outcome] = deque()

    def open(self, *, timeout_us: int, notify: Callable[[], None]) -> None:
        if self.away:
            raise Unavailable("the broker is away")
        self.opened += 1
        self._open, self._broken = True, False

    def send(self, seq: int, payload: bytes) -> None:
        if self.away or not self._open:
            raise Unavailable("the broker is away")
        if self.silent:
            return
        too_large = self.limit_bytes is not None and len(payload) > self.limit_bytes
        if not self._broken and (too_large or seq in self.final_seqs):
            self._broken = True
            self._outcomes.append(Outcome(seq, "refused", final=True, too_large=too_large))
        elif self._broken or self.fail_seqs.get(seq):
            if not self._broken:
                self.fail_seqs[seq] -= 1
            self._broken = True
            self._outcomes.append(Outcome(seq, "lost"))
        else:
            self.log.append((seq, payload))
            self._outcomes.append(Outcome(seq))

    def outcomes(self) -> list[Outcome]:
        found = list(self._outcomes)
        self._outcomes.clear()
        return found

    def remarks(self) -> list[str]:
        return []

    def close(self, *, timeout_us: int) -> None:
        self._open = False

    def forget(self) -> None:
        self._open = False

    def again(self) -> MemoryTransport:
        return type(self)()
