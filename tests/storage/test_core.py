"""What a sink decides, without Kafka or disk; and the tables in memory behave like those on disk."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driftline import events
from driftline.errors import Unavailable
from driftline.records import Record
from driftline.storage.core import Gap, SinkCore, Spot
from driftline.storage.dead_letters import encoded
from driftline.storage.lake import Lake
from driftline.storage.memory_lake import MemoryLake, MemoryRoot
from driftline.storage.store import Conflict, Tables
from driftline.storage.tables import FEEDS, TABLES

UUID = "11111111-1111-1111-1111-111111111111"
TELEMETRY = Spot("telemetry", UUID, 0)


@pytest.fixture(params=["disk", "memory"])
def writer(request: Any, tmp_path: Path) -> Callable[[], Tables]:
    """Makes one more writer on the same tables."""
    if request.param == "disk":
        return lambda: Lake(tmp_path)
    root = MemoryRoot()
    return lambda: MemoryLake(root)


def facts(*texts: str) -> pa.Table:
    schema = TABLES["facts"].schema
    columns = {field.name: pa.nulls(len(texts), field.type) for field in schema}
    return pa.table(columns | {"text": pa.array(texts)}, schema=schema)


def test_rows_and_positions_move_together_and_are_seen_by_the_next_writer(writer: Any) -> None:
    writer().commit("facts", facts("a"), {"u/0": -1, "u/1": -1}, {"u/0": 5, "u/1": 9})
    after = writer()
    assert [after.version("facts", app) for app in ("u/0", "u/1", "u/2")] == [5, 9, -1]
    assert after.version("alerts", "u/0") == -1


@pytest.mark.parametrize("rows", [facts("late"), None], ids=["rows", "empty"])
def test_a_stale_writer_is_refused_until_it_loads_the_tables_again(writer: Any, rows: Any) -> None:
    first, zombie = writer(), writer()
    first.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 5})
    for _ in range(2):
        with pytest.raises(Conflict):
            zombie.commit("facts", rows, {"u/0": -1, "u/2": -1}, {"u/0": 3, "u/2": 3})
    zombie.reload()
    assert [zombie.version("facts", app) for app in ("u/0", "u/2")] == [5, -1]
    zombie.commit("facts", rows, {"u/0": 5}, {"u/0": 6})


def test_an_own_commit_moves_the_handle_past_those_of_others_and_the_check_still_holds(writer: Any) -> None:
    first, zombie = writer(), writer()
    first.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 5})
    zombie.commit("facts", facts("b"), {"u/1": -1}, {"u/1": 5})
    assert zombie.version("facts", "u/0") == 5
    with pytest.raises(Conflict, match="u/0 is at 5, not at -1"):
        zombie.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 6})


def test_marks_are_those_below_the_start_and_of_the_partitions_asked_for(writer: Any, make: Any) -> None:
    core = SinkCore(writer())
    spots = [Spot(topic, UUID, p) for topic in FEEDS for p in (0, 1)]
    core.resume(dict.fromkeys(spots, 0))
    for spot in spots:
        values = {
            "telemetry": [make.frame(seq, {"x": [1.0]}, process=f"p{spot.partition}") for seq in range(3)],
            "facts": [make.fact(4, 1)],
            "eval-items": [make.items(f"l{spot.partition}", 2, 3)],
        }.get(spot.topic, [])
        core.take(spot, [Record(spot.partition, at, 0, value) for at, value in enumerate(values)])
    list(core.commits())
    for starts, expected in (({0: 9, 1: 9}, {"p0": 2, "p1": 2}), ({0: 2}, {"p0": 1}), ({}, {})):
        seen = writer().seen(UUID, starts)
        assert {process: seq for (_, process), seq in seen.processes._seq.items()} == expected
        assert len(seen.outputs._high) == (1 if starts else 0)
        assert seen.items.new("l0", 0, 5) == ([0, 1] if 0 in starts else [0, 1, 2, 3, 4])


def test_tables_without_rows_move_on_only_with_an_empty_commit(writer: Any, make: Any) -> None:
    """Else the position of a table that gets no rows falls behind what its topic keeps, and looks lost."""
    core = SinkCore(writer())
    core.resume({TELEMETRY: 0})
    core.take(TELEMETRY, [Record(0, 0, 0, make.frame(0, {"x": [1.0]}))])
    list(core.commits())
    after = writer()
    assert {name: after.version(name, TELEMETRY.app) for name in FEEDS["telemetry"]} == dict.fromkeys(
        FEEDS["telemetry"], -1
    ) | {"samples": 0, "log": 0}
    list(core.commits(empty=True))
    after = writer()
    assert {after.version(name, TELEMETRY.app) for name in FEEDS["telemetry"]} == {0}


def test_a_deletion_by_another_refuses_the_next_append() -> None:
    root = MemoryRoot()
    lake = MemoryLake(root)
    root.delete("facts")
    with pytest.raises(Conflict):
        lake.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 5})
    lake.reload()
    lake.commit("facts", facts("a"), {"u/0": -1}, {"u/0": 5})


def test_what_the_log_no_longer_has_is_a_gap_of_the_tables_that_lack_it() -> None:
    root = MemoryRoot()
    lake = MemoryLake(root)
    for name, reached in {
        "samples": 4,
        "log": 9,
        "checkpoints": 4,
        "evals": 9,
        "processes": 9,
        "metrics": 9,
    }.items():
        lake.commit(name, None, {TELEMETRY.app: -1}, {TELEMETRY.app: reached})  # type: ignore[arg-type]
    core = SinkCore(MemoryLake(root))
    fresh = Spot("facts", UUID.replace("1", "3"), 0)
    assert core.resume({TELEMETRY: 5, fresh: 7}) == {TELEMETRY: 5, fresh: 7}
    assert core.gaps == [Gap(fresh, 0, 6, ("facts",))]
    assert core.resume({TELEMETRY: 8, fresh: 7}) == {TELEMETRY: 8, fresh: 7}
    assert core.gaps == [Gap(TELEMETRY, 5, 7, ("samples", "checkpoints"))]
    assert core.counts["records lost"] == 7 + 3


def test_a_gap_is_a_row_once_however_often_the_sink_starts_or_is_killed() -> None:
    """Killed before and after the row is there; the log is cut further before any table has moved on."""
    root, died = MemoryRoot(), []

    def life(oldest: int, dies: str = "") -> None:
        def fault(moment: str, name: str) -> None:
            if moment == dies:
                died.append(name)
                raise KeyboardInterrupt

        SinkCore(MemoryLake(root, fault)).resume({TELEMETRY: oldest}, now_us=9)

    for oldest, dies in ((3, "before"), (3, ""), (3, ""), (8, "after"), (8, ""), (8, "")):
        try:
            life(oldest, dies)
        except KeyboardInterrupt:
            continue
    assert died == ["gaps", "gaps"]
    rows = root.rows("gaps").select(["topic", "partition", "first", "last", "tables"]).to_pylist()
    every = "samples log checkpoints evals processes metrics"
    assert [tuple(row.values()) for row in rows] == [
        ("telemetry", 0, 0, 2, every),
        ("telemetry", 0, 3, 7, every),
    ]


def test_a_table_that_an_older_sink_did_not_have_is_filled_from_the_log_and_no_other_twice(
    tmp_path: Path, make: Any
) -> None:
    """A root of before ``metrics``: the log is read again for it, also what was of an unknown kind then."""
    said = events.MetricDefined(run="run", process="p0", seq=1, time_us=5, metric="x", goal="max")
    values = [make.frame(0, {"x": [1.0]}), events.encode(said), make.frame(2, {"x": [2.0]})]
    log = [Record(0, at, 0, value) for at, value in enumerate(values)]
    for lives in range(3):
        core = SinkCore(Lake(tmp_path))
        start = core.resume({TELEMETRY: 0})[TELEMETRY]
        core.take(TELEMETRY, log[start:])
        list(core.commits(empty=True))
        assert core.gaps == []
        counts = {name: pa_rows(tmp_path, name) for name in ("samples", "log", "metrics")}
        assert counts == {"samples": 2, "log": 3, "metrics": 1}, lives
        if lives == 0:
            shutil.rmtree(tmp_path / "metrics")


def pa_rows(root: Path, name: str) -> int:
    import deltalake

    return int(deltalake.DeltaTable(str(root / name)).to_pyarrow_table().num_rows)


def test_dead_letters_go_before_the_commit_that_passes_them(make: Any) -> None:
    core = SinkCore(MemoryLake(MemoryRoot()))
    spot = Spot("facts", UUID, 0)
    core.resume({spot: 0})
    core.take(spot, [Record(0, 0, 0, make.fact(0)), Record(0, 1, 0, b"\x00"), Record(0, 2, 0, make.fact(1))])
    assert [letter.record.offset for letter in core.letters] == [1]
    with pytest.raises(AssertionError, match="dead letters first"):
        next(core.commits())
    core.letters.clear()
    assert [committed.rows for committed in core.commits()] == [2]


@pytest.mark.parametrize("moment", ["before the commit", "after it was sent", "after the commit"])
def test_a_sink_killed_around_a_dead_letter_sends_the_same_bytes_again_and_none_of_the_good_ones_twice(
    make: Any, moment: str
) -> None:
    """Case 27 on the sink, over a kill: readers see one letter of each record, by its key."""
    values = [make.fact(0), b"\x00", make.fact(1), b'{"kind":"fact","v":1}', make.fact(2)]
    root, spot, sent = MemoryRoot(), Spot("facts", UUID, 0), []

    def dies(when: str, name: str) -> None:
        if (when, moment) in {("before", "before the commit"), ("after", "after the commit")}:
            raise KeyboardInterrupt

    def life(faults: Any) -> None:
        core = SinkCore(MemoryLake(root, faults))
        start = core.resume({spot: 0, TELEMETRY: 0})[spot]
        core.take(spot, [Record(0, at, 7_000 + at, value) for at, value in enumerate(values) if at >= start])
        sent.extend(encoded(letter) for letter in core.letters)
        core.letters.clear()
        if faults is dies and moment == "after it was sent":
            raise KeyboardInterrupt
        list(core.commits())

    with pytest.raises(KeyboardInterrupt):
        life(dies)
    life(lambda when, name: None)
    life(lambda when, name: None)
    assert len(sent) == (2 if moment == "after the commit" else 4)
    assert set(sent) == set(sent[:2])
    assert [key for key, _ in sent[:2]] == [f"sink/facts/{UUID}/0/{at}".encode() for at in (1, 3)]
    letter = events.decode(sent[0][1])
    assert isinstance(letter, events.DeadLetter)
    assert (letter.topic_uuid, letter.offset, letter.time_us, letter.value) == (UUID, 1, 7_001_000, b"\x00")
    assert [row["offset"] for row in root.rows("facts").to_pylist()] == [0, 1, 2]


# --- random lives of two sinks -------------------------------------------------------------------------


class Life:
    """A sink that reads a list of records, steps at a time."""

    def __init__(self, root: MemoryRoot, log: dict[Spot, list[bytes]], chance: random.Random) -> None:
        self.lake = MemoryLake(root, self._fault)
        self.core = SinkCore(self.lake)
        self._log, self._chance = log, chance
        self._next: dict[Spot, int] = {}
        self._commits: Iterator[Any] | None = None
        self.calm = False
        self.troubles = 0
        self.assign([])

    def _fault(self, moment: str, name: str) -> None:
        if not self.calm and self._chance.random() < 0.03:
            raise Unavailable(f"no space left {moment} the commit of {name}")

    def assign(self, partitions: list[int]) -> None:
        self._commits = None
        self._next = {}
        self._next = self.core.resume({spot: 0 for spot in self._log if spot.partition in partitions})

    def step(self) -> None:
        """Reads some records, or does one table of a commit; starts again after trouble."""
        try:
            if self._commits is None:
                for spot, at in self._next.items():
                    end = min(len(self._log[spot]), at + self._chance.randrange(4))
                    values = self._log[spot][at:end]
                    self.core.take(spot, [Record(spot.partition, at + n, 0, v) for n, v in enumerate(values)])
                    self._next[spot] = end
                if self._chance.random() < 0.5:
                    self._commits = self.core.commits(empty=self._chance.random() < 0.3)
            elif next(self._commits, None) is None:
                self._commits = None
        except (Conflict, Unavailable):
            self.troubles += 1
            self.assign(sorted({spot.partition for spot in self._next}))

    @property
    def done(self) -> bool:
        return self._commits is None and all(at == len(self._log[spot]) for spot, at in self._next.items())


def log_of(make: Any, chance: random.Random, partitions: int, count: int) -> dict[Spot, list[bytes]]:
    """Frames and events of one process per partition, some sent again, and facts likewise."""
    log: dict[Spot, list[bytes]] = {}
    for partition in range(partitions):
        frames, facts = [], []
        for seq in range(count):
            back = seq - chance.randrange(5) if chance.random() < 0.2 else seq
            for again in range(max(0, back), seq + 1):
                one = {"process": f"p{partition}"}
                frames.append(
                    make.frame(again, {"x": [float(again)]}, step=again, **one)
                    if again % 3
                    else make.started(again, **one)
                )
                facts.append(make.fact(again, id=f"{UUID}/{partition}/{again}/0"))
        log[Spot("telemetry", UUID, partition)] = frames
        log[Spot("facts", UUID, partition)] = facts
    return log


@pytest.mark.parametrize("seed", range(12))
def test_two_sinks_that_are_killed_moved_and_go_on_as_zombies_store_every_row_once(
    seed: int, make: Any
) -> None:
    chance = random.Random(seed)
    root, count, partitions = MemoryRoot(), 25, 2
    log = log_of(make, chance, partitions, count)
    lives = [Life(root, log, chance) for _ in range(2)]
    for _ in range(250):
        dice = chance.random()
        if dice < 0.02:  # killed between any two table commits, and started again
            lives[chance.randrange(2)] = Life(root, log, chance)
        elif dice < 0.06:  # a rebalance of which the other may not have heard: then it is a zombie
            mine = [p for p in range(partitions) if chance.random() < 0.7]
            lives[chance.randrange(2)].assign(mine)
        elif dice < 0.07:
            root.delete(chance.choice(["samples", "log", "facts"]))
        else:
            lives[chance.randrange(2)].step()
    last = Life(root, log, chance)
    last.calm = True
    last.assign(list(range(partitions)))
    while not last.done:
        last.step()
    list(last.core.commits(empty=True))
    samples = root.rows("samples").to_pylist()
    assert sorted((row["process"], row["step"]) for row in samples) == [
        (f"p{p}", step) for p in range(partitions) for step in range(count) if step % 3
    ]
    assert root.rows("processes").num_rows == partitions * len(range(0, count, 3))
    stored = root.rows("log").to_pylist()
    offsets = sorted((row["partition"], row["offset"]) for row in stored)
    assert offsets == [(s.partition, at) for s in log if s.topic == "telemetry" for at in range(len(log[s]))]
    found = sorted((row["partition"], row["offset"]) for row in root.rows("facts").to_pylist())
    assert found == [(p, at) for p in range(partitions) for at in range(count)]
