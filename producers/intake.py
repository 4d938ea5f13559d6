"""From the queue into the framer, in the order of the calls, as far as the numbers are known.

Values on a device hold up what was logged after them for ``DEVICE_PATIENCE_US``; then they wait aside, and
join as soon as they arrive. A checkpoint, a rewind or a declaration is handed to ``mark`` when all before it
is framed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from driftline.clock import Clock
from driftline.producers.counters import Counters, Notes, words
from driftline.producers.entries import Pending, QueueEntry, samples_of
from driftline.producers.framer import Framer
from driftline.producers.values import Refusal, admit_weight

ENTRIES_AT_ONCE = 250
"""Entries converted in one go: short enough to let the trainer's thread in between."""
DEVICE_PATIENCE_US = 2_000_000
"""After so long a value on a device no longer holds up what was logged after it."""
ASIDE_MAX = 10_000


class Intake:
    """Called by the SDK's thread only.

    ``drained`` is told how many samples of the queue are still held; ``full`` is called when frames may be
    full; ``mark`` gets entries that are no samples; ``failed`` what cannot be framed.
    """

    def __init__(
        self,
        queue: deque[QueueEntry],
        framer: Framer,
        *,
        drained: Callable[[int], None],
        full: Callable[[], None],
        mark: Callable[[QueueEntry], None],
        failed: Callable[[Exception], None],
        counters: Counters,
        notes: Notes,
        clock: Clock,
    ) -> None:
        self._queue, self._framer = queue, framer
        self._drained, self._full, self._mark, self._failed = drained, full, mark, failed
        self._counters, self._notes = counters, notes
        self._clock = clock
        self._held: deque[QueueEntry] = deque()
        self._aside: list[QueueEntry] = []
        self.step: int | None = None
        """Of the newest sample that has one."""

    @property
    def waiting(self) -> bool:
        """Whether values on a device are awaited."""
        return bool(self._held or self._aside)

    def abandon(self) -> int:
        """Empties the queue. Returns the samples that were in it, or are held."""
        left = [*self._queue, *self._held, *self._aside]
        self._queue.clear()
        return sum(map(samples_of, left))

    def give_up(self) -> None:
        """Drops what is still on a device, and hands on the rest."""
        for entry in [*self._held, *self._aside]:
            if isinstance(entry[3], Pending):
                self._counters.add("dropped_device", samples_of(entry))
        rest = [entry for entry in self._held if not isinstance(entry[3], Pending)]
        self._held, self._aside = deque(rest), []
        self._settle()

    def drain(self) -> None:
        """Moves all that is queued into the framer, in order, as far as it is known."""
        take = self._queue.popleft
        left = len(self._queue)
        self._resolve_aside()
        while left or self._held:
            batch = [take() for _ in range(min(left, ENTRIES_AT_ONCE))]
            left -= len(batch)
            if not self._held and {type(entry[3]) for entry in batch} <= {dict}:
                self._add(batch)
            else:
                self._held.extend(batch)
                if self._settle() and not left:
                    break
            self._full()
        self._drained(sum(samples_of(entry) for entry in self._held) if self._held else 0)

    def _settle(self) -> bool:
        """Works off what is held, in order; True if a value on a device stopped it."""
        plain: list[QueueEntry] = []
        while self._held:
            entry = self._held[0]
            payload = entry[3]
            if type(payload) is dict:
                plain.append(entry)
            elif isinstance(payload, Pending):
                if payload.arrived():
                    plain.append(self._read(entry))
                elif self._clock.now_us() - entry[0] // 1000 < DEVICE_PATIENCE_US:
                    break
                else:
                    self._put_aside(entry)
            else:
                self._add(plain)
                plain = []
                self._held.popleft()  # before: whatever it does, it must not hold up what was logged after it
                self._mark(entry)
                continue
            self._held.popleft()
        self._add(plain)
        return bool(self._held)

    def _add(self, entries: list[QueueEntry]) -> None:
        if not entries:
            return
        try:
            self._framer.add(entries)
        except Exception as error:  # noqa: BLE001  what cannot be framed is dropped, the rest goes on
            self._counters.add("dropped_error", sum(map(samples_of, entries)))
            self._failed(error)
            return
        for entry in reversed(entries):
            if entry[1] is not None:
                self.step = entry[1]
                break

    def _put_aside(self, entry: QueueEntry) -> None:
        if len(self._aside) >= ASIDE_MAX:
            self._counters.add("dropped_device", samples_of(entry))
            self._notes.once("device", "values on a device do not arrive: their samples are dropped, counted")
            return
        self._aside.append(entry)

    def _resolve_aside(self) -> None:
        if not self._aside:
            return
        ready = [entry for entry in self._aside if entry[3].arrived()]
        if ready:
            self._aside = [entry for entry in self._aside if not any(entry is other for other in ready)]
            self._add([self._read(entry) for entry in ready])

    def _read(self, entry: QueueEntry) -> QueueEntry:
        """The entry with the numbers that have arrived from the device."""
        time_ns, step, weight, pending = entry
        values: dict[Any, Any] = {}
        for name, value in pending.values.items():
            number = value if type(value) is float else value.read()
            if isinstance(number, Refusal):
                self._counters.add("refused_" + number.reason)
                self._notes.once(
                    (number.reason, name), f"{words(name)} is not a number: {number.detail}; refused"
                )
            else:
                values[name] = number
        if weight is not None and type(weight) is not float:
            weight = admit_weight(weight.read())
            if weight is None:
                self._counters.add("refused_weight", len(values))
                values = {}
        return time_ns, step, weight, values
