"""Rows as files of other tools, and back again."""

from __future__ import annotations

import csv
import math
import os
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from driftline import events, frames
from driftline.cli.app import app
from driftline.errors import BadData, SettingsError, Unavailable
from driftline.importing import detect
from driftline.importing.load import Loading, before
from driftline.importing.reading import Options
from driftline.records import Record
from driftline.settings import Settings, StorageSettings
from driftline.storage import export
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.open import Catalog

UUID = "0" * 36
NAMES = ["loss", 'say "x", ü', "", "損失🙂", "a\nb"]
rng = np.random.default_rng(7)
VALUES = np.concatenate(
    [
        rng.integers(0, 2**63, 400, dtype=np.int64).view(np.float64),
        [0.1, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1 / 3, 1e22, 2.0**53],
    ]
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs of one name, with every kind of value."""
    core = SinkCore(Lake(tmp_path / "tables"))
    spot = Spot("telemetry", UUID, 0)
    core.resume({spot: 0})
    values = []
    for run in ("r1", "r2"):
        started = events.ProcessStarted(run=run, process=f"p{run}", seq=0, time_us=5, name="two of one name")
        values.append(events.encode(started))
        count = len(VALUES)
        frame = frames.Frame(
            run=run,
            process=f"p{run}",
            rank=3,
            seq=1,
            names=NAMES,
            metric=(np.arange(count) % len(NAMES)).astype(np.int16),
            step=np.arange(count),
            time_us=np.arange(count) * 1_000_001 + 1_700_000_000_000_000,
            value=VALUES,
            weight=np.ones(count),
        )
        values.append(frames.encode(frame))
    core.take(spot, [Record(0, at, at, value) for at, value in enumerate(values)])
    list(core.commits(empty=True))
    return tmp_path / "tables"


def bits(values: Any) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


def read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns_come_with_their_types_and_values_bit_for_bit(
    root: Path, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"out.{ending}"
    sql = export.question("samples", ["r1"], [])
    assert export.export(str(root), sql, path, export.kind_of(path, None)) == len(VALUES)
    table = read(path)
    assert bits(table["value"].to_pylist()) == bits(VALUES)
    assert table.schema.field("time").type == pa.timestamp("us", "UTC")
    assert table["metric"].to_pylist()[:5] == NAMES
    if ending == "parquet":
        columns = pq.ParquetFile(path).metadata.row_group(0)
        has = {
            columns.column(at).path_in_schema: columns.column(at).is_stats_set
            for at in range(columns.num_columns)
        }
        assert (has["value"], has["step"]) == (False, True)


def test_a_csv_tells_null_from_empty_text_and_nan_from_both(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    sql = """
        SELECT * FROM (VALUES
            (1, NULL, '', 'nan'::DOUBLE, '2024-12-06 00:00:00+03:30'::TIMESTAMPTZ, MAP {'p': 5e-1}),
            (2, '-inf'::DOUBLE, 'a"b', NULL, NULL, NULL)) AS t(n, x, s, y, z, m) ORDER BY n"""
    export.export(str(root), sql, path, "csv")
    assert path.read_text() == (
        '"n","x","s","y","z","m"\n1,,"",nan,"2024-12-05T20:30:00.000000Z","{""p"": 0.5}"\n2,-inf,"a""b",,,\n'
    )


def test_what_is_exported_can_be_imported_and_is_the_same_bit_for_bit(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    metrics = [name for name in NAMES if name]  # a name must have a letter
    export.export(str(root), export.question("samples", ["two of one name"], metrics), path, "csv")
    with path.open(newline="") as file:
        assert {row["run"] for row in csv.DictReader(file)} == {"r1", "r2"}
    again = Lake(tmp_path / "again")
    settings = Settings(storage=StorageSettings(root=str(again.root)))
    (found,) = detect.find(path, Options())
    opened = detect.open_source(found, Options(), lambda key: None)
    made = Loading(
        opened.source,
        opened.reading,
        opened.key,
        settings=settings,
        tables=again,
        before=before(again, opened.key),
        changed_s=time.time() - 3600,
    ).run()
    assert not made.tally.refused
    question = """SELECT name, metric, step, time, s.rank, value FROM samples s JOIN runs USING (run)
        WHERE metric <> '' AND {} ORDER BY s.run, step"""
    with Catalog(root) as old, Catalog(again.root) as new:
        was = old.rows(question.format("run = 'r1'"))
        now = new.rows(question.format("name = 'r1'"))
    assert [row[1:5] for row in now] == [row[1:5] for row in was]
    canonical = [math.nan if math.isnan(row[5]) else row[5] for row in was]  # text has one NaN
    assert bits([math.nan if math.isnan(row[5]) else row[5] for row in now]) == bits(canonical)


def test_a_file_is_whole_or_not_there_and_never_among_the_tables(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("before")
    with pytest.raises(BadData, match="nothing"):
        export.export(str(root), "FROM nothing", path, "csv")
    with pytest.raises(BadData):  # in the middle of the answer
        export.export(
            str(root), "SELECT CASE WHEN i > 200000 THEN error('no') END FROM range(300000) t(i)", path, "csv"
        )
    assert path.read_text() == "before"
    for inside in (root / "samples" / "out.csv", tmp_path / "x" / ".." / root.name / "samples" / "out.csv"):
        with pytest.raises(SettingsError, match="somewhere else"):
            export.export(str(root), "FROM samples", inside, "csv")
    (tmp_path / "folder").touch()
    with pytest.raises(Unavailable):
        export.export(str(root), "FROM samples", tmp_path / "folder" / "out.csv", "csv")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "out.csv", "tables"]
    assert export.export(str(root), "FROM facts", path, "csv") == 0
    assert path.read_text().startswith('"id","run"')


def test_the_format_is_told_by_the_ending_or_said() -> None:
    assert export.kind_of(Path("a.PARQUET"), None) == "parquet"
    assert export.kind_of(Path("a"), "arrow") == "arrow"
    for path, said in (("a.txt", None), ("a.csv", "xlsx")):
        with pytest.raises(SettingsError):
            export.kind_of(Path(path), said)


def test_a_link_is_followed_and_no_device_pipe_or_folder_is_taken_for_a_file(
    root: Path, tmp_path: Path
) -> None:
    real = tmp_path / "elsewhere" / "out.csv"
    real.parent.mkdir()
    real.write_text("before")
    (tmp_path / "link.csv").symlink_to(real)
    export.export(str(root), "SELECT 1 AS a", tmp_path / "link.csv", "csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert real.read_text() == '"a"\n1\n'
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(SettingsError, match="no file"):
            export.export(str(root), "SELECT 1 AS a", path, "csv")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_type_that_a_format_lacks_is_named_with_its_column(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(BadData, match=r"gap .* cast it"):
        export.export(str(root), "SELECT INTERVAL 1 DAY AS gap", path, "parquet")
    assert not path.exists()
    assert export.export(str(root), "SELECT INTERVAL 1 DAY AS gap", path, "arrow") == 1


def test_standard_output_gets_the_answer_and_nothing_else(root: Path) -> None:
    """As CSV unless said; a reader that has enough ends it without a word."""
    command = ["export", "-", "--root", str(root), "--run", "r1", "--metric", NAMES[0]]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 1 + math.ceil(len(VALUES) / len(NAMES))
    done = CliRunner().invoke(app, [*command, "--format", "arrow"])
    table = pa.ipc.open_file(pa.py_buffer(done.stdout_bytes)).read_all()
    assert table.num_rows == math.ceil(len(VALUES) / len(NAMES))
    code = "from driftline.cli import main; main()"
    many = ["export", "-", "--root", str(root), "--query", "FROM range(3000000)"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *many], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b'"range"\n'
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
