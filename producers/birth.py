"""How the SDK's thread begins in a process: at ``init``, and again, lazily, in a child that logs.

A forked child, and a process to which a ``Run`` was sent (spawned workers, actors on other hosts), is an SDK
process of its own in the same run: its own process id, queue, thread and connection, made at its first call
that has something to send, and :attr:`Birth.parent` names the process that it comes from. It has the rank of
its parent, takes no seat and opens no attempt (design 3), reads no host, and repeats no config.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from driftline import events, identity
from driftline.clock import Clock, SystemClock
from driftline.connection import KafkaSettings, with_secrets_of, without_secrets
from driftline.errors import DriftlineError
from driftline.producers import exits
from driftline.producers.disk import FileDisk, place
from driftline.producers.kafka_transport import KafkaTransport
from driftline.producers.plain import plain
from driftline.producers.transport import Transport
from driftline.producers.worker import Worker
from driftline.settings import SdkSettings, load

if TYPE_CHECKING:
    from driftline.producers.run import Run

CONFIG_BYTES_MAX = 256 * 1024
NAME_MAX = 4_000
ID_MAX = 256
"""Characters of a role or host name, which events carry as ids."""


class Birth(NamedTuple):
    """All that it takes to begin."""

    who: identity.Identity
    name: str
    settings: SdkSettings
    kafka: KafkaSettings
    transport: Transport | None = None
    """Where records go instead of Kafka."""
    parent: str | None = None
    """The process that this one comes from."""
    config: dict[str, Any] | None = None

    def child(self, parent: str | None) -> Birth:
        """Of a process that comes from this one; ``parent`` is the nearest one that the log knows."""
        who = self.who._replace(process=identity.new_process_id(os.urandom(8)))
        transport = None if self.transport is None else self.transport.again()
        return self._replace(who=who, transport=transport, parent=parent, config=None)

    def packed(self) -> Birth:
        """As it may leave the process: passwords go only to a child that is being spawned, as with
        multiprocessing's own key. Elsewhere (a file, another host) they are taken from the settings there."""
        context = sys.modules.get("multiprocessing.context")
        if context is not None and context.get_spawning_popen() is not None:
            return self._replace(config=None)
        return self._replace(kafka=without_secrets(self.kafka), config=None)


def begin(run: Run) -> None:
    """Starts the SDK's thread of ``run`` in this process and sets the hooks for its end."""
    birth, clock = run._birth, SystemClock()
    kafka = birth.kafka if birth.parent is None else _with_passwords(birth.kafka)
    worker = Worker(
        queue=run._queue,
        drained=run._drained,
        started=_started(birth, clock),
        settings=birth.settings,
        transport=birth.transport or KafkaTransport(kafka, birth.who.run),
        counters=run._counters,
        notes=run._notes,
        clock=clock,
        broker=kafka.bootstrap if birth.transport is None else "memory",
        prefix=kafka.prefix,
        disk=FileDisk(place(birth.settings.spool, os.environ)),
    )
    run._begin(worker)
    if not run._closed:
        exits.watch(run)


def bounded_config(config: object) -> dict[str, Any]:
    """The user's config as it travels."""
    found = plain(config)
    if len(msgspec.json.encode(found)) > CONFIG_BYTES_MAX:
        return {"...": f"left out: the config is larger than {CONFIG_BYTES_MAX} bytes"}
    return found


def _with_passwords(kafka: KafkaSettings) -> KafkaSettings:
    if kafka.security_protocol == "PLAINTEXT":
        return kafka
    try:
        return with_secrets_of(kafka, load().kafka)
    except DriftlineError:  # the broker will say that there is no password
        return kafka


def _started(birth: Birth, clock: Clock) -> events.ProcessStarted:
    version = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("driftline")
    who = birth.who
    return events.ProcessStarted(
        run=who.run,
        process=who.process,
        seq=0,
        time_us=clock.now_us(),
        name=_bounded(birth.name, NAME_MAX),
        parent=birth.parent,
        rank=who.rank,
        world_size=who.world_size,
        local_rank=who.local_rank,
        role=_bounded(who.role, ID_MAX),
        host=_bounded(socket.gethostname() if birth.parent else who.host, ID_MAX),
        pid=os.getpid(),
        restart_hint=who.restart_hint,
        config=birth.config or {},
        sdk=version,
    )


def _bounded(text: str, most: int) -> str:
    """Text as an event can carry it: UTF-8, and not so long that no broker or reader takes the event."""
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= most else clean[: most - 1] + "…"
