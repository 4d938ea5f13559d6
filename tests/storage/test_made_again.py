"""A topic that is deleted and made again while tables stay: nothing twice, and nothing stored is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from driftline.records import Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.memory_lake import MemoryLake, MemoryRoot
from driftline.storage.relations import source
from driftline.storage.store import Conflict, Tables
from driftline.storage.tables import TableName

OLD = Spot("telemetry", "11111111-1111-1111-1111-111111111111", 0)
NEW = OLD._replace(uuid="22222222-2222-2222-2222-222222222222")


class Folder:
    """Tables on disk or in memory, and what they hold."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._root = path, MemoryRoot()

    def lake(self) -> Tables:
        return Lake(self._path) if self._path else MemoryLake(self._root)

    def rows(self, name: TableName) -> list[dict[str, Any]]:
        if self._path is None:
            return self._root.rows(name).to_pylist()
        import duckdb

        with duckdb.connect() as db:
            relation = db.sql(f"FROM {source(name, Lake(self._path).files(name))}")
            return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]

    def stored(self) -> tuple[list[int], list[int], list[int]]:
        """Steps of samples, then seqs of checkpoints and of processes, each in order."""
        return (
            sorted(row["step"] for row in self.rows("samples")),
            sorted(row["seq"] for row in self.rows("checkpoints")),
            sorted(row["seq"] for row in self.rows("processes")),
        )


@pytest.fixture(params=["disk", "memory"])
def folder(request: Any, tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data" if request.param == "disk" else None)


def sink(folder: Folder, spot: Spot, values: Iterable[bytes], *, tables: int | None = None) -> SinkCore:
    """A sink that starts, reads ``values`` from the topic's beginning or where it stood, and is killed after
    the commits of so many tables (None: never)."""
    core = SinkCore(folder.lake())
    start = core.resume({spot: 0, spot._replace(topic="telemetry"): 0})[spot]
    core.take(spot, [Record(0, at, 0, value) for at, value in enumerate(values) if at >= start])
    for done, _ in enumerate(core.commits(), 1):
        if done == tables:
            break
    return core


def training(make: Any) -> list[bytes]:
    """Seqs 0 to 8: it starts, and every third record thereafter is a checkpoint, else a frame of its step."""
    return [
        make.started(seq)
        if seq == 0
        else make.saved(seq)
        if seq % 3 == 0
        else make.frame(seq, {"x": [float(seq)]}, step=seq)
        for seq in range(9)
    ]


WHOLE = ([1, 2, 4, 5, 7, 8], [3, 6], [0])


def test_what_is_sent_again_to_the_new_topic_is_stored_once(folder: Folder, make: Any) -> None:
    """Its acknowledgement was lost with the old topic, and the sink was stopped meanwhile."""
    values = training(make)
    sink(folder, OLD, values[:6])
    for _ in range(2):  # over one more start of the sink
        sink(folder, NEW, values[4:])
    assert folder.stored() == WHOLE
    outcomes = Counter(row["outcome"] for row in folder.rows("log") if row["topic_uuid"] == NEW.uuid)
    assert outcomes == {"stored": 3, "duplicate": 2}


@pytest.mark.parametrize("tables", [1, 2, 3])
def test_a_sink_killed_between_two_tables_before_the_topic_went_still_stores_all_once(
    folder: Folder, make: Any, tables: int
) -> None:
    """Some tables have rows that others lack, and nothing of the old topic can be read again."""
    values = training(make)
    sink(folder, OLD, values[:2])
    sink(folder, OLD, values[:7], tables=tables)
    log = values[1:] + values + values[2:]
    for end in (5, 8, 12, len(log)):
        sink(folder, NEW, log[:end])
    sink(folder, NEW._replace(uuid="33333333-3333-3333-3333-333333333333"), values)
    assert folder.stored() == WHOLE


def test_an_accepted_evaluation_that_is_sent_again_is_stored_once(folder: Folder, make: Any) -> None:
    values = [make.accepted(at) for at in range(4)]
    sink(folder, OLD, values[:3])
    sink(folder, NEW, values[1:])
    assert sorted(row["request"] for row in folder.rows("evals")) == [f"request-{at}" for at in range(4)]


@pytest.mark.parametrize("topic", ["telemetry", "facts"])
@pytest.mark.parametrize("first", ["zombie", "successor"])
def test_a_zombie_of_the_old_topic_and_a_sink_of_the_new_one_double_nothing(
    folder: Folder, make: Any, topic: Any, first: str
) -> None:
    """The zombie commits what it had read, when the other has already read the marks: one is refused."""
    old, new = OLD._replace(topic=topic), NEW._replace(topic=topic)
    value: Callable[[int], bytes] = (
        make.fact if topic == "facts" else lambda at: make.frame(at, {"x": [1.0]}, step=at)
    )
    zombie, successor = SinkCore(folder.lake()), SinkCore(folder.lake())
    for core, spot in ((zombie, old), (successor, new)):
        core.resume({spot: 0, spot._replace(topic="telemetry"): 0})
        core.take(spot, [Record(0, 0, 0, value(0))])
    order = [zombie, successor] if first == "zombie" else [successor, zombie]
    list(order[0].commits())
    with pytest.raises(Conflict):
        list(order[1].commits())
    sink(folder, new, [value(0), value(1)])
    name: TableName = "facts" if topic == "facts" else "samples"
    assert len(folder.rows(name)) == 2
