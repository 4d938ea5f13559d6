"""The run as a trainer holds it: ``log``, ``define``, ``span``, ``step``, ``checkpoint``, ``rewind``,
``flush``, ``finish``.

No method raises into the training loop, waits for a broker or for a device (``flush`` and ``finish`` wait,
within a bound), or takes a lock that another thread holds. ``log`` copies the dict and appends it to a
bounded queue; everything else happens on the SDK's thread (:mod:`.worker`).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from gc import is_tracked
from types import TracebackType
from typing import Any, Self, cast, get_args

from driftline.events import Goal, Reduce
from driftline.producers import birth, definition, exits
from driftline.producers.birth import Birth
from driftline.producers.counters import Counters, Notes, words
from driftline.producers.entries import Defined, Pending, QueueEntry, Rewound, Saved
from driftline.producers.exits import outcome_of
from driftline.producers.span import Span
from driftline.producers.values import PLAIN_TYPES, admit_all, admit_weight, as_step, is_dear_to_add
from driftline.producers.worker import EndReason, Worker

_INF = math.inf
_time_ns = time.time_ns
RING_AGAIN_NS = 50_000_000
"""The thread is woken for a NaN or a value on a device at most this often."""
_left_to_parents: list[Worker] = []
"""What a fork brought along. Kept, since to let go of a connection would act on the parent's."""


class Run:
    """One process of a training run. Made by :func:`driftline.init`; a context manager that finishes at its
    end.

    Safe to use from several threads, in forked children, and in processes that it is sent to (it pickles):
    each of these is a process of its own in the run (:mod:`.birth`). After :meth:`finish` every call does
    nothing (and is counted).
    """

    def __init__(self, born: Birth) -> None:
        self.id = born.who.run
        """Id of the run, shared by its ranks."""
        self.name = born.name
        """The free-text name, as given."""
        self.process = born.who.process
        """Id of this process within the run; a forked child has one of its own."""
        self.rank = born.who.rank
        self._birth = born
        self._settings = born.settings
        self._counters = Counters()
        self._notes = Notes()
        self._queue: deque[QueueEntry] = deque()
        self._append = self._queue.append
        self._queued = 0
        self._size_ring = min(born.settings.frame_samples, born.settings.queue_samples)
        self._room = self._size_ring
        self._rung_ns = 0
        self._sums = True
        """Adding up is how :meth:`log` tells plain numbers; not once values were seen whose sums overflow
        with a warning (float16) or are as large as the array that someone logs by mistake."""
        self._defined: dict[str, Defined] = {}
        self._definitions = 0
        self._logged_step: int | None = None
        self._set_step: int | None = None
        self._worker: Worker | None = None
        """None in a child that has not logged yet."""
        self._thread: threading.Thread | None = None
        self._waking = threading.RLock()
        self._is_waking = False
        self._closed = False
        self._exit_outcome: EndReason = "finished"
        self._deadline_us = 0

    def log(self, values: Mapping[str, Any], step: int | None = None, weight: float | None = None) -> None:
        """Records numbers; returns at once (about a microsecond for 20 floats).

        Args:
            values: numbers by metric name; what counts as a number, and what becomes of the rest, is
                written in :mod:`driftline.producers.values`. Values are taken as they are now.
            step: training step, any integer of 64 bits; None for values that belong to no step.
            weight: of these values in means over ranks and time (tokens, items), finite and above 0.
        """
        if (
            type(values) is dict
            and self._sums
            # Not tracked by the garbage collector: so it holds no tensor, list or dict, whose contents could
            # change before the SDK's thread reads them. (From Python 3.14 on every dict is tracked.)
            and not is_tracked(values)
            and (step is None or type(step) is int)
            and (weight is None or ((type(weight) is int or type(weight) is float) and 0 < weight < _INF))
        ):
            total: Any
            try:
                total = sum(values.values())
            except Exception:  # noqa: BLE001  something is no number: the slow way says what
                total = None
            kind: Any = type(total)
            # A plain sum means plain numbers; a finite one means that none is NaN or infinite.
            if (
                (kind is float or kind is int)
                and total - total == 0
                and (n := self._queued + len(values)) < self._room
            ):
                self._queued = n
                self._append((_time_ns(), step, weight, values.copy()))
                if step is not None:
                    self._logged_step = step
                return
        self._log_slowly(values, step, weight)

    def define(
        self,
        name: str,
        *,
        goal: Goal | None = None,
        unit: str | None = None,
        reduce: Reduce | None = None,
        description: str | None = None,
    ) -> None:
        """Declares what a metric means. Returns at once; before or after the first ``log``, on any rank.

        Nothing is ever guessed from a name. What is left out stays as it was declared before, by whichever
        rank; of contradictory ones the newest counts, and one fact tells of them. What was said before by
        this process is not sent again.

        Args:
            name: of the metric, exactly as logged.
            goal: "max" or "min", which way it gets better.
            unit: any text of at most 100 characters, e.g. "tokens/s".
            reduce: how its values at one step become one: "mean" (weighted; what holds without it), "sum",
                "max", "min" or "last".
            description: a sentence for people, at most 1,000 characters.
        """
        try:
            said = definition.checked(name, goal, unit, reduce, description)
            known = definition.news(self._defined.get(said.metric), said)
            if known is None:
                return
            if self._definitions >= definition.SENT_MAX:
                raise ValueError(f"this process has sent {definition.SENT_MAX} declarations, no more are")
            self._definitions += 1
            self._defined[said.metric] = known
            self._mark(None, said)
        except Exception as error:  # noqa: BLE001  never into the training loop
            self._counters.add("definitions_refused")
            text = str(error) if type(error) is ValueError else words(error)
            self._notes.once(("define", text[:100]), f"define({words(name, 80)}): {text}; ignored")

    def span(self, name: str, step: int | None = None) -> Span:
        """Times a block and logs its seconds as metric ``span/<name>``.

        The span belongs to ``step``, else to the run's current step when the block ends: what :meth:`step`
        set, or, in a program that never calls it, the step of the newest ``log`` or span. A loop that logs at
        the end of each step must therefore call ``run.step(s)`` at its beginning or pass ``step=s`` here, or
        its spans are booked one step early.
        """
        return Span(self, name, step)

    def step(self, step: int) -> None:
        """Sets the current step, for spans and checkpoints that name none; from then on only this does."""
        found = as_step(step)
        if found is None:
            self._counters.add("steps_refused")
            self._notes.once("set step", f"step({words(step, 80)}): not an integer of 64 bits; ignored")
            return
        self._set_step = found

    @property
    def current_step(self) -> int | None:
        """The step that spans and checkpoints belong to if they name none; see :meth:`span`."""
        return self._logged_step if self._set_step is None else self._set_step

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        step: int | None = None,
        epoch: float | None = None,
        format: str | None = None,  # noqa: A002
    ) -> None:
        """Announces a checkpoint: call it after the save is complete. Returns at once.

        The files are listed, sampled and announced on the SDK's thread; a checkpoint that is not there is
        refused, counted and named. ``step`` is by default the current step. ``format``: "safetensors",
        "torch", "dcp" or any other word; guessed from the file names if not given.
        """
        try:
            text = os.fsdecode(path)
            if "://" not in text:
                text = os.path.abspath(text)
            saved = Saved(
                text, None if epoch is None else float(epoch), None if format is None else str(format)
            )
            self._mark(as_step(step) if step is not None else self.current_step, saved)
        except Exception as error:  # noqa: BLE001  never into the training loop
            self._counters.add("checkpoints_refused")
            self._notes.once(
                ("checkpoint", words(error, 100)),
                f"checkpoint {words(path)} not announced: {words(error)}",
            )

    def rewind(self, step: int) -> None:
        """Says that training goes on from ``step``, an earlier one: opens a new attempt of the run."""
        found = as_step(step)
        if found is None:
            self._counters.add("steps_refused")
            self._notes.once("rewind", f"rewind({words(step, 80)}): not an integer of 64 bits; ignored")
            return
        self._logged_step = found
        if self._set_step is not None:
            self._set_step = found
        self._mark(found, Rewound())

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until the broker has all that this process logged so far; False if it has not in time.

        ``timeout`` in seconds, by default the setting ``sdk.exit_wait``.
        """
        worker, thread = self._worker, self._thread
        if worker is None:
            return not self._closed  # a child that has logged nothing
        if thread is None or threading.current_thread() is thread:
            return False
        wanted = worker.flush()
        end = time.monotonic() + (self._settings.exit_us / 1e6 if timeout is None else timeout)
        while worker.flushes_done < wanted and not worker.ended:
            if time.monotonic() >= end or not thread.is_alive():
                return worker.flushes_done >= wanted
            time.sleep(0.005)
        return worker.flushes_done >= wanted

    def finish(self, outcome: EndReason | None = None) -> None:
        """Sends what is left, within the setting ``sdk.exit_wait``, and ends. May be called again.

        Called by itself at the end of the process. If samples could not be delivered, one line says how many.
        """
        worker, thread = self._worker, self._thread
        first = not self._closed
        if first:
            self._closed = True
            self._room = -1
            self._deadline_us = time.monotonic_ns() // 1000 + self._exit_us()
        if worker is None or thread is None:
            return
        worker.end(self._outcome(outcome), deadline_us=self._deadline_us)
        if threading.current_thread() is not thread:
            left_us = self._deadline_us - time.monotonic_ns() // 1000
            thread.join(max(0, left_us) / 1e6 + 0.3)
            if thread.is_alive():
                worker.overtake()
        if first:
            self._say_undelivered()

    def _exit_us(self) -> int:
        """A child takes half of the time: torch's loader kills workers that take 5 s to end."""
        return self._settings.exit_us // (1 if self._birth.parent is None else 2)

    def _outcome(self, told: object) -> EndReason:
        """What ``finish`` was told, if it is one of the words that readers know."""
        for known in get_args(EndReason):
            if told == known:
                return cast(EndReason, known)
        if told is not None:
            known_words = ", ".join(get_args(EndReason))
            self._notes.once("outcome", f"finish({words(told, 80)}): not one of {known_words}; ignored")
        return self._exit_outcome

    def counters(self) -> dict[str, int]:
        """What the SDK counted so far (:data:`driftline.producers.counters.COUNTERS`)."""
        return self._counters.snapshot()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(outcome_of(error))

    def __repr__(self) -> str:
        return f"<driftline.Run {self.id} {self.name!r} process {self.process} rank {self.rank}>"

    # --- inside ----------------------------------------------------------------------------------------

    def _begin(self, worker: Worker) -> None:
        """Starts the SDK's thread."""
        self._worker = worker
        thread = threading.Thread(target=worker.run, name="driftline", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads: train on without telemetry
            self._worker, self._closed, self._room = None, True, -1
            self._notes.once("thread", f"no thread could be started, nothing is recorded: {words(error)}")
            self._notes.write()
            return
        self._thread = thread

    def _awake(self) -> Worker | None:
        """The worker; in a child it begins with the first call that needs it."""
        if self._worker is None and not self._closed:
            with self._waking:
                if self._worker is None and not self._closed and not self._is_waking:  # else a signal handler
                    self._is_waking, self._room = True, self._size_ring
                    try:
                        birth.begin(self)
                    finally:
                        self._is_waking = False
        return self._worker

    def _ring(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.bell.ring()

    def _forked(self) -> None:
        """In a forked child: thread, queue and connection are the parent's. It is a process of its own."""
        worker, self._worker, self._thread = self._worker, None, None
        self._counters, self._notes = Counters(), Notes()
        self._queue = deque()
        self._append, self._queued, self._room = self._queue.append, 0, -1
        self._defined, self._definitions = {}, 0
        self._waking, self._is_waking = threading.RLock(), False
        self._birth = self._birth.child(self._birth.parent if worker is None else self.process)
        self.process = self._birth.who.process
        if worker is not None:
            worker.forget()
            _left_to_parents.append(worker)

    def __reduce__(self) -> tuple[Any, ...]:
        parent = self._birth.parent if self._worker is None else self.process
        state = self._birth.packed()._replace(parent=parent)
        return _rejoin, (state, self.current_step, self._closed)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _drained(self, left: int) -> None:
        """The thread took the queue; ``left`` samples still wait for a device."""
        self._queued = left
        if not self._closed:
            self._room = self._size_ring if not left else self._settings.queue_samples
            if self._closed:  # finished meanwhile, on another thread
                self._room = -1

    def _log_host(self, reading: dict[str, float]) -> None:
        """Readings of the host, without a step."""
        if reading and not self._closed:
            self._enqueue(None, None, reading, ())

    def _mark(self, step: int | None, marker: object) -> None:
        if not self._closed:
            self._awake()
            self._append((_time_ns(), step, None, marker))
            self._ring()

    def _log_slowly(self, values: Any, step: Any, weight: Any) -> None:
        """Everything that is not 20 plain floats; never raises."""
        try:
            self._log_checked(values, step, weight)
        except Exception as error:  # noqa: BLE001  never into the training loop
            self._counters.add("refused_call")
            self._notes.once(
                ("call", words(error, 100)),
                f"log() could not read its arguments, call refused: {words(error)}",
            )

    def _log_checked(self, values: Any, step: Any, weight: Any) -> None:
        if self._closed:
            self._counters.add("dropped_finished", len(values) if isinstance(values, Mapping) else 1)
            return
        if not isinstance(values, Mapping):
            values = dict(values)
        if step is not None and type(step) is not int:
            step = self._checked_step(step)
        waits: list[Any] = []
        if weight is not None:
            weight = admit_weight(weight)
            if weight is None:
                self._counters.add("refused_weight", len(values))
                self._notes.once("weight", "a weight is not a finite number above 0: its samples are refused")
                return
            if type(weight) is not float:
                waits.append(weight)
        accepted: dict[Any, Any]
        if type(values) is dict and PLAIN_TYPES.issuperset(map(type, values.values())):
            accepted = values.copy()
        else:
            self._sums = self._sums and not any(map(is_dear_to_add, values.values()))
            accepted, refused, deferred = admit_all(values)
            for name, refusal in refused.items():
                self._counters.add("refused_" + refusal.reason)
                self._notes.once(
                    (refusal.reason, name), f"{words(name)} is not a number: {refusal.detail}; refused"
                )
            if deferred:
                waits += [
                    value
                    for value in accepted.values()
                    if type(value) is not float and hasattr(value, "read")
                ]
        self._enqueue(step, weight, accepted, tuple(waits))

    def _enqueue(
        self, step: int | None, weight: Any, accepted: dict[Any, Any], waits: tuple[Any, ...]
    ) -> None:
        if step is not None:
            self._logged_step = step
        if not accepted:
            return
        self._awake()
        n = self._queued + len(accepted)
        if n > self._settings.queue_samples:
            self._counters.add("dropped_queue", len(accepted))
            self._notes.once(
                "queue", "samples come faster than they can be framed: some are dropped, counted"
            )
            self._ring()
            return
        self._queued = n
        now_ns = _time_ns()
        self._append((now_ns, step, weight, Pending(accepted, waits) if waits else accepted))
        if n >= self._room:  # a frame's worth: wake the thread once
            self._room = -1 if self._closed else self._settings.queue_samples
            self._ring()
        elif now_ns - self._rung_ns > RING_AGAIN_NS and (waits or _any_not_finite(accepted)):
            self._rung_ns = now_ns
            self._ring()

    def _checked_step(self, step: Any) -> int | None:
        found = as_step(step)
        if found is None:
            self._counters.add("steps_refused")
            self._notes.once("step", f"step {words(step, 80)} is not an integer: stored without a step")
        return found

    def _say_undelivered(self) -> None:
        worker = self._worker
        if worker is None:
            return
        counts = self._counters.snapshot()
        queued = sum(len(entry[3]) for entry in list(self._queue) if type(entry[3]) is dict)
        # What was dropped before it was framed is missing from the samples that count as logged.
        unframed = queued + sum(counts.get(f"dropped_{why}", 0) for why in ("queue", "device", "error"))
        logged = counts.get("samples_logged", 0)
        left = logged - counts.get("samples_delivered", 0) + unframed
        if left > 0:
            reason = _reason(counts, worker.delivery.trouble)
            fate = _whereabouts(left, worker.outbox.spooled_samples, worker.spooled_to)
            self._notes.once(
                "undelivered",
                f"{left} of {logged + unframed} samples were not delivered to {worker.broker} "
                f"({reason}){fate}",
            )
        self._notes.write()


def _rejoin(born: Birth, step: int | None, closed: bool) -> Run:
    """A run that was sent here: the one that lives here already, else a child that begins when it logs."""
    for run in exits.live():
        if run.id == born.who.run and not run._closed and born.parent in (run.process, run._birth.parent):
            return run
    run = Run(born.child(born.parent))
    run._logged_step, run._closed, run._room = step, closed, -1
    exits.know(run)
    return run


def _any_not_finite(values: dict[Any, Any]) -> bool:
    if PLAIN_TYPES.issuperset(map(type, values.values())):
        try:
            total = sum(values.values())
        except OverflowError:  # an integer too large for a float, beside a float
            total = _INF
        if total - total == 0:
            return False
    return any(type(value) is float and not math.isfinite(value) for value in values.values())


def _whereabouts(left: int, waiting: int, where: str) -> str:
    """What became of samples that were not delivered, and what to do."""
    if not waiting:
        return "; training was not affected"
    lost = f", {left - waiting} are lost" if left > waiting else ""
    return f": {waiting} wait in {where}{lost}; `driftline spool send` or the run's next process sends them"


def _reason(counts: Mapping[str, int], trouble: str) -> str:
    parts = [f"{name} {count}" for name, count in counts.items() if name.startswith("dropped_")]
    if trouble:
        parts.append(trouble)
    return ", ".join(parts) or "no acknowledgement in time"
