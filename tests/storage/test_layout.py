"""How rows of samples lie in the row groups of files that stay, and in which encodings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from driftline.storage.compaction import groups
from driftline.storage.tables import TABLES

PARQUET_2_0 = {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}


def row_groups(file: str) -> list[dict[str, list[Any]]]:
    with pq.ParquetFile(file) as opened:
        return [opened.read_row_group(at).to_pydict() for at in range(opened.num_row_groups)]


def tuples(group: dict[str, list[Any]], *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(group[name] for name in names), strict=True))


def small(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(groups, "ROW_GROUP", rows)
    monkeypatch.setattr(groups, "WHOLE_RUN", 2 * rows)
    monkeypatch.setattr(groups, "LEAST", rows // 8)


def fill(store: Any, make: Any, *, metrics: int, calls: int, run: str = "run") -> None:
    """Two ranks log all metrics in each call."""
    for seq, rank in itertools.product(range(2), range(2)):
        values = {f"m{at:03d}": (at + np.arange(calls) / 7 + rank).tolist() for at in range(metrics)}
        who = {"run": run, "rank": rank, "process": f"p{rank}"}
        store.put("telemetry", make.frame(seq, values, step=seq * calls, **who))


@pytest.mark.parametrize("seed", range(20))
def test_row_groups_end_where_runs_or_metrics_do_and_have_bounds(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    small(monkeypatch, 80)
    random = np.random.default_rng(seed)
    lengths = random.integers(1, [20, 100, 300][seed % 3], 60)
    metric = np.repeat(np.arange(60), lengths)
    run = np.repeat(np.cumsum(random.random(60) < 0.2), lengths)
    start = 0
    while start < len(run):
        near = slice(start, start + groups.WHOLE_RUN)
        size = groups.first_end(run[near], metric[near], more=near.stop < len(run))
        end = start + size
        assert size <= groups.WHOLE_RUN
        at_end = end == len(run)
        assert at_end or size >= groups.LEAST
        at_run = at_end or run[end - 1] != run[end]
        at_metric = at_run or metric[end - 1] != metric[end]
        if size > groups.ROW_GROUP:
            assert at_run
        if not at_metric:
            inside = slice(start + groups.LEAST - 1, start + groups.ROW_GROUP + 1)
            assert len({*zip(run[inside], metric[inside], strict=True)}) == 1, "no metric ends here"
        if not at_end and at_metric and size <= groups.ROW_GROUP:
            ended_by = run if at_run else metric
            assert ended_by[end] == ended_by[start + groups.ROW_GROUP], "the next one would not fit too"
        start = end


def test_a_metric_of_a_large_run_is_in_row_groups_of_its_own_and_a_small_run_in_one(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, 160)
    fill(store, make, metrics=3, calls=100, run="large")
    fill(store, make, metrics=30, calls=2, run="small")
    assert store.lake.compact("samples", at_least=2, fully=True)
    (file,) = store.lake.files("samples")
    found = row_groups(file)
    named = [set(tuples(group, "run", "metric")) for group in found]
    assert sum(len(metrics) == 30 for metrics in named) == 1
    assert all(len(metrics) in (1, 30) for metrics in named)
    assert [max(one) <= min(after) for one, after in itertools.pairwise(named)] == [True] * (len(named) - 1)
    meta = pq.read_metadata(file)
    column = TABLES["samples"].schema.get_field_index("metric")
    told = [meta.row_group(at).column(column).statistics for at in range(meta.num_row_groups)]
    assert [(one.min, one.max) for one in told] == [
        (min(group["metric"]), max(group["metric"])) for group in found
    ]


def test_inside_a_row_group_rows_lie_as_each_rank_logged_them(store: Any, make: Any) -> None:
    fill(store, make, metrics=5, calls=10)
    assert store.lake.compact("samples", at_least=2, fully=True)
    (file,) = store.lake.files("samples")
    (group,) = row_groups(file)
    rows = tuples(group, *groups.INNER)
    assert rows == sorted(rows)
    assert len(rows) == 2 * 2 * 5 * 10
    of_rank = [(rank, *place) for rank, *place in tuples(group, "rank", "offset", "ordinal")]
    assert of_rank == sorted(of_rank), "each rank's rows as in the log"


def test_metrics_of_one_call_share_the_cost_of_its_time_step_and_place(store: Any, make: Any) -> None:
    """Where each metric's rows are a stretch of their own, times alone cost two bytes a sample."""
    random = np.random.default_rng(0)
    calls = 400
    late = np.cumsum(random.integers(900_000, 1_100_000, calls))
    values = {f"m{at:02d}": random.normal(size=calls).tolist() for at in range(20)}
    for seq, part in enumerate((slice(0, 200), slice(200, calls))):
        some = {name: numbers[part] for name, numbers in values.items()}
        times = np.repeat(make.t0 + late[part], 20)
        store.put("telemetry", make.frame(seq, some, step=seq * 200, time_us=times))
    assert store.lake.compact("samples", at_least=2, fully=True)
    (file,) = store.lake.files("samples")
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    spent = {column.path_in_schema: column.total_compressed_size for column in columns}
    shared = spent["time"] + spent["step"] + spent["offset"] + spent["ordinal"]
    assert shared / (20 * calls) < 0.4


def test_a_file_that_stayed_can_be_merged_again(store: Any, make: Any) -> None:
    """Later rows of its days come, and somebody compacts once more."""
    fill(store, make, metrics=5, calls=10)
    assert store.lake.compact("samples", at_least=2, fully=True)
    store.put("telemetry", make.frame(2, {"m000": [1.0, 2.0], "a": [3.0, 4.0]}, step=20))
    store.put("telemetry", make.frame(3, {"z": [5.0]}, step=22))
    asked = 'SELECT metric, rank, step, value, "offset", ordinal FROM samples ORDER BY ALL'
    before = store.ask(asked)
    assert store.lake.compact("samples", at_least=1, fully=True, keep_hours=0)
    assert store.ask(asked) == before
    assert len(list((store.root / "samples").glob("*.parquet"))) == 1, "its pieces are gone"
    (group,) = row_groups(*store.lake.files("samples"))
    assert tuples(group, *groups.INNER) == sorted(tuples(group, *groups.INNER))
    store.put("telemetry", make.frame(4, {"loss": [6.0]}, step=23))
    assert store.lake.compact("samples", at_least=1), "light: in the order of the table"
    for group in (row_groups(file)[0] for file in store.lake.files("samples")):
        rows = tuples(group, *TABLES["samples"].order)
        assert rows == sorted(rows)


@pytest.mark.parametrize("name", ["samples", "log"])
def test_any_reader_of_parquet_understands_what_compaction_writes(
    store: Any, make: Any, tmp_path: Path, name: Any
) -> None:
    """Encodings of Parquet 2.0 and zstd; values are one column of plain doubles without statistics."""
    fill(store, make, metrics=3, calls=4)
    assert store.lake.compact(name, at_least=2, fully=True)
    (file,) = store.lake.files(name)
    meta = pq.read_metadata(file)
    for at in range(meta.num_columns):
        column = meta.row_group(0).column(at)
        assert set(column.encodings) <= PARQUET_2_0
        assert column.compression == "ZSTD"
        if column.path_in_schema == "value":
            assert (column.physical_type, set(column.encodings)) == ("DOUBLE", {"PLAIN", "RLE"})
            assert not column.is_stats_set
    asked = f'SELECT count(*), sum("offset"), min(partition) FROM {name}'
    delta = QueryBuilder().register(name, DeltaTable(str(store.root / name))).execute(asked)
    ((rows, offsets, partition),) = (tuple(row.values()) for row in pa.table(delta.read_all()).to_pylist())
    assert store.ask(asked) == [(rows, offsets, partition)]
