"""The stream worker and the scheduler as processes: ``run_streams`` and ``run_scheduler``.

Exit codes: 0 stopped by SIGTERM or Ctrl-C, 1 a bug, 2 wrong settings, topics that do not fit, or a broker
that refuses us from the start (a supervisor should not start it again). A broker that is away is waited for,
with one line, not with an end; so is one that refuses us after it had let us in.

    python -m driftline.streams.worker streams|scheduler      settings from the environment
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from driftline import config
from driftline.admin import ensure_topics, is_embedded
from driftline.clock import SystemClock
from driftline.errors import Refused, SettingsError, Unavailable
from driftline.settings import Settings
from driftline.streams.core import Core
from driftline.visible import VisibleFormatter, visible

log = logging.getLogger(__name__)

RETRY_S = 2.0
REMIND_S = 60.0
"""A broker that stays away is mentioned again after so long."""


def run_streams(settings: Settings) -> int:
    """Runs the window pipeline on the partitions of ``telemetry`` that the group gives it, until stopped."""
    from driftline.streams import extensions
    from driftline.streams.pipeline import Pipeline

    extensions.trust(settings.pipeline)
    body = config.encode(settings.pipeline)
    return run_core(Pipeline(), settings, role="streams", config_body=body, prepare=_compile)


def _compile() -> None:
    """Compiles the window engine, or loads what an earlier start has compiled, before anyone waits for it."""
    from driftline.streams import warm

    clock = SystemClock()
    log.info("getting the window engine ready (the first start on a machine takes up to a minute)")
    begin_us = clock.steady_us()
    warm.up()
    log.info("the window engine is ready after %.1f s", (clock.steady_us() - begin_us) / 1e6)


def run_scheduler(settings: Settings) -> int:
    """Runs the scheduler on ``evals``; further processes stand by."""
    from driftline.streams.scheduler import Scheduler

    return run_core(Scheduler(), settings, role="scheduler", config_body=config.encode(settings.scheduler))


def run_core(
    core: Core[Any],
    settings: Settings,
    *,
    role: str,
    config_body: bytes,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Runs any core in this process until SIGTERM or Ctrl-C; returns the exit code.

    ``prepare`` is called once the topics are there and fit, before the worker joins its group.
    """
    _log_to_stderr(role)
    try:
        asyncio.run(_run(core, settings, role, config_body, prepare or _prepared))
    except SettingsError as error:
        print(visible(f"driftline {role}: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    except ModuleNotFoundError:
        raise  # the extra is not installed: the command line says which one
    except Exception:
        log.exception("stopped by an error that should not happen; please report it")
        return 1
    return 0


async def _run(
    core: Core[Any], settings: Settings, role: str, config_body: bytes, prepare: Callable[[], None]
) -> None:
    """Starts the shell, and again whenever the broker (or what it says) went away."""
    from driftline.streams.shell.health import Health
    from driftline.streams.shell.shell import Shell

    stop = asyncio.Event()
    health = Health()
    with _stop_on_signals(stop):
        waiting = _Patience()
        while not stop.is_set():
            try:
                uuids = await asyncio.to_thread(ensure_topics, settings.kafka)
                embedded = await asyncio.to_thread(is_embedded, settings.kafka)
                await asyncio.to_thread(prepare)
                prepare = _prepared
                shell = Shell(
                    core,
                    settings,
                    app_id=f"{settings.kafka.prefix}{role}",
                    worker=_worker_name(),
                    config_body=config_body,
                    topic_uuids=uuids,
                    embedded=embedded,
                    health=health,
                    clock=SystemClock(),
                )
                await shell.run(stop, waiting.over)
            except Refused as error:
                if not waiting.let_in:
                    raise error.at_start() from error
                waiting.tell(error)
                await _pause(stop)
            except Unavailable as error:
                waiting.tell(error)
                await _pause(stop)
    log.info("stopped")


def _prepared() -> None:
    """Nothing is left to prepare."""


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), RETRY_S)


class _Patience:
    """Says once that the broker is away, and again only after a while."""

    def __init__(self) -> None:
        self._told_s: float | None = None
        self.let_in = False
        """The broker has let us in before."""

    def tell(self, error: Unavailable) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._told_s is None or now_s - self._told_s > REMIND_S:
            log.warning("waiting: %s; trying again every %.0f s", error, RETRY_S)
            self._told_s = now_s

    def over(self) -> None:
        if self._told_s is not None:
            log.info("the broker answers")
        self._told_s = None
        self.let_in = True


@contextlib.contextmanager
def _stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop``; where signals cannot be had (another thread), the caller stops it."""
    loop = asyncio.get_running_loop()
    caught = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
            loop.add_signal_handler(number, stop.set)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def _log_to_stderr(role: str) -> None:
    """Our own lines; those of Faust and the Kafka clients only with DRIFTLINE_LOG=debug."""
    debug = os.environ.get("DRIFTLINE_LOG", "").lower() == "debug"
    ours = logging.getLogger("driftline")
    if not ours.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(VisibleFormatter(f"%(asctime)s {role}: %(message)s"))
        (logging.getLogger() if debug else ours).addHandler(handler)
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    for name in ("faust", "mode", "aiokafka", "kafka"):
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.CRITICAL)


_ROLES: dict[str, Callable[[Settings], int]] = {"streams": run_streams, "scheduler": run_scheduler}


def _main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in _ROLES:
        print("usage: python -m driftline.streams.worker streams|scheduler", file=sys.stderr)
        return 2
    from driftline.settings import load

    try:
        settings = load()
    except SettingsError as error:
        print(f"driftline {arguments[0]}: {error}", file=sys.stderr)
        return 2
    return _ROLES[arguments[0]](settings)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
