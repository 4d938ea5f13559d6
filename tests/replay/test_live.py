"""A replay beside a sink that writes, a compaction and a retention: one moment of all tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.cli.replay_app import _Newer
from driftline.records import Record
from driftline.replay.into_topics import copy, target_of
from driftline.replay.proof import prove
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.snapshot import Snapshot
from driftline.storage.recorded.source import TableLog
from driftline.storage.store import Conflict
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline

CHUNK = 40
OUTPUTS = ("windows", "facts", "alerts")


class Sink(threading.Thread):
    """Stores a log and what is said of it, some records at a time, one table after another."""

    def __init__(self, root: Path, log: Any) -> None:
        super().__init__(daemon=True)
        self.root, self.log = root, log
        self.first = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            self._store()
        except BaseException as error:
            self.failed = error
            raise
        finally:
            self.first.set()

    def _store(self) -> None:
        pipeline, log = Pipeline(), self.log
        state = beginning(pipeline, log.uuid, 0, log.records)
        spots = {name: Spot(name, f"{name}-uuid", 0) for name in OUTPUTS}
        telemetry, places = Spot("telemetry", log.uuid, 0), dict.fromkeys(OUTPUTS, 0)
        core = SinkCore(Lake(self.root))
        core.resume(dict.fromkeys([telemetry, *spots.values()], 0))
        for at in range(0, len(log.records), CHUNK):
            some = log.records[at : at + CHUNK]
            said = pipeline.step(state, some)
            core.take(telemetry, some)
            for name, spot in spots.items():
                values = [output.value for output in said if output.topic == name]
                core.take(spot, [Record(0, places[name] + n, 0, value) for n, value in enumerate(values)])
                places[name] += len(values)
            core.letters.clear()
            for _ in core.commits(empty=True):
                pass
            self.first.set()


def merge(root: Path, over: threading.Event, failed: list[BaseException]) -> None:
    """Compacts all tables again and again; another writer may come between."""
    lake = Lake(root)
    while not over.is_set():
        for name in ("log", "samples", *OUTPUTS):
            try:
                lake.reload()
                lake.compact(name, at_least=2)
            except Conflict:
                continue
            except BaseException as error:
                failed.append(error)
                raise


@pytest.mark.embedded
def test_replays_beside_a_sink_and_a_compaction_are_identical_in_what_they_cover(
    tmp_path: Path, log: Any, embedded: Any
) -> None:
    """In process and into a prefix; each sees more than the one before, the last sees all, nothing twice."""
    one = log()
    one.train("a", range(250))
    one.wait(5)
    live = embedded.settings(partitions=2)
    target = target_of(live, f"{live.prefix}beside.")
    root, over, failed = tmp_path / "data", threading.Event(), list[BaseException]()
    sink = Sink(root, one)
    sink.start()
    sink.first.wait()
    merging = threading.Thread(target=merge, args=(root, over, failed), daemon=True)
    merging.start()
    ends = []
    sent = 0
    while True:
        alive = sink.is_alive()
        snapshot = Snapshot(root)
        source = TableLog(root, (), snapshot)
        proof = prove(source, Stored(root, (), snapshot), newer=_Newer())
        assert proof.identical, (proof.differences, proof.notes)
        assert proof.notes == []
        ends.append(proof.covered[0].log_end)
        sent += copy(TableLog(root, (), snapshot), target).sent
        assert sent == ends[-1], "what the snapshot has, and once"
        if not alive:
            break
    over.set()
    sink.join()
    merging.join()
    assert (sink.failed, failed) == (None, [])
    assert ends == sorted(ends)
    assert ends[-1] == len(one.records)
    assert len(set(ends)) > 2, "some replays ran while the sink wrote"


def test_a_log_that_is_committed_before_its_samples_is_covered_up_to_them(
    log: Any, stored: Callable[..., Path], tmp_path: Path
) -> None:
    """A snapshot between two commits of a sink."""
    one = log()
    one.train("a", range(60))
    half = len(one.records) // 2
    core = SinkCore(Lake(tmp_path / "data"))
    spot = Spot("telemetry", one.uuid, 0)
    core.resume({spot: 0})
    for some in (one.records[:half], one.records[half:]):
        core.take(spot, some)
        commits = core.commits(empty=True)
        assert next(commits).table == "log"
        if some[0].offset == 0:
            list(commits)
    (part,) = TableLog(tmp_path / "data").parts()
    frame = next(r.offset for r in one.records[half:] if (r.value or b"")[:1] == b"\xff")
    assert part.end == frame
    source = TableLog(tmp_path / "data")
    assert [r.offset for item in source.stretches(part) for r in item] == list(range(frame))  # type: ignore[union-attr]
    assert source.notes == []


def test_retention_that_comes_between_is_not_seen_by_a_replay_that_has_begun(
    log: Any, stored: Callable[..., Path]
) -> None:
    """One that begins later says where it begins."""
    one = log()
    one.train("a", range(80))
    root = stored(one)
    snapshot = Snapshot(root)
    source, tables = TableLog(root, (), snapshot), Stored(root, (), snapshot)
    lake = Lake(root)
    lake.delete("samples", '"offset" < 100')
    lake.delete("log", '"offset" < 100 AND "kind" <> \'config_changed\'')
    proof = prove(source, tables)
    assert proof.identical, proof.differences
    assert (proof.notes, proof.covered[0].end) == ([], len(one.records))
    later = prove(TableLog(root), Stored(root))
    assert any("before offset 100 is deleted" in note for note in later.notes)
    assert later.covered[0].start == 100
