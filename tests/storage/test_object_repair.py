"""``driftline storage check|repair|compact|vacuum`` of tables in an object store: there are no locks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from driftline.cli.app import app
from driftline.records import Record
from driftline.storage import objects
from driftline.storage.checking import remote
from driftline.storage.checking.check import check
from driftline.storage.checking.mend import repair
from driftline.storage.core import SinkCore
from driftline.storage.object_lake import LEASE, ObjectLake
from driftline.storage.objects import files_below
from driftline.storage.open import open_catalog
from tests.storage.conftest import Written
from tests.support.object_store import object_root


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, make: Any) -> Iterator[Written]:
    with object_root(monkeypatch) as address:
        yield Written(address, make)


def run(*words: str, root: str) -> Any:
    return CliRunner().invoke(app, ["storage", *words, "--root", root])


def all_rows(root: str) -> dict[str, list[Any]]:
    with open_catalog(root) as opened:
        return {
            name: opened.rows(f"SELECT {columns} FROM {name} ORDER BY ALL")
            for name, columns in {
                "samples": 'topic_uuid, "partition", "offset", ordinal, metric, value',
                "log": 'topic_uuid, "partition", "offset", outcome, seq',
                "checkpoints": '"partition", "offset", digest',
            }.items()
        }


def everything(root: str) -> dict[str, str]:
    """A digest of each object."""
    files = files_below(root)
    found = files.get_file_info(pafs.FileSelector("", recursive=True))
    return {
        info.path: hashlib.sha256(files.open_input_file(info.path).read()).hexdigest()
        for info in found
        if info.type == pafs.FileType.File
    }


def first_offset(file: str) -> int:
    with objects.parquet(file) as opened:
        return int(min(opened.read(["offset"])["offset"].to_pylist()))


@pytest.mark.long
def test_what_lost_and_broken_objects_held_is_found_named_and_stored_again_exactly_once(
    stored: Written, make: Any
) -> None:
    root, before = stored.root, all_rows(stored.root)
    assert check(root).findings == []
    lake = ObjectLake(root)
    of = {name: sorted(lake.files(name), key=first_offset) for name in ("samples", "log", "checkpoints")}
    # of other records: what log lacks nobody misses elsewhere, until it is there again
    cut, gone, emptied = of["samples"][0], of["log"][-1], of["checkpoints"][0]
    names = [file.removeprefix(f"{root}/") for file in (cut, gone, emptied)]
    body = files_below(root).open_input_file(names[0]).read()
    objects.put(f"{root}/{names[0]}", [body[:300]])
    files_below(root).delete_file(names[1])
    objects.put(f"{root}/{names[2]}", [b""])
    objects.put(f"{root}/samples/foreign.parquet", [body])
    objects.put(f"{root}/samples/notes.txt", [b"mine"])
    fresh = "samples/part-00000-11111111-1111-1111-1111-111111111111-c000.zstd.parquet"
    objects.put(f"{root}/{fresh}", [body])  # perhaps of a commit on its way
    was = everything(root)
    for words in (("check",), ("repair", "--dry-run")):
        told = run(*words, "--json", root=root)
        assert told.exit_code == 1, told.output
        said = json.loads(told.stdout)
        wrong = {(one["table"], one["kind"]) for one in said["findings"] if one["wrong"]}
        assert wrong >= {("samples", "file"), ("log", "file"), ("checkpoints", "file")}
        assert {one["kind"] for one in said["findings"] if not one["wrong"]} == {
            "stray foreign",
            "stray other",
        }
        assert all(one["remedy"] for one in said["findings"])
    assert everything(root) == was, "neither changes anything"

    told = run("repair", "--yes", root=root)
    assert told.exit_code == 1, "rows are still missing"
    now = everything(root)
    aside = {path for path in now if path.startswith("quarantine/")}
    assert aside == {f"quarantine/{name}" for name in (names[0], names[2], "samples/foreign.parquet")}
    assert {now[path] for path in aside} <= {*was.values()}
    assert fresh in now
    assert {bad.kind for bad in check(root).bad} == {"missing"}

    topic = {(make.uuid, 0): 0, (make.uuid, 1): 0}
    report, done = repair(root, oldest=topic)
    assert report.ok, report.findings
    assert done
    stored.sink()
    assert all_rows(root) == before
    assert check(root).ok
    assert repair(root, oldest=topic)[1] == []

    told = {row["table"]: row for row in json.loads(run("compact", "--json", root=root).stdout)}
    assert (told["log"]["files"], told["log"]["compacted"]) == (1, True)
    freed = json.loads(run("vacuum", "--keep-hours", "0", "--json", root=root).stdout)
    assert next(row for row in freed if row["table"] == "log")["bytes_freed"] > 0
    assert all_rows(root) == before
    assert check(root).ok


def test_a_sink_that_commits_in_the_middle_of_a_repair_stores_every_record_once(
    stored: Written, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock keeps it out: the repair notices and begins again."""
    root = stored.root
    ObjectLake(root).delete("samples", '"partition" = 1 AND "offset" = 16')
    spot = next(spot for spot in stored.spots if spot.topic == "telemetry" and spot.partition == 1)
    came: list[str] = []

    def commit_more(when: str) -> None:
        if len(came) < 2 and when not in came:
            came.append(when)
            core = SinkCore(ObjectLake(root))
            starts = core.resume(dict.fromkeys(stored.spots, 0))
            at = len(stored.log[spot])
            step = 1000 + at
            stored.log[spot].append(make.frame(at, {"loss": [3.0]}, step=step, process="p1", run="run1"))
            core.take(spot, [Record(1, at, at, stored.log[spot][at]) for at in range(starts[spot], at + 1)])
            core.letters.clear()
            list(core.commits())

    delete, move = DeltaTable.delete, DeltaTable.create_write_transaction

    def slow_delete(handle: DeltaTable, predicate: str, **more: Any) -> Any:
        if '"offset" >=' in predicate:
            commit_more("before the deletion")
        return delete(handle, predicate, **more)

    def slow_move(handle: DeltaTable, *words: Any, **more: Any) -> Any:
        ids = {one.app_id for one in more["commit_properties"].app_transactions}
        if "before the deletion" in came and LEASE not in ids and "telemetry/1" in ids and len(came) < 2:
            commit_more("before the move")
        return move(handle, *words, **more)

    monkeypatch.setattr(DeltaTable, "delete", slow_delete)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", slow_move)
    report, _ = repair(root, oldest={(make.uuid, 0): 0, (make.uuid, 1): 0})
    assert came == ["before the deletion", "before the move"]
    assert report.ok, report.findings
    monkeypatch.setattr(DeltaTable, "delete", delete)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", move)
    stored.sink()
    assert check(root).findings == []
    with open_catalog(root) as opened:
        query = 'SELECT count(*), count(DISTINCT ("offset", ordinal)), max("offset") FROM samples'
        ((rows, distinct, last),) = opened.rows(f'{query} WHERE "partition" = 1')
    assert rows == distinct
    assert last == len(stored.log[spot]) - 1


def test_an_object_that_cannot_be_fetched_stays_in_its_table(
    stored: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be away, or refuse; the object is as it was."""

    def away(*_: Any, **__: Any) -> Any:
        raise OSError("Generic S3 error: 503 Slow Down")

    was = everything(stored.root)
    with monkeypatch.context() as patch:
        patch.setattr(remote, "parquet", away)
        assert check(stored.root).findings == [], "it was fetched whole"
        listed = files_below(f"{stored.root}/samples").get_file_info(pafs.FileSelector(""))

        class Away:
            def get_file_info(self, _: Any) -> Any:
                return listed

            open_input_file = away

        patch.setattr(
            remote, "files_below", lambda where: Away() if where.endswith("samples") else files_below(where)
        )
        report, done = repair(stored.root)
    assert done == []
    assert {finding.kind for finding in report.findings if finding.wrong} == {"file"}
    assert everything(stored.root) == was


def test_a_store_that_goes_away_during_a_check_is_one_line_that_says_so(
    stored: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just when the objects beside the tables' own are listed."""
    listed = remote._list

    def away(where: str) -> Any:
        if where.endswith("_delta_log"):
            return listed(where)
        raise OSError("connection refused")

    monkeypatch.setattr(remote, "_list", away)
    told = run("check", "--quick", root=stored.root)
    assert told.exit_code == 1
    assert "connection refused" in told.output
    assert "check again" in told.output
    assert "report" not in told.output
