"""The spool as a trainer meets it: nothing raised, all of it accounted for, sent by the next process."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.producers import checkpoint
from driftline.producers import spool as spool_module
from driftline.producers.disk import FileDisk
from driftline.producers.survey import survey
from driftline.producers.transport import MemoryTransport

FATES = (
    "samples_delivered",
    "samples_spooled",
    "dropped_buffer",
    "dropped_broker",
    "dropped_spool",
    "dropped_end",
)


def away() -> MemoryTransport:
    way = MemoryTransport()
    way.away = True
    return way


def log(run: Any, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        run.log({"loss": float(step)}, step=step)


def adds_up(run: Any) -> bool:
    counts = run.counters()
    return counts.get("samples_logged", 0) == sum(counts.get(name, 0) for name in FATES)


def test_what_a_run_left_is_sent_by_its_next_process_and_both_accounts_add_up(
    sdk: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, wait_for: Any
) -> None:
    first = sdk(way=away(), exit_us=1_000_000, init={"run_id": "a/../../b", "rank": 0})
    log(first.run, 500)
    first.run.finish()
    wait_for(lambda: first.run.counters().get("samples_spooled") == 500, 60)
    assert adds_up(first.run)
    (line,) = [message for message in caplog.messages if "not delivered" in message]
    assert f": 500 wait in {tmp_path}/spool; `driftline spool send`" in line
    (standing,) = survey(FileDisk(tmp_path / "spool"))
    assert (standing.samples, standing.alive) == (500, False)
    assert {path.name for path in tmp_path.iterdir()} == {"spool"}
    second = sdk(init={"run_id": "a/../../b", "rank": 0})
    log(second.run, 5)
    wait_for(lambda: not list((tmp_path / "spool").iterdir()), 60)
    second.run.finish()
    wait_for(lambda: adds_up(second.run), 60)
    assert second.run.counters()["spool_recovered"] == 500
    dead = [record for record in second.records() if record.process == first.run.process]
    assert [record.seq for record in dead] == list(range(len(dead)))
    assert isinstance(dead[0], events.ProcessStarted)
    assert isinstance(dead[-1], events.ProcessEnded)
    assert sum(len(getattr(record, "value", ())) for record in dead) == 500


def test_an_outage_in_the_middle_leaves_nothing_behind(
    sdk: Callable[..., Any], tmp_path: Path, wait_for: Any
) -> None:
    under_test = sdk()
    log(under_test.run, 10)
    assert under_test.run.flush(60)
    under_test.way.away = True
    log(under_test.run, 100, first=10)
    wait_for(lambda: under_test.run.counters().get("spool_written", 0) == 100, 60)
    assert len(list((tmp_path / "spool").iterdir())) == 1
    under_test.way.away = False
    log(under_test.run, 10, first=110)
    assert under_test.run.flush(60)
    assert list((tmp_path / "spool").iterdir()) == []
    under_test.run.finish()
    assert [step for _, step, _, _ in under_test.samples()] == list(range(120))
    wait_for(lambda: adds_up(under_test.run), 60)


def test_without_a_folder_that_can_be_written_training_goes_on_with_memory_only(
    sdk: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, wait_for: Any
) -> None:
    (tmp_path / "file").write_text("")
    under_test = sdk(way=away(), spool=str(tmp_path / "file" / "spool"), exit_us=300_000)
    log(under_test.run, 50)
    wait_for(lambda: under_test.run.counters().get("spool_errors"), 60)
    log(under_test.run, 50, first=50)
    under_test.run.finish()
    assert sum("sdk.spool names another folder" in message for message in caplog.messages) == 1
    wait_for(lambda: under_test.run.counters().get("dropped_end") == 100, 60)
    assert adds_up(under_test.run)
    (line,) = [message for message in caplog.messages if "not delivered" in message]
    assert "100 of 100 samples" in line
    assert "wait in" not in line


def test_no_spool_if_it_is_switched_off(sdk: Callable[..., Any], tmp_path: Path, wait_for: Any) -> None:
    under_test = sdk(way=away(), spool_bytes=0, exit_us=300_000)
    log(under_test.run, 50)
    under_test.run.finish()
    assert not (tmp_path / "spool").exists()
    wait_for(lambda: under_test.run.counters().get("dropped_end") == 50, 60)


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Has the kernel cut off writes beyond a size, as a full disk does; undone at the end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_refuses_in_mid_write_loses_nothing_and_is_used_again_when_there_is_room(
    sdk: Callable[..., Any],
    tmp_path: Path,
    small_files: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    wait_for: Any,
) -> None:
    """Case 39 in the spool, with real short writes: whole records on disk, the rest in memory."""
    monkeypatch.setattr(spool_module, "AGAIN_US", 50_000)
    under_test = sdk(way=away(), frame_samples=100, exit_us=300_000)
    log(under_test.run, 100)
    wait_for(lambda: under_test.run.counters().get("spool_written", 0) == 100, 60)
    small_files(20_000)
    log(under_test.run, 1000, first=100)
    wait_for(lambda: under_test.run.counters().get("spool_errors"), 60)
    (standing,) = survey(FileDisk(tmp_path / "spool"))
    assert 0 < standing.samples < 1000
    assert standing.troubles == []
    small_files(resource.RLIM_INFINITY)
    wait_for(lambda: under_test.run.counters().get("spool_written", 0) == 1100, 60)
    under_test.run.finish()
    wait_for(lambda: under_test.run.counters().get("samples_spooled") == 1100, 60)
    assert adds_up(under_test.run)
    (standing,) = survey(FileDisk(tmp_path / "spool"))
    assert (standing.samples, standing.troubles) == (1100, [])


def test_the_trainer_waits_for_no_disk(sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes a second for each write holds up the SDK's thread only."""
    from driftline.producers.disk import _FileFolder

    def slow(self: Any, file: str, data: bytes) -> None:
        time.sleep(1)

    monkeypatch.setattr(_FileFolder, "append", slow)
    under_test = sdk(way=away(), exit_us=300_000)
    taken = []
    for step in range(300):
        before = time.perf_counter()
        under_test.run.log({"loss": float(step)}, step=step)
        taken.append(time.perf_counter() - before)
        time.sleep(0.005)
    before = time.monotonic()
    under_test.run.finish()
    assert time.monotonic() - before < 30
    assert sorted(taken)[int(len(taken) * 0.9)] < 0.5


class Hanging(MemoryTransport):
    """Opens when it may: a client that is imported from a cold disk, a name server that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may = threading.Event(), threading.Event()

    def open(self, *, timeout_us: int, notify: Callable[[], None]) -> None:
        self.begun.set()
        assert self.may.wait(120)
        super().open(timeout_us=timeout_us, notify=notify)


@pytest.mark.parametrize("kept", ["samples_spooled", "dropped_end"])
def test_a_client_that_hangs_when_the_time_to_end_is_over(
    sdk: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, wait_for: Any, kept: str
) -> None:
    way = Hanging()
    spool = {} if kept == "samples_spooled" else {"spool_bytes": 0}
    first = sdk(way=way, exit_us=200_000, init={"run_id": "a"}, **spool)
    log(first.run, 40)
    assert way.begun.wait(60)
    log(first.run, 10, first=40)
    thread, begun = first.run._thread, time.monotonic()
    first.run.finish()
    assert time.monotonic() - begun < 30
    assert adds_up(first.run)
    assert first.run.counters()[kept] == 50
    (line,) = [message for message in caplog.messages if "not delivered" in message]
    assert "50 of 50 samples" in line
    assert "the connection was not made in time" in line
    first.run.finish()
    way.may.set()
    thread.join(60)
    assert not thread.is_alive()
    assert way.log == []
    assert adds_up(first.run)
    if kept == "samples_spooled":
        second = sdk(init={"run_id": "a"})
        log(second.run, 1)
        wait_for(lambda: second.run.counters().get("spool_recovered") == 50, 60)
        dead = [record for record in second.records() if record.process == first.run.process]
        assert [isinstance(record, events.ProcessEnded) for record in dead].count(True) == 1
        assert isinstance(dead[-1], events.ProcessEnded)


def test_a_client_that_hangs_again_while_the_end_is_being_sent(
    sdk: Callable[..., Any], wait_for: Any
) -> None:
    """The thread has said the end, and hangs in a new connection: the end is said once."""
    way = Hanging()
    first = sdk(way=way, exit_us=1_000_000, init={"run_id": "a"})
    way.away = True
    way.may.set()
    log(first.run, 40)
    assert way.begun.wait(60)
    way.may.clear()
    first.run.finish()
    assert adds_up(first.run)
    way.may.set()
    second = sdk(init={"run_id": "a"})
    log(second.run, 1)
    wait_for(lambda: second.run.counters().get("spool_recovered") == 40, 60)
    dead = [record for record in second.records() if record.process == first.run.process]
    assert [isinstance(record, events.ProcessEnded) for record in dead].count(True) == 1


def test_a_disk_that_hangs_when_the_time_to_end_is_over(
    sdk: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the thread has in hand cannot be touched: what is not on disk is lost, and counted."""
    begun, may = threading.Event(), threading.Event()

    def hangs(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert may.wait(120)
        raise OSError("the disk is gone")

    monkeypatch.setattr(checkpoint, "describe", hangs)
    under_test = sdk(exit_us=200_000)
    log(under_test.run, 5)
    assert under_test.run.flush(60)
    log(under_test.run, 3, first=5)
    under_test.run.checkpoint(tmp_path)
    log(under_test.run, 20, first=8)
    assert begun.wait(60)
    log(under_test.run, 30, first=28)
    thread = under_test.run._thread
    under_test.run.finish()
    assert adds_up(under_test.run)
    counts = under_test.run.counters()
    assert counts["samples_logged"] == 58
    assert counts["samples_delivered"] + counts["dropped_end"] == 58
    assert counts["dropped_end"] >= 50
    may.set()
    thread.join(60)
    assert not thread.is_alive()
