"""The tables on disk: positions and rows move together, NaN can be found, small files become few."""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from driftline.errors import BadData, SettingsError, Unavailable
from driftline.storage import leftovers, opening
from driftline.storage.alone import alone, together
from driftline.storage.lake import Lake
from driftline.storage.listing import read_files
from driftline.storage.open import open_catalog
from driftline.storage.store import App, Conflict
from driftline.storage.tables import TABLES


def facts(*texts: str) -> pa.Table:
    schema = TABLES["facts"].schema
    columns = {field.name: pa.nulls(len(texts), field.type) for field in schema}
    return pa.table(columns | {"text": pa.array(texts)}, schema=schema)


def stored(root: Path) -> list[str]:
    return sorted(
        text for file in read_files(root)["facts"] for text in pq.read_table(file).column("text").to_pylist()
    )


def test_one_commit_moves_the_positions_of_several_partitions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit("facts", facts("a", "b"), {"u/0": -1, "u/1": -1}, {"u/0": 5, "u/1": 9})
    for again in (lake, Lake(tmp_path)):
        assert [again.version("facts", app) for app in ("u/0", "u/1", "u/2")] == [5, 9, -1]
    assert stored(tmp_path) == ["a", "b"]


def test_an_empty_commit_moves_positions_without_a_file(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit("facts", None, {"u/0": -1}, {"u/0": 7})
    lake.commit("facts", None, {"u/0": 7}, {"u/0": 8})
    assert Lake(tmp_path).version("facts", "u/0") == 8
    assert lake.files("facts") == []


@pytest.mark.parametrize("rows", [facts("late"), None], ids=["rows", "empty"])
def test_of_two_writers_that_loaded_the_same_state_only_one_lands(tmp_path: Path, rows: Any) -> None:
    first, zombie = Lake(tmp_path), Lake(tmp_path)
    first.commit("facts", facts("a"), {"u/0": -1, "u/1": -1}, {"u/0": 5, "u/1": 5})
    with pytest.raises(Conflict):
        zombie.commit("facts", rows, {"u/1": -1, "u/2": -1}, {"u/1": 3, "u/2": 3})
    assert stored(tmp_path) == ["a"]
    assert Lake(tmp_path).version("facts", "u/2") == -1


def test_a_handle_that_moved_past_anothers_commit_does_not_let_rows_in_twice(tmp_path: Path) -> None:
    """The trap: an own commit of another partition refreshes the handle, so delta-rs would refuse no more."""
    first, zombie = Lake(tmp_path), Lake(tmp_path)
    first.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 5})
    zombie.commit("facts", facts("b"), {"u/1": -1}, {"u/1": 5})
    with pytest.raises(Conflict, match="u/0 is at 5, not at -1"):
        zombie.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 5})
    assert stored(tmp_path) == ["a", "b"]


def test_positions_survive_delta_checkpoints(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for offset in range(105):
        lake.commit("facts", None, {"u/0": offset - 1}, {"u/0": offset})
    assert list((tmp_path / "facts" / "_delta_log").glob("*.checkpoint.parquet"))
    assert Lake(tmp_path).version("facts", "u/0") == 104


def test_nan_is_found_before_and_after_compaction(store: Any, make: Any) -> None:
    """Statistics leave NaN out and DuckDB trusts them: so no float column may have any."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [1.0, math.nan if seq == 2 else 2.0]}, step=seq * 2))
        store.put("windows", make.windows(seq, mean=[math.nan], quantiles=[[("p10", math.nan)]]))
    for _ in range(2):
        assert store.ask("SELECT step FROM samples WHERE isnan(value)") == [(5,)]
        assert store.ask("SELECT count(*) FROM samples WHERE value > 100") == [(1,)]  # NaN is the largest
        assert store.ask("SELECT count(*) FROM windows WHERE isnan(mean)") == [(4,)]
        for name in ("samples", "windows"):
            for file in store.lake.files(name):
                assert_no_float_statistics(file)
            store.lake.compact(name, at_least=2)
            assert len(store.lake.files(name)) in (1, 4)
    assert [len(store.lake.files(name)) for name in ("samples", "windows")] == [1, 1]


def assert_no_float_statistics(file: str) -> None:
    found = pq.ParquetFile(file).metadata
    for group in range(found.num_row_groups):
        for at in range(found.num_columns):
            column = found.row_group(group).column(at)
            floats = column.physical_type == "DOUBLE"
            assert not (floats and (column.statistics is not None or column.has_column_index)), column
            if column.path_in_schema in ("run", "metric", "step", "offset"):
                assert column.statistics is not None
                assert column.has_column_index, "a filter skips pages"


def test_compaction_keeps_rows_positions_and_the_files_of_running_readers(store: Any, make: Any) -> None:
    for seq in range(6):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    before = store.lake.files("samples")
    assert not store.lake.compact("samples", at_least=7)
    assert store.lake.compact("samples", at_least=6)
    assert len(store.lake.files("samples")) == 1
    assert store.ask("SELECT list(value ORDER BY step) FROM samples") == [([0.0, 1.0, 2.0, 3.0, 4.0, 5.0],)]
    assert Lake(store.root).version("samples", f"{make.uuid}/0") == 5
    assert duckdb.connect().execute("SELECT count(*) FROM read_parquet(?)", [before]).fetchall() == [(6,)]
    assert not store.lake.compact("samples", at_least=2)


def test_of_two_compactions_of_the_same_files_only_one_lands(store: Any, make: Any) -> None:
    """delta-rs lets both land, and then every row is there twice: so the table is loaded under a lock."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    stale = Lake(store.root)
    assert store.lake.compact("samples", at_least=1)
    stale.compact("samples", at_least=1)
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(4, 6.0)]
    store.put("telemetry", make.frame(4, {"loss": [4.0]}, step=4))
    with (store.root / "samples" / "_compacting").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not Lake(store.root).compact("samples", at_least=1)
    assert Lake(store.root).compact("samples", at_least=1)
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(5, 10.0)]


def test_many_compactions_at_once_double_nothing(store: Any, make: Any) -> None:
    for seq in range(8):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    with ThreadPoolExecutor(4) as pool:
        lakes = [Lake(store.root) for _ in range(4)]
        list(pool.map(lambda lake: [lake.compact("samples", at_least=1) for _ in range(3)], lakes))
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(8, 28.0)]


def test_replaced_files_go_when_their_time_is_over_and_foreign_ones_stay(store: Any, make: Any) -> None:
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    folder = store.root / "samples"
    (folder / "foreign.parquet").write_bytes(b"not ours")
    store.lake.compact("samples", at_least=1, keep_hours=0)
    assert len(list(folder.glob("*.parquet"))) == 2
    assert store.ask("SELECT count(*) FROM samples") == [(3,)]
    store.put("telemetry", make.frame(3, {"loss": [3.0]}, step=3))
    assert store.ask("SELECT count(*) FROM samples") == [(4,)]


def test_what_a_killed_writer_left_is_removed_unless_somebody_writes_now(store: Any, make: Any) -> None:
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    whole = Path(store.lake.files("samples")[0])
    orphan = whole.with_name("part-00000-11111111-1111-1111-1111-111111111111-c000.zstd.parquet")
    shutil.copy(whole, orphan)
    with together(store.root / "samples" / "_writing"):
        assert store.lake.compact("samples", at_least=1)
        assert orphan.exists(), "it may be the file of a commit that is on its way"
        assert whole.exists(), "running readers may still read it"
    store.put("telemetry", make.frame(3, {"loss": [3.0]}, step=3))
    assert store.lake.compact("samples", at_least=1)
    assert not orphan.exists()
    assert whole.exists()
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(4, 6.0)]


def test_a_commit_after_anothers_compaction_lands(store: Any, make: Any) -> None:
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    assert Lake(store.root).compact("samples", at_least=2)
    store.put("telemetry", make.frame(4, {"loss": [4.0]}, step=4))
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(5, 10.0)]
    assert store.lake.compact("samples", at_least=1)
    assert store.ask("SELECT count(*), sum(value) FROM samples") == [(5, 10.0)]


def test_a_metric_that_shows_up_late_rewrites_nothing(store: Any, make: Any) -> None:
    """Case 11, scaled: steps 0..49 {loss}, 50..99 {loss, kl}, a flush per step, compacted like the sink's."""
    digests: dict[str, str] = {}
    for step in range(100):
        values = {"loss": [1.0]} | ({"kl": [0.1]} if step >= 50 else {})
        store.put("telemetry", make.frame(step, values, step=step))
        if step == 49:
            digests = {file: _digest(file) for file in store.lake.files("samples")}
        for name in ("samples", "log"):
            store.lake.compact(name)
    assert digests
    assert {file: _digest(file) for file in digests} == digests
    assert store.ask(
        "SELECT metric, count(*), min(step), count(value) FROM samples GROUP BY 1 ORDER BY 1"
    ) == [("kl", 50, 50, 50), ("loss", 100, 0, 100)]
    assert len(store.lake.files("samples")) < 40


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["a b", "it's", 'q"q', "é中😀", "a*b", "a#b&c=d", "{x}"])
def test_a_root_with_odd_characters_works(tmp_path: Path, name: str) -> None:
    lake = Lake(tmp_path / name)
    lake.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 0})
    lake.commit("facts", facts("b"), {"u/0": 0}, {"u/0": 1})
    assert all(Path(file).is_file() for file in lake.files("facts"))
    assert lake.compact("facts", at_least=2)
    assert stored(tmp_path / name) == ["a", "b"]


@pytest.mark.parametrize("name", ["a[b", "50%", "a|b", "a^b", "a\\b", "a?b", "a\nb", "a\0b"])
def test_a_root_that_delta_rs_or_duckdb_cannot_write_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="in its name"):
        Lake(tmp_path / name)


def test_an_object_store_is_not_taken_for_a_folder() -> None:
    with pytest.raises(SettingsError, match="local folder only"):
        Lake("s3://bucket/tables")


def test_a_root_that_cannot_be_written_names_folder_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"storage\.root.*file/data.*DRIFTLINE_STORAGE__ROOT"):
        Lake(tmp_path / "file" / "data")


def test_a_foreign_table_in_our_place_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "samples"), schema=pa.schema([("x", pa.int64())]))
    with pytest.raises(BadData, match="lacks the columns"):
        Lake(tmp_path)


def test_columns_that_came_later_are_added_to_tables_of_earlier_versions(
    tmp_path: Path, make: Any, store: Any
) -> None:
    """Rows of the version before sums stay readable, with null there, after compaction too."""
    store.put("windows", make.windows(0, sum=[4.0], mean=[2.0]))
    rows = pq.read_table(store.lake.files("windows")[0])
    earlier = [column.name for column in TABLES["windows"].columns if not column.later]
    assert "sum" not in earlier
    old = tmp_path / "old"
    write_deltalake(str(old / "windows"), rows.select(earlier))
    app = App.id("22222222-2222-2222-2222-222222222222", 0)
    first, second = Lake(old), Lake(old)
    with open_catalog(old) as catalog:
        assert catalog.rows("SELECT sum, mean FROM windows") == [(None, 2.0)]
    for lake in (first, second):
        lake.refresh()
        before = lake.version("windows", app)
        lake.commit("windows", rows, {app: before}, {app: before + 1})
    for _ in range(2):
        with open_catalog(old) as catalog:
            found = catalog.rows("SELECT sum, mean FROM windows ORDER BY sum NULLS FIRST")
        assert found == [(None, 2.0), (4.0, 2.0), (4.0, 2.0)]
        lake.compact("windows", at_least=2)
    assert len(lake.files("windows")) == 1
    assert_no_float_statistics(lake.files("windows")[0])


def test_a_file_server_that_is_away_when_a_table_is_loaded_anew_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start it is an error that says what to do; a sink that runs tries again."""
    lake = Lake(tmp_path)

    def away(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "set_aside_torn_end", away)
        with pytest.raises(BadData, match="Input/output error"):
            Lake(tmp_path)
        with pytest.raises(Unavailable, match="Input/output error"):
            lake.reload()
        patch.setattr(opening, "RELOAD_S", 0.0)
        with pytest.raises(Unavailable, match="Input/output error"):
            lake.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 0})
    lake.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 0})
    assert stored(tmp_path) == ["a"]


def test_readers_of_a_folder_without_tables_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no tables"):
        read_files(tmp_path)


def test_a_commit_waits_for_a_slow_look_at_what_killed_writers_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that merges looks after each merge, while the sink commits."""
    lake, other = Lake(tmp_path), Lake(tmp_path)
    began, look = threading.Event(), leftovers.known_names

    def slow(folder: Path) -> set[str]:
        began.set()
        time.sleep(1.5)
        return look(folder)

    monkeypatch.setattr(leftovers, "known_names", slow)
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(other._leftovers.remove_orphans, "facts")
        assert began.wait(60)
        lake.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 0})
        looking.result()
    assert stored(tmp_path) == ["a"]


@pytest.mark.parametrize("lock", [alone, together])
def test_locks_are_open_for_reading_and_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Any
) -> None:
    """NFS gives a shared lock only on what is open for reading, an exclusive one only for writing."""
    modes = []
    flock = fcntl.flock

    def asked(file: Any, how: int) -> None:
        modes.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", asked)
    with lock(tmp_path / "lock"):
        assert modes == [os.O_RDWR]


def test_importing_the_sdk_loads_no_storage_library() -> None:
    code = "import driftline, sys; sys.exit(any(m in sys.modules for m in ('deltalake', 'duckdb', 'kafka')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
