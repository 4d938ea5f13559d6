"""Attempts, late data, completeness, configuration, bounds and bad input: a clear outcome each."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from driftline import config, events, frames
from driftline.config import PipelineConfig, SuiteRef, WindowSpec
from driftline.errors import BadData
from driftline.events import Checkpoint
from driftline.streams import panes, participants, processes
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
STEPS = PipelineConfig(windows=[WindowSpec("step", 1, 1)], allowed_lateness_us=SECOND)


def steps(first: int, last: int, metric: str = "loss") -> list:
    return [(metric, s, s * 1000, 1.0, 1.0) for s in range(first, last)]


def test_rewind_opens_one_attempt_for_all_ranks(log) -> None:
    """Each rank says rewind(3): the first opens the attempt, the second joins it; nothing is late."""
    log.configure(STEPS)
    for rank in (0, 1):
        log.event(events.ProcessStarted, process=f"p{rank}", rank=rank, world_size=2)
        log.frame(steps(0, 6), process=f"p{rank}", rank=rank)
    for rank in (0, 1):
        log.event(events.RunRewound, process=f"p{rank}", step=3)
        log.frame(steps(3, 5), process=f"p{rank}", rank=rank)
    for rank in (0, 1):
        log.event(events.ProcessEnded, process=f"p{rank}")
    assert [f.attempt for f in log.facts("attempt_started")] == [1]
    assert {(r["start"], r["count"], r["expected"]) for r in log.rows(attempt=1)} == {(3, 2, 2), (4, 2, 2)}
    assert log.facts("late") == []


def test_a_falling_step_or_odd_arrival_opens_no_attempt(log) -> None:
    """Evaluation metrics speak of older steps, and a second process may have frames of a taken seat."""
    log.frame(steps(10, 12), process="a", rank=0)
    log.frame(steps(2, 4, "eval"), process="a", rank=0)
    log.frame(steps(0, 3), process="b", rank=0)
    assert log.facts("attempt_started") == []


def test_forked_child_takes_no_seat(log) -> None:
    log.event(events.ProcessStarted, process="a", rank=0)
    log.event(events.ProcessStarted, process="child", rank=0, parent="a")
    assert log.facts("attempt_started") == []


def test_frames_without_a_start_work(log) -> None:
    """The record that announces a process may be lost: its frames still count, with a note on the hole."""
    log.seqs[("r", "p0")] = 4
    log.frame(steps(0, 3))
    (gap,) = log.facts("gap")
    assert (gap.start, gap.end, gap.process) == (0, 5, "p0")
    log.event(events.ProcessEnded)
    assert log.rows(metric="loss")


def test_tables_hear_where_a_process_without_a_start_belongs(log) -> None:
    """Its samples are of attempt 1, in windows and, by the fact, on curves."""
    log.frame(steps(0, 3), process="a")
    log.event(events.RunRewound, process="a", step=0)
    log.frame(steps(0, 2), process="b", rank=1)
    log.frame(steps(2, 3), process="b", rank=1)
    assert [(f.process, f.attempt) for f in log.facts("process_joined")] == [("a", 1), ("b", 1)]


def test_duplicates_count_once(log) -> None:
    log.configure(STEPS)
    log.frame(steps(0, 3))
    log.put(log.records[-1].value)
    log.event(events.ProcessEnded)
    assert log.state.counters["duplicates"] == 1
    assert [row["count"] for row in log.rows()] == [1, 1, 1]


def test_late_samples_are_counted_told_and_in_no_window(log) -> None:
    """A rank that comes back after it was given up finds its panes closed: a fact names metric and range."""
    log.configure(msgspec.structs.replace(STEPS, idle_us=3 * SECOND))
    log.frame(steps(0, 2), process="a", rank=0, at_us=0)
    log.frame(steps(0, 2), process="b", rank=1)
    for second in range(1, 8):
        log.frame(steps(second * 2, second * 2 + 2), process="a", rank=0, at_us=second * SECOND)
        log.tick(second * SECOND)
    log.frame(steps(2, 5), process="b", rank=1)
    log.tick(8 * SECOND)
    (late,) = log.facts("late")
    assert (late.metric, late.axis, late.start, late.end, late.count) == ("loss", "step", 2, 5, 3)
    assert log.state.counters["late_step"] == 3
    assert {row["count"] for row in log.rows() if 2 <= row["start"] < 5} == {1}


def test_a_slow_rank_holds_the_step_axis_and_a_late_starter_is_not_late(log) -> None:
    """
    a  0..9
    b     0..4            windows close only below 4, and only an allowed lateness later
    """
    log.configure(STEPS)
    log.frame(steps(0, 10), process="a", rank=0, at_us=0)
    log.frame(steps(0, 5), process="b", rank=1, at_us=SECOND // 2)
    log.tick(SECOND - 1000)
    assert log.rows() == []
    log.tick(2 * SECOND)
    assert [(row["start"], row["count"], row["present"], row["expected"]) for row in log.rows()] == [
        (step, 2, 2, 2) for step in range(4)
    ]
    assert log.facts("late") == []


def test_missing_rank_is_told_once(log) -> None:
    """Rank 1 stops giving loss but lives on: one fact says from which step on."""
    log.configure(STEPS)
    for rank in (0, 1):
        log.frame(steps(0, 3), process=f"p{rank}", rank=rank, at_us=0)
    for rank, metric in ((0, "loss"), (1, "other")):
        log.frame(steps(3, 9, metric), process=f"p{rank}", rank=rank, at_us=SECOND)
    log.tick(3 * SECOND)
    (fact,) = log.facts("missing")
    assert (fact.metric, fact.rank, fact.start) == ("loss", 1, 3)
    assert {(r["present"], r["expected"]) for r in log.rows(metric="loss") if r["start"] >= 3} == {(1, 2)}


def test_ranks_that_never_start_stop_counting_after_the_grace(log) -> None:
    log.configure(msgspec.structs.replace(STEPS, start_grace_us=5 * SECOND))
    for rank in (0, 1):
        log.event(events.ProcessStarted, process=f"p{rank}", rank=rank, world_size=3)
    for second in range(10):
        for rank in (0, 1):
            log.frame(steps(second * 2, second * 2 + 2), process=f"p{rank}", rank=rank, at_us=second * SECOND)
        log.tick(second * SECOND)
    expected = {row["start"]: row["expected"] for row in log.rows()}
    assert expected[0] == 3
    assert expected[14] == 2
    (fact,) = log.facts("missing")
    assert fact.detail == {"ranks": [2]}


def test_a_hole_in_the_ticks_is_not_silence(log) -> None:
    """Nobody watched for a minute: the hole is told, and no process counts as idle."""
    log.tick(0)
    log.frame(steps(0, 3), at_us=0)
    log.tick(SECOND)
    log.tick(61 * SECOND)
    (hole,) = log.facts("hole")
    assert (hole.start, hole.end) == (SECOND, 61 * SECOND)
    assert log.facts("process_idle") == []
    assert log.detection()[-1] == ["tick", 61 * SECOND, [["p0", 60 * SECOND]]]


def test_an_idle_run_is_flushed_ended_and_goes_on(log) -> None:
    """A killed run: its windows go out after the idle limit; when it speaks again no window comes twice."""
    log.frame([("x", None, 0, 1.0, 1.0)], at_us=0)
    for second in range(1, 33):
        log.tick(second * SECOND)
    assert log.facts("process_idle")
    assert [f.detail for f in log.facts("run_ended")] == [{"silent": True}]
    assert len(log.rows(axis="time")) == 10
    log.frame([("x", None, 33 * SECOND, 1.0, 1.0)])
    log.event(events.ProcessEnded)
    keys = [(row["start"], row["end"]) for row in log.rows(axis="time")]
    assert len(keys) == len(set(keys)) == 20


def test_detectors_see_panes_in_order_with_their_ranks(silent) -> None:
    """Panes by position, metrics of one position by name; per-rank means only for watched metrics."""
    silent.watched = frozenset({"b"})
    log = silent.log(Pipeline(silent, silent))
    log.configure(STEPS)
    for rank in (0, 1):
        log.frame(
            [(m, s, 0, rank + s + 0.0, 1.0) for s in (0, 1) for m in ("b", "a")],
            process=f"p{rank}",
            rank=rank,
        )
    for rank in (0, 1):
        log.event(events.ProcessEnded, process=f"p{rank}")
    shown = [seen[1:] for seen in log.detection() if seen[0] == "pane" and seen[1] == "step"]
    assert shown == [
        ["step", "a", 0, 2, 0.5, {}],
        ["step", "b", 0, 2, 0.5, {0: 0.0, 1: 1.0}],
        ["step", "a", 1, 2, 1.5, {}],
        ["step", "b", 1, 2, 1.5, {0: 1.0, 1: 2.0}],
    ]
    assert {row["group"] for row in log.rows()} == {""}
    assert log.detection()[-1][0] == "end"


def test_changed_windows_start_fresh_panes(log) -> None:
    """What was open goes out under the old windows; later samples fall into the new ones only."""
    log.configure(STEPS)
    log.frame(steps(0, 3))
    log.configure(PipelineConfig(windows=[WindowSpec("step", 4, 4)]))
    log.frame(steps(3, 6))
    log.event(events.ProcessEnded)
    sizes = [(row["start"], row["end"], row["count"]) for row in log.rows()]
    assert sizes == [(0, 1, 1), (1, 2, 1), (2, 3, 1), (0, 4, 1), (4, 8, 2)]
    assert len(log.facts("config")) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"windows":[{"axis":"time","size":10,"every":3}]}',
        b'{"windows":[{"axis":"step","size":-1,"every":1}]}',
        b'{"nonsense":1}',
        b'{"windows":"no"}',
    ],
)
def test_unusable_configuration_is_a_dead_letter_and_the_old_one_stays(log, body: bytes) -> None:
    log.configure(STEPS)
    digest = log.pipeline.config_digest(log.state)
    event = events.ConfigChanged(worker="w", time_us=0, digest="new", body=msgspec.Raw(body))
    (letter,) = log.put(events.encode(event))
    assert letter.topic == "dead-letter"
    assert "configuration not usable" in events.decode(letter.value).reason
    assert log.pipeline.config_digest(log.state) == digest
    assert log.state.config == STEPS


def test_poison_is_a_dead_letter_with_its_offset_and_the_stream_goes_on(log) -> None:
    """Case 27: ten valid records, raw bytes, and an event with a missing field."""
    log.frame(steps(0, 5))
    log.put(b"\x00raw")
    log.put(b'{"kind":"heartbeat","v":1,"run":"r"}')
    log.put(None)
    log.put(b'{"kind":"from_the_future","v":9}')
    log.frame(steps(5, 10))
    letters = log.of("dead-letter")
    assert [(letter.topic, letter.offset) for letter in letters] == [("telemetry", n) for n in (1, 2, 3)]
    assert all(letter.reason for letter in letters)
    assert log.state.counters["samples"] == 10
    assert log.state.counters["unknown"] == 1


def test_checkpoint_that_a_trigger_picks_is_requested_once_per_suite(silent) -> None:
    silent.picks = ("steps",)
    log = silent.log(Pipeline(silent, silent))
    suites = [SuiteRef(name="a", target="x:y"), SuiteRef(name="b", target="x:z")]
    log.configure(PipelineConfig(suites=suites))
    point = Checkpoint(digest="d", uri="/c", step=5)
    log.event(events.CheckpointSaved, checkpoint=point)
    requests = log.of("evals")
    assert [(r.request, r.reason, r.attempt) for r in requests] == [
        (config.request_id(point, suite), "steps", 0) for suite in suites
    ]
    assert len({r.id for r in requests}) == 2


def test_lost_offsets_are_a_fact(log) -> None:
    log.frame(steps(0, 2))
    (output,) = log.pipeline.gap(log.state, 7, 12)
    fact = events.decode(output.value)
    assert (fact.what, fact.run, fact.start, fact.end, fact.count) == ("gap", "r", 7, 12, 5)


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: b"garbage", lambda d: d[:-1], lambda d: d[:50] + b"x" + d[51:]]
)
def test_damaged_snapshot_is_bad_data(log, damage) -> None:
    log.frame(steps(0, 5))
    data = log.pipeline.dump(log.state)
    with pytest.raises(BadData):
        log.pipeline.load(damage(data))


def test_bounds_refuse_count_and_tell_once(log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and runs beyond their bounds: the rest goes on, one fact, all counted; old panes close."""
    monkeypatch.setattr(participants, "MAX_METRICS", 3)
    monkeypatch.setattr(panes, "MAX_OPEN_PANES", 50)
    monkeypatch.setattr(processes, "MAX_RUNS", 1)
    log.configure(STEPS)
    log.frame([(f"m{n}", 0, 0, 1.0, 1.0) for n in range(5)])
    log.frame([("m0", s, 0, 1.0, 1.0) for s in range(100)])
    log.frame([("m0", 1, 0, 1.0, 1.0)], run="other", process="q")
    log.event(events.ProcessEnded)
    assert {row["metric"] for row in log.rows()} == {"m0", "m1", "m2"}
    assert {row["start"] for row in log.rows()} == set(range(100))
    assert log.state.counters["refused_step"] == 2
    assert log.state.counters["crowded_step"] == 1
    assert log.state.counters["records_of_refused_runs"] == 1
    assert [(fact.run, fact.axis) for fact in log.facts("refused")] == [
        ("r", "time"),
        ("r", "step"),
        ("other", None),
    ]


def test_garbage_positions_are_refused_not_fatal(log) -> None:
    low, high = np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max
    log.frame([("x", high, high, 1.0, 1.0), ("x", low, low, 1.0, 1.0), ("x", 1, 1, 1.0, 1.0)])
    log.event(events.ProcessEnded)
    assert sum(row["count"] for row in log.rows(axis="step")) == 50
    assert log.state.counters["refused_step"] == 2


def test_an_empty_frame_is_a_sign_of_life_only(log) -> None:
    nothing = np.empty(0)
    frame = frames.Frame(
        "r",
        "p0",
        0,
        0,
        [],
        nothing.astype(np.int16),
        nothing.astype(np.int64),
        nothing.astype(np.int64),
        nothing,
        nothing,
    )
    log.put(frames.encode(frame))
    assert log.rows() == []
    assert log.state.runs["r"].processes["p0"].seq == 0


def test_a_record_of_a_newer_kind_is_no_lost_record(log) -> None:
    """A newer SDK's record that this build does not know takes its place in the sequence: no gap is told."""
    log.frame(steps(0, 3))
    log.put(b'{"kind":"hologram","v":1,"run":"r","process":"p0","seq":%d,"time_us":0}' % log.seq("r", "p0"))
    log.put(b'{"kind":"hologram","v":1,"run":"r","process":"p0","seq":1,"time_us":0}')
    log.frame(steps(3, 5))
    assert log.facts("gap") == []
    assert log.state.counters["unknown"] == 2
    assert log.state.counters["duplicates"] == 1


def test_a_refused_configuration_is_for_the_workers_log_until_a_good_one_comes(log) -> None:
    log.configure(PipelineConfig(windows=[WindowSpec("step", -1, 1)]))
    (notice,) = log.pipeline.notices(log.pipeline.load(log.pipeline.dump(log.state)))
    assert "is refused" in notice
    assert "windows" in notice
    log.configure(STEPS)
    assert log.pipeline.notices(log.state) == []


def test_a_snapshot_that_says_something_else_than_was_written_is_refused(log) -> None:
    """A changed byte may still be a readable state: the digest tells."""
    pipeline = Pipeline()
    data = pipeline.dump(pipeline.fresh("the-uuid", 0))
    assert pipeline.load(data).topic_uuid == "the-uuid"
    with pytest.raises(BadData, match="damaged"):
        pipeline.load(data.replace(b"the-uuid", b"the-uuiD"))
