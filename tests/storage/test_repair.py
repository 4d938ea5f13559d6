"""``driftline storage repair``: mends what is broken, deletes nothing, and brings rows back exactly once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from driftline.cli.app import app
from driftline.records import Record
from driftline.storage import catalog
from driftline.storage.checking import files
from driftline.storage.checking.check import check
from driftline.storage.checking.mend import plan, repair
from driftline.storage.checking.strays import QUARANTINE
from driftline.storage.compaction.layout import writer_properties
from driftline.storage.core import SinkCore
from driftline.storage.lake import Lake
from driftline.storage.listing import read_files
from driftline.storage.open import open_catalog
from driftline.storage.store import Conflict


def all_rows(root: Path) -> dict[str, list[Any]]:
    with open_catalog(root) as opened:
        return {
            name: opened.rows(f"SELECT {columns} FROM {name} ORDER BY ALL")
            for name, columns in {
                "samples": 'topic_uuid, "partition", "offset", ordinal, metric, value',
                "log": 'topic_uuid, "partition", "offset", outcome, seq',
                "checkpoints": '"partition", "offset", digest',
                "facts": "id",
                "evals": "id, metric",
            }.items()
        }


def everything(root: Path) -> dict[str, str]:
    """A digest of every file of the root that is more than a lock."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and path.stat().st_size
    }


def break_files(root: Path) -> list[Path]:
    """Cuts a file of samples, removes one of log and one of checkpoints, of other records: what ``log`` lacks
    nobody misses elsewhere."""
    lake = Lake(root)

    def first_offset(file: str) -> int:
        return int(pc.min(pq.read_table(file).column("offset")).as_py())

    of = {name: sorted(lake.files(name), key=first_offset) for name in ("samples", "log", "checkpoints")}
    cut, gone, other = Path(of["samples"][0]), Path(of["log"][-1]), Path(of["checkpoints"][0])
    cut.write_bytes(cut.read_bytes()[:300])
    gone.unlink()
    other.unlink()
    return [cut, gone, other]


def test_what_broken_files_held_is_named_and_stored_again_from_the_topic_exactly_once(
    written: Any, make: Any
) -> None:
    before = all_rows(written.root)
    cut, *_ = break_files(written.root)
    torn_bytes = cut.read_bytes()
    report, done = repair(written.root)
    assert {step.table for step in done} == {"samples", "log", "checkpoints"}
    assert {bad.table for bad in report.bad} == {"samples", "log", "checkpoints"}
    assert all(bad.kind == "missing" for bad in report.bad)
    assert (written.root / QUARANTINE / "samples" / cut.name).read_bytes() == torn_bytes
    lost = {(bad.table, bad.partition): bad.ranges for bad in report.bad}
    assert all(name in ("samples", "log", "checkpoints") for name, _ in lost)
    now = all_rows(written.root)
    assert all(set(now[name]) < set(before[name]) for name in ("samples", "log", "checkpoints"))

    topic = {(make.uuid, 0): 0, (make.uuid, 1): 0}
    report, done = repair(written.root, oldest=topic)
    assert done
    assert all("stores the rows again" in step.does for step in done)
    assert report.ok, report.findings
    written.sink()
    assert all_rows(written.root) == before
    assert check(written.root).ok
    assert repair(written.root, oldest=topic)[1] == []


@pytest.mark.parametrize(
    "trouble", [PermissionError(13, "Permission denied"), OSError(24, "Too many open files"), MemoryError()]
)
def test_a_file_that_cannot_be_looked_at_stays_in_its_table(
    written: Any, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    """Whoever repairs may lack rights or handles; the file is as it was."""

    def refused(*_: Any, **__: Any) -> Any:
        raise trouble

    before = everything(written.root)
    monkeypatch.setattr(files.pq, "ParquetFile", refused)
    report, done = repair(written.root)
    assert done == []
    assert any(found.kind == "file" and found.wrong for found in report.findings)
    assert everything(written.root) == before


def test_what_the_topic_no_longer_has_is_counted_as_lost_and_the_rest_comes_back(
    written: Any, make: Any
) -> None:
    before = all_rows(written.root)
    Lake(written.root).delete("samples", '"partition" = 0 AND "offset" IN (7, 8, 30, 31)')
    report, _ = repair(written.root, oldest={(make.uuid, 0): 20, (make.uuid, 1): 20})
    assert report.ok, report.findings
    written.sink(oldest=20)
    now = all_rows(written.root)
    assert now["samples"] == [row for row in before["samples"] if row[1] != 0 or row[2] not in (7, 8)]
    assert now["log"] == before["log"]
    assert check(written.root).ok
    with open_catalog(written.root) as opened:
        assert opened.rows('SELECT "partition", first, last, tables FROM gaps') == [(0, 7, 8, "samples")]


def test_rows_that_are_there_twice_come_to_be_there_once(written: Any, make: Any) -> None:
    from deltalake import DeltaTable, write_deltalake

    before = all_rows(written.root)
    rows = DeltaTable(str(written.root / "samples")).to_pyarrow_table()
    write_deltalake(str(written.root / "samples"), rows.slice(50, 60), mode="append")
    assert {bad.kind for bad in check(written.root).bad} == {"doubled"}
    report, _ = repair(written.root, oldest={(make.uuid, 0): 0, (make.uuid, 1): 0})
    assert report.bad == []
    written.sink()
    assert all_rows(written.root) == before


def test_a_sink_that_runs_beside_a_repair_stores_every_record_once(written: Any, make: Any) -> None:
    """It was at the end of the topic when its table was taken back, and goes on: refused, it begins again."""
    before = all_rows(written.root)
    running = SinkCore(Lake(written.root))
    running.resume(dict.fromkeys(written.spots, 0))
    Lake(written.root).delete("samples", '"partition" = 1 AND "offset" = 9')
    Lake(written.root).delete("samples", '"partition" = 1 AND "offset" = 16')
    repair(written.root, oldest={(make.uuid, 0): 0, (make.uuid, 1): 0})
    spot = next(spot for spot in written.spots if spot.topic == "telemetry" and spot.partition == 1)
    more = make.frame(written.RECORDS, {"loss": [3.0]}, step=1000, process="p1", run="run1")
    written.log[spot].append(more)
    running.take(spot, [Record(1, written.RECORDS, 99, more)])
    with pytest.raises(Conflict):
        list(running.commits())
    starts = running.resume(dict.fromkeys(written.spots, 0))
    assert starts[spot] <= 16
    for other, values in written.log.items():
        running.take(
            other, [Record(other.partition, at, at, values[at]) for at in range(starts[other], len(values))]
        )
    running.letters.clear()
    list(running.commits(empty=True))
    now = all_rows(written.root)
    assert now["samples"] == sorted([*before["samples"], (make.uuid, 1, written.RECORDS, 0, "loss", 3.0)])
    assert check(written.root).ok


def test_a_repair_that_is_killed_before_the_position_moves_is_finished_by_the_next(
    written: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    before = all_rows(written.root)
    Lake(written.root).delete("samples", '"partition" = 1 AND "offset" = 16')
    topic = {(make.uuid, 0): 0, (make.uuid, 1): 0}

    def killed(*_: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(DeltaTable, "create_write_transaction", killed)
        repair(written.root, oldest=topic)
    assert not check(written.root).ok
    assert repair(written.root, oldest=topic)[0].ok
    written.sink()
    assert all_rows(written.root) == before


def test_the_remedy_that_each_finding_names_mends_it(written: Any, make: Any) -> None:
    """Of rows that a topic still has: the one of ``--restore``; of statistics: a repair."""
    topic = {(make.uuid, 0): 0, (make.uuid, 1): 0}
    spot = written.spots[0]
    written.log[spot][16] = make.accepted(16, lease="lease-0-5", accepted_us=0)
    shutil.rmtree(written.root)
    written.sink(step=10)
    before = all_rows(written.root)
    for name, harm in (
        ("log", lambda lake: lake.delete("log", '"offset" IN (2, 9)')),
        ("samples", lambda lake: lake.delete("samples", '"offset" = 7 AND ordinal = 3')),
        ("checkpoints", lambda lake: lake.delete("checkpoints", '"offset" = 9')),
        ("log", lambda lake: copies(written.root, "log")),
        ("evals", lambda lake: copies(written.root, "evals")),
    ):
        harm(Lake(written.root))
        wrong = [finding for finding in check(written.root).findings if finding.wrong]
        assert {finding.table for finding in wrong} == {name}
        assert any("driftline storage repair --restore" in finding.remedy for finding in wrong), wrong
        assert repair(written.root, oldest=topic)[0].ok
        written.sink()
        assert all_rows(written.root) == before
    lake = Lake(written.root)
    assert lake.compact("samples", at_least=2, fully=True)
    (file,) = lake.files("samples")
    pq.write_table(pq.read_table(file), file, write_statistics=True)
    (finding,) = check(written.root).findings
    assert finding.remedy.startswith("driftline storage repair ")
    assert run("repair", "--yes", root=written.root).exit_code == 0
    assert check(written.root).findings == []
    assert all_rows(written.root) == before


def copies(root: Path, name: str) -> None:
    from deltalake import DeltaTable, write_deltalake

    rows = DeltaTable(str(root / name)).to_pyarrow_table()
    write_deltalake(str(root / name), rows, mode="append", writer_properties=writer_properties(name))  # type: ignore[arg-type]


# --- the commands ----------------------------------------------------------------------------------------


def run(*words: str, root: Path) -> Any:
    return CliRunner().invoke(app, ["storage", *words, "--root", str(root)])


def test_the_commands_say_what_is_wrong_mend_it_and_their_exit_codes_tell(written: Any) -> None:
    root = written.root
    good = run("check", root=root)
    assert good.exit_code == 0, good.output
    assert "as the offsets promise" in good.output
    cut, gone, _ = break_files(root)
    (root / "samples" / "x.parquet").write_bytes(b"")
    was = everything(root)
    for words in (("check",), ("check", "--quick"), ("repair", "--dry-run")):
        found = run(*words, root=root)
        assert found.exit_code == 1
        assert cut.name in found.output
        assert "offsets of partition" in found.output
    assert everything(root) == was, "none of these changes anything"
    told = json.loads(run("check", "--json", root=root).stdout)
    assert not told["ok"]
    assert {row["table"] for row in told["tables"] if not row["ok"]} == {"samples", "log", "checkpoints"}
    assert all(finding["remedy"] for finding in told["findings"])
    assert run("repair", root=root).exit_code == 1, "nobody answered the question"
    assert everything(root) == was
    mended = run("repair", "--yes", "--json", root=root)
    steps = json.loads(mended.stdout)["did"]
    assert {Path(step["does"].split()[1]).name for step in steps} >= {cut.name, gone.name}
    assert sorted(path.name for path in (root / QUARANTINE / "samples").iterdir()) == sorted(
        [cut.name, "x.parquet"]
    )
    again = run("repair", "--dry-run", root=root)
    assert "would" not in again.output
    assert run("check", root=root.parent / "nowhere").exit_code in (1, 2)


def test_compact_and_vacuum_leave_few_files_the_same_rows_and_a_catalog_that_works(written: Any) -> None:
    root, before = written.root, all_rows(written.root)
    told = {row["table"]: row for row in json.loads(run("compact", "--json", root=root).stdout)}
    assert told["samples"]["files_before"] > 2
    assert told["samples"]["files"] == 1
    assert all_rows(root) == before
    freed = {
        row["table"]: row
        for row in json.loads(run("vacuum", "--keep-hours", "0", "--json", root=root).stdout)
    }
    assert freed["samples"]["files_deleted"] == told["samples"]["files_before"]
    assert len(list((root / "samples").glob("*.parquet"))) == 1
    assert all_rows(root) == before
    import duckdb

    with duckdb.connect(str(root / catalog.CATALOG), read_only=True) as plain:
        assert plain.execute("SELECT count(*) FROM samples").fetchall() == [(len(before["samples"]),)]
    assert run("compact", "--table", "nothing", root=root).exit_code == 2
    assert run("vacuum", root=root).exit_code == 0
    assert check(root).ok
    assert read_files(root)["samples"]


def test_a_plan_says_what_a_repair_then_does(written: Any) -> None:
    break_files(written.root)
    _, planned = plan(written.root)
    _, done = repair(written.root)
    assert done == planned


@pytest.mark.embedded
def test_a_sink_stores_again_what_a_repair_asked_the_broker_for(quick: Any, make: Any) -> None:
    """The command on a real topic: a lost file, the broker asked for what it has, and a sink."""
    quick.send("telemetry", *(make.frame(seq, {"loss": [1.0] * 10}, step=seq * 10) for seq in range(20)))
    quick.drain()
    before = quick.rows('SELECT "partition", "offset", ordinal, value FROM samples ORDER BY ALL')
    assert len(before) == 200
    Path(Lake(quick.root).files("samples")[0]).unlink()
    kafka = ("--bootstrap", quick.kafka.bootstrap, "--prefix", quick.kafka.prefix)
    found = run("repair", "--restore", "--yes", *kafka, root=quick.root)
    assert found.exit_code == 0, found.output
    assert "stores the rows again" in found.output
    quick.drain()
    assert quick.rows('SELECT "partition", "offset", ordinal, value FROM samples ORDER BY ALL') == before
    assert run("check", root=quick.root).exit_code == 0
