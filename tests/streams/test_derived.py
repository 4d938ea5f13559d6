"""Derived metrics: values per closed pane that then are like those of any other metric."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import msgspec
import pytest

from driftline import events
from driftline.config import Derived, PipelineConfig, Rule, WindowSpec
from driftline.streams import formulas
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
TIME, STEP = WindowSpec("time", 2 * SECOND, SECOND), WindowSpec("step", 4, 2)
DECLARED = [
    Derived(name="reward_rate", kind="rate", of="reward", times=6.0, over=2.0, devices=None),
    Derived(name="loss_per_lr", kind="ratio", of="loss", per="lr"),
    Derived(name="smooth", kind="ema", of="loss", half_life_us=3 * SECOND),
    Derived(name="smooth_steps", kind="ema", of="loss_per_lr", half_life_steps=5),
    Derived(name="apart", kind="spread", of="loss"),
    Derived(name="smooth_rate", kind="ema", of="reward_rate", half_life_us=2 * SECOND),
    Derived(name="rate_apart", kind="spread", of="reward_rate"),
]
CONFIG = PipelineConfig(
    windows=[TIME, WindowSpec("time", 3 * SECOND, 3 * SECOND), STEP],
    derived=DECLARED,
    per_rank=["loss_per_lr", "smooth_rate"],
    per_host=["reward_rate", "loss"],
    per_role=["smooth_steps"],
    quantiles={"apart": [0.25]},
    allowed_lateness_us=SECOND,
    idle_us=8 * SECOND,
    start_grace_us=10 * SECOND,
    detectors=[],
)


def of(metric: str, kind: str, **fields: Any) -> PipelineConfig:
    """One derived metric, alone."""
    one = Derived(name="made", kind=kind, of=metric, **fields)  # type: ignore[arg-type]
    return PipelineConfig(
        windows=[WindowSpec("time", SECOND, SECOND), WindowSpec("step", 1, 1)],
        derived=[one],
        detectors=[],
        allowed_lateness_us=SECOND,
        start_grace_us=0,
    )


def means(log: Any, axis: str, metric: str = "made", group: str = "") -> dict[int, Any]:
    unit = SECOND if axis == "time" else 1
    return {row["start"] // unit: row["mean"] for row in log.rows(axis=axis, metric=metric, group=group)}


@pytest.fixture
def mild(naive: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of 1e300 and 3 cancel differently in floats and in fractions: kept out here."""
    odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 3.0, -2.5]
    monkeypatch.setattr(naive, "ODD_VALUES", odd)


@pytest.mark.parametrize("seed", range(4))
def test_derived_metrics_equal_the_oracles(log: Any, naive: ModuleType, mild: None, seed: int) -> None:
    """Every formula, derived of derived, by rank, host and role, in random logs with all oddities."""
    records = naive.make_log(seed, ranks=3, seconds=9, runs=("a", "b") if seed % 3 == 0 else ("a",))
    log.configure(CONFIG)
    moved = [record._replace(offset=record.offset + 1) for record in records]
    outputs = log.pipeline.step(log.state, moved)
    wanted = naive.run(records, CONFIG)
    seen = {row["metric"] for row in wanted}
    assert seen > {"smooth", "apart", "loss"}
    assert naive.differences(wanted, outputs) == []


@pytest.mark.parametrize("seed", range(2))
def test_any_cut_of_the_log_gives_the_same_derived_bytes(
    log: Any, any_cut: Any, naive: ModuleType, seed: int
) -> None:
    """One batch, batches of 1, 20 and 500, random cuts with dump and load between: one result."""
    log.configure(CONFIG)
    records = [record._replace(offset=record.offset + 1) for record in naive.make_log(seed + 50, seconds=9)]
    records = [*log.records, *records]
    any_cut(records, seed)


def feed(log: Any, settings: PipelineConfig, rows: list[tuple[str, int | None, float, float, float]]) -> None:
    """Samples of (metric, step, second, value, weight) of one process that then ends."""
    log.configure(settings)
    for metric, step, second, value, weight in rows:
        at = int(second * SECOND)
        log.frame([(metric, step, at, value, weight)], at_us=at)
    log.event(events.ProcessEnded)


def test_a_rate_counts_seconds_without_a_sample_as_0(log: Any) -> None:
    """Else the mean of a window over a stall would be that of its busy seconds."""
    rows = [("tokens", None, s, v, 1.0) for s, v in ((3.1, 50.0), (3.9, 30.0), (4.5, 20.0), (7.5, 8.0))]
    feed(log, of("tokens", "rate", times=3.0, over=2.0), rows)
    assert means(log, "time") == {3: 120.0, 4: 30.0, 5: 0.0, 6: 0.0, 7: 12.0}
    (stalled,) = log.rows(axis="time", metric="made", start=5 * SECOND)
    assert (stalled["count"], stalled["present"], stalled["expected"]) == (1, 0, 1)


def test_a_rate_is_per_second_whatever_a_pane_is_wide(log: Any) -> None:
    """Windows of 4 s every 2 s are made of panes of 2 s: 50 tokens in one are 25 a second."""
    wide = [WindowSpec("time", 4 * SECOND, 2 * SECOND), WindowSpec("step", 1, 1)]
    settings = msgspec.structs.replace(of("tokens", "rate"), windows=wide)
    feed(log, settings, [("tokens", None, 2.1, 30.0, 1.0), ("tokens", None, 3.9, 20.0, 1.0)])
    assert means(log, "time") == {0: 25.0, 2: 25.0}


def test_a_ratio_is_multiplied_by_times_and_divided_by_over(log: Any) -> None:
    """As FLOP per token times tokens over the peak gives a utilisation."""
    rows = [("loss", 0, 1.0, 8.0, 1.0), ("lr", 0, 1.0, 2.0, 1.0)]
    feed(log, of("loss", "ratio", per="lr", times=6.0, over=2.0), rows)
    assert means(log, "step") == {0: 12.0}


def test_a_rate_stays_0_while_its_process_lives_and_no_longer(log: Any) -> None:
    """Other metrics go on: the stall of this one is seen as it happens; what has ended counts no further."""
    settings = of("tokens", "rate")
    log.configure(settings)
    log.frame([("tokens", None, 0, 5.0, 1.0)], at_us=0)
    for second in range(1, 8):
        log.frame([("loss", None, second * SECOND, 1.0, 1.0)], process="p1", rank=1, at_us=second * SECOND)
        if second < 5:
            log.frame([("loss", None, second * SECOND, 1.0, 1.0)], at_us=second * SECOND)
    assert means(log, "time") == {0: 5.0, 1: 0.0, 2: 0.0}  # p0 holds the watermark at 4 s less a second
    log.event(events.ProcessEnded)
    log.tick(9 * SECOND)
    assert max(log.rows(axis="time", metric="loss"), key=lambda row: row["start"])["start"] == 5 * SECOND
    assert means(log, "time") == {0: 5.0, 1: 0.0, 2: 0.0}


def test_a_gap_in_which_the_run_was_away_is_not_filled(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour without anything is not an hour of 0 tokens a second; how much was left out is counted."""
    monkeypatch.setattr(formulas, "MAX_GAP", 10)
    feed(log, of("tokens", "rate"), [("tokens", None, 1.0, 5.0, 1.0), ("tokens", None, 101.0, 7.0, 1.0)])
    assert means(log, "time") == {1: 5.0, 100: 0.0, 101: 7.0}  # 100 closes by itself, with the end
    assert log.state.counters["derived_unfilled"] == 98


def test_the_mean_of_a_ratio_is_the_ratio_of_the_sums(log: Any) -> None:
    """Panes with more of the denominator weigh more; without one there is no value."""
    settings = msgspec.structs.replace(
        of("loss_sum", "ratio", per="tokens"), windows=[WindowSpec("step", 4, 4)]
    )
    rows = [("loss_sum", 0, 1.0, 30.0, 1.0), ("tokens", 0, 1.0, 10.0, 1.0), ("loss_sum", 1, 1.1, 8.0, 1.0)]
    rows += [("tokens", 1, 1.1, 0.0, 1.0), ("loss_sum", 2, 1.2, 10.0, 1.0), ("tokens", 2, 1.2, 30.0, 1.0)]
    feed(log, settings, rows)
    (row,) = log.rows(axis="step", metric="made")
    assert (row["count"], row["mean"], row["weight"]) == (1, 48.0 / 40.0, 40.0)


def test_an_average_halves_in_its_half_life_over_gaps_too(log: Any) -> None:
    """Weights are 2 ** -(age / half-life), normalised: it starts at the first mean, not near 0."""
    rows = [("loss", step, step / 10, value, 1.0) for step, value in ((0, 8.0), (2, 2.0), (6, 4.0))]
    feed(log, of("loss", "ema", half_life_steps=2), rows)
    second = (0.5 * 8 + 2) / 1.5
    assert means(log, "step") == pytest.approx({0: 8.0, 2: second, 6: (0.125 * 8 + 0.25 * 2 + 4) / 1.375})
    assert means(log, "time") == {}


def test_an_average_of_constants_or_huge_values_stays_among_them(log: Any) -> None:
    """Constants are exact; 1.7e308 next to -1.7e308 does not overflow; NaN is left out."""
    rows = [("loss", step, step / 10, 0.1, 1.0) for step in range(20)]
    feed(log, of("loss", "ema", half_life_steps=7), rows)
    assert set(means(log, "step").values()) == {0.1}
    huge = [1.7e308, -1.7e308, math.nan, 1.7e308, 1.0]
    log.outputs.clear()
    for step, value in enumerate(huge, 20):
        log.frame([("loss", step, step * SECOND, value, 1.0)], at_us=step * SECOND)
    log.event(events.ProcessEnded)
    found = means(log, "step")
    assert 22 not in found
    assert all(math.isfinite(value) and abs(value) <= 1.7e308 for value in found.values())


def test_a_spread_names_the_slowest_rank(log: Any) -> None:
    """Largest mean of a rank less the median of all; a rank alone has none; ranks are not made public."""
    log.configure(of("step_time", "spread"))
    for step, times in enumerate([(1.0, 1.1, 3.0, 1.2), (2.0, 1.0, 1.0, 1.0)]):
        for rank, took in enumerate(times):
            sample = ("step_time", step, step * SECOND, took, 1.0)
            log.frame([sample], process=f"p{rank}", rank=rank, at_us=step * SECOND)
    log.frame([("step_time", 2, 2 * SECOND, 9.0, 1.0)], at_us=2 * SECOND)
    for rank in range(4):
        log.event(events.ProcessEnded, process=f"p{rank}")
    rows = {row["start"]: row for row in log.rows(axis="step", metric="made")}
    assert {step: (row["mean"], row["max_rank"]) for step, row in rows.items()} == {
        0: (pytest.approx(3.0 - 1.15), 2),
        1: (1.0, 0),
    }
    assert rows[0]["present"] == 4
    assert {row["group"] for row in log.rows()} == {""}


def test_mfu_divides_by_the_announced_world(log: Any) -> None:
    """Tokens in a second * FLOPs of a token / (peak * ranks): 0.5 here; of one rank by its own device."""
    settings = of("tokens", "rate", times=10.0, over=1000.0, devices=None)
    log.configure(msgspec.structs.replace(settings, per_rank=["made"]))
    for rank in range(2):
        log.event(events.ProcessStarted, process=f"p{rank}", rank=rank, world_size=4, at_us=0)
    for rank in range(2):
        log.frame([("tokens", None, SECOND // 2, 100.0, 1.0)], process=f"p{rank}", rank=rank)
    for rank in range(2):
        log.event(events.ProcessEnded, process=f"p{rank}")
    assert means(log, "time") == {0: 0.5}
    assert means(log, "time", group="rank=1") == {0: 1.0}


def test_a_rule_sees_a_derived_metric_like_any_other(log: Any) -> None:
    """``made < 0.3 for 2s`` opens an alert of the run, though rules compare ranks by default."""
    rule = Rule(name="low", metric="made", op="<", bound=0.3, for_us=2 * SECOND)
    log.pipeline = Pipeline()
    log.configure(msgspec.structs.replace(of("tokens", "rate", over=100.0), rules=[rule]))
    for second, tokens in enumerate([90.0, 80.0, 20.0, 10.0, 15.0, 20.0, 20.0]):
        log.frame([("tokens", None, second * SECOND, tokens, 1.0)], at_us=second * SECOND)
    opened = [alert for alert in log.of("alerts") if alert.state == "open"]
    assert [(alert.rule, alert.metric, alert.rank) for alert in opened] == [("low", "made", None)]


def test_samples_logged_under_the_name_of_a_derived_metric_are_in_no_window(log: Any) -> None:
    """Else its windows would mix what was declared with something else; one fact says so."""
    feed(log, of("tokens", "rate"), [("tokens", None, 1.0, 5.0, 1.0), ("made", None, 1.0, 777.0, 1.0)])
    assert means(log, "time") == {1: 5.0}
    (fact,) = log.facts("refused")
    assert "derived metric" in fact.text


def test_a_change_of_what_is_declared_keeps_what_is_declared_the_same(log: Any) -> None:
    """An average goes on as it was, a new one begins with its first pane, a logged name can be taken over."""
    settings = of("loss", "ema", half_life_steps=2)
    log.configure(settings)
    for step in range(4):
        log.frame([("loss", step, step * SECOND, 8.0, 1.0), ("new", step, step * SECOND, 1.0, 1.0)])
        log.now_us += SECOND
    more = Derived(name="new", kind="ratio", of="loss", per="loss")
    log.configure(msgspec.structs.replace(settings, derived=[*settings.derived, more]))
    for step in range(4, 8):
        log.frame([("loss", step, step * SECOND, 2.0, 1.0)])
        log.now_us += SECOND
    log.event(events.ProcessEnded)
    made = means(log, "step")
    assert made[3] == 8.0
    assert 2.0 < made[4] < made[3]
    taken = {row["start"]: row for row in log.rows(axis="step", metric="new")}
    assert [(taken[step]["count"], taken[step]["weight"]) for step in range(2, 5)] == [
        (1, 8.0),
        (1, 8.0),
        (1, 2.0),
    ]


def test_what_is_declared_while_a_run_goes_on_knows_who_takes_part(log: Any) -> None:
    """A rate of a metric that was logged before counts the pause after it, before the process logs again."""
    log.configure(msgspec.structs.replace(of("tokens", "rate"), derived=[]))
    log.frame([("tokens", None, 0, 5.0, 1.0)], at_us=0)
    log.configure(of("tokens", "rate"))
    log.event(events.Heartbeat, at_us=4 * SECOND)
    assert means(log, "time") == {0: 5.0, 1: 0.0, 2: 0.0}


BAD: dict[str, tuple[PipelineConfig, str]] = {
    "itself": (of("made", "ratio", per="tokens"), "made of itself"),
    "later": (
        PipelineConfig(
            derived=[Derived(name="a", kind="spread", of="b"), Derived(name="b", kind="rate", of="c")]
        ),
        "declared before it",
    ),
    "no axis": (
        PipelineConfig(
            derived=[
                Derived(name="a", kind="rate", of="c"),
                Derived(name="b", kind="ema", of="a", half_life_steps=3),
            ]
        ),
        "'a' on the time axis and this half-life on the step axis",
    ),
    "per rank": (msgspec.structs.replace(of("x", "spread"), per_rank=["made"]), "no value per group"),
    "number": (of("x", "rate", over=0.0), "above 0"),
    "devices": (of("x", "rate", devices=0), "how many there are"),
    "half-life": (of("x", "ema"), "50 steps"),
    "twice": (PipelineConfig(derived=[Derived(name="a", kind="rate", of="c")] * 2), "declared twice"),
    "many": (
        PipelineConfig(derived=[Derived(name=f"a{n}", kind="rate", of="c") for n in range(257)]),
        "at most 256",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_derived_is_refused_in_words(log: Any, name: str) -> None:
    """The configuration before stays; the dead letter says what to change."""
    settings, words = BAD[name]
    log.configure(settings)
    assert log.state.counters.get("bad_configs") == 1
    (letter,) = log.of("dead-letter")
    assert words in letter.reason
