"""Which lease is run, which is dropped, and when the running one is no longer wanted."""

from __future__ import annotations

from typing import Any

import pytest

from driftline.evaluator.desk import Leases
from driftline.evaluator.metrics import ItemOutcome
from driftline.evaluator.parcels import ITEMS_MAX, RECORD_MAX_BYTES, TEXT_MAX, pack
from driftline.events import (
    Checkpoint,
    EvalItems,
    EvalOutcome,
    EvalResult,
    Lease,
    RequestClosed,
    SuiteRef,
    Unknown,
    decode,
)


def lease(text: str) -> Lease:
    """ "me:R1:L1" is lease L1 on request R1 for evaluator me."""
    evaluator, request, name = text.split(":")
    return Lease(
        id="t/0/0/0",
        lease=name,
        request=request,
        evaluator=evaluator,
        tried=1,
        run="run",
        suite=SuiteRef(name="s", target="m:s"),
        checkpoint=Checkpoint(digest="d", uri="/x"),
        expires_us=0,
    )


def event(text: str) -> Any:
    if text.startswith("closed:"):
        _, request, by = text.split(":")
        return RequestClosed(id="t/0/1/0", request=request, lease=by, status="done")
    return Unknown("new_kind", 1) if text == "unknown" else lease(text)


@pytest.mark.parametrize(
    ("log", "run"),
    [
        ([], []),
        (["unknown"], []),
        (["me:R1:L1"], ["L1"]),
        (["you:R1:L1"], []),
        (["me:R1:L1", "me:R1:L1"], ["L1"]),
        (["me:R1:L1", "me:R2:L2"], ["L1", "L2"]),
        (["me:R1:L1", "you:R1:L2"], []),
        (["me:R1:L1", "you:R1:L2", "me:R1:L3"], ["L3"]),
        (["me:R1:L1", "closed:R1:L9"], []),
        (["closed:R1:L9", "me:R1:L1"], []),
        (["me:R1:L1", "closed:R2:L9"], ["L1"]),
    ],
)
def test_which_leases_are_run(log: list[str], run: list[str]) -> None:
    leases = Leases("me")
    for text in log:
        leases.apply(event(text))
    ran = []
    while (one := leases.next()) is not None:
        ran.append(one.lease)
        leases.finish()
    assert ran == run


@pytest.mark.parametrize(
    ("log", "unwanted"),
    [
        (["closed:R1:L9"], True),
        (["closed:R1:L1"], False),  # by our own result
        (["closed:R2:L9"], False),
        (["you:R1:L2"], False),  # leased again, not yet done: the first result counts
        (["you:R1:L2", "closed:R1:L2"], True),
    ],
)
def test_when_the_running_lease_is_unwanted(log: list[str], unwanted: bool) -> None:
    leases = Leases("me")
    leases.apply(lease("me:R1:L1"))
    assert leases.next() is not None
    for text in log:
        leases.apply(event(text))
    assert leases.unwanted is unwanted


def outcomes(count: int, response: str = "x") -> list[ItemOutcome]:
    return [ItemOutcome(f"i{n}", "wrong", response=response, expected="y") for n in range(count)]


@pytest.mark.parametrize("response", ["x", "é" * TEXT_MAX, "\x00" * TEXT_MAX, "x" * 10 * TEXT_MAX])
@pytest.mark.parametrize("count", [0, 1, ITEMS_MAX, ITEMS_MAX + 1])
def test_items_are_cut_into_bounded_records_that_follow_each_other(count: int, response: str) -> None:
    result = EvalResult(
        evaluator="me", lease="L1", request="R1", time_us=1, outcome=EvalOutcome(status="done", items=count)
    )
    delivery = pack(lease("me:R1:L1"), result, outcomes(count, response))
    at = 0
    for parcel in delivery.items:
        record = decode(parcel.value)
        assert isinstance(record, EvalItems)
        assert (parcel.topic, parcel.run, record.first) == ("eval-items", "run", at)
        assert len(parcel.value) <= RECORD_MAX_BYTES + 1000
        at += len(record.items)
    assert at == count
    assert delivery.result.topic == "evals"


def test_a_lone_surrogate_in_a_response_can_travel() -> None:
    result = EvalResult(
        evaluator="me", lease="L1", request="R1", time_us=1, outcome=EvalOutcome(status="done")
    )
    delivery = pack(lease("me:R1:L1"), result, outcomes(1, "a\ud800b"))
    record = decode(delivery.items[0].value)
    assert isinstance(record, EvalItems)
    assert record.items[0].response == "a?b"
