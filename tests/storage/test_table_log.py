"""A commit log that a power cut or a stranger damaged (case 37): the right rows, or a line with the file.

Never fewer rows without a word; and what the newest commit lost a sink stores again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from driftline.errors import BadData
from driftline.records import Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.listing import read_files
from driftline.storage.open import open_catalog
from driftline.storage.store import Conflict


class Log:
    """A lake that a sink wrote three frames of ten samples to, one commit each."""

    def __init__(self, root: Path, make: Any) -> None:
        self.root = root
        self.folder = root / "samples" / "_delta_log"
        self._spot = Spot("telemetry", make.uuid, 0)
        self._values = [make.frame(seq, {"loss": [1.0] * 10}, step=seq * 10) for seq in range(3)]
        for count in (1, 2, 3):
            self.sink(count)

    def sink(self, count: int = 3) -> None:
        """A sink that starts, finds so many frames in the topic, and ends."""
        core = SinkCore(Lake(self.root))
        start = core.resume({self._spot: 0})[self._spot]
        records = [Record(0, at, 0, value) for at, value in enumerate(self._values[:count])]
        core.take(self._spot, records[start:])
        list(core.commits())

    @property
    def commits(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def rows(self) -> tuple[int, int]:
        with open_catalog(self.root) as catalog:
            ((rows, steps),) = catalog.rows("SELECT count(*), count(DISTINCT step) FROM samples")
        return rows, steps


@pytest.fixture
def log(tmp_path: Path, make: Any) -> Log:
    return Log(tmp_path / "data", make)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = pytest.mark.parametrize("damage", [cut, empty])


@DAMAGES
def test_a_broken_newest_commit_is_named_and_the_next_sink_stores_its_rows_again(
    log: Log, damage: Callable[[Path], None]
) -> None:
    newest = log.commits[-1]
    damage(newest)
    with pytest.raises(BadData, match="start a sink") as caught:
        read_files(log.root)
    assert str(newest) in str(caught.value)
    log.sink()
    assert log.rows() == (30, 30)
    assert newest.with_name(newest.name + ".torn").exists()
    log.sink()
    assert log.rows() == (30, 30)


@DAMAGES
def test_a_broken_older_commit_is_named_to_readers_and_writers(
    log: Log, damage: Callable[[Path], None]
) -> None:
    older = log.commits[-2]
    damage(older)
    for use in (read_files, Lake):
        with pytest.raises(BadData, match="from a copy") as caught:
            use(log.root)
        assert str(older) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_foreign_files_in_a_table_and_in_its_log_change_nothing(log: Log) -> None:
    whole = log.commits[-1].read_bytes()
    for name in ("notes.txt", "x.json", "0.json", "_commit_1.json.tmp", "00000000000000000009.json.tmp"):
        (log.folder / name).write_bytes(whole[:50])
    (log.folder / "_last_checkpoint").write_text('{"vers')
    for name in ("part-1.parquet", ".part.parquet", "x.parquet#1"):
        (log.folder.parent / name).write_bytes(b"PAR1")
    assert log.rows() == (30, 30)
    log.sink()
    assert log.rows() == (30, 30)


@DAMAGES
@pytest.mark.parametrize("also", [False, True])
def test_a_broken_newest_checkpoint_is_named_to_readers_and_set_aside_by_the_next_sink(
    log: Log, damage: Callable[[Path], None], also: bool
) -> None:
    """A power cut may tear it, and with it the commit that it came after: all before is there without it."""
    DeltaTable(str(log.folder.parent)).create_checkpoint()
    (checkpoint,) = log.folder.glob("*.checkpoint.parquet")
    hint = log.folder / "_last_checkpoint"
    damage(checkpoint)
    if also:
        damage(log.commits[-1])
    with pytest.raises(BadData, match="start a sink") as caught:
        read_files(log.root)
    assert str(checkpoint) in str(caught.value)
    log.sink()
    assert log.rows() == (30, 30)
    assert checkpoint.with_name(checkpoint.name + ".torn").exists()
    assert not hint.exists()
    log.sink()
    assert log.rows() == (30, 30)


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
def test_a_broken_checkpoint_that_is_needed_is_named_with_its_remedy(
    log: Log, damage: Callable[[Path], None]
) -> None:
    DeltaTable(str(log.folder.parent)).create_checkpoint()
    (checkpoint,) = log.folder.glob("*.checkpoint.parquet")
    hint = log.folder / "_last_checkpoint"
    assert json.loads(hint.read_text())["version"] == 3
    whole = log.commits[0].read_bytes()
    log.commits[0].unlink()
    damage(checkpoint)
    for use in (read_files, Lake):
        with pytest.raises(BadData, match="from a copy, or delete it") as caught:
            use(log.root)
        assert str(checkpoint) in str(caught.value)
        assert str(hint) in str(caught.value)
        assert "start a sink" not in str(caught.value)
    (log.folder / f"{0:020d}.json").write_bytes(whole)
    checkpoint.unlink(missing_ok=True)
    hint.unlink()
    assert log.rows() == (30, 30)
    log.sink()
    assert log.rows() == (30, 30)


def test_a_log_of_ten_thousand_commits_is_trimmed_to_what_the_table_needs(tmp_path: Path, make: Any) -> None:
    """A day of commits every two seconds: the log stays short, rows and positions stay, and neither a
    handle from before nor one that is stale beyond the log lets a row in twice."""
    lake, stale = Lake(tmp_path), Lake(tmp_path)
    zombie = Lake(tmp_path)
    lake.commit("facts", None, {"u/0": -1}, {"u/0": 0})
    folder = tmp_path / "facts" / "_delta_log"
    for at in range(330):
        lake.commit("facts", None, {"u/0": at}, {"u/0": at + 1})
        if at == 250:
            stale.reload()
    assert lake.trim_log("facts") == 0, "what is young stays"
    for path in folder.iterdir():
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    assert lake.trim_log("facts") > 150
    assert len(list(folder.glob("*.json"))) < 240
    assert Lake(tmp_path).version("facts", "u/0") == 330
    assert stale.version("facts", "u/0") == 251, "it rests on what was kept"
    for old, before in ((stale, 251), (zombie, -1)):
        with pytest.raises(Conflict):
            old.commit("facts", None, {"u/0": before}, {"u/0": before + 1})
        with pytest.raises(Conflict):
            old.commit("facts", None, {}, {"u/0": before + 1})
        old.reload()
        old.commit("facts", None, {"u/0": old.version("facts", "u/0")}, {"u/0": 330})
    lake.reload()
    checkpoint = sorted(folder.glob("*.checkpoint.parquet"))[-1]
    cut(checkpoint)
    assert lake.trim_log("facts") == 0, "the older checkpoint is what the table can be mended from"
    checkpoint.unlink()
    (folder / "_last_checkpoint").unlink()
    assert Lake(tmp_path).version("facts", "u/0") == 330
