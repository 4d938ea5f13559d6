"""Clocks that are wrong, set back or ahead of those of other hosts, take nothing away that may be in use.

Each place that judges an age is asked with a clock that is two hours ahead, or with files of "tomorrow".
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from driftline.storage.checking.mend import repair
from driftline.storage.lake import Lake
from driftline.storage.store import App
from driftline.storage.tables import TABLE_NAMES

HOUR_S = 3600.0
DAY_S = 86_400.0


class Wrong:
    """This host's clock, so many seconds ahead; the steady one goes on only when told."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        self._steady_s = 1_000.0

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + int(self.ahead_s * 1e6)

    def steady_us(self) -> int:
        return int(self._steady_s * 1e6)

    def pass_(self, seconds: float) -> None:
        self._steady_s += seconds


def ahead(store: Any, seconds: float) -> tuple[Lake, Wrong]:
    """A sink's lake on a host whose clock is so far ahead, and so is the file server's."""
    clock = Wrong(seconds)
    lake = Lake(store.root, clock=clock)
    for name in TABLE_NAMES:
        (store.root / name / "_writing").touch()
    lake._leftovers._now_s = lambda folder: clock.now_us() / 1e6  # type: ignore[method-assign]
    return lake, clock


def fill(store: Any, make: Any, upto: int = 4, *, first: int = 0) -> None:
    for seq in range(first, upto):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))


def here(store: Any) -> set[str]:
    return {path.name for path in (store.root / "samples").glob("part-*")}


def of_tomorrow(folder: Path) -> None:
    """Writes the log as a host would have whose clock was a day ahead when files were replaced."""
    for path in (folder / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for line in lines:
            if "remove" in line:
                line["remove"]["deletionTimestamp"] += int(DAY_S * 1000)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("replaced", ["compaction", "deletion"])
def test_after_a_clock_was_set_back_replaced_files_stay_for_their_readers(
    store: Any, make: Any, replaced: str, checkpoint: bool
) -> None:
    """delta-rs does not name files that were replaced "later" than now: they are no orphans."""
    fill(store, make)
    before = here(store)
    if replaced == "compaction":
        assert store.lake.compact("samples", at_least=2)
    else:
        assert store.lake.delete("samples", "step = 1") == 1
    of_tomorrow(store.root / "samples")
    if checkpoint:
        DeltaTable(str(store.root / "samples")).create_checkpoint()
    orphan = store.root / "samples" / "part-00000-11111111-1111-1111-1111-111111111111-c000.zstd.parquet"
    orphan.write_bytes(b"of a killed writer")
    lake = Lake(store.root)
    lake._leftovers.remove_orphans("samples")
    assert not orphan.exists()
    assert before <= here(store)
    assert lake.vacuum("samples") == (0, 0)
    lake.set_aside("samples")
    assert repair(store.root)[1] == []
    assert before <= here(store)
    assert store.ask("SELECT count(*) FROM samples") == [(4 if replaced == "compaction" else 3,)]
    assert lake.vacuum("samples", keep_hours=0)[0] > 0, "told to keep none, it does not ask the time"
    assert here(store) == {Path(file).name for file in Lake(store.root).files("samples")}


def test_replaced_files_go_when_seen_for_an_hour_or_older_by_a_day(store: Any, make: Any) -> None:
    fill(store, make)
    before = here(store)
    assert Lake(store.root).compact("samples", at_least=2)
    lake, clock = ahead(store, 2 * HOUR_S)
    assert lake.vacuum("samples") == (0, 0), "by the clocks they are two hours old"
    clock.pass_(HOUR_S - 1)
    assert lake.vacuum("samples") == (0, 0)
    clock.pass_(1)
    assert lake.vacuum("samples")[0] == len(before)
    fill(store, make, 6, first=4)
    assert Lake(store.root).compact("samples", at_least=1)
    late, _ = ahead(store, DAY_S + 2 * HOUR_S)
    assert late.vacuum("samples")[0] > 0, "a new sink need not have seen what is a day older"


def test_by_hand_the_clocks_are_believed_but_never_beyond_the_file_servers(store: Any, make: Any) -> None:
    fill(store, make)
    before = here(store)
    assert Lake(store.root).compact("samples", at_least=2)
    alone_ahead = Lake(store.root, clock=Wrong(2 * HOUR_S))
    assert alone_ahead.vacuum("samples", by_clock=True) == (0, 0)
    lake, _ = ahead(store, 2 * HOUR_S)
    assert lake.vacuum("samples", by_clock=True)[0] == len(before)


def test_a_log_is_not_trimmed_under_those_who_rest_on_it(store: Any, make: Any) -> None:
    lake, clock = ahead(store, 2 * HOUR_S)
    handle = Lake(store.root)
    for seq in range(3):
        fill(store, make, seq + 1, first=seq)
        DeltaTable(str(store.root / "samples")).create_checkpoint()
    assert lake.trim_log("samples") == 0
    clock.pass_(599)
    assert lake.trim_log("samples") == 0
    clock.pass_(1)
    assert lake.trim_log("samples") > 0
    handle.refresh("samples")
    assert len(handle.files("samples")) == 3


def test_what_another_writer_may_commit_is_left_whatever_the_clock_says(store: Any, make: Any) -> None:
    fill(store, make, 1)
    lake, clock = ahead(store, 1.5 * DAY_S)
    folder = store.root / "samples"
    other = folder / "part-00000-2-c000.snappy.parquet"
    shutil.copy(store.lake.files("samples")[0], other)
    empty = folder / "_delta_log" / "_commit_1.json.tmp"
    empty.write_bytes(b"")
    os.utime(empty)
    lake, clock = ahead(store, 0.9 * DAY_S)
    assert lake.set_aside("samples") == []
    clock.pass_(600)
    assert [stray.path for stray in lake.set_aside("samples")] == [empty]
    clock.pass_(DAY_S - 601)
    other.write_bytes(other.read_bytes() + b"PAR1")  # it is still being written
    assert lake.set_aside("samples") == []
    clock.pass_(DAY_S - 1)
    assert lake.set_aside("samples") == []
    clock.pass_(1)
    assert [stray.path for stray in lake.set_aside("samples")] == [other]


def test_what_has_expired_stays_said_after_a_clock_was_set_back(store: Any, make: Any) -> None:
    """Else a check would call rows missing that an earlier deletion took."""
    fill(store, make, 2)
    for step, cutoff in enumerate((5_000, 3_000)):
        assert store.lake.delete("samples", f"step = {step}", cutoff_us=cutoff) == 1
        assert Lake(store.root).version("samples", App.RETENTION) == 5_000


def test_orphans_are_told_by_the_log_of_now_not_by_a_handle_that_stood_still(store: Any, make: Any) -> None:
    stale = Lake(store.root)
    fill(store, make)
    files = here(store)
    stale._leftovers.remove_orphans("samples")
    assert here(store) == files
    assert store.ask("SELECT count(*) FROM samples") == [(4,)]
