"""``driftline storage check`` after retention: what it took is not missing and is not stored again; what was
lost beside it is still found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from driftline.records import Record
from driftline.storage import retention
from driftline.storage.checking import check as checks
from driftline.storage.checking.check import check
from driftline.storage.checking.mend import repair
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.tables import TABLES

SECOND = 1_000_000
FRAMES = 12


def expire(root: Path, make: Any, cutoff_us: int, tables: Any = retention.EXPIRING) -> None:
    """What the sink's retention does at the moment at which it takes all before ``cutoff_us``."""
    lake = Lake(root)
    for name in tables:
        for old in retention.expired(lake, name, cutoff_us, make.uuid, 1):
            lake.delete(name, old.predicate, cutoff_us=cutoff_us, upto=old.upto)


def write(root: Path, make: Any, values: dict[Spot, list[tuple[int, bytes]]]) -> None:
    """A sink over records of these times (microseconds), three to a commit."""
    core = SinkCore(Lake(root))
    starts = core.resume(dict.fromkeys(values, 0))
    for spot, found in values.items():
        records = [
            Record(spot.partition, at, time_us // 1000, value) for at, (time_us, value) in enumerate(found)
        ]
        for first in range(starts[spot], len(records), 3):
            core.take(spot, records[first : first + 3])
            list(core.commits(empty=True))


def samples_at(make: Any, seq: int, times: list[int], **changes: Any) -> bytes:
    """A frame whose samples were logged at these seconds after the beginning."""
    time_us = np.array([make.t0 + second * SECOND for second in times])
    return make.frame(seq, {"loss": [float(at) for at in range(len(times))]}, time_us=time_us, **changes)


_ORIGINAL: list[Path] = []


@pytest.fixture
def root(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, make: Any) -> Path:
    """Written once, and a copy of it for each test."""
    if not _ORIGINAL:
        _ORIGINAL.append(tmp_path_factory.mktemp("expiring") / "data")
        write_frames(_ORIGINAL[0], make)
    shutil.copytree(_ORIGINAL[0], tmp_path / "data")
    return tmp_path / "data"


def write_frames(root: Path, make: Any) -> None:
    """Frames of four samples, ten seconds apart, one frame every ten seconds; numbers 3 and 7 lay in a spool
    for long, and the times of number 9 are out of order."""
    times = {at: [10 * at, 10 * at + 2, 10 * at + 4, 10 * at + 6] for at in range(FRAMES)}
    times |= {3: [-900, -800, -700, -600], 7: [-500, -400, 71, 72], 9: [96, 30, 93, 98]}
    spot = Spot("telemetry", make.uuid, 0)
    values = [(make.t0 + at * 10 * SECOND, samples_at(make, at, times[at])) for at in range(FRAMES)]
    write(root, make, {spot: values})


def test_at_whatever_time_retention_runs_nothing_that_it_took_is_missing_or_restored(
    root: Path, make: Any
) -> None:
    """It goes on through frames that it takes, cuts and leaves, as it does from hour to hour."""
    for second in (-1000, -650, -450, 3, 31, 72, 94, 97, 500):
        expire(root, make, make.t0 + second * SECOND)
        assert check(root).findings == []
    before = Lake(root).files("samples")
    report, done = repair(root, oldest={(make.uuid, 0): 0})
    assert (report.ok, done) == (True, [])
    assert Lake(root).files("samples") == before


@pytest.mark.parametrize("offset", [5, 7, 9, FRAMES - 1])
def test_a_frame_that_is_lost_although_it_is_young_enough_is_found_beside_retention(
    root: Path, make: Any, offset: int
) -> None:
    """Numbers 3 (too old) and 7 (half of it) are gone in truth."""
    Lake(root).delete("samples", f'"offset" = {offset}')
    expire(root, make, make.t0 + 45 * SECOND)
    (bad,) = check(root).bad
    assert (bad.table, bad.kind, bad.ranges) == ("samples", "missing", ((offset, offset),))


def test_of_a_frame_that_retention_cut_the_newest_sample_is_promised(root: Path, make: Any) -> None:
    expire(root, make, make.t0 + 45 * SECOND)
    Lake(root).delete("samples", '"offset" = 7 AND ordinal = 3')
    assert [bad.ranges for bad in check(root).bad] == [((7, 7),)]


@pytest.mark.parametrize("lost", ["offset >= 7", "offset >= 3 AND offset < 9", "true"])
def test_rows_of_the_log_that_are_lost_are_found_beside_retention(root: Path, make: Any, lost: str) -> None:
    """Also if no row is left that is too young to expire, as where a table has one file only."""
    expire(root, make, make.t0 + 65 * SECOND)
    Lake(root).delete("log", lost)
    (bad,) = [bad for bad in check(root).bad if bad.table == "log"]
    assert (bad.kind, bad.ranges) == ("missing", ((7, 8 if "9" in lost else FRAMES - 1),))


@pytest.mark.parametrize("instant", [2**63 - 1, -(2**63)])
def test_times_that_no_calendar_has_hide_no_loss_beside_retention(
    tmp_path: Path, make: Any, instant: int
) -> None:
    """One sample of a frame has such a time, as a process may log it."""
    times = np.array([make.t0 + 70 * SECOND, instant, make.t0 + 80 * SECOND])
    frames = [
        make.frame(at, {"loss": [1.0, 2.0, 3.0]}, time_us=times if at == 1 else times[[0, 0, 2]])
        for at in range(3)
    ]
    spot = Spot("telemetry", make.uuid, 0)
    write(tmp_path, make, {spot: [(make.t0 + 90 * SECOND, frame) for frame in frames]})
    expire(tmp_path, make, make.t0 + 75 * SECOND)
    assert check(tmp_path).findings == []
    Lake(tmp_path).compact("log", at_least=1)
    assert check(tmp_path).findings == []
    Lake(tmp_path).delete("samples", '"offset" = 1')
    assert [bad.ranges for bad in check(tmp_path).bad] == [((1, 1),)]


@pytest.mark.parametrize("name", ["samples", "log", "windows"])
def test_retention_that_runs_while_the_tables_are_read_makes_nothing_missing(
    root: Path, make: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes just before the log of each table in turn is read."""
    load, ran = checks.load, []

    def interrupted(where: Any, table: Any) -> Any:
        if table == name:
            expire(root, make, make.t0 + 65 * SECOND)
            ran.append(name)
        return load(where, table)

    monkeypatch.setattr(checks, "load", interrupted)
    assert check(root).findings == []
    assert ran


@pytest.mark.parametrize("tables", [("samples",), ("log",)])
def test_retention_that_has_come_through_some_tables_only_is_no_fault(
    root: Path, make: Any, tables: Any
) -> None:
    """The disk was full, or a compaction held the others, so each table has a cutoff of its own."""
    expire(root, make, make.t0 + 65 * SECOND, tables)
    assert check(root).findings == []
    expire(root, make, make.t0 + 25 * SECOND, [name for name in retention.EXPIRING if name not in tables])
    assert check(root).findings == []


def test_a_retention_that_was_made_longer_does_not_bring_back_what_the_shorter_one_took(
    root: Path, make: Any
) -> None:
    expire(root, make, make.t0 + 80 * SECOND)
    expire(root, make, make.t0 + 5 * SECOND)
    assert Lake(root).version("samples", "retention") == make.t0 + 80 * SECOND
    assert check(root).findings == []


def test_a_broker_whose_clock_was_set_back_leaves_no_hole_that_counts(tmp_path: Path, make: Any) -> None:
    """A record that is older than the one before it expires before it."""
    spot = Spot("telemetry", make.uuid, 0)
    at = [0, 10, 20, 40, 30, 41, 50]
    write(
        tmp_path,
        make,
        {spot: [(make.t0 + s * SECOND, samples_at(make, n, [s])) for n, s in enumerate(at)]},
    )
    expire(tmp_path, make, make.t0 + 35 * SECOND)
    assert check(tmp_path).findings == []


def test_rows_of_a_version_that_did_not_note_the_times_are_not_called_missing_after_retention(
    root: Path, make: Any
) -> None:
    lake = Lake(root)
    old = pa.Table.from_batches(lake._handles["log"].to_pyarrow_table().to_batches())
    lake.delete("log", "true")
    names = ("oldest", "newest")
    for name in names:
        at = old.schema.get_field_index(name)
        old = old.set_column(at, old.schema.field(at), pa.nulls(old.num_rows, old.schema.field(at).type))
    lake.commit("log", old, {}, {})
    assert check(root).findings == []
    expire(root, make, make.t0 + 65 * SECOND)
    assert check(root).findings == []


def accepted(make: Any, lease: str, *, second: int, asked: int | None = None) -> bytes:
    at = make.t0 + second * SECOND
    asked_us = at if asked is None else make.t0 + asked * SECOND
    return make.accepted(second, lease=lease, accepted_us=at, requested_us=asked_us)


@pytest.fixture
def items(tmp_path: Path, make: Any) -> Path:
    """Evaluations of 100 items. "long" and "short" were made side by side, "late" was accepted long after its
    items came, "new" lies behind."""
    telemetry, evaluated = Spot("telemetry", make.uuid, 0), Spot("eval-items", make.uuid, 0)
    sent = [("long", 0, 40), ("short", 0, 100), ("late", 0, 100), ("long", 40, 60), ("last", 0, 100)]
    sent += [("new", 0, 100)]
    answers = [("short", 30, 5), ("last", 60, 50), ("long", 70, 10), ("late", 300, 20), ("new", 400, 350)]
    write(
        tmp_path,
        make,
        {
            evaluated: [(make.t0, make.items(*one)) for one in sent],
            telemetry: [
                *(
                    (make.t0 + second * SECOND, accepted(make, lease, second=second, asked=asked))
                    for lease, second, asked in answers
                ),
                (make.t0 + 2000 * SECOND, make.tick()),
            ],
        },
    )
    return tmp_path


def test_items_that_retention_took_are_not_missing(items: Path, make: Any) -> None:
    young = {"short": 30, "last": 60, "long": 70, "late": 300, "new": 400}
    for second in (0, 31, 65, 80, 301, 401):
        expire(items, make, make.t0 + second * SECOND, ["eval_items"])
        assert check(items).findings == []
        left = Lake(items)._handles["eval_items"].to_pyarrow_table()["lease"].to_pylist()
        assert {lease for lease, accepted in young.items() if accepted >= second} <= {*left}, "they stay"


def test_items_of_a_young_evaluation_that_are_lost_are_found_beside_retention(items: Path, make: Any) -> None:
    expire(items, make, make.t0 + 65 * SECOND)
    Lake(items).delete("eval_items", "lease = 'new' AND position > 50")
    (found,) = [finding for finding in check(items).findings if finding.wrong]
    assert (found.table, found.kind) == ("eval_items", "missing")
    assert "49 items" in found.says


def test_items_that_the_broker_deleted_before_a_sink_came_are_counted_and_not_missing(
    items: Path, make: Any
) -> None:
    lake = Lake(items)
    lake.delete("eval_items", "lease = 'last'")
    assert not check(items).ok
    lost = {"topic": "eval-items", "topic_uuid": make.uuid, "partition": 0, "first": 4, "last": 4}
    lost |= {"tables": "eval_items", "found": make.t0 + 90 * SECOND}
    lake.commit("gaps", pa.Table.from_pylist([lost], TABLES["gaps"].schema), {}, {})
    assert check(items).findings == []
    lake.delete("eval_items", "lease = 'new' AND position = 3")
    assert not check(items).ok


def test_files_that_are_merged_and_gone_while_they_are_read_make_nothing_missing(
    root: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long check beside a sink whose clean-up comes before it has read them."""
    looked = checks.check_files
    rounds = []

    def interrupted(where: Any, table: Any, **options: Any) -> Any:
        if table.name == "samples" and not rounds:
            rounds.append(1)
            assert Lake(root).compact("samples", at_least=2, keep_hours=0)
        return looked(where, table, **options)

    monkeypatch.setattr(checks, "check_files", interrupted)
    assert check(root).findings == []
    assert rounds
