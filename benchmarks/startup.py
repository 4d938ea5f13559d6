"""What a command costs before and beside its own work: ``--help``, a question to a small run, a report.

    .venv/bin/python benchmarks/startup.py [--quick] [--beside PYTHON]

One run of a minute: 4 ranks, 6 metrics, 208 steps, 4,992 samples in 14 commits of a sink, two evaluations,
an alert. `curve loss`, `evals`, `sql "SELECT * FROM run_summary"` and `report` are asked of it. Each command
is a process of its own; all take turns. A first turn does not count: it leaves compiled bytecode (whatever
PYTHONDONTWRITEBYTECODE says) and warm files. ``..._s`` is CPU time (user and system) of the least turn, which
other work on the machine disturbs least; ``..._wall_s`` is the least wall time.

``help_ratio`` is the CPU time of `driftline --help` over that of a process that does nothing but import
typer with what it loads itself to print any help by rich (``import typer.rich_utils``: rich.console, panel,
table, markdown). ``help_ratio_bare`` is the same over ``import typer, rich``, which loads nothing of rich
that could print: no program that prints a help by rich can come near it.

``--beside PYTHON`` is the interpreter of another environment, e.g. of an older commit: its commands take
turns with ours on the same tables, their fields end in ``_beside``. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from driftline import events, frames
from driftline.records import OutputId, Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake

UUID = "11111111-1111-1111-1111-111111111111"
RUN = "01k4startupm2x9tz4w8cq7b3e"
RANKS, STEPS, FRAME_STEPS = 4, 208, 16
NAMES = ["loss", "grad_norm", "lr", "tokens_per_second", "span/forward", "span/backward"]
T0, STEP_US = 1_764_460_800_000_000, 300_000
TURNS = 7
SHORT = 5
"""Times in a turn that the short ones are started: they are disturbed more."""


class Spent(NamedTuple):
    """What a process took, in seconds."""

    cpu: float
    wall: float


def store(root: Path) -> None:
    """What a sink leaves of the run."""
    core = SinkCore(Lake(root))
    spots = {topic: Spot(topic, UUID, 0) for topic in ("telemetry", "alerts")}
    core.resume(dict.fromkeys(spots.values(), 0))
    offsets = dict.fromkeys(spots, 0)

    def take(topic: Any, body: bytes, time_us: int) -> None:
        core.take(spots[topic], [Record(0, offsets[topic], time_us // 1000, body)])
        offsets[topic] += 1

    def commit() -> None:
        for _ in core.commits():
            pass

    for rank in range(RANKS):
        started = events.ProcessStarted(
            run=RUN, process=f"p{rank}", seq=0, time_us=T0, rank=rank, world_size=RANKS, name="digits",
            host="node-a", config={"lr": 0.001, "model": {"layers": 2}},
        )  # fmt: skip
        take("telemetry", events.encode(started), T0)
    goal = events.MetricDefined(run=RUN, process="p0", seq=1, time_us=T0, metric="loss", goal="min")
    take("telemetry", events.encode(goal), T0)
    random = np.random.default_rng(1)
    for number, step in enumerate(range(0, STEPS, FRAME_STEPS)):
        for rank in range(RANKS):
            take("telemetry", _frame(random, rank, number + 2, step), T0 + step * STEP_US)
        if number == 6:
            for body in _alert(step):
                take("alerts", body, T0 + step * STEP_US)
        if number in (5, 11):
            for body in _evaluated(step):
                take("telemetry", body, T0 + step * STEP_US)
        commit()
    end = T0 + STEPS * STEP_US
    for rank in range(RANKS):
        ended = events.ProcessEnded(run=RUN, process=f"p{rank}", seq=99, time_us=end)
        take("telemetry", events.encode(ended), end)
    commit()


def _frame(random: np.random.Generator, rank: int, seq: int, step: int) -> bytes:
    """A rank's samples of ``FRAME_STEPS`` steps; rank 2 is slow."""
    steps = np.arange(step, step + FRAME_STEPS)
    count = len(NAMES)
    noise = random.normal(0, 0.02, (len(steps), count))
    loss = 3 / np.sqrt(steps + 1) + 3.0 * ((steps >= 98) & (steps < 102))
    slow = 0.015 if rank == 2 else 0.0
    level = [loss, loss / 2, 0.001 + 0 * loss, 900 - 20 * loss, 0.03 + slow + 0 * loss, 0.06 + 0 * loss]
    values = np.stack(level, axis=1) * (1 + noise * [1, 1, 0, 1, 1, 1])
    frame = frames.Frame(
        run=RUN, process=f"p{rank}", rank=rank, seq=seq, names=NAMES,
        metric=np.tile(np.arange(count, dtype=np.int16), len(steps)),
        step=np.repeat(steps.astype(np.int64), count),
        time_us=np.repeat(T0 + steps * STEP_US, count),
        value=np.round(values, 6).ravel(),
        weight=np.ones(values.size),
    )  # fmt: skip
    return frames.encode(frame)


def _alert(step: int) -> list[bytes]:
    whole: dict[str, Any] = {
        "alert": f"{RUN}/spike", "run": RUN, "attempt": 0, "rule": "loss-spike", "detector": "loss_spike",
        "severity": "warn", "opened_us": T0 + step * STEP_US, "metric": "loss", "step": 98, "last_step": 101,
        "value": 3.3, "explanation": "loss is 3.3 at step 98: 3 above the normal 0.3",
    }  # fmt: skip
    later = T0 + (step + 4) * STEP_US
    return [
        events.encode(
            events.Alert(**whole, id=str(OutputId(UUID, 0, 1, 0)), state="open", time_us=later - 1)
        ),
        events.encode(
            events.Alert(
                **whole, id=str(OutputId(UUID, 0, 2, 0)), state="resolved", time_us=later, resolved_us=later
            )
        ),
    ]


def _evaluated(step: int) -> list[bytes]:
    """A checkpoint, and its evaluation."""
    at = T0 + step * STEP_US
    saved = events.Checkpoint(digest=f"d{step}", uri=f"/c/{step}", step=step, epoch=step / STEPS)
    value = step / STEPS
    metric = events.Metric(
        name="exact_match", value=value, stderr=0.04, low=value - 0.08, high=value + 0.08, count=100
    )
    accepted = events.EvalAccepted(
        id=str(OutputId("evals", 0, step, 0)), request=f"r{step}", run=RUN, attempt=0,
        suite=events.SuiteRef(name="sums", target="m:sums"), checkpoint=saved, reason="steps", evaluator="e",
        lease=f"l{step}", tries=1, requested_us=at, accepted_us=at + 2_000_000,
        outcome=events.EvalOutcome(status="done", metrics=[metric], items=100, cost=events.Cost(seconds=1.5)),
    )  # fmt: skip
    event = events.CheckpointSaved(run=RUN, process="p0", seq=100 + step, time_us=at, checkpoint=saved)
    return [events.encode(event), events.encode(accepted)]


def commands(python: str, root: Path, report: Path) -> dict[str, list[str]]:
    """The commands of the environment of ``python``, by their fields."""
    # As the console script does; -P, for the current folder must not stand in for the environment.
    driftline = [python, "-P", "-c", "from driftline.cli import main; main()"]
    asked = ["--root", str(root)]
    return {
        "help": [*driftline, "--help"],
        "curve": [*driftline, "curve", "loss", *asked],
        "evals": [*driftline, "evals", *asked],
        "sql": [*driftline, "sql", "SELECT * FROM run_summary", *asked],
        "report": [*driftline, "report", "--out", str(report), *asked],
    }


def spent(command: list[str]) -> Spent:
    """What one process took."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=compiled)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def measure(asked: dict[str, list[str]], turns: int) -> dict[str, Spent]:
    """The least of each command's turns."""
    best = dict.fromkeys(asked, Spent(math.inf, math.inf))
    short = [name for name in asked if name.startswith(("import", "help"))]
    for turn in range(turns + 1):
        for name in [*asked, *short * (SHORT - 1)]:
            took = spent(asked[name])
            if turn:
                best[name] = Spent(min(took.cpu, best[name].cpu), min(took.wall, best[name].wall))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two turns")
    parser.add_argument("--beside", metavar="PYTHON", help="interpreter of another environment")
    given = parser.parse_args()
    result: dict[str, Any] = {"samples": RANKS * STEPS * len(NAMES)}
    with tempfile.TemporaryDirectory(prefix="driftline-bench-") as name:
        root = Path(name) / "data"
        store(root)
        environments = {"": sys.executable} | ({"_beside": given.beside} if given.beside else {})
        asked = {
            "import": [sys.executable, "-P", "-c", "import typer.rich_utils"],
            "import_bare": [sys.executable, "-P", "-c", "import typer, rich"],
        }
        for end, python in environments.items():
            report = Path(name) / f"report{end}.html"
            asked |= {f"{what}{end}": words for what, words in commands(python, root, report).items()}
        best = measure(asked, 2 if given.quick else TURNS)
    for end in environments:
        result[f"help_ratio{end}"] = best[f"help{end}"].cpu / best["import"].cpu
        result[f"help_ratio_bare{end}"] = best[f"help{end}"].cpu / best["import_bare"].cpu
        for what in ("help", "curve", "evals", "sql"):
            result[f"{what}_s{end}"] = best[f"{what}{end}"].cpu
            result[f"{what}_wall_s{end}"] = best[f"{what}{end}"].wall
        result[f"report_cpu_s{end}"] = best[f"report{end}"].cpu
        result[f"report_wall_s{end}"] = best[f"report{end}"].wall
    result["cores"] = os.cpu_count()
    result["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in result.items()}))


if __name__ == "__main__":
    main()
