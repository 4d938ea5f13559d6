"""Bytes written by version 1 stay readable for ever, and version 1 goes on writing the same bytes.

A format change shows up here: a new optional field is added to the samples below and to new golden files; the
old files stay and must still decode. ``DRIFTLINE_WRITE_GOLDEN=1`` writes files that are missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from driftline import config, events, frames, records, window_rows
from driftline.errors import BadRecord
from driftline.records import OutputId

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
ID = "5f0c2b6e-7a35-4b6d-9d44-000000000001/3/41/0"
CHECKPOINT = events.Checkpoint(
    digest="9f2a",
    uri="/data/ckpt/step-100",
    step=100,
    epoch=0.5,
    files=[events.FileEntry("model.safetensors", 7)],
)
SUITE = events.SuiteRef(name="sums", target="demo.suite:suite", version="2", settings={"items": 200})
SDK = {"run": "01jrun", "process": "p7", "seq": 3, "time_us": 1_764_000_000_000_000}
OUTCOME = events.EvalOutcome(
    status="done",
    metrics=[
        events.Metric(name="exact_match", value=0.5, stderr=0.05, low=0.4, high=0.6, count=100),
        events.Metric(name="perplexity", value=events.number(float("inf")), count=900, unit="1"),
    ],
    items=100,
    weights_digest="77aa",
    suite_digest="88bb",
    cost=events.Cost(seconds=1.5, wait_seconds=0.25, tokens=900, peak_memory_bytes=1024),
    settings={"dtype": "float32"},
)
OUTCOME_FIELDS = {"request": "r1", "run": "01jrun", "suite": SUITE, "checkpoint": CHECKPOINT}
SAMPLES: list[events.Event] = [
    events.ProcessStarted(
        **SDK,
        name="a/../b",
        rank=3,
        world_size=4,
        local_rank=3,
        host="h",
        pid=9,
        config={"lr": 0.1},
        sdk="0.1.0",
    ),
    events.ProcessEnded(**SDK, outcome="exception", counters={"logged": 5}),
    events.Heartbeat(**SDK, step=12, counters={"logged": 5}),
    events.RunRewound(**SDK, step=10),
    events.CheckpointSaved(**SDK, checkpoint=CHECKPOINT, rank=0),
    events.MetricDefined(
        **SDK,
        metric="rollout/tokens per s",
        goal="max",
        unit="tokens/s",
        reduce="sum",
        description="of all rollout workers",
    ),
    events.Tick(worker="w1", time_us=5),
    events.ConfigChanged(worker="w1", time_us=5, digest="d", body=msgspec.Raw(b'{"windows":[]}')),
    events.ImportSegment(
        time_us=5,
        state="done",
        limits={"a.csv": 120},
        whole=True,
        reading={"format": "csv"},
        config="{}",
        digest="d",
        refused={"text": 2},
    ),
    events.EvalRequested(id=ID, attempt=1, reason="steps", time_us=5, **OUTCOME_FIELDS),
    events.EvaluatorPresent(
        evaluator="e1", time_us=5, host="h", device="cuda:0", suites=["sums"], lease="l1"
    ),
    events.EvaluatorGone(evaluator="e1", time_us=5),
    events.EvalProgress(evaluator="e1", lease="l1", request="r1", time_us=5, done=3, total=9),
    events.EvalResult(evaluator="e1", lease="l1", request="r1", time_us=5, outcome=OUTCOME),
    events.EvalAccepted(
        id=ID,
        attempt=1,
        reason="steps",
        evaluator="e1",
        lease="l1",
        tries=1,
        requested_us=5,
        accepted_us=9,
        outcome=OUTCOME,
        **OUTCOME_FIELDS,
    ),
    events.Lease(id=ID, lease="l1", evaluator="e1", tried=1, expires_us=9, **OUTCOME_FIELDS),
    events.RequestClosed(id=ID, request="r1", lease="l1", status="done"),
    events.EvalItems(
        run="01jrun",
        request="r1",
        lease="l1",
        first=0,
        items=[
            events.Item(
                item="i0", status="correct", score=1.0, response="42", response_length=2, expected="42"
            )
        ],
    ),
    events.Fact(id=ID, run="01jrun", attempt=1, what="late", time_us=5, text="late", metric="loss", count=2),
    events.Alert(
        id=ID,
        alert="a1",
        run="01jrun",
        attempt=1,
        rule="non-finite",
        detector="non_finite",
        severity="page",
        state="open",
        time_us=5,
        opened_us=5,
        metric="loss",
        rank=3,
        step=2,
        last_step=2,
        value="NaN",
        explanation="loss is NaN on rank 3 at step 2",
        evidence={"before": [0.9, 0.8]},
    ),
    events.DeadLetter(
        topic="t",
        partition=1,
        offset=2,
        reason="not an event",
        reader="sink",
        time_us=5,
        value=b"\xff",
        size=1,
    ),
]
FRAME = frames.Frame(
    run="01jrun",
    process="p7",
    rank=3,
    seq=4,
    names=["loss", "a/b"],
    metric=np.array([0, 1, 0], np.int16),
    step=np.array([7, frames.NO_STEP, 8], np.int64),
    time_us=np.array([1, 2, 3], np.int64),
    value=np.array([0.5, np.nan, np.inf]),
    weight=np.array([1.0, 2.0, 1.0]),
    counters='{"logged":3}',
)


def golden(name: str, payload: bytes) -> bytes:
    path = GOLDEN / name
    if not path.exists() and os.environ.get("DRIFTLINE_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)
    return path.read_bytes()


def test_every_kind_of_event_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == set(get_args(events.Event))


@pytest.mark.parametrize("sample", SAMPLES, ids=events.kind_of)
def test_events(sample: events.Event) -> None:
    payload = golden(f"{events.kind_of(sample)}.json", events.encode(sample))
    assert payload == events.encode(sample)
    assert records.decode(payload) == sample


def test_a_checkpoint_with_the_fields_that_came_later() -> None:
    """Old readers skip them; events without them have the bytes that they always had."""
    grown = msgspec.structs.replace(
        CHECKPOINT,
        files=[],
        count=900,
        size=7_000_000,
        sampling="pieces-1",
        copy="/data/ckpt/.driftline-protected/9f2a/step-100",
    )
    sample = events.CheckpointSaved(**SDK, checkpoint=grown, rank=0)
    payload = golden("checkpoint_saved.copy.json", events.encode(sample))
    assert payload == events.encode(sample)
    assert records.decode(payload) == sample


def test_frame() -> None:
    payload = golden("frame.arrow", frames.encode(FRAME))
    assert repr(frames.decode(payload)) == repr(frames.decode(frames.encode(FRAME)))
    assert payload == frames.encode(FRAME)


def test_windows() -> None:
    columns = {field.name: [None if field.nullable else 0] for field in window_rows.SCHEMA}
    columns |= {"run": ["01jrun"], "axis": ["step"], "group": [""], "metric": ["loss"], "mean": [0.25]}
    columns["quantiles"] = [[("p99.9", 1.0)]]
    columns["extra"] = [[("geometric_mean", 0.2)]]
    written = window_rows.encode(columns, OutputId.parse(ID))
    assert golden("windows.extra.arrow", written) == written
    earlier = (golden("windows.arrow", b""), golden("windows.sum.arrow", b""))  # without sums, without extras
    for payload in (*earlier, written):
        ident, batch = window_rows.decode(payload)
        assert str(ident) == ID
        assert batch.column("mean").to_pylist() == [0.25]
        assert batch.column("sum").to_pylist() == batch.column("span").to_pylist() == [None]
        assert batch.column("extra").to_pylist() == [
            [("geometric_mean", 0.2)] if payload == written else None
        ]


def test_windows_of_a_newer_writer_are_read_and_damaged_ones_refused() -> None:
    """Columns that this version does not know are left out; one that is missing or of another type is not."""
    columns = {field.name: [None if field.nullable else 0] for field in window_rows.SCHEMA}
    columns |= {"run": ["01jrun"], "axis": ["step"], "group": [""], "metric": ["loss"], "mean": [0.25]}
    _, batch = window_rows.decode(window_rows.encode(columns, OutputId.parse(ID)))

    def written(batch: pa.RecordBatch) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema.with_metadata({"id": ID})) as writer:
            writer.write_batch(batch.cast(batch.schema.with_metadata({"id": ID})))
        payload: bytes = sink.getvalue().to_pybytes()
        return payload

    more = batch.append_column(pa.field("mode", pa.float64()), pa.array([1.0]))
    assert window_rows.decode(written(more))[1].equals(batch)
    with pytest.raises(BadRecord, match="'std'"):
        window_rows.decode(written(batch.drop_columns(["std"])))
    wrong = batch.drop_columns(["std"]).append_column(pa.field("std", pa.int64()), pa.array([1]))
    with pytest.raises(BadRecord, match="'std'"):
        window_rows.decode(written(wrong))


def test_default_configuration() -> None:
    """The configuration is hashed into the log: a new default must be a decision, seen here."""
    payload = golden("pipeline_config.2.json", config.encode(config.PipelineConfig()))
    assert payload == config.encode(config.PipelineConfig())
    for file in ("pipeline_config.json", "pipeline_config.2.json"):  # logs hold the older ones too
        payload = (GOLDEN / file).read_bytes()
        assert msgspec.json.decode(payload, type=config.PipelineConfig) == config.PipelineConfig()
