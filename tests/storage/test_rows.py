"""Records become rows once, whatever was sent again, and nothing undecodable stops the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from driftline import events, frames, window_rows
from driftline.frames import NO_STEP
from driftline.records import Record
from driftline.storage.rows import Rows, Source
from driftline.storage.sample_rows import SampleRows
from driftline.storage.seen import SeenItems, SeenProcesses
from driftline.storage.tables import TABLES, sorts_well

TELEMETRY = Source("telemetry", "uuid")


def feed(rows: Rows, *values: bytes | None, source: Source = TELEMETRY, first: int = 0) -> list[Any]:
    return [rows.add(source, Record(0, first + at, 1_000 + at, value)) for at, value in enumerate(values)]


def test_a_frame_becomes_samples_and_one_line_of_the_log(make: Any) -> None:
    rows = Rows()
    feed(rows, make.frame(7, {"loss": [1.0, math.nan], "acc": [0.5, math.inf]}, step=3))
    taken = rows.take()
    assert set(taken) == {"samples", "log"}
    samples = taken["samples"].select(["metric", "step", "value", "ordinal", "rank"]).to_pylist()
    assert [(row["metric"], row["step"], row["ordinal"]) for row in samples] == [
        ("acc", 3, 1),
        ("acc", 4, 3),
        ("loss", 3, 0),
        ("loss", 4, 2),
    ]
    assert samples[1]["value"] == math.inf
    assert math.isnan(samples[3]["value"])
    (line,) = taken["log"].to_pylist()
    assert (line["kind"], line["seq"], line["samples"], line["payload"]) == ("frame", 7, 4, None)
    assert line["received"].timestamp() == 1.0


def test_the_places_of_samples_count_from_each_frames_beginning(make: Any) -> None:
    """A frame can be put together again from its rows, whatever it was stored with."""
    rows = Rows()
    feed(rows, *(make.frame(seq, {"loss": [1.0, 2.0], "acc": [0.5, 0.6]}, step=2 * seq) for seq in range(3)))
    samples = rows.take()["samples"].select(["metric", "step", "offset", "ordinal"]).to_pylist()
    assert sorted((row["offset"], row["ordinal"], row["metric"], row["step"]) for row in samples) == [
        (seq, at, ("loss", "acc")[at % 2], 2 * seq + at // 2) for seq in range(3) for at in range(4)
    ]


def test_every_table_of_rows_has_the_columns_of_its_schema(make: Any) -> None:
    rows = Rows()
    saved = events.CheckpointSaved(
        run="run",
        process="p0",
        seq=2,
        time_us=5,
        checkpoint=events.Checkpoint(digest="d", uri="/c", files=[events.FileEntry("a", 3)]),
    )
    said = events.MetricDefined(run="run", process="p0", seq=3, time_us=5, metric="loss", goal="min")
    feed(rows, make.started(0), make.frame(1, {"loss": [1.0]}), events.encode(saved), make.accepted(4))
    feed(rows, events.encode(said))
    feed(rows, make.windows(0), source=Source("windows", "w"))
    feed(rows, make.fact(0), source=Source("facts", "f"))
    feed(rows, make.alert(0), source=Source("alerts", "a"))
    feed(rows, make.items("l", 0, 2), source=Source("eval-items", "i"))
    taken = rows.take()
    assert set(taken) == set(TABLES) - {"gaps"}  # which comes from no record
    for name, table in taken.items():
        plain = [pa.utf8() if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
        assert dict(zip(table.column_names, plain, strict=True)) == {
            field.name: field.type for field in TABLES[name].schema
        }, name


def test_the_windows_table_has_all_columns_of_the_wire() -> None:
    columns = {column.name: column.type for column in TABLES["windows"].columns}
    assert {field.name: field.type for field in window_rows.SCHEMA}.items() <= columns.items()


def test_no_float_column_has_statistics() -> None:
    for table in TABLES.values():
        for column in table.columns:
            assert not (pa.types.is_floating(column.type) and sorts_well(column)), (table.name, column.name)


def test_what_a_process_sent_again_is_dropped_and_stays_in_the_log(make: Any) -> None:
    one, two = make.frame(1, {"loss": [1.0]}), make.frame(2, {"loss": [2.0]})
    rows = Rows()
    feed(rows, one, one, two, one, make.frame(1, {"loss": [9.0]}, process="other"))
    taken = rows.take()
    assert taken["samples"].column("value").to_pylist() == [1.0, 2.0, 9.0]
    assert taken["log"].column("outcome").to_pylist() == [
        "stored",
        "duplicate",
        "stored",
        "duplicate",
        "stored",
    ]
    assert rows.counts["duplicate"] == 2


@pytest.mark.parametrize("topic", ["windows", "facts", "alerts"])
def test_an_output_that_was_sent_again_is_dropped(make: Any, topic: Any) -> None:
    maker = {"windows": make.windows, "facts": make.fact, "alerts": make.alert}[topic]
    rows = Rows()
    feed(rows, maker(3), maker(5), maker(3), maker(5), maker(6), source=Source(topic, "t"))
    assert rows.take()[topic].column("offset").to_pylist() == [3, 5, 6]


def test_outputs_of_one_input_record_are_told_apart_by_their_ordinal(make: Any) -> None:
    rows = Rows()
    feed(
        rows, make.fact(3, 0), make.fact(3, 1), make.fact(3, 0), make.fact(3, 2), source=Source("facts", "t")
    )
    assert rows.take()["facts"].column("ordinal").to_pylist() == [0, 1, 2]


def test_an_accepted_evaluation_that_was_copied_twice_counts_once(make: Any) -> None:
    rows = Rows()
    feed(rows, make.accepted(4), make.accepted(4), make.accepted(9))
    assert rows.take()["evals"].column("request").to_pylist() == ["request-4", "request-9"]


def test_a_failed_evaluation_is_one_row_without_metric(make: Any) -> None:
    rows = Rows()
    feed(rows, make.accepted(4, outcome=events.EvalOutcome(status="failed", reason="suite raised")))
    (row,) = rows.take()["evals"].to_pylist()
    assert (row["status"], row["reason"], row["metric"], row["value"]) == (
        "failed",
        "suite raised",
        None,
        None,
    )


def test_items_sent_again_in_other_pieces_count_once(make: Any) -> None:
    rows = Rows()
    values = [make.items("a", 0, 4), make.items("a", 2, 4), make.items("b", 0, 1), make.items("a", 0, 6)]
    feed(rows, *values, source=Source("eval-items", "t"))
    items = rows.take()["eval_items"].to_pylist()
    assert [(row["lease"], row["position"]) for row in items] == [*(("a", at) for at in range(6)), ("b", 0)]


def test_items_that_come_late_fill_their_hole() -> None:
    seen = SeenItems()
    assert seen.new("a", 10, 2) == [10, 11]
    assert seen.new("a", 0, 3) == [0, 1, 2]
    assert seen.new("a", 1, 11) == [3, 4, 5, 6, 7, 8, 9]


def test_the_process_that_was_silent_longest_is_forgotten_first() -> None:
    seen = SeenProcesses(limit=2)
    assert [seen.is_new("r", process, 1) for process in "aba"] == [True, True, False]
    assert seen.is_new("r", "c", 1)
    assert [seen.is_new("r", process, 1) for process in "ac"] == [False, False]
    assert seen.is_new("r", "b", 1)


POISON = [
    b"\x00raw bytes",
    b"",
    None,
    b'{"kind":"tick","v":1}',
    b"\xff\xff\xff\xff broken arrow",
    b"[" * 10_000,
    b'{"kind":"heartbeat","run":"r","process":"p","seq":18446744073709551615,"time_us":1}',
    b'{"kind":"process_started","run":"r","process":"p","seq":1,"time_us":1,"rank":99999999999}',
    b'{"kind":"process_started","run":"r","process":"p","seq":1,"time_us":18446744073709551615}',
]


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
def test_an_undecodable_record_is_logged_with_its_bytes_and_the_others_are_stored(
    make: Any, poison: bytes | None
) -> None:
    rows = Rows()
    bad = feed(rows, make.frame(1, {"loss": [1.0]}), poison, make.frame(2, {"loss": [2.0]}))
    assert bad == [None, None, None]  # the stream worker sends telemetry's dead letters
    taken = rows.take()
    assert taken["samples"].num_rows == 2
    line = taken["log"].to_pylist()[1]
    assert (line["outcome"], line["payload"]) == ("undecodable", poison)
    assert line["reason"]


def test_a_frame_with_an_impossible_rank_is_undecodable() -> None:
    frame = frames.Frame("r", "p", 1 << 40, 1, ["m"], *_one_sample())
    rows = Rows()
    feed(rows, frames.encode(frame))
    assert rows.counts["undecodable"] == 1


@pytest.mark.parametrize("topic", ["windows", "facts", "alerts", "eval-items"])
@pytest.mark.parametrize("poison", [b"raw", b"", None, b'{"kind":"fact","v":1}', b'{"kind":"tick","v":1}'])
def test_an_undecodable_output_is_handed_back_with_its_reason(topic: Any, poison: bytes | None) -> None:
    rows = Rows()
    (bad,) = feed(rows, poison, source=Source(topic, "t"))
    assert bad is not None
    assert str(bad)
    assert rows.take() == {}


def test_an_event_on_a_foreign_topic_is_handed_back(make: Any) -> None:
    (bad,) = feed(Rows(), make.alert(1), source=Source("facts", "t"))
    assert "does not belong on facts" in str(bad)


@pytest.mark.parametrize("value", [b'{"kind":"new_thing","v":1}', b'{"kind":"tick","v":2,"x":1}'])
def test_unknown_kinds_and_newer_versions_are_skipped_and_counted(value: bytes) -> None:
    rows = Rows()
    assert feed(rows, value) == [None]
    assert feed(rows, value, source=Source("facts", "t")) == [None]
    assert rows.counts["unknown"] == 2
    assert rows.take()["log"].column("outcome").to_pylist() == ["unknown"]


def test_a_record_that_is_read_again_goes_only_to_tables_that_lack_it(make: Any) -> None:
    rows = Rows()
    floors: Any = {"samples": 0, "log": 1, "checkpoints": -1, "evals": -1, "processes": 1}
    values = [make.started(0), make.frame(1, {"loss": [1.0]}), make.frame(2, {"loss": [2.0]})]
    for offset, value in enumerate(values):
        rows.add(TELEMETRY, Record(0, offset, 0, value), floors)
    taken = rows.take()
    assert taken["samples"].column("offset").to_pylist() == [1, 2]
    assert taken["log"].column("offset").to_pylist() == [2]
    assert "processes" not in taken


def test_taking_twice_gives_nothing_twice(make: Any) -> None:
    rows = Rows()
    feed(rows, make.frame(1, {"loss": [1.0]}), make.tick())
    assert rows.waiting == 3
    assert rows.take()
    assert rows.take() == {}
    assert rows.waiting == 0


def _one_sample() -> tuple[Any, ...]:
    return np.zeros(1, np.int16), np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1), np.ones(1)


def _naive_order(table: pa.Table) -> list[tuple[Any, ...]]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        rank = -(1 << 40) if row["rank"] is None else row["rank"]
        step = -(1 << 70) if row["step"] is None else row["step"]
        return row["run"], row["metric"], rank, step, row["offset"], row["ordinal"]

    return sorted(key(row) for row in table.to_pylist())


@pytest.mark.parametrize("wide", [False, True], ids=["packed", "lexical"])
@pytest.mark.parametrize("seed", range(5))
def test_samples_of_many_frames_come_sorted_with_nothing_lost(seed: int, wide: bool) -> None:
    """Against a slow oracle: random frames with and without steps and ranks, small and huge steps."""
    random = np.random.default_rng(seed)
    rows, total = SampleRows(), 0
    for offset in range(30):
        count = int(random.integers(0, 20))
        names = [f"m{at}" for at in random.permutation(6)]
        step = random.integers(-5, 5, count) if not wide else random.integers(-(1 << 62), 1 << 62, count)
        step = np.where(random.random(count) < 0.2, NO_STEP, step)
        rank = None if random.random() < 0.2 else int(random.integers(0, 4))
        metric = random.integers(0, 6, count).astype(np.int16)
        value = np.array([int(names[at][1:]) for at in metric], np.float64)
        frame = frames.Frame(
            f"r{random.integers(2)}", "p", rank, offset, names, metric, step, step * 0, value, value + 1
        )
        rows.add(frame, topic_uuid="u", partition=0, offset=offset)
        total += count
    table = rows.take()
    assert table.num_rows == total
    keys = _naive_order(table)
    found = [
        (
            row["run"],
            row["metric"],
            -(1 << 40) if row["rank"] is None else row["rank"],
            -(1 << 70) if row["step"] is None else row["step"],
            row["offset"],
            row["ordinal"],
        )
        for row in table.to_pylist()
    ]
    assert found == keys
    assert all(row["value"] == int(row["metric"][1:]) for row in table.to_pylist())
    assert all(row["weight"] == row["value"] + 1 for row in table.to_pylist())


def test_the_order_of_every_table_names_its_own_columns() -> None:
    for table in TABLES.values():
        assert set(table.order) <= {column.name for column in table.columns}
