"""What ``driftline replay --repair`` shows."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from driftline.cli.replay_view import plain, printer
from driftline.replay.episodes import Episode
from driftline.replay.repair import Repair
from driftline.storage.recorded.window_repair import Change
from driftline.visible import visible


def show(done: Repair, *, as_json: bool, written: bool) -> None:
    if as_json:
        print(json.dumps(repair_json(done), ensure_ascii=False))
        return
    console = printer()
    if not done.late_frames:
        console.print("Nothing came late: nothing to repair.")
        return
    console.print(f"{done.late_samples:,} samples in {done.late_frames:,} frames came late.")
    for change in done.windows:
        console.print(Text(visible(f"  {_change(change)}")))
    said = (
        f"{done.committed:,} windows are stored with a higher revision." if written else "Nothing is written."
    )
    if written and not done.committed:
        said = "All windows are stored as they would be with it already."
    console.print(said)
    for what, some in (("would have come", done.alerts.gained), ("would not have come", done.alerts.lost)):
        for episode in some:
            console.print(Text(visible(f"  alert {what}: {_alert(episode)}")))
    for moved in done.alerts.moved:
        by = f"{moved.seconds:+g} s" + ("" if moved.steps is None else f", {moved.steps:+} steps")
        console.print(Text(visible(f"  alert would have come {by}: {_alert(moved.after)}")))
    if done.still_late:
        console.print(f"{done.still_late:,} samples are late in any order and stay out.")
    for note in done.notes:
        console.print(Text(f"note: {note}"))


def _change(one: Change) -> str:
    before = _samples(one.samples or 0, one.mean)
    return (
        f"{one.metric} of {one.run}, attempt {one.attempt}, {one.axis} [{one.start}, {one.end})"
        f"{' ' + one.group if one.group else ''}: {before} -> {_samples(one.new_samples, one.new_mean)} "
        f"(revision {one.revision})"
    )


def _samples(count: int, mean: float | None) -> str:
    return f"{count} samples, mean {mean}" if count else "no window"


def _alert(one: Episode) -> str:
    where = "" if one.step is None else f" at step {one.step}"
    return f"{one.rule} of {one.run}{where}: {one.explanation}"


def repair_json(done: Repair) -> dict[str, Any]:
    return {
        "late_frames": done.late_frames,
        "late_samples": done.late_samples,
        "still_late": done.still_late,
        "committed": done.committed,
        "windows": [plain(one._asdict()) for one in done.windows],
        "alerts": {
            "gained": [_alert(one) for one in done.alerts.gained],
            "lost": [_alert(one) for one in done.alerts.lost],
            "moved": [_alert(one.after) for one in done.alerts.moved],
        },
        "notes": done.notes,
    }
