"""One lease from start to outcome: suite, checkpoint, evaluation, every failure turned into a status.

Whatever happens gives an outcome that can be sent: "done" with numbers, else a status with a reason and no
number. Only being told to stop (Stopped, or an interrupt) passes through.
"""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from driftline.clock import Clock
from driftline.errors import BadData, SettingsError
from driftline.evaluator import suites
from driftline.evaluator.checkpoints import Changed, Found, NotWhole, is_there, wait_until_whole
from driftline.evaluator.desk import Stopped
from driftline.evaluator.evaluation import Evaluation, Progress, evaluate
from driftline.evaluator.metrics import ItemOutcome
from driftline.evaluator.reasons import one_line
from driftline.events import Checkpoint, Cost, EvalOutcome, EvalStatus, SuiteRef
from driftline.settings import EvaluatorSettings

KEPT_SUITES_MAX = 8
REASON_MAX = 2_000
"""Characters of a reason."""


class Job(NamedTuple):
    """What an evaluation gave; items go out before the outcome, which says how many they are."""

    outcome: EvalOutcome
    items: list[ItemOutcome]


class SuiteShelf:
    """The suites that this evaluator's own settings name, with their items once read."""

    def __init__(self, known: Sequence[SuiteRef]) -> None:
        self._known = list(known)
        self._kept: dict[bytes, suites.LoadedSuite] = {}

    def take(self, ref: SuiteRef) -> suites.LoadedSuite:
        """The suite, read at its first use.

        Raises:
            SettingsError: a suite that arrived over the wire and is not in the settings is not imported.
            Exception: whatever the suite's code raises.
        """
        if not any(suites.same(ref, known) for known in self._known):
            raise SettingsError("", ref.name, _refusal(ref, self._known))
        key = hashlib.sha256(msgspec.json.encode(ref, order="deterministic")).digest()
        if key not in self._kept:
            while len(self._kept) >= KEPT_SUITES_MAX:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = suites.read(suites.resolve(ref))
        return self._kept[key]


class Runner:
    """Runs leases one after the other on one device."""

    def __init__(self, settings: EvaluatorSettings, shelf: SuiteShelf, *, device: str, clock: Clock) -> None:
        self._settings = settings
        self._shelf = shelf
        self._device = device
        self._clock = clock

    def run(
        self,
        ref: SuiteRef,
        checkpoint: Checkpoint,
        *,
        progress: Progress,
        sleep: Callable[[int], None],
    ) -> Job:
        """Evaluates. ``progress`` and ``sleep`` (microseconds) may raise Stopped, which passes through."""
        timing = _Timing(self._clock, self._device)
        _reset_peak(self._device)
        loaded: suites.LoadedSuite | None = None
        try:
            loaded = self._shelf.take(ref)
            found = self._wait(checkpoint, sleep)
            timing.waited_us = found.waited_us
            evaluation = evaluate(loaded, found.folder, device=self._device, progress=progress)
        except Stopped:
            raise
        except NotWhole as error:
            timing.waited_us = timing.elapsed_us()
            return _without_numbers(error.status, error.reason, timing, loaded)
        except Changed as error:
            status: EvalStatus = "incomplete" if is_there(checkpoint) else "gone"
            return _without_numbers(status, str(error), timing, loaded)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- suite code may raise anything
            return _without_numbers(*_blame(error), timing, loaded)
        return Job(_done(evaluation, loaded, timing), evaluation.outcomes)

    def _wait(self, checkpoint: Checkpoint, sleep: Callable[[int], None]) -> Found:
        return wait_until_whole(
            checkpoint,
            wait_us=self._settings.wait_us,
            poll_us=self._settings.poll_us,
            clock=self._clock,
            sleep=sleep,
        )


class _Timing:
    def __init__(self, clock: Clock, device: str) -> None:
        self._clock = clock
        self._began_us = clock.steady_us()
        self._device = device
        self.waited_us = 0

    def elapsed_us(self) -> int:
        return self._clock.steady_us() - self._began_us

    def cost(self, tokens: int = 0) -> Cost:
        return Cost(
            seconds=(self.elapsed_us() - self.waited_us) / 1e6,
            wait_seconds=self.waited_us / 1e6,
            device=self._device,
            tokens=tokens,
            peak_memory_bytes=_peak_bytes(self._device),
        )


def _done(evaluation: Evaluation, loaded: suites.LoadedSuite, timing: _Timing) -> EvalOutcome:
    return EvalOutcome(
        status="done",
        reason=evaluation.warning,
        metrics=evaluation.metrics,
        items=len(evaluation.outcomes),
        weights_digest=evaluation.weights_digest,
        suite_digest=loaded.digest,
        cost=timing.cost(evaluation.tokens),
        settings=evaluation.settings,
    )


def _without_numbers(
    status: EvalStatus, reason: str, timing: _Timing, loaded: suites.LoadedSuite | None
) -> Job:
    digest = loaded.digest if loaded else ""
    reason = reason[:REASON_MAX].encode("utf-8", "replace").decode()
    return Job(EvalOutcome(status=status, reason=reason, suite_digest=digest, cost=timing.cost()), [])


def _blame(error: BaseException) -> tuple[EvalStatus, str]:
    """Status and reason of an exception: broken weights are the checkpoint's fault, the rest the suite's."""
    if type(error).__name__ == "SafetensorError":
        return "unreadable", one_line(error)
    if isinstance(error, SettingsError | BadData):
        return "failed", str(error)
    return "failed", one_line(error)


def _refusal(ref: SuiteRef, known: Sequence[SuiteRef]) -> str:
    alike = [one for one in known if one.name == ref.name]
    if alike:
        there = f"target {alike[0].target!r}, version {alike[0].version!r}, settings {alike[0].settings!r}"
        asked = f"target {ref.target!r}, version {ref.version!r}, settings {ref.settings!r}"
        return (
            f"suite {ref.name!r} is not the same in this evaluator's settings: asked for {asked}, "
            f"here {there}; give the evaluator and the stream workers the same file"
        )
    names = ", ".join(one.name for one in known) or "none"
    return (
        f"suite {ref.name!r} ({ref.target}) is not in this evaluator's settings (it has: {names}), and only "
        "suites named there are run; add it under evaluation.suites and start the evaluator again"
    )


def _reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: str) -> int:
    """Peak memory: of this evaluation on CUDA, else of the process since its start (the system tells no
    other)."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
