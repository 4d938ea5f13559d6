"""``driftline.init``: settings, identity, thread, hooks. The one call that may raise (wrong settings)."""

from __future__ import annotations

import contextlib
import operator
import os
import socket
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

import msgspec

from driftline import events, identity
from driftline.clock import Clock, SystemClock
from driftline.connection import KafkaSettings
from driftline.producers import exits
from driftline.producers.counters import words
from driftline.producers.disk import FileDisk, place
from driftline.producers.kafka_transport import KafkaTransport
from driftline.producers.node import Node
from driftline.producers.plain import plain
from driftline.producers.run import Run
from driftline.producers.transport import Transport
from driftline.producers.worker import Worker
from driftline.settings import Settings, load

CONFIG_BYTES_MAX = 256 * 1024
NAME_MAX = 4_000
ID_MAX = 256
"""Characters of a role or host name, which events carry as ids."""
_STORE_KEY = "driftline/run/"
_unnamed_runs = 0


def init(
    name: str = "",
    config: Any = None,
    *,
    run_id: str | None = None,
    resume: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    role: str = "trainer",
    settings: Settings | None = None,
    kafka: KafkaSettings | None = None,
    transport: Transport | None = None,
) -> Run:
    """Begins a run, or joins one, in this process. Returns at once, whether a broker is there or not.

    Args:
        name: free text for people; need not be unique.
        config: hyperparameters and the like, kept with the run; any mapping, dataclass or namespace.
        run_id: the run's id, equal on all ranks. Else found as :mod:`driftline.identity` says.
        resume: id of an earlier run to go on with; the same as ``run_id``.
        rank, world_size, local_rank: else from torch.distributed or the environment.
        role: "trainer", "rollout", "evaluator" or "node".
        settings: else from ``driftline.yaml`` and the ``DRIFTLINE_*`` environment.
        kafka: replaces the ``kafka`` part of the settings.
        transport: where records go instead of Kafka; for tests.

    Raises:
        SettingsError: the settings file or environment is wrong. Nothing else is ever raised.
    """
    settings = load() if settings is None else settings
    kafka = kafka or settings.kafka
    clock = SystemClock()
    odd: list[str] = []
    told = identity.Told(
        str(resume or run_id or "") or None,
        _whole("rank", rank, odd),
        _whole("world_size", world_size, odd),
        _whole("local_rank", local_rank, odd),
        str(role or "trainer"),
    )
    who = _identity(told, clock)
    run = Run(run_id=who.run, name=str(name), process=who.process, rank=who.rank, settings=settings.sdk)
    if not settings.sdk.enabled:
        run._closed_as = "finished"
        run._room = -1
        return run
    worker = Worker(
        queue=run._queue,
        drained=run._drained,
        started=_started(who, run.name, config, clock),
        settings=settings.sdk,
        transport=transport or KafkaTransport(kafka, who.run),
        counters=run._counters,
        notes=run._notes,
        clock=clock,
        broker=kafka.bootstrap if transport is None else "memory",
        prefix=kafka.prefix,
        disk=FileDisk(place(settings.sdk.spool, os.environ)),
    )
    for note in odd:
        run._notes.once(("told", note), note)
    if who.alone:
        run._notes.once(
            "alone",
            f"rank {who.rank} shares no run id with the other ranks, so its run {who.run} is its own: "
            "set DRIFTLINE_RUN_ID to the same value on all of them",
        )
    if not who.rank:
        for note in settings.notes:
            run._notes.once(("settings", note), note)
    run._begin(worker)
    if run._closed_as:
        return run
    exits.watch(run)
    _watch_host(run, who, settings, clock)
    return run


def _whole(name: str, value: object, odd: list[str]) -> int | None:
    """A rank or a size as the event can carry it, whatever kind of number or text of one was given."""
    if value is None:
        return None
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1
    if 0 <= number < 2**31:
        return number
    odd.append(f"init({name}={words(value, 80)}): not a whole number from 0 on; ignored")
    return None


def _identity(told: identity.Told, clock: Clock) -> identity.Identity:
    group, agree = _torch_group()

    def fresh() -> str:
        return identity.new_run_id(now_us=clock.now_us(), entropy=os.urandom(10))

    def shared() -> str | None:
        global _unnamed_runs
        _unnamed_runs += 1
        return agree(f"{_STORE_KEY}{_unnamed_runs}", fresh()) if agree else None

    return identity.resolve(
        told,
        os.environ,
        group=group,
        host=socket.gethostname(),
        process=identity.new_process_id(os.urandom(8)),
        shared=shared,
        fresh=fresh,
    )


def _torch_group() -> tuple[identity.Group | None, Callable[[str, str], str | None] | None]:
    """Rank and world size of torch.distributed, and a way to agree on a text through its store.

    Only if the trainer has imported and initialised it. ``compare_set`` lets the first rank that asks decide
    and waits for no one: a rank that never calls ``init`` holds up none.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None:
        return None, None
    try:
        if not (dist.is_available() and dist.is_initialized()):
            return None, None
        group = identity.Group(dist.get_rank(), dist.get_world_size())
    except Exception:  # noqa: BLE001  a half-made process group: then the environment says who we are
        return None, None

    def agree(key: str, mine: str) -> str | None:
        try:
            store = dist.distributed_c10d._get_default_store()
            decided: bytes | str = store.compare_set(key, "", mine)
        except Exception:  # noqa: BLE001  a backend without a store: each process is then its own run, said once
            return None
        return decided.decode() if isinstance(decided, bytes) else decided

    return group, agree


def _started(who: identity.Identity, name: str, config: object, clock: Clock) -> events.ProcessStarted:
    plain_config = plain(config)
    if len(msgspec.json.encode(plain_config)) > CONFIG_BYTES_MAX:
        plain_config = {"...": f"left out: the config is larger than {CONFIG_BYTES_MAX} bytes"}
    version = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("driftline")
    return events.ProcessStarted(
        run=who.run,
        process=who.process,
        seq=0,
        time_us=clock.now_us(),
        name=_bounded(name, NAME_MAX),
        rank=who.rank,
        world_size=who.world_size,
        local_rank=who.local_rank,
        role=_bounded(who.role, ID_MAX),
        host=_bounded(who.host, ID_MAX),
        pid=os.getpid(),
        restart_hint=who.restart_hint,
        config=plain_config,
        sdk=version,
    )


def _bounded(text: str, most: int) -> str:
    """Text as an event can carry it: UTF-8, and not so long that no broker or reader takes the event."""
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _watch_host(run: Run, who: identity.Identity, settings: Settings, clock: Clock) -> None:
    """A thread of its own takes host readings: a hanging driver must not hold up the samples."""
    if not settings.sdk.system or settings.sdk.collect_us <= 0:
        return
    whole_host = who.local_rank == 0 or (who.local_rank is None and not who.rank)

    def watch() -> None:
        node = Node(settings.sdk.system, whole_host=whole_host, steady_us=clock.steady_us)
        told: set[str] = set()
        pause = threading.Event()
        while not run._closed_as:
            run._log_host(node.read())
            for what in set(node.reasons) - told:
                told.add(what)
                run._counters.add("host_unsupported")
            pause.wait(settings.sdk.collect_us / 1e6)

    thread = threading.Thread(target=watch, name="driftline-host", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the system gives no more threads
        run._notes.once("host", f"no readings of the host: {words(error)}")
