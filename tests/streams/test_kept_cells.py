"""What is held for panes whose cells nobody will read."""

from __future__ import annotations

from typing import Any

import numpy as np

from driftline import config
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000


def test_an_axis_without_windows_keeps_per_rank_only_what_detectors_watch(silent: Any) -> None:
    """With a sample per step and rank that would be a cell per sample; the watched ones come to detectors."""
    silent.watched = frozenset({"span/a"})
    log = silent.log(Pipeline(silent, silent))
    windows = [config.WindowSpec(axis="time", size=10 * SECOND, every=SECOND)]
    log.configure(config.PipelineConfig(windows=windows, per_rank=["loss", "span/a"]))
    for step in range(3):
        for rank in range(2):
            at_us = step * SECOND
            samples = [(name, step, at_us, float(rank), 1.0) for name in ("loss", "span/a")]
            log.frame(samples, process=f"p{rank}", rank=rank, at_us=at_us)

    attempt = log.state.runs["r"].attempt

    def kept(axis: str) -> dict[tuple[str, str], int]:
        """Open cells by group and metric."""
        table = attempt.axes[axis].open.table
        names = zip(attempt.series.groups, attempt.series.metrics, strict=True)
        return {name: int(np.sum(table[:, at] >= 0)) for at, name in enumerate(names)}

    every = [(group, name) for group in ("", "rank=0", "rank=1") for name in ("loss", "span/a")]
    assert kept("time") == dict.fromkeys(every, 3)
    unread = [("rank=0", "loss"), ("rank=1", "loss")]
    assert kept("step") == dict.fromkeys(every, 3) | dict.fromkeys(unread, 0)

    for second in range(3, 40):  # until both fell idle
        log.tick(second * SECOND)
    panes = [seen for seen in log.detection() if seen[:2] == ["pane", "step"]]
    assert {tuple(seen[6].items()) for seen in panes if seen[2] == "span/a"} == {((0, 0.0), (1, 1.0))}
    assert {row["group"] for row in log.rows(metric="loss")} == {"", "rank=0", "rank=1"}
