"""Stream workers and schedulers: the real process (``worker._run``, ``Shell`` and all below) in a life."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from driftline import config
from driftline.errors import Unavailable
from driftline.streams import worker
from driftline.streams.pipeline import Pipeline
from driftline.streams.scheduler import Scheduler

from . import groups
from .clients import SimConsumer, SimProducer, current
from .clockwork import Life

if TYPE_CHECKING:
    from .world import World


class StreamRole:
    """Keeps ``count`` processes of a role alive until told to stop."""

    def __init__(self, world: World, role: str, count: int) -> None:
        self._world = world
        self.role = role
        self._started = 0
        self._stopping = False
        self._chance = world.chance(f"role/{role}")
        self.lives: list[Life] = []
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        if self._stopping:
            return
        world = self._world
        self._started += 1
        life = world.life(f"{self.role}-{self._started}")
        life.stop = None  # type: ignore[attr-defined]
        life.mourners.append(lambda: world.soon(self._chance.randrange(200_000, 4_000_000), self._start))
        self.lives = [known for known in self.lives if not known.dead] + [life]
        core: Any = Pipeline() if self.role == "streams" else Scheduler()
        settings = world.settings
        body = config.encode(settings.pipeline if self.role == "streams" else settings.scheduler)
        life.main = life.spawn(worker._run(core, settings, self.role, body, worker._prepared))  # type: ignore[attr-defined]

    def stop(self) -> list[asyncio.Task[Any]]:
        """SIGTERM to all of them; returns their main tasks."""
        self._stopping = True
        mains = []
        for life in self.lives:
            if not life.dead:
                life.stop.set()  # type: ignore[attr-defined]
                mains.append(life.main)  # type: ignore[attr-defined]
        return mains


def _topics(_settings: Any) -> dict[str, str]:
    world, life = current()
    life.check()
    if world.broker.away:
        raise Unavailable("the broker is away")
    return world.broker.uuids()


def _uuid(_settings: Any, topic: str) -> str | None:
    return _topics(_settings).get(topic)


@contextlib.contextmanager
def _stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    _, life = current()
    life.stop = stop  # type: ignore[attr-defined]
    yield


def _clock() -> Any:
    world, life = current()
    return world.clock_of(life)


REPLACED: dict[str, Any] = {
    "driftline.streams.worker.ensure_topics": _topics,
    "driftline.streams.worker.is_embedded": lambda _settings: False,
    "driftline.streams.worker.SystemClock": _clock,
    "driftline.streams.worker._worker_name": lambda: current()[1].name,
    "driftline.streams.worker._stop_on_signals": _stop_on_signals,
    "driftline.admin.topic_uuid": _uuid,
    "driftline.streams.shell.faust_app.make": groups.make,
    "driftline.streams.shell.faust_app.commit": groups.commit,
    "driftline.streams.shell.faust_app.highwater": groups.highwater,
    "driftline.streams.shell.outbox.AIOKafkaProducer": SimProducer,
    "driftline.streams.shell.log_reader.AIOKafkaConsumer": SimConsumer,
}
"""What of the product is replaced while a simulation runs: the outermost edge of it."""
