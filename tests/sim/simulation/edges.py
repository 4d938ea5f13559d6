"""The outermost edges of the product, replaced for the time of a run."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from driftline import events, records

from . import workers
from .trainers import SimBell

if TYPE_CHECKING:
    from .world import World


@contextlib.contextmanager
def replaced(world: World) -> Iterator[None]:
    """The outermost edges of the product, replaced by the world's."""
    known: dict[bytes | None, Any] = {}
    decode = records.decode

    def decode_once(value: bytes | None) -> Any:
        found = known.get(value)
        if found is None:
            found = known[value] = decode(value)
        return found

    edges = {
        **workers.REPLACED,
        "driftline.producers.worker.Bell": SimBell,
        "driftline.producers.recovery.LOOK_US": 5_000_000,
        "driftline.producers.worker.checkpoint.describe": _describe,
        "driftline.producers.run._time_ns": lambda: world.trainer_ns or world.loop.now_us * 1000,
        "driftline.records.decode": decode_once,
    }
    before = []
    for path, value in edges.items():
        owner, name = _owner(path)
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _owner(path: str) -> tuple[Any, str]:
    head, _, name = path.rpartition(".")
    try:
        return importlib.import_module(head), name
    except ModuleNotFoundError:
        owner, last = _owner(head)
        return getattr(owner, last), name


def _describe(path: str, *, step: int | None, epoch: float | None, format: str | None) -> Any:  # noqa: A002
    """A checkpoint without files; runs that start again save the same weights at the same step."""
    return events.Checkpoint(digest=f"weights-{step}", uri=path, step=step, epoch=epoch)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the product's log lines, and without a garbage collection at a random moment."""
    logger = logging.getLogger("driftline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        logger.setLevel(level)
        if collecting:
            gc.enable()
