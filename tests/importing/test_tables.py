"""CSV and JSON lines: which numbers come, and what is said of the rest."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from driftline.errors import BadData, SettingsError
from driftline.importing import telling

SAMPLES = "SELECT metric, step, value FROM samples ORDER BY metric, step, value"


def written(tmp_path: Path, text: str, name: str = "run one.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_values_of_a_csv_come_bit_for_bit_with_nan_and_infinities_and_without_empty_cells(
    tmp_path: Path, place: Any
) -> None:
    path = written(
        tmp_path, "step,loss,kl\n0,0.1,\n1,nan,1e-310\n2,-inf,0.30000000000000004\n3,True,Infinity\n"
    )
    made = place.imported(path)
    assert (made.samples, made.tally.refused) == (7, {})
    found = {(metric, step): value for metric, step, value in place.rows(SAMPLES)}
    assert found.pop(("loss", 1)) != found.get(("loss", 1))
    assert found == {
        ("loss", 0): 0.1,
        ("loss", 2): -math.inf,
        ("loss", 3): 1.0,
        ("kl", 1): 1e-310,
        ("kl", 2): 0.30000000000000004,
        ("kl", 3): math.inf,
    }
    assert place.rows("SELECT name, outcome FROM runs") == [("run one", "finished")]


def test_rows_around_broken_ones_are_kept_and_each_refusal_is_counted_with_its_line(
    tmp_path: Path, place: Any
) -> None:
    text = (
        'step,loss,note\n0,1.0,a\n1,2.0\n2,3.0,"open\n3,4.0,b\n4,oops,c\n'
        'x,5.0,\n6,6.0,,,\n7,7.0,"two\nlines"\n'
    )
    made = place.imported(written(tmp_path, text))
    assert place.rows(SAMPLES) == [
        ("loss", 0, 1.0),
        ("loss", 3, 4.0),
        ("loss", 7, 7.0),
        ("loss", None, 5.0),
    ]
    assert made.tally.refused == {"text": 5, "fields": 2, "step": 1, "quotes": 1}
    assert {(one.line, one.reason) for one in made.tally.examples} == {
        (2, "text"),
        (3, "fields"),
        (4, "quotes"),
        (6, "text"),
        (7, "step"),
        (8, "fields"),
    }


def test_text_and_none_in_json_are_refused_by_name_and_counted_and_views_work(
    tmp_path: Path, place: Any
) -> None:
    """Case S3."""
    line = json.dumps({"step": 1, "loss": "nan", "acc": 0.7, "note": "warm", "x": None, "many": [1, 2]})
    made = place.imported(written(tmp_path, f"{line}\n{line[:20]}\n17\n{line}\n", "a.jsonl"))
    assert place.rows("SELECT metric, value, n FROM curves") == [("acc", 0.7, 2)]
    assert made.tally.refused == {"text": 4, "none": 2, "elements": 2, "line": 2}
    assert [one.line for one in made.tally.examples if one.reason == "line"] == [2, 3]


def test_names_may_hold_anything(tmp_path: Path, place: Any) -> None:
    """Case 9; in JSON lines, nested as verl writes them, and in a header of CSV."""
    names = [
        "timing(s)/gen",
        "val/AR@100",
        "n:estimators",
        "损失",
        "🙂",
        "a.b",
        "a/b",
        'say "x"',
        "a,b",
        "x" * 600,
    ]
    lines = json.dumps({"step": 3, "data": dict.fromkeys(names, 1.5) | {"deep": {"er": 2}}})
    place.imported(written(tmp_path, lines + "\n", "verl.jsonl"))
    found = {metric for metric, *_ in place.rows(SAMPLES)}
    assert found == {*names, "deep/er"}
    header = ",".join('"' + name.replace('"', '""') + '"' for name in [*names, "step"])
    place.imported(written(tmp_path, header + "\n" + "1.5," * len(names) + "3\n", "wide.csv"))
    counted = place.rows("SELECT metric, count(*) FROM samples GROUP BY metric")
    assert dict(counted) == dict.fromkeys(names, 2) | {"deep/er": 1}


def test_a_step_that_goes_back_opens_an_attempt_and_the_newest_one_is_the_curve(
    tmp_path: Path, place: Any
) -> None:
    """Case 1."""
    rows = [(step, 1 / (step + 1)) for step in range(213)] + [(step, 0.5) for step in range(200, 221)]
    made = place.imported(written(tmp_path, "step,loss\n" + "".join(f"{s},{v!r}\n" for s, v in rows)))
    assert made.rewinds == 1
    assert place.rows("SELECT count(*), max(attempt) FROM sample_attempts") == [(234, 1)]
    curve = dict(place.rows("SELECT step, value FROM curves"))
    assert len(curve) == 221
    assert all(curve[step] == 0.5 for step in range(200, 221))
    assert place.rows("SELECT count(*) FROM alerts") == [(0,)]


def test_ranks_that_go_back_together_open_one_attempt(tmp_path: Path, place: Any) -> None:
    """Also where one logs more rarely; and more ranks than the limit of attempts."""
    text = "step,rank,loss\n" + "".join(
        f"{step},{rank},{attempt}\n"
        for attempt, steps in enumerate((range(8), range(3, 10)))
        for step in steps
        for rank in range(telling.MAX_REWINDS + 2)
        if rank != 1 or step % 5 == 0
    )
    made = place.imported(written(tmp_path, text))
    assert made.rewinds == 1
    assert not [note for note in made.tally.notes if "attempts" in note]
    found = place.rows("SELECT DISTINCT attempt, value FROM sample_attempts ORDER BY ALL")
    assert found == [(0, 0.0), (1, 1.0)]


def test_metrics_that_are_logged_at_older_steps_than_others_open_no_attempt(
    tmp_path: Path, place: Any
) -> None:
    lines = [{"step": step, "loss": 1.0} for step in range(20)]
    lines.insert(12, {"step": 5, "val": 0.5})
    lines.append({"step": 10, "val": 0.6})
    made = place.imported(written(tmp_path, "\n".join(map(json.dumps, lines)) + "\n", "a.jsonl"))
    assert (made.rewinds, made.samples) == (0, 22)


@pytest.mark.parametrize("host", ["Asia/Tehran", "America/New_York", "UTC"])
def test_times_are_instants_wherever_they_are_read(
    tmp_path: Path, place: Any, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case S1."""
    monkeypatch.setenv("TZ", host)
    time.tzset()
    try:
        text = (
            "step,time,x\n0,2024-12-06T00:00Z,1\n1,2024-12-06 03:30+03:30,1\n"
            "2,2024-12-06 00:00:00,1\n3,1733443200,1\n"
        )
        place.imported(written(tmp_path, text))
        place.imported(
            written(tmp_path, "step,time,x\n4,2024-12-06T03:30,1\n", "b.csv"), time_zone="Asia/Tehran"
        )
        found = place.rows("SELECT DISTINCT epoch_us(time), utc_day(time)::VARCHAR FROM samples")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == [(1733443200000000, "2024-12-06")]


def test_a_wrong_time_is_counted_and_the_row_is_kept(tmp_path: Path, place: Any) -> None:
    made = place.imported(written(tmp_path, "step,time,x\n0,100,1\n1,soon,2\n2,,3\n3,101.5,4\n"))
    assert made.tally.refused == {"time": 1}
    assert place.rows("SELECT step, epoch_us(time) FROM samples ORDER BY step") == [
        (0, 100_000_000),
        (1, 100_000_000),
        (2, 100_000_000),
        (3, 101_500_000),
    ]


@pytest.mark.parametrize(
    ("line", "zone"),
    [
        ("0001-01-01T00:00:00", "Europe/Berlin"),
        ("9999-12-31T23:59:59-12:00", "UTC"),
        (10**400, "UTC"),
    ],
    ids=("first", "last", "large"),
)
def test_a_time_beyond_all_calendars_is_a_wrong_one_wherever_it_stands(
    tmp_path: Path, place: Any, line: str | int, zone: str
) -> None:
    rows = [{"step": 0, "time": 1_700_000_000, "x": 1}, {"step": 1, "time": line, "x": 2}]
    made = place.imported(
        written(tmp_path, "\n".join(map(json.dumps, rows)) + "\n", "a.jsonl"), time_zone=zone
    )
    assert (made.samples, dict(made.tally.refused)) == (2, {"time": 1})
    first = written(tmp_path, json.dumps(rows[1]) + "\n", "b.jsonl")
    with contextlib.suppress(SettingsError):
        assert place.imported(first, time_zone=zone).samples == 1


def test_without_times_each_step_is_one_second_and_elapsed_time_is_counted_from_the_start(
    tmp_path: Path, place: Any
) -> None:
    path = written(tmp_path, "iteration,x,y,ran_ms\n10,1,1,0\n20,1,1,1500\n")
    made = place.imported(path, run="a", start_us=7_000_000)
    assert any("no times" in note for note in made.tally.notes)
    place.imported(path, run="b", start_us=7_000_000, elapsed_column="ran_ms")
    found = place.rows("SELECT DISTINCT run, step, epoch_us(time) FROM samples ORDER BY ALL")
    assert found == [("a", 10, 7_000_000), ("a", 20, 8_000_000), ("b", 10, 7_000_000), ("b", 20, 8_500_000)]


def test_a_time_of_small_numbers_is_time_since_the_start_or_a_metric(tmp_path: Path, place: Any) -> None:
    place.imported(written(tmp_path, "step,time,x\n0,0.5,1\n1,1.0,1\n2,1.75,1\n"), run="a", start_us=0)
    place.imported(written(tmp_path, "step,time,x\n0,0.5,1\n1,0.25,1\n", "b.csv"), run="b", start_us=0)
    found = place.rows("SELECT run, metric, step, epoch_us(time) FROM samples ORDER BY ALL")
    assert found == [
        ("a", "time", 0, 500_000),
        ("a", "time", 1, 1_000_000),
        ("a", "time", 2, 1_750_000),
        ("a", "x", 0, 500_000),
        ("a", "x", 1, 1_000_000),
        ("a", "x", 2, 1_750_000),
        ("b", "time", 0, 0),
        ("b", "time", 1, 1_000_000),
        ("b", "x", 0, 0),
        ("b", "x", 1, 1_000_000),
    ]


def test_one_name_twice_is_two_runs_and_a_late_key_has_no_value_before(tmp_path: Path, place: Any) -> None:
    """Cases 3 and 11."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        rows = [{"step": step, "loss": 3 - number} for step in range(5)]
        rows += [{"step": step, "loss": 2.5, "kl": 0.5} for step in range(5, 10)]
        place.imported(written(folder, "\n".join(map(json.dumps, rows)) + "\n", "exp1.jsonl"))
    found = place.rows(
        "SELECT name, metric, count(*), min(step) FROM curves JOIN runs USING (run) "
        "GROUP BY run, name, metric ORDER BY metric"
    )
    assert found == [("exp1", "kl", 5, 5)] * 2 + [("exp1", "loss", 10, 0)] * 2


def test_long_form_ranks_and_runs_by_column(tmp_path: Path, place: Any) -> None:
    text = "run_name,rank,step,metric,value\n" + "".join(
        f"{run},{rank},{step},loss,{rank + step}\n"
        for step in range(3)
        for run in ("a b", "../x")
        for rank in range(2)
    )
    made = place.imported(written(tmp_path, text))
    assert sorted(made.runs.values()) == ["../x", "a b"]
    found = place.rows(
        "SELECT name, s.rank, step, value FROM samples s JOIN runs USING (run) WHERE name = 'a b' ORDER "
        "BY ALL"
    )
    assert found == [("a b", rank, step, rank + step) for rank in range(2) for step in range(3)]
    assert place.rows("SELECT count(*) FROM windows WHERE axis = 'step' AND present < expected") == [(0,)]


def test_evaluations_in_a_table_become_evaluations_with_their_standard_errors(
    tmp_path: Path, place: Any
) -> None:
    rows = ("m,0,arc,acc,0.25,0.01", "m,0,arc,acc_norm,0.3,", "m,8,arc,acc,0.5,0.02")
    text = "\n".join(["model,step,task,metric,value,stderr", *rows, ""])
    made = place.imported(written(tmp_path, text))
    assert (made.evaluations, made.samples) == (2, 0)
    rows = place.rows("SELECT name, suite, metric, step, value, stderr, low FROM evals JOIN runs USING (run)")
    assert sorted(rows, key=lambda row: (row[3], row[2])) == [
        ("m", "arc", "acc", 0, 0.25, 0.01, pytest.approx(0.25 - 0.0196, abs=1e-6)),
        ("m", "arc", "acc_norm", 0, 0.3, None, None),
        ("m", "arc", "acc", 8, 0.5, 0.02, pytest.approx(0.5 - 0.0392, abs=1e-6)),
    ]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("step,loss\n1,2\n", {"step_column": "stepp"}, "did you mean 'step'"),
        ("time,loss\nyesterday,2\n", {}, "no ISO 8601 date"),
        ("step,loss\n1,2\n", {"time_zone": "Mars/Base"}, "--time-zone"),
        ("step,loss\n1,2\n", {"form": "long"}, "--metric-column"),
    ],
)
def test_what_cannot_be_right_is_said_before_anything_is_written(
    tmp_path: Path, place: Any, text: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        place.imported(written(tmp_path, text), **options)
    assert place.rows("SELECT count(*) FROM log") == [(0,)]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", b"\x1f\x8b\x08", "nothing of it unpacks"),
        ("a.csv", "step,loss\n1,2\n".encode("utf-16"), "UTF-16"),
        ("a.csv.zst", b"\x28\xb5\x2f\xfd..", "zstd"),
        ("a.parquet", b"PAR1\0\0", "Parquet"),
        ("a.bin", b"\x00\x01\x02\x03", "neither text"),
        ("a.json", b'{\n "a": 1,\n "b": 2\n}\n', "JSON document"),
        ("a.json", b'[\n{"step": 1},\n{"step": 2}\n]\n', "one JSON list"),
    ],
)
def test_files_of_other_kinds_are_refused_with_a_reason(
    tmp_path: Path, place: Any, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadData, match=words):
        place.imported(tmp_path / name)


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_a_packed_file_is_the_same_source_as_the_plain_one(tmp_path: Path, place: Any, name: str) -> None:
    """In several members, as appending to a gzip file leaves it; and packed after it was imported."""
    rows = [{"step": step, "loss": 1 / (step + 1)} for step in range(200)]
    text = "step,loss\n" + "".join(f"{row['step']},{row['loss']!r}\n" for row in rows)
    if name.endswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    half = len(text) // 2
    packed = gzip.compress(text[:half].encode()) + gzip.compress(text[half:].encode()) + b"\0" * 9
    (tmp_path / f"{name}.gz").write_bytes(packed)
    made = place.imported(tmp_path / f"{name}.gz")
    assert (made.samples, list(made.runs.values())) == (200, ["run"])
    (tmp_path / f"{name}.gz").unlink()
    written(tmp_path, text, name)
    assert place.imported(tmp_path / name).rows.total() == 0


def test_of_a_packed_file_without_its_end_what_unpacks_is_taken_and_the_rest_later(
    tmp_path: Path, place: Any
) -> None:
    text = "step,loss\n" + "".join(f"{step},{step / 7!r}\n" for step in range(5_000))
    packed = gzip.compress(text.encode())
    path = tmp_path / "run.csv.gz"
    path.write_bytes(packed[: len(packed) // 2])
    some = place.imported(path)
    assert 1_000 < some.samples < 4_999
    assert any("no end (yet)" in note for note in some.tally.notes)
    assert not some.tally.refused
    path.write_bytes(packed)
    assert place.imported(path).samples == 5_000
    assert place.rows("SELECT count(*), count(DISTINCT step) FROM samples") == [(5_000, 5_000)]
    path.write_bytes(packed[:-300] + b"garbage" + packed[-293:])
    with pytest.raises(BadData, match="no longer says"):
        place.imported(path)


def test_lines_of_zero_bytes_foreign_bytes_and_lines_that_never_end_cost_no_other_row(
    tmp_path: Path, place: Any
) -> None:
    path = tmp_path / "a.csv"
    long = b'"' + b"x" * 6_000_000 + b"\n"  # a quote that nobody closes, over lines of megabytes
    lines = [b"step,loss,gr\xf6sse\n", b"1,0.5,2\n", b"\0" * 30 + b"2,0.5,1\n", long * 4, b"3,0.25,1\n"]
    path.write_bytes(b"".join(lines))
    made = place.imported(path)
    assert place.rows("SELECT step, value FROM samples WHERE metric = 'loss' ORDER BY step") == [
        (1, 0.5),
        (3, 0.25),
    ]
    assert made.tally.refused["quotes"] >= 1
    assert any("UTF-8" in note for note in made.tally.notes)


def test_a_quoted_header_with_commas_hides_no_delimiter(tmp_path: Path, place: Any) -> None:
    place.imported(written(tmp_path, 'step;"a,b,c";x\n1;2;3\n'))
    assert place.rows(SAMPLES) == [("a,b,c", 1, 2.0), ("x", 1, 3.0)]


def test_names_and_ranks_without_end_are_bounded_and_counted(
    tmp_path: Path, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "MAX_NAMES", 5)
    monkeypatch.setattr(telling, "MAX_PROCESSES", 3)
    rows = "".join(f"{n},{n % 4},m{n % 7},{n}\n" for n in range(28))
    made = place.imported(written(tmp_path, "step,rank,metric,value\n" + rows))
    assert made.tally.refused == {"ranks": 7, "names": 6}
    assert made.samples == 15


def test_other_delimiters_a_mark_at_the_beginning_and_windows_lines(tmp_path: Path, place: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffWall time;Step;Value\r\n1700000000;1;2.5\r\n1700000001;2;3.5\r\n".encode())
    place.imported(path)
    assert place.rows(SAMPLES) == [("Value", 1, 2.5), ("Value", 2, 3.5)]


def test_rows_that_end_with_a_carriage_return_alone_are_rows(tmp_path: Path, place: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'step,loss,note\r1,2.5,x\r\r2,3.5,"y\rz"\r')
    place.imported(path)
    assert place.rows(SAMPLES) == [("loss", 1, 2.5), ("loss", 2, 3.5)]


def test_spaces_around_names_and_a_header_that_comes_again(tmp_path: Path, place: Any) -> None:
    made = place.imported(written(tmp_path, "step, x,x , y\n1, 2, 3, 4\nstep, x,x , y\n2, 3, 4, 5\n"))
    assert not made.tally.refused
    assert "the header comes again: skipped" in made.tally.notes
    assert place.rows("SELECT DISTINCT metric FROM samples ORDER BY ALL") == [("x",), ("x#2",), ("y",)]


def test_a_long_text_costs_no_row(tmp_path: Path, place: Any) -> None:
    made = place.imported(written(tmp_path, f"step,text,loss\n1,{'x' * 200_000},2.5\n"))
    assert (made.samples, dict(made.tally.refused)) == (1, {"text": 1})


def test_files_and_runs_may_be_called_what_utf_8_cannot_carry(tmp_path: Path, place: Any) -> None:
    """Names of files are bytes; JSON can spell half a pair of surrogates."""
    path = tmp_path / os.fsdecode(b"run\xff.jsonl")
    path.write_text('{"step": 1, "run": "a\\ud83d", "loss": 2}\n{"step": 1, "loss": 3}\n')
    for _ in range(2):
        made = place.imported(path)
        assert sorted(made.runs.values()) == ["a\ufffd", "run\ufffd"]
    assert place.rows(SAMPLES) == [("loss", 1, 2.0), ("loss", 1, 3.0)]


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path, place: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="pipe"):
        place.imported(tmp_path / "pipe")


def test_the_real_ppo_log_comes_whole(place: Any, realdata: Path) -> None:
    path = realdata / "rl_curves" / "verl_ppo_qwen0.5b_gsm8k.jsonl"
    made = place.imported(path)
    wanted = [
        (name, row["step"], float(value))
        for row in map(json.loads, path.read_text().splitlines())
        for name, value in row["data"].items()
    ]
    assert made.samples == len(wanted) == 17_486
    assert place.rows(SAMPLES) == sorted(wanted)
    assert not made.tally.refused
    windows = "SELECT count(DISTINCT metric) FROM windows WHERE axis = 'step'"
    assert place.rows(windows) == [(len({name for name, *_ in wanted}),)]
