"""Custom aggregates and weighted quantiles: per pane, merged over windows, however the log is cut."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from driftline import events
from driftline.config import AggregateSpec, Derived, PipelineConfig, WindowSpec
from driftline.streams import extensions, extras

SECOND = 1_000_000
GEOMETRIC = AggregateSpec(name="geo", target="geometric_mean", metrics=["loss", "loss_per_lr", "lr"])
CONFIG = PipelineConfig(
    windows=[
        WindowSpec("time", 3 * SECOND, SECOND),
        WindowSpec("step", 4, 2),
        WindowSpec("step", 0, 6),
        WindowSpec("time", 0, 4 * SECOND),
    ],
    derived=[Derived(name="loss_per_lr", kind="ratio", of="loss", per="lr")],
    per_rank=["loss"],
    quantiles={"loss": [0.9]},
    weighted_quantiles={"loss": [0.5, 0.9], "kl": [0.25], "loss_per_lr": [0.5]},
    aggregates=[GEOMETRIC],
    allowed_lateness_us=SECOND,
    idle_us=8 * SECOND,
    start_grace_us=10 * SECOND,
    detectors=[],
)
ALONE = PipelineConfig(
    windows=[WindowSpec("step", 2, 2), WindowSpec("step", 0, 4)],
    allowed_lateness_us=SECOND,
    start_grace_us=0,
    detectors=[],
)


class Total:
    """Sum of weights; raises for 13, and where it is told to."""

    version = "3"

    def __init__(self, broken: str = "") -> None:
        self.total, self.broken = 0.0, broken

    def update(self, values: Any, weights: Any) -> None:
        if 13.0 in values or self.broken == "update":
            raise ZeroDivisionError("thirteen")
        self.total += float(weights.sum())

    def merge(self, other: Any) -> None:
        self.total += other.total

    def value(self) -> Any:
        return {"value": "text", "nan": float("nan")}.get(self.broken, self.total)

    def dump(self) -> Any:
        return {"set"} if self.broken == "dump" else [self.total]

    def load(self, data: Any) -> None:
        (self.total,) = data


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("aggregates_of_a_user")
    module.Total = Total  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(extensions, "_trusted", _Everything())  # as if the worker's own settings named it


class _Everything:
    def __contains__(self, named: bytes) -> bool:
        return True


def total(**fields: Any) -> AggregateSpec:
    given = {"name": "total", "metrics": ["loss"], "version": "3", **fields}
    return AggregateSpec(target="aggregates_of_a_user:Total", **given)


def feed(log: Any, steps: range, values: dict[int, float] | None = None, weight: float = 1.0) -> None:
    for step in steps:
        value = (values or {}).get(step, float(step))
        log.frame([("loss", step, step * SECOND, value, weight)], at_us=step * SECOND)


def extra(log: Any, span: str | None = None, **where: Any) -> dict[int, dict[str, float]]:
    return {row["end"]: dict(row["extra"]) for row in log.rows(span=span, axis="step", **where)}


@pytest.mark.parametrize("seed", range(2))
def test_extras_equal_the_oracles(log: Any, naive: ModuleType, seed: int) -> None:
    """Windows of a fixed size and of the whole run, of logged and derived metrics, per rank too."""
    records = naive.make_log(seed, ranks=3, seconds=7)
    log.configure(CONFIG)
    outputs = log.pipeline.step(log.state, [r._replace(offset=r.offset + 1) for r in records])
    wanted = naive.run(records, CONFIG)
    assert {name for row in wanted for name in row["quantiles"]} == {"p90", "wp50", "wp90", "wp25"}
    assert any(row["extra"] for row in wanted if row["span"] == "run")
    assert naive.differences(wanted, outputs) == []


@pytest.mark.parametrize("chunk", [3, extras.CHUNK])
def test_any_cut_of_the_log_gives_the_same_extras(
    log: Any, any_cut: Any, naive: ModuleType, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 1, 20 and 500, random cuts with dump and load between: one result, in chunks too."""
    monkeypatch.setattr(extras, "CHUNK", chunk)
    log.configure(msgspec.structs.replace(CONFIG, aggregates=[GEOMETRIC, total()]))
    moved = [record._replace(offset=record.offset + 1) for record in naive.make_log(61, seconds=6)]
    records = [*log.records, *moved]
    whole = any_cut(records, 1)
    assert any("total" in dict(row["extra"]) for row in naive.rows_of(whole))


def test_a_class_of_a_users_own_is_found_and_merged(log: Any) -> None:
    """By ``module:attribute``: two steps a window, all of them in that of the whole run."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total()]))
    feed(log, range(6), weight=2.0)
    log.event(events.ProcessEnded)
    assert extra(log) == {2: {"total": 4.0}, 4: {"total": 4.0}, 6: {"total": 4.0}}
    assert extra(log, "run") == {4: {"total": 8.0}, 8: {"total": 12.0}}


def test_half_of_the_weight_is_at_the_weighted_median(log: Any) -> None:
    """One long answer among short ones: the median by tokens is its value, that by answers is not."""
    log.configure(msgspec.structs.replace(ALONE, weighted_quantiles={"loss": [0.5, 0.99]}))
    rows = [
        ("loss", 0, 0, value, weight) for value, weight in ((1.0, 1.0), (2.0, 1.0), (8.0, 90.0), (9.0, 8.0))
    ]
    log.frame(rows, at_us=0)
    log.event(events.ProcessEnded)
    row = log.rows(axis="step", span=None)[0]
    assert row["p50"] == pytest.approx(2.0, rel=0.006)
    assert dict(row["quantiles"]) == pytest.approx({"wp50": 8.0, "wp99": 9.0}, rel=0.006)


def test_a_class_that_raises_has_no_value_and_stops_nothing(log: Any) -> None:
    """Neither that pane's windows nor that of the whole run from there on; one fact, the rest counted."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total(), GEOMETRIC]))
    feed(log, range(8), {2: 13.0, 5: 13.0})
    log.event(events.ProcessEnded)
    assert {end: "total" in named for end, named in extra(log).items()} == {
        2: True,
        4: False,
        6: False,
        8: True,
    }
    assert all("geo" in named for named in extra(log).values())
    assert [("total" in named) for named in extra(log, "run").values()] == [False, False]
    (fact,) = log.facts("note")
    assert "total failed" in fact.text
    assert "thirteen" in fact.text
    assert log.state.counters["aggregate_errors"] == 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            AggregateSpec(name="a", target="nowhere.at_all:X", metrics=["m"]),
            "install it on every stream worker",
        ),
        (AggregateSpec(name="a", target="unheard_of", metrics=["m"]), "geometric_mean, trimmed_mean"),
        (total(version="2"), "has version '3'"),
        (total(settings={"sort": 1}), "check_aggregate"),
        (total(settings={"broken": "update"}), "thirteen"),
        (total(settings={"broken": "value"}), "not a float"),
        (total(settings={"broken": "dump"}), "no plain data"),
        (
            AggregateSpec(name="a", target="trimmed_mean", metrics=["m"], settings={"part": 0.7}),
            "less than 0.5",
        ),
    ],
)
def test_what_a_worker_cannot_use_it_refuses_in_words(log: Any, spec: AggregateSpec, words: str) -> None:
    """The configuration before stays, rather than other windows than the peers'."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[spec]))
    assert log.state.counters.get("bad_configs") == 1
    assert words in log.of("dead-letter")[0].reason
    assert words in (log.state.config_refused or "")


def test_two_aggregates_of_one_name_are_refused(log: Any) -> None:
    """Their values would share a key."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total(), total(settings={"broken": "nan"})]))
    assert "a name of its own" in log.of("dead-letter")[0].reason


def test_no_value_is_no_entry(log: Any) -> None:
    """NaN and None are left out of the map."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total(settings={"broken": "nan"})]))
    feed(log, range(4))
    log.event(events.ProcessEnded)
    assert set(map(len, extra(log).values())) == {0}


def test_declared_while_a_run_goes_on_it_speaks_of_whole_windows_only(log: Any) -> None:
    """Windows that began before have none: it would be that of a part of their samples."""
    log.configure(ALONE)
    feed(log, range(5))
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total()]))
    feed(log, range(5, 10))
    log.event(events.ProcessEnded)
    assert extra(log) == {2: {}, 4: {}, 6: {}, 8: {"total": 2.0}, 10: {"total": 2.0}}
    assert not any(extra(log, "run").values())


def test_a_snapshot_that_needs_a_class_that_is_not_there_is_refused_in_words(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that takes over a partition without it says what is missing."""
    from driftline.errors import BadData
    from driftline.streams import extensions

    log.configure(msgspec.structs.replace(ALONE, aggregates=[total()]))
    feed(log, range(5))
    dumped = log.pipeline.dump(log.state)
    monkeypatch.delitem(sys.modules, "aggregates_of_a_user")
    extensions._load.cache_clear()
    with pytest.raises(BadData, match="install it on every stream worker"):
        log.pipeline.load(dumped)
    extensions._load.cache_clear()


def test_huge_panes_are_given_in_chunks(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held of a cell is bounded: its objects get chunks of one size, whatever the frames."""
    seen: list[int] = []
    monkeypatch.setattr(extras, "CHUNK", 4)
    monkeypatch.setattr(Total, "update", lambda self, values, weights: seen.append(len(values)))
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total()]))
    seen.clear()
    for _ in range(3):
        log.frame([("loss", 0, 0, float(n), 1.0) for n in range(3)], at_us=0)
    log.event(events.ProcessEnded)
    assert seen == [4, 4, 1]


def test_late_samples_and_odd_weights_are_left_out(log: Any) -> None:
    """As in every column: a late sample is in no window, a weight that is no weight counts as 0."""
    fine = msgspec.structs.replace(ALONE, windows=[WindowSpec("step", 4, 4), WindowSpec("step", 1, 1)])
    log.configure(msgspec.structs.replace(fine, aggregates=[total()]))
    odd = [("loss", 0, 0, 1.0, weight) for weight in (-1.0, float("nan"), float("inf"), 2.0**500, 2.0)]
    log.frame(odd, at_us=0)
    feed(log, range(1, 3))
    log.frame([("loss", 0, 2 * SECOND, 1.0, 100.0)])
    log.event(events.ProcessEnded)
    assert log.state.counters["late_step"] == 1
    assert extra(log)[1] == {"total": 2.0}
    assert extra(log)[4] == {"total": 4.0}


def test_the_whole_run_goes_on_when_other_windows_change(log: Any) -> None:
    """Its objects are kept, as its cells are."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total()]))
    feed(log, range(6))
    windows = [WindowSpec("step", 0, 4), WindowSpec("step", 1, 1)]
    log.configure(msgspec.structs.replace(ALONE, windows=windows, aggregates=[total()]))
    feed(log, range(6, 12))
    log.event(events.ProcessEnded)
    assert extra(log, "run")[12] == {"total": 12.0}


def test_a_fault_is_told_once_also_over_a_snapshot(log: Any) -> None:
    """The worker that takes over knows what was told."""
    log.configure(msgspec.structs.replace(ALONE, aggregates=[total()]))
    feed(log, range(4), {0: 13.0})
    log.state = log.pipeline.load(log.pipeline.dump(log.state))
    feed(log, range(4, 10), {6: 13.0})
    assert log.state.counters["aggregate_errors"] == 2
    assert len(log.facts("note")) == 1


def test_an_entry_point_is_found_by_its_name(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package installs it under ``driftline.aggregates``."""
    from importlib.metadata import EntryPoint, EntryPoints

    from driftline.streams import extensions

    point = EntryPoint("user_total", "aggregates_of_a_user:Total", extensions.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: EntryPoints([point]))
    spec = msgspec.structs.replace(total(), target="user_total")
    log.configure(msgspec.structs.replace(ALONE, aggregates=[spec]))
    feed(log, range(2))
    log.event(events.ProcessEnded)
    extensions._load.cache_clear()
    assert extra(log) == {2: {"total": 2.0}}
