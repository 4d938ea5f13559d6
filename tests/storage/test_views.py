"""The SQL views answer the usual questions rightly, also on empty tables and with odd names."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from driftline import events
from driftline.identity import safe_id
from driftline.storage.open import open_catalog
from driftline.storage.tables import TABLES
from driftline.storage.views import BASE_VIEW, VIEWS


def test_every_view_and_macro_works_on_empty_tables_with_typed_columns(store: Any) -> None:
    with open_catalog(store.root) as catalog:
        for name, table in TABLES.items():
            answer = catalog.query(f'FROM "{BASE_VIEW.get(name, name)}"')
            assert answer.num_rows == 0
            assert {f.name: f.type for f in answer.schema} == {f.name: f.type for f in table.schema}, name
        for view in VIEWS:
            if view.macro is None:
                assert catalog.query(f'FROM "{view.name}"').num_rows == 0, view.name
        assert catalog.rows("FROM correlation('run', 'a', 'b')") == []


def test_a_curve_is_the_weighted_mean_over_ranks_and_ranks_stay_readable(store: Any, make: Any) -> None:
    """Case 19: rank 0 has 3 over 12 tokens, rank 1 has 3 over 4."""
    for rank, weight in ((0, 12.0), (1, 4.0)):
        value = [3 / weight]
        store.put(
            "telemetry",
            make.frame(0, {"loss": value}, rank=rank, process=f"p{rank}", weight=np.array([weight])),
        )
    assert store.ask("SELECT mean, min, max, n, nan FROM curves") == [(0.375, 0.25, 0.75, 2, 0)]
    assert store.ask("SELECT rank, value, weight FROM samples ORDER BY 1") == [
        (0, 0.25, 12.0),
        (1, 0.75, 4.0),
    ]


def test_nan_is_counted_and_left_out_of_the_mean(store: Any, make: Any) -> None:
    """Case 7."""
    store.put("telemetry", make.frame(0, {"loss": [0.9, 0.8, math.nan, 0.7, math.inf]}, rank=3))
    assert store.ask("SELECT step, mean, n, nan, inf FROM curves ORDER BY step") == [
        (0, 0.9, 1, 0, 0),
        (1, 0.8, 1, 0, 0),
        (2, None, 1, 1, 0),
        (3, 0.7, 1, 0, 0),
        (4, None, 1, 0, 1),
    ]


def test_a_nan_of_one_rank_leaves_the_mean_of_the_others_as_it_is(store: Any, make: Any) -> None:
    """The weight of what is not finite counts nowhere."""
    for rank, (value, weight) in enumerate([(1.0, 1.0), (3.0, 3.0), (math.nan, 4.0), (math.inf, 8.0)]):
        frame = make.frame(0, {"loss": [value]}, rank=rank, process=f"p{rank}", weight=np.array([weight]))
        store.put("telemetry", frame)
    assert store.ask("SELECT mean, n, nan, inf FROM curves") == [(2.5, 4, 1, 1)]


def test_the_newest_attempt_wins_and_all_rows_stay(store: Any, make: Any) -> None:
    """Case 1: attempt 0 steps 0..212, attempt 1 from 200 to 220 with 0.5."""
    store.put("telemetry", make.frame(0, {"loss": [1 / (s + 1) for s in range(213)]}))
    store.put("telemetry", make.frame(0, {"loss": [0.5] * 21}, step=200, process="p1"))
    joined = {"what": "process_joined", "text": "joined"}
    store.put("facts", make.fact(0, process="p0", attempt=0, **joined))
    store.put("facts", make.fact(1, process="p1", attempt=1, **joined))
    assert store.ask("SELECT count(*) FROM samples") == [(234,)]
    assert store.ask("SELECT count(*), count(DISTINCT step) FROM curves") == [(221, 221)]
    assert store.ask("SELECT count(*) FROM curves WHERE step BETWEEN 200 AND 212 AND mean = 0.5") == [(13,)]
    assert store.ask("SELECT attempt, count(*) FROM curves_all GROUP BY 1 ORDER BY 1") == [(0, 213), (1, 21)]


def test_a_newest_attempt_of_only_nan_hides_the_older_one(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0]}), make.frame(0, {"loss": [math.nan]}, process="p1"))
    store.put("facts", make.fact(1, process="p1", attempt=1, what="process_joined"))
    assert store.ask("SELECT attempt, mean, nan FROM curves") == [(1, None, 1)]


def test_after_a_rewind_a_process_belongs_to_the_new_attempt_from_there_on(store: Any, make: Any) -> None:
    """Two ranks rewind to step 1; only the first rewind opens the attempt, each rank follows with its own."""
    put = [make.frame(0, {"loss": [1.0, 1.0, 1.0]}, process=process) for process in ("p0", "p1")]
    for process in ("p0", "p1"):
        rewound = events.RunRewound(run="run", process=process, seq=1, time_us=make.t0, step=1)
        put += [events.encode(rewound), make.frame(2, {"loss": [2.0]}, step=1, process=process)]
    store.put("telemetry", *put)
    store.put("facts", *[make.fact(at, process=f"p{at}", what="process_joined") for at in (0, 1)])
    for offset, process in ((2, "p0"), (4, "p1")):
        store.put("facts", make.fact(offset, 1, process=process, attempt=1, what="process_joined"))
    assert store.ask("SELECT step, attempt, mean, n FROM curves ORDER BY 1") == [
        (0, 0, 1.0, 2),
        (1, 1, 2.0, 2),
        (2, 0, 1.0, 2),
    ]


def test_whoever_turns_out_to_be_of_a_later_attempt_was_so_from_its_first_record_on(
    store: Any, make: Any
) -> None:
    """A rank starts again and logs; then the others do, and the pipeline says that the run started again."""
    put = [make.frame(0, {"loss": [1.0, 1.0]}, process="p0"), make.frame(0, {"loss": [3.0]}, process="new")]
    store.put("telemetry", *put)
    for offset, process, attempt in ((0, "p0", 0), (1, "new", 0), (9, "new", 1)):
        store.put("facts", make.fact(offset, process=process, attempt=attempt, what="process_joined"))
    assert store.ask("SELECT step, attempt, mean, n FROM curves ORDER BY 1") == [
        (0, 1, 3.0, 1),
        (1, 0, 1.0, 1),
    ]


def test_a_restarted_run_has_the_outcome_of_its_newest_attempt(store: Any, make: Any) -> None:
    """The first attempt was killed and never said that it ended."""
    ended = events.ProcessEnded(run="run", process="p1", seq=1, time_us=make.t0 + 7)
    store.put("telemetry", make.started(0, name="exp"), make.started(0, process="p1"), events.encode(ended))
    store.put("facts", make.fact(0, process="p0", what="process_joined"))
    assert store.ask("SELECT outcome FROM runs") == [(None,)]
    store.put("facts", make.fact(1, process="p1", attempt=1, what="process_joined"))
    found = store.ask("SELECT name, outcome, attempts, processes, epoch_us(ended) FROM runs")
    assert found == [("exp", "finished", 2, 2, make.t0 + 7)]


def test_a_run_whose_processes_fell_silent_is_lost_until_one_joins_again(store: Any, make: Any) -> None:
    store.put("telemetry", make.started(0))
    store.put("facts", make.fact(0, process="p0", what="process_joined"), make.fact(5, what="run_ended"))
    assert store.ask("SELECT outcome, epoch_us(ended) FROM runs") == [("lost", make.t0)]
    store.put("facts", make.fact(6, process="p1", what="process_joined"))
    assert store.ask("SELECT outcome, ended FROM runs") == [(None, None)]


NAMES = [
    "timing(s)/gen",
    "val/AR@100",
    "n:estimators",
    "损失",
    "loss 🚀",
    "a.b",
    "a/b",
    "A.B",
    "x" * 600,
    "it's; DROP VIEW samples; --",
    '"quoted"',
    "",
]


def test_any_metric_name_is_found_by_its_exact_name(store: Any, make: Any) -> None:
    """Case 9."""
    store.put("telemetry", *[make.frame(at, {name: [float(at)]}) for at, name in enumerate(NAMES)])
    with open_catalog(store.root) as catalog:
        for at, name in enumerate(NAMES):
            found = catalog.rows("SELECT mean FROM curves WHERE metric = ?", [name])
            assert found == [(float(at),)], name


def test_an_evaluation_curve_has_one_point_per_step_and_metric(store: Any, make: Any) -> None:
    """Late results of older checkpoints stand at their own step; a newer attempt replaces a point."""
    store.put("telemetry", make.accepted(1, step=12), make.accepted(2, step=10))
    store.put("telemetry", make.accepted(3, step=12, attempt=1, request="again"))
    failed = events.EvalOutcome(status="incomplete", reason="a shard is cut")
    store.put("telemetry", make.accepted(4, step=14, outcome=failed))
    found = store.ask("SELECT suite, metric, step, value, low, high, attempt FROM eval_curves ORDER BY step")
    assert found == [("sums", "accuracy", 10, 0.5, 0.4, 0.6, 0), ("sums", "accuracy", 12, 0.5, 0.4, 0.6, 1)]
    assert store.ask("SELECT evaluations, failed FROM eval_cost") == [(4, 1)]


def test_evaluation_cost_is_a_part_of_the_run_not_counted_per_metric(store: Any, make: Any) -> None:
    two = events.EvalOutcome(
        status="done",
        metrics=[events.Metric(name="a", value=1.0), events.Metric(name="b", value="NaN")],
        cost=events.Cost(seconds=6.0),
    )
    ended = events.ProcessEnded(run="run", process="p0", seq=9, time_us=make.t0 + 60_000_000)
    store.put("telemetry", make.started(), make.accepted(1, outcome=two), events.encode(ended))
    assert store.ask("SELECT evaluations, seconds, wall_seconds, share FROM eval_cost") == [
        (1, 6.0, 60.0, 0.1)
    ]
    assert store.ask("SELECT metric, isnan(value) FROM evals ORDER BY 1") == [("a", False), ("b", True)]


def test_what_an_evaluation_cost_is_null_where_nobody_told(store: Any, make: Any) -> None:
    """Imported results often have no times: zero seconds would say that they were free."""
    told = events.EvalOutcome(
        status="done", metrics=[events.Metric(name="a", value=1.0)], cost=events.Cost(seconds=6.0, tokens=50)
    )
    untold = events.EvalOutcome(status="done", metrics=[events.Metric(name="a", value=1.0)])
    at = {"requested_us": make.t0, "accepted_us": make.t0}
    imported = [
        make.accepted(n, outcome=untold, request=f"q{n}", lease=f"q{n}", step=n, **at) for n in (1, 2)
    ]
    store.put("telemetry", make.started(), *imported)
    columns = "evaluations, timed, seconds, seconds_each, wait_seconds, tokens, latency_seconds"
    asked = f"SELECT {columns}, share FROM eval_cost"
    assert store.ask(asked) == [(2, 0, None, None, None, None, None, None)]
    later = make.accepted(
        3,
        outcome=told,
        request="q3",
        lease="q3",
        step=3,
        requested_us=make.t0,
        accepted_us=make.t0 + 9_000_000,
    )
    store.put("telemetry", later)
    assert store.ask(asked.replace(", share", "")) == [(3, 1, 6.0, 6.0, 0.0, 50, 9.0)]


def test_items_count_only_under_the_lease_that_was_accepted(store: Any, make: Any) -> None:
    store.put("eval-items", make.items("lease-1", 0, 3), make.items("lost", 0, 2))
    store.put("telemetry", make.accepted(1, step=7))
    assert store.ask("SELECT count(*) FROM eval_items") == [(5,)]
    assert store.ask("SELECT count(*), min(step), min(suite) FROM eval_answers") == [(3, 7, "sums")]


def test_alerts_are_shown_as_they_stand(store: Any, make: Any) -> None:
    store.put(
        "alerts",
        make.alert(1, alert="a", value=2.0),
        make.alert(2, alert="b", value="NaN"),
        make.alert(3, "update", alert="b"),
        make.alert(4, "resolved", alert="a", resolved_us=make.t0 + 5),
    )
    latest = store.ask("SELECT alert, state FROM alerts_latest ORDER BY 1")
    assert latest == [("a", "resolved"), ("b", "update")]
    assert store.ask("SELECT alert FROM alerts_open") == [("b",)]


def test_the_slowest_rank_comes_first_with_its_ratio_to_the_median(store: Any, make: Any) -> None:
    for rank, seconds in enumerate((0.1, 0.1, 0.3, 0.1)):
        values = {"span/forward": [seconds] * 4, "loss": [1.0] * 4}
        store.put("telemetry", make.frame(0, values, rank=rank, process=f"p{rank}"))
    (first, *_) = store.ask("SELECT span, rank, round(ratio, 6), ranks, n FROM slowest_ranks")
    assert first == ("forward", 2, 3.0, 4, 4)
    assert len(store.ask("FROM slowest_ranks")) == 4


def test_correlation_with_lag_finds_the_shift(store: Any, make: Any) -> None:
    random = np.random.default_rng(0).normal(size=60)
    store.put("telemetry", make.frame(0, {"a": list(random[:50])}))
    store.put("telemetry", make.frame(1, {"b": [math.nan, *random[:48], math.inf]}))
    found = store.ask("FROM correlation('run', 'a', 'b', max_lag := 3)")
    best = max(found, key=lambda row: row[1])
    assert (best[0], round(best[1], 6), best[2]) == (1, 1.0, 48)
    assert [row[0] for row in found] == [-3, -2, -1, 0, 1, 2, 3]
    assert store.ask("SELECT lag FROM correlation('run', 'a', 'b')") == [(0,)]
    assert store.ask("FROM correlation('no such run', 'a', 'b')") == []


def test_a_trend_takes_the_highest_revision(store: Any, make: Any) -> None:
    store.put("windows", make.windows(1, mean=[1.0]), make.windows(2, mean=[2.0], revision=[1]))
    assert store.ask("SELECT mean, epoch_us(window_start), epoch_us(window_end) FROM trends") == [
        (2.0, make.t0, make.t0 + 10_000_000)
    ]


def test_a_run_is_found_by_the_id_that_was_typed(store: Any, make: Any) -> None:
    """F27: an id that can be no key is kept as its hash."""
    for number, typed in enumerate(("50%=x y", "a/../b", "größe")):
        made = safe_id(typed)
        store.put("telemetry", make.started(0, process=f"p{number}", run=made, name="other"))
        assert store.ask("SELECT run_id(?)", [typed]) == [(made,)]
    assert store.ask("SELECT run_id('nothing')") == [("nothing",)]


def test_a_run_shows_its_name_outcome_and_numbers(store: Any, make: Any) -> None:
    """Case 3: two launches under one name are two runs."""
    for run in ("r1", "r2"):
        store.put("telemetry", make.started(0, run=run, name="exp1", config={"lr": 0.1}, world_size=1))
        store.put("telemetry", make.frame(1, {"loss": [3.0, 2.0]}, run=run))
    ended = events.ProcessEnded(run="r1", process="p0", seq=2, time_us=make.t0 + 1, outcome="exception")
    store.put("telemetry", events.encode(ended))
    assert store.ask("SELECT run, name, outcome, config FROM runs ORDER BY 1") == [
        ("r1", "exp1", "exception", '{"lr":0.1}'),
        ("r2", "exp1", None, '{"lr":0.1}'),
    ]
    assert store.ask(
        "SELECT run, samples, metrics, last_step, ranks, alerts FROM run_summary ORDER BY 1"
    ) == [
        ("r1", 2, 1, 1, 1, 0),
        ("r2", 2, 1, 1, 1, 0),
    ]


@pytest.mark.parametrize("zone", ["Asia/Tehran", "America/New_York", "UTC"])
def test_instants_and_days_are_the_same_in_every_time_zone(
    store: Any, make: Any, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case S1: 2024-12-06T00:00Z."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        instant = 1_733_443_200_000_000
        store.put("telemetry", make.frame(0, {"loss": [1.0]}, time_us=np.array([instant])))
        with open_catalog(store.root) as catalog:
            catalog.query(f"SET TimeZone = '{zone}'")
            found = catalog.rows("SELECT epoch_us(time), utc_day(time)::VARCHAR FROM samples")
            assert found == [(instant, "2024-12-06")]
            where = "SELECT count(*) FROM samples WHERE time = TIMESTAMPTZ '2024-12-06 00:00:00+00'"
            assert catalog.rows(where) == [(1,)]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_ids_that_look_like_sql_are_only_text(store: Any, make: Any) -> None:
    odd = "'); DROP TABLE x; --"
    store.put("telemetry", make.started(0, run=odd, name=odd), make.frame(1, {odd: [1.0]}, run=odd))
    quoted = odd.replace("'", "''")
    assert store.ask("SELECT name FROM runs WHERE run = ?", [odd]) == [(odd,)]
    assert store.ask(f"FROM correlation('{quoted}', '{quoted}', '{quoted}')") == []


def test_checkpoints_without_a_step_keep_their_evaluations_apart(store: Any, make: Any) -> None:
    """A trainer that counts only epochs announces checkpoints without a step: each keeps its point."""
    for epoch in (1.0, 2.0):
        saved = events.Checkpoint(digest=f"d{epoch}", uri=f"/c/{epoch}", epoch=epoch)
        store.put("telemetry", make.accepted(int(epoch), checkpoint=saved))
    assert store.ask("SELECT step, epoch FROM eval_curves ORDER BY epoch") == [(None, 1.0), (None, 2.0)]


def defined(make: Any, seq: int, metric: str, process: str = "p9", **said: str) -> bytes:
    event = events.MetricDefined(run="run", process=process, seq=seq, time_us=make.t0, metric=metric, **said)
    return events.encode(event)


def test_a_curve_shows_what_was_declared_and_the_mean_where_nothing_was(store: Any, make: Any) -> None:
    """Nothing is guessed from a name: tokens are a mean until someone says that they are a sum."""
    names = ["tokens", "peak", "floor", "lr", "loss"]
    for rank, values in enumerate([[1.0, 5.0], [3.0, 4.0]]):
        frame = make.frame(0, dict.fromkeys(names, values), process=f"p{rank}", rank=rank)
        store.put("telemetry", frame)
    question = "SELECT metric, list(value ORDER BY step) FROM curves GROUP BY 1"
    assert dict(store.ask(question)) == {name: [2.0, 4.5] for name in names}
    said = {"tokens": "sum", "peak": "max", "floor": "min", "lr": "last", "loss": "mean"}
    store.put("telemetry", *[defined(make, at, name, reduce=said[name]) for at, name in enumerate(names)])
    shown = {"tokens": [4.0, 9.0], "peak": [3.0, 5.0], "floor": [1.0, 4.0], "lr": [3.0, 4.0]}
    assert dict(store.ask(question)) == shown | {"loss": [2.0, 4.5]}
    found = store.ask("SELECT mean, min, max, sum, last FROM curves WHERE metric = 'tokens' AND step = 0")
    assert found == [(2.0, 1.0, 3.0, 4.0, 3.0)]


def test_a_trend_shows_what_was_declared(store: Any, make: Any) -> None:
    one = {"mean": [2.0], "min": [1.0], "max": [3.0], "sum": [40.0], "last": [1.5]}
    for offset, name in enumerate(["mean", "sum", "min", "max", "last", "said nothing"]):
        store.put("windows", make.windows(offset, metric=[name], **one))
        if name != "said nothing":
            store.put("telemetry", defined(make, offset, name, reduce=name))
    found = dict(store.ask("SELECT metric, value FROM trends"))
    assert found == {name: values[0] for name, values in one.items()} | {"said nothing": 2.0}


def test_of_contradictory_declarations_the_newest_counts_field_by_field(store: Any, make: Any) -> None:
    store.put("telemetry", defined(make, 0, "x", goal="max", unit="a", description="first"))
    store.put("telemetry", defined(make, 0, "x", process="p8", unit="b"), defined(make, 1, "x", goal="min"))
    store.put("telemetry", defined(make, 1, "x", goal="min"))  # comes twice
    found = store.ask("SELECT goal, unit, reduce, description, samples FROM metrics")
    assert found == [("min", "b", None, "first", 0)]
    assert store.ask("SELECT count(*) FROM metric_definitions") == [(3,)]


def test_all_known_metrics_are_listed_whether_declared_logged_or_windowed(store: Any, make: Any) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0, 2.0]}), defined(make, 0, "reward", goal="max"))
    store.put("windows", make.windows(1, metric=["derived"]))
    found = store.ask("SELECT metric, goal, samples, processes, last_step FROM metrics ORDER BY metric")
    assert found == [("derived", None, 0, 0, None), ("loss", None, 2, 1, 1), ("reward", "max", 0, 0, None)]


def test_the_best_point_follows_the_declared_goal_and_nothing_else(store: Any, make: Any) -> None:
    """NaN is never the best; of equal points the first; a metric without a goal has none."""
    values = {"up": [1.0, 7.0, math.nan, 7.0, 2.0], "down": [3.0, -1.0, 5.0, -1.0, math.inf]}
    store.put("telemetry", make.frame(0, values | {"accuracy": [1.0] * 5}))
    store.put("telemetry", defined(make, 0, "up", goal="max", unit="u"), defined(make, 1, "down", goal="min"))
    found = store.ask("SELECT metric, goal, unit, best, best_step, newest, newest_step FROM best ORDER BY 1")
    assert found == [("down", "min", None, -1.0, 1, -1.0, 3), ("up", "max", "u", 7.0, 1, 2.0, 4)]


def test_the_spread_over_ranks_has_quantiles_and_the_ranks_at_both_ends(store: Any, make: Any) -> None:
    for rank in range(5):
        frame = make.frame(0, {"loss": [float(rank), math.nan]}, rank=rank, process=f"p{rank}")
        store.put("telemetry", frame)
    found = store.ask(
        "SELECT step, mean, p50, round(p95, 6), min_rank, max_rank, n, nonfinite FROM step_stats "
        "ORDER BY step"
    )
    assert found == [(0, 2.0, 2.0, 3.8, 0, 4, 5, 0), (1, None, None, None, None, None, 5, 5)]


def test_the_latest_value_of_a_series_is_the_newest_in_the_log_not_the_largest_step(
    store: Any, make: Any
) -> None:
    store.put("telemetry", make.frame(0, {"loss": [1.0, 2.0]}, step=10))
    store.put("telemetry", make.frame(1, {"loss": [3.0, math.nan]}, step=4))
    (found,) = store.ask("SELECT metric, rank, isnan(value), step, process, n FROM latest")
    assert found == ("loss", 0, True, 5, "p0", 4)


def test_runs_with_and_without_restarts_are_answered_alike(store: Any, make: Any) -> None:
    """Runs that were never restarted take a shorter way; the answers must not show it."""
    store.put("telemetry", make.frame(0, {"loss": [1.0, 2.0, math.inf]}, run="calm"))
    store.put("telemetry", make.frame(0, {"loss": [1.0, 2.0, math.inf]}, run="other", process="q0"))
    store.put("telemetry", make.frame(0, {"loss": [9.0]}, step=5, run="other", process="q1"))
    joined = {"what": "process_joined", "run": "other"}
    store.put("facts", make.fact(0, process="q0", **joined), make.fact(1, process="q1", attempt=1, **joined))
    assert store.ask("FROM restarted") == [("other",)]
    for view in ("curves", "curves_all", "step_stats"):
        rows = [
            store.ask(f"SELECT * EXCLUDE run FROM {view} WHERE run = ? AND step < 5 ORDER BY step", [run])
            for run in ("calm", "other")
        ]
        assert rows[0] == rows[1], view
    assert store.ask("SELECT attempt, step, value FROM curves WHERE step = 5") == [(1, 5, 9.0)]
