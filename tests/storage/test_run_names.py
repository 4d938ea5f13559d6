"""A run's name is a label and need not be unique (case 3)."""

from __future__ import annotations

from typing import Any

import pytest

import driftline
from driftline.settings import SdkSettings, Settings


@pytest.mark.embedded
def test_two_launches_of_one_name_are_two_runs_unless_one_resumes(quick: Any) -> None:
    settings = Settings(kafka=quick.kafka, sdk=SdkSettings(system=(), flush_us=50_000))

    def launch(losses: list[float], *, start: int = 0, **more: Any) -> str:
        run = driftline.init("exp1", settings=settings, rank=0, **more)
        for step, loss in enumerate(losses, start):
            run.log({"loss": loss}, step=step)
        run.finish()
        return run.id

    first = launch([3 - step / 10 for step in range(10)])
    second = launch([5 - step / 10 for step in range(10)])
    quick.drain()
    by_name = """SELECT r.run, r.name, count(*), max(c.mean) FROM runs AS r JOIN curves AS c USING (run)
        WHERE r.name = 'exp1' AND c.metric = 'loss' GROUP BY ALL ORDER BY max(c.mean)"""
    assert quick.rows(by_name) == [(first, "exp1", 10, 3.0), (second, "exp1", 10, 5.0)]
    assert launch([1.0] * 5, start=10, resume=first) == first
    quick.drain()
    assert quick.rows(by_name) == [(first, "exp1", 15, 3.0), (second, "exp1", 10, 5.0)]
    assert quick.rows("SELECT run, count(*) FROM samples WHERE metric = 'loss' GROUP BY 1 ORDER BY 2") == [
        (second, 10),
        (first, 15),
    ]
