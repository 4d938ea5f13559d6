"""The kill loop's judge finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from driftline import events, records
from driftline.connection import KafkaSettings
from driftline.records import OutputId, Record
from driftline.storage.lake import Lake
from driftline.storage.rows import Rows, Source
from driftline.storage.tables import TABLES
from driftline.topics import TopicName

UUID = "u"
FRAMES = 5


@pytest.mark.parametrize(
    ("sent", "contradictions", "repeated", "says"),
    [
        ([(0, b"a"), (1, b"b"), (5, b"c")], 0, 0, ""),
        ([(0, b"a"), (1, b"b"), (0, b"a"), (1, b"b"), (5, b"c")], 0, 2, ""),
        ([(0, b"a"), (1, b"b")], 0, 0, ""),  # nobody had worked on the record at 5
        ([(0, b"a"), (1, b"b"), (1, b"other"), (5, b"c")], 1, 1, "two contents"),
        ([(0, b"a"), (1, b"other"), (5, b"c")], 0, 0, "output 1/0 is not what the core says"),
        ([(0, b"a")], 0, 0, "1 outputs, the core says 2"),
        ([(0, b"a"), (5, b"c"), (1, b"b")], 0, 1, "not what the core says"),  # a reader drops the late one
        ([(0, b"a"), (1, b"b"), (5, b"c"), (9, b"d")], 0, 0, "1 outputs that the core does not know"),
    ],
)
def test_outputs_that_readers_would_get_wrong_are_found(
    chaos: ModuleType, sent: list[Any], contradictions: int, repeated: int, says: str
) -> None:
    """Sent again is fine; missing, other, out of order and unknown outputs are not."""
    outputs = chaos.judge.Outputs()
    for offset, value in [(0, b"a"), (1, b"b"), (5, b"c")]:
        outputs.want("windows", 2, OutputId(UUID, 2, offset, 0), value)
    for offset, value in sent:
        outputs.take("windows", 2, OutputId(UUID, 2, offset, 0), value)
    problems = outputs.problems({chaos.logs.Source(UUID, 2): 5})
    assert (outputs.contradictions, outputs.repeated) == (contradictions, repeated)
    assert bool(problems) == bool(says)
    assert says in "; ".join(problems)


@pytest.mark.parametrize(
    ("spoil", "lost", "doubled", "says"),
    [
        ("nothing", 0, 0, ""),
        ("two rows again", 0, 2, ""),
        ("three rows gone", 3, 0, ""),
        ("another value", 0, 0, "samples: 1 rows missing, 1 rows too many"),
        ("a row of the log again", 0, 0, "log: 0 rows missing, 1 rows too many"),
        ("rows of another topic", 0, 0, "samples: 2 rows of records that the log does not have"),
        ("a gap", 0, 0, "gaps: 1 rows"),
        ("a row beyond the log's end", 0, 0, "samples: 1 rows of records that the log does not have"),
    ],
)
def test_rows_that_are_lost_doubled_or_other_are_counted(
    chaos: ModuleType, tmp_path: Path, spoil: str, lost: int, doubled: int, says: str
) -> None:
    """Tables as the sink writes them, spoilt in one way, against the log that they come from."""
    rank = chaos.ranks.ALL[0]
    log = [Record(0, at, 1_000, chaos.ranks.frame_of(rank, at + 1, 1_000_000)) for at in range(FRAMES)]
    store(tmp_path, log)
    samples, place = DeltaTable(str(tmp_path / "samples")), '"offset" = 3 and ordinal'
    if spoil == "two rows again":
        write_deltalake(str(tmp_path / "samples"), table(samples).slice(0, 2), mode="append")
    elif spoil == "three rows gone":
        samples.delete(f"{place} < 3")
    elif spoil == "another value":
        samples.update(updates={"value": "value + 1e-9"}, predicate=f"{place} = 2")
    elif spoil == "a row of the log again":
        again = table(DeltaTable(str(tmp_path / "log"))).slice(1, 1)
        write_deltalake(str(tmp_path / "log"), again, mode="append")
    elif spoil == "rows of another topic":
        strays = with_column(table(samples).slice(0, 2), "topic_uuid", "another")
        write_deltalake(str(tmp_path / "samples"), strays, mode="append")
    elif spoil == "a gap":
        row = pa.Table.from_pylist([{"partition": 0}], TABLES["gaps"].schema)
        write_deltalake(str(tmp_path / "gaps"), row, mode="append")
    elif spoil == "a row beyond the log's end":
        stray = with_column(table(samples).slice(0, 1), "offset", FRAMES)
        write_deltalake(str(tmp_path / "samples"), stray, mode="append")
    report = chaos.Report()
    tables = chaos.tables.Tables(tmp_path, report)
    tables.compare_log(UUID, 0, [(record, records.decode(record.value), True) for record in log])
    tables.compare_rest()
    assert (report.lost, report.doubled) == (lost, doubled)
    assert bool(report.problems) == bool(says)
    assert says in "; ".join(report.problems)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("nothing", ""),
        ("sent again", ""),
        ("an item twice", "eval_items: 0 rows missing, 1 rows too many"),
        ("an item gone", "eval_items: 1 rows missing, 0 rows too many"),
        ("another score", "eval_items: 1 rows missing, 1 rows too many"),
        ("an item never sent", "eval_items: 2 of 3 items of lease"),
    ],
)
def test_evaluated_items_that_are_lost_doubled_or_other_are_found(
    chaos: ModuleType, tmp_path: Path, spoil: str, says: str
) -> None:
    """Items of a lease as the sink stores them, spoilt in one way, against the topic and the result."""
    some = [events.Item(item=f"i{at}", status="scored", score=at / 2) for at in range(3)]
    sent = events.EvalItems(
        run="r", request="q", lease="lease", first=0, items=some[: 2 if spoil == "an item never sent" else 3]
    )
    log = [Record(0, at, 1_000, events.encode(sent)) for at in range(2 if spoil == "sent again" else 1)]
    store(tmp_path, log, topic="eval-items")
    items = DeltaTable(str(tmp_path / "eval_items"))
    if spoil == "an item twice":
        write_deltalake(str(tmp_path / "eval_items"), table(items).slice(1, 1), mode="append")
    elif spoil == "an item gone":
        items.delete("position = 1")
    elif spoil == "another score":
        items.update(updates={"score": "score + 1e-9"}, predicate="position = 1")
    report = chaos.Report()
    tables = chaos.tables.Tables(tmp_path, report)
    for record in log:
        tables.want_items(UUID, record)
    tables.compare_items({("q", "r"): [accepted(items=3)]})
    assert bool(report.problems) == bool(says)
    assert says in "; ".join(report.problems)


def accepted(*, items: int) -> events.EvalAccepted:
    """The result of the lease, with so many items."""
    return events.EvalAccepted(
        id="u/0/0/0",
        request="q",
        run="r",
        attempt=0,
        suite=events.SuiteRef(name="s", target="m:s"),
        checkpoint=events.Checkpoint(digest="d", uri="/x"),
        reason="steps",
        evaluator="e",
        lease="lease",
        tries=1,
        requested_us=0,
        accepted_us=1,
        outcome=events.EvalOutcome(status="done", items=items),
    )


def store(root: Path, log: list[Record], *, topic: TopicName = "telemetry") -> None:
    lake, rows = Lake(root), Rows()
    for record in log:
        assert rows.add(Source(topic, UUID), record) is None
    for name, some in rows.take().items():
        lake.commit(name, some, {f"{UUID}/0": -1}, {f"{UUID}/0": log[-1].offset})


def with_column(rows: pa.Table, name: str, value: Any) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.field(name), pa.array([value] * len(rows), rows.field(name).type))


def table(handle: DeltaTable) -> pa.Table:
    return pa.table(handle.to_pyarrow_table())


def test_a_seed_strikes_in_the_same_ways_again(chaos: ModuleType, tmp_path: Path) -> None:
    """And the first fault always makes a worker read a gap; two of each from half of the faults on."""
    plan = chaos.Plan(kafka=KafkaSettings(), folder=tmp_path, kills=200, seed=7)
    found = chaos.schedule.faults(plan)
    assert found == chaos.schedule.faults(plan)
    assert found != chaos.schedule.faults(replace(plan, seed=8))
    assert len(found) == 200
    assert (found[0].role, found[0].kind, found[0].skips) == ("streams", "kill", True)
    assert {fault.number for fault in found[:100]} == {0}
    assert {fault.number for fault in found[100:]} == {0, 1}
    assert {fault.name for fault in found} == {
        f"{kind} {role}" for kind in chaos.schedule.EACH_KIND for role in chaos.schedule.EACH_ROLE
    }
