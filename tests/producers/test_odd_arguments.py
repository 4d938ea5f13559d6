"""Whatever a trainer passes by mistake: nothing raises, and what is logged after it still arrives."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from driftline import events


class Mute:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class MuteError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Broken:
    """Raises an error that cannot be shown, when read."""

    def __iter__(self) -> Any:
        raise MuteError


def not_utf8(folder: Path) -> str:
    (folder / "step-1").mkdir()
    name = os.fsencode(folder / "step-1") + b"/shard-\xff.safetensors"
    with open(name, "wb") as file:
        file.write(b"1")
    return str(folder / "step-1")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/tmp/a\0b", {}),
        ("http://[x", {}),
        (not_utf8, {}),
        ("/nowhere\udcff", {}),
    ],
)
def test_a_bad_checkpoint_holds_up_nothing(
    sdk: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, path: Any, more: dict[str, Any]
) -> None:
    """It is refused, counted and named once; samples logged after it arrive."""
    under_test = sdk()
    under_test.run.checkpoint(path(tmp_path) if callable(path) else path, step=1, **more)
    under_test.run.log({"loss": 1.0}, step=2)
    under_test.run.finish()
    assert under_test.samples() == [("loss", 2, 1.0, 1.0)]
    counters = under_test.run.counters()
    assert counters["checkpoints_refused"] == 1
    assert "errors" not in counters
    assert sum("checkpoint" in message for message in caplog.messages) == 1


def test_a_marker_that_fails_holds_up_nothing(
    sdk: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody foresaw is counted once, and samples logged after it arrive."""
    under_test = sdk()

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("driftline.producers.checkpoint.describe", fail)
    under_test.run.checkpoint(tmp_path, step=1)
    under_test.run.log({"loss": 1.0}, step=2)
    under_test.run.finish()
    assert under_test.samples() == [("loss", 2, 1.0, 1.0)]
    assert under_test.run.counters()["checkpoints_refused"] == 1


def test_a_format_of_another_type_is_text(sdk: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1")
    under_test = sdk()
    under_test.run.checkpoint(tmp_path, step=1, format=Path("torch"))
    under_test.run.finish()
    assert under_test.events(events.CheckpointSaved)[0].checkpoint.format == "torch"


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.rewind(Mute()),
        lambda run: run.step(Mute()),
        lambda run: run.checkpoint(Mute()),
        lambda run: run.log(Broken()),
        lambda run: run.log({"x": Mute(), Mute(): 1.0}),
        lambda run: run.log({"x": 2.0}, step=Mute()),
        lambda run: run.log({"x": 2.0}, weight=Mute()),
        lambda run: run.span(Mute()).__exit__(None, None, None),
        lambda run: run.finish(Mute()),
    ],
)
def test_what_cannot_even_be_shown_raises_nothing(sdk: Callable[..., Any], call: Callable[..., None]) -> None:
    under_test = sdk()
    under_test.run.log({"loss": 1.0}, step=1)
    call(under_test.run)
    under_test.run.finish()
    assert ("loss", 1, 1.0, 1.0) in under_test.samples()


def test_a_huge_integer_costs_no_other_key(sdk: Callable[..., Any]) -> None:
    """An integer that no float holds is refused; the float beside it is kept, counted once."""
    under_test = sdk()
    under_test.run.log({"huge": 10**400, "loss": 1.5}, step=1)
    under_test.run.finish()
    assert under_test.samples() == [("loss", 1, 1.5, 1.0)]
    counters = under_test.run.counters()
    assert counters["refused_range"] == 1
    assert "refused_call" not in counters


@pytest.mark.parametrize(
    "values",
    [
        {"a": np.uint8(200), "b": np.uint8(100)},
        {"a": np.int32(2**31 - 1), "b": np.int32(1)},
        {"a": np.float32("inf"), "b": np.float32("-inf")},
        {"a": np.float16(60000), "b": np.float16(60000)},
    ],
)
def test_numpy_warns_at_most_once(sdk: Callable[..., Any], values: dict[str, Any]) -> None:
    """Adding NumPy scalars may warn: not again and again into the trainer's output."""
    under_test = sdk()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            under_test.run.log(values)
    under_test.run.finish()
    assert len(seen) <= 1
    assert under_test.values() == {name: float(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("given", "rank"),
    [("3", 3), (np.int64(3), 3), (torch.tensor(3), 3), (-1, None), (2**40, None), ("x", None)],
)
def test_a_rank_is_a_whole_number_or_left_out(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture, given: Any, rank: int | None
) -> None:
    """The first event of a process must be readable, whatever kind of number the rank was."""
    under_test = sdk(init={"rank": given, "world_size": given, "local_rank": given, "run_id": 77})
    under_test.run.finish()
    started = under_test.events(events.ProcessStarted)[0]
    assert (started.rank, started.world_size, started.local_rank) == (rank, rank, rank)
    assert under_test.run.id == "77"
    assert any("rank" in message for message in caplog.messages) == (rank is None)


def test_an_unknown_outcome_leaves_a_readable_last_event(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    under_test = sdk()
    under_test.run.finish("crashed")
    assert under_test.events(events.ProcessEnded)[0].outcome == "finished"
    assert any("crashed" in message for message in caplog.messages)


def test_a_step_that_is_refused_is_counted(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.step("late")  # type: ignore[arg-type]
    assert under_test.run.counters()["steps_refused"] == 1


class OnDevice:
    """Stands for a tensor on a GPU: to read it as an index would wait for the device."""

    device = torch.device("cuda:0")

    def __index__(self) -> int:
        raise AssertionError("a wait for the device on the calling thread")


def test_a_step_on_a_device_is_not_waited_for(sdk: Callable[..., Any]) -> None:
    """Promise 1: the calling thread never synchronises the GPU."""
    under_test = sdk()
    under_test.run.log({"loss": 1.0}, step=OnDevice())
    under_test.run.finish()
    assert under_test.samples() == [("loss", None, 1.0, 1.0)]
    assert under_test.run.counters()["steps_refused"] == 1


def test_no_thread_left_is_no_reason_to_stop_training(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    under_test = sdk()
    under_test.run.log({"loss": 1.0})
    under_test.run.finish()
    assert under_test.run.counters() == {"dropped_finished": 1}
    assert any("no thread" in message for message in caplog.messages)


def test_a_client_that_cannot_be_loaded_is_an_absent_broker(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, wait_for: Any
) -> None:
    """Whatever connecting raises is tried again after a pause, not at every round."""
    monkeypatch.setattr("driftline.producers.delivery.RETRY_US", 300_000)
    under_test = sdk()
    under_test.way.away = True
    attempts: list[float] = []

    def fail(**_: object) -> None:
        attempts.append(time.monotonic())
        raise DeprecationWarning("turned into an error by the program")

    under_test.way.open = fail
    under_test.run.log({"loss": 1.0})
    wait_for(lambda: len(attempts) >= 3)
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(attempts)), "rounds are 10 ms apart"
    assert "errors" not in under_test.run.counters()
    del under_test.way.open
    under_test.way.away = False
    assert under_test.run.flush(timeout=120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sigterm_kills_a_forked_child_as_before(sdk: Callable[..., Any]) -> None:
    """A child has nothing to send; a handler would only run when its C code lets it."""
    from driftline.producers import exits

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        sdk()
        assert signal.getsignal(signal.SIGTERM) is exits._on_sigterm
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
