"""``run.define``: what a metric means travels once, and nothing of it can hurt the trainer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.producers import definition
from driftline.producers.transport import MemoryTransport


def said(under_test: Any) -> list[tuple[Any, ...]]:
    found = under_test.events(events.MetricDefined)
    return [(e.metric, e.goal, e.unit, e.reduce, e.description) for e in found]


def test_a_declaration_arrives_before_or_after_the_first_log(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.define("reward", goal="max", unit="points", reduce="mean", description="of a rollout")
    under_test.run.log({"reward": 1.0, "tokens": 7}, step=0)
    under_test.run.define("tokens", reduce="sum")
    under_test.run.finish()
    assert said(under_test) == [
        ("reward", "max", "points", "mean", "of a rollout"),
        ("tokens", None, None, "sum", None),
    ]
    assert [record.seq for record in under_test.records()] == list(range(len(under_test.records())))


def test_what_was_said_before_is_not_sent_again(sdk: Callable[..., Any]) -> None:
    """A loop that declares in each step costs one record; what is new, or other, is sent."""
    under_test = sdk()
    for _ in range(1_000):
        under_test.run.define("loss", goal="min")
        under_test.run.define("loss", unit="nats")
        under_test.run.define("loss", goal="min", unit="nats")
        under_test.run.define("loss")
    under_test.run.define("loss", unit="bits")
    under_test.run.finish()
    assert said(under_test) == [
        ("loss", "min", None, None, None),
        ("loss", None, "nats", None, None),
        ("loss", None, "bits", None, None),
    ]


class Hostile(str):
    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 3},
        {"name": None},
        {"goal": "up"},
        {"goal": 1},
        {"goal": ["max"]},
        {"reduce": "median"},
        {"reduce": Hostile("p50")},
        {"unit": 7},
        {"unit": object()},
        {"description": b"bytes"},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_wrong_declaration_is_refused_counted_and_named(
    sdk: Callable[..., Any], caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
) -> None:
    """It does not raise, nothing of it is sent, one line says why; the next right one is taken."""
    under_test = sdk()
    for _ in range(3):
        under_test.run.define(**({"name": "x"} | wrong))
    under_test.run.define("x", goal="max")
    under_test.run.finish()
    assert said(under_test) == [("x", "max", None, None, None)]
    assert under_test.run.counters()["definitions_refused"] == 3
    assert sum("ignored" in message for message in caplog.messages) == 1


def test_long_and_odd_texts_are_cut_and_arrive(sdk: Callable[..., Any]) -> None:
    under_test = sdk()
    under_test.run.define("x" * 601, unit="u" * 200, description="d" * 2_000)
    under_test.run.define("\ud800", unit="\udcff", description="准确率 🔥")
    under_test.run.log({"x" * 601: 1.0, "\ud800": 2.0})
    under_test.run.finish()
    first, second = said(under_test)
    assert {first[0], second[0]} == set(under_test.values()), "the names are those of the samples"
    assert (len(first[2]), len(first[4])) == (definition.UNIT_CHARS_MAX, definition.DESCRIPTION_CHARS_MAX)
    assert second[4] == "准确率 🔥"


def test_a_trainer_that_declares_without_end_is_stopped_at_a_bound(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition, "SENT_MAX", 50)
    under_test = sdk()
    for number in range(200):
        under_test.run.define("x", unit=f"{number}")
    under_test.run.finish()
    assert len(said(under_test)) == 50
    assert under_test.run.counters()["definitions_refused"] == 150


def test_a_declaration_survives_an_outage_and_the_end_of_the_process(
    sdk: Callable[..., Any], tmp_path: Path, wait_for: Any
) -> None:
    """Made while the broker is away, it is in the spool, and the run's next process sends it."""
    way = MemoryTransport()
    way.away = True
    first = sdk(way=way, exit_us=1_000_000, init={"run_id": "r", "rank": 0})
    first.run.define("reward", goal="max")
    first.run.log({"reward": 1.0}, step=0)
    first.run.finish()
    assert said(first) == []
    second = sdk(init={"run_id": "r", "rank": 0})
    wait_for(lambda: not [p for p in (tmp_path / "spool").iterdir() if second.run.process not in str(p)], 60)
    wait_for(lambda: said(second), 60)
    second.run.finish()
    assert said(second) == [("reward", "max", None, None, None)]


def test_after_finish_and_when_disabled_it_does_nothing(sdk: Callable[..., Any]) -> None:
    finished, disabled = sdk(), sdk(enabled=False)
    finished.run.finish()
    for under_test in (finished, disabled):
        under_test.run.define("x", goal="max")
        under_test.run.define("x", goal="up")
        under_test.run.finish()
        assert said(under_test) == []


def _declare(run: Any) -> None:
    run.define("child", goal="min")
    run.finish()


def test_a_forked_child_declares_for_itself(sdk: Callable[..., Any]) -> None:
    """What the parent declared is not taken for said by the child, whose records are its own."""
    under_test = sdk()
    under_test.run.define("child", goal="min")
    child = multiprocessing.get_context("fork").Process(target=_declare, args=(under_test.run,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    under_test.run.finish()
    assert said(under_test) == [("child", "min", None, None, None)]
