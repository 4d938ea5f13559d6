"""Files beside the tables (case 37): set aside, reported and counted, never deleted, never read."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from driftline.clock import ManualClock
from driftline.settings import StorageSettings
from driftline.storage.alone import together
from driftline.storage.checking.strays import QUARANTINE, strays
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.upkeep import EVERY_US, Upkeep

OURS = "part-00000-11111111-1111-1111-1111-111111111111-c000.zstd.parquet"


def upkeep(lake: Lake, make: Any) -> tuple[Upkeep, Counter[str], list[str], ManualClock]:
    counts: Counter[str] = Counter()
    lines: list[str] = []
    clock = ManualClock(now_us=make.t0)
    return Upkeep(lake, StorageSettings(), counts=counts, say=lines.append, clock=clock), counts, lines, clock


def test_a_sink_sets_aside_what_could_be_taken_for_rows_and_reports_and_counts_it(
    store: Any, make: Any
) -> None:
    """3 whole files (30 rows), a cut, an empty, a temp-named, a foreign one; a live writer; 100 queries."""
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [1.0] * 10}, step=seq * 10))
    folder = store.root / "samples"
    whole = Path(store.lake.files("samples")[0]).read_bytes()
    bad = {
        "cut.parquet": whole[:200],
        "empty.parquet": b"",
        ".tmp-x.parquet": whole[:9],
        "foreign.parquet": whole,
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    (folder / "notes.txt").write_text("of somebody")
    (folder / OURS).write_bytes(whole)
    (folder / (OURS + "#1")).write_bytes(whole[:50])
    wrong, seen = [], [30]

    def read() -> None:
        with open_catalog(store.root) as catalog:
            for _ in range(100):
                ((count, steps),) = catalog.rows("SELECT count(*), count(DISTINCT step) FROM samples")
                if not (count == steps >= seen[-1] and count % 10 == 0):
                    wrong.append((count, steps, seen[-1]))
                seen.append(count)

    reader = threading.Thread(target=read)
    reader.start()
    keeper, counts, lines, _ = upkeep(store.lake, make)
    for seq in range(3, 30):
        store.put("telemetry", make.frame(seq, {"loss": [1.0] * 10}, step=seq * 10))
        for name in ("samples", "log"):
            store.lake.compact(name, at_least=8)
        if seq == 5:
            keeper.tidy()
            keeper.tidy()
    reader.join()
    assert wrong == []
    assert counts["files set aside"] == len(bad)
    (line,) = lines
    assert all(name in line for name in bad)
    assert str(store.root / QUARANTINE / "samples") in line
    aside = store.root / QUARANTINE / "samples"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == bad
    assert (folder / "notes.txt").exists()
    assert Lake(store.root).compact("samples", at_least=1)
    assert not (folder / OURS).exists()
    assert not (folder / (OURS + "#1")).exists(), "what a killed writer had not finished goes, too"
    assert store.ask("SELECT count(*), count(DISTINCT step) FROM samples") == [(seq * 10 + 10, seq * 10 + 10)]


def test_it_is_done_again_every_hour_and_two_files_of_one_name_both_stay(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    keeper, counts, _, clock = upkeep(store.lake, make)
    for content in (b"first", b"second"):
        (store.root / "samples" / "x.parquet").write_bytes(content)
        keeper.tidy()
        clock.advance(EVERY_US)
    assert counts["files set aside"] == 2
    aside = store.root / QUARANTINE / "samples"
    assert sorted(path.read_bytes() for path in aside.iterdir()) == [b"first", b"second"]


def test_what_another_writer_of_delta_tables_may_commit_is_left_for_a_day(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    other = store.root / "samples" / "part-00000-2-c000.snappy.parquet"
    shutil.copy(store.lake.files("samples")[0], other)
    assert store.lake.set_aside("samples") == []
    os.utime(other, (other.stat().st_mtime - 3 * 86_400,) * 2)
    assert [stray.path for stray in store.lake.set_aside("samples")] == [other]


@pytest.mark.parametrize("name", ["part-00000-2-c000.snappy.parquet", "part-00000-2-c000.snappy.parquet#1"])
@pytest.mark.parametrize("size", [0, 50])
def test_a_file_that_another_writer_of_delta_tables_is_writing_is_left_for_a_day(
    store: Any, make: Any, name: str, size: int
) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    other = store.root / "samples" / name
    other.write_bytes(Path(store.lake.files("samples")[0]).read_bytes()[:size])
    assert store.lake.set_aside("samples") == []
    os.utime(other, (other.stat().st_mtime - 3 * 86_400,) * 2)
    assert [stray.path for stray in store.lake.set_aside("samples")] == [other]


def test_a_file_of_a_commit_that_lands_while_one_looks_is_no_trouble(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever delta-rs calls it until then."""
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    left = store.root / "samples" / "_delta_log" / "_commit_1.json.tmp"
    left.write_bytes(b"{}")
    scandir = os.scandir

    class Listed:
        def __init__(self, folder: Any) -> None:
            with scandir(folder) as entries:
                self.entries = list(entries)
            if left.parent == Path(folder):
                left.unlink()

        def __enter__(self) -> Any:
            return iter(self.entries)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", lambda folder: Listed(folder))
    assert strays(store.root / "samples", set(), 0.0)[0].kind == "ours"


def test_an_empty_file_in_a_log_is_left_while_it_may_become_a_commit(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    left = store.root / "samples" / "_delta_log" / "_commit_1.json.tmp"
    left.write_bytes(b"")
    assert store.lake.set_aside("samples") == []
    os.utime(left, (left.stat().st_mtime - 2 * 86_400,) * 2)
    assert [stray.path for stray in store.lake.set_aside("samples")] == [left]


@pytest.mark.parametrize("torn", [True, False])
def test_the_data_of_a_torn_commit_are_kept(store: Any, make: Any, torn: bool) -> None:
    """They may be the only copy of their rows, if the topic has lost its records by now."""
    for seq in range(2):
        store.put("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq))
    newest = sorted((store.root / "samples" / "_delta_log").glob("*.json"))[-1]
    before = set(store.lake.files("samples"))
    if torn:
        newest.write_text('{"add')
    else:
        newest.unlink()  # as if it was never committed
    lake = Lake(store.root)
    lost = before - set(lake.files("samples"))
    assert len(lost) == 1
    with together(store.root / "samples" / "_writing"):
        lake.compact("samples", at_least=1)
    assert all(Path(file).exists() for file in lost)
    lake.compact("samples", at_least=0)
    kept = [path.name for path in (store.root / QUARANTINE).rglob("*.parquet")]
    assert kept == ([Path(file).name for file in lost] if torn else [])
