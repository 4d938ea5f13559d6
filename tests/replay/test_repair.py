"""Late data: windows computed again with a higher revision, once, and the alerts that would have changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from driftline import config, events
from driftline.cli.app import app
from driftline.records import Record
from driftline.replay.proof import prove
from driftline.replay.repair import repair
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.source import TableLog
from driftline.storage.recorded.window_repair import WindowRepair
from driftline.storage.store import Conflict
from driftline.storage.tables import TABLES

Store = Callable[..., Path]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory, log: Any, store: Any) -> tuple[Path, Path]:
    """Tables of a training whose rank 2 spooled some steps and sent them late, and of the same in time."""
    high = config.Rule(name="high", metric="loss", op=">", bound=20.0, for_steps=1)
    settings = config.PipelineConfig(idle_us=3_000_000, allowed_lateness_us=1_000_000, rules=[high])
    in_time = log(settings=settings)
    in_time.train("a", range(120))
    in_time.end("a")
    in_time.wait(40)
    held, records, sent = [], [], False
    for record in in_time.records:
        value = record.value or b""
        is_of_rank_2 = value[:1] == b"\xff" and b"a-0-2" in value
        if is_of_rank_2 and 130 < record.offset < 330:
            held.append(value)
            continue
        if is_of_rank_2 and record.offset >= 330 and not sent:
            sent = True
            for value_held in held:
                records.append(record._replace(value=value_held))
        records.append(record)
    assert len(held) > 10
    assert sent
    spooled = log(settings=settings)
    spooled.records = [Record(0, at, r.time_ms, r.value) for at, r in enumerate(records)]
    folder = tmp_path_factory.mktemp("late")
    return store(folder / "late", spooled), store(folder / "in_time", in_time)


def step_windows(root: Path) -> dict[Any, Any]:
    """The newest revision of each window of the whole run, without what rests on who was there."""
    sql = """SELECT "end", metric, count, mean, std, min, max, p50 FROM windows WHERE axis = 'step'
        QUALIFY revision = max(revision) OVER (PARTITION BY "end", metric)"""
    return {row[:2]: row[2:] for row in open_catalog(root).rows(sql)}


def test_repaired_windows_are_those_of_a_training_whose_data_came_in_time(
    late: tuple[Path, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(late[0], tmp_path / "own"))
    assert WindowRepair(root).runs_with_late_data() == ["a"]
    before = step_windows(root)
    wanted = step_windows(late[1])
    assert before != wanted
    done = repair(TableLog(root), WindowRepair(root), commit=False)
    assert done.windows
    assert step_windows(root) == before, "nothing is written unless asked"
    done = repair(TableLog(root), WindowRepair(root))
    assert done.committed > 20
    assert done.late_frames > 10
    repaired = step_windows(root)
    assert repaired.keys() == wanted.keys()
    for key, row in repaired.items():
        assert row == pytest.approx(wanted[key], rel=1e-12, nan_ok=True), key
    versions = Lake(root).version("windows", "repair/11111111-1111-1111-1111-111111111111/0")
    again = repair(TableLog(root), WindowRepair(root))
    assert (again.committed, again.windows) == (0, [])
    assert Lake(root).version("windows", "repair/11111111-1111-1111-1111-111111111111/0") == versions
    assert prove(TableLog(root), Stored(root)).identical, "the live rows are still proven"


def test_alerts_that_would_have_changed_are_listed_and_none_is_written(
    late: tuple[Path, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(late[0], tmp_path / "own"))
    alerts = open_catalog(root).rows("SELECT count(*) FROM alerts")
    done = repair(TableLog(root), WindowRepair(root))
    assert [(one.rule, one.rank, one.step) for one in done.alerts.gained] == [("high", 2, 60)]
    assert open_catalog(root).rows("SELECT count(*) FROM alerts") == alerts


def test_of_two_repairs_at_once_one_is_refused(late: tuple[Path, Path], tmp_path: Path) -> None:
    """Both computed the same rows before either committed; they are there once."""
    root = Path(shutil.copytree(late[0], tmp_path / "own"))

    class Beside(WindowRepair):
        """Another repair of the same is faster."""

        def commit(self, part: Any, changes: Any) -> int:
            assert repair(TableLog(root), WindowRepair(root)).committed > 0
            return super().commit(part, changes)

    with pytest.raises(Conflict):
        repair(TableLog(root), Beside(root))
    doubled = """SELECT 1 FROM windows
        GROUP BY run, attempt, axis, span, "group", metric, "start", "end", revision
        HAVING count(*) > 1"""
    assert open_catalog(root).rows(doubled) == []


def test_a_log_without_late_data_needs_no_repair(whole: tuple[Any, Path]) -> None:
    root = whole[1]
    done = repair(TableLog(root, ["a"]), WindowRepair(root))
    assert done.committed == 0


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory, log: Any, store: Any) -> Path:
    """Tables of a training whose rank 2 alone had the first steps, and sent all it had late."""
    windows = [config.WindowSpec("step", size, 10) for size in (0, 20, 40)]
    one = log(settings=config.PipelineConfig(idle_us=2_000_000, allowed_lateness_us=1, windows=windows))
    for rank in range(3):
        one.event(events.ProcessStarted, "a", f"a-0-{rank}", rank=rank, world_size=3)
    held = []
    for step in range(70):
        one.now_us += 250_000
        one.tick()
        samples = [("loss", step, one.now_us, 1.0 / (step + 1), 1.0)]
        held.append(samples)
        if step >= 20:
            one.frame("a", "a-0-0", 0, samples)
            one.frame("a", "a-0-1", 1, samples)
        if step == 60:
            for late_samples in held[:30]:
                one.frame("a", "a-0-2", 2, late_samples)
    one.end("a")
    one.wait(20)
    return Path(store(tmp_path_factory.mktemp("early") / "data", one))


def test_a_window_that_is_no_more_is_superseded_and_no_view_shows_it(early: Path) -> None:
    """Its newest revision has no samples; a second repair changes nothing, and ``check`` finds no fault."""
    whole_run = """SELECT DISTINCT "start" FROM (FROM windows
        QUALIFY revision = max(revision) OVER (
            PARTITION BY run, attempt, axis, span, "group", metric, "start", "end"))
        WHERE span = 'run' AND count > 0 AND metric = 'loss' """
    before = open_catalog(early).rows(whole_run)
    assert before == [(20,)]
    done = repair(TableLog(early), WindowRepair(early))
    assert done.late_frames > 20
    assert any(one.new_samples == 0 and one.samples for one in done.windows)
    assert open_catalog(early).rows(whole_run) == [(0,)]
    again = repair(TableLog(early), WindowRepair(early))
    assert (again.committed, again.windows) == (0, [])
    assert prove(TableLog(early), Stored(early)).identical
    checked = CliRunner().invoke(app, ["storage", "check", "--root", str(early)])
    assert "more than once" not in checked.output, checked.output


def test_no_view_shows_a_window_whose_newest_revision_has_no_samples(
    late: tuple[Path, Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(late[0], tmp_path / "own"))
    shown = (
        "SELECT count(*) FROM trends WHERE metric = 'loss'",
        "SELECT count(*) FROM rests_on('a', 'loss', 5) WHERE kind = 'window'",
        "SELECT max(windows) FROM lineage('a', 'loss', 5)",
    )
    before = [open_catalog(root).rows(sql)[0][0] for sql in shown]
    assert all(before)
    gone = open_catalog(root).query("""
        SELECT * REPLACE (0 AS "count", 1 AS revision, -1 AS ordinal) FROM windows
        WHERE metric = 'loss' """)
    bare = pa.schema([pa.field(c.name, c.type) for c in TABLES["windows"].columns])
    Lake(root).commit("windows", gone.cast(bare), {"t": -1}, {"t": 0})
    assert [open_catalog(root).rows(sql)[0][0] for sql in shown] == [0, 0, 0]
