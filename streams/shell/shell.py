"""The shell: Faust delivers records and rebalances, partition tasks do the work, ticks mark the time.

:meth:`Shell.run` ends when it is told to stop, with a last snapshot of each partition, or raises:
Unavailable (start again: nothing is lost), SettingsError (topics no longer fit), anything else is a bug.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from aiokafka.errors import KafkaError
from faust.exceptions import FaustError

from driftline import admin
from driftline.clock import Clock
from driftline.config import digest
from driftline.errors import Unavailable
from driftline.records import received
from driftline.rights import in_words
from driftline.settings import Settings
from driftline.streams.core import Core
from driftline.streams.shell import faust_app
from driftline.streams.shell.assignments import Assignments
from driftline.streams.shell.health import Health
from driftline.streams.shell.log_reader import LogReader
from driftline.streams.shell.outbox import Outbox
from driftline.streams.shell.seams import Parts

S = TypeVar("S")
log = logging.getLogger(__name__)

HEALTH_S = 10.0
STUCK_US = 15_000_000
"""A tick that is under way for so long tells that the broker is away."""
TOPICS_S = 5.0
"""How often the source topic is asked for its UUID."""
REMIND_S = 600.0
"""A notice of the core that still holds is said again after so long."""
STOP_S = 10.0
"""The longest that stopping waits for last snapshots, and for Faust."""


class Shell(Generic[S]):
    """Runs one core with one consumer group."""

    def __init__(
        self,
        core: Core[S],
        settings: Settings,
        *,
        app_id: str,
        worker: str,
        config_body: bytes,
        topic_uuids: dict[str, str],
        embedded: bool,
        health: Health,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._app_id = app_id
        self.health = health
        self._topic = settings.kafka.topics[core.source]
        self._outbox = Outbox(settings.kafka, f"driftline-{worker}", idempotent=not embedded)
        self._app = faust_app.make(
            settings.kafka,
            settings.streams,
            app_id=app_id,
            embedded=embedded,
            buffer_fetches=4,
        )
        self._parts = Parts(
            core=core,
            settings=settings,
            app_id=app_id,
            topic_uuid=topic_uuids[self._topic],
            worker=worker,
            config_body=config_body,
            config_digest=digest(config_body),
            outbox=self._outbox,
            health=health,
            clock=clock,
            open_log=lambda topic, partition: LogReader(settings.kafka, topic, partition),
            commit=self._commit,
            uuid_now=self._uuid_now,
            append_time=not embedded,
        )
        self._assignments = Assignments(self._parts, self._fail)
        self._failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._told_s: dict[str, float] = {}
        self._wire()

    async def run(self, stop: asyncio.Event, started: Callable[[], None]) -> None:
        """Works until ``stop`` is set; calls ``started`` once connected."""
        await self._outbox.start()
        started()
        own = [
            asyncio.create_task(self._guard(work))
            for work in (
                self._start_faust(),
                self._assignments.tick_forever(),
                self._report(),
                self._watch_topics(),
            )
        ]
        stopping: asyncio.Future[Any] = asyncio.create_task(stop.wait())
        try:
            ends = [stopping, self._failed, self._outbox.failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._outbox.failure.done():
                self._outbox.failure.result()
            if self._failed.done():
                self._failed.result()
        finally:
            stopping.cancel()
            await self._stop(own)

    # --- what Faust calls -------------------------------------------------------------------------------

    def _wire(self) -> None:
        topic = self._app.topic(
            self._topic,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            acks=False,
        )
        self._app.agent(topic, name=f"{self._app_id}.collect")(self._collect)
        self._app.on_partitions_revoked.connect(self._on_revoked)
        self._app.on_partitions_assigned.connect(self._on_assigned)

    async def _collect(self, stream: Any) -> None:
        """The agent: hands each fetch to its partition, acknowledges nothing."""
        assignments = self._assignments
        async for event in stream.noack().events():
            for record in event.message.records:
                kept = received(record.partition, record.offset, record.timestamp, record.value)
                if not assignments.deliver(kept):
                    await assignments.room()

    async def _on_revoked(self, _app: Any, revoked: Iterable[Any], **_: Any) -> None:
        self._assignments.revoked({tp.partition for tp in revoked if tp.topic == self._topic})

    async def _on_assigned(self, _app: Any, assigned: Iterable[Any], **_: Any) -> None:
        self._assignments.assigned({tp.partition for tp in assigned if tp.topic == self._topic})

    # --- tasks of its own -------------------------------------------------------------------------------

    async def _start_faust(self) -> None:
        await self._app.start()
        while not self._app.crashed:
            await asyncio.sleep(0.2)
        reason = self._app.crash_reason
        if isinstance(reason, KafkaError | FaustError | OSError):
            raise Unavailable(f"the consumer stopped: {in_words(reason)}") from reason
        raise reason if reason is not None else Unavailable("the consumer stopped")

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            self._measure_lag()
            log.info("%s", self.health.line())
            if self._assignments.stuck_us() > STUCK_US:
                log.warning("the broker takes no records; waiting for it")
            self._tell_notices()

    def _tell_notices(self) -> None:
        """What the core wants read: at once when it is new, then every ten minutes."""
        now_s = asyncio.get_running_loop().time()
        found: dict[str, float] = {}
        for _, task in sorted(self._assignments.tasks.items()):
            if task.cursor is None:
                continue
            for notice in self._parts.core.notices(task.cursor.state):
                found[notice] = self._told_s.get(notice, -REMIND_S)
        for notice, told_s in found.items():
            if now_s - told_s >= REMIND_S:
                log.warning("%s", notice)
                found[notice] = now_s
        self._told_s = found

    def _measure_lag(self) -> None:
        for partition, task in self._assignments.tasks.items():
            end = faust_app.highwater(self._app, self._topic, partition)
            if end is not None and task.cursor is not None:
                self.health.lag[partition] = max(0, end - task.cursor.next)

    async def _watch_topics(self) -> None:
        """A topic that was made again has offsets that mean something else: start anew with its new UUID."""
        while True:
            await asyncio.sleep(TOPICS_S)
            try:
                found = await self._uuid_now()
            except Unavailable:
                continue  # Kafka clients wait for the broker by themselves
            if found != self._parts.topic_uuid:
                raise Unavailable(f"topic {self._topic} was deleted or made again")

    async def _uuid_now(self) -> str | None:
        return await asyncio.to_thread(admin.topic_uuid, self._settings.kafka, self._topic)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to run(), which raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.health.errors += 1
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # seen: run() raises it again

    async def _commit(self, partition: int, offset: int) -> str | None:
        return await faust_app.commit(self._app, self._topic, {partition: offset})

    async def _stop(self, own: list[asyncio.Task[None]]) -> None:
        """Last snapshots, then leave the group, then close the producer; each within a bound."""
        if waiting := self._assignments.retire_all():
            _, late = await asyncio.wait(waiting, timeout=STOP_S)
            for straggler in late:
                straggler.cancel()
        for work in own:
            work.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        try:
            await asyncio.wait_for(self._app.stop(), STOP_S)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - nothing rests on how Faust ends
            log.warning("Faust did not stop in order: %r", error)
        await self._outbox.stop()
        log.info("%s", self.health.line())
