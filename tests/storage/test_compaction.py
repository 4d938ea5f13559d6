"""Compaction: the same rows in few files, sorted throughout, whoever else reads, writes or dies meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import struct
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from driftline.errors import Unavailable
from driftline.storage.compaction import layout, merging
from driftline.storage.compaction import replacing as compaction
from driftline.storage.compaction.plan import FULL_ROWS, JOB_BYTES, PERIOD_ROWS, Piece, cuts, next_job
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.tables import TABLES, TableName

DAY_US = 86_400_000_000


def some_rows(name: TableName, count: int, seed: int) -> pa.Table:
    """Any values that the columns can hold: nulls, NaN of two kinds, both zeros, infinities, odd texts."""
    random = np.random.default_rng(seed)
    texts = ["", "a", "b", "é", "损失", "a/b", "A", "x" * 400, "\0"]
    floats = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        1e-320,
        1.5,
        struct.unpack("d", b"\1\0\0\0\0\0\xf8\x7f")[0],
        math.nan,
    ]

    def column(kind: pa.DataType) -> list[Any]:
        if kind.equals(pa.utf8()):
            return [texts[at] for at in random.integers(0, len(texts), count)]
        if kind.equals(pa.binary()):
            return [texts[at].encode() for at in random.integers(0, len(texts), count)]
        if kind.equals(pa.float64()):
            return [floats[at] for at in random.integers(0, len(floats), count)]
        if pa.types.is_map(kind):
            return [[("p10", math.nan), ("é", 1.0)][: int(at)] for at in random.integers(0, 3, count)]
        if pa.types.is_timestamp(kind):
            return [int(at) for at in 1_700_000_000_000_000 + random.integers(0, 3 * DAY_US, count)]
        high = 2**31 if kind.equals(pa.int32()) else 2**62
        return [int(at) for at in random.integers(-high, high, count)]

    arrays = []
    for field in TABLES[name].schema:
        empty = random.random(count) < 0.1
        values = column(field.type)
        if pa.types.is_floating(field.type):
            arrays.append(pa.array(np.array(values), field.type, mask=empty))
        else:
            kept = [None if none else value for value, none in zip(values, empty, strict=True)]
            arrays.append(pa.array(kept, field.type))
    return pa.table(arrays, names=TABLES[name].schema.names)


def exact(table: pa.Table) -> Counter[Any]:
    """Rows as a multiset, floats as their bits."""
    columns = []
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_floating(field.type):
            bits = column.combine_chunks().fill_null(0.0).to_numpy().view(np.int64)
            columns.append(list(zip(column.is_null().to_pylist(), bits.tolist(), strict=True)))
        else:
            columns.append([repr(value) for value in column.to_pylist()])
    return Counter(zip(*columns, strict=True))


def read(lake: Lake, name: TableName) -> pa.Table:
    schema = layout.bare_schema(name)
    return pa.concat_tables([pq.read_table(file).cast(schema) for file in sorted(lake.files(name))])


def fill(root: Path, name: TableName, files: int, rows: int) -> Lake:
    """A table of so many files, each sorted as a sink sorts its commits."""
    lake = Lake(root)
    for at in range(files):
        keys = [(column, "ascending", "at_start") for column in TABLES[name].order]
        table = some_rows(name, rows, at)
        lake.commit(
            name, table.take(pa.compute.sort_indices(table, sort_keys=keys)), {"u/0": at - 1}, {"u/0": at}
        )
    return lake


def in_order(table: pa.Table, columns: tuple[str, ...]) -> bool:
    places = [[(value is not None, value) for value in table.column(name).to_pylist()] for name in columns]
    rows = list(zip(*places, strict=True))
    return all(one <= next_one for one, next_one in itertools.pairwise(rows))


@pytest.mark.parametrize(
    ("rows_of_day", "begins"),
    [
        ({1: PERIOD_ROWS, 2: PERIOD_ROWS, 3: PERIOD_ROWS}, [2, 3]),
        ({1: PERIOD_ROWS - 1, 2: 1, 3: 1, 4: PERIOD_ROWS}, [3]),
        ({1: PERIOD_ROWS - 1, 2: PERIOD_ROWS, 3: 5, 4: 5}, [3]),
    ],
)
def test_a_file_begins_with_a_whole_day_once_the_one_before_has_enough_rows(
    rows_of_day: dict[int, int], begins: list[int]
) -> None:
    """No day lies in two files, so retention drops whole files."""
    assert cuts(rows_of_day) == begins


@pytest.mark.parametrize("name", ["samples", "log", "windows", "evals", "eval_items"])
def test_the_same_rows_to_the_bit_in_one_file_sorted_throughout(tmp_path: Path, name: Any) -> None:
    lake = fill(tmp_path, name, files=5, rows=300)
    before = exact(read(lake, name))
    assert lake.compact(name, at_least=2)
    assert len(lake.files(name)) == 1
    after = read(lake, name)
    assert exact(after) == before
    fitting = TABLES[name].order[
        : {"samples": 2, "evals": 3}.get(name, 3)
    ]  # steps of 63 bits do not fit the key
    assert in_order(after, fitting)
    assert Lake(tmp_path).version(name, "u/0") == 4


def test_rows_of_all_slices_are_in_order_to_the_step(store: Any, make: Any) -> None:
    for seq in range(6):
        values = {"loss": [1.0] * 3, "acc": [2.0] * 3}
        store.put(
            "telemetry",
            make.frame(seq, values, step=seq * 3),
            make.frame(seq, values, step=seq * 3, rank=1, process="p1"),
        )
    assert store.lake.compact("samples", at_least=2)
    (file,) = store.lake.files("samples")
    rows = pq.read_table(file)
    assert in_order(rows, TABLES["samples"].order)
    assert rows.column("step").to_pylist() == list(range(18)) * 4


def test_a_file_that_another_compaction_left_unsorted_is_sorted_too(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SORTED_PIECE_ROWS", 4)
    for seq in range(6):
        store.put("telemetry", make.frame(seq, {"b": [1.0, math.nan], "a": [2.0, math.inf]}, step=seq * 2))
    DeltaTable(str(store.root / "samples")).optimize.compact()
    lake = Lake(store.root)
    assert not in_order(read(lake, "samples"), TABLES["samples"].order)
    store.lake.reload()
    store.put("telemetry", make.frame(6, {"a": [3.0, 4.0]}, step=12))
    before = exact(read(store.lake, "samples"))
    assert store.lake.compact("samples", at_least=1, keep_hours=0)
    assert in_order(read(store.lake, "samples"), TABLES["samples"].order)
    assert exact(read(store.lake, "samples")) == before
    assert len(list((store.root / "samples").glob("*.parquet"))) == 1, "its pieces are gone"


def test_a_key_that_does_not_fit_sorts_by_what_fits(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_KEY_BITS", 4)
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"a": [1.0] * 40, "b": [2.0] * 40}, step=seq * 40))
    before = exact(read(store.lake, "samples"))
    assert store.lake.compact("samples", at_least=2)
    rows = read(store.lake, "samples")
    assert exact(rows) == before
    assert in_order(rows, ("run", "metric"))


# --- others meanwhile ---------------------------------------------------------------------------------------


def during_merge(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Has ``act`` done when files are written, before they are committed."""
    merge = compaction.merge

    def merged(*arguments: Any, **more: Any) -> Any:
        files = merge(*arguments, **more)
        act()
        return files

    monkeypatch.setattr(compaction, "merge", merged)


def test_an_append_of_another_sink_is_no_obstacle(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    row = read(store.lake, "samples").sort_by("step").slice(0, 1)
    other = Lake(store.root)
    at = itertools.count()

    def append() -> None:
        offset = next(at)
        other.commit("samples", row, {"other/0": offset - 1}, {"other/0": offset})

    during_merge(monkeypatch, append)
    assert store.lake.compact("samples", at_least=2)
    assert len(store.lake.files("samples")) == 2
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(5, 6.0)]
    assert Lake(store.root).version("samples", "other/0") == 0
    append()
    assert store.ask("SELECT count(*) FROM samples") == [(6,)]


def test_a_foreign_deletion_makes_it_give_up_and_leave_nothing(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's tool that knows nothing of our locks."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    during_merge(monkeypatch, lambda: DeltaTable(str(store.root / "samples")).delete("step < 2"))
    store.lake.compact("samples", at_least=2)
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(2, 5.0)]
    assert len(list((store.root / "samples").glob("*.parquet"))) == 4, "none but those of the log"


_DYING = """
import os, sys
from driftline.storage.compaction import replacing as compaction
from driftline.storage.lake import Lake
moment, root = sys.argv[1:]
real = {"link": os.link, "merge": compaction.merge}
if moment == "in the merge":
    from driftline.storage.compaction import merged
    merged.Merged.finish = lambda self: os._exit(9)
elif moment == "before the commit":
    os.link = lambda *names: os._exit(9)
else:
    def link(*names):
        real["link"](*names)
        os._exit(9)
    os.link = link
Lake(root).compact("samples", at_least=2)
"""


@pytest.mark.parametrize("moment", ["in the merge", "before the commit", "after the commit"])
def test_a_compaction_that_is_killed_loses_doubles_and_leaves_nothing(
    store: Any, make: Any, moment: str
) -> None:
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq), math.nan]}, step=seq * 2))
    before = exact(read(store.lake, "samples"))
    done = subprocess.run([sys.executable, "-c", _DYING, moment, str(store.root)], check=False, timeout=120)
    assert done.returncode == 9
    lake = Lake(store.root)
    assert exact(read(lake, "samples")) == before
    store.lake.reload()
    store.put("telemetry", make.frame(4, {"loss": [4.0]}, step=8))
    assert store.lake.compact("samples", at_least=1, keep_hours=0)
    assert store.ask("SELECT count(*), count(*) FILTER (isnan(value)) FROM samples") == [(9, 4)]
    here = {str(path) for path in (store.root / "samples").glob("part-*")}
    assert here == set(store.lake.files("samples"))


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_trouble_after_the_commit_takes_none_of_the_tables_files(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch, trouble: BaseException
) -> None:
    """Ctrl-C, or a log that cannot be read at once, when the commit has landed."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    link = os.link

    def landed(*names: Any) -> None:
        link(*names)
        raise trouble

    monkeypatch.setattr(os, "link", landed)
    with pytest.raises((KeyboardInterrupt, Unavailable)):
        store.lake.compact("samples", at_least=2)
    monkeypatch.undo()
    assert len(Lake(store.root).files("samples")) == 1
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(4, 6.0)]


def test_a_commit_that_a_file_server_calls_taken_though_it_is_ours_counts(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a link was lost, the client asked again, and the name was taken: by itself."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    link = os.link

    def asked_twice(*names: Any) -> None:
        link(*names)
        link(*names)

    monkeypatch.setattr(os, "link", asked_twice)
    assert store.lake.compact("samples", at_least=2)
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(4, 6.0)]
    assert len(store.lake.files("samples")) == 1


def test_what_others_committed_is_on_the_disk_before_a_compaction_is(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs waits for no disk, a compaction does. After a power cut its commit must not stand above a torn
    one, which no sink could set aside."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    log = store.root / "samples" / "_delta_log"
    needed = {*map(str, log.glob("*.json")), *store.lake.files("samples"), str(log)}
    settled: set[str] = set()
    fsync, link = os.fsync, os.link

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        settled.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def commit(*names: Any) -> None:
        assert needed <= settled
        link(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", commit)
    assert store.lake.compact("samples", at_least=2)


@pytest.mark.parametrize("time", [-(2**63), -(2**63) + 1, -62_200_000_000_000_000, 2**63 - 1])
def test_an_instant_that_no_calendar_has_is_compacted_like_any_other(tmp_path: Path, time: int) -> None:
    """A process may log any number as its time; one that Python has no date for must not end the sink."""
    lake = Lake(tmp_path)
    row = some_rows("samples", 1, 0)
    at = row.schema.get_field_index("time")
    row = row.set_column(
        at, row.schema.field(at), pa.array([time], pa.int64()).cast(row.schema.field(at).type)
    )
    for seq in range(3):
        lake.commit("samples", row, {"u/0": seq - 1}, {"u/0": seq})
    assert lake.compact("samples", at_least=2)
    assert read(lake, "samples").column("time").cast(pa.int64()).to_pylist() == [time] * 3
    assert lake.delete("samples", "\"time\" < '2020-01-01T00:00:00.000000Z'") == (3 if time < 0 else 0)


def test_appends_compactions_and_readers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """Two sinks append, two compact, and a reader counts: no row is seen twice, none is missing again."""
    writers, commits = 2, 15
    Lake(tmp_path)
    over = threading.Event()

    def write(at: int) -> None:
        lake = Lake(tmp_path)
        for offset in range(commits):
            table = some_rows("facts", 10, at * 1_000 + offset)
            texts = pa.array([f"{at} {offset} {row}" for row in range(10)])
            table = table.set_column(table.schema.get_field_index("id"), "id", texts)
            app = f"u/{at}"
            lake.commit("facts", table, {app: offset - 1}, {app: offset})

    def compact() -> int:
        lake, times = Lake(tmp_path), 0
        while not over.is_set():
            lake.refresh()
            times += lake.compact("facts", at_least=2)
        return times

    def look() -> int:
        last = 0
        with open_catalog(tmp_path) as catalog:
            while not over.is_set():
                rows, distinct = catalog.rows("SELECT count(*), count(DISTINCT id) FROM facts")[0]
                assert rows == distinct >= last
                last = rows
        return last

    with ThreadPoolExecutor(5) as pool:
        with contextlib.ExitStack() as stack:
            stack.callback(over.set)
            others = [pool.submit(compact), pool.submit(compact), pool.submit(look)]
            for writing in [pool.submit(write, at) for at in range(writers)]:
                writing.result(300)
        assert sum(other.result(300) for other in others[:2]) >= 1
        others[2].result(300)
    with open_catalog(tmp_path) as catalog:
        total = writers * commits * 10
        assert catalog.rows("SELECT count(*), count(DISTINCT id) FROM facts") == [(total, total)]


def test_the_log_gets_its_checkpoint_where_a_compaction_comes_in_its_turn(store: Any, make: Any) -> None:
    lake, app = store.lake, "u/0"
    row = some_rows("facts", 3, 0)
    for at in range(2):
        lake.commit("facts", row, {app: at - 1}, {app: at})
    version = DeltaTable(str(store.root / "facts")).version()
    for at in range(2, 99 - version + 1):
        lake.commit("facts", None, {app: at - 1}, {app: at})
    assert DeltaTable(str(store.root / "facts")).version() == 98
    assert lake.compact("facts", at_least=2)
    assert [path.name[:20] for path in (store.root / "facts/_delta_log").glob("*.checkpoint.parquet")] == [
        f"{99:020d}"
    ]
    assert exact(read(Lake(store.root), "facts")) == exact(pa.concat_tables([row, row]))


# --- which files, and where they are cut --------------------------------------------------------------------


class Simulated:
    """A table as a list of pieces, with what compaction writes."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.written = 0
        self._made = 0

    def append(self, rows: int, day: int) -> None:
        self._made += 1
        self.pieces.append(Piece(f"f{self._made}", rows, rows * 8, day, day))

    def compact(self, *, fully: bool = False) -> None:
        while job := next_job(self.pieces, fully=fully):
            rows = Counter[int]()
            for piece in job.pieces:
                assert piece.last_day is not None
                rows[piece.last_day] += piece.rows
            self.pieces = [piece for piece in self.pieces if piece not in job.pieces]
            self.written += rows.total()
            self._made += 1
            self.pieces.append(Piece(f"f{self._made}", rows.total(), rows.total() * 8, min(rows), max(rows)))


@pytest.mark.parametrize("rows", [500, 20_000, 400_000])
def test_however_small_the_commits_rows_are_written_anew_a_few_times_and_few_files_remain(rows: int) -> None:
    table, total = Simulated(), 12_000_000
    for at in range(total // rows):
        table.append(rows, 0)
        if at % 32 == 31:
            table.compact()
            assert len(table.pieces) < 32
    table.compact()
    assert table.written <= 12 * total
    table.compact(fully=True)
    assert len(table.pieces) <= 2


def test_old_days_are_left_alone_and_few_files_per_day_remain() -> None:
    table = Simulated()
    for day in range(5):
        for at in range(96):
            table.append(50_000, day)
            if at % 32 == 31:
                table.compact()
        old = {piece for piece in table.pieces if piece.last_day != day}
        table.append(1_000, max(day - 2, 0))  # late rows
        table.compact()
        assert len([piece for piece in old if piece not in table.pieces]) <= 1
    by_day = Counter(piece.last_day for piece in table.pieces)
    assert max(by_day.values()) <= 4


def test_days_with_few_rows_share_a_file() -> None:
    table = Simulated()
    for day in range(300):
        table.append(100, day)
    table.compact()
    assert len(table.pieces) < 15
    table.compact(fully=True)
    assert len(table.pieces) == 1


def test_few_rows_that_are_large_are_not_all_merged_at_once() -> None:
    """Of each file a row group is in memory."""
    job = next_job([Piece(str(at), 100, 60 * 1024 * 1024) for at in range(48)], fully=True)
    assert job is not None
    assert len(job.pieces) > 1
    assert sum(piece.bytes for piece in job.pieces) <= JOB_BYTES


def test_what_is_full_is_never_merged_again() -> None:
    full = [Piece(f"f{at}", FULL_ROWS, 9, 1, 1) for at in range(40)]
    assert next_job(full, fully=True) is None


def test_files_are_cut_between_days_so_that_retention_drops_whole_ones(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.storage.compaction.plan.PERIOD_ROWS", 4)
    assert PERIOD_ROWS > 4
    for seq in range(6):
        times = np.array([seq // 3 * DAY_US + 86_399_999_999 - at for at in (1, 0)])
        store.put("telemetry", make.frame(seq, {"loss": [1.0, 2.0]}, step=seq * 2, time_us=times))
    assert store.lake.compact("samples", at_least=2)
    first, second = sorted(
        store.lake.files("samples"), key=lambda file: pq.read_table(file)["time"][0].as_py()
    )
    assert store.lake.delete("samples", "\"time\" < '1970-01-02T00:00:00.000000Z'") == 6
    assert store.lake.files("samples") == [second]
    assert first != second


def test_the_last_microsecond_of_a_file_survives_a_deletion_before_it(store: Any, make: Any) -> None:
    """What the log tells of a file's times is neither cut nor rounded."""
    for seq in range(2):
        times = np.array([make.t0 + 123_456 + seq])
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq, time_us=times))
    assert store.lake.compact("samples", at_least=2)
    assert store.lake.delete("samples", "\"time\" < '2023-11-14T22:13:20.123457Z'") == 1
    assert store.ask("SELECT value FROM samples") == [(1.0,)]
