"""What must hold when a simulation has come to rest; each check gives sentences that say what does not.

The judge is the recorded log: everything that was ever appended, whatever was cut or deleted later. Expected
outputs come from the pure cores over that log in one batch (that these are what ``tests/naive.py`` says is
checked in ``windows_agree``, and by ``tests/streams``); expected rows from the slow rule "each (run, process,
seq) once".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import bounds
from .checks_of_evaluations import evaluated_once, evaluations_stored_once
from .checks_of_input import (
    events_stored_once,
    log_stored_once,
    logged_adds_up,
    nothing_was_cut_too_early,
    only_poison_is_undecodable,
    positions_moved_on,
    samples_stored_once,
    spools_are_sent,
    what_was_on_disk_arrives,
)
from .checks_of_outputs import (
    all_was_worked_on,
    outputs_are_the_oracles,
    repeats_are_equal,
    tables_have_the_outputs,
    windows_agree,
)
from .findings import FEW, Findings, Problems

if TYPE_CHECKING:
    from .world import World


def nothing_crashed(found: Findings) -> Problems:
    """No part ended with an error that nobody expects."""
    yield from found.world.loop.crashes[:FEW]


def bounds_held(found: Findings) -> Problems:
    """Nothing grew beyond its bound at any time."""
    yield from sorted(found.world.broken_bounds)[:FEW]
    yield from bounds.too_many_snapshots(found.world)


CHECKS: tuple[Callable[[Findings], Problems], ...] = (
    nothing_crashed,
    bounds_held,
    repeats_are_equal,
    samples_stored_once,
    log_stored_once,
    events_stored_once,
    logged_adds_up,
    what_was_on_disk_arrives,
    only_poison_is_undecodable,
    spools_are_sent,
    positions_moved_on,
    nothing_was_cut_too_early,
    tables_have_the_outputs,
    evaluations_stored_once,
    outputs_are_the_oracles,
    all_was_worked_on,
    evaluated_once,
)
"""The cheap ones first."""


def problems(world: World, *, naive: bool, all_of_them: bool = True) -> list[str]:
    """What does not hold, with the name of its check; else only of the first check that finds anything."""
    found = Findings(world)
    told: list[str] = []
    for check in (*CHECKS, windows_agree) if naive else CHECKS:
        told += [f"{check.__name__}: {problem}" for problem in check(found)]
        if told and not all_of_them:
            break
    return told
