"""The service over topics in memory: announcements, renewal, delivery in order, and faults around them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from driftline.clock import SystemClock
from driftline.config import PipelineConfig
from driftline.errors import SettingsError, Unavailable
from driftline.evaluator.service import Service
from driftline.evaluator.transport import MemoryTransport
from driftline.events import (
    Checkpoint,
    EvalItems,
    EvalProgress,
    EvalResult,
    EvaluatorGone,
    EvaluatorPresent,
    Lease,
    RequestClosed,
    SuiteRef,
    decode,
)
from driftline.settings import EvaluatorSettings, Settings

REF = SuiteRef(name="tiny", target="tiny_service_suites:suite")


def until(condition: Callable[[], Any], *, timeout_s: float = 120.0) -> Any:
    end = time.monotonic() + timeout_s
    while not (got := condition()):
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.002)
    return got


class Bench:
    """A service in a thread, its topics in memory."""

    def __init__(self, suite: Any, folder: Path, **evaluator: Any) -> None:
        given = {
            "wait_us": 300_000,
            "poll_us": 10_000,
            "announce_us": 20_000,
            "nice": 0,
            "threads": 1,
        } | evaluator
        self.settings = Settings(
            pipeline=PipelineConfig(suites=[REF]), evaluator=EvaluatorSettings(device="cpu", **given)
        )
        module = ModuleType("tiny_service_suites")
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.suite = suite  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        self.folder = folder
        self.topics: list[MemoryTransport] = []
        self.refuse = 0
        self.service = Service(self.settings, evaluator="me", connect=self.connect, clock=SystemClock())
        self.code: list[int] = []
        self.thread = threading.Thread(target=lambda: self.code.append(self.service.run()))

    def connect(self) -> MemoryTransport:
        if self.refuse:
            self.refuse -= 1
            raise Unavailable("planted: no broker answers")
        self.topics.append(MemoryTransport())
        return self.topics[-1]

    def start(self) -> Bench:
        self.thread.start()
        until(lambda: self.topics)
        return self

    def lease(
        self, checkpoint: Checkpoint, *, name: str = "L1", request: str = "R1", ref: SuiteRef = REF
    ) -> None:
        self.topics[-1].inbox.append(
            Lease(
                id="t/0/0/0",
                lease=name,
                request=request,
                evaluator="me",
                tried=1,
                run="run",
                suite=ref,
                checkpoint=checkpoint,
                expires_us=0,
            )
        )

    def sent(self, kind: type[Any]) -> list[Any]:
        parcels = [parcel for topics in self.topics for parcel in list(topics.sent)]
        return [event for parcel in parcels if isinstance(event := decode(parcel.value), kind)]

    def result(self, count: int = 1) -> EvalResult:
        results = until(lambda: found if len(found := self.sent(EvalResult)) >= count else None)
        assert len(results) == count
        return results[-1]  # type: ignore[no-any-return]

    def end(self) -> None:
        self.service.stop()
        if self.thread.is_alive():
            self.thread.join(120)
        assert not self.thread.is_alive()


Make = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Make]:
    made: list[Bench] = []

    def make(suite: Any, **evaluator: Any) -> Bench:
        made.append(Bench(suite, tmp_path, **evaluator))
        return made[-1].start()

    yield make
    for one in made:
        one.end()
    sys.modules.pop("tiny_service_suites", None)


def test_items_then_result_then_idle(bench: Make, tiny: Any, tmp_path: Path) -> None:
    at = bench(tiny.generation())
    until(lambda: at.sent(EvaluatorPresent))
    at.lease(tiny.write(tmp_path / "step-10"))
    result = at.result()
    until(lambda: at.sent(EvaluatorPresent)[-1].lease is None)
    kinds = [type(decode(parcel.value)) for parcel in at.topics[0].sent]
    assert kinds.index(EvalItems) < kinds.index(EvalResult)
    present = [event.lease for event in at.sent(EvaluatorPresent)]
    assert present[0] is None
    after_result = kinds.index(EvalResult)
    leased = [
        event.lease
        for parcel in at.topics[0].sent[:after_result]
        if isinstance(event := decode(parcel.value), EvaluatorPresent)
    ]
    assert leased[-1] == "L1", "idle is only said once the result has arrived"
    items = [item for record in at.sent(EvalItems) for item in record.items]
    assert result.outcome.status == "done"
    assert result.outcome.items == len(items) == 7
    assert (result.evaluator, result.lease, result.request) == ("me", "L1", "R1")
    first = at.sent(EvaluatorPresent)[0]
    assert (first.suites, first.device) == (["tiny"], "cpu")


class Gate:
    """A load that waits until it is opened."""

    def __init__(self, tiny: Any) -> None:
        self.tiny = tiny
        self.entered, self.open = threading.Event(), threading.Event()

    def load(self, checkpoint: Any, device: str) -> Any:
        self.entered.set()
        assert self.open.wait(120)
        return self.tiny.Model()


def test_presence_and_renewal_go_on_while_suite_code_runs(bench: Make, tiny: Any, tmp_path: Path) -> None:
    gate = Gate(tiny)
    at = bench(tiny.generation(load=gate.load))
    at.lease(tiny.write(tmp_path / "step-10"))
    until(gate.entered.is_set)
    before = len(at.sent(EvalProgress))
    until(lambda: len(at.sent(EvalProgress)) >= before + 3)
    renewal = at.sent(EvalProgress)[-1]
    assert (renewal.lease, renewal.request, renewal.evaluator, renewal.total) == ("L1", "R1", "me", 7)
    assert at.sent(EvaluatorPresent)[-1].lease == "L1"
    gate.open.set()
    assert at.result().outcome.status == "done"


def test_suite_code_that_hangs_no_longer_renews_its_lease(bench: Make, tiny: Any, tmp_path: Path) -> None:
    gate = Gate(tiny)
    at = bench(tiny.generation(load=gate.load), stall_us=100_000)
    at.lease(tiny.write(tmp_path / "step-10"))
    until(gate.entered.is_set)

    def silent() -> bool:
        """Twenty announcements without a renewal among them."""
        kinds = [type(decode(parcel.value)) for parcel in list(at.topics[0].sent)[-20:]]
        return len(kinds) == 20 and EvalProgress not in kinds

    until(silent)
    gate.open.set()
    assert at.result().outcome.status == "done", "good work is still delivered"


def test_a_request_closed_by_another_stops_the_evaluation(bench: Make, tiny: Any, tmp_path: Path) -> None:
    gate = Gate(tiny)
    at = bench(tiny.generation(load=gate.load))
    checkpoint = tiny.write(tmp_path / "step-10")
    at.lease(checkpoint)
    until(gate.entered.is_set)
    at.topics[0].inbox.append(RequestClosed(id="t/0/1/0", request="R1", lease="L0", status="done"))
    until(lambda: not at.topics[0].inbox)
    gate.open.set()
    until(lambda: at.sent(EvaluatorPresent)[-1].lease is None)
    at.lease(checkpoint, name="L2", request="R2")
    assert at.result().lease == "L2", "no result of the closed request, and the next one is done"


def test_a_lease_that_is_seen_twice_is_run_once(bench: Make, tiny: Any, tmp_path: Path) -> None:
    at = bench(tiny.generation())
    checkpoint = tiny.write(tmp_path / "step-10")
    at.lease(checkpoint)
    at.lease(checkpoint)
    at.result()
    at.lease(checkpoint)
    at.lease(checkpoint, name="L2", request="R2")
    assert at.result(2).lease == "L2"


def test_a_shard_that_comes_late_is_waited_for_and_evaluated_once(
    bench: Make, tiny: Any, tmp_path: Path
) -> None:
    """Case 31, times scaled down."""
    at = bench(tiny.generation(), wait_us=20_000_000)
    checkpoint = tiny.write(tmp_path / "step-10", shards=3)
    shard = "model-00003-of-00003.safetensors"
    (tmp_path / "step-10" / shard).rename(tmp_path / shard)
    at.lease(checkpoint)
    until(lambda: len([one for one in at.sent(EvalProgress) if one.total == 0]) >= 5)
    assert not at.sent(EvalResult)
    (tmp_path / shard).rename(tmp_path / "step-10" / shard)
    outcome = at.result().outcome
    assert outcome.status == "done"
    assert outcome.cost.wait_seconds > 0.05


def test_a_folder_that_becomes_visible_late_is_evaluated_once(bench: Make, tiny: Any, tmp_path: Path) -> None:
    """Case S11, times scaled down."""
    at = bench(tiny.generation(), wait_us=20_000_000)
    checkpoint = tiny.write(tmp_path / "hidden")
    at.lease(msgspec.structs.replace(checkpoint, uri=str(tmp_path / "step-10")))
    until(lambda: len(at.sent(EvalProgress)) >= 5)
    (tmp_path / "hidden").rename(tmp_path / "step-10")
    assert at.result().outcome.status == "done"


@pytest.mark.parametrize(("cut", "status"), [("cut", "incomplete"), ("empty", "incomplete"), ("all", "gone")])
def test_what_never_becomes_whole_has_a_status_and_no_number(
    bench: Make, tiny: Any, tmp_path: Path, cut: str, status: str
) -> None:
    at = bench(tiny.generation())
    checkpoint = tiny.write(tmp_path / "step-10", shards=3)
    shard = tmp_path / "step-10" / "model-00003-of-00003.safetensors"
    if cut == "all":
        checkpoint = msgspec.structs.replace(checkpoint, uri=str(tmp_path / "nothing"))
    else:
        shard.write_bytes(shard.read_bytes()[:-1] if cut == "cut" else b"")
    at.lease(checkpoint)
    outcome = at.result().outcome
    assert (outcome.status, outcome.metrics, outcome.items) == (status, [], 0)
    assert at.sent(EvalItems) == []


class Speechless(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError("planted"), "MemoryError: planted"),
        (SystemExit("planted"), "SystemExit: planted"),  # sys.exit() in suite code must end no evaluator
        (Speechless(), "Speechless"),
    ],
)
def test_a_suite_that_raises_fails_and_the_next_lease_is_run(
    bench: Make, tiny: Any, tmp_path: Path, error: BaseException, says: str
) -> None:
    calls: list[int] = []

    def load(checkpoint: Any, device: str) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return tiny.Model()

    at = bench(tiny.generation(load=load))
    checkpoint = tiny.write(tmp_path / "step-10")
    at.lease(checkpoint)
    outcome = at.result().outcome
    assert (outcome.status, outcome.metrics) == ("failed", [])
    assert says in outcome.reason
    at.lease(checkpoint, name="L2")
    assert at.result(2).outcome.status == "done", "the scheduler's second try"


def test_answers_that_cannot_be_written_fail_and_the_evaluator_goes_on(
    bench: Make, tiny: Any, tmp_path: Path
) -> None:
    at = bench(
        tiny.generation(decode=lambda tokens: b"bytes", stop=None, grade=lambda response, question: True)
    )
    checkpoint = tiny.write(tmp_path / "step-10")
    at.lease(checkpoint)
    outcome = at.result().outcome
    assert (outcome.status, outcome.metrics) == ("failed", [])
    assert "cannot be written" in outcome.reason
    at.lease(checkpoint, name="L2")
    assert at.result(2).lease == "L2"


def test_a_suite_from_the_wire_that_is_not_in_the_settings_is_refused(
    bench: Make, tiny: Any, tmp_path: Path
) -> None:
    at = bench(tiny.generation())
    at.lease(
        tiny.write(tmp_path / "step-10"),
        ref=SuiteRef(name="evil", target="os:system", settings={"command": "x"}),
    )
    outcome = at.result().outcome
    assert outcome.status == "failed"
    assert "add it under evaluation.suites" in outcome.reason


def test_a_broker_that_is_away_is_said_once_and_waited_for(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.evaluator.link.RETRY_US", 1_000)
    caplog.set_level("INFO", "driftline.evaluator")
    at = Bench(tiny.generation(), tmp_path)
    at.refuse = 5
    try:
        at.start()
        until(lambda: at.sent(EvaluatorPresent))
    finally:
        at.end()
    said = [
        record.getMessage() for record in caplog.records if "waiting for the broker" in record.getMessage()
    ]
    assert said == ["waiting for the broker (planted: no broker answers)"]


def test_a_result_survives_a_lost_connection(
    bench: Make, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftline.evaluator.link.RETRY_US", 1_000)
    gate = Gate(tiny)
    at = bench(tiny.generation(load=gate.load))
    at.lease(tiny.write(tmp_path / "step-10"))
    until(gate.entered.is_set)
    at.refuse = 10
    at.topics[0].connected = False
    gate.open.set()
    result = at.result()
    assert (result.lease, result.outcome.status) == ("L1", "done")
    assert len(at.topics) == 2, "over a new connection"


def test_a_stop_ends_the_evaluation_without_a_result_and_says_goodbye(
    bench: Make, tiny: Any, tmp_path: Path
) -> None:
    gate = Gate(tiny)
    at = bench(tiny.generation(load=gate.load))
    at.lease(tiny.write(tmp_path / "step-10"))
    until(gate.entered.is_set)
    at.service.stop()
    gate.open.set()
    at.end()
    assert at.code == [0]
    assert at.sent(EvalResult) == []
    assert type(decode(at.topics[0].sent[-1].value)) is EvaluatorGone


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"pipeline": PipelineConfig(suites=[])}, "evaluation.suites"),
        (
            {"pipeline": PipelineConfig(suites=[SuiteRef(name="x", target="no_such:x")])},
            "evaluation.suites.x.target",
        ),
        ({"evaluator": EvaluatorSettings(device="cuda:99")}, "evaluator.device"),
        ({"evaluator": EvaluatorSettings(device="gpu")}, "evaluator.device"),
    ],
)
def test_wrong_settings_end_it_at_start_with_the_key(
    bench: Make, tiny: Any, change: dict[str, Any], key: str
) -> None:
    good = Bench(tiny.generation(), Path("/")).settings
    with pytest.raises(SettingsError) as caught:
        Service(
            msgspec.structs.replace(good, **change),
            evaluator="me",
            connect=MemoryTransport,
            clock=SystemClock(),
        )
    assert caught.value.key == key
