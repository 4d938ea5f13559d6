"""Merging beside the sink: it goes on reading and committing, ends quickly, and nothing is lost or left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driftline.clock import ManualClock, SystemClock
from driftline.errors import Unavailable
from driftline.records import Record
from driftline.settings import StorageSettings
from driftline.storage.alone import alone
from driftline.storage.checking.check import check
from driftline.storage.compaction import groups, merging
from driftline.storage.compaction import replacing as compaction
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.leftovers import known_names
from driftline.storage.merger import Merger
from driftline.storage.open import open_catalog
from driftline.storage.table_log import checkpoints, trim
from driftline.storage.upkeep import EVERY_US, Upkeep

DAY_US = 86_400_000_000


class Held:
    """Merges of one table stop after their first block of rows, until :meth:`go`, or they are told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
        self.entered, self.over = threading.Event(), threading.Event()
        blocks, merge = merging._blocks, compaction.merge
        self.merger: Merger | None = None

        def slow(name: Any, sources: Any, new_file: Any, *, stays: bool, stop: Any) -> Any:
            def held(known: Any, given: Any) -> Iterator[Any]:
                for number, block in enumerate(blocks(known, given)):
                    yield block
                    if not number:
                        self.entered.set()
                        while not (self.over.wait(0.01) or stop()):
                            pass

            monkeypatch.setattr(merging, "_blocks", held if name == table else blocks)
            return merge(name, sources, new_file, stays=stays, stop=stop)

        monkeypatch.setattr(merging, "_MOST_BATCH", 16)
        monkeypatch.setattr(groups, "ROW_GROUP", 8)
        monkeypatch.setattr(compaction, "merge", slow)

    def wait(self) -> None:
        assert self.entered.wait(120)

    def go(self) -> None:
        self.over.set()


class Sink:
    """What a sink does, without Kafka, with a merger beside it."""

    def __init__(self, root: Path, make: Any, retention_us: int | None = None) -> None:
        self.root, self._make = root, make
        self.lake = Lake(root)
        self.core = SinkCore(self.lake)
        self._spot = Spot("telemetry", make.uuid, 0)
        self.core.resume({self._spot: 0})
        self.lines: list[str] = []
        self.clock = ManualClock(now_us=make.t0)
        self.merger = Merger(lambda: Lake(root), clock=SystemClock())
        self.upkeep = Upkeep(
            self.lake,
            StorageSettings(retention_us=retention_us),
            counts=self.core.counts,
            say=self.lines.append,
            clock=self.clock,
            merger=self.merger,
        )
        self.sent = 0

    def commit(self, count: int = 1) -> None:
        """So many commits of 20 samples each, and what a sink does after each."""
        for _ in range(count):
            at = self.sent
            frame = self._make.frame(at, {"loss": [1.0] * 20}, step=at * 20)
            self.core.take(self._spot, [Record(0, at, self._make.t0 // 1000, frame)])
            list(self.core.commits())
            self.sent += 1
            self.upkeep.compact(at_least=4)

    def rows(self) -> tuple[int, int, int]:
        with open_catalog(self.root) as catalog:
            return catalog.rows("SELECT count(*), count(DISTINCT step), max(step) FROM samples")[0]  # type: ignore[return-value]

    def whole(self) -> tuple[int, int, int]:
        return 20 * self.sent, 20 * self.sent, 20 * self.sent - 1

    def wait_for_merge(self) -> None:
        """Until the merger has nothing to do."""
        for _ in range(12_000):
            self.upkeep.compact(at_least=1_000)
            if self.merger.merging is None and not self.merger._wanted:
                self.upkeep.compact(at_least=1_000)
                return
            threading.Event().wait(0.01)
        raise AssertionError("the merge did not end")


def left_over(root: Path, name: str = "samples") -> set[str]:
    """Data files and staged commits that are not of the table, nor were."""
    folder = root / name
    known = known_names(folder)
    here = {path.name for path in folder.glob("part-*")}
    return here - known | {path.name for path in (folder / "_delta_log").glob(".compaction-*")}


@pytest.fixture
def sink(tmp_path: Path, make: Any) -> Iterator[Sink]:
    made = Sink(tmp_path / "data", make)
    yield made
    made.upkeep.close()


def test_a_sink_commits_while_a_merge_is_held_open_and_both_land(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also another sink's commits; nobody else merges the table meanwhile, and its log may be trimmed."""
    held = Held(monkeypatch, "samples")
    sink.commit(4)
    held.wait()
    other = Lake(sink.root)
    other.commit("facts", None, {"u/0": -1}, {"u/0": 0})
    sink.commit(12)
    assert sink.rows() == sink.whole()
    assert "merging samples for" in str(sink.upkeep.doing)
    assert not Lake(sink.root).compact("samples", at_least=1), "another process leaves it to the thread"
    with alone(sink.root / "samples" / "_writing") as mine:
        assert not mine, "nobody may take the merge's files for left ones"
    held.go()
    sink.wait_for_merge()
    assert len(sink.lake.files("samples")) < 16
    sink.commit(5)
    assert sink.rows() == sink.whole()
    assert sink.core.counts["conflicts"] == 0
    assert sink.core.counts["merges"] >= 1
    assert sink.lines == []
    assert check(sink.root).ok


def test_stopped_in_a_merge_it_ends_at_once_loses_nothing_and_leaves_nothing(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "samples")
    sink.commit(6)
    held.wait()
    files = set(sink.lake.files("samples"))
    assert left_over(sink.root) != set()
    sink.upkeep.close()
    assert not sink.merger._thread.is_alive()  # type: ignore[union-attr]
    assert sink.lines == []
    assert left_over(sink.root) == set()
    assert set(Lake(sink.root).files("samples")) == files
    assert sink.rows() == sink.whole()
    held.go()
    assert sink.lake.compact("samples", at_least=1)
    assert sink.rows() == sink.whole()
    assert len(sink.lake.files("samples")) == 1


def test_the_end_of_a_sink_merges_no_longer_than_it_may(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, "samples")
    sink.upkeep._merger = None
    sink.commit(3)
    sink.clock = SystemClock()  # type: ignore[assignment]
    sink.upkeep._clock = sink.clock
    files = set(sink.lake.files("samples"))
    sink.upkeep.finish(within_s=0.5)
    assert held.entered.is_set()
    assert set(Lake(sink.root).files("samples")) == files
    assert left_over(sink.root) == set()
    assert (sink.root / "catalog.duckdb").exists()
    held.go()
    sink.upkeep.finish()
    assert len(Lake(sink.root).files("samples")) == 1
    assert sink.rows() == sink.whole()


_KILLED = """
import os, signal, sys, threading
from driftline.storage.compaction import groups, merging
from driftline.storage.lake import Lake
from driftline.storage.leftovers import known_names
from driftline.storage.merger import Merger
from driftline.clock import SystemClock
root = sys.argv[1]
entered, lake = threading.Event(), Lake(root)
blocks = merging._blocks
merging._MOST_BATCH, groups.ROW_GROUP = 16, 8
def held(known, given):
    for block in blocks(known, given):
        yield block
        entered.set()
        threading.Event().wait()
merging._blocks = held
Merger(lambda: Lake(root), clock=SystemClock()).ask("samples", 2)
entered.wait(100)
lake.commit("samples", None, {"u/9": -1}, {"u/9": 7})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_in_a_merge_what_it_committed_meanwhile_stays_and_its_files_go(store: Any, make: Any) -> None:
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)] * 20}, step=seq * 20))
    done = subprocess.run([sys.executable, "-c", _KILLED, str(store.root)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert left_over(store.root) != set()
    assert store.ask("SELECT count(*), count(DISTINCT step) FROM samples") == [(80, 80)]
    lake = Lake(store.root)
    assert lake.version("samples", "u/9") == 7
    assert lake.compact("samples", at_least=1)
    assert left_over(store.root) == set()
    assert store.ask("SELECT count(*), count(DISTINCT step) FROM samples") == [(80, 80)]


def test_retention_waits_for_a_merge_and_has_its_turn_right_after(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "samples")
    sink = Sink(tmp_path / "data", make, retention_us=DAY_US)
    sink.commit(6)
    held.wait()
    monkeypatch.setattr("driftline.storage.retention.now", lambda lake, host_us: host_us)
    sink.clock.advance(3 * DAY_US)
    sink.upkeep.expire(make.uuid, 1)
    assert sink.rows() == sink.whole(), "not while the table is merged"
    sink.merger.ask("samples", 0)
    held.go()
    for _ in range(12_000):
        sink.upkeep.expire(make.uuid, 1)
        if sink.merger.merging is None:
            break
        threading.Event().wait(0.01)
    sink.upkeep.expire(make.uuid, 1)
    assert sink.rows()[0] == 0
    assert sink.core.counts["rows expired"] >= 20 * sink.sent
    assert sink.lines == []
    sink.commit(2)  # it deleted by the sink's own handle: no conflict
    sink.upkeep.close()


def test_what_another_process_rewrites_is_expired_a_minute_later(tmp_path: Path, make: Any) -> None:
    sink = Sink(tmp_path / "data", make, retention_us=DAY_US)
    sink.commit(2)
    sink.clock.advance(3 * DAY_US)
    late = {"spot": sink._spot}
    sink.core.take(late["spot"], [Record(0, sink.sent, sink.clock.now_us() // 1000, make.tick())])
    list(sink.core.commits())
    with alone(sink.root / "samples" / "_compacting"):
        sink.upkeep.expire(make.uuid, 1)
    assert sink.rows() == sink.whole()
    sink.clock.advance(EVERY_US // 60)
    sink.upkeep.expire(make.uuid, 1)
    assert sink.rows()[0] == 0


def test_a_merge_that_outlasts_the_log_that_it_began_on_lands_in_the_log_of_now(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next version was trimmed meanwhile, and so looks free: a commit there would be seen by nobody."""
    held = Held(monkeypatch, "samples")
    sink.commit(4)
    held.wait()
    other = Lake(sink.root)
    for at in range(200):
        other.commit("samples", None, {"u/0": at - 1}, {"u/0": at})
    assert trim(sink.root / "samples", {path.name for path in checkpoints(sink.root / "samples")}) > 90
    held.go()
    sink.wait_for_merge()
    assert len(Lake(sink.root).files("samples")) == 1
    assert left_over(sink.root) == set()
    assert sink.rows() == sink.whole()
    sink.commit(3)
    assert sink.rows() == sink.whole()


def test_a_merge_that_stands_still_just_before_its_commit_takes_nothing_away(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So long that the log goes on and is trimmed: its commit lands where nobody reads."""
    for seq in range(4):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    link = os.link
    other = Lake(store.root)

    def paused(*names: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        row = pa.concat_tables([pa.parquet.read_table(other.files("samples")[0])])
        for at in range(200):
            other.commit("samples", row if at == 150 else None, {"u/0": at - 1}, {"u/0": at})
        trim(store.root / "samples", {path.name for path in checkpoints(store.root / "samples")})
        link(*names)

    monkeypatch.setattr(os, "link", paused)
    with pytest.raises(Unavailable, match="stood still"):
        store.lake.compact("samples", at_least=2)
    assert store.ask("SELECT count(*), count(DISTINCT step) FROM samples") == [(5, 4)]
    assert store.lake.compact("samples", at_least=1)
    assert store.ask("SELECT count(*), count(DISTINCT step) FROM samples") == [(5, 4)]
    assert left_over(store.root) == set()
    assert Lake(store.root).version("samples", "u/0") == 199


@pytest.mark.embedded
def test_a_sink_stores_while_one_merge_fails_and_another_is_held_and_ends_in_seconds(
    quick: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours in the one is said and counted once; the other is given up at the end."""
    monkeypatch.setitem(Upkeep.compact.__kwdefaults__, "at_least", 3)  # type: ignore[arg-type]
    monkeypatch.setattr("driftline.storage.sink._HEALTH_US", 500_000)
    monkeypatch.setattr("driftline.storage.sink._END_S", 0.1)
    held = Held(monkeypatch, "log")
    merge = compaction.merge

    def faulty(name: Any, *arguments: Any, **more: Any) -> Any:
        assert name != "samples", "no such rows"
        return merge(name, *arguments, **more)

    monkeypatch.setattr(compaction, "merge", faulty)
    with quick.sink():
        for seq in range(200):
            quick.send("telemetry", make.frame(seq, {"loss": [1.0] * 5}, step=seq * 5))
            if held.entered.wait(0.1) and any("upkeep errors 1" in line for line in quick.lines):
                break
        held.wait()
        for more in range(1, 4):
            quick.send("telemetry", make.frame(seq + more, {"loss": [1.0] * 5}, step=(seq + more) * 5))
            rows = 5 * (seq + more + 1)
            quick.wait_for(lambda rows=rows: quick.rows("SELECT count(*) FROM samples") == [(rows,)])
        quick.wait_for(lambda: any("merging log for" in line for line in quick.lines))
    said = [line for line in quick.lines if "fault of driftline" in line]
    assert len(said) == 1
    assert "AssertionError: no such rows" in said[0]
    assert any("upkeep errors 1" in line for line in quick.lines)
    assert not any("not waiting" in line for line in quick.lines)
    assert left_over(quick.root, "log") == set()
    assert quick.rows("SELECT count(*), count(DISTINCT step) FROM samples") == [(rows, rows)]


def test_news_of_a_lake_that_cannot_be_opened_are_failures_and_the_thread_lives_on(
    store: Any, make: Any
) -> None:
    tries: Counter[str] = Counter()

    def opened() -> Lake:
        tries["opened"] += 1
        if tries["opened"] == 1:
            raise MemoryError
        return Lake(store.root)

    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq))
    merger = Merger(opened, clock=SystemClock())
    found: list[Any] = []
    for _ in range(2):
        merger.ask("samples", 2)
        for _ in range(12_000):
            if more := list(merger.news()):
                break
            threading.Event().wait(0.01)
        found += more
    assert [(news.merged, news.failure is not None) for news in found] == [(False, True), (True, False)]
    assert "not enough memory" in found[0].failure.line
    assert merger.close()


def test_after_a_fault_of_ours_the_merger_opens_the_tables_anew(store: Any, make: Any) -> None:
    """A handle in which delta-rs panicked may fail each time from then on."""
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq))

    class Poisoned(Lake):
        def refresh(self, *_: Any) -> None:
            raise RuntimeError("Poisoned lock: another task failed inside")

    kinds = iter([Poisoned, Lake])
    merger = Merger(lambda: next(kinds)(store.root), clock=SystemClock())
    found: list[Any] = []
    for _ in range(2):
        merger.ask("samples", 2)
        for _ in range(12_000):
            if more := list(merger.news()):
                break
            threading.Event().wait(0.01)
        found += more
    assert [(news.merged, news.failure is not None) for news in found] == [(False, True), (True, False)]
    assert merger.close()
