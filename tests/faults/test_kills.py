"""Everything is killed, paused, restarted at random while ranks produce: nothing is lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.timeout(3_000)]
KILLS = 15
AHEAD = 6_000  # fewer records to compare than the program's own bound would give
SEED = 11  # every role at least twice, every kind


def test_random_kills_lose_and_double_nothing(kafka: Any, chaos: ModuleType, tmp_path: Path) -> None:
    """Fifteen faults against workers, scheduler, sink and evaluator, one of each and then two: topics are
    what the pure cores and the naive oracle say, tables are what topics hold, a checkpoint has one result."""
    settings = kafka.settings(partitions=chaos.plan.PARTITIONS)
    plan = chaos.Plan(kafka=settings, folder=tmp_path, kills=KILLS, seed=SEED, ahead=AHEAD, say=print)
    report = chaos.run(plan)
    print(report.json())
    assert report.problems == []
    assert (report.lost, report.doubled, report.contradictions) == (0, 0, 0)
    assert report.stored == report.accepted > 0
    assert report.at_work >= KILLS // 2, "the faults met processes that worked"
    assert report.filled >= 1_000, "a gap of a thousand records was read from the log under load"
    assert report.naive_windows > 0
    assert report.evaluations > 0
