"""A disk that is really full (case 39): a small volume, filled to the byte wherever a sink writes.

Nothing is lost, nothing is stored twice, a reader sees whole commits only, one line says what to do, and all
goes on by itself when there is room.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import numpy as np
import pytest

from driftline.clock import SystemClock
from driftline.errors import BadData, Unavailable
from driftline.records import Record
from driftline.settings import StorageSettings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.tables import TABLE_NAMES
from driftline.storage.upkeep import Upkeep

PAGE = 4096


class Volume:
    """A file system of its own in memory. ``data`` is a folder on it."""

    def __init__(self, place: Path, *, megabytes: int) -> None:
        self.place = place
        self.data = place / "data"
        self._ballast = place / "ballast"
        self._mount(f"size={megabytes}m")

    def _mount(self, options: str) -> None:
        if not sys.platform.startswith("linux"):
            pytest.skip("no small volume: tmpfs is of Linux")
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        if done.returncode:
            pytest.skip(f"no small volume: mounting is refused here ({done.stderr.strip()})")

    def leave(self, free: int | None) -> None:
        """Fills it until so many bytes are free; None takes the filling away."""
        self._ballast.unlink(missing_ok=True)
        if free is not None:
            found = os.statvfs(self.place)
            self._ballast.write_bytes(bytes(max(0, found.f_bavail * found.f_frsize - free)))

    def grow(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", self.place], check=True, timeout=30)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.place], check=True, timeout=30)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    place = tmp_path / "volume"
    place.mkdir()
    with contextlib.closing(Volume(place, megabytes=5)) as made:
        yield made


class Work:
    """What a sink does, without Kafka: a log of two topics, the tables, and their upkeep."""

    ROWS = 200

    def __init__(self, root: Path, make: Any, rows: int = ROWS) -> None:
        self._rows = rows
        self.lake = Lake(root)
        self.core = SinkCore(self.lake)
        self.lines: list[str] = []
        settings = StorageSettings(root=str(root))
        self.upkeep = Upkeep(
            self.lake, settings, counts=Counter(), say=self.lines.append, clock=SystemClock()
        )
        self._make = make
        self._logs: dict[Spot, list[bytes]] = {
            Spot("telemetry", make.uuid, 0): [],
            Spot("windows", make.uuid, 0): [],
        }
        self._random = np.random.default_rng(1)
        self.resume()

    def resume(self) -> None:
        for spot, start in self.core.resume(dict.fromkeys(self._logs, 0)).items():
            self._take(spot, start)

    def add(self) -> None:
        """One more frame, of values that cannot be compressed, and one more window."""
        telemetry, windows = self._logs
        seq = len(self._logs[telemetry])
        frame = self._make.frame(seq, {"loss": list(self._random.random(self._rows))}, step=seq * self._rows)
        self._logs[telemetry].append(frame)
        self._logs[windows].append(self._make.windows(seq))
        for spot in self._logs:
            self._take(spot, seq)

    def _take(self, spot: Spot, start: int) -> None:
        values = self._logs[spot]
        self.core.take(
            spot, [Record(0, at, self._make.t0 // 1000, values[at]) for at in range(start, len(values))]
        )

    @property
    def frames(self) -> int:
        return len(next(iter(self._logs.values())))

    def commit(self) -> str:
        """Commits all that waits; what was wrong, or nothing."""
        try:
            list(self.core.commits())
        except Unavailable as error:
            return str(error)
        return ""


def stored(root: Path) -> dict[str, int]:
    """Frames in each table. Whole commits only, none twice, or it fails."""
    with open_catalog(root) as catalog:
        ((rows, steps),) = catalog.rows("SELECT count(*), count(DISTINCT step) FROM samples")
        counts = catalog.rows(
            """SELECT (SELECT count(*) FROM log), (SELECT count(DISTINCT "offset") FROM log),
               (SELECT count(*) FROM windows), (SELECT count(DISTINCT "offset") FROM windows)"""
        )[0]
    assert rows == steps
    assert rows % Work.ROWS == 0
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]
    return {"samples": rows // Work.ROWS, "log": counts[0], "windows": counts[2]}


def check_line(line: str, root: Path) -> None:
    assert str(root) in line
    assert line.endswith("free some space on that disk")
    assert not set(line) & set("\n\x1b")


def test_full_at_any_write_nothing_is_lost_or_doubled_and_the_next_try_stores_it(
    volume: Volume, make: Any
) -> None:
    """From no free page to enough for all: data files, the log entries of Delta, compaction, the catalog."""
    work = Work(volume.data, make)
    failed: Counter[str] = Counter()
    for pages in (0, 3, 4, 5, 6, 8, 10, 14, 20, 30):
        before = stored(volume.data)
        work.add()
        volume.leave(pages * PAGE)
        if trouble := work.commit():
            check_line(trouble, volume.data)
            failed[trouble.split()[1]] += 1
        work.upkeep.finish()
        now = stored(volume.data)
        assert all(before[name] <= now[name] <= work.frames for name in now)
        volume.leave(None)
        work.resume()
        assert work.commit() == ""
        assert stored(volume.data) == dict.fromkeys(now, work.frames)
    assert len(failed) >= 2, failed
    for line in work.lines:
        check_line(line, volume.data)
    assert any("compacted" in line for line in work.lines)
    assert any("catalog.duckdb was not renewed" in line for line in work.lines)
    work.upkeep.finish()
    with duckdb.connect(str(volume.data / "catalog.duckdb"), read_only=True) as plain:
        assert plain.execute("SELECT count(*) FROM samples").fetchall() == [(work.frames * work.ROWS,)]
    assert [path for path in volume.data.rglob("*.parquet") if path.stat().st_size == 0] == []


def test_full_when_the_table_log_is_due_for_a_checkpoint(volume: Volume) -> None:
    """Every hundredth commit delta-rs writes a checkpoint of the log after it: whether or not there is room
    for that, the commit counts once and the table opens."""
    lake = Lake(volume.data)
    at = -1

    def move() -> None:
        nonlocal at
        lake.commit("facts", None, {"u/0": at}, {"u/0": at + 1})
        at += 1

    for pages in (1, 2, 4):
        while (at + 2) % 100:
            move()
        volume.leave(pages * PAGE)
        with contextlib.suppress(Unavailable):
            move()
        volume.leave(None)
        reopened = Lake(volume.data)
        assert reopened.version("facts", "u/0") in (at, at + 1)
        lake, at = reopened, reopened.version("facts", "u/0")
        move()
        assert Lake(volume.data).version("facts", "u/0") == at


def test_old_files_are_removed_from_a_disk_without_a_free_byte(volume: Volume, make: Any) -> None:
    """What frees the disk must not need room itself; the rows stay, deletion without room deletes nothing."""
    work = Work(volume.data, make)
    for _ in range(6):
        work.add()
        assert work.commit() == ""
    assert work.lake.compact("samples", at_least=2)
    before = len(list((volume.data / "samples").glob("*.parquet")))
    volume.leave(0)
    with pytest.raises(Unavailable, match="free some space"):
        work.lake.delete("samples", "step < 300")
    work.lake.vacuum("samples", keep_hours=0)
    assert len(list((volume.data / "samples").glob("*.parquet"))) == 1 < before
    assert stored(volume.data) == dict.fromkeys(("samples", "log", "windows"), 6)


def test_a_disk_with_room_for_rows_but_not_for_a_compaction_stops_no_rows(volume: Volume, make: Any) -> None:
    work = Work(volume.data, make, rows=10 * Work.ROWS)
    for _ in range(8):
        work.add()
        assert work.commit() == ""
    volume.leave(sum(Path(file).stat().st_size for file in work.lake.files("samples")) // 2)
    work.upkeep.compact(at_least=2)
    assert any("samples" in line and "compacted" in line for line in work.lines)
    for line in work.lines:
        check_line(line, volume.data)
    here = {str(path) for path in (volume.data / "samples").glob("*.parquet")}
    assert here == set(work.lake.files("samples")), "what could not be finished fills no disk"
    told = list(work.lines)
    work.upkeep.compact(at_least=2)
    assert work.lines == told, "not tried again at once"
    work.add()
    assert work.commit() == ""
    assert stored(volume.data)["samples"] == 9 * 10


def test_a_disk_that_stays_full_is_not_tried_at_every_turn(
    volume: Volume, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs prints a panic of its own for each try; more room, or a minute, is a new try."""
    work = Work(volume.data, make)
    tries = 0
    write = deltalake.write_deltalake

    def counted(*arguments: Any, **more: Any) -> None:
        nonlocal tries
        tries += 1
        write(*arguments, **more)

    monkeypatch.setattr(deltalake, "write_deltalake", counted)
    work.add()
    volume.leave(PAGE)
    told = {work.commit()}
    for _ in range(5):
        work.resume()
        told.add(work.commit())
    assert tries == 1
    assert len(told) == 1
    volume.leave(None)
    work.resume()
    assert work.commit() == ""
    assert stored(volume.data)["samples"] == 1


@pytest.mark.kafka
def test_a_sink_on_a_volume_too_small_waits_and_goes_on_when_it_grows(
    harness_on: Any, kafka: Any, volume: Volume, make: Any
) -> None:
    """Case 39: 5 MB, 20 MB of frames, then more space; readers go on all the time."""
    random = np.random.default_rng(1)
    rows = 10_000
    with harness_on(kafka.settings()) as harness:
        harness.root = volume.data
        frames = [make.frame(seq, {"loss": list(random.random(rows))}, step=seq * rows) for seq in range(70)]
        assert sum(map(len, frames)) > 20_000_000
        harness.send("telemetry", *frames)
        seen, stop = [0], threading.Event()
        wrong: list[object] = []

        def read() -> None:
            while not stop.wait(0.1):
                if not (volume.data / "samples" / "_delta_log").is_dir():
                    continue
                try:
                    with open_catalog(volume.data) as catalog:
                        ((count, steps),) = catalog.rows("SELECT count(*), count(DISTINCT step) FROM samples")
                except BadData as error:
                    wrong.append(error)
                    return
                if not (seen[-1] <= count == steps and count % rows == 0):
                    wrong.append((seen[-1], count, steps))
                seen.append(count)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            with harness.sink(root=str(volume.data), commit_rows=rows * 5):
                harness.wait_for(lambda: any("No space left" in line for line in harness.lines))
                harness.wait_for(lambda: len(harness.lines) > 0 and seen[-1] > 0)
                assert seen[-1] < rows * len(frames)
                waiting = len(seen)
                harness.wait_for(lambda: len(seen) > waiting + 5)
                volume.grow(64)
                harness.wait_for(lambda: seen[-1] == rows * len(frames))
        finally:
            stop.set()
            reader.join()
        assert wrong == []
        told = [line for line in harness.lines if "trying again every" in line]
        assert len(told) <= len(TABLE_NAMES)
        assert all(line.endswith("free some space on that disk") for line in told)
        assert any("going on" in line for line in harness.lines)
        assert harness.rows("SELECT count(*), count(DISTINCT step) FROM samples") == [(700_000, 700_000)]
        assert harness.rows("SELECT count(*) FROM log WHERE kind = 'frame'") == [(70,)]
        assert [path for path in volume.data.rglob("*.parquet") if path.stat().st_size == 0] == []
