"""What metrics are declared to be: contradictions are told once, however many ranks say what."""

from __future__ import annotations

from typing import Any

import pytest

from driftline import events
from driftline.streams import definitions
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000


def define(log: Any, process: str, metric: str = "reward", **said: str) -> None:
    log.event(events.MetricDefined, process=process, metric=metric, **said)


def test_ranks_that_say_the_same_or_add_to_it_contradict_nobody(log: Any) -> None:
    for rank in range(4):
        log.event(events.ProcessStarted, process=f"p{rank}", rank=rank, world_size=4)
        define(log, f"p{rank}", goal="max", unit="points")
        define(log, f"p{rank}", reduce="mean", description=f"in the words of rank {rank}")
    assert log.facts("note") == []


def test_a_contradiction_is_told_once_with_both_sides(log: Any) -> None:
    for rank in range(3):
        log.event(events.ProcessStarted, process=f"p{rank}", rank=rank, world_size=3)
    define(log, "p0", goal="max", unit="points")
    define(log, "p1", goal="min", unit="points")
    define(log, "p2", goal="max")
    define(log, "p1", reduce="sum")
    define(log, "p2", reduce="last")
    (note,) = log.facts("note")
    assert (note.metric, note.process, note.rank) == ("reward", "p1", 1)
    assert note.detail == {"field": "goal", "before": "max", "after": "min"}
    assert note.text == "reward: rank 1 declares goal 'min', before it was 'max': the newest counts"


@pytest.mark.parametrize("seed", [1, 2])
def test_any_cut_of_the_log_tells_the_same(log: Any, naive: Any, seed: int) -> None:
    """Between frames and other events, with dump and load between any two; windows are untouched by it."""
    records = naive.make_log(seed, ranks=2, seconds=6)
    for at, (process, goal) in enumerate([("x0", "max"), ("x1", "min"), ("x0", "min")]):
        value = events.encode(
            events.MetricDefined(run="a", process=process, seq=at, time_us=0, metric="m", goal=goal)
        )
        place = 30 * (at + 1)
        records.insert(place, records[place]._replace(value=value))
    records = [record._replace(offset=offset) for offset, record in enumerate(records)]
    pipeline = Pipeline()
    whole = pipeline.step(pipeline.fresh("uuid", 0), records)
    notes = [e for o in whole if o.topic == "facts" and (e := events.decode(o.value)).what == "note"]
    assert [note.detail["after"] for note in notes] == ["min"]
    assert naive.differences(naive.run(records), whole) == []
    state, cut = pipeline.fresh("uuid", 0), []
    for record in records:
        cut += pipeline.step(state, [record])
        state = pipeline.load(pipeline.dump(state))
    assert cut == whole


def test_metrics_beyond_the_bound_are_counted_and_not_compared(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_DEFINED", 3)
    for number in range(5):
        define(log, "p0", metric=f"m{number}", goal="max")
        define(log, "p1", metric=f"m{number}", goal="min")
    assert log.state.counters["definitions_not_compared"] == 4
    assert [note.metric for note in log.facts("note")] == ["m0", "m1", "m2"]


def test_what_a_process_of_a_gone_attempt_declares_is_compared_too(log: Any) -> None:
    """A spool may bring it long after; it speaks of the run, not of an attempt."""
    log.event(events.ProcessStarted, process="a", rank=0, world_size=1, at_us=0)
    define(log, "a", goal="max")
    log.event(events.ProcessStarted, process="b", rank=0, world_size=1, at_us=SECOND)
    define(log, "a", goal="min")
    assert [note.detail["after"] for note in log.facts("note")] == ["min"]
    assert {fact.attempt for fact in log.facts("note")} <= {0, 1}
