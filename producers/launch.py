"""``driftline.init``: settings, identity, thread, hooks. The one call that may raise (wrong settings)."""

from __future__ import annotations

import operator
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from driftline import identity
from driftline.clock import Clock, SystemClock
from driftline.connection import KafkaSettings
from driftline.producers import exits
from driftline.producers.birth import Birth, begin, bounded_config
from driftline.producers.counters import words
from driftline.producers.node import Node
from driftline.producers.run import Run
from driftline.producers.transport import Transport
from driftline.settings import Settings, load

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
        _id_given(resume, run_id, odd),
        _whole("rank", rank, odd),
        _whole("world_size", world_size, odd),
        _whole("local_rank", local_rank, odd),
        str(role or "trainer"),
    )
    who = _identity(told, clock)
    born = Birth(
        who=who,
        name=str(name),
        settings=settings.sdk,
        kafka=kafka,
        transport=transport,
        parent=_ancestor(who),
        config=bounded_config(config),
    )
    run = Run(born)
    if not settings.sdk.enabled:
        run._closed = True
        run._room = -1
        return run
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
    begin(run)
    if not run._closed:
        _watch_host(run, who, settings, clock)
    return run


def _id_given(resume: object, run_id: object, odd: list[str]) -> str | None:
    """The run's id, as it was typed; None if none was given, or nothing, which is told of."""
    given = [str(each) for each in (resume, run_id) if each is not None]
    found = next((each for each in given if each.strip()), None)
    if found is None:
        if given:
            odd.append("the run id that init was given is empty: it is taken from elsewhere, or made")
        return None
    if (made := identity.safe_id(found)) != found:
        odd.append(
            f"the run id {words(found)} can be no key as it stands: the run is {made}; SQL finds it by either"
        )
    return found


def _ancestor(who: identity.Identity) -> str | None:
    """The process that this one was forked from, if that was in the same run with the same rank.

    A worker that calls ``init`` by itself is no restart of its rank.
    """
    for run in exits.live():
        other = run._birth.who
        if run._birth.parent and (run.id, other.role, other.rank) == (who.run, who.role, who.rank):
            return run._birth.parent
    return None


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


def _watch_host(run: Run, who: identity.Identity, settings: Settings, clock: Clock) -> None:
    """A thread of its own takes host readings: a hanging driver must not hold up the samples."""
    if not settings.sdk.system or settings.sdk.collect_us <= 0:
        return
    whole_host = who.local_rank == 0 or (who.local_rank is None and not who.rank)

    def watch() -> None:
        node = Node(settings.sdk.system, whole_host=whole_host, steady_us=clock.steady_us)
        told: set[str] = set()
        pause = threading.Event()
        while not run._closed:
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
