"""Readers see whole rows only, and are told in one line what is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from driftline.cli.sql import print_answer
from driftline.errors import BadData
from driftline.storage import catalog as catalog_file
from driftline.storage.open import open_catalog
from driftline.storage.sql import query
from driftline.storage.tables import TABLES
from driftline.storage.views import VIEWS


@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_a_broken_file_of_a_table_is_named_with_the_remedy(store: Any, make: Any, damage: str) -> None:
    for seq in range(2):
        store.put("telemetry", make.frame(seq, {"loss": [1.0] * 10}, step=seq * 10))
    file = Path(store.lake.files("samples")[1])
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:300] if damage == "cut" else b"")
    with pytest.raises(BadData, match=r"missing or broken.*repair") as caught:
        query(store.root, "SELECT sum(value) FROM samples")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sql", ["SELEKT 1", "SELECT * FROM nowhere", "SELECT nothing FROM samples", "SELECT 1; SELECT", "'"]
)
def test_wrong_sql_is_one_line(store: Any, sql: str) -> None:
    with pytest.raises(BadData) as caught:
        query(store.root, sql)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_python_variable_is_no_table(store: Any) -> None:
    with pytest.raises(BadData, match="answer"):
        query(store.root, "SELECT * FROM answer")


def test_a_query_sees_what_was_committed_since_the_catalog_was_opened(store: Any, make: Any) -> None:
    with open_catalog(store.root) as catalog:
        assert catalog.rows("SELECT count(*) FROM samples") == [(0,)]
        store.put("telemetry", make.frame(0, {"loss": [1.0]}))
        assert catalog.rows("SELECT count(*) FROM samples") == [(1,)]


def test_a_time_that_python_has_no_date_for_is_shown_as_a_number(
    store: Any, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken clock in one frame must not hide all others."""
    times = np.array([make.t0, 2**62])
    store.put("telemetry", make.frame(0, {"loss": [1.0, 2.0]}, time_us=times))
    with open_catalog(store.root) as catalog:
        found = catalog.rows("SELECT time, value FROM samples ORDER BY value")
    assert [time if value == 2.0 else time.year for time, value in found] == [2023, 2**62]
    assert print_answer(store.root, "SELECT time FROM samples", form="table", max_rows=9) == 0
    assert str(2**62) in capsys.readouterr().out


def test_a_log_that_could_not_be_read_is_no_answer_from_old_files_the_next_time(
    store: Any, make: Any
) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    with open_catalog(store.root) as catalog:
        store.put("telemetry", make.frame(1, {"loss": [1.0]}, step=1))
        newest = max((store.root / "samples" / "_delta_log").glob("*.json"))
        whole = newest.read_bytes()
        newest.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(BadData, match=newest.name):
                catalog.query("FROM samples")
        newest.write_bytes(whole)
        assert catalog.rows("SELECT count(*) FROM samples") == [(2,)]


def test_a_foreign_file_in_a_log_hides_no_commit(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    (store.root / "samples" / "_delta_log" / "notes.json").write_text("{}")
    with open_catalog(store.root) as catalog:
        store.put("telemetry", make.frame(1, {"loss": [1.0]}, step=1))
        (store.root / "log" / "_delta_log" / "zzz.json").write_text("{}")
        assert catalog.rows("SELECT count(*) FROM samples") == [(2,)]
        store.put("telemetry", make.frame(2, {"loss": [1.0]}, step=2))
        assert catalog.rows("SELECT count(*) FROM samples") == [(3,)]


def test_a_query_is_tried_again_on_a_file_that_was_cleaned_away(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the file list and the query a compaction and a vacuum remove the files."""
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq))
    with open_catalog(store.root) as catalog:
        run = catalog._run

        def compacted_first(sql: str, parameters: Any) -> Any:
            store.lake.compact("samples", at_least=1, keep_hours=0)
            return run(sql, parameters)

        monkeypatch.setattr(catalog, "_run", compacted_first)
        assert catalog.rows("SELECT count(*) FROM samples") == [(3,)]


def test_a_folder_that_was_moved_opens(store: Any, make: Any, tmp_path: Path) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))
    shutil.move(store.root, tmp_path / "elsewhere")
    assert query(tmp_path / "elsewhere", "SELECT count(*) FROM curves").to_pydict() == {"count_star()": [1]}


def test_no_tables_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no tables in"):
        query(tmp_path, "SELECT 1")


def test_the_catalog_file_has_every_view_with_a_comment_and_replaces_an_open_one(
    store: Any, make: Any
) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}))

    def files() -> Any:
        return {name: store.lake.files(name) for name in TABLES}

    assert catalog_file.write(store.root, files)
    path = str(store.root / catalog_file.CATALOG)
    with duckdb.connect(path, read_only=True) as old:
        store.put("telemetry", make.frame(1, {"loss": [1.0]}, step=1))
        assert catalog_file.write(store.root, files)
        assert old.execute("SELECT count(*) FROM samples").fetchall() == [(1,)]
    with duckdb.connect(path, read_only=True) as new:
        assert new.execute("SELECT count(*) FROM samples").fetchall() == [(2,)]
        bare = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND coalesce(comment, '') = ''"
        assert new.execute(bare).fetchall() == []
        assert new.execute("FROM correlation('r', 'a', 'b', max_lag := 2)").fetchall() == []


def test_what_a_killed_sink_left_of_a_catalog_is_removed(store: Any) -> None:
    (store.root / ".catalog.tmp").write_text("half")
    (store.root / ".catalog.tmp.wal").write_text("half")
    catalog_file.clean(store.root)
    assert list(store.root.glob(".catalog*")) == []


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("FROM curvs", '"curves"'),
        ("FROM sampels", '"samples"'),
        ("SELECT utc_dya(now())", '"utc_day"'),
        ("FROM trnd('a', 'b')", '"trend"'),
        ("SELECT nothing FROM samples", "nothing"),
        ("FROM nowhere_at_all", "nowhere_at_all"),
    ],
)
def test_wrong_sql_names_what_was_meant_without_the_cost_of_all_views(
    store: Any, make: Any, sql: str, says: str
) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}, step=0))
    with open_catalog(store.root) as catalog:
        with pytest.raises(BadData, match=says):
            catalog.rows(sql)
        assert len(catalog._defined) < len(VIEWS) / 2


def test_a_view_whose_name_is_put_together_is_found(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}, step=0))
    with open_catalog(store.root) as catalog:
        assert catalog.rows("SELECT value FROM query_table('cur' || 'ves')") == [(1.0,)]


def test_a_table_is_looked_at_when_it_is_asked_for(store: Any, make: Any) -> None:
    """To define its view opens a file of it, in an object store by requests."""
    store.put("telemetry", make.frame(0, {"loss": [1.0]}, step=0))
    Path(store.lake.files("log")[0]).write_bytes(b"")
    with open_catalog(store.root) as catalog:
        assert catalog.rows("SELECT value FROM samples") == [(1.0,)]
        assert catalog._tables == {"samples"}
        assert catalog.rows("SELECT value FROM query_table('sam' || 'ples')") == [(1.0,)]
        with pytest.raises(BadData, match="part of table log but is missing or broken"):
            catalog.rows("SELECT count(*) FROM log")


STEPS = "SELECT step, rank, span, seconds FROM step_parts($run) ORDER BY ALL"
LEDGER = "SELECT category, seconds FROM goodput_ledger($run) ORDER BY ALL"


def test_what_is_kept_of_a_run_is_what_is_computed(store: Any, make: Any) -> None:
    for run in ("one", "two"):
        frame = make.frame(1, {"loss": [1.0, 2.0], "span/forward": [0.1, 0.2]}, run=run, process=run)
        store.put("telemetry", make.started(run=run, process=run), frame)
    with open_catalog(store.root) as catalog:
        one, two = {"run": "one"}, {"run": "two"}
        expected = catalog.rows(STEPS, one), catalog.rows(LEDGER, one)
        assert expected[0]
        assert expected[1]
        with catalog.keeping(["step_parts", "step_times", "run_stretches"], "one"):
            assert (catalog.rows(STEPS, one), catalog.rows(LEDGER, one)) == expected
            for sql in (STEPS, LEDGER, "FROM step_parts('one', all_attempts := true)"):
                with pytest.raises(BadData, match="is kept of one"):
                    catalog.rows(sql, two if "$run" in sql else None)
        assert catalog.rows(STEPS, two)
        with catalog.keeping(["step_parts"], "nobody"):
            assert catalog.rows(STEPS, {"run": "nobody"}) == []
            assert catalog.rows(STEPS, one) == expected[0]
        assert (catalog.rows(STEPS, one), catalog.rows(LEDGER, one)) == expected
