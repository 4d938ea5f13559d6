"""Ranks against each other: one bad rank, uneven work and even ranks are told apart, on real traces too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def work(tables: Any, took: dict[int, list[float]], run: str = "r") -> None:
    """Each rank's seconds in one span, step by step, all logged when it ended."""
    for rank, seconds in took.items():
        rows = [("span/forward", step, 100.0 * (step + 1), value) for step, value in enumerate(seconds)]
        tables.samples(run, f"p{rank}", rows, rank=rank)


def verdict(tables: Any, run: str = "r") -> dict[str, Any]:
    return next(row for row in tables.dicts("FROM rank_skew(?)", [run]) if row["metric"] == "(work)")


def noise(seed: int, ranks: int, steps: int, spread: float = 0.005) -> dict[int, list[float]]:
    rng = np.random.default_rng(seed)
    return {rank: (1 + spread * rng.standard_normal(steps)).tolist() for rank in range(ranks)}


def test_a_slow_worker_of_a_real_job_is_named_with_what_it_costs(tables: Any, timings: Path) -> None:
    """Published for this job: rank 0 computes 2.36 times the median, slowdown 1.97.

    The published slowdown simulates the pipeline's schedule with mean durations, bubbles and all; ours
    compares the slowest rank with the median and the mean rank: 2.3 and 2.1.
    """
    tables.trace(timings / "trace-AR.parquet", "AR")
    published = json.loads((timings / "result-AR.json").read_text())["blocking_slowdown"]
    found = verdict(tables, "AR")
    assert (found["verdict"], found["slow_ranks"], found["ranks"], found["steps"]) == (
        "slow rank",
        [0],
        16,
        44,
    )
    assert found["slowest_ratio"] == pytest.approx(2.32, abs=0.05)
    assert found["same_rank_share"] == 1.0
    assert found["slowdown_mean"] == pytest.approx(published, rel=0.1)
    assert found["job_slowdown"] == pytest.approx(published, rel=0.2)
    assert found["slowdown_without"] < 1.06
    assert found["says"].startswith("rank 0 is slow in every step: 2.3")
    (first, *others) = tables.dicts("SELECT rank, ratio, z, largest_share FROM ranks('AR')")
    assert (first["rank"], first["largest_share"]) == (0, 1.0)
    assert first["z"] > 20 > 5 > max(row["z"] for row in others)
    path = tables.rows("SELECT DISTINCT rank, rank_share FROM critical_path('AR')")
    assert path == [(0, 1.0)]
    for span in ("forward-compute", "backward-compute"):
        (row,) = tables.dicts("FROM rank_skew('AR', ?)", [f"span/{span}"])
        assert (row["verdict"], row["slow_ranks"]) == ("slow rank", [0]), span
        seconds = np.array(tables.rows(
            "SELECT rank, step, sum(value) FROM samples WHERE metric = ? GROUP BY ALL", [f"span/{span}"]
        ))  # fmt: skip
        by_step = [seconds[seconds[:, 1] == step, 2] for step in np.unique(seconds[:, 1])]
        plain = sum(v.max() for v in by_step) / sum(np.median(v) for v in by_step)
        assert row["slowdown"] == pytest.approx(plain)


def test_a_real_job_of_uneven_sequences_and_a_heavy_stage_has_no_bad_rank(tables: Any, timings: Path) -> None:
    """Published: slowdown 1.54, no bad worker, the last pipeline stage does more, sequences differ."""
    tables.trace(timings / "trace-SE.parquet", "SE")
    published = json.loads((timings / "result-SE.json").read_text())["blocking_slowdown"]
    found = verdict(tables, "SE")
    assert found["verdict"] == "uneven work, heavy group"
    last_stage = tables.rows("SELECT DISTINCT rank FROM read_parquet(?) WHERE stage = 1 ORDER BY 1",
                             [str(timings / "trace-SE.parquet")])  # fmt: skip
    assert sorted(found["slow_ranks"]) == [rank for (rank,) in last_stage]
    assert found["same_rank_share"] < 0.15
    assert found["slowdown_mean"] == pytest.approx(published, rel=0.05)
    assert found["group_ratio"] == pytest.approx(1.5, abs=0.02)
    assert found["says"].startswith("no bad rank: the slowest changes from step to step, and 32 of 64 ranks")


@pytest.mark.parametrize("seed", range(3))
def test_even_ranks_are_called_even(tables: Any, seed: int) -> None:
    work(tables, noise(seed, 8, 30))
    found = verdict(tables)
    assert (found["verdict"], found["slow_ranks"]) == ("even", [])


@pytest.mark.parametrize("ranks", [2, 3, 8, 32])
def test_a_rank_that_is_always_slow_is_a_slow_rank(tables: Any, ranks: int) -> None:
    took = noise(1, ranks, 20)
    took[1] = [1.5 * value for value in took[1]]
    work(tables, took)
    found = verdict(tables)
    assert (found["verdict"], found["slow_ranks"], found["slowest_rank"]) == ("slow rank", [1], 1)
    assert found["slowdown_without"] < 1.05 < found["slowdown"]


def test_several_slow_ranks_of_many_are_named(tables: Any) -> None:
    took = noise(2, 30, 20)
    for rank, times in ((3, 1.4), (17, 2.0), (29, 1.4)):
        took[rank] = [times * value for value in took[rank]]
    work(tables, took)
    found = verdict(tables)
    assert found["verdict"] == "slow ranks"
    assert sorted(found["slow_ranks"]) == [3, 17, 29]


def test_a_rank_that_is_slow_only_for_a_while_is_slow_at_times(tables: Any) -> None:
    took = noise(3, 8, 40)
    took[5] = [value * (3 if 20 <= step < 30 else 1) for step, value in enumerate(took[5])]
    work(tables, took)
    found = verdict(tables)
    assert (found["verdict"], found["slow_ranks"]) == ("slow rank at times", [])
    assert found["says"].startswith("rank 5 is slow in 10 of 40 steps")


def test_work_that_is_uneven_from_step_to_step_blames_nobody(tables: Any) -> None:
    rng = np.random.default_rng(4)
    work(tables, {rank: rng.lognormal(0, 0.3, 60).tolist() for rank in range(8)})
    assert verdict(tables)["verdict"] == "uneven work"


def test_a_group_of_ranks_that_does_more_is_a_group_and_no_bad_rank(tables: Any) -> None:
    took = {rank: [v * (1.3 if rank >= 6 else 1) for v in values] for rank, values in noise(5, 8, 20).items()}
    work(tables, took)
    found = verdict(tables)
    assert (found["verdict"], sorted(found["slow_ranks"])) == ("heavy group", [6, 7])


def test_the_alerts_of_a_rank_stand_beside_its_times(tables: Any) -> None:
    work(tables, noise(9, 4, 40))
    for alert, rank, rule, step in (("a", 2, "slow-rank", 20), ("b", 2, "nan", 5), ("c", None, "loss", 1)):
        for state in ("open", "resolved"):
            tables.add("alerts", [{"run": "r", "alert": alert, "rule": rule, "rank": rank, "step": step,
                                   "state": state, "time": tables.t0, "ordinal": 0, "topic_uuid": tables.uuid,
                                   "partition": 0, "offset": tables.next_offset()}])  # fmt: skip
    found = dict(tables.rows("SELECT rank, alerts FROM ranks('r')"))
    assert found == {0: [], 1: [], 2: ["nan since step 5", "slow-rank since step 20"], 3: []}


def test_too_little_to_compare_is_said(tables: Any) -> None:
    work(tables, {0: [1.0] * 5}, "alone")
    work(tables, {0: [1.0, 1.0], 1: [2.0, 2.0]}, "short")
    work(tables, {0: [0.0] * 5, 1: [0.0] * 5, 2: [1.0] * 5}, "zero")
    assert [verdict(tables, run)["verdict"] for run in ("alone", "short", "zero")] == [
        "one rank", "too few steps", "no median",
    ]  # fmt: skip
    assert tables.rows("FROM rank_skew('nobody')") == []


def test_ranks_that_lack_steps_are_compared_where_they_have_them(tables: Any) -> None:
    took = {0: [1.0] * 6, 1: [1.0] * 6, 2: [2.0] * 3}
    work(tables, took)
    found = verdict(tables)
    assert (found["steps"], found["slow_ranks"]) == (6, [2])
    assert found["slowdown"] == pytest.approx((3 * 2 + 3 * 1) / 6)


def test_any_metric_can_be_compared_and_what_is_not_finite_is_counted(tables: Any) -> None:
    name = 'it\'s (work); "x"'
    for rank in range(3):
        values = [math.nan if (rank, step) == (1, 2) else 1.0 + rank for step in range(5)]
        tables.samples("r", f"p{rank}", [(name, step, step, v) for step, v in enumerate(values)], rank=rank)
    (row,) = tables.dicts("FROM rank_skew('r', ?)", [name])
    assert (row["kind"], row["slowest_rank"], row["job_slowdown"]) == ("metric", 2, None)
    found = tables.rows("SELECT rank, steps, mean, odd FROM ranks('r', ?) ORDER BY rank", [name])
    assert found == [(0, 5, 1.0, 0), (1, 4, 2.0, 1), (2, 5, 3.0, 0)]


def test_a_heat_map_has_a_bounded_number_of_cells_and_hides_no_extreme(tables: Any) -> None:
    took = noise(6, 20, 300)
    took[13][217] = 9.0
    took[4][5] = math.nan
    work(tables, took)
    cells = tables.dicts("FROM rank_heat('r', 'span/forward', max_rows := 7, max_columns := 11)")
    assert len(cells) == 77
    assert sum(cell["n"] for cell in cells) == 20 * 300 - 1
    assert sum(cell["odd"] for cell in cells) == 1
    worst = max(cells, key=lambda cell: cell["extreme_ratio"])
    assert (worst["extreme_rank"], worst["extreme_step"], worst["max"]) == (13, 217, 9.0)
    assert worst["rank_first"] <= 13 <= worst["rank_last"]
    assert worst["step_first"] <= 217 <= worst["step_last"]
    values = np.array([took[rank] for rank in range(20)])
    for cell in cells:
        block = values[cell["rank_first"] : cell["rank_last"] + 1, cell["step_first"] : cell["step_last"] + 1]
        assert cell["mean"] == pytest.approx(np.nanmean(block))
        assert (cell["min"], cell["max"]) == (np.nanmin(block), np.nanmax(block))


def test_a_small_heat_map_has_one_cell_for_each_rank_and_step(tables: Any) -> None:
    work(tables, {0: [1.0, 2.0], 1: [3.0, 4.0]})
    found = tables.rows('SELECT "row", "column", rank_first, step_first, mean FROM rank_heat(\'r\')')
    assert found == [(0, 0, 0, 0, 1.0), (0, 1, 0, 1, 2.0), (1, 0, 1, 0, 3.0), (1, 1, 1, 1, 4.0)]
    assert tables.rows("FROM rank_heat('nobody')") == []
