"""Tables stay small and right over time: few files (case S9), and every number and name found as logged."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from driftline.clock import ManualClock
from driftline.records import Record
from driftline.settings import StorageSettings
from driftline.storage.checking.check import check
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.upkeep import Upkeep

SECOND = 1_000_000


def test_many_flushes_of_four_partitions_become_a_few_files_and_no_reader_notices(
    tmp_path: Path, make: Any
) -> None:
    """Case S9, eight minutes at a flush per 10 s; retention takes the older half meanwhile. Readers in
    threads see whole flushes, no row twice, and none missing but those that expired, which go once."""
    flushes, partitions, rows = 48, 4, 20
    lake = Lake(tmp_path)
    core = SinkCore(lake)
    spots = [Spot("telemetry", make.uuid, partition) for partition in range(partitions)]
    core.resume(dict.fromkeys(spots, 0))
    clock = ManualClock(now_us=make.t0)
    lines: list[str] = []
    keep_us = flushes // 2 * 10 * SECOND
    upkeep = Upkeep(
        lake, StorageSettings(retention_us=keep_us), counts=core.counts, say=lines.append, clock=clock
    )
    done, wrong, reads = threading.Event(), [], [0, 0]

    def read(number: int) -> None:
        with open_catalog(tmp_path) as opened:
            last = (-1, -1)
            while not done.is_set():
                ((count, ids, low, high),) = opened.rows(
                    'SELECT count(*), count(DISTINCT ("partition", "offset", ordinal)), min("offset"), '
                    'max("offset") FROM samples'
                )
                whole = partitions * rows * ((high or 0) - (low or 0) + 1) if count else 0
                if not (count == ids == whole and (low or 0) >= last[0] and (high or 0) >= last[1]):
                    wrong.append((count, ids, low, high, last))
                    return
                last = (low or 0, high or 0)
                reads[number] += 1
                done.wait(0.02)  # two cores are for the sink, too

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for at in range(flushes):
            when = make.t0 + at * 10 * SECOND
            for spot in spots:
                frame = make.frame(
                    at,
                    {"loss": [1.0] * (rows // 2), "kl": [1.0] * (rows // 2)},
                    process=f"p{spot.partition}",
                    time_us=pa.array([when] * rows).to_numpy(),
                )
                core.take(spot, [Record(spot.partition, at, when // 1000, frame)])
            list(core.commits(empty=at % 3 == 0))
            upkeep.compact()
            clock.advance(10 * SECOND)
            if at in (flushes * 3 // 4, flushes - 1):
                upkeep._next_expiry.clear()
                upkeep.expire(make.uuid, partitions)
                upkeep.tidy()
                upkeep.trim()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert min(reads) > 3
    assert lines == []
    upkeep.finish()
    assert {name: len(lake.files(name)) for name in ("samples", "log")} == {"samples": 1, "log": 1}
    assert core.counts["rows expired"] > 0
    assert check(tmp_path).ok, check(tmp_path).findings


VALUES = [math.nan, math.inf, -math.inf, 1.0, 2.0, -0.0, 5e-324, -1e308, 1e308, 0.1]
NUMBERS = [
    "SELECT count(*) FROM t WHERE isnan(value)",
    "SELECT count(*) FROM t WHERE isinf(value)",
    "SELECT count(*) FROM t WHERE NOT isfinite(value)",
    "SELECT count(*) FROM t WHERE value = 'nan'::DOUBLE",
    "SELECT count(*) FROM t WHERE value IN ('nan'::DOUBLE, 'inf'::DOUBLE)",
    "SELECT count(*) FROM t WHERE value > 1e308",
    "SELECT count(*) FROM t WHERE value >= 1e308",
    "SELECT count(*) FROM t WHERE value < -1e308",
    "SELECT count(*) FROM t WHERE value BETWEEN 1 AND 'inf'::DOUBLE",
    "SELECT count(*) FROM t WHERE value <> 1",
    "SELECT count(*) FROM t WHERE NOT value < 3",
    "SELECT count(*) FROM t WHERE value = 5e-324",
    "SELECT step, value FROM t WHERE value > 0 ORDER BY step, value",
    "SELECT step FROM t ORDER BY value DESC, step LIMIT 3",
    "SELECT step FROM t ORDER BY value, step LIMIT 3",
    "SELECT min(value), max(value) FROM t",
    "SELECT max(value), min(value) FROM t WHERE isfinite(value)",
    "SELECT arg_max(step, value), arg_min(step, value) FROM t WHERE step < 50 AND metric = 'loss'",
    "SELECT round(sum(value) FILTER (abs(value) < 10), 6), count(*) FILTER (isnan(value)) FROM t",
    "SELECT metric, count(*), max(value) FROM t WHERE value > 100 GROUP BY metric ORDER BY metric",
    "SELECT count(DISTINCT value), median(value) FROM t",
]


def test_nan_infinities_and_the_smallest_numbers_are_found_by_every_filter_and_aggregate(
    store: Any, make: Any
) -> None:
    """Before and after compaction and deletion, alone in their file and among others; as DuckDB answers from
    the same rows in memory, where no statistics can hide one."""
    for seq, value in enumerate(VALUES):
        store.put("telemetry", make.frame(seq, {"loss": [value], "é中 x": [1.0]}, step=seq))
    store.put("telemetry", make.frame(len(VALUES), {"loss": VALUES}, step=100))
    rows = [("loss", at, value) for at, value in enumerate(VALUES)]
    rows += [("é中 x", at, 1.0) for at in range(len(VALUES))]
    rows += [("loss", 100 + at, value) for at, value in enumerate(VALUES)]
    for stage in ("written", "compacted", "deleted"):
        if stage == "compacted":
            assert store.lake.compact("samples", at_least=2, fully=True)
        elif stage == "deleted":
            store.lake.delete("samples", "step = 3")
            rows = [row for row in rows if row[1] != 3]
        metric, step, value = (list(column) for column in zip(*rows, strict=True))
        memory = pa.table({"metric": metric, "step": step, "value": pa.array(value, pa.float64())})
        with duckdb.connect() as db, open_catalog(store.root) as opened:
            db.register("t", memory)
            for sql in NUMBERS:
                expected = db.execute(sql).fetchall()
                found = opened.rows(sql.replace("FROM t", "FROM samples"))
                assert str(found) == str(expected), (stage, sql)
    signs = store.ask("SELECT value FROM samples WHERE step = 5 AND metric = 'loss'")
    assert math.copysign(1, signs[0][0]) == -1


NAMES = [
    "a.b",
    "a/b",
    "A.b",
    "",
    " ",
    "1",
    "1e5",
    "nan",
    "NULL",
    "true",
    "0x10",
    "é中😀",
    "it's",
    'q"q',
    "a\nb",
    "a\tb",
    "%s",
]


def test_names_with_any_characters_and_runs_that_look_like_numbers_stay_text(store: Any, make: Any) -> None:
    """Also after compaction, deletion and for any reader: "1" is not 1, "A.b" not "a.b", "nan" no number."""
    for seq, name in enumerate(NAMES):
        store.put(
            "telemetry",
            make.frame(seq, {name or "x": [float(seq)]}, run=name or "r", step=seq, process=f"p{seq}"),
        )
    for stage in ("written", "compacted", "deleted"):
        if stage == "compacted":
            assert store.lake.compact("samples", at_least=2, fully=True)
        elif stage == "deleted":
            store.lake.delete("samples", "step = 0")
        with open_catalog(store.root) as opened:
            kinds = opened.rows("SELECT DISTINCT typeof(run), typeof(metric) FROM samples")
            assert kinds == [("VARCHAR", "VARCHAR")]
            expected = [(name or "r", name or "x", seq) for seq, name in enumerate(NAMES)]
            expected = expected[1:] if stage == "deleted" else expected
            assert opened.rows("SELECT run, metric, step FROM samples ORDER BY step") == expected
            for run, metric, step in (expected[3], expected[7]):
                sql = "SELECT step FROM samples WHERE run = ? AND metric = ?"
                assert opened.rows(sql, [run, metric]) == [(step,)]
        plain = pa.concat_tables(
            [
                duckdb.sql(f"FROM read_parquet('{file}')").to_arrow_table()
                for file in store.lake.files("samples")
            ]
        )
        assert plain.schema.field("run").type in (pa.utf8(), pa.large_utf8(), pa.string_view())


def test_a_late_result_of_an_older_checkpoint_is_the_best_and_the_newest_stays_the_latest(
    store: Any, make: Any
) -> None:
    """Case 33: training is at step 14, the result of checkpoint 12 (0.45) comes before that of 10 (0.47)."""
    from driftline import events

    store.put("telemetry", make.started(0), make.frame(1, {"loss": [1.0]}, step=14))
    for offset, (step, value) in enumerate([(12, 0.45), (10, 0.47)]):
        outcome = events.EvalOutcome(
            status="done", metrics=[events.Metric(name="accuracy", value=value)], items=1
        )
        store.put("telemetry", make.accepted(offset, step=step, outcome=outcome))
    assert store.ask("SELECT step, value FROM eval_curves ORDER BY step") == [(10, 0.47), (12, 0.45)]
    best = "SELECT step, uri FROM eval_curves WHERE metric = 'accuracy' ORDER BY value DESC LIMIT 1"
    assert store.ask(best) == [(10, "/c/10")]
    assert store.ask("SELECT step, uri FROM eval_curves ORDER BY step DESC LIMIT 1") == [(12, "/c/12")]
