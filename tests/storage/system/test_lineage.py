"""From any number back to its record and configuration, and on to what rests on it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from driftline import events

NAMES = ["loss", "it's; DROP VIEW samples; --", '"quoted"', "损失 🚀", "", "a.b", "a/b"]


def restarted(tables: Any, metric: str = "loss") -> None:
    """Step 5: two ranks, then rank 0 of a second attempt, under another configuration of the pipeline."""
    for offset, digest in ((0, "first"), (50, "second")):
        made = events.ConfigChanged(worker="w", time_us=tables.t0, digest=digest, body=b'{"digest": "no"}')
        row = {"kind": "config_changed", "outcome": "stored", "payload": events.encode(made)}
        where = {"topic_uuid": tables.uuid, "partition": 0, "offset": offset, "received": tables.t0}
        tables.add("log", [row | where])
    tables.process("r", "a0", rank=0, host="node-a", config='{"lr": 1}')
    tables.process("r", "a1", rank=1, host="node-b", config='{"lr": 1}')
    for process, rank, value in (("a0", 0, 1.0), ("a1", 1, math.nan)):
        at = tables.samples("r", process, [("x", 5, 1, 0.0), (metric, 5, 1, value)], rank=rank)
        tables.record("r", process, "frame", at, at=2)
    while tables.next_offset() < 60:
        pass
    tables.process("r", "b0", attempt=1, rank=0, host="node-c", config='{"lr": 2}')
    tables.samples("r", "b0", [(metric, 5, 9, 2.0)], rank=0)


@pytest.mark.parametrize("metric", NAMES)
def test_each_sample_behind_a_number_names_its_record_process_and_configuration(
    tables: Any, metric: str
) -> None:
    restarted(tables, metric)
    found = tables.dicts("FROM lineage('r', ?, 5)", [metric])
    assert [(row["attempt"], row["rank"], row["in_curve"]) for row in found] == [
        (1, 0, True),
        (0, 0, False),
        (0, 1, False),
    ]
    newest, first, second = found
    assert (newest["process"], newest["host"], newest["process_config"]) == ("b0", "node-c", '{"lr": 2}')
    assert (newest["pipeline_config"], first["pipeline_config"]) == ("second", "first")
    assert (newest["value"], first["value"]) == (2.0, 1.0)
    assert math.isnan(second["value"])
    assert (first["ordinal"], first["partition"], first["topic_uuid"]) == (1, 0, tables.uuid)
    ((seq, received),) = tables.rows('SELECT seq, received FROM log WHERE "offset" = ?', [first["offset"]])
    assert (first["seq"], first["received"]) == (seq, received)
    assert (newest["seq"], newest["received"]) == (None, None), "a row of log that retention took"


def test_windows_and_alerts_that_hold_a_sample_rest_on_it(tables: Any) -> None:
    restarted(tables)
    plain = {"run": "r", "metric": "loss", "topic_uuid": tables.uuid, "partition": 0, "ordinal": 0}
    windows = [
        {
            "axis": "step",
            "start": 0,
            "end": 10,
            "group": "",
            "attempt": 0,
            "revision": 0,
            "offset": 70,
            "mean": 1.0,
        },
        {
            "axis": "step",
            "start": 0,
            "end": 10,
            "group": "",
            "attempt": 0,
            "revision": 1,
            "offset": 71,
            "mean": 1.5,
        },
        {"axis": "step", "start": 0, "end": 5, "group": "", "attempt": 0, "revision": 0, "offset": 72},
        {"axis": "step", "start": 5, "end": 6, "group": "rank=1", "attempt": 0, "revision": 0, "offset": 73},
        {"axis": "step", "start": 0, "end": 10, "group": "", "attempt": 1, "revision": 0, "offset": 74},
        {
            "axis": "time",
            "start": tables.t0,
            "end": tables.t0 + 1_000_001,
            "group": "",
            "attempt": 0,
            "revision": 0,
            "offset": 75,
        },
    ]
    tables.add("windows", [plain | {"count": 1} | row for row in windows])
    alerts = [
        {
            "alert": "nan/1",
            "state": "open",
            "rule": "non-finite",
            "attempt": 0,
            "rank": 1,
            "step": 5,
            "offset": 80,
        },
        {
            "alert": "nan/1",
            "state": "resolved",
            "rule": "non-finite",
            "attempt": 0,
            "rank": 1,
            "step": 5,
            "last_step": 6,
            "offset": 81,
        },
        {
            "alert": "high",
            "state": "open",
            "rule": "limit",
            "attempt": 0,
            "step": 2,
            "last_step": 4,
            "offset": 82,
        },
    ]
    tables.add("alerts", [plain | row for row in alerts])
    found = tables.rows("SELECT attempt, rank, windows, alerts FROM lineage('r', 'loss', 5)")
    assert found == [(1, 0, 1, []), (0, 0, 2, []), (0, 1, 3, ["nan/1"])]
    resting = tables.rows("SELECT kind, \"offset\" FROM rests_on('r', 'loss', 5)")
    assert resting == [
        ("alert", 80),
        ("alert", 81),
        ("window", 71),
        ("window", 73),
        ("window", 74),
        ("window", 75),
    ]


def test_an_evaluated_number_names_its_request_lease_weights_suite_and_checkpoint(tables: Any) -> None:
    restarted(tables)
    where = {"topic_uuid": tables.uuid, "partition": 0}
    saved = {
        "run": "r",
        "process": "a0",
        "rank": 0,
        "seq": 4,
        "step": 5,
        "digest": "c5",
        "uri": "/c/5",
        "offset": 20,
    }
    tables.add("checkpoints", [saved | where])
    number = {"run": "r", "suite": "gsm8k", "metric": "exact_match", "step": 5, "value": 0.5, "lease": "l1"}
    number |= {"request": "q1", "checkpoint": "c5", "uri": "/c/5", "weights_digest": "w", "suite_digest": "s"}
    number |= {"status": "done", "items": 2, "tries": 1, "settings": "{}", "offset": 55, "attempt": 0}
    tables.add("evals", [number | where, number | where | {"metric": "length", "value": math.nan}])
    tables.add(
        "eval_items", [{"lease": lease, "position": at} | where for at in (0, 1) for lease in ("l1", "l0")]
    )
    (row,) = tables.dicts("FROM eval_lineage('r', 'exact_match', 5)")
    expected = {"request": "q1", "lease": "l1", "weights_digest": "w", "suite_digest": "s", "items": 2}
    expected |= {"items_stored": 2, "saved_by": "a0", "saved_seq": 4, "saved_offset": 20}
    expected |= {"pipeline_config": "second", "offset": 55, "checkpoint": "c5", "uri": "/c/5"}
    assert expected.items() <= row.items()
    assert len(tables.rows("FROM eval_lineage('r')")) == 2


def test_a_number_that_is_not_there_has_no_lineage(tables: Any) -> None:
    restarted(tables)
    assert tables.rows("FROM lineage('r', 'loss', 6)") == tables.rows("FROM lineage('r', 'lost', 5)") == []
    assert tables.rows("FROM rests_on('r', 'loss', 6)") == tables.rows("FROM eval_lineage('nobody')") == []
    assert len(tables.rows("FROM lineage('r', 'loss')")) == 3, "all steps, if none is named"
