"""What machines did against throughput, what was not used, and how runs scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


def readings(tables: Any, process: str, metric: str, values: list[float], every: float = 10.0) -> None:
    rows = [(metric, None, 5.0 + at * every, value) for at, value in enumerate(values)]
    tables.samples("r", process, rows)


def test_readings_are_described_and_correlated_with_throughput_per_host_and_device(tables: Any) -> None:
    rng = np.random.default_rng(1)
    pace = rng.uniform(100, 200, 40)
    busy = 50 + pace / 10 + rng.normal(0, 1, 40)
    for rank, host in enumerate(("a", "b")):
        tables.process("r", f"p{rank}", rank=rank, host=host)
    readings(tables, "p0", "gpu_utilization/0", busy.tolist())
    readings(tables, "p0", "gpu_utilization/1", [99.0] * 40)
    readings(tables, "p1", "network_sent", [math.nan, *(-pace[1:]).tolist()])
    for rank in range(2):
        rows = [("tokens_per_second", at, 7.0 + 10 * at, value / 2) for at, value in enumerate(pace.tolist())]
        tables.samples("r", f"p{rank}", rows, rank=rank)
    found = {
        (row["host"], row["device"], row["metric"]): row for row in tables.dicts("FROM utilisation('r')")
    }
    assert set(found) == {
        ("a", 0, "gpu_utilization"),
        ("a", 1, "gpu_utilization"),
        ("b", None, "network_sent"),
    }
    gpu = found["a", 0, "gpu_utilization"]
    assert (gpu["unit"], gpu["n"], gpu["odd"], gpu["stretches"]) == ("%", 40, 0, 40)
    assert gpu["mean"] == pytest.approx(np.mean(busy))
    quantiles = np.quantile(busy, [0.05, 0.5, 0.95])
    assert [gpu["p5"], gpu["p50"], gpu["p95"]] == pytest.approx(quantiles.tolist())
    assert gpu["correlation"] == pytest.approx(np.corrcoef(busy, pace)[0, 1])
    assert gpu["throughput_from"] == "tokens_per_second"
    assert gpu["q_value"] < 1e-6
    assert found["a", 1, "gpu_utilization"]["correlation"] is None, "a constant goes with nothing"
    sent = found["b", None, "network_sent"]
    assert (sent["n"], sent["odd"], sent["correlation"]) == (39, 1, pytest.approx(-1.0))
    assert tables.rows("SELECT sum(throughput) FROM throughput_over_time('r')") == [
        (pytest.approx(pace.sum()),)
    ]


def test_readings_that_wander_beside_throughput_are_seldom_sure_to_go_with_it(tables: Any) -> None:
    """Slow noise correlates by chance (of 60 readings here, more than ten by over 0.3), and q says so."""
    rng = np.random.default_rng(6)

    def wandering(n: int = 60) -> list[float]:
        values = [0.0]
        for step in rng.normal(size=n - 1):
            values.append(0.9 * values[-1] + step)
        return [50.0 + value for value in values]

    for host in range(6):
        tables.process("r", f"h{host}", rank=host, host=f"h{host}")
        for gpu in range(10):
            readings(tables, f"h{host}", f"gpu_utilization/{gpu}", wandering())
    rows = [("tokens_per_second", at, 7.0 + 10 * at, value) for at, value in enumerate(wandering())]
    tables.samples("r", "h0", rows)
    found = tables.dicts("FROM utilisation('r')")
    assert len(found) == 60
    assert sum(abs(row["correlation"]) > 0.3 for row in found) > 10
    assert [row for row in found if row["q_value"] < 0.05] == []


def test_where_no_throughput_is_logged_it_is_the_steps_in_a_second(tables: Any) -> None:
    tables.process("r", "p")
    tables.samples("r", "p", [("loss", step, 10.0 + step / 2, 1.0) for step in range(41)])
    found = tables.rows("SELECT throughput, throughput_from FROM throughput_over_time('r') ORDER BY start")
    assert found == [(2.0, "steps per second"), (2.0, "steps per second")], "the last step is no stretch"


@pytest.mark.parametrize("begin", [10.0, 13.0, 18.5])
def test_throughput_does_not_fall_where_a_run_begins_or_ends_inside_of_a_stretch(
    tables: Any, begin: float
) -> None:
    tables.process("r", "p")
    tables.samples("r", "p", [("loss", step, begin + step / 4, 1.0) for step in range(1, 130)])
    found = [pace for (pace,) in tables.rows("SELECT throughput FROM throughput_over_time('r')")]
    assert len(found) >= 3
    assert found == pytest.approx([4.0] * len(found), rel=0.06)


def test_a_run_shorter_than_a_stretch_has_its_throughput(tables: Any) -> None:
    tables.process("r", "p")
    tables.samples("r", "p", [("loss", step, 10.0 + step / 2, 1.0) for step in range(5)])
    assert tables.rows("SELECT throughput FROM throughput_over_time('r')") == [(2.5,)]


def test_hours_of_a_gpu_are_used_or_not(tables: Any) -> None:
    """Ten readings, 10 s apart: five at 80 %, three at 0 %, two at 50 %; the last holds as long as usual."""
    tables.process("r", "p", host="a")
    readings(tables, "p", "gpu_utilization/3", [80.0] * 5 + [0.0] * 3 + [50.0] * 2)
    readings(tables, "p", "gpu_utilization", [1.0] * 10)
    (row,) = tables.dicts("FROM gpu_waste('r')")
    assert (row["host"], row["device"], row["n"], row["idle_seconds"]) == ("a", 3, 10, 30.0)
    assert row["hours"] * 3600 == pytest.approx(100.0)
    assert row["used_hours"] * 3600 == pytest.approx(50.0)
    assert row["unused_hours"] * 3600 == pytest.approx(50.0)
    assert (row["mean"], row["idle_share"], row["longest_idle_seconds"]) == (pytest.approx(50.0), 0.3, 30.0)


def test_a_hole_in_the_readings_is_not_taken_for_an_idle_gpu(tables: Any) -> None:
    """Nobody read for an hour: the reading before it holds for three intervals."""
    tables.process("r", "p")
    rows = [(0.0, 0.0), (10.0, 0.0), (20.0, 0.0), (3620.0, 90.0), (3630.0, 90.0), (3640.0, 90.0)]
    tables.samples("r", "p", [("gpu_utilization", None, at, value) for at, value in rows])
    (row,) = tables.dicts("FROM gpu_waste('r')")
    assert row["idle_seconds"] == 10 + 10 + 30
    assert row["hours"] * 3600 == pytest.approx(80.0)


@pytest.mark.parametrize("macro", ["utilisation", "gpu_waste", "system_readings", "throughput_over_time"])
def test_no_readings_are_no_rows(tables: Any, macro: str) -> None:
    assert tables.rows(f"FROM {macro}('nobody')") == []


def test_names_that_only_look_like_readings_are_none(tables: Any) -> None:
    for name in (
        "gpu_utilization/x",
        "gpu_utilization/",
        "gpu_utilization/0/1",
        "gpu_utilisation",
        "gpu_",
        "GPU_power",
    ):
        readings(tables, "p", name, [1.0])
    assert tables.rows("SELECT DISTINCT metric, device FROM system_readings('r')") == []


def run_of_size(
    tables: Any, ranks: int, rate: float, *, name: str = "exp", metric: str = "throughput", run: str = ""
) -> None:
    run = run or f"{name}-{ranks}"
    for rank in range(ranks):
        tables.process(run, f"{run}/{rank}", rank=rank, name=name, world_size=ranks, config="{}")
        warm = [(metric, step, float(step), rate / 100) for step in range(5)]
        value = rate / ranks if metric == "throughput" else rate
        tables.samples(
            run, f"{run}/{rank}", [*warm, *[(metric, 5 + s, 5.0 + s, value) for s in range(4)]], rank=rank
        )


def test_scaling_finds_the_serial_fraction_that_made_it(tables: Any) -> None:
    """Amdahl with 5 % serial work, from 2 ranks on; the first five steps are slow and do not count."""
    for ranks in (2, 4, 8, 16):
        times = ranks / 2
        run_of_size(tables, ranks, 100 * times / (1 + 0.05 * (times - 1)))
    found = tables.dicts("FROM scaling('exp')")
    assert [row["ranks"] for row in found] == [2, 4, 8, 16]
    assert [row["throughput"] for row in found] == pytest.approx([100.0, 200 / 1.05, 400 / 1.15, 800 / 1.35])
    assert [row["efficiency"] for row in found] == pytest.approx([1, 1 / 1.05, 1 / 1.15, 1 / 1.35])
    assert [row["ideal_throughput"] for row in found] == [100, 200, 400, 800]
    assert {round(row["serial_fraction"], 9) for row in found} == {0.05}
    assert {(row["sizes"], row["configs"], row["runs_of_size"], row["steps"]) for row in found} == {
        (4, 1, 1, 4)
    }
    assert found[0]["contention"] == pytest.approx(0.05)
    assert found[0]["coherency"] == pytest.approx(0.0, abs=1e-12)


def test_scaling_finds_the_peak_of_a_law_with_coherency(tables: Any) -> None:
    """Universal scalability law with contention 0.03 and coherency 0.001: its peak is at 31.1 times."""
    for ranks in (1, 2, 4, 8, 16):
        run_of_size(tables, ranks, 10 * ranks / (1 + 0.03 * (ranks - 1) + 0.001 * ranks * (ranks - 1)))
    row = tables.dicts("FROM scaling('exp')")[0]
    assert (row["contention"], row["coherency"]) == (pytest.approx(0.03), pytest.approx(0.001))
    assert row["peak_ranks"] == pytest.approx(math.sqrt(0.97 / 0.001))


def test_two_sizes_are_compared_and_not_fitted(tables: Any) -> None:
    run_of_size(tables, 1, 10.0)
    run_of_size(tables, 1, 30.0, run="again")
    run_of_size(tables, 4, 60.0)
    found = tables.dicts("FROM scaling()")
    assert [row["speedup"] for row in found] == [pytest.approx(1.5), pytest.approx(0.5), pytest.approx(3.0)]
    assert [row["runs_of_size"] for row in found] == [2, 2, 1]
    assert {row["serial_fraction"] for row in found} == {None}


def test_runs_without_throughput_are_compared_by_their_step_time_and_apart(tables: Any) -> None:
    run_of_size(tables, 1, 2.0, metric="step_time")
    run_of_size(tables, 2, 1.0, metric="step_time")
    run_of_size(tables, 4, 50.0)
    found = tables.rows("SELECT ranks, throughput_from, throughput, efficiency FROM scaling('exp')")
    assert found == [
        (1, "steps per second", 0.5, 1.0), (2, "steps per second", 1.0, 1.0), (4, "throughput", 50.0, 1.0),
    ]  # fmt: skip
    assert tables.rows("FROM scaling('nobody')") == []


@pytest.mark.parametrize(
    ("logged", "throughput", "said", "unit"),
    [
        ({"perf/throughput": 100.0}, 400.0, "perf/throughput", "tokens/s"),
        ({"train/tokens_per_second": 100.0}, 400.0, "train/tokens_per_second", "tokens/s"),
        ({"train|device/samples_per_sec": 5.0}, 20.0, "train|device/samples_per_sec", "samples/s"),
        ({"train_tokens_per_second": 100.0}, 100.0, "train_tokens_per_second", "tokens/s"),
        ({"tokens": 30.0}, 60.0, "tokens by the clock", "tokens/s"),
        ({"tokens": 30.0, "step_time": 4.0}, 30.0, "tokens over step_time", "tokens/s"),
        ({"perf/total_num_tokens": 30.0, "timing_s/step": 3.0}, 10.0,
         "perf/total_num_tokens over timing_s/step", "tokens/s"),
        ({"timing_s/step": 4.0}, 0.25, "steps per second", "steps/s"),
        ({"loss": 1.0}, 0.5, "steps per second by the clock", "steps/s"),
    ],
)  # fmt: skip
def test_throughput_is_found_under_the_names_that_trainers_log(
    tables: Any, logged: dict[str, float], throughput: float, said: str, unit: str
) -> None:
    """Four ranks that all log, a step every 2 s; the words say what was used."""
    for rank in range(4):
        tables.process("r", f"p{rank}", rank=rank, name="exp", world_size=4)
        rows = [(metric, step, 2.0 * step, v) for step in range(12) for metric, v in logged.items()]
        tables.samples("r", f"p{rank}", rows, rank=rank)
    found = tables.rows("SELECT throughput, throughput_from, unit FROM scaling('exp')")
    assert found == [(pytest.approx(throughput), said, unit)]


def test_tokens_counted_so_far_are_told_by_how_they_grow(tables: Any) -> None:
    for rank in range(2):
        tables.process("r", f"p{rank}", rank=rank, name="exp", world_size=2)
        rows = [("num_input_tokens_seen", 10 * at, 5.0 * at, 1000.0 * (at + 1)) for at in range(12)]
        tables.samples("r", f"p{rank}", rows, rank=rank)
    assert tables.rows("SELECT throughput, throughput_from FROM scaling('exp')") == [
        (pytest.approx(200.0), "num_input_tokens_seen by the clock")
    ]
