"""The check after a run says which alerts name a fault that was really caused."""

from __future__ import annotations

import pytest

from driftline.demo import faults, verify
from driftline.demo.findings import AlertFound

PLAN = faults.plan(1200)


def alert(detector: str, *, rank: int | None, metric: str, step: int | None, last: int | None) -> AlertFound:
    return AlertFound(detector, detector, "error", "resolved", rank, metric, step, last, None, "")


@pytest.mark.parametrize(
    ("rank", "step", "last", "holds"),
    [
        (2, 300, 455, True),
        (2, 310, None, True),
        (2, 290, 305, True),  # it was slow by chance just before
        (1, 300, 455, False),
        (2, 31, 63, False),
        (2, 456, 500, False),
        (2, None, None, False),
        (None, 300, 455, False),
    ],
)
def test_the_slow_rank_counts_only_by_its_rank_and_steps(
    rank: int | None, step: int | None, last: int | None, holds: bool
) -> None:
    found = [alert("slow_rank", rank=rank, metric="span/forward", step=step, last=last)]
    assert verify._slow_rank(found, PLAN).holds is holds


@pytest.mark.parametrize(
    ("detector", "metric", "step", "last", "holds"),
    [
        ("loss_spike", "loss", 661, 705, True),
        ("loss_spike", "loss", 663, 664, True),
        ("loss_spike", "loss", 700, 710, False),
        ("loss_spike", "loss", 120, 125, False),
        ("loss_spike", "grad_norm", 661, 705, False),
        ("slow_rank", "loss", 661, 705, False),
    ],
)
def test_the_loss_spike_counts_only_by_its_metric_and_steps(
    detector: str, metric: str, step: int, last: int, holds: bool
) -> None:
    found = [alert(detector, rank=None, metric=metric, step=step, last=last)]
    assert verify._loss_spike(found, PLAN).holds is holds


def test_no_alert_is_no_find() -> None:
    assert not verify._slow_rank([], PLAN).holds
    assert "found: nothing" in verify._loss_spike([], PLAN).says
