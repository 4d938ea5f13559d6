"""What ``driftline replay --what-if`` shows."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from driftline.cli.replay_view import plain, printer
from driftline.replay.what_if import Drop, Metric, WhatIf
from driftline.visible import visible


def show(found: Sequence[WhatIf], asked: str, *, as_json: bool) -> None:
    if as_json:
        rows = [plain(one._asdict() | {"metrics": [_metric_json(m) for m in one.metrics]}) for one in found]
        print(json.dumps({"what_if": asked, "suites": rows}, ensure_ascii=False))
        return
    console = printer()
    if not found:
        console.print("No suite is configured in the log, or no checkpoint was saved: nothing to evaluate.")
        return
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in (
        "run",
        "suite",
        "asked for",
        "results",
        f"with {asked}",
        "of both",
        "seconds each",
        "cost",
        "would cost",
    ):
        table.add_column(name, justify="left" if name in ("run", "suite") else "right")
    for one in found:
        numbers = (one.asked, one.answered, one.would_ask, one.both)
        times = (_s(one.seconds_each), _cost(one.seconds, one), _cost(one.would_seconds, one))
        row = (visible(one.run), visible(one.suite), *map(str, numbers), *times)
        table.add_row(*map(Text, row))
    console.print(table)
    without = sum(one.asked - one.answered for one in found)
    if without:
        console.print(
            f"{without} of those asked for have no result (lost, over the budget, failed or still waiting): "
            "that they were asked for is what the replay says; it is stored nowhere."
        )
    for one in found:
        for metric in one.metrics:
            for line in _lines(metric):
                console.print(Text(visible(f"  {one.suite} of {one.run}, {metric.metric}: {line}")))


def _lines(one: Metric) -> list[str]:
    assumed = "" if one.declared else " (higher taken as better: run.define says it)"
    if one.would_best is None:
        return [f"none of the checkpoints with a known result would have been evaluated{assumed}"]
    lines = []
    if one.would_best_step == one.best_step:
        lines.append(
            f"the best checkpoint, step {one.best_step} ({one.best:g}), would have been found{assumed}"
        )
    else:
        lines.append(
            f"the best checkpoint, step {one.best_step} ({one.best:g}), would have been missed: of those "
            f"evaluated step {one.would_best_step} is best ({one.would_best:g}){assumed}"
        )
    return lines + [_drop(drop) for drop in one.drops]


def _drop(one: Drop) -> str:
    fall = f"the drop at step {one.step} ({one.best:g} to {one.value:g})"
    if one.seen_step is None:
        return f"{fall} would not have been seen"
    if not one.steps_later:
        return f"{fall} would have been seen as early"
    return f"{fall} would have been seen {one.steps_later} steps later, at step {one.seen_step}"


def _s(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:,.1f}"


def _cost(seconds: float | None, one: WhatIf) -> str:
    if seconds is None:
        return "unknown"
    share = f", {seconds / one.log_seconds:.1%} of the run" if one.log_seconds else ""
    return f"{seconds:,.1f} s{share}"


def _metric_json(one: Metric) -> dict[str, object]:
    return one._asdict() | {"drops": [drop._asdict() for drop in one.drops]}
