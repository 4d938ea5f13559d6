"""However many windows one record closes, each output fits into a Kafka record and none is lost."""

from __future__ import annotations

import numpy as np

from driftline import events, frames, window_rows
from driftline.config import PipelineConfig, WindowSpec, digest, encode
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
