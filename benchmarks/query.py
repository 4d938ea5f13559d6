"""The usual questions to a day's samples through the views, beside one sorted file and ClickHouse.

    .venv/bin/python benchmarks/query.py [--quick]

One run of 64 ranks and 50 metrics, 20,000,000 samples (quick: 1,600,000) in 196 (40) commits of a sink,
asked before and after driftline's own compaction, through the views in ``catalog.duckdb`` as any DuckDB
client sees them. Beside them, with the same rows: DuckDB on one file sorted by run, metric, rank and step,
in its default encodings, in row groups of 122,880 rows (``one_file``), and a ClickHouse table sorted by the
same columns (``peer``, chdb in a process of its own; skipped with a reason where it cannot be had).

Questions: per-step mean and p95 of a metric over the ranks (``trend``); the correlation of each pair of 10
metrics, from their weighted mean per step (``correlation``); the ten ranks furthest above the median of
their span (``slowest_ranks``); the newest value of each of the 3,200 series (``last``). All answers must be
equal (floats to 1e-9). Everyone is asked in turns, warm; ``..._ms_...`` is the best wall time of a turn with
all cores, ``..._cpu_ms_...`` the least CPU time, which other work on the machine disturbs less. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from window_peers import Missing, python

from driftline import events, frames
from driftline.records import OutputId, Record
from driftline.storage import catalog
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.tables import TABLE_NAMES

UUID = "11111111-1111-1111-1111-111111111111"
RUN = "01k4querybenchq7m2x9tz4w8c"
RANKS, METRICS, FRAME_STEPS = 64, 50, 40
SPANS = ("span/forward", "span/backward", "span/optimizer", "span/data")
NAMES = [*(f"train/m{at:02d}" for at in range(METRICS - len(SPANS))), *SPANS]
ASKED = NAMES[3]
TEN = ", ".join(f"'{name}'" for name in NAMES[:10])
T0 = 1_764_460_800_000_000
TURNS = 7
Row = tuple[Any, ...]

_PAIRS = """
SELECT a.metric, b.metric, corr(a.mean, b.mean) FROM c AS a JOIN c AS b ON a.step = b.step
WHERE a.metric < b.metric GROUP BY a.metric, b.metric ORDER BY a.metric, b.metric"""
OURS = {
    "trend": f"""SELECT step, mean, p95 FROM step_stats WHERE run = '{RUN}' AND metric = '{ASKED}'
        ORDER BY step""",
    "correlation": f"""WITH c AS MATERIALIZED (
        SELECT step, metric, mean FROM curves WHERE run = '{RUN}' AND metric IN ({TEN})) {_PAIRS}""",
    "slowest_ranks": f"""SELECT span, rank, ratio FROM slowest_ranks WHERE run = '{RUN}'
        ORDER BY ratio DESC LIMIT 10""",
    "last": f"SELECT metric, rank, value FROM latest WHERE run = '{RUN}' ORDER BY metric, rank",
}


def sql(source: str, *, last: str, p95: str, median: str) -> dict[str, str]:
    """The questions without views, in one dialect or another."""
    mean = "sum(value * weight) / sum(weight)"
    return {
        "trend": f"""SELECT step, avg(value), {p95} FROM {source} WHERE run = '{RUN}' AND metric = '{ASKED}'
            GROUP BY step ORDER BY step""",
        "correlation": f"""WITH c AS MATERIALIZED (SELECT step, metric, {mean} AS mean FROM {source}
            WHERE run = '{RUN}' AND metric IN ({TEN}) GROUP BY step, metric) {_PAIRS}""",
        "slowest_ranks": f"""WITH m AS (SELECT metric, rank, avg(value) AS mean FROM {source}
                WHERE run = '{RUN}' AND metric LIKE 'span/%' GROUP BY metric, rank),
            middle AS (SELECT metric, {median} AS middle FROM m GROUP BY metric)
            SELECT substring(m.metric, 6), m.rank, m.mean / middle.middle AS ratio
            FROM m JOIN middle ON m.metric = middle.metric ORDER BY ratio DESC LIMIT 10""",
        "last": f"""SELECT metric, rank, {last}(value, step) FROM {source} WHERE run = '{RUN}'
            GROUP BY metric, rank ORDER BY metric, rank""",
    }


def live(root: Path, steps: int, commits: int) -> Lake:
    """What a sink's core leaves of the run, without compaction."""
    lake = Lake(root)
    core = SinkCore(lake)
    spots = {topic: Spot(topic, UUID, 0) for topic in ("telemetry", "facts")}
    core.resume(dict.fromkeys(spots.values(), 0))
    offsets = dict.fromkeys(spots, 0)

    def take(topic: Any, body: bytes, time_us: int) -> None:
        core.take(spots[topic], [Record(0, offsets[topic], time_us // 1000, body)])
        offsets[topic] += 1

    for rank in range(RANKS):
        who: dict[str, Any] = {"run": RUN, "process": f"p{rank}", "time_us": T0}
        started = events.ProcessStarted(**who, seq=0, rank=rank, world_size=RANKS)
        take("telemetry", events.encode(started), T0)
        joined = {"id": str(OutputId(UUID, 0, rank, 0)), "what": "process_joined", "text": "joined"}
        take("facts", events.encode(events.Fact(**who, **joined, attempt=0)), T0)
    random = np.random.default_rng(1)
    level = random.normal(2, 1, METRICS)
    edges = np.linspace(0, steps, commits + 1).astype(int).tolist()
    seq = 1
    for first, last in itertools.pairwise(edges):
        for step in range(first, last, FRAME_STEPS):
            count = min(FRAME_STEPS, last - step)
            level = level + random.normal(0, 0.01, METRICS)
            for rank in range(RANKS):
                frame, at = _frame(random, level, rank, seq, step, count)
                take("telemetry", frame, at)
            seq += 1
        for _ in core.commits():
            pass
    return lake


def _frame(
    random: np.random.Generator, level: Any, rank: int, seq: int, step: int, count: int
) -> tuple[bytes, int]:
    """A rank's samples of so many steps, values with six digits."""
    values = np.round(level + random.normal(0, 0.05, (count, METRICS)), 6)
    values[:, -len(SPANS) :] = np.abs(values[:, -len(SPANS) :]) + 0.001 * rank
    times = T0 + np.arange(step, step + count) * 13_800_000 + random.integers(0, 900_000, count)
    frame = frames.Frame(
        run=RUN,
        process=f"p{rank}",
        rank=rank,
        seq=seq,
        names=NAMES,
        metric=np.tile(np.arange(METRICS, dtype=np.int16), count),
        step=np.repeat(np.arange(step, step + count, dtype=np.int64), METRICS),
        time_us=np.repeat(times, METRICS),
        value=values.ravel(),
        weight=np.ones(count * METRICS),
    )
    return frames.encode(frame), int(times[-1])


class ClickHouse:
    """The peer's process."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            python("clickhouse"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask({"load": str(file), "folder": str(folder)})

    def _ask(self, question: dict[str, str]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Missing("ClickHouse ended")
        return json.loads(answer)

    def query(self, text: str) -> tuple[list[Row], float, float]:
        found = self._ask({"query": text})
        return [tuple(row) for row in found["rows"]], found["ms"], found["cpu_ms"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def asking(database: duckdb.DuckDBPyConnection) -> Callable[[str], tuple[list[Row], float, float]]:
    def query(text: str) -> tuple[list[Row], float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        rows = database.execute(text).fetchall()
        return rows, (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3

    return query


@contextlib.contextmanager
def everyone(folder: Path, one_file: Path, result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Who is asked: name -> (how, questions)."""
    with contextlib.ExitStack() as stack:

        def duck(path: str) -> Any:
            database = duckdb.connect(path, read_only=path != ":memory:")
            database.execute("SET TimeZone = 'UTC'")
            stack.callback(database.close)
            return asking(database)

        plain = sql(
            f"read_parquet('{one_file}')",
            last="max_by",
            p95="quantile_cont(value, 0.95)",
            median="median(mean)",
        )
        asked = {
            "ours": (duck(str(folder / "after.duckdb")), OURS),
            "before": (duck(str(folder / "before.duckdb")), OURS),
            "one_file": (duck(":memory:"), plain),
        }
        try:
            house = ClickHouse(one_file, folder / "clickhouse")
            stack.callback(house.close)
            theirs = sql(
                "samples",
                last="argMax",
                p95="quantileExactInclusive(0.95)(value)",
                median="quantileExactInclusive(0.5)(mean)",
            )
            theirs = {name: text.replace("AS MATERIALIZED", "AS") for name, text in theirs.items()}
            asked["peer"] = (house.query, theirs)
        except Missing as reason:
            result["peer_skipped"] = str(reason)
        yield asked


def alike(one: list[Row], other: list[Row]) -> bool:
    """Whether answers are equal, floats nearly."""
    return len(one) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) else a == b
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left, right, strict=True)
    )


def measure(asked: dict[str, Any]) -> dict[str, float]:
    """Best times in turns; all answers must agree."""
    best: dict[str, float] = defaultdict(lambda: math.inf)
    for question in OURS:
        for turn in range(TURNS + 1):
            answers = {}
            for name, (query, texts) in asked.items():
                answers[name], wall, cpu = query(texts[question])
                if turn:  # the first one warms
                    for kind, spent in (("ms", wall), ("cpu_ms", cpu)):
                        key = f"{name}_{kind}_{question}"
                        best[key] = min(best[key], spent)
        for name, rows in answers.items():
            assert alike(rows, answers["one_file"]), f"{name} answers {question} differently"
    return dict(best)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1,600,000 samples")
    asked = parser.parse_args()
    steps, commits = (500, 40) if asked.quick else (6_250, 196)
    samples = RANKS * METRICS * steps
    result: dict[str, Any] = {"samples": samples}
    with tempfile.TemporaryDirectory(prefix="driftline-bench-") as name:
        folder = Path(name)
        lake = live(folder / "data", steps, commits)

        def view(file: str) -> None:
            with duckdb.connect(str(folder / file)) as database:
                catalog.define(database, {table: lake.files(table) for table in TABLE_NAMES})

        view("before.duckdb")
        result["files_before"] = len(lake.files("samples"))
        cpu = time.process_time()
        for table in TABLE_NAMES:
            lake.compact(table, at_least=2)
        result["compaction_cpu_s_per_million"] = (time.process_time() - cpu) / samples * 1e6
        result["files_after"] = len(lake.files("samples"))
        view("after.duckdb")
        one_file = folder / "one.parquet"
        with duckdb.connect(str(folder / "after.duckdb"), read_only=True) as database:
            copied = "SELECT * FROM samples ORDER BY run, metric, rank, step"
            options = "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 122880"
            database.execute(f"COPY ({copied}) TO '{one_file}' ({options})")
        with everyone(folder, one_file, result) as asked_of:
            result |= measure(asked_of)
    result["cores"] = os.cpu_count()
    result["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps({key: round(v, 2) if isinstance(v, float) else v for key, v in result.items()}))


if __name__ == "__main__":
    main()
