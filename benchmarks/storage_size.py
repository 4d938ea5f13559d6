"""Bytes per sample of real series in our tables, beside naive Parquet, Prometheus and TensorBoard.

    .venv/bin/python benchmarks/storage_size.py [--quick]

The mix (``realmix.py``) are real training, RL, rank-timing and monitoring series of ``$DRIFTLINE_REALDATA``
or ``../shared/realdata``. They go through the sink's own core and tables, frame by frame, in the order of
their times, and are then compacted. ``ours_bytes_per_sample`` has the whole files of ``samples``: all
columns, footers too, and ``ours_<column>`` what each column costs. With ``clock`` in the name: the same
with the digits of microseconds that a real clock adds. ``naive``: ``pyarrow.parquet.write_table`` as it
comes, rows as they arrived; ``_minimal`` has only run, rank, metric, step, time and value. Prometheus
(Debian's package, fetched with apt) has neither steps nor microseconds, TensorBoard stores values as 32-bit
floats: neither gives back what it was given. ``scan_..._cpu_ms``: DuckDB reads every column, the best of
alternated turns. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import realmix
from window_peers import CACHE, Missing, python

from driftline.records import Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake

UUID = "11111111-1111-1111-1111-111111111111"
PARTITIONS = 8
COMMIT_ROWS = 10_000
MINIMAL = ["run", "rank", "metric", "step", "time", "value"]
TURNS = 5


def store(mix: list[realmix.Process], root: Path) -> dict[str, Any]:
    """The mix through a sink's core; bytes per sample before and after compaction, and what compaction
    cost."""
    sent = [(when, at, body) for at, process in enumerate(mix) for when, body in realmix.frames_of(process)]
    sent.sort(key=lambda one: one[:2])  # stable: frames of one process stay in order
    lake = Lake(root)
    core = SinkCore(lake)
    spots = [Spot("telemetry", UUID, at) for at in range(PARTITIONS)]
    core.resume(dict.fromkeys(spots, 0))
    offsets = [0] * PARTITIONS
    for when, at, body in sent:
        part = at % PARTITIONS
        core.take(spots[part], [Record(part, offsets[part], when // 1000, body)])
        offsets[part] += 1
        if core.waiting > COMMIT_ROWS:
            _commit(core)
    _commit(core)
    samples = sum(len(process.value) for process in mix)
    assert sum(pq.read_metadata(file).num_rows for file in lake.files("samples")) == samples
    before = lake.size("samples") / samples
    cpu = time.process_time()
    lake.compact("samples", at_least=2, fully=True)
    cpu = time.process_time() - cpu
    return {
        "samples": samples,
        "frames": len(sent),
        "files": lake.files("samples"),
        "before_compaction": before,
        "bytes_per_sample": lake.size("samples") / samples,
        "compaction_cpu_s_per_million": cpu / samples * 1e6,
    }


def _commit(core: SinkCore) -> None:
    for _ in core.commits():
        pass


def columns(files: list[str], samples: int) -> dict[str, float]:
    """Bytes per sample of each column."""
    spent: dict[str, int] = defaultdict(int)
    for file in files:
        found = pq.read_metadata(file)
        for group in range(found.num_row_groups):
            for at in range(found.num_columns):
                column = found.row_group(group).column(at)
                spent[column.path_in_schema] += column.total_compressed_size
    return {name: size / samples for name, size in spent.items()}


def naive(rows: pa.Table, folder: Path) -> dict[str, float]:
    """pyarrow's defaults, in the order of arrival."""
    arrived = rows.sort_by([("time", "ascending")])
    pq.write_table(arrived, folder / "naive.parquet")
    pq.write_table(arrived.select(MINIMAL), folder / "minimal.parquet")
    return {
        name: (folder / f"{name}.parquet").stat().st_size / rows.num_rows for name in ("naive", "minimal")
    }


def scans(ours: list[str], theirs: Path) -> dict[str, float]:
    """CPU ms of reading every column."""
    best = {"ours": float("inf"), "naive": float("inf")}
    with duckdb.connect(config={"threads": 1}) as db:
        names = [row[0] for row in db.execute("DESCRIBE FROM read_parquet(?)", [str(theirs)]).fetchall()]
        told = ", ".join(f'bit_xor(hash("{name}"))' for name in names)
        answers = {}
        for _ in range(TURNS):
            for whose, files in (("ours", ours), ("naive", [str(theirs)])):
                began = time.process_time()
                answers[whose] = db.execute(f"SELECT {told} FROM read_parquet(?)", [files]).fetchall()
                best[whose] = min(best[whose], (time.process_time() - began) * 1e3)
        assert answers["ours"] == answers["naive"], "the rows are not the same, bit by bit"
    return best


def prometheus(rows: pa.Table, folder: Path) -> tuple[float, int]:
    """Bytes per sample in blocks that promtool makes, and how many samples it could not take (same
    millisecond)."""
    tool = _promtool()
    series: dict[tuple[str, int, str], dict[int, float]] = defaultdict(dict)
    lost = 0
    taken = (rows.column(name).to_pylist() for name in ("run", "rank", "metric", "value"))
    times = rows.column("time").cast(pa.int64()).to_pylist()
    for run, rank, metric, value, at in zip(*taken, times, strict=True):
        points = series[run, rank, metric]
        lost += at // 1000 in points
        points[at // 1000] = value
    text = folder / "openmetrics.txt"
    with text.open("w") as out:
        out.write("# TYPE sample gauge\n")
        for (run, rank, metric), points in series.items():
            for at, value in sorted(points.items()):
                labels = f'run="{run}",rank="{rank}",metric="{metric}"'
                out.write(f"sample{{{labels}}} {value!r} {at / 1000:.3f}\n")
        out.write("# EOF\n")
    blocks = folder / "blocks"
    command = [
        str(tool),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "--quiet",
        "--max-block-duration=10000h",
    ]
    done = subprocess.run([*command, str(text), str(blocks)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"promtool: {(done.stdout + done.stderr).strip()[-300:]}")
    size = sum(file.stat().st_size for file in blocks.rglob("*") if file.is_file())
    return size / (rows.num_rows - lost), lost


def _promtool() -> Path:
    """Debian's promtool, unpacked under ``.cache/peers``."""
    folder = CACHE / "prometheus"
    tool = folder / "usr" / "bin" / "promtool"
    if not tool.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg -x prometheus_*.deb ."]):
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            except OSError as error:
                raise Missing(f"{command[0]}: {error}") from error
            if done.returncode:
                raise Missing(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return tool


def tensorboard(file: Path, samples: int, folder: Path) -> float:
    done = subprocess.run(
        [*python("tensorboard"), str(file), str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing(f"tensorboard: {done.stderr.strip()[-300:]}")
    return sum(path.stat().st_size for path in folder.rglob("events*")) / samples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a third of the series")
    asked = parser.parse_args()
    where = realmix.folder()
    if where is None:
        print(json.dumps({"skipped": "no real series: set DRIFTLINE_REALDATA"}))
        return
    mix = realmix.processes(where, quick=asked.quick)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="driftline-bench-") as name:
        folder = Path(name)
        ours = store(mix, folder / "data")
        clock = store(realmix.with_clock(mix), folder / "clock")
        samples = ours["samples"]
        rows = pa.concat_tables([pq.read_table(file) for file in ours["files"]])
        plain = naive(rows, folder)
        spent = columns(ours["files"], samples)
        best = scans(ours["files"], folder / "naive.parquet")
        result |= {
            "samples": samples,
            "ours_bytes_per_sample": ours["bytes_per_sample"],
            "ours_minimal_bytes_per_sample": sum(spent[column] for column in MINIMAL),
            "ours_before_compaction_bytes_per_sample": ours["before_compaction"],
            "ours_clock_bytes_per_sample": clock["bytes_per_sample"],
            "naive_bytes_per_sample": plain["naive"],
            "naive_minimal_bytes_per_sample": plain["minimal"],
            **{f"ours_{column}": size for column, size in spent.items()},
            "compaction_cpu_s_per_million": ours["compaction_cpu_s_per_million"],
            "scan_ours_cpu_ms": best["ours"],
            "scan_naive_cpu_ms": best["naive"],
        }
        try:
            size, lost = prometheus(rows, folder)
            result |= {"prometheus_bytes_per_sample": size, "prometheus_lost": lost}
        except Missing as reason:
            result["prometheus_skipped"] = str(reason)
        try:
            tb = tensorboard(folder / "naive.parquet", samples, folder / "tensorboard")
            result["tensorboard_bytes_per_sample"] = tb
        except Missing as reason:
            result["tensorboard_skipped"] = str(reason)
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in result.items()}
    print(json.dumps(rounded))


if __name__ == "__main__":
    main()
