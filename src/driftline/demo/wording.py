"""Findings as text, the same on the terminal and on the page."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from driftline.demo.findings import AlertFound, Score
from driftline.demo.toll import NEIGHBOURS, Toll


def command(*, absolute: bool = False) -> str:
    """What one types to start this driftline: the bare name only where the shell finds the same program."""
    here = Path(sys.executable).with_name("driftline")
    on_path = shutil.which("driftline")
    if not here.exists() or (on_path and os.path.realpath(on_path) == os.path.realpath(here)):
        return "driftline"
    relative = os.path.relpath(here)
    return str(here) if absolute or relative.startswith("..") else relative


def with_interval(score: Score, digits: int = 3) -> str:
    """
    >>> with_interval(Score(100, 0.5, 0.4, 0.6), 2)
    '0.50 [0.40, 0.60]'
    """
    return f"{score.value:.{digits}f} [{score.low:.{digits}f}, {score.high:.{digits}f}]"


def steps_of(alert: AlertFound) -> str:
    """The steps of an alert: one, or the first and the last."""
    if alert.step is None:
        return "-"
    return str(alert.step) if alert.last_step in (None, alert.step) else f"{alert.step}-{alert.last_step}"


def rank_of(alert: AlertFound) -> str:
    return "all" if alert.rank is None else str(alert.rank)


def open_for(alert: AlertFound) -> str:
    return "still open" if alert.seconds is None else f"{alert.seconds:.0f} s"


def toll_lines(toll: Toll) -> tuple[str, str]:
    """What evaluation took from training, and how that was found."""
    total = max(0.0, toll.total)
    share = 100 * total / toll.training if toll.training > 0 else 0.0
    crowding = (
        f"{toll.crowding:.1f} s because steps took longer while an evaluation ran on the same cores"
        if toll.crowding > 0
        else "no time that could be told from noise because of evaluations running on the same cores"
    )
    return (
        f"About {total:.1f} s of the training's {toll.training:.0f} s ({share:.1f} %), "
        f"give or take {toll.crowding_error:.1f} s.",
        f"Of this {1000 * toll.calls:.1f} ms were spent inside run.checkpoint(), as measured there, and "
        f"{crowding}: estimated from {toll.steps_during} such steps against the {NEIGHBOURS} before and "
        f"after each evaluation. The evaluator worked for {toll.evaluator:.1f} s, in a process of its own at "
        f"low priority. Writing the checkpoints to disk took {toll.saves:.2f} s; that is not counted.",
    )
