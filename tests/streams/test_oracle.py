"""The pipeline agrees with the slow oracle, and gives the same bytes however the log is cut."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftline.config import PipelineConfig, WindowSpec
from driftline.streams import panes
from driftline.streams.pipeline import Pipeline

SEEDS = range(6)
CONFIG = PipelineConfig(
    windows=[
        WindowSpec("time", 4_000_000, 2_000_000),
        WindowSpec("time", 3_000_000, 3_000_000),
        WindowSpec("step", 6, 2),
    ],
    per_rank=["loss"],
    per_host=["loss", "kl"],
    per_role=["reward"],
    quantiles={"loss": [0.9, 0.999], "kl": [0.25, 0.5]},
    allowed_lateness_us=1_000_000,
    idle_us=8_000_000,
    start_grace_us=10_000_000,
)


def all_at_once(log: Any, records: list[Any], settings: PipelineConfig | None) -> list[Any]:
    if settings is not None:
        log.configure(settings)
        records = [record._replace(offset=record.offset + 1) for record in records]
    return list(log.pipeline.step(log.state, records))


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_equal_the_oracles(log: Any, naive: ModuleType, seed: int) -> None:
    """Every window of a random log with all oddities, under the default and another configuration."""
    settings = CONFIG if seed % 2 else None
    records = naive.make_log(seed, ranks=2, seconds=9, runs=("a", "b") if seed % 3 == 0 else ("a",))
    outputs = all_at_once(log, records, settings)
    wanted = naive.run(records, settings)
    assert wanted
    assert naive.differences(wanted, outputs) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_any_cut_of_the_log_gives_the_same_bytes(any_cut: Any, naive: ModuleType, seed: int) -> None:
    """One batch, batches of 1, 20 and 500, random cuts with dump and load between: one result."""
    records = naive.make_log(seed + 100, ranks=3, seconds=10, runs=("a", "b"))
    whole = any_cut(records, seed)
    assert len(whole) > 20


@pytest.mark.parametrize("seed", [1, 6, 7, 13])
def test_a_small_bound_on_open_panes_agrees(
    log: Any, naive: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the bound closes panes all the time, core and oracle close the same, as does any cut of it."""
    monkeypatch.setattr(panes, "MAX_OPEN_PANES", 3)
    monkeypatch.setattr(naive, "MAX_OPEN", 3)
    records = naive.make_log(seed, ranks=2, seconds=8)
    outputs = log.pipeline.step(log.state, records)
    assert log.state.counters.get("crowded_step", 0) + log.state.counters.get("crowded_time", 0) > 2
    assert naive.differences(naive.run(records), outputs) == []
    state, cut = log.pipeline.fresh("uuid", 0), []
    for at in range(0, len(records), 7):
        cut += log.pipeline.step(state, records[at : at + 7])
        state = log.pipeline.load(log.pipeline.dump(state))
    assert cut == outputs


value = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, 1.0, 1e300, 5e-324])
)
sample = st.tuples(
    st.sampled_from(["loss", "kl"]),
    st.one_of(st.none(), st.integers(0, 30)),
    st.integers(0, 12_000_000),
    value,
    st.sampled_from([1.0, 1.0, 0.0, 3.0, 12.0]),
)
arrival = st.tuples(st.integers(0, 2), st.integers(0, 900_000), st.lists(sample, min_size=1, max_size=6))


@settings(
    max_examples=settings.default.max_examples * 2 // 5,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(arrivals=st.lists(arrival, min_size=1, max_size=14))
def test_arbitrary_samples_agree(silent: Any, naive: ModuleType, arrivals: list[Any]) -> None:
    """Any floats at any places: the oracle's exact arithmetic and ours say the same."""
    from driftline import events
    from driftline.records import Record

    records, now, seqs = [], 0, [0, 0, 0]
    for rank, pause, samples in arrivals:
        now += pause
        frame = naive.make_frame("r", f"p{rank}", seqs[rank], rank, samples)
        records.append(Record(0, len(records), now // 1000, frame))
        seqs[rank] += 1
    for rank in range(3):
        end = events.ProcessEnded(run="r", process=f"p{rank}", seq=seqs[rank], time_us=now)
        records.append(Record(0, len(records), now // 1000, events.encode(end)))
    pipeline = Pipeline(silent, silent)
    outputs = pipeline.step(pipeline.fresh("uuid", 0), records)
    assert naive.differences(naive.run(records), outputs) == []
