"""Real series of ../shared/realdata as the processes that log them: what the storage benchmark is fed with.

:func:`processes` gives every process of the mix with its samples in the order in which it logs them.
Values, steps and distances in time are those of the files; runs without times of day start at ``T0``.
Metrics of one call share their time. :func:`with_clock` gives the same samples with the digits that a clock
adds.

:func:`frames_of` cuts a process's samples into frames as the SDK does, by its flush interval.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from driftline import frames
from driftline.frames import NO_STEP

T0 = 1_764_460_800_000_000
"""2025-11-30, microseconds since 1970."""
FLUSH_US = 1_000_000
_Ints = npt.NDArray[np.int64]


class Process(NamedTuple):
    """One process of a run; the arrays have one entry per sample, in log order."""

    run: str
    process: str
    rank: int
    names: list[str]
    metric: npt.NDArray[np.int16]
    step: _Ints
    time_us: _Ints
    value: npt.NDArray[np.float64]


def folder() -> Path | None:
    """Where the real series lie, None if they are not here."""
    named = os.environ.get("DRIFTLINE_REALDATA")
    found = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "realdata"
    return found if found.is_dir() else None


def processes(where: Path, *, quick: bool = False) -> list[Process]:
    """The mix; with ``quick`` about a quarter of it."""
    curves = sorted((where / "train_curves").glob("nanogpt_*_*.csv"))
    made: list[Process] = []
    for at, path in enumerate(path for path in curves if "repeated" not in path.name):
        made.append(_curve(path, at))
        if quick:
            break
    made.append(_verl(where / "rl_curves" / "verl_ppo_qwen0.5b_gsm8k.jsonl"))
    rewards = sorted((where / "rl_curves").glob("sb3_*.csv"))
    made += [_rewards(path, at) for at, path in enumerate(rewards, 30)]
    collected = sorted((where / "anomaly_nab").glob("*/*.csv"))
    made += [_collected(path, at) for at, path in enumerate(collected, 40)]
    for at, name in enumerate(("AR",) if quick else ("AR", "SE"), 90):
        made += _trace(where / "rank_timing" / f"trace-{name}.parquet", at, few=quick)
    return made


def frames_of(
    process: Process, *, flush_us: int = FLUSH_US, most: int = 2_000
) -> Iterator[tuple[int, bytes]]:
    """(time of sending, frame) for each flush."""
    sent = 0
    slot = (process.time_us - process.time_us[0]) // flush_us
    edges = np.flatnonzero(np.diff(slot)) + 1
    cuts = sorted({0, *edges.tolist(), *range(0, len(slot), most), len(slot)})
    for seq, (first, last) in enumerate(itertools.pairwise(cuts)):
        part = slice(first, last)
        used, codes = np.unique(process.metric[part], return_inverse=True)
        frame = frames.Frame(
            run=process.run,
            process=process.process,
            rank=process.rank,
            seq=seq,
            names=[process.names[at] for at in used],
            metric=codes.astype(np.int16),
            step=process.step[part],
            time_us=process.time_us[part],
            value=process.value[part],
            weight=np.ones(last - first),
        )
        sent = max(sent, int(process.time_us[last - 1]))  # a file may go back in time, a process does not
        yield sent, frames.encode(frame)


def _id(at: int) -> str:
    """A run id of the SDK's shape."""
    return f"01k4b{at:03d}q7m2x9tz4w8c6h5nfj"


def _process(at: int, rank: int) -> str:
    return hashlib.sha256(f"{at} {rank}".encode()).hexdigest()[:10]


def _made(at: int, rank: int, calls: list[tuple[int, int, dict[str, float]]]) -> Process:
    """A process from its calls of ``log``: (step, time, values)."""
    places: dict[str, int] = {}
    metric, step, time_us, value = [], [], [], []
    for of_step, when, values in calls:
        for name, number in values.items():
            metric.append(places.setdefault(name, len(places)))
            step.append(of_step)
            time_us.append(when)
            value.append(number)
    return Process(
        _id(at),
        _process(at, rank),
        rank,
        list(places),
        np.array(metric, np.int16),
        np.array(step, np.int64),
        np.array(time_us, np.int64),
        np.array(value, np.float64),
    )


def _curve(path: Path, at: int) -> Process:
    """A training run: its losses and the time that it counts, all numbers of a step in one call."""
    calls = []
    with path.open() as file:
        for row in csv.DictReader(file):
            values = {
                name: float(row[name]) for name in ("train_loss", "val_loss", "train_time_ms") if row[name]
            }
            when = T0 + int(row["train_time_ms"]) * 1_000
            calls.append((int(row["step"]), when, values))
    return _made(at, 0, calls)


def _verl(path: Path) -> Process:
    """A PPO run; a step lasts as long as its phases say."""
    calls, now = [], float(T0)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        values = {name: float(number) for name, number in row["data"].items()}
        now += 1e6 * sum(number for name, number in values.items() if name.startswith("timing/"))
        calls.append((int(row["step"]), int(now), values))
    return _made(20, 0, calls)


def _rewards(path: Path, at: int) -> Process:
    """Evaluations during a training: every episode is a metric of its own; 1,000 time steps last a second."""
    calls = []
    with path.open() as file:
        for row in csv.DictReader(file):
            step = int(row.pop("timestep"))
            when = T0 + step * 1_000
            calls.append(
                (step, when, {f"eval/{name}": float(number) for name, number in row.items() if number})
            )
    return _made(at, 0, calls)


def _collected(path: Path, at: int) -> Process:
    """What a collector reads every few minutes; it belongs to no step."""
    calls = []
    with path.open() as file:
        for row in csv.DictReader(file):
            day = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
            when = int(day.timestamp()) * 1_000_000
            calls.append((NO_STEP, when, {path.stem: float(row["value"])}))
    return _made(at, 0, calls)


def _trace(path: Path, at: int, *, few: bool) -> list[Process]:
    """One process per traced worker; each operation is a span of its step, logged when it ends."""
    table = pq.read_table(path)
    names = [f"span/{kind}" for kind in table.column("optype").combine_chunks().dictionary.to_pylist()]
    kinds = table.column("optype").combine_chunks().indices.to_numpy()
    numbers = {column: table.column(column).to_numpy() for column in ("rank", "step", "start_ts", "duration")}
    end = numbers["start_ts"].astype(np.float64) + numbers["duration"].astype(np.float64)
    made = []
    end += (numbers["step"] - numbers["step"].min()) * np.ceil(end.max())  # times start anew in each step
    for rank in np.unique(numbers["rank"])[: 4 if few else None]:
        mine = np.flatnonzero(numbers["rank"] == rank)
        when = T0 + (end[mine] * 1e6).astype(np.int64)
        mine, when = mine[np.argsort(when, kind="stable")], np.sort(when, kind="stable")
        made.append(
            Process(
                _id(at),
                _process(at, int(rank)),
                int(rank),
                names,
                kinds[mine].astype(np.int16),
                numbers["step"][mine].astype(np.int64),
                when,
                numbers["duration"][mine].astype(np.float64),
            )
        )
    return made


def with_clock(mix: list[Process]) -> list[Process]:
    """Most files stamp whole milliseconds, minutes or hours. Here each call of ``log`` comes up to a
    millisecond later (seeded), as the SDK's clock of microseconds would show it: digits that nothing can
    compress."""
    random = np.random.default_rng(7)
    made = []
    for process in mix:
        call = np.cumsum(np.r_[False, np.diff(process.time_us) != 0])
        late = random.integers(0, 1_000, int(call[-1]) + 1)
        made.append(process._replace(time_us=process.time_us + late[call]))
    return made
