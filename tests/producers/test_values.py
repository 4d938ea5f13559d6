"""What a number is (case 5, S3): what is one is kept exactly, the rest is refused by a written rule."""

from __future__ import annotations

import decimal
import fractions
import math
from typing import Any

import numpy as np
import pytest
import torch

from driftline.producers.values import Later, Refusal, admit, admit_all, admit_weight


class Hostile:
    def __float__(self) -> float:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1.5, 1.5),
        (7, 7.0),
        (True, 1.0),
        (-(2**70), -float(2**70)),
        (np.float32(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.float64(2.5), 2.5),
        (np.int64(7), 7.0),
        (np.uint8(255), 255.0),
        (np.bool_(True), 1.0),
        (np.array(2.5), 2.5),
        (np.array([[3]]), 3.0),
        (torch.tensor(2.0), 2.0),
        (torch.tensor([3.0]), 3.0),
        (torch.tensor([[4]]), 4.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(1.0, dtype=torch.bfloat16, requires_grad=True), 1.0),
        (torch.tensor(1.5, dtype=torch.float16), 1.5),
        (torch.tensor(3, dtype=torch.uint8), 3.0),
        (torch.nn.Parameter(torch.tensor(6.0)), 6.0),
        (decimal.Decimal("1.25"), 1.25),
        (fractions.Fraction(1, 4), 0.25),
        (math.inf, math.inf),
        (torch.tensor(-math.inf), -math.inf),
    ],
)
def test_numbers_of_every_kind_are_kept(value: Any, number: float) -> None:
    found = admit(value)
    assert type(found) is float
    assert found == number


@pytest.mark.parametrize("value", [math.nan, np.float32("nan"), torch.tensor(math.nan), np.array([np.nan])])
def test_nan_is_data(value: Any) -> None:
    found = admit(value)
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("warm", "text"),
        ("nan", "text"),
        ("1.5", "text"),
        (b"1", "text"),
        (np.str_("1"), "text"),
        (np.array(["1"]), "text"),
        (None, "none"),
        (torch.tensor([1.0, 2.0]), "elements"),
        (torch.tensor([]), "elements"),
        (np.zeros((2, 2)), "elements"),
        ([1.0], "nested"),
        ((1.0,), "nested"),
        ({"a": 1}, "nested"),
        ({1.0}, "nested"),
        (1j, "complex"),
        (np.complex64(1), "complex"),
        (torch.tensor(1j), "complex"),
        (10**400, "range"),
        (torch.tensor(1.0, device="meta"), "device"),
        (np.datetime64("2024-01-01"), "type"),
        (np.array([object()]), "type"),
        (object(), "type"),
        (Hostile(), "type"),
        (len, "type"),
    ],
)
def test_what_is_no_number_is_refused_with_a_reason(value: Any, reason: str) -> None:
    found = admit(value)
    assert isinstance(found, Refusal)
    assert found.reason == reason
    assert found.detail


def test_the_other_keys_are_kept() -> None:
    accepted, refused, deferred = admit_all({"loss": "nan", "acc": 0.7, "note": "warm", "x": None})
    assert accepted == {"acc": 0.7}
    assert set(refused) == {"loss", "note", "x"}
    assert not deferred


def test_a_tensor_is_taken_as_it_was() -> None:
    value = torch.tensor(1.0)
    found = admit(value)
    value.add_(1)
    assert found == 1.0


@pytest.mark.parametrize(
    ("weight", "right"),
    [(12, 12.0), (0.5, 0.5), (np.int32(3), 3.0), (torch.tensor(4), 4.0), (True, 1.0)]
    + [(bad, None) for bad in (0, -1, math.nan, math.inf, "3", None, [1], 10**400)],
)
def test_weights_are_finite_and_above_zero(weight: Any, right: float | None) -> None:
    assert admit_weight(weight) == right


def test_what_cannot_be_read_from_a_device_is_a_refusal() -> None:
    def broken() -> float:
        raise RuntimeError("device lost")

    found = Later(broken, broken, "CUDA tensor")  # type: ignore[arg-type]
    assert found.ready()
    refusal = found.read()
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "device"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_a_cuda_tensor_arrives_without_a_wait_of_the_caller(dtype: torch.dtype) -> None:
    value = torch.ones(1, device="cuda", dtype=dtype)
    torch.cuda._sleep(500_000_000)  # type: ignore[no-untyped-call]
    found = admit(value)
    assert isinstance(found, Later)
    assert not found.ready()
    torch.cuda.synchronize()
    assert found.ready()
    assert found.read() == 1.0
