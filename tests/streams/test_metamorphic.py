"""What must not change a result: the order of ranks, the width of panes, who works on which partition."""

from __future__ import annotations

import math
import random
from types import ModuleType
from typing import Any

import msgspec
import pytest

from driftline import config, events, frames, records
from driftline.config import PipelineConfig, WindowSpec
from driftline.records import Output, Record
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
LATENESS = 2 * SECOND
PLAIN = PipelineConfig(
    windows=[WindowSpec("time", 10 * SECOND, 5 * SECOND), WindowSpec("step", 16, 4)],
    per_rank=["loss"],
    per_host=["loss"],
    quantiles={"loss": [0.1, 0.9]},
    allowed_lateness_us=LATENESS,
)
RANKS, STEPS = 5, 40


def whole_number(chance: random.Random) -> float:
    """Of few digits: sums of them are exact in any order, so a difference is none of rounding."""
    return float(chance.randrange(-1000, 1000))


def arrivals(
    naive: ModuleType,
    seed: int,
    *,
    delay_us: int,
    value: Any = whole_number,
    run: str = "r",
    steps: int = STEPS,
    older_us: int = LATENESS,
) -> list[tuple[int, int, bytes]]:
    """Records of a run as (time, tie, bytes): each rank gives two metrics a step, half a second apart.

    Samples are dated up to ``older_us`` before they are sent. Each record comes up to ``delay_us`` after it
    was sent, those of one rank in order.
    """
    chance, delays = random.Random(seed), random.Random(seed + delay_us)
    found: list[tuple[int, int, bytes]] = []
    for rank in range(RANKS):
        name, before = f"p{rank}", 0
        fields = {"rank": rank, "world_size": RANKS, "host": f"h{rank % 2}"}
        start = events.ProcessStarted(run=run, process=name, seq=0, time_us=BASE, **fields)
        found.append((BASE, rank, events.encode(start)))
        for step in range(steps):
            sent = BASE + step * SECOND // 2 + rank * 1_000
            dated = sent - chance.randrange(older_us)
            samples = [
                ("loss", step, dated, value(chance), float(chance.randrange(1, 9))),
                ("reward", step, sent, chance.choice([math.nan, 1.0, 2.0]), 1.0),
            ]
            frame = naive.make_frame(run, name, step + 1, rank, samples)
            before = max(before, sent + (delays.randrange(delay_us) if delay_us else 0))
            found.append((before, len(found), frame))
        last = BASE + steps * SECOND // 2 + 4 * SECOND
        end = events.ProcessEnded(run=run, process=name, seq=steps + 1, time_us=last)
        found.append((last, len(found), events.encode(end)))
    return found


def as_log(settings: PipelineConfig, *some: list[tuple[int, int, bytes]], partition: int = 0) -> list[Record]:
    """One partition's log: its configuration, ticks, and the records of some runs, in order of time."""
    body = config.encode(settings)
    digest = config.digest(body)
    changed = events.ConfigChanged(worker="w", time_us=BASE, digest=digest, body=msgspec.Raw(body))
    written = [record for records in some for record in records]
    until = max(at for at, _, _ in written) + 2 * SECOND
    for at in range(BASE, until, SECOND):
        written.append((at, -1, events.encode(events.Tick(worker="w", time_us=at))))
    ordered = [(BASE, -2, events.encode(changed)), *sorted(written, key=lambda record: record[:2])]
    return [Record(partition, offset, at // 1000, value) for offset, (at, _, value) in enumerate(ordered)]


def outputs_of(pipeline: Pipeline, log: list[Record], partition: int = 0) -> list[Output]:
    return pipeline.step(pipeline.fresh("uuid", partition), log)


def rows_of(naive: ModuleType, pipeline: Pipeline, log: list[Record]) -> dict[Any, dict[str, Any]]:
    rows = naive.rows_of(outputs_of(pipeline, log))
    found = {naive.key_of(row): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def pipeline(silent: Any) -> Pipeline:
    return Pipeline(silent, silent)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_ranks_within_the_lateness_changes_no_window(
    naive: ModuleType, pipeline: Pipeline, seed: int
) -> None:
    """Records of ranks may overtake each other by the allowed lateness: every row stays the same."""
    written = arrivals(naive, seed, delay_us=0)
    who = givers(written)
    prompt = rows_of(naive, pipeline, as_log(PLAIN, written))
    assert len(prompt) > 100
    for delay_us in (LATENESS // 4, LATENESS):
        delayed = as_log(PLAIN, arrivals(naive, seed, delay_us=delay_us))
        state = pipeline.fresh("uuid", 0)
        outputs = pipeline.step(state, delayed)
        assert not {"late_time", "late_step"} & state.counters.keys()
        found = {naive.key_of(row): row for row in naive.rows_of(outputs)}
        assert found.keys() == prompt.keys()
        for key, row in found.items():
            assert without(row, *AS_IT_CAME) == without(prompt[key], *AS_IT_CAME), key
            for name in ROUNDED:
                assert row[name] == pytest.approx(prompt[key][name], rel=1e-12, abs=1e-9)
            for name in ("min", "max"):
                given = row[name] is not None
                assert row[f"{name}_rank"] in (who[row["metric"], row[name]] if given else {None})


ROUNDED = ("sum", "mean", "std")
AS_IT_CAME = (*ROUNDED, "first", "last", "min_rank", "max_rank")
"""By the order of the log, or rounded in it; all else is the same to the last bit."""


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """The row without some columns; NaN as text, for it equals nothing."""
    kept = {name: value for name, value in row.items() if name not in names}
    return {name: str(value) if value != value else value for name, value in kept.items()}


def givers(written: list[tuple[int, int, bytes]]) -> dict[tuple[str, float], set[int | None]]:
    """Which ranks gave a value of a metric."""
    found: dict[tuple[str, float], set[int | None]] = {}
    for _, _, data in written:
        frame = records.decode(data)
        if isinstance(frame, frames.Frame):
            for at, value in zip(frame.metric.tolist(), frame.value.tolist(), strict=True):
                found.setdefault((frame.names[at], value), set()).add(frame.rank)
    return found


@pytest.mark.parametrize("value", [whole_number, lambda chance: chance.lognormvariate(0, 4)])
@pytest.mark.parametrize(("axis", "size", "every"), [("step", 16, 4), ("time", 10 * SECOND, 5 * SECOND)])
def test_windows_of_fine_panes_equal_windows_of_coarse_ones(
    naive: ModuleType, pipeline: Pipeline, axis: str, size: int, every: int, value: Any
) -> None:
    """A further window with a small hop cuts all panes smaller: merged they give what one fold gave."""
    fine = WindowSpec(axis, every // 4, every // 4)
    written = arrivals(naive, 5, delay_us=0, value=value, older_us=1)  # finer panes close earlier
    rows = {}
    for more in ([], [fine]):
        settings = PipelineConfig(
            windows=[WindowSpec(axis, size, every), *more],
            per_rank=["loss"],
            quantiles={"loss": [0.1, 0.999]},
            allowed_lateness_us=LATENESS,
        )
        rows[len(more)] = rows_of(naive, pipeline, as_log(settings, written))
    merged = {key: row for key, row in rows[1].items() if row["end"] - row["start"] == size}
    assert merged.keys() == rows[0].keys()
    assert len(merged) > 20
    for key, row in merged.items():
        assert without(row, *ROUNDED) == without(rows[0][key], *ROUNDED), key
        for name in ROUNDED:
            assert row[name] == pytest.approx(rows[0][key][name], rel=1e-12)


@pytest.mark.parametrize("group", ["rank", "host", "halves of time"])
def test_the_parts_of_a_window_merge_to_the_whole(naive: ModuleType, pipeline: Pipeline, group: str) -> None:
    """Rows by rank, by host, of two halves of the time, merged by hand, are the row of the whole."""
    size = 10 * SECOND
    half = [WindowSpec("time", size // 2, size // 2)] if group == "halves of time" else []
    settings = PipelineConfig(
        windows=[WindowSpec("time", size, size), *half], per_rank=["loss"], per_host=["loss"]
    )
    steady = {"value": lambda chance: chance.gauss(1e6, 1.0), "older_us": 1}
    written = arrivals(naive, 8, delay_us=0, **steady)
    rows = list(rows_of(naive, pipeline, as_log(settings, written)).values())
    checked = 0
    for whole in [
        r for r in rows if r["end"] - r["start"] == size and r["metric"] == "loss" and not r["group"]
    ]:
        parts = [
            r
            for r in rows
            if r["metric"] == "loss"
            and (
                (
                    r["end"] - r["start"] == size // 2
                    and whole["start"] <= r["start"] < whole["end"]
                    and not r["group"]
                )
                if half
                else (r["start"] == whole["start"] and r["group"].startswith(group))
            )
        ]
        parts.sort(key=lambda r: r["start"])
        assert len(parts) > 1
        assert_merged(whole, parts)
        checked += 1
    assert checked >= 2


def assert_merged(whole: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    for name in ("count", "weight", "nan", "inf"):
        assert whole[name] == sum(part[name] for part in parts), name
    assert whole["min"] == min(part["min"] for part in parts)
    assert whole["max"] == max(part["max"] for part in parts)
    mean = sum(part["weight"] * part["mean"] for part in parts) / whole["weight"]
    assert whole["mean"] == pytest.approx(mean, rel=1e-14)
    squares = sum(part["weight"] * (part["std"] ** 2 + (part["mean"] - mean) ** 2) for part in parts)
    assert whole["std"] == pytest.approx(math.sqrt(squares / whole["weight"]), rel=1e-8)
    if parts[0]["start"] != parts[-1]["start"]:
        assert (whole["first"], whole["last"]) == (parts[0]["first"], parts[-1]["last"])


def eight(naive: ModuleType) -> list[list[Record]]:
    """Eight partitions with two runs each."""
    return [
        as_log(
            PLAIN,
            *(arrivals(naive, 10 + p, delay_us=LATENESS * 2, run=f"{half}{p}", steps=16) for half in "ab"),
            partition=p,
        )
        for p in range(8)
    ]


def test_one_worker_equals_eight(naive: ModuleType) -> None:
    """Eight partitions worked on by one worker, by eight, or by workers that hand them over: the same bytes.

    One worker takes batches of all partitions as they come; of the eight, each has one; and where partitions
    move, each batch of a partition may be worked on by another worker, which starts from a snapshot.
    """
    logs = eight(naive)
    apart = [outputs_of(Pipeline(), log, p) for p, log in enumerate(logs)]
    assert all(len(outputs) > 50 for outputs in apart)
    for moving in (False, True):
        chance = random.Random(moving)
        workers = [Pipeline() for _ in range(3)] if moving else [Pipeline()]
        states = [workers[0].fresh("uuid", p) for p in range(8)]
        found: list[list[Output]] = [[] for _ in logs]
        places = [0] * 8
        while any(place < len(log) for place, log in zip(places, logs, strict=True)):
            p = chance.choice([p for p in range(8) if places[p] < len(logs[p])])
            size = chance.choice([1, 20, 200])
            worker = chance.choice(workers)
            if moving:
                states[p] = worker.load(worker.dump(states[p]))
            found[p] += worker.step(states[p], logs[p][places[p] : places[p] + size])
            places[p] += size
        assert found == apart


def test_runs_that_share_a_partition_do_not_touch_each_other(naive: ModuleType) -> None:
    """What is put out of a run is the same alone and among seven others; only the ids, positions, differ."""
    runs = [f"run{number}" for number in range(8)]
    written = {run: arrivals(naive, at, delay_us=LATENESS * 2, run=run) for at, run in enumerate(runs)}
    until = BASE + STEPS * SECOND // 2 + 4 * SECOND
    together = said(naive, outputs_of(Pipeline(), as_log(PLAIN, *written.values())))
    for run in runs:
        assert max(at for at, _, _ in written[run]) == until
        alone = said(naive, outputs_of(Pipeline(), as_log(PLAIN, written[run])))
        assert len(alone[run]) > 100
        assert together[run] == alone[run]


def said(naive: ModuleType, outputs: list[Output]) -> dict[str, list[Any]]:
    """By run: rows, facts, alerts in order, without the ids."""
    found: dict[str, list[Any]] = {}
    for output in outputs:
        if output.topic == "windows":
            rows = [repr(row) for row in naive.rows_of([output])]
            found.setdefault(output.run, []).extend(rows)
        else:
            event = events.decode(output.value)
            found.setdefault(output.run, []).append(msgspec.structs.replace(event, id=""))
    return found


@pytest.mark.parametrize("seed", range(2))
def test_batches_of_1_20_and_500_give_the_same_bytes(any_cut: Any, naive: ModuleType, seed: int) -> None:
    """Groups, further quantiles, late data, two runs in turns: the cut of the log leaves no trace."""
    log = as_log(
        PLAIN,
        arrivals(naive, seed, delay_us=LATENESS, value=lambda chance: chance.lognormvariate(0, 3)),
        arrivals(naive, seed + 50, delay_us=LATENESS, run="q", older_us=3 * LATENESS),
    )
    pipeline = Pipeline()
    state = pipeline.fresh("uuid", 0)
    whole = pipeline.step(state, log)
    assert state.counters["late_time"] > 5
    assert any_cut(log, seed) == whole
