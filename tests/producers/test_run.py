"""The run as a trainer uses it, over the in-memory transport."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import driftline
from driftline import events, frames, records
from driftline.producers import run as run_module
from driftline.producers.counters import COUNTERS, EXCEPTIONAL
from driftline.producers.values import Later
from driftline.producers.worker import Worker


def test_log_arrives_with_step_and_weight(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.log({"loss": 0.5, "reward": 1}, step=3)
    under_test.run.log({"loss": 0.25}, step=4, weight=12)
    under_test.run.log({"other": 2.0})
    under_test.run.finish()
    assert under_test.samples() == [
        ("loss", 3, 0.5, 1.0),
        ("reward", 3, 1.0, 1.0),
        ("loss", 4, 0.25, 12.0),
        ("other", None, 2.0, 1.0),
    ]


def test_values_that_are_no_python_floats(sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Case 5: a..f are stored, g is refused with one warning that names it, nothing raises."""
    under_test = sdk()
    d = torch.tensor(1.0, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3):
        under_test.run.log(
            {
                "a": np.float32(1.5),
                "b": torch.tensor(2.0),
                "c": torch.tensor([3.0]),
                "d": d,
                "e": np.int64(7),
                "f": True,
                "g": torch.tensor([1.0, 2.0]),
            }
        )
    under_test.run.finish()
    assert under_test.values() == {"a": 1.5, "b": 2.0, "c": 3.0, "d": 1.0, "e": 7.0, "f": 1.0}
    named = [message for message in caplog.messages if "'g'" in message]
    assert len(named) == 1
    assert "(2,)" in named[0]
    assert under_test.run.counters()["refused_elements"] == 3
    assert under_test.run.counters()["samples_logged"] == 18


def test_strings_and_none(sdk: Callable[..., Any]) -> None:
    """S3: text is refused, also "nan"; None is refused; the number is kept."""
    under_test = sdk()
    under_test.run.log({"loss": "nan", "acc": 0.7, "note": "warm", "x": None}, step=1)
    under_test.run.finish()
    assert under_test.samples() == [("acc", 1, 0.7, 1.0)]
    counters = under_test.run.counters()
    assert (counters["refused_text"], counters["refused_none"]) == (2, 1)


def test_names_are_found_again_exactly(sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Case 9: any characters; over the limit one rule (cut and hash) and one warning."""
    names = ["timing(s)/gen", "val/AR@100", "n:estimators", "准确率", "🔥", "a.b", "a/b", "x" * 600]
    under_test = sdk()
    for step in range(3):
        under_test.run.log({name: float(at) for at, name in enumerate(names)}, step=step)
        under_test.run.log({"y" * 601: 1.0, "y" * 602: 2.0}, step=step)
    under_test.run.finish()
    found = under_test.values()
    assert {name: found[name] for name in names} == {name: float(at) for at, name in enumerate(names)}
    assert len(found) == len(names) + 2
    assert sum("over 600 bytes" in message for message in caplog.messages) == 2


def test_weights_travel_so_that_ranks_can_be_merged(sdk: Callable[..., Any]) -> None:
    """Case 19, producer side: sum 3 over 12 tokens and sum 3 over 4 tokens are 0.375 together."""
    ranks = [sdk(init={"rank": rank, "world_size": 2, "run_id": "r"}) for rank in (0, 1)]
    for under_test, tokens in zip(ranks, (12, 4), strict=True):
        under_test.run.log({"loss": 3 / tokens}, step=0, weight=tokens)
        under_test.run.finish()
    pairs = [(value, weight) for each in ranks for _, _, value, weight in each.samples()]
    assert pairs == [(0.25, 12.0), (0.75, 4.0)]
    assert sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs) == 0.375
    assert [each.frames()[0].rank for each in ranks] == [0, 1]
    assert {each.run.id for each in ranks} == {"r"}


@pytest.mark.parametrize(
    ("step", "stored"),
    [(5, 5), (-3, -3), (0, 0), (np.int64(7), 7), (3.0, 3), (torch.tensor(4), 4), (2**63 - 1, 2**63 - 1)]
    + [(bad, None) for bad in (2**63, -(2**63), 2.5, "7", math.nan, [1], None)],
)
def test_steps(sdk: Callable[..., Any], step: Any, stored: int | None) -> None:
    """A step that is no 64-bit integer is left out and counted, the value stays."""
    under_test = sdk()
    under_test.run.log({"a": 1.0}, step=step)
    under_test.run.finish()
    assert under_test.samples() == [("a", stored, 1.0, 1.0)]
    assert under_test.run.counters().get("steps_refused", 0) == int(stored is None and step is not None)


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "1", [1]])
def test_a_bad_weight_refuses_its_samples(sdk: Callable[..., Any], weight: Any) -> None:
    under_test = sdk()
    under_test.run.log({"a": 1.0, "b": 2.0}, weight=weight)
    under_test.run.log({"a": 3.0}, weight=2)
    under_test.run.finish()
    assert under_test.samples() == [("a", None, 3.0, 2.0)]
    assert under_test.run.counters()["refused_weight"] == 2


@pytest.mark.parametrize("values", [None, 3, "text", [1, 2], object(), {1: 2.0}, {}])
def test_a_call_with_anything_does_not_raise(sdk: Callable[..., Any], values: Any) -> None:
    under_test = sdk()
    under_test.run.log(values, step=1)
    under_test.run.log({"a": 1.0})
    under_test.run.finish()
    assert under_test.values() == {"a": 1.0}


def test_any_mapping_is_taken_as_it_was(sdk: Callable[..., Any]) -> None:
    under_test = sdk(flush_us=200_000)
    ordered = OrderedDict(a=1.0)
    plain: dict[str, Any] = {"b": 1.0}
    array = np.array(1.0)
    tensor = torch.tensor(1.0)
    under_test.run.log(ordered)
    under_test.run.log(plain)
    under_test.run.log({"c": array})
    under_test.run.log({"d": tensor})
    ordered["a"] = plain["b"] = 2.0
    array += 1
    tensor += 1
    under_test.run.finish()
    assert under_test.values() == {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}


def test_numpy_values_are_not_added_up_twice(sdk: Callable[..., Any]) -> None:
    """Sums of float16 overflow with a warning (an error in this test suite), sums of large arrays cost."""
    under_test = sdk()
    for _ in range(2):
        under_test.run.log({"a": np.float16(60000), "b": np.float16(60000), "c": np.zeros(100)})
        under_test.run.log({"d": 1.0}, step=1)
    under_test.run.log({"d": math.nan})
    under_test.run.log({"d": 10**400})
    under_test.run.finish()
    assert [value for name, _, value, _ in under_test.samples() if name == "a"] == [60000.0, 60000.0]
    assert [name for name, *_ in under_test.samples()].count("d") == 3
    assert under_test.run.counters()["refused_range"] == 1


def test_all_records_share_one_count_and_begin_and_end_in_order(
    sdk: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    under_test = sdk(
        heartbeat_us=30_000, init={"config": {"lr": 1e-3}, "rank": 1, "world_size": 2, "run_id": "r"}
    )
    for step in range(5):
        under_test.run.log({"a": 1.0}, step=step)
        time.sleep(0.02)
    under_test.run.checkpoint(tmp_path, step=4, epoch=0.5)
    under_test.run.rewind(2)
    under_test.run.finish()
    found = under_test.records()
    assert [record.seq for record in found] == list(range(len(found)))
    started, ended = found[0], found[-1]
    assert isinstance(started, events.ProcessStarted)
    assert (started.config, started.rank, started.world_size, started.role) == ({"lr": 1e-3}, 1, 2, "trainer")
    assert isinstance(ended, events.ProcessEnded)
    assert ended.outcome == "finished"
    assert ended.counters["samples_logged"] == 5
    assert {(record.run, record.process) for record in found} == {("r", under_test.run.process)}
    (saved,) = under_test.events(events.CheckpointSaved)
    assert (saved.checkpoint.step, saved.checkpoint.epoch, saved.rank) == (4, 0.5, 1)
    assert saved.checkpoint.uri == str(tmp_path)
    assert [entry.path for entry in saved.checkpoint.files] == ["model.safetensors"]
    (rewound,) = under_test.events(events.RunRewound)
    assert rewound.step == 2


def test_a_checkpoint_comes_after_what_was_logged_before_it(sdk: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"weights")
    under_test = sdk(flush_us=60_000_000)
    under_test.run.log({"a": 1.0}, step=1)
    under_test.run.checkpoint(tmp_path)
    under_test.run.log({"b": 1.0}, step=2)
    under_test.run.finish()
    order = [
        record.names if isinstance(record, frames.Frame) else type(record).__name__
        for record in under_test.records()
    ]
    assert order == ["ProcessStarted", ["a"], "CheckpointSaved", ["b"], "ProcessEnded"]
    assert under_test.events(events.CheckpointSaved)[0].checkpoint.step == 1


def test_a_missing_checkpoint_is_refused_and_named(
    sdk: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    under_test = sdk()
    for path in (tmp_path / "gone", tmp_path, "s3://bucket/x", None):
        under_test.run.checkpoint(path, step=1)
    under_test.run.finish()
    assert under_test.events(events.CheckpointSaved) == []
    assert under_test.run.counters()["checkpoints_refused"] == 4
    assert any("gone" in message and "after the save" in message for message in caplog.messages)


def test_nan_leaves_at_once_and_checkpoints_too(
    sdk: Callable[..., Any], tmp_path: Path, wait_for: Any
) -> None:
    """The flush interval is a minute here: only urgency can bring these out in time."""
    (tmp_path / "w.pt").write_bytes(b"x")
    under_test = sdk(flush_us=60_000_000)
    under_test.run.log({"loss": 1.0}, step=0)
    under_test.run.log({"loss": math.nan}, step=1)
    wait_for(lambda: len(under_test.samples()) == 2)
    under_test.run.checkpoint(tmp_path)
    wait_for(lambda: under_test.events(events.CheckpointSaved))


def test_a_frames_worth_leaves_at_once(sdk: Callable[..., Any], wait_for: Any) -> None:
    under_test = sdk(flush_us=60_000_000, frame_samples=10)
    for step in range(5):
        under_test.run.log({"a": 1.0, "b": 2.0}, step=step)
    wait_for(lambda: len(under_test.samples()) == 10)


def test_spans_take_the_step_given_or_the_current_one(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    run = under_test.run
    with run.span("none"):
        pass
    run.log({"a": 1.0}, step=7)
    with run.span("logged"):
        pass
    with run.span("given", step=1):
        pass
    with pytest.raises(ValueError, match="own"), run.span("raised"):
        raise ValueError("own")
    run.step(3)
    run.log({"a": 1.0}, step=2)
    with run.span("set") as span:
        time.sleep(0.01)
    run.finish()
    found = {name: (step, value) for name, step, value, _ in under_test.samples() if name != "a"}
    assert {name: step for name, (step, _) in found.items()} == {
        "span/none": None,
        "span/set": 3,
        "span/logged": 7,
        "span/given": 1,
        "span/raised": 1,
    }
    assert found["span/set"][1] >= 0.01
    assert span.seconds == found["span/set"][1]


def test_the_queue_is_bounded_and_drops_are_counted(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    inner = Worker.round
    monkeypatch.setattr(Worker, "round", lambda self: (gate.wait(120), inner(self))[1])
    under_test = sdk(queue_samples=100, frame_samples=50)
    for step in range(30):
        under_test.run.log({f"m{at}": 1.0 for at in range(10)}, step=step)
    under_test.run.log({"late": math.nan})
    gate.set()
    under_test.run.finish()
    assert len(under_test.samples()) == 100
    assert under_test.run.counters()["dropped_queue"] == 201
    assert under_test.events(events.ProcessEnded)[0].counters["dropped_queue"] == 201


def test_drops_travel_in_the_metadata_of_the_next_frame(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.log({"a": 1.0, "b": None})
    assert under_test.run.flush()
    under_test.run.log({"a": 2.0})
    assert under_test.run.flush()
    told = [frame.counters for frame in under_test.frames()]
    assert told == ['{"refused_none":1}', ""]


def test_a_broker_that_is_away_for_ever(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture, wait_for: Any
) -> None:
    """Without a spool: the buffer fills, the newest are dropped and counted, one line says how many."""
    from driftline.producers.transport import MemoryTransport

    way = MemoryTransport()
    way.away = True
    under_test = sdk(way=way, buffer_bytes=100_000, spool_bytes=0, frame_samples=100, exit_us=300_000)
    for step in range(1000):
        under_test.run.log({f"m{at}": 1.0 for at in range(10)}, step=step)
    wait_for(lambda: under_test.run.counters().get("dropped_buffer"))
    start = time.monotonic()
    under_test.run.finish()
    assert time.monotonic() - start < 20
    lines = [message for message in caplog.messages if "not delivered" in message]
    assert len(lines) == 1
    assert lines[0].startswith("driftline: 10000 of 10000 samples were not delivered")
    assert "is away" in lines[0]


def test_a_broker_that_stays_away_is_named_once(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    from driftline.producers.transport import MemoryTransport

    monkeypatch.setattr("driftline.producers.delivery.RETRY_US", 10_000)
    way = MemoryTransport()
    way.away = True
    under_test = sdk(way=way)
    under_test.run.log({"a": 1.0})
    wait_for(lambda: under_test.run.counters().get("connection_failures", 0) > 3)
    assert sum("not there" in message for message in caplog.messages) == 1
    way.away = False
    assert under_test.run.flush()


def test_an_outage_in_the_middle_loses_nothing(sdk: Callable[..., Any], wait_for: Any) -> None:
    under_test = sdk()
    for step in range(30):
        under_test.run.log({"a": float(step)}, step=step)
        under_test.way.away = 10 <= step < 20
        time.sleep(0.005)
    under_test.run.finish()
    assert [step for _, step, _, _ in under_test.samples()] == list(range(30))
    assert under_test.run.counters()["samples_delivered"] == 30


class Slow:
    """A number on a device that takes its time."""

    def __init__(self, value: float) -> None:
        self.value, self.here = value, False

    def later(self) -> Later:
        return Later(lambda: self.value, lambda: self.here, "test device")


def test_values_on_a_device_keep_their_place(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    slow = Slow(math.nan)
    monkeypatch.setattr(
        run_module,
        "admit_all",
        lambda values: ({k: slow.later() if v == "slow" else v for k, v in values.items()}, {}, True),
    )
    under_test = sdk()
    under_test.run.log({"a": 1.0}, step=1)
    under_test.run.log({"b": "slow", "c": 2.5}, step=2)
    under_test.run.log({"a": 3.0}, step=3)
    wait_for(lambda: under_test.values() == {"a": 1.0})
    assert not under_test.run.flush(0.2)
    assert under_test.values() == {"a": 1.0}
    slow.here = True
    assert under_test.run.flush()
    assert [name for name, *_ in under_test.samples()] == ["a", "b", "c", "a"]
    assert math.isnan(under_test.values()["b"])


def test_a_hanging_device_holds_up_the_others_only_for_a_while(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    monkeypatch.setattr("driftline.producers.intake.DEVICE_PATIENCE_US", 50_000)
    slow = Slow(1.0)
    monkeypatch.setattr(run_module, "admit_all", lambda values: ({"b": slow.later()}, {}, True))
    under_test = sdk(exit_us=2_000_000)
    under_test.run.log({"b": "slow"}, step=2)
    under_test.run.log({"a": 3.0}, step=3)
    wait_for(lambda: under_test.values() == {"a": 3.0})
    under_test.run.finish()
    assert under_test.run.counters()["dropped_device"] == 1
    assert under_test.events(events.ProcessEnded)


def test_after_finish_nothing_happens_but_counting(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.finish()
    before = len(under_test.way.log)
    under_test.run.log({"a": 1.0, "b": math.nan})
    under_test.run.checkpoint("/nowhere")
    under_test.run.finish()
    assert not under_test.run.flush()
    assert len(under_test.way.log) == before
    assert under_test.run.counters()["dropped_finished"] == 2


def test_disabled_does_nothing(sdk: Callable[..., Any]) -> None:
    under_test = sdk(enabled=False)
    with under_test.run as run, run.span("x"):
        run.log({"a": 1.0}, step=1)
        run.checkpoint("/nowhere")
        run.rewind(1)
        run.step(4)
        assert not run.flush()
    assert under_test.way.log == []


def test_many_threads(sdk: Callable[..., Any]) -> None:
    under_test = sdk()

    def work(thread: int) -> None:
        for at in range(500):
            under_test.run.log({f"t{thread}": float(at)}, step=at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    under_test.run.finish()
    for at in range(4):
        own = [value for name, _, value, _ in under_test.samples() if name == f"t{at}"]
        assert own == [float(value) for value in range(500)]


def test_the_outcome_of_a_block_that_raises(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    with pytest.raises(ZeroDivisionError), under_test.run:
        1 / 0  # noqa: B018
    assert under_test.events(events.ProcessEnded)[0].outcome == "exception"


def test_an_error_inside_is_counted_and_said_once(
    sdk: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_for: Any,
) -> None:
    from driftline.producers.framer import Framer

    under_test = sdk()
    inner = Framer.add
    broken = [True]

    def add(self: Framer, entries: Any) -> None:
        if broken[0]:
            raise RuntimeError("inside")
        inner(self, entries)

    monkeypatch.setattr(Framer, "add", add)
    under_test.run.log({"a": 1.0})
    wait_for(lambda: under_test.run.counters().get("errors"))
    broken[0] = False
    under_test.run.log({"b": 1.0})
    under_test.run.finish()
    assert under_test.values() == {"b": 1.0}
    assert under_test.run.counters()["errors"] == 1
    assert under_test.run.counters()["dropped_error"] == 1
    assert sum("inside" in message for message in caplog.messages) == 1


def test_a_rank_of_its_own_run_is_told_how_to_join(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_test = sdk(init={"rank": 1, "world_size": 4})
    under_test.run.finish()
    assert sum("DRIFTLINE_RUN_ID" in message for message in caplog.messages) == 1
    caplog.clear()
    monkeypatch.setenv("DRIFTLINE_RUN_ID", "together")
    joined = sdk(init={"rank": 1, "world_size": 4})
    joined.run.finish()
    assert joined.run.id == "together"
    assert not any("DRIFTLINE_RUN_ID" in message for message in caplog.messages)


def test_a_path_as_a_name_stays_a_name(sdk: Callable[..., Any]) -> None:
    """S13, naming side: the name is kept as typed and is part of no id."""
    for name in ("a/../../b", "/etc/x"):
        under_test = sdk(init={"name": name, "run_id": name})
        under_test.run.finish()
        started = under_test.events(events.ProcessStarted)[0]
        assert started.name == name
        assert "/" not in started.run


def test_two_launches_of_one_name_are_two_runs(sdk: Callable[..., Any]) -> None:
    first, second = sdk(init={"name": "exp1"}), sdk(init={"name": "exp1"})
    assert first.run.id != second.run.id
    assert sdk(init={"name": "exp1", "resume": first.run.id}).run.id == first.run.id


def test_ranks_agree_on_a_run_through_the_process_group(sdk: Callable[..., Any], tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        first = sdk()
        from driftline.producers import launch

        group, agree = launch._torch_group()
        assert group == (0, 1)
        assert agree is not None
        assert agree(f"driftline/run/{launch._unnamed_runs}", "mine") == first.run.id
        assert first.run.rank == 0
    finally:
        torch.distributed.destroy_process_group()


def test_every_counter_has_its_words() -> None:
    assert COUNTERS.keys() >= EXCEPTIONAL
    assert all(words for words in COUNTERS.values())


def test_records_are_of_the_contract(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.log({"a": 1.0})
    under_test.run.finish()
    for _, payload in under_test.way.log:
        assert not isinstance(records.decode(payload), events.Unknown)
    logging.getLogger("driftline").debug("decoded")
    assert isinstance(under_test.run, driftline.Run)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"run_id": ""}, "is empty"),
        ({"resume": "  "}, "is empty"),
        ({"run_id": "50%=x y"}, "finds it by either"),
    ],
)
def test_a_run_id_that_cannot_be_one_is_said(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture, given: dict[str, str], says: str
) -> None:
    """F27: never a new run in silence."""
    under_test = sdk(init=given)
    under_test.run.finish()
    (line,) = [message for message in caplog.messages if "run id" in message]
    assert says in line


def test_the_first_run_id_that_is_given_counts(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert sdk(init={"resume": "", "run_id": "mine", "name": ""}).run.id == "mine"
    assert not [message for message in caplog.messages if "run id" in message]
