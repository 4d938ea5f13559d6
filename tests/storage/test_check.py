"""``driftline storage check``: nothing is wrong with what a sink wrote, and every kind of damage is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from driftline.records import Record
from driftline.storage.checking import check as checks
from driftline.storage.checking.check import check
from driftline.storage.checking.findings import Report
from driftline.storage.compaction.layout import writer_properties
from driftline.storage.core import SinkCore
from driftline.storage.lake import Lake
from driftline.storage.table_log import checkpoints, trim
from driftline.storage.tables import TABLES


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(finding.table, finding.kind) for finding in report.findings if finding.wrong}


def test_what_a_sink_wrote_is_right_before_and_after_compaction_and_retention(written: Any) -> None:
    assert check(written.root).findings == []
    lake = Lake(written.root)
    for name in ("samples", "log", "facts", "eval_items"):
        assert lake.compact(name, at_least=2)
    report = check(written.root)
    assert report.findings == []
    found = {verdict.table: verdict for verdict in report.verdicts}
    assert all(verdict.ok for verdict in report.verdicts)
    assert found["log"].rows == 2 * written.RECORDS
    assert found["eval_items"].rows == 2 * written.RECORDS * 3
    assert found["samples"].files == 1


def gone(root: Path, table: str, predicate: str) -> None:
    Lake(root).delete(table, predicate)  # type: ignore[arg-type]


def doubled(root: Path, table: str, rows: int) -> None:
    found = DeltaTable(str(root / table)).to_pyarrow_table()
    properties = writer_properties(table)  # type: ignore[arg-type]
    write_deltalake(str(root / table), found.slice(0, rows), mode="append", writer_properties=properties)


def damaged_file(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda root: damage(Path(sorted(Lake(root).files("samples"))[0]))


def with_statistics(path: Path) -> None:
    pq.write_table(pq.read_table(path), path, write_statistics=True)


def without_a_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["weight"]), path)


def torn_commit(root: Path) -> None:
    sorted((root / "samples" / "_delta_log").glob("*.json"))[-1].write_text('{"add')


DAMAGES: dict[str, tuple[Callable[[Path], None], set[tuple[str, str]]]] = {
    "frames": (lambda root: gone(root, "samples", '"offset" IN (8, 16, 21)'), {("samples", "missing")}),
    "a sample": (
        lambda root: gone(root, "samples", '"offset" = 8 AND ordinal = 3'),
        {("samples", "missing")},
    ),
    "records": (lambda root: gone(root, "log", '"offset" IN (2, 9, 10)'), {("log", "missing")}),
    "the end": (lambda root: gone(root, "log", '"offset" >= 38'), {("log", "missing")}),
    "the start": (lambda root: gone(root, "log", '"offset" < 2'), {("log", "missing")}),
    "events": (lambda root: gone(root, "checkpoints", '"offset" = 9'), {("checkpoints", "missing")}),
    "twice in log": (lambda root: doubled(root, "log", 3), {("log", "doubled"), ("log", "number")}),
    "samples twice": (lambda root: doubled(root, "samples", 20), {("samples", "doubled")}),
    "facts twice": (lambda root: doubled(root, "facts", 3), {("facts", "doubled")}),
    "items twice": (lambda root: doubled(root, "eval_items", 3), {("eval_items", "doubled")}),
    "events twice": (lambda root: doubled(root, "checkpoints", 1), {("checkpoints", "doubled")}),
    "a file": (damaged_file(Path.unlink), {("samples", "file"), ("samples", "missing")}),
    "half a file": (
        damaged_file(lambda path: path.write_bytes(path.read_bytes()[:200])),
        {("samples", "file"), ("samples", "missing")},
    ),
    "an empty file": (
        damaged_file(lambda path: path.write_bytes(b"")),
        {("samples", "file"), ("samples", "missing")},
    ),
    "a broken page": (
        damaged_file(lambda path: path.write_bytes(b"PAR1" + bytes(400) + path.read_bytes()[404:])),
        {("samples", "file"), ("samples", "missing")},
    ),
    "statistics on floats": (damaged_file(with_statistics), {("samples", "statistics")}),
    "a column": (damaged_file(without_a_column), {("samples", "file"), ("samples", "missing")}),
    "a commit": (torn_commit, {("samples", "log")}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_kind_of_damage_is_found_and_nothing_else(written: Any, damage: str) -> None:
    harm, expected = DAMAGES[damage]
    harm(written.root)
    report = check(written.root)
    assert kinds(report) >= expected
    assert {table for table, _ in kinds(report)} == {table for table, _ in expected}
    assert not report.ok
    assert all(finding.remedy for finding in report.findings)


def test_missing_rows_are_named_by_their_offsets(written: Any, make: Any) -> None:
    gone(written.root, "samples", '"partition" = 1 AND "offset" IN (7, 8, 16)')
    (bad,) = check(written.root).bad
    assert bad == ("samples", "missing", make.uuid, 1, ((7, 8), (16, 16)), 30)
    assert "3 offsets of partition 1, 30 rows: 7 to 8, 16" in bad.words()


def test_what_is_known_to_be_missing_is_no_fault(written: Any, make: Any) -> None:
    """A gap that was counted, and what retention deleted."""
    gone(written.root, "samples", '"partition" = 1 AND "offset" IN (7, 8)')
    lake = Lake(written.root)
    columns = {"topic": "telemetry", "topic_uuid": make.uuid, "partition": 1, "first": 7, "last": 8}
    rows = pa.Table.from_pylist([columns | {"tables": "samples log"}], TABLES["gaps"].schema)
    lake.commit("gaps", rows, {}, {})
    assert check(written.root).ok
    lake.delete("log", '"offset" < 20 AND "offset" <> 15', cutoff_us=20_000)
    lake.delete("samples", '"offset" < 20', cutoff_us=make.t0 + 100_000_000)  # they are of that age
    report = check(written.root)
    assert report.ok, report.findings
    lake.delete("log", '"offset" = 30')
    assert kinds(check(written.root)) == {("log", "missing")}


def test_a_table_that_is_behind_is_right_as_far_as_it_is(written: Any, make: Any) -> None:
    spot = written.spots[0]
    written.log[spot] += [make.frame(90, {"loss": [1.0]}, process="p0", run="run0")]
    core = SinkCore(Lake(written.root))
    core.resume({spot: 0})
    core.take(spot, [Record(0, 40, 40, written.log[spot][40])])
    next(core.commits())  # killed behind the commit of log
    assert check(written.root).ok


def test_files_beside_the_tables_are_named_and_no_fault(written: Any) -> None:
    folder = written.root / "samples"
    whole = Path(Lake(written.root).files("samples")[0]).read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.parquet").write_bytes(b"")
    (folder / ".tmp-part.parquet").write_bytes(whole[:100])
    (folder / "foreign.parquet").write_bytes(whole)
    (folder / "notes.txt").write_text("mine")
    (folder / "part-00000-11111111-1111-1111-1111-111111111111-c000.zstd.parquet").write_bytes(whole)
    (folder / "part-00000-2-c000.snappy.parquet").write_bytes(whole)
    report = check(written.root)
    assert report.ok
    found = {finding.kind.removeprefix("stray ") for finding in report.findings}
    assert found == {"torn", "empty", "unfinished", "foreign", "other", "ours", "delta"}


def test_quick_reads_footers_only(written: Any) -> None:
    damaged_file(lambda path: path.write_bytes(b"PAR1" + bytes(100) + path.read_bytes()[104:]))(written.root)
    assert check(written.root, quick=True).findings != check(written.root).findings


def test_a_check_that_takes_longer_than_a_sink_keeps_the_log_finds_nothing_wrong(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle reads positions from the log, and those of ten minutes ago are trimmed."""
    looked, lake, trimmed = checks.check_files, Lake(written.root), []

    def slow(root: Path, table: Any, **options: Any) -> Any:
        if not trimmed:
            for name in TABLES:
                DeltaTable(str(root / name)).create_checkpoint()
                lake.commit(name, None, {"other/0": -1}, {"other/0": 0})
                DeltaTable(str(root / name)).create_checkpoint()
                trimmed.append(trim(root / name, [path.name for path in checkpoints(root / name)]))
        return looked(root, table, **options)

    monkeypatch.setattr(checks, "check_files", slow)
    assert check(written.root).findings == []
    assert sum(trimmed) > 10
