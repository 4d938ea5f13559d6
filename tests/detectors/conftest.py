"""Panes and detectors for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from driftline.config import DetectorSpec, PipelineConfig
from driftline.streams.detectors import Detectors
from driftline.streams.views import AlertChange, NonFinite, PaneView

STEP_US = 100_000


def _pane(
    start: int,
    mean: float | None,
    *,
    metric: str = "loss",
    axis: Any = "step",
    width: int = 1,
    nan: int = 0,
    inf: int = 0,
    by_rank: Mapping[int, float] | None = None,
    now_us: int | None = None,
) -> PaneView:
    """A pane of one metric; by default one step, closed 0.1 s after the one before."""
    return PaneView(
        axis=axis,
        metric=metric,
        start=start,
        end=start + width,
        samples=max(1, len(by_rank or {})),
        nan=nan,
        inf=inf,
        mean=mean,
        min=mean,
        min_rank=0,
        max=mean,
        max_rank=0,
        by_rank=dict(by_rank or {}),
        now_us=start * STEP_US if now_us is None else now_us,
    )


@pytest.fixture
def pane() -> Callable[..., PaneView]:
    """Makes a pane."""
    return _pane


@pytest.fixture
def only() -> Callable[..., Detectors]:
    """Detectors with one of them, by kind, with its parameters and metrics."""

    def make(kind: Any, metrics: Iterable[str] = (), **params: float) -> Detectors:
        spec = DetectorSpec(name=kind.replace("_", "-"), kind=kind, metrics=list(metrics), params=params)
        return Detectors(PipelineConfig(detectors=[spec]))

    return make


@pytest.fixture
def losses() -> Callable[..., list[AlertChange]]:
    """Feeds (step, loss) to detectors, NaN as a non-finite sample; returns what they said."""

    def feed(
        detectors: Detectors, points: Iterable[tuple[int, float]], metric: str = "loss"
    ) -> list[AlertChange]:
        said: list[AlertChange] = []
        for step, value in points:
            if value != value:
                said += detectors.non_finite(NonFinite(metric, 0, step, value, step * STEP_US))
                said += detectors.pane(_pane(step, None, metric=metric, nan=1))
            else:
                said += detectors.pane(_pane(step, value, metric=metric))
        return said

    return feed


@pytest.fixture
def realdata() -> Path:
    """The folder of real data, or a skip."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "realdata"
    folder = Path(os.environ.get("DRIFTLINE_REALDATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set DRIFTLINE_REALDATA")
    return folder
