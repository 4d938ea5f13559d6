"""Tables in an object store: each row once, readers beside writers, no extension, no secret in a line."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from typer.testing import CliRunner

import driftline
from driftline.cli.app import app
from driftline.clock import ManualClock
from driftline.errors import BadData, SettingsError, Unavailable
from driftline.records import Record
from driftline.settings import StorageSettings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.object_lake import LEASE, LEASE_US, ObjectLake
from driftline.storage.objects import address
from driftline.storage.open import open_catalog
from driftline.storage.store import Conflict
from driftline.storage.tables import TABLES
from driftline.storage.upkeep import Upkeep
from tests.support.object_store import SECRET, object_root


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that nothing lies under."""
    with object_root(monkeypatch) as address:
        yield address


def spots(make: Any) -> list[Spot]:
    return [Spot("telemetry", make.uuid, 0), Spot("facts", make.uuid, 0)]


def log(make: Any, count: int) -> dict[Spot, list[bytes]]:
    telemetry, facts = spots(make)
    return {
        telemetry: [make.frame(at, {"loss": [float("nan"), 2.0]}, step=at * 2) for at in range(count)],
        facts: [make.fact(at) for at in range(count)],
    }


def drain(lake: Any, values: dict[Spot, list[bytes]], *, step: int = 3) -> SinkCore:
    """A sink's life: from where the tables stand to the end, a commit every ``step`` records."""
    core = SinkCore(lake)
    starts = core.resume(dict.fromkeys(values, 0))
    for first in range(0, len(next(iter(values.values()))), step):
        for spot, found in values.items():
            at = range(max(first, starts[spot]), min(first + step, len(found)))
            core.take(spot, [Record(0, n, make_ms + n, found[n]) for n in at])
        list(core.commits(empty=True))
    return core


make_ms = 1_700_000_000_000


def test_rows_are_stored_once_read_by_every_way_and_compacted(root: str, make: Any) -> None:
    values = log(make, 12)
    drain(ObjectLake(root), values)
    lake = ObjectLake(root)
    drain(lake, values)  # the next sink finds all of it
    before = len(lake.files("samples"))
    assert before == 4
    for stage in ("written", "compacted", "deleted"):
        if stage == "compacted":
            assert lake.compact("samples", at_least=2, keep_hours=0)
            assert len(lake.files("samples")) == 1
            assert lake.version("samples", f"{make.uuid}/0") == 11
        elif stage == "deleted":
            assert lake.delete("samples", "step < 4", cutoff_us=5) == 4
            assert lake.version("samples", "retention") == 5
        left = 12 if stage != "deleted" else 10
        with driftline.open(root) as opened:
            assert opened.rows("SELECT count(*), count(*) FILTER (isnan(value)) FROM samples") == [
                (2 * left, left)
            ]
            assert opened.rows("SELECT count(*) FROM samples WHERE value > 100") == [(left,)]
            assert opened.rows("SELECT count(*), count(DISTINCT id) FROM facts") == [(12, 12)]
            assert opened.rows("SELECT count(*) FROM curves") == [(left * 2,)]
            assert opened.rows(
                "SELECT count(*) FROM duckdb_extensions() WHERE loaded AND extension_name = 'httpfs'"
            ) == [(0,)]
    answer = CliRunner().invoke(app, ["sql", "--root", root, "--csv", "SELECT count(*) AS n FROM log"])
    assert answer.stdout == "n\n12\n"


def test_of_two_writers_that_loaded_the_same_state_only_one_lands(root: str, make: Any) -> None:
    first, zombie = ObjectLake(root), ObjectLake(root)
    rows = pa.table(
        {c.name: pa.nulls(1, c.type) for c in TABLES["facts"].columns}, schema=TABLES["facts"].schema
    )
    first.commit("facts", rows, {"u/0": -1}, {"u/0": 5})
    for attempt in (rows, None):
        with pytest.raises(Conflict):
            zombie.commit("facts", attempt, {"u/0": -1}, {"u/0": 5})
    zombie.commit("facts", rows, {"u/1": -1}, {"u/1": 5})
    with pytest.raises(Conflict, match="u/0 is at 5"):
        zombie.commit("facts", rows, {"u/0": -1}, {"u/0": 5})
    with open_catalog(root) as opened:
        assert opened.rows("SELECT count(*) FROM facts") == [(2,)]


def test_writers_that_commit_at_once_all_land_once(root: str, make: Any) -> None:
    """Each next entry of the log can be put by one only; the others take the one behind it."""
    ObjectLake(root)

    def write(number: int) -> None:
        lake = ObjectLake(root)
        core = SinkCore(lake)
        spot = Spot("facts", make.uuid, number)
        core.resume({spot: 0})
        for at in range(5):
            core.take(spot, [Record(number, at, make_ms, make.fact(at, id=f"{make.uuid}/{number}/{at}/0"))])
            list(core.commits())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with open_catalog(root) as opened:
        assert opened.rows("SELECT count(*), count(DISTINCT id) FROM facts") == [(20, 20)]


def test_compactions_at_once_double_nothing_and_a_lease_runs_out(root: str, make: Any) -> None:
    values = log(make, 9)
    drain(ObjectLake(root), values)
    with ThreadPoolExecutor(3) as pool:
        lakes = [ObjectLake(root) for _ in range(3)]
        done = list(pool.map(lambda lake: lake.compact("samples", at_least=1), lakes))
    assert any(done)
    with open_catalog(root) as opened:
        assert opened.rows("SELECT count(*), count(DISTINCT step) FROM samples") == [(18, 18)]
    killed, clock = ObjectLake(root), ManualClock(now_us=make.t0)
    handle = killed._handles["samples"]
    handle.update_incremental()
    killed._move_lease(handle, make.t0)
    other = ObjectLake(root, clock=clock)
    assert not other.compact("samples", at_least=0)
    assert other.delete("samples", "step < 4") is None
    ahead = ObjectLake(root, clock=ManualClock(now_us=make.t0 + 5 * LEASE_US))
    assert ahead.delete("samples", "step < 4") is None, "its clock says nothing of the other's"
    clock.advance(LEASE_US)
    assert other.delete("samples", "step < 4") == 4
    assert other.version("samples", LEASE) == 0


def test_readers_go_on_while_a_sink_appends_and_compacts(root: str, make: Any) -> None:
    values = log(make, 30)
    lake = ObjectLake(root)
    counts: Counter[str] = Counter()
    lines: list[str] = []
    keeper = Upkeep(
        lake, StorageSettings(), counts=counts, say=lines.append, clock=ManualClock(now_us=make.t0)
    )
    done, wrong, seen = threading.Event(), [], [0]

    def read() -> None:
        with open_catalog(root) as opened:
            while not done.is_set():
                ((count, steps),) = opened.rows("SELECT count(*), count(DISTINCT step) FROM samples")
                if not (count == steps >= seen[-1]):
                    wrong.append((count, steps, seen[-1]))
                seen.append(count)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for end in range(3, 31, 3):
            drain(lake, {spot: found[:end] for spot, found in values.items()})
            keeper.compact(at_least=4)
            keeper.tidy()
            keeper.trim()
            keeper.renew_catalog()
    finally:
        done.set()
        thread.join()
    assert wrong == []
    keeper.finish()
    assert lines == []
    assert len(lake.files("samples")) == 1
    with open_catalog(root) as opened:
        assert opened.rows("SELECT count(*) FROM samples") == [(60,)]


def test_a_store_that_is_away_is_one_line_without_the_secret(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    for use, kind in ((ObjectLake, Unavailable), (open_catalog, BadData)):
        with pytest.raises(kind) as caught:
            use(root)
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)
        assert root in str(caught.value)


def test_a_store_that_fails_when_the_lease_is_asked_for_is_tried_again(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no conflict, which would end a sink that merges at its end, and no fault of ours."""
    lake = ObjectLake(root)

    def away(*_: Any) -> int:
        raise DeltaError("Generic S3 error: 503 Slow Down")

    monkeypatch.setattr(DeltaTable, "transaction_version", away)
    for rewrite in (lambda: lake.compact("samples", at_least=0), lambda: lake.delete("samples", "true")):
        with pytest.raises(Unavailable, match="503"):
            rewrite()


@pytest.mark.parametrize(
    "text",
    [
        "http://host/x",
        "s3://",
        "s3://key:secret@bucket/x",
        "ftp://bucket/x",
        "https://key:secret@bucket/x",
        "s3a://key:secret@bucket/x",
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_a_secret(text: str) -> None:
    with pytest.raises(SettingsError, match=r"storage\.root") as caught:
        address(text)
    assert "secret@" not in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        Lake(text)
    assert "secret@" not in str(caught.value)


def test_nothing_there_is_one_line(root: str) -> None:
    with pytest.raises(BadData, match="no tables in s3://"):
        open_catalog(root)
