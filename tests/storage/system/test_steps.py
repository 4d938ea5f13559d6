"""What a step is made of adds up, and a faster span gives what the slowest rank then allows."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WAITS = {"all_reduce"}
LIFE = {"data": 0.1, "forward": 0.6, "backward": 0.8, "all_reduce": 0.4}


def laid(step: int, parts: dict[str, float] | list[tuple[str, float]], end: float) -> list[tuple[Any, ...]]:
    """Spans one after the other, the last one over at ``end``."""
    listed = list(parts.items()) if isinstance(parts, dict) else parts
    at = end - sum(seconds for _, seconds in listed if math.isfinite(seconds) and seconds > 0)
    rows = []
    for name, seconds in listed:
        at += seconds if math.isfinite(seconds) and seconds > 0 else 0
        rows.append((f"span/{name}", step, at, seconds))
    return rows


@pytest.mark.parametrize(
    ("span", "kind"),
    [
        ("forward", "work"), ("backward", "work"), ("optimizer", "work"), ("eval", "evaluation"),
        ("evaluation", "evaluation"), ("validate", "evaluation"), ("val/gsm8k", "evaluation"),
        ("save_checkpoint", "checkpoint"), ("ckpt", "checkpoint"), ("saving", "checkpoint"),
        ("data", "data"), ("dataloader", "data"), ("data_wait", "data"), ("get_batch", "data"),
        ("all_reduce", "wait"), ("allreduce", "wait"), ("grads-reduce-scatter", "wait"), ("barrier", "wait"),
        ("forward-recv", "wait"), ("comm", "wait"), ("data_parallel_sync", "wait"), ("command", "work"),
        ("step", "total"), ("train_step", "total"), ("iteration", "total"), ("value_head", "work"),
        ("", "work"), ("损失", "work"), ("it's; DROP VIEW samples; --", "work"), ("Eval", "evaluation"),
    ],
)  # fmt: skip
def test_a_span_is_what_its_name_says(tables: Any, span: str, kind: str) -> None:
    assert tables.rows("SELECT span_kind(?)", [span]) == [(kind,)]


def test_nested_spans_are_counted_once_and_the_outer_one_keeps_the_rest(tables: Any) -> None:
    """step [0, 10] holds forward [1, 5], which holds attention [2, 3] and [3.5, 4], then backward [5, 9]."""
    rows = [
        ("attention", 3, 1),
        ("attention", 4, 0.5),
        ("forward", 5, 4),
        ("backward", 9, 4),
        ("step", 10, 10),
    ]
    tables.samples("r", "p", [(f"span/{name}", 7, at, seconds) for name, at, seconds in rows])
    found = tables.rows("SELECT span, seconds, self_seconds, n, inside FROM step_spans('r') ORDER BY span")
    assert found == [
        ("attention", 1.5, 1.5, 2, "forward"),
        ("backward", 4.0, 4.0, 1, "step"),
        ("forward", 4.0, 2.5, 1, "step"),
        ("step", 10.0, 2.0, 1, None),
    ]
    (whole,) = tables.dicts("FROM rank_steps('r')")
    assert (whole["seconds"], whole["busy_seconds"], whole["rest_seconds"]) == (10.0, 8.0, 2.0)
    parts = tables.rows("SELECT span, seconds FROM steps('r') ORDER BY seconds DESC, span")
    assert parts == [("backward", 4), ("forward", 2.5), ("(rest)", 2), ("attention", 1.5), ("(barrier)", 0)]


def test_spans_of_one_call_lie_side_by_side_beside_their_total(tables: Any) -> None:
    """A trainer that logs a dictionary of timings at the end of its step, total included."""
    timings = {"gen": 5.0, "update": 3.0, "step": 9.0}
    tables.samples("r", "p", [(f"span/{name}", 1, 20.0, seconds) for name, seconds in timings.items()])
    found = tables.rows("SELECT span, self_seconds, inside FROM step_spans('r') ORDER BY span")
    assert found == [("gen", 5.0, None), ("step", 9.0, None), ("update", 3.0, None)]
    assert tables.rows("SELECT busy_seconds, rest_seconds, step_seconds FROM rank_steps('r')") == [(8, 1, 9)]


def test_spans_that_run_at_the_same_time_are_never_more_than_the_time_they_cover(tables: Any) -> None:
    """Two threads: compute [0, 10], a transfer [8, 12], another thread's work [11, 15]: 15 s in all."""
    rows = [("compute", 10.0, 10.0), ("all_reduce", 12.0, 4.0), ("load", 15.0, 4.0)]
    tables.samples("r", "p", [(f"span/{name}", 1, at, seconds) for name, at, seconds in rows])
    found = dict(tables.rows("SELECT span, self_seconds FROM step_spans('r')"))
    assert sum(found.values()) == pytest.approx(15.0)
    assert (found["compute"], found["load"]) == (10.0, 4.0), "waiting gives way to work"


def test_only_the_newest_attempt_of_a_step_counts_unless_all_are_asked_for(tables: Any) -> None:
    tables.process("r", "p0")
    tables.process("r", "p1", attempt=1)
    tables.samples("r", "p0", [*laid(0, {"a": 1.0}, 1), *laid(1, {"a": 2.0}, 3)])
    tables.samples("r", "p1", laid(1, {"a": 5.0}, 30))
    assert tables.rows("SELECT step, seconds FROM step_spans('r') ORDER BY 1") == [(0, 1.0), (1, 5.0)]
    everything = "SELECT attempt, step, seconds FROM step_spans('r', all_attempts := true) ORDER BY 1, 2"
    assert tables.rows(everything) == [(0, 0, 1.0), (0, 1, 2.0), (1, 1, 5.0)]


def test_forked_children_and_other_roles_do_not_count(tables: Any) -> None:
    tables.process("r", "p0")
    tables.process("r", "worker", parent="p0")
    tables.process("r", "rollout", role="rollout")
    for process in ("p0", "worker", "rollout", "unknown"):
        tables.samples("r", process, laid(0, {"a": 1.0}, 1))
    found = "SELECT process FROM step_spans('r') ORDER BY 1"
    assert tables.rows(found) == [("p0",), ("unknown",)]
    assert ("rollout",) in tables.rows("SELECT process FROM step_spans('r', of_role := 'rollout')")


def test_metrics_of_known_names_stand_in_where_a_run_has_no_spans(tables: Any) -> None:
    rows = [("data_loading_time", 0, 9, 1.0), ("forward_time", 0, 9, 2.0), ("communication_time", 0, 9, 3.0)]
    tables.samples("r", "p", [*rows, ("step_time", 0, 9, 7.0)])
    (whole,) = tables.dicts("FROM rank_steps('r')")
    assert (whole["busy_seconds"], whole["waiting_seconds"], whole["rest_seconds"]) == (3.0, 3.0, 1.0)
    tables.samples("r", "p", [("span/forward", 1, 12, 2.0)])
    assert tables.rows("SELECT span FROM step_spans('r')") == [("forward",)]


def test_a_run_with_nothing_but_its_step_time_has_a_critical_rank(tables: Any) -> None:
    for rank, took in enumerate((1.0, 3.0)):
        tables.samples("r", f"p{rank}", [("step_time", 0, 9, took)], rank=rank)
    assert tables.rows("SELECT rank, span, step_seconds FROM critical_path('r')") == [(1, None, 3.0)]
    assert tables.rows("SELECT span, seconds FROM steps('r')") == [
        ("(untold)", 2.0),
        ("(barrier)", 1.0),
        ("(rest)", 0),
    ]


def test_what_is_no_duration_is_counted_and_left_out(tables: Any) -> None:
    tables.samples(
        "r", "p", laid(0, [("a", 1.0), ("a", math.nan), ("a", math.inf), ("a", -2.0), ("b", math.nan)], 5)
    )
    found = tables.rows("SELECT span, seconds, n, odd FROM step_spans('r') ORDER BY span")
    assert found == [("a", 1.0, 1, 3), ("b", 0.0, 0, 1)]
    assert tables.rows("SELECT span, seconds, odd FROM steps('r') WHERE kind = 'work' ORDER BY 1") == [
        ("a", 1.0, 3), ("b", 0.0, 1),
    ]  # fmt: skip


NAMES = ["", "(rest)", "损失 🚀", 'a"b', "it's; DROP VIEW samples; --", "a/b", "x" * 600]


def test_spans_of_any_name_are_told_by_their_exact_name(tables: Any) -> None:
    tables.samples('it\'s "r"', "p", laid(0, dict.fromkeys(NAMES, 1.0), 10))
    run = 'it\'s "r"'
    found = tables.rows("SELECT span FROM steps(?) WHERE kind = 'work'", [run])
    assert {name for (name,) in found} == set(NAMES)
    for name in NAMES:
        assert tables.rows("SELECT span, saved_seconds FROM speed_up(?, ?)", [run, name]) == [(name, 0.5)]


@pytest.mark.parametrize("macro", ["step_spans", "rank_steps", "steps", "critical_path", "speed_up"])
def test_a_run_without_spans_has_no_rows(tables: Any, macro: str) -> None:
    tables.process("r", "p")
    tables.samples("r", "p", [("loss", 0, 1, 1.0)])
    assert tables.rows(f"FROM {macro}('r')") == tables.rows(f"FROM {macro}('nobody')") == []


def life(seed: int) -> dict[tuple[int, int], list[tuple[str, float]]]:
    """(step, rank) to its spans: repeated, missing, of no time; ranks that lack a step."""
    rng = np.random.default_rng(seed)
    names = ["data", "forward", "backward", "all_reduce", "optimizer"]
    made = {}
    for step in range(int(rng.integers(1, 9))):
        for rank in range(int(rng.integers(1, 6))):
            chosen = [name for name in names for _ in range(int(rng.integers(0, 3)))]
            if chosen:
                made[step, rank] = [(name, int(rng.integers(0, 4000)) / 1000) for name in chosen]
    return made


@pytest.mark.parametrize("seed", range(8))
def test_any_steps_parts_add_up_and_agree_with_a_plain_count(tables: Any, seed: int) -> None:
    made = life(seed)
    for (step, rank), spans in made.items():
        tables.samples("r", f"p{rank}", laid(step, spans, 1000.0 * (step + 1) + 7 * rank), rank=rank)
    busy, whole, ended = {}, {}, {}
    for (step, rank), spans in sorted(made.items()):
        busy[step, rank] = sum(s for name, s in spans if name not in WAITS)
        ended[step, rank] = 1000.0 * (step + 1)
        gap = 1000.0 if (step - 1, rank) in made else 0.0
        whole[step, rank] = max(sum(s for _, s in spans), gap)
    totals = {}
    for step, rank in made:
        longest = max(v for (s, _), v in whole.items() if s == step)
        later = min((s for s, r in made if r == rank and s > step), default=None)
        room = 1e9 if whole[step, rank] < 1000.0 else 0.0
        if later is not None:
            room = max(0.0, ended[later, rank] - whole[later, rank] - ended[step, rank])
        totals[step, rank] = whole[step, rank] + min(longest - whole[step, rank], room)
    lasts = {step: np.mean([v for (s, _), v in totals.items() if s == step]) for step, _ in made}
    for row in tables.dicts("FROM rank_steps('r')"):
        key = row["step"], row["rank"]
        assert row["busy_seconds"] == pytest.approx(busy[key])
        assert row["seconds"] == pytest.approx(whole[key])
        parts = ("busy_seconds", "waiting_seconds", "rest_seconds", "barrier_seconds")
        assert sum(row[part] for part in parts) == pytest.approx(totals[key])
        assert row["step_seconds"] == pytest.approx(lasts[row["step"]])
        assert all(row[part] >= 0 for part in parts)
    shares = tables.rows("SELECT sum(share), sum(seconds) FROM steps('r')")
    assert shares == [(pytest.approx(1.0), pytest.approx(np.mean(list(totals.values()))))]
    critical = {s: max((r for t, r in made if t == s), key=lambda r: (busy[s, r], -r)) for s in lasts}
    (on_path,) = tables.rows("SELECT sum(critical_seconds) FROM steps('r')")[0]
    assert on_path == pytest.approx(np.mean([totals[step, rank] for step, rank in critical.items()]))
    assert dict(tables.rows("SELECT step, rank FROM critical_path('r')")) == critical


def test_steps_told_by_the_clock_add_up_to_the_time_that_went_by(tables: Any) -> None:
    """Ranks that wait for each other in turn: what one waits at the end of a step is in its next step."""
    for rank in (0, 1):
        for step in range(20):
            late = 0.5 if step % 2 == rank else 0.0
            tables.samples(
                "r", f"p{rank}", laid(step, {"forward": 1.0 + late}, 2.0 * step + 2.0 + late), rank=rank
            )
    (seconds,) = tables.rows("SELECT sum(seconds) * 20 FROM steps('r')")[0]
    by_clock = ((40.0 - 2.5 + 1.5) + (40.5 - 2.0 + 1.0)) / 2  # first step: what its spans cover
    assert seconds == pytest.approx(by_clock)
    assert tables.rows("SELECT max(barrier_seconds) FROM rank_steps('r') WHERE step > 0") == [(0.0,)]
    whole = tables.rows("SELECT sum(step_seconds) FROM critical_path('r')")
    assert whole == [(pytest.approx(seconds),)]


def test_named_steps_that_follow_each_other_leave_no_room_for_a_barrier(tables: Any) -> None:
    """A `step` span that ends late for one rank: the other is in its next step by then, and waits there."""
    for rank in (0, 1):
        end = 0.0
        for step in range(6):
            took = 10.0 + (1.0 if step % 2 == rank else -1.0)
            end += took
            tables.samples("r", f"p{rank}", [("span/step", step, end, took)], rank=rank)
    assert tables.rows("SELECT sum(seconds) * 6 FROM steps('r')") == [(pytest.approx(60.0 + 1.0),)]


def test_a_wait_inside_of_a_span_is_told_from_its_work(tables: Any) -> None:
    """Backward ends with an all-reduce that no span names: it is long where the rank came early."""
    rng = np.random.default_rng(7)
    for step in range(40):
        forward = 1.0 + 0.02 * rng.standard_normal(4)
        forward[2] += 2.0 if 10 <= step < 20 else 0.0
        for rank in range(4):
            backward = 2.0 + forward.max() - forward[rank]
            parts = {"forward": float(forward[rank]), "backward": float(backward)}
            tables.samples("r", f"p{rank}", laid(step, parts, 10.0 * step + 9), rank=rank)
    found = dict(tables.rows("SELECT span, waiting_seconds > 0 FROM steps('r') WHERE kind = 'work'"))
    assert found == {"backward": True, "forward": False}
    assert tables.rows("SELECT max(abs(self_seconds - waiting_seconds - 2)) < 1e-6 FROM step_spans('r') "
                       "WHERE span = 'backward'") == [(True,)]  # fmt: skip
    path = tables.rows("SELECT DISTINCT rank, span FROM critical_path('r') WHERE step BETWEEN 10 AND 19")
    assert path == [(2, "forward")]
    (backward,) = tables.dicts("FROM speed_up('r', 'backward', 2)")
    assert backward["saved_seconds"] == pytest.approx(40 * 1.0)
    assert backward["why"] == "waits for other ranks inside: only its work is made faster"


def test_ranks_that_share_their_work_unevenly_are_not_taken_to_wait(tables: Any) -> None:
    """Long in everything or independent: no span is short because the rank came late."""
    rng = np.random.default_rng(8)
    for step in range(40):
        for rank in range(4):
            size = rng.lognormal(0, 0.3)
            parts = {"forward": size, "backward": 2 * size, "optimizer": rng.lognormal(0, 0.3)}
            tables.samples("r", f"p{rank}", laid(step, parts, 10.0 * step + 9), rank=rank)
    assert tables.rows("SELECT sum(waiting_seconds) FROM step_spans('r')") == [(0.0,)]


def test_a_receive_of_a_pipeline_promises_nothing(tables: Any, timings: Path) -> None:
    """Real traces: receives and sends take up to a seventh of the time, and wait for other stages."""
    for job in ("AR", "SE"):
        tables.trace(timings / f"trace-{job}.parquet", job)
        found = {row["span"]: row for row in tables.dicts("FROM speed_up(?)", [job])}
        for span in ("forward-recv", "forward-send", "backward-recv", "backward-send"):
            assert found[span]["saved_seconds"] == 0.0, (job, span)
            assert found[span]["why"] == "waits for what other ranks do: shorter only where they are faster"
        assert found["grads-reduce-scatter"]["saved_share"] < 0.003
        assert found["backward-compute"]["saved_share"] > 0.25


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [2, 10])
def test_a_speed_up_is_what_the_slowest_rank_of_each_step_then_allows(
    tables: Any, seed: int, factor: int
) -> None:
    made = life(seed + 100)
    for (step, rank), spans in made.items():
        tables.samples("r", f"p{rank}", laid(step, spans, 1000.0 * (step + 1)), rank=rank)
    saved: dict[str, float] = defaultdict(float)
    for name in {name for spans in made.values() for name, _ in spans}:
        for step in {step for step, _ in made}:
            ranks = [spans for (s, _), spans in made.items() if s == step]
            if name in WAITS:
                having = [
                    sum(t for n, t in spans if n == name)
                    for spans in ranks
                    if any(n == name for n, _ in spans)
                ]
                path = max(ranks, key=lambda spans: sum(t for n, t in spans if n not in WAITS))
                if any(n == name for n, _ in path):
                    saved[name] += min(having) * (1 - 1 / factor)
                continue
            now = [sum(t for n, t in spans if n not in WAITS) for spans in ranks]
            then = [
                sum(t / (factor if n == name else 1) for n, t in spans if n not in WAITS) for spans in ranks
            ]
            saved[name] += max(now) - max(then)
    found = tables.dicts("FROM speed_up('r', factor := ?)", [factor])
    assert {row["span"]: row["saved_seconds"] for row in found} == pytest.approx(dict(saved), abs=1e-9)
    for row in found:
        assert row["seconds_after"] == pytest.approx(row["seconds"] - row["saved_seconds"])
        assert 1 - 1e-12 <= row["speed_up"] <= row["limit"] + 1e-12


def test_a_faster_span_gives_nothing_where_another_rank_holds_the_others_up(tables: Any) -> None:
    """Forward is half of the mean step, but the slow rank spends its time in backward."""
    tables.samples("r", "p0", laid(0, {"forward": 9.0, "backward": 1.0}, 20), rank=0)
    tables.samples("r", "p1", laid(0, {"forward": 1.0, "backward": 9.5}, 20), rank=1)
    (row,) = tables.dicts("FROM speed_up('r', 'forward', 2)")
    assert (row["saved_seconds"], row["moved"]) == (0.5, 0)
    assert row["naive_share"] == pytest.approx(10.0 / 21.0)
    (row,) = tables.dicts("FROM speed_up('r', 'backward', 2)")
    assert (row["seconds"], row["seconds_after"], row["moved"]) == (10.5, 9.5, 1)


def test_the_time_zone_of_the_reader_does_not_matter(tables: Any) -> None:
    for rank in (0, 1):
        for step in range(3):
            tables.samples("r", f"p{rank}", laid(step, LIFE, 2.0 * step + 5), rank=rank)
    questions = [
        "FROM steps('r')",
        "FROM critical_path('r')",
        "SELECT * EXCLUDE ended FROM step_spans('r') ORDER BY ALL",
    ]
    at_home = [tables.rows(sql) for sql in questions]
    tables.db.execute("SET TimeZone = 'Asia/Tehran'")
    assert [tables.rows(sql) for sql in questions] == at_home


def test_hostile_durations_break_no_analysis(tables: Any) -> None:
    """Spans of no time, of 10^300 seconds, and more waiting than there is time."""
    spans = [("a", 0.0), ("all_reduce", 0.0), ("a", 1e300), ("b", 5.0), ("b", 1e308)]
    tables.process("r", "p")
    tables.samples(
        "r", "p", [(f"span/{name}", 3, 1.0 + at / 1e6, took) for at, (name, took) in enumerate(spans)]
    )
    tables.samples("r", "p", [("step_time", 3, 2.0, 1e308)])
    assert tables.rows("SELECT busy_seconds, odd FROM rank_steps('r')") == [(5.0, 2)]
    for macro in (
        "steps",
        "critical_path",
        "speed_up",
        "rank_skew",
        "ranks",
        "rank_heat",
        "goodput",
        "goodput_ledger",
    ):
        for row in tables.rows(f"FROM {macro}('r')"):
            assert not any(isinstance(value, float) and not math.isfinite(value) for value in row), (
                macro,
                row,
            )
