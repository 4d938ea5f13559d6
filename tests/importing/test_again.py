"""An import that is run again: each row once, whatever happened in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.errors import BadData, SettingsError, Unavailable
from driftline.importing import load, telling
from driftline.records import Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.tables import TableName

RANKS = 3
STEPS = 100
SAMPLES = STEPS * RANKS * 2


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "SAMPLES_MAX", 60)


def text(first: int, last: int) -> str:
    rows = (
        f"{step},{rank},{1 / (step + 1)!r},{'nan' if step == 77 else rank}\n"
        for step in range(first, last)
        for rank in range(RANKS)
    )
    return "".join(rows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "run.csv"
    made.write_text("step,rank,loss,x\n" + text(0, STEPS))
    return made


class Killed(Exception):
    """The process was killed here."""


def killed_at(number: int, moment: str) -> Callable[[str, TableName], None]:
    """Kills before or after the commit of that number."""
    left = number

    def faults(now: str, name: TableName) -> None:
        nonlocal left
        if now == moment:
            left -= 1
            if left < 0:
                raise Killed

    return faults


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits every two records, so that there is much to be killed between."""
    monkeypatch.setattr(load, "BATCH", 2)
    monkeypatch.setattr(load, "COMMIT_BYTES", 1)


def test_a_second_import_adds_nothing_and_says_so(place: Any, path: Path) -> None:
    place.imported(path)
    before = place.everything()
    again = place.imported(path)
    assert again.already
    assert again.rows.total() == 0
    assert place.everything() == before
    assert len(before["samples"]) == SAMPLES
    assert before["alerts"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_commit_and_run_again_it_leaves_what_a_whole_import_leaves(
    memory: Any, path: Path, often: None, moment: str
) -> None:
    clean = memory()
    clean.imported(path)
    wanted = clean.everything()
    kills = 0
    for at in range(0, 1_000, 4):
        killed = memory()
        try:
            killed.imported(path, killed_at(at, moment))
            break
        except Killed:
            kills += 1
        killed.imported(path)
        assert killed.everything() == wanted, at
    assert kills > 20


def test_killed_again_and_again_it_comes_to_its_end(memory: Any, path: Path, often: None) -> None:
    clean, killed = memory(), memory()
    clean.imported(path)
    kills = 0
    while True:
        try:
            killed.imported(path, killed_at(1, "after"))
            break
        except Killed:
            kills += 1
    assert kills > 20
    assert killed.everything() == clean.everything()


def test_killed_and_grown_it_first_ends_what_it_had_begun(memory: Any, path: Path, often: None) -> None:
    clean, killed = memory(), memory()
    clean.imported(path)
    with pytest.raises(Killed):
        killed.imported(path, killed_at(17, "after"))
    with path.open("a") as file:
        file.write(text(STEPS, STEPS + 50))
    made = killed.imported(path)
    clean.imported(path)
    assert made.already
    assert killed.everything() == clean.everything()
    assert killed.root.rows("samples").num_rows == SAMPLES * 3 // 2


def test_of_a_source_that_has_grown_only_the_new_part_is_added(place: Any, path: Path) -> None:
    place.imported(path)
    before = place.everything()
    with path.open("a") as file:
        file.write(text(STEPS, STEPS + 50) + "150,0,0.")
    grown = place.imported(path, settled=False)
    assert any("no end yet" in note for note in grown.tally.notes)
    after = place.everything()
    assert grown.rows["samples"] == 50 * RANKS * 2
    for name, rows in before.items():
        assert set(rows) <= set(after[name]), name
    with path.open("a") as file:
        file.write("5,1\n")
    last = place.imported(path)
    assert last.rows["samples"] == 2
    assert place.rows("SELECT metric, value FROM samples WHERE step = 150 ORDER BY metric") == [
        ("loss", 0.5),
        ("x", 1.0),
    ]
    assert place.rows("SELECT count(DISTINCT (process, seq)) = count(*) FROM log WHERE seq IS NOT NULL") == [
        (True,)
    ]


def test_a_last_line_without_an_end_is_taken_once_the_file_is_left_alone(place: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n0,1.0\n1,0.5")
    assert place.imported(path, settled=False).samples == 1
    assert place.imported(path).samples == 2
    assert place.imported(path).rows.total() == 0


def test_a_source_whose_beginning_changed_is_refused_and_nothing_is_written(place: Any, path: Path) -> None:
    place.imported(path)
    before = place.everything()
    path.write_text(path.read_text().replace("0.5,", "0.6,", 1))
    with pytest.raises(BadData, match="another --run"):
        place.imported(path)
    assert place.everything() == before
    assert place.imported(path, run="corrected").rows["samples"] == SAMPLES


def test_the_same_file_read_in_another_way_is_refused(place: Any, path: Path) -> None:
    place.imported(path)
    with pytest.raises(SettingsError, match="imported before in another way"):
        place.imported(path, step_column="-")


def test_another_source_in_the_place_of_one_whose_first_import_was_killed_is_refused(
    memory: Any, path: Path, often: None
) -> None:
    """Also where it is as long, and was killed before the first mark of a whole segment."""
    clean = memory()
    clean.imported(path)
    written = path.stat().st_mtime_ns
    for at in (4, 17):
        killed = memory()
        with pytest.raises(Killed):
            killed.imported(path, killed_at(at, "after"))
        before, text_before = killed.everything(), path.read_text()
        path.write_text(text_before.replace("0.5,", "0.6,", 1))
        with pytest.raises(BadData, match="no longer says what was imported"):
            killed.imported(path)
        assert killed.everything() == before
        path.write_text(text_before)
        os.utime(path, ns=(written, written))
        killed.imported(path)
        assert killed.everything() == clean.everything()


def windows_of(place: Any) -> list[str]:
    """All windows, but for where they were caused."""
    sql = """SELECT * EXCLUDE (topic_uuid, "partition", "offset", ordinal) FROM windows"""
    return sorted(map(str, place.rows(sql)))


def test_a_run_that_is_still_written_stays_open_so_that_no_window_at_the_border_is_cut(
    place: Any, path: Path, tmp_path: Path
) -> None:
    """In three pieces it gives the windows of one import of the whole; left alone, it is ended."""
    place.imported(path, settled=False, start_us=7)
    assert place.rows("SELECT count(*) FROM process_events WHERE event = 'ended'") == [(0,)]
    with path.open("a") as file:
        file.write(text(STEPS, STEPS + 13))
    place.imported(path, settled=False, start_us=7)
    ended = place.imported(path, start_us=7)
    assert ended.rows["processes"] == RANKS
    assert place.imported(path, start_us=7).rows.total() == 0
    clean = type(place)(tmp_path / "clean")
    clean.imported(path, start_us=7)
    assert windows_of(place) == windows_of(clean)
    assert place.rows("SELECT outcome FROM runs") == [("finished",)]


def test_a_source_that_went_on_after_its_end_is_said(place: Any, path: Path) -> None:
    place.imported(path)
    with path.open("a") as file:
        file.write(text(STEPS, STEPS + 5))
    assert any("went on" in note for note in place.imported(path).tally.notes)


def test_two_sources_of_one_name_go_into_one_run_under_names_of_their_own(place: Any, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "results.csv").write_text(f"step,x{number}\n1,{number}\n")
    place.imported(tmp_path / "0" / "results.csv", run="exp")
    with pytest.raises(SettingsError, match="--source"):  # other columns
        place.imported(tmp_path / "1" / "results.csv", run="exp", step_column="-")
    with pytest.raises(BadData, match="--source"):
        place.imported(tmp_path / "1" / "results.csv", run="exp")
    place.imported(tmp_path / "1" / "results.csv", run="exp", source="second")
    assert place.imported(tmp_path / "1" / "results.csv", run="exp", source="second").rows.total() == 0
    assert place.rows("SELECT metric, value FROM samples WHERE run = 'exp' ORDER BY ALL") == [
        ("x0", 0.0),
        ("x1", 1.0),
    ]


def test_a_sink_that_writes_at_the_same_time_is_not_disturbed(
    place: Any, path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is refused a commit, and both have all their rows."""
    monkeypatch.setattr(load, "BATCH", 10)
    sink = SinkCore(Lake(place.root))
    spot = Spot("telemetry", "6ac46c8a-0000-0000-0000-000000000000", 3)
    sink.resume({spot: 0})
    at = 0

    class Beside(Lake):
        def commit(self, *arguments: Any) -> None:
            nonlocal at
            tick = events.encode(events.Tick(worker="w", time_us=at))
            sink.take(spot, [Record(3, at, at, tick)])
            at += 1
            list(sink.commits(empty=True))
            super().commit(*arguments)

    place.imported(path, lake=Beside(place.root))
    counted = dict(place.rows("SELECT kind, count(*) FROM log WHERE outcome = 'stored' GROUP BY kind"))
    assert at > 5
    assert counted["tick"] == at + 1
    assert place.rows("SELECT count(*) FROM samples") == [(SAMPLES,)]


@pytest.mark.parametrize("commits", [0, 3])
def test_two_imports_of_one_source_at_once_give_each_row_once(place: Any, path: Path, commits: int) -> None:
    """Another one is faster, before the first commit or between two: the slower is refused, adds nothing."""
    left = commits

    class Beside(Lake):
        def commit(self, *arguments: Any) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                place.imported(path)
            super().commit(*arguments)

    with pytest.raises(Unavailable, match="another import of the same source"):
        place.imported(path, lake=Beside(place.root))
    before = place.everything()
    assert place.imported(path).rows.total() == 0
    assert place.everything() == before
    assert place.rows("SELECT count(*), count(DISTINCT (step, rank, metric)) FROM samples") == [
        (SAMPLES, SAMPLES)
    ]


def test_windows_and_alerts_are_what_the_pipeline_makes_of_the_stored_log(place: Any, path: Path) -> None:
    """So an imported run can be replayed: the log and samples in the tables are all that made them."""
    place.imported(path)
    found = place.rows("SELECT rule, rank, step FROM alerts WHERE state = 'open'")
    assert ("non-finite", None, 77) in found or any(
        rule == "non-finite" and at == 77 for rule, _, at in found
    )
    gaps = place.rows('SELECT max("offset") - count(*) + 1 FROM log')
    assert gaps == [(0,)]
    kinds = dict(place.rows("SELECT kind, count(*) FROM log GROUP BY kind"))
    assert kinds["import_segment"] == 2
    assert kinds["process_started"] == kinds["process_ended"] == RANKS
    late = place.rows("SELECT count(*) FROM facts WHERE what IN ('late', 'gap', 'future')")
    assert late == [(0,)]


def test_without_the_pipeline_rows_come_and_a_later_import_adds_the_windows(
    place: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "driftline.streams.pipeline", None)
        patch.setattr(load, "_pipeline", lambda log: (None, None))
        made = place.imported(path)
    assert not made.windows
    assert place.rows("SELECT count(*) FROM windows") == [(0,)]
    place.imported(path)
    clean = type(place)(tmp_path / "clean")
    clean.imported(path)
    assert place.everything() == clean.everything()


def test_a_full_disk_is_said_and_the_import_goes_on_later(memory: Any, path: Path, often: None) -> None:
    def full(moment: str, name: TableName) -> None:
        try:
            kill(moment, name)
        except Killed:
            raise Unavailable("no space") from None

    clean, filled = memory(), memory()
    kill = killed_at(20, "before")
    with pytest.raises(Unavailable, match="no space"):
        filled.imported(path, full)
    filled.imported(path)
    clean.imported(path)
    assert filled.everything() == clean.everything()
