"""Makes the compiled loops ready, by a small log that goes through all of them.

python -m driftline.streams.warm      compiles and keeps them, e.g. while an image is built
"""

from __future__ import annotations

import msgspec
import numpy as np

from driftline import config, events, frames
from driftline.records import Record
from driftline.streams import histogram
from driftline.streams.pipeline import Pipeline

_SECOND = 1_000_000


def up() -> None:
    """Returns when every loop is compiled: in a second or two where an earlier process has kept them."""
    histogram.bucket(np.ones(1))
    pipeline = Pipeline()
    state = pipeline.fresh("", 0)
    for record in _log():
        pipeline.step(state, [record])
        state = pipeline.load(pipeline.dump(state))


def _log() -> list[Record]:
    """Two ranks, metrics of the run, of ranks and derived, until windows of every kind are out."""
    settings = config.PipelineConfig(
        windows=[
            config.WindowSpec(axis="time", size=2 * _SECOND, every=_SECOND),
            config.WindowSpec(axis="step", size=2, every=1),
            config.WindowSpec(axis="step", size=0, every=1),
        ],
        per_rank=["x"],
        quantiles={"x": [0.1]},
        allowed_lateness_us=0,
    )
    body = config.encode(settings)
    change = events.ConfigChanged(worker="w", time_us=0, digest=config.digest(body), body=msgspec.Raw(body))
    values = [events.encode(change)]
    for step in range(6):
        for rank in range(2):
            values.append(frames.encode(_frame(rank, step)))
        values.append(events.encode(events.Tick(worker="w", time_us=step * _SECOND)))
    return [Record(0, at, at * 400, value) for at, value in enumerate(values)]


def _frame(rank: int, step: int) -> frames.Frame:
    count = 4
    return frames.Frame(
        run="r",
        process=f"p{rank}",
        rank=rank,
        seq=step,
        names=["x", "y"],
        metric=np.array([0, 1, 0, 1], np.int16),
        step=np.full(count, step),
        time_us=np.full(count, step * _SECOND),
        value=np.array([1.0, 2.0, 1e-3, 1e6]),
        weight=np.ones(count),
    )


if __name__ == "__main__":
    up()
