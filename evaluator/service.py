"""The evaluator as a process: waits for leases, evaluates them one after the other, delivers the results.

The main thread runs suite code (torch, signals); :class:`~driftline.evaluator.link.Link` talks to the broker.
SIGTERM and Ctrl-C stop the evaluation that is running (another evaluator does it again), say goodbye and end
with exit code 0; a second one ends at once.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from driftline.clock import Clock, SystemClock
from driftline.errors import SettingsError
from driftline.evaluator import suites
from driftline.evaluator.desk import Desk, Stopped
from driftline.evaluator.link import GOODBYE_US, Link
from driftline.evaluator.parcels import Delivery, pack
from driftline.evaluator.reasons import one_line
from driftline.evaluator.transport import Connect, KafkaTransport
from driftline.events import EvalOutcome, EvalResult, Lease, to_float
from driftline.settings import Settings
from driftline.visible import VisibleFormatter, visible

if TYPE_CHECKING:
    from driftline.evaluator.job import Job, Runner

log = logging.getLogger("driftline.evaluator")

TAKE_S = 0.5


class Interrupted(BaseException):
    """Raised by the signal handler inside suite code, which catches no BaseException."""


def run_evaluator(settings: Settings, *, evaluator_id: str | None = None) -> int:
    """Runs an evaluator until SIGTERM or Ctrl-C; returns the exit code.

    Call it from the main thread. ``evaluator_id`` must be new for each process; by default host and a
    random part.

    Raises:
        SettingsError: no suites are named, one cannot be found, the device is not there, or the topics do
            not fit.
    """
    evaluator = evaluator_id or f"{socket.gethostname()}-{secrets.token_hex(4)}"
    logging.getLogger("kafka").setLevel(
        logging.CRITICAL
    )  # it logs every failed attempt; the link says it once
    connect = partial(KafkaTransport, settings.kafka, client_id=f"driftline-evaluator-{evaluator}")
    return Service(settings, evaluator=evaluator, connect=connect, clock=SystemClock()).run()


class Service:
    """An evaluator over any transport."""

    def __init__(self, settings: Settings, *, evaluator: str, connect: Connect, clock: Clock) -> None:
        """Checks the settings. Raises SettingsError."""
        _check_suites(settings)
        self._settings = settings
        self._evaluator = evaluator
        self._clock = clock
        self._runner, self._device = _prepare(settings, clock)
        self._stop = threading.Event()
        self._interruptible = False
        self.desk = Desk(evaluator, clock)
        self._link = Link(
            connect,
            self.desk,
            evaluator=evaluator,
            suites=[ref.name for ref in settings.pipeline.suites],
            device=self._device,
            settings=settings.evaluator,
            clock=clock,
        )

    def run(self) -> int:
        """Until stopped. Raises what ended the link, if that was not a stop."""
        names = ", ".join(ref.name for ref in self._settings.pipeline.suites)
        log.info("evaluator %s on %s, suites: %s", self._evaluator, self._device, names)
        with self._signals():
            self._link.start()  # before nice: threads inherit it, and leases are to be renewed in time
            _be_nice(self._settings.evaluator.nice)
            while not self._stop.is_set() and self._link.is_alive():
                if (lease := self.desk.take(TAKE_S)) is not None:
                    self._work(lease)
            self._link.stop()
            self._link.join(GOODBYE_US / 1e6 * 3)
        if self._link.failure is not None:
            raise self._link.failure
        log.info("evaluator %s ended", self._evaluator)
        return 0

    def stop(self) -> None:
        """Ends after the running batch; from any thread."""
        self._stop.set()
        self.desk.notify()

    def _work(self, lease: Lease) -> None:
        step = lease.checkpoint.step
        log.info("%s of step %s: begins (try %d)", lease.suite.name, step, lease.tried)
        try:
            self._interruptible = True
            self._go_on()  # a signal may have come just before
            job = self._runner.run(lease.suite, lease.checkpoint, progress=self._progress, sleep=self._sleep)
            self._interruptible = False
        except (Stopped, Interrupted) as stopped:
            self._interruptible = False
            log.info("%s of step %s: stopped, %s", lease.suite.name, step, stopped)
            self.desk.put(None)
            return
        outcome = job.outcome
        shown = (
            ", ".join(f"{metric.name} {to_float(metric.value):.4g}" for metric in outcome.metrics)
            or outcome.reason
        )
        log.info(
            "%s of step %s: %s, %s (%.1f s)",
            *(lease.suite.name, step, outcome.status, shown, outcome.cost.seconds),
        )
        self.desk.put(self._pack(lease, job))

    def _pack(self, lease: Lease, job: Job) -> Delivery:
        try:
            return pack(lease, self._result(lease, job.outcome), job.items)
        except Exception as error:  # noqa: BLE001 -- suite code gave values that JSON has not
            reason = f"the suite gave something that cannot be written as JSON: {one_line(error)}"
            failed = EvalOutcome(status="failed", reason=reason, cost=job.outcome.cost)
            return pack(lease, self._result(lease, failed), [])

    def _result(self, lease: Lease, outcome: EvalOutcome) -> EvalResult:
        return EvalResult(
            evaluator=self._evaluator,
            lease=lease.lease,
            request=lease.request,
            time_us=self._clock.now_us(),
            outcome=outcome,
        )

    def _progress(self, done: int, total: int) -> None:
        if not self.desk.sign_of_life(done, total):
            raise Stopped("another evaluator's result was accepted")
        self._go_on()

    def _sleep(self, length_us: int) -> None:
        """While waiting for a checkpoint; ends early on stop."""
        if not self.desk.sign_of_life():
            raise Stopped("another evaluator's result was accepted")
        self._stop.wait(length_us / 1e6)
        self._go_on()

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Stopped("the evaluator ends")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the service while it runs; only the main thread may set handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            os._exit(128 + number)
        self._stop.set()
        if self._interruptible:
            raise Interrupted("the evaluator ends")


def _check_suites(settings: Settings) -> None:
    if not settings.pipeline.suites:
        raise SettingsError(
            "evaluation.suites", [], 'name at least one, such as {name: sums, target: "my_suites:sums"}'
        )
    for ref in settings.pipeline.suites:
        suites.check_target(ref)


def _prepare(settings: Settings, clock: Clock) -> tuple[Runner, str]:
    """What runs leases, and its device. Raises SettingsError when torch or the device is not there.

    Torch is imported here and not before: it takes seconds, and wrong settings are to be said at once.
    """
    try:
        import torch

        from driftline.evaluator.evaluation import pick_device
        from driftline.evaluator.job import Runner, SuiteShelf
    except ImportError as error:
        raise SettingsError("", "", f"{error}: pip install 'driftline[evaluator]'") from error

    if settings.evaluator.threads is not None:
        torch.set_num_threads(settings.evaluator.threads)
    device = pick_device(settings.evaluator.device)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        remedy = f'{reason}; use "auto", "cpu" or "cuda:0"'
        raise SettingsError("evaluator.device", settings.evaluator.device, remedy) from error
    shelf = SuiteShelf(settings.pipeline.suites)
    return Runner(settings.evaluator, shelf, device=device, clock=clock), device


def _be_nice(by: int) -> None:
    """Lowers the priority of this thread and of those that it starts (torch's). Linux knows it per thread."""
    if by > 0:
        os.nice(by)


def main() -> int:
    """``python -m driftline.evaluator.service``: settings from the file and the environment."""
    from driftline import settings

    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        return run_evaluator(settings.load())
    except SettingsError as error:
        print(visible(str(error)), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
