"""However many windows one record closes, each output fits into a Kafka record and none is lost."""

from __future__ import annotations

import msgspec
import numpy as np

from driftline import events, frames, window_rows
from driftline.config import PipelineConfig, Triggers, WindowSpec, digest, encode
from driftline.records import Record
from driftline.streams.pipeline import Pipeline

METRICS, STEPS = 40, 400


def test_a_record_that_closes_very_many_windows_gives_several_outputs() -> None:
    body = encode(PipelineConfig(windows=[WindowSpec("step", 10, 1)], detectors=[]))
    changed = events.ConfigChanged(worker="w", time_us=0, digest=digest(body), body=body)  # type: ignore[arg-type]
    names = [
        f"a rather long name of a metric, number {at:03d}, as people write them" for at in range(METRICS)
    ]
    count = METRICS * STEPS
    frame = frames.Frame(
        run="r",
        process="p",
        rank=0,
        seq=1,
        names=names,
        metric=np.tile(np.arange(METRICS, dtype=np.int16), STEPS),
        step=np.repeat(np.arange(STEPS, dtype=np.int64), METRICS),
        time_us=np.full(count, 1_000_000, np.int64),
        value=np.ones(count),
        weight=np.ones(count),
    )
    started = events.ProcessStarted(run="r", process="p", seq=0, time_us=0, rank=0, world_size=1)
    ended = events.ProcessEnded(run="r", process="p", seq=2, time_us=2_000_000)
    values = [events.encode(changed), events.encode(started), frames.encode(frame), events.encode(ended)]
    values += [events.encode(events.Tick(worker="w", time_us=(3 + at) * 1_000_000)) for at in range(120)]
    core = Pipeline()
    log = [Record(0, at, 1000 * at, value) for at, value in enumerate(values)]
    outputs = [o for o in core.step(core.fresh("u", 0), log) if o.topic == "windows"]
    assert max(len(output.value) for output in outputs) < 1_000_000
    assert sum(len(output.value) for output in outputs) > 2_000_000, "the case is too small to show anything"
    assert [output.id for output in outputs] == sorted({output.id for output in outputs})
    rows = sum(window_rows.decode(output.value)[1].num_rows for output in outputs)
    assert rows >= METRICS * (STEPS - 10)


def test_a_checkpoint_of_very_many_files_is_asked_for_in_a_record_that_fits() -> None:
    """Case 17, the sibling, from a producer that does not cut its manifest: requests and leases repeat it."""
    suite = events.SuiteRef(name="s", target="t")
    body = encode(PipelineConfig(suites=[suite], triggers=Triggers(steps=1)))
    changed = events.ConfigChanged(worker="w", time_us=0, digest=digest(body), body=msgspec.Raw(body))
    files = [events.FileEntry(f"{at:06d}/a rather long name of a shard.distcp", 7) for at in range(10_000)]
    checkpoint = events.Checkpoint(digest="d", uri="/c", step=5, files=files)
    values = [
        events.encode(changed),
        events.encode(events.ProcessStarted(run="r", process="p", seq=0, time_us=0, rank=0)),
        events.encode(events.CheckpointSaved(run="r", process="p", seq=1, time_us=1, checkpoint=checkpoint)),
    ]
    core = Pipeline()
    log = [Record(0, at, 1000 * at, value) for at, value in enumerate(values)]
    (asked,) = [o for o in core.step(core.fresh("u", 0), log) if o.topic == "evals"]
    assert len(asked.value) < 2000
    request = events.decode(asked.value)
    assert isinstance(request, events.EvalRequested)
    assert (request.checkpoint.files, request.checkpoint.count, request.checkpoint.size) == (
        [],
        10_000,
        70_000,
    )
