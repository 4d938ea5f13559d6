"""What is stored comes out again: the same bytes from the pipeline, the same rows; where not, it is said."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from driftline import config, events, frames
from driftline.cli.app import app
from driftline.records import Framed, Output, OutputId, Record
from driftline.replay import what_if
from driftline.replay.player import Player
from driftline.replay.proof import FIRST, Proof, prove
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.recorded import samples as replay_samples
from driftline.storage.recorded import source as replay_source
from driftline.storage.recorded.compare import Stored
from driftline.storage.recorded.source import Hole, TableLog, run_ids
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline

Store = Callable[..., Path]
SUITE = events.SuiteRef(name="sums", target="m:a")


def replayed(root: Path, *runs: str) -> dict[tuple[str, int], list[Output]]:
    """All outputs of a replay, by partition."""
    log = TableLog(root, runs)
    made = {}
    for part in log.parts():
        player = Player(part, log.configurations(part))
        made[part.topic_uuid, part.partition] = [o for item in log.stretches(part) for o in player.play(item)]
    return made


def proven(root: Path, *runs: str) -> Proof:
    return prove(TableLog(root, runs), Stored(root, runs), runs=runs)


@pytest.mark.parametrize(("bound", "block"), [(1_000_000, 1_000_000), (40, 1_000_000), (40, 400)])
def test_a_replay_from_the_tables_gives_the_bytes_that_the_pipeline_gave(
    log: Any, stored: Store, monkeypatch: pytest.MonkeyPatch, bound: int, block: int
) -> None:
    """Also when the log is much larger than what is held at once, and after compaction."""
    monkeypatch.setattr(replay_source, "SAMPLES", bound)
    monkeypatch.setattr(replay_source, "BLOCK_SAMPLES", block)
    monkeypatch.setattr(replay_source, "RECORDS", max(70, bound // 10))
    one = log.odd()
    other = log(partition=1, uuid="other")
    other.train("c", range(40))
    root = stored(one, other)
    wanted = {
        (each.uuid, each.partition): Pipeline().step(
            beginning(Pipeline(), each.uuid, each.partition, each.records), each.records
        )
        for each in (one, other)
    }
    assert replayed(root) == wanted
    for name in ("samples", "log"):
        assert Lake(root).compact(name, at_least=1)
    assert replayed(root) == wanted


def test_every_stored_row_is_proven_of_a_run_of_many_and_of_all(whole: tuple[Any, Path]) -> None:
    root = whole[1]
    for runs in ((), ("a",), ("b",), ("a", "b")):
        proof = proven(root, *runs)
        assert proof.identical, proof.differences
        assert {one.run for one in proof.compared} == set(runs or ("a", "b"))
        assert min(one.stored.rows for one in proof.compared) > 0
        assert (proof.beyond, proof.notes) == (0, [])


def test_runs_are_found_by_id_or_by_name(whole: tuple[Any, Path]) -> None:
    from driftline.errors import SettingsError

    root = whole[1]
    assert run_ids(root, ["b", "the a", "a"]) == ["a", "b"]
    with pytest.raises(SettingsError, match="no run of this id or name"):
        run_ids(root, ["nobody"])


def test_a_row_that_is_not_as_it_was_is_named(log: Any, stored: Store) -> None:
    """A lost alert and a changed window: which, and what of it, first in the order of the log."""
    one = log.odd()
    alert = next(
        o
        for o in Pipeline().step(beginning(Pipeline(), one.uuid, 0, one.records), one.records)
        if o.topic == "alerts"
    )
    root = stored(one, skip=lambda output: output.id == alert.id)
    proof = proven(root)
    assert not proof.identical
    assert [(d.table, d.what, d.offset) for d in proof.differences] == [
        ("alerts", "only replayed", alert.id.offset)
    ]
    lake = Lake(root)
    rows = Stored(root).batches("windows", [replay_reach(root)])
    first = next(iter(rows)).slice(0, 1)
    changed = first.set_column(first.schema.get_field_index("mean"), "mean", pa.array([123.0]))
    keys = {name: first[name][0].as_py() for name in ("run", "offset", "start", "end", "metric", "group")}
    lake.delete("windows", " AND ".join(f'"{name}" = {value!r}' for name, value in keys.items()))
    lake.commit("windows", pa.table(changed), {}, {"x": 1})
    named = [d for d in proven(root).differences if d.table == "windows"]
    assert [(d.what, d.offset) for d in named] == [("other values", first["offset"][0].as_py())]
    assert named[0].columns == {"mean": (123.0, pytest.approx(named[0].columns["mean"][1]))}


def test_the_exit_code_of_the_command_tells_whether_the_past_is_proven(
    log: Any, store: Any, tmp_path: Path
) -> None:
    """0 where all that is stored came out again, 1 where a row is missing: scripts go by it."""
    one = log()
    one.train("a", range(40))
    one.end("a")
    made = Pipeline().step(beginning(Pipeline(), one.uuid, 0, one.records), one.records)
    lost = next(output for output in made if output.topic == "windows")
    whole = store(tmp_path / "whole", one)
    lacking = store(tmp_path / "lacking", one, skip=lambda output: output.id == lost.id)
    answers = [CliRunner().invoke(app, ["replay", "--root", str(root)]) for root in (whole, lacking)]
    assert [answer.exit_code for answer in answers] == [0, 1], answers[0].output


def test_a_column_that_earlier_versions_lacked_is_left_out_where_it_is_null_and_nowhere_else(
    log: Any, stored: Store
) -> None:
    one = log()
    one.train("a", range(40))
    one.end("a")
    root = stored(one)
    rows = pa.Table.from_batches(Stored(root).batches("windows", [replay_reach(root)]))

    def write(column: pa.Array, number: int) -> Proof:
        lake = Lake(root)
        lake.delete("windows", "true")
        at = rows.schema.get_field_index("sum")
        lake.commit("windows", rows.set_column(at, "sum", column), {}, {"x": number})
        return proven(root)

    sums = rows["sum"].to_pylist()
    assert sums[0] is not None
    unknown = write(pa.nulls(len(sums), pa.float64()), 1)
    assert unknown.identical
    assert "sum" in next(one.note for one in unknown.compared if one.table == "windows")
    wrong = write(pa.array([sums[0] + 1, *sums[1:]], pa.float64()), 2)
    assert not wrong.identical
    assert [d.columns for d in wrong.differences] == [{"sum": (sums[0] + 1, sums[0])}]


def replay_reach(root: Path) -> Any:
    from driftline.storage.recorded.compare import Reach

    part = TableLog(root).parts()[0]
    return Reach(part.topic_uuid, part.partition, 0, part.end)


def test_what_the_sink_has_not_stored_yet_is_no_difference(log: Any, stored: Store) -> None:
    one = log.odd()
    cut = len(one.records) // 2
    root = stored(one, skip=lambda output: output.id.offset > cut)
    proof = proven(root)
    assert proof.identical
    assert proof.beyond > 0


def test_a_run_whose_last_results_are_lost_is_not_proven_by_what_is_left_of_it(
    log: Any, stored: Store
) -> None:
    """Another run of the partition has results behind them, so the sink had been there."""
    root = stored(log.odd(), commits=1, skip=lambda output: output.run == "a" and output.id.offset > 400)
    assert not proven(root).identical
    assert not proven(root, "a").identical


def test_a_table_that_is_behind_the_others_is_named_as_the_reason(log: Any, stored: Store) -> None:
    """A sink commits one table after another; a replay may look between two commits."""
    root = stored(
        log.odd(), commits=1, skip=lambda output: output.topic == "windows" and output.id.offset > 600
    )
    proof = proven(root)
    assert not proof.identical
    assert [note for note in proof.notes if "windows" in note and "a sink" in note]


def test_answered_evaluations_are_proven_whatever_part_of_the_log_is_looked_at(
    log: Any, stored: Store
) -> None:
    """An answer lies behind its request: a part may have the one without the other."""
    one = log.odd()
    core = Pipeline()
    said = core.step(beginning(core, one.uuid, one.partition, one.records), one.records)
    asked = [output for output in said if output.topic == "evals"]
    end = len(one.records)
    for number, output in enumerate(asked[:-1]):
        request = events.decode(output.value)
        assert isinstance(request, events.EvalRequested)
        one.put(events.encode(_accepted(request, number)))
    root = stored(one, commits=1)
    source = TableLog(root)
    for start, behind, answers in (
        (0, end + 9, True),
        (asked[1].id.offset + 1, end + 9, True),
        (9, end, False),
    ):

        def window(part: Any, start: int = start, behind: int = behind) -> tuple[int, int]:
            return start, min(part.end, behind)

        proof = prove(source, Stored(root), window=window)
        assert proof.identical, proof.differences
        assert any(row.table == "triggers" for row in proof.compared) == answers
        assert proof.unanswered == (1 if answers else len(asked))


def test_results_that_came_in_another_order_than_their_checkpoints_are_replayed_in_theirs(
    log: Any, stored: Store
) -> None:
    """Case 33: the result of checkpoint 12 comes before that of 10, and training has moved on. Both keep
    their step; 10 is best, 12 is latest, none is refused; and so it is in the replay."""
    one = log(settings=config.PipelineConfig(suites=[SUITE], triggers=config.Triggers(steps=2)))
    one.event(events.ProcessStarted, "a", "p", rank=0, world_size=1)
    for step in range(15):
        one.frame("a", "p", 0, [("loss", step, one.now_us, 1.0, 1.0)])
        if step in (10, 12):
            saved = events.Checkpoint(digest=f"d{step}", uri=f"/c/{step}", step=step)
            one.event(events.CheckpointSaved, "a", "p", checkpoint=saved)
        one.wait(1)
    core = Pipeline()
    said = core.step(beginning(core, one.uuid, 0, one.records), one.records)
    requests = [events.decode(output.value) for output in said if output.topic == "evals"]
    asked = {one.checkpoint.step: one for one in requests if isinstance(one, events.EvalRequested)}
    for number, (step, value) in enumerate([(12, 0.45), (10, 0.47)]):
        one.put(events.encode(_accepted(asked[step], number, value)))
        one.frame("a", "p", 0, [("loss", 15 + number, one.now_us, 1.0, 1.0)])
    one.wait(20)
    root = stored(one)
    proof = proven(root)
    assert proof.identical, proof.differences
    (triggers,) = [row for row in proof.compared if row.table == "triggers"]
    assert (triggers.stored.rows, proof.unanswered) == (2, 0)
    answers = [(e.step, e.value) for e in Stored(root).evaluations()]
    assert sorted(answers) == [(10, 0.47), (12, 0.45)]
    (suite,) = what_if.compare(
        *(what_if.asked(TableLog(root), None, ()),) * 2, Stored(root).evaluations(), {}, {}
    )
    assert (suite.both, suite.metrics[0].best_step) == (2, 10)
    assert [(drop.step, drop.best, drop.seen_step) for drop in suite.metrics[0].drops] == [(12, 0.47, 12)]


def test_differences_are_all_counted_and_the_first_shown_in_bounded_memory(
    log: Any, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from driftline.storage.recorded import compare

    monkeypatch.setattr(compare, "DIFFER_MEMORY", "40MB")
    one = log.odd()
    root = stored(one)
    lake = Lake(root)
    rows = pa.Table.from_batches(list(Stored(root).batches("windows", [replay_reach(root)])))
    lake.delete("windows", "true")
    again = [rows.set_column(rows.schema.get_field_index("mean"), "mean", pa.array([9.0] * len(rows)))]
    lake.commit("windows", again[0].slice(7), {}, {"x": 1})
    proof = proven(root)
    counts = proof.differing["windows"]
    assert (counts.only_stored, counts.only_replayed, counts.other_values) == (0, 7, len(rows) - 7)
    assert len([one for one in proof.differences if one.table == "windows"]) == FIRST


def _accepted(request: events.EvalRequested, number: int, value: float = 0.5) -> events.EvalAccepted:
    return events.EvalAccepted(
        id=str(OutputId("controls-uuid", 0, number, 0)),
        request=request.request,
        run=request.run,
        attempt=request.attempt,
        suite=request.suite,
        checkpoint=request.checkpoint,
        reason=request.reason,
        evaluator="e",
        lease=f"{request.request}.1",
        tries=1,
        requested_us=request.time_us,
        accepted_us=request.time_us,
        outcome=events.EvalOutcome(status="done", metrics=[events.Metric(name="acc", value=value)]),
    )


def test_a_gap_that_the_stream_worker_told_of_is_played_again(own: tuple[Any, Path]) -> None:
    """The sink has the records that the worker lost: the replay leaves them out as well."""
    one, root = own
    lost = range(200, 260)
    core = Pipeline()
    state = beginning(core, one.uuid, 0, one.records)
    said = (
        core.step(state, one.records[:200]) + core.gap(state, 200, 260) + core.step(state, one.records[260:])
    )
    lake = Lake(root)
    for name in ("windows", "facts", "alerts"):
        lake.delete(name, "true")
    sink = SinkCore(lake)
    spots = {
        Spot(t, f"{t}-again", 0): [o.value for o in said if o.topic == t]
        for t in ("windows", "facts", "alerts")
    }
    sink.resume(dict.fromkeys(spots, 0))
    sink._rows.seen.outputs._high.clear()
    for spot, values in spots.items():
        sink.take(spot, [Record(0, at, 0, value) for at, value in enumerate(values)])
    assert list(sink.commits())
    assert proven(root).identical
    items = [item for part in TableLog(root).parts() for item in TableLog(root).stretches(part)]
    assert [item for item in items if isinstance(item, Hole)] == [Hole(lost.start, lost.stop)]


def test_what_retention_deleted_is_said(own: tuple[Any, Path]) -> None:
    one, root = own
    border = one.records[300].time_ms * 1000
    lake = Lake(root)
    from datetime import UTC, datetime

    instant = datetime.fromtimestamp(border / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lake.delete("log", f'"received" < \'{instant}\' AND "offset" <> 5 AND "kind" <> \'config_changed\'')
    lake.delete("samples", f"\"time\" < '{instant}'")
    proof = proven(root)
    assert any("is deleted (storage.retention)" in note for note in proof.notes)
    part = TableLog(root).parts()[0]
    assert not part.beginning
    assert part.start == next(r.offset for r in one.records if r.time_ms * 1000 >= border)
    settings = Player(part, TableLog(root).configurations(part)).state.config
    assert settings.per_rank == ["norm"], "the configuration that held there"


def test_samples_without_rows_are_said(own: tuple[Any, Path]) -> None:
    root = own[1]
    assert Lake(root).delete("samples", '"run" = \'b\' AND "metric" = \'norm\' AND "step" = 50') == 3
    proof = proven(root)
    assert any("3 samples of frames that log has are not in samples" in note for note in proof.notes)
    assert not proof.identical


def test_a_frame_sent_again_to_a_topic_made_anew_is_new_to_its_pipeline(log: Any, stored: Store) -> None:
    """To the tables it is a copy; the replay of the new topic takes its samples from the old one."""
    old, new = log(uuid="old"), log(uuid="new")
    old.train("a", range(30))
    new.now_us = old.now_us
    for record in old.records[1:]:
        new.put(record.value)
    new._seqs = old._seqs
    new.train("a", range(30, 60), attempt=1)
    root = stored(old)
    lake = Lake(root)
    sink = SinkCore(lake)
    said = Pipeline().step(beginning(Pipeline(), "new", 0, new.records), new.records)
    topics = {
        Spot(t, f"{t}-new", 0): [o.value for o in said if o.topic == t]
        for t in ("windows", "facts", "alerts")
    }
    sink.resume({Spot("telemetry", "new", 0): 0, **dict.fromkeys(topics, 0)})
    sink.take(Spot("telemetry", "new", 0), new.records)
    for spot, values in topics.items():
        sink.take(spot, [Record(0, at, 0, value) for at, value in enumerate(values)])
    assert list(sink.commits())
    assert sink.counts["duplicate"] > 50
    assert replayed(root)["new", 0] == said
    assert proven(root).identical


def test_many_frames_that_were_sent_twice_cost_no_look_at_all_files_each(
    log: Any, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = log()
    one.train("a", range(12), ranks=1)
    for record in [record for record in one.records if (record.value or b"")[:1] == b"\xff"]:
        one.put(record.value)
    root = stored(one, commits=2)
    looks = []
    opened = replay_samples.parquet

    def noted(path: str, **options: Any) -> Any:
        if not options:  # the footer is read
            looks.append(path)
        return opened(path, **options)

    monkeypatch.setattr(replay_samples, "parquet", noted)
    core = Pipeline()
    said = core.step(beginning(core, one.uuid, one.partition, one.records), one.records)
    assert replayed(root) == {(one.uuid, one.partition): said}
    assert len(looks) <= 2 * len(set(looks))


def test_decoded_frames_give_what_their_bytes_give(log: Any) -> None:
    """Whatever the order of the names in a frame was."""
    records = log.odd().records
    wanted = Pipeline().step(beginning(Pipeline(), "u", 0, records), records)
    chance = random.Random(1)
    made: list[Record | Framed] = []
    for record in records:
        try:
            frame = frames.decode(record.value or b"")
        except Exception:  # noqa: BLE001  whatever is no frame stays bytes
            made.append(record)
            continue
        order = list(range(len(frame.names)))
        chance.shuffle(order)
        metric = np.array([order.index(at) for at in frame.metric.tolist()], np.int16)
        names = [frame.names[at] for at in order] + ["unused"]
        made.append(Framed(0, record.offset, record.time_ms, frame._replace(names=names, metric=metric)))
    assert Pipeline().step(beginning(Pipeline(), "u", 0, records), made) == wanted


def _stories() -> ModuleType:
    path = Path(__file__).parents[1] / "streams" / "test_scenarios.py"
    spec = importlib.util.spec_from_file_location("driftline_tests_stories", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stories_of_odd_trainings_are_replayed_from_the_tables(log: Any, stored: Store) -> None:
    """Each of ``tests/streams/scenarios`` in a partition of its own: the same bytes, the same rows."""
    stories = _stories()
    streams = importlib.util.spec_from_file_location(
        "driftline_tests_streams", Path(__file__).parents[1] / "streams" / "conftest.py"
    )
    assert streams is not None
    assert streams.loader is not None
    shared = importlib.util.module_from_spec(streams)
    streams.loader.exec_module(shared)
    logs = []
    for number, path in enumerate(stories.FILES):
        story = stories.Story(shared.Log(Pipeline()))
        story.run = f"r-{number}"  # a run lives in one partition
        story.do_run = lambda name, story=story, number=number: setattr(story, "run", f"{name}-{number}")
        story.play(path.read_text(encoding="utf-8"))
        each = log(uuid=f"story-{number}", partition=number)
        each.records = [record._replace(partition=number) for record in story.log.records]
        logs.append(each)
    root = stored(*logs)
    made = replayed(root)
    for each, path in zip(logs, stories.FILES, strict=True):
        core = Pipeline()
        state = beginning(core, each.uuid, each.partition, each.records)
        assert made[each.uuid, each.partition] == core.step(state, each.records), path.stem
    assert proven(root).identical
