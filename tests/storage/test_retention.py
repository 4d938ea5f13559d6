"""Retention: what is older goes, once and only once; positions, marks and all other tables stay."""

from __future__ import annotations

import fcntl
import itertools
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from driftline import config, events
from driftline.clock import ManualClock, SystemClock
from driftline.errors import Unavailable
from driftline.settings import StorageSettings
from driftline.storage import retention, upkeep
from driftline.storage.lake import Lake
from driftline.storage.patience import KNOWN_US
from driftline.storage.retention import MAX_TERMS, Range, cutoff, passes
from driftline.storage.store import Conflict
from driftline.storage.tables import FEEDS, TABLE_NAMES
from driftline.storage.upkeep import EVERY_US, FIRST_US, Upkeep

SECOND, DAY = 1_000_000, 86_400_000_000


class Keeper:
    """The upkeep of a store, with a clock that is moved by hand."""

    def __init__(self, store: Any, make: Any, *, lake: Lake | None = None, retention_us: int | None = DAY):
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.clock = ManualClock(now_us=make.t0)
        self._uuid = make.uuid
        self._upkeep = Upkeep(
            lake or store.lake,
            StorageSettings(retention_us=retention_us),
            counts=self.counts,
            say=self.lines.append,
            clock=self.clock,
        )

    def at(self, time_us: int) -> int:
        """Does what is due at ``time_us``; returns all that has expired so far."""
        self.clock.advance(time_us - self.clock.now_us())
        self._upkeep.expire(self._uuid, 1)
        return self.counts["rows expired"]

    def again(self, time_us: int) -> int:
        """The same, as if it were due."""
        self._upkeep._next_expiry.clear()
        return self.at(time_us)


@pytest.fixture(autouse=True)
def late_record(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As if a record came whenever something is due; else nothing expires."""
    if "real_log" not in request.fixturenames:
        monkeypatch.setattr(retention, "now", lambda lake, host_us: host_us)


@pytest.fixture
def real_log() -> None:
    """Nothing but what the test stores."""


def count(store: Any) -> dict[str, int]:
    tables = {"processes": "process_events"}
    return {name: store.ask(f"SELECT count(*) FROM {tables.get(name, name)}")[0][0] for name in TABLE_NAMES}


def positions(store: Any, make: Any) -> list[int]:
    lake = Lake(store.root)
    return [lake.version(name, f"{make.uuid}/0") for name in TABLE_NAMES]


def settle(store: Any, make: Any) -> None:
    """Moves the telemetry tables that got no rows on, as the sink does every 30 seconds."""
    app = f"{make.uuid}/0"
    newest = store.lake.version("log", app)
    for name in FEEDS["telemetry"]:
        if store.lake.version(name, app) < newest:
            store.lake.commit(name, None, {app: store.lake.version(name, app)}, {app: newest})


def marks(store: Any, make: Any, start: int = 10**9) -> Any:
    seen = Lake(store.root).seen(make.uuid, {0: start})
    return dict(seen.processes._seq)


@pytest.mark.parametrize(
    ("retention_us", "now_us", "expected"),
    [(None, 10, None), (3, 10, 7), (10, 10, None), (11, 10, None), (1, 2, 1)],
)
def test_the_cutoff_is_now_less_the_retention(
    retention_us: int | None, now_us: int, expected: int | None
) -> None:
    assert cutoff(retention_us, now_us) == expected


def test_old_samples_and_log_rows_go_and_all_other_tables_stay(store: Any, make: Any) -> None:
    store.put("telemetry", make.started(), make.accepted(0), b"\x00raw")
    store.put("windows", make.windows(0))
    store.put("facts", make.fact(0))
    store.put("alerts", make.alert(0))
    for seq in range(1, 4):
        store.put("telemetry", make.frame(seq, {"loss": [1.0, 2.0]}, step=seq * 2))
    settle(store, make)
    before, at = count(store), positions(store, make)
    assert Keeper(store, make).at(make.t0 + DAY + 4 * SECOND) == 2 + 5
    assert store.ask("SELECT step FROM samples ORDER BY 1") == [(4,), (5,), (6,), (7,)]
    assert store.ask('SELECT seq, "offset" FROM log') == [(3, 5)]
    assert count(store) == before | {"samples": 4, "log": 1}
    assert positions(store, make) == at
    assert store.ask("SELECT run FROM runs") == [("run",)]


def test_a_host_clock_that_jumps_ahead_deletes_nothing_that_is_young(
    store: Any, make: Any, real_log: None
) -> None:
    """Age counts from the newest record: a year ahead, a day of retention still is a day."""
    keeper = Keeper(store, make)
    assert keeper.at(make.t0 + 365 * DAY) == 0
    store.put("telemetry", make.frame(0, {"x": [1.0] * 3}, step=-DAY // SECOND - 2))
    store.put("telemetry", make.frame(1, {"x": [1.0] * 3}))
    assert keeper.again(make.t0 + 365 * DAY) == 3
    assert store.ask("SELECT step FROM samples ORDER BY 1") == [(0,), (1,), (2,)]
    assert count(store)["log"] == 2
    assert keeper.lines == []


def test_a_host_clock_that_is_behind_deletes_less(store: Any, make: Any, real_log: None) -> None:
    store.put("telemetry", make.frame(0, {"x": [1.0] * 3}, step=-2 * DAY // SECOND))
    store.put("telemetry", make.tick())
    settle(store, make)
    assert Keeper(store, make).again(make.t0 - DAY + 60 * SECOND) == 3
    assert Keeper(store, make).again(make.t0 - 2 * DAY) == 0


def test_the_bound_is_exact_to_the_microsecond(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0] * 5}))
    keeper = Keeper(store, make)
    keeper.at(make.t0 + DAY + 2 * SECOND)
    assert store.ask("SELECT min(step) FROM samples") == [(2,)]
    assert keeper.at(make.t0 + DAY + 2 * SECOND + EVERY_US) == 5


def test_nan_is_found_in_files_that_a_deletion_wrote(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0, math.nan, 2.0, math.nan, 3.0]}))
    before = store.lake.files("samples")
    Keeper(store, make).at(make.t0 + DAY + 2 * SECOND)
    (file,) = store.lake.files("samples")
    assert file not in before
    assert Path(before[0]).exists(), "running readers still use it"
    assert store.ask("SELECT step FROM samples WHERE isnan(value)") == [(3,)]
    assert store.ask("SELECT count(*) FROM samples WHERE value > 100") == [(1,)]
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {c.path_in_schema for c in columns if c.statistics is None} == {"value", "weight"}


def test_a_file_whose_rows_have_all_expired_is_dropped_and_none_is_rewritten(store: Any, make: Any) -> None:
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq * 10))
    before = store.lake.files("samples")
    Keeper(store, make).at(make.t0 + DAY + 15 * SECOND)
    assert len(store.lake.files("samples")) == 1
    assert set(store.lake.files("samples")) < set(before)


def test_the_newest_row_of_each_process_stays_however_old(store: Any, make: Any) -> None:
    """Else a restarted sink would take what a silent process sends again for new."""
    for process in ("a", "b"):
        store.put("telemetry", *[make.frame(seq, {"x": [1.0]}, process=process) for seq in (0, 1, 2, 2, 1)])
    settle(store, make)
    before = marks(store, make)
    assert before == {("run", "a"): 2, ("run", "b"): 2}
    keeper = Keeper(store, make)
    keeper.at(make.t0 + 400 * DAY)
    assert marks(store, make) == before
    assert store.ask("SELECT process, seq, outcome FROM log ORDER BY 1") == [
        ("a", 2, "stored"),
        ("b", 2, "stored"),
    ]
    store.put("telemetry", make.frame(3, {"x": [1.0]}, process="a"))
    settle(store, make)
    keeper.at(make.t0 + 401 * DAY)
    assert marks(store, make) == {("run", "a"): 3, ("run", "b"): 2}
    assert count(store)["log"] == 2


def test_log_rows_that_another_table_has_not_reached_stay_and_so_does_the_mark_before_them(
    store: Any, make: Any
) -> None:
    """samples stands at offset 0 and log at 2: a sink reads 1 and 2 again, and 1 must stay a duplicate."""
    store.put("telemetry", make.frame(0, {"x": [1.0]}))
    app = f"{make.uuid}/0"
    commit = Lake.commit

    def without_samples(lake: Lake, name: Any, *rest: Any) -> None:
        if name != "samples":
            commit(lake, name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "commit", without_samples)
        store.put("telemetry", make.frame(0, {"x": [1.0]}), make.frame(1, {"x": [2.0]}))
    for name in ("checkpoints", "evals", "processes"):
        store.lake.commit(name, None, {app: -1}, {app: 2})
    assert [store.lake.version(name, app) for name in ("samples", "log")] == [0, 2]
    before = [marks(store, make, start) for start in (1, 2, 3)]
    Keeper(store, make).at(make.t0 + 9 * DAY)
    assert [marks(store, make, start) for start in (1, 2, 3)] == before
    assert count(store)["log"] == 3


def test_more_processes_than_one_predicate_can_name(store: Any, make: Any) -> None:
    many = MAX_TERMS + 1_000
    for seq in (0, 1):
        store.put("telemetry", *[make.started(seq, process=f"p{at}") for at in range(many)])
    before = marks(store, make)
    store.put("telemetry", b"\x00raw")  # after them, so that they stand within what expires
    settle(store, make)
    keeper = Keeper(store, make)
    assert keeper.at(make.t0 + 9 * DAY) == many + 1
    assert keeper.lines == []
    assert marks(store, make) == before
    assert store.ask("SELECT count(*), min(seq), count(DISTINCT process) FROM log") == [(many, 1, many)]


def test_ranges_are_cut_and_packed_without_gap_or_overlap() -> None:
    whole = [Range("u", at, 5, 1_000, list(range(5 + at, 900, 3 + at))) for at in range(4)]
    for most in (21, 40, 300, 10_000):
        groups = passes(whole, most)
        assert all(sum(20 + len(part.kept) for part in group) <= most for group in groups)
        parts = [part for group in groups for part in group]
        for one in whole:
            mine = [part for part in parts if part.partition == one.partition]
            assert [mine[0].first, mine[-1].last] == [5, 1_000]
            assert all(a.last + 1 == b.first for a, b in itertools.pairwise(mine))
            assert [at for part in mine for at in part.kept] == one.kept
            assert all(part.first <= at <= part.last for part in mine for at in part.kept)
    assert len(passes(whole, 10_000)) == 1


def test_items_go_with_their_evaluation_and_so_do_earlier_ones_that_none_used(store: Any, make: Any) -> None:
    store.put("eval-items", *[make.items(lease, 0, 2) for lease in ("lost", "lease-0", "lease-1", "open")])
    store.put("telemetry", make.accepted(0), make.accepted(1, accepted_us=make.t0 + 5 * DAY))
    keeper = Keeper(store, make)
    keeper.at(make.t0 + DAY)
    assert count(store)["eval_items"] == 8
    keeper.at(make.t0 + 2 * DAY)
    left = "SELECT DISTINCT lease FROM eval_items ORDER BY 1"
    assert store.ask(left) == [("lease-1",), ("open",)]
    keeper.at(make.t0 + 7 * DAY)
    assert store.ask(left) == [("open",)]
    assert count(store)["evals"] == 2


def test_it_is_done_soon_after_the_start_and_then_once_an_hour(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"x": [1.0] * 5_000}))
    keeper = Keeper(store, make, retention_us=2 * SECOND)
    waits = (
        FIRST_US - 1,
        FIRST_US,
        FIRST_US + EVERY_US - 1,
        FIRST_US + EVERY_US,
        FIRST_US + EVERY_US + SECOND,
    )
    done = [keeper.at(make.t0 + wait) for wait in waits]
    first, hour = FIRST_US // SECOND - 2, EVERY_US // SECOND
    assert done == [0, first, first, first + hour, first + hour]


def test_without_a_retention_everything_stays(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"x": [1.0]}))
    assert Keeper(store, make, retention_us=None).at(make.t0 + 9_999 * DAY) == 0
    assert count(store)["samples"] == 1


def test_a_deletion_that_fails_is_one_line_holds_up_nothing_and_is_tried_again(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("telemetry", *[make.frame(seq, {"x": [1.0]}) for seq in range(3)])
    settle(store, make)
    delete = Lake.delete

    def full(lake: Lake, name: Any, predicate: str, **rest: Any) -> int:
        if name == "samples":
            raise Unavailable("table samples cannot be rid of old rows: No space left on device\nmore")
        return delete(lake, name, predicate, **rest)

    keeper = Keeper(store, make)
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "delete", full)
        assert keeper.at(make.t0 + 9 * DAY) == 2
    (line,) = keeper.lines
    assert "samples" in line
    assert "No space left" in line
    assert "\n" not in line
    assert keeper.at(make.t0 + 9 * DAY + KNOWN_US - 1) == 2
    assert keeper.at(make.t0 + 9 * DAY + KNOWN_US) == 5
    assert keeper.lines == [line, "sink: retention of table samples works again"]


def test_a_file_that_is_missing_is_one_line(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"x": [1.0]}))
    for file in (*store.lake.files("log"), *store.lake.files("samples")):
        Path(file).unlink()
    keeper = Keeper(store, make)
    keeper.at(make.t0 + 9 * DAY)
    assert ["samples" in keeper.lines[0], "log" in keeper.lines[1]] == [True, True]


def test_it_stays_away_while_another_compacts(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"x": [1.0]}))
    keeper = Keeper(store, make)
    with (store.root / "samples" / "_compacting").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert keeper.at(make.t0 + 9 * DAY) == 0
    assert keeper.at(make.t0 + 9 * DAY + EVERY_US) == 1


def test_deletions_and_compactions_at_once_double_and_lose_nothing(store: Any, make: Any) -> None:
    """The row-doubling trap of delta-rs, with handles that are all stale."""
    for seq in range(8):
        store.put("telemetry", make.frame(seq, {"loss": [float(seq)] * 4}, step=seq * 4))
    lakes = [Lake(store.root) for _ in range(4)]
    keepers = [Keeper(store, make, lake=lake) for lake in lakes]

    def work(at: int) -> None:
        for _ in range(4):
            keepers[at].again(make.t0 + DAY + 6 * SECOND)
            lakes[at].compact("samples", at_least=1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    Keeper(store, make).at(make.t0 + DAY + 6 * SECOND)
    assert store.ask("SELECT count(*), count(DISTINCT step), min(step) FROM samples") == [(26, 26, 6)]
    assert all(keeper.lines == [] for keeper in keepers)


def test_an_append_after_a_deletion_by_another_is_refused_once_and_then_lands(store: Any, make: Any) -> None:
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"x": [1.0]}, step=seq))
    stale, app = Lake(store.root), f"{make.uuid}/0"
    Keeper(store, make).at(make.t0 + DAY + 2 * SECOND)
    rows = pq.read_table(store.lake.files("samples")[0])
    with pytest.raises(Conflict):
        stale.commit("samples", rows, {app: 2}, {app: 3})
    stale.reload()
    stale.commit("samples", rows, {app: 2}, {app: 3})
    assert store.ask("SELECT step FROM samples ORDER BY 1") == [(2,), (2,)]
    assert stale.compact("samples", at_least=1)
    assert store.ask("SELECT step FROM samples ORDER BY 1") == [(2,), (2,)]


def test_old_files_go_an_hour_later_though_nothing_else_is_deleted(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("telemetry", make.frame(0, {"x": [1.0] * 4}))
    keeper = Keeper(store, make)
    keeper.at(make.t0 + DAY + 2 * SECOND)
    folder = store.root / "samples"
    assert len(list(folder.glob("*.parquet"))) == 2
    vacuum = Lake.vacuum
    monkeypatch.setattr(Lake, "vacuum", lambda lake, name: vacuum(lake, name, keep_hours=0))
    keeper.again(keeper.clock.now_us())
    assert len(list(folder.glob("*.parquet"))) == 1
    assert count(store)["samples"] == 2


@pytest.mark.embedded
def test_a_sink_restarted_after_a_deletion_neither_doubles_nor_loses(
    quick: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also deletes while no rows come, and says how many."""
    now_ms = SystemClock().now_us() // 1000
    sent = [make.frame(seq, {"x": [float(seq)]}, step=seq) for seq in range(5)]
    quick.send("telemetry", make.started(0, process="silent"), *sent, at_ms=now_ms - 600_000)
    quick.send("telemetry", make.tick(now_ms * 1000), at_ms=now_ms)  # so that the log's clock is there, too
    quick.drain()
    telemetry = f"{quick.uuids[quick.kafka.topics['telemetry']]}/0"

    def versions() -> list[int]:
        lake = Lake(quick.root)
        return [lake.version(name, telemetry) for name in ("samples", "log", "processes")]

    before = versions()
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "FIRST_US", 0)
        with quick.sink(retention_us=300 * SECOND):
            quick.wait_for(lambda: quick.rows("SELECT count(*) FROM log") == [(3,)])
    assert any("rows expired 9" in line for line in quick.lines), quick.lines
    assert quick.rows("SELECT count(*) FROM samples") == [(0,)]
    assert versions() == before == [6, 6, 6]
    fresh = [make.frame(seq, {"x": [float(seq)]}, step=seq) for seq in range(5, 8)]
    quick.send("telemetry", *sent, make.started(0, process="silent"), *fresh)
    quick.drain()
    assert quick.rows("SELECT step FROM samples ORDER BY 1") == [(5,), (6,), (7,)]
    assert quick.rows("SELECT outcome, count(*) FROM log GROUP BY 1 ORDER BY 1") == [
        ("duplicate", 6),
        ("stored", 6),
    ]
    assert quick.rows("SELECT count(*) FROM process_events") == [(1,)]


def test_configurations_stay_in_the_log(store: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay of what is younger needs the one that held."""
    body = config.encode(config.PipelineConfig())
    event = events.ConfigChanged(
        worker="w", time_us=make.t0, digest=config.digest(body), body=msgspec.Raw(body)
    )
    store.put("telemetry", make.tick(), events.encode(event), make.tick())
    monkeypatch.setattr(store.lake, "version", lambda name, app: 100)  # all tables have these records
    assert Keeper(store, make).at(make.t0 + 3 * DAY) == 2
    assert store.ask("SELECT kind FROM log") == [("config_changed",)]
