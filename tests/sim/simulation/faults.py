"""Faults by name, each with its own rate, drawn anew by every seed; and the trace that tells what happened.

``share`` is how many seeds have the fault at all, ``rate`` how often it happens per opportunity in those (the
seed scales it between half and double). Nothing happens any more once :meth:`Faults.heal` was called.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Fault(NamedTuple):
    """How often a fault happens, and what it is."""

    share: float
    rate: float
    says: str


EFFECTS = (
    "send",
    "snapshot chunk",
    "manifest",
    "acknowledge",
    "group commit",
    "tombstone",
    "table commit",
    "lease",
    "result",
    "spool write",
    "fetch",
)
"""What processes do to the world, as far as it can be told apart; each can be the last thing they do."""

FAULTS: dict[str, Fault] = {
    "record duplicated": Fault(
        0.7, 0.004, "the consumer group hands over records that it handed over before"
    ),
    "record delayed": Fault(0.7, 0.01, "a fetch of the consumer group takes up to two seconds"),
    "record skipped": Fault(0.8, 0.006, "the consumer group passes over records in silence"),
    "group ahead": Fault(0.5, 0.1, "the group's committed offset is ahead of every state"),
    "delivery delayed": Fault(0.6, 0.004, "a record is under way to the broker for up to three seconds"),
    "acknowledgement lost": Fault(0.7, 0.01, "a record arrives, its sender retries before it knows"),
    "send refused": Fault(0.3, 0.0005, "a send of a stream worker fails for good"),
    "buffer full": Fault(0.3, 0.002, "a stream worker's producer has no room for a while"),
    "connection lost": Fault(0.8, 0.01, "the SDK's connection breaks; some of what was under way arrived"),
    "broker away": Fault(0.4, 0.02, "nobody reaches the broker for up to eight seconds"),
    "topic made again": Fault(0.12, 0.02, "telemetry is deleted and made again, with offsets from 0"),
    "log cut": Fault(0.4, 0.05, "retention removes what everybody has read"),
    "partition moved": Fault(0.7, 0.08, "the group deals its partitions out anew"),
    "zombie worker": Fault(0.6, 0.04, "a member is cut off from its group and goes on with its partitions"),
    "worker paused": Fault(
        0.6, 0.04, "a stream worker or scheduler stops, longer than its session, and wakes"
    ),
    "sink paused": Fault(0.6, 0.05, "a sink stops between two commits, and its successor starts"),
    "second sink": Fault(0.5, 0.03, "another sink works on the same tables"),
    "commit answer lost": Fault(0.4, 0.01, "a commit lands, and its sink does not learn of it"),
    "sink disk full": Fault(0.5, 0.04, "no table can be written for up to five seconds"),
    "spool disk full": Fault(0.5, 0.05, "no spool can be written for up to five seconds"),
    "torn file": Fault(0.5, 0.01, "a process is killed while it writes: its spool ends within a record"),
    "spool damaged": Fault(0.4, 0.1, "a byte of a dead process's spool is changed, or a file of it is gone"),
    "clock jump": Fault(0.5, 0.03, "the clock of a host jumps by up to a minute"),
    "clock skew": Fault(0.5, 0.5, "the clock of a host is wrong by up to ten seconds"),
    "broker clock jump": Fault(0.3, 0.02, "the broker's clock goes back, or ahead by some seconds"),
    "hole in the ticks": Fault(0.3, 0.01, "no stream worker runs for up to half a minute"),
    "rank silent": Fault(0.6, 0.02, "a rank says nothing for a while"),
    "rank restarted": Fault(0.6, 0.03, "a rank is killed and started again"),
    "world size changed": Fault(0.4, 0.03, "all ranks of a run stop, another number of them starts"),
    "rewind": Fault(0.4, 0.02, "a run goes back to an earlier step"),
    "poison": Fault(0.5, 0.01, "somebody writes a record that nobody can decode"),
    "evaluator lost": Fault(0.6, 0.03, "an evaluator is killed in the middle of its work"),
    "evaluator stalled": Fault(0.6, 0.03, "an evaluator says nothing until its lease is lost, then answers"),
    "out of memory": Fault(0.5, 0.1, "an evaluation ends without memory"),
    "result twice": Fault(0.5, 0.1, "an evaluator sends its items and its result again"),
    **{
        f"killed {when} {effect}": Fault(0.5, rate, f"a process is killed {when} it could do: {effect}")
        for effect, rate in (
            ("send", 0.0007),
            ("snapshot chunk", 0.02),
            ("manifest", 0.03),
            ("acknowledge", 0.001),
            ("group commit", 0.03),
            ("tombstone", 0.02),
            ("table commit", 0.006),
            ("lease", 0.02),
            ("result", 0.05),
            ("spool write", 0.004),
            ("fetch", 0.0004),
        )
        for when in ("before", "after")
        if (when, effect) not in (("after", "acknowledge"), ("after", "fetch"))
    },
}


class Chance(random.Random):
    """Random numbers of one use: another use of chance elsewhere does not change them."""

    def __init__(self, seed: int, use: str) -> None:
        super().__init__(f"{seed}/{use}")

    def hit(self, probability: float) -> bool:
        return self.random() < probability


class Faults:
    """Says whether a fault happens now, and counts those that did."""

    def __init__(self, seed: int, trace: Trace, rates: Mapping[str, float] | None = None) -> None:
        self.happened: Counter[str] = Counter()
        self.healed = False
        self._trace = trace
        self._rates: dict[str, float] = {}
        self._chances: dict[str, Chance] = {}
        for name, fault in FAULTS.items():
            chance = Chance(seed, f"fault/{name}")
            on = chance.hit(fault.share)
            rate = fault.rate * 2 ** chance.uniform(-1, 1) if on else 0.0
            self._chances[name] = chance
            self._rates[name] = (rates or {}).get(name, rate)

    def hit(self, name: str, who: str = "") -> bool:
        """Whether it happens, at this opportunity."""
        rate = self._rates[name]
        if self.healed or not rate or self._chances[name].random() >= rate:
            return False
        self.happened[name] += 1
        self._trace.add("fault", name, who)
        return True

    def chance(self, name: str) -> Chance:
        """For the details of a fault."""
        return self._chances[name]

    def heal(self) -> None:
        self.healed = True


class Trace:
    """What happened, in order: a digest of all of it, and the last lines as text."""

    KEPT = 4_000

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: list[str] = []
        self.count = 0
        self.now_us = lambda: 0

    def add(self, *parts: object) -> None:
        line = f"{self.now_us() / 1e6:.6f} " + " ".join(map(str, parts))
        self._digest.update(line.encode())
        self.count += 1
        self.lines.append(line)
        if len(self.lines) > 2 * self.KEPT:
            del self.lines[: self.KEPT]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.lines[-lines:])
