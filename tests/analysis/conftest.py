"""Tables with runs to ask about: two trained on four ranks, one hostile, one that says next to nothing."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.analysis.answer import Answer
from driftline.analysis.ask import ask
from driftline.analysis.question import Asked
from driftline.analysis.questions import QUESTIONS
from driftline.storage.open import Catalog, open_catalog

STEPS = 120


def _loaded(path: Path) -> Any:
    """A module of the tests by its file: test folders are no packages."""
    spec = importlib.util.spec_from_file_location(f"driftline_tests_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _support(name: str) -> Any:
    return _loaded(Path(__file__).parents[1] / "support" / f"{name}.py")


def train(store: Any, make: Any, *, run: str, ranks: int, lr: float, day: int, base: float) -> None:
    """Rank 2 is slow in forward; a NaN, a spike with its alert, two checkpoints that were evaluated."""
    at = make.t0 + day * 86_400_000_000
    config = json.dumps({"lr": lr, "model": {"layers": 2}})
    telemetry = []
    for rank in range(ranks):
        telemetry.append(
            make.started(
                run=run, process=f"{run}-{rank}", rank=rank, name="digits", world_size=ranks, time_us=at,
                config=json.loads(config), host="node-a",
            )
        )  # fmt: skip
    goal = events.MetricDefined(
        run=run, process=f"{run}-0", seq=1, time_us=at, metric="loss", goal="min", unit="nats"
    )
    telemetry.append(events.encode(goal))
    for rank in range(ranks):
        loss = [base / math.sqrt(step + 1) + 0.02 * ((step * 7 + rank * 3) % 5) for step in range(STEPS)]
        loss[60] = 6.0
        if rank == 1:
            loss[90] = float("nan")
        values = {
            "loss": loss,
            "grad_norm": [value / 2 for value in loss],
            "span/forward": [0.010 + 0.001 * (step % 3) + 0.015 * (rank == 2) for step in range(STEPS)],
            "tokens_per_second": [100.0 + step % 7 for step in range(STEPS)],
            "span/backward": [0.020] * STEPS,
        }
        telemetry.append(make.frame(2, values, run=run, process=f"{run}-{rank}", rank=rank))
    for number, (step, value) in enumerate(((40, 0.25), (80, 0.75))):
        saved = events.Checkpoint(digest=f"{run}{step}", uri=f"/c/{step}", step=step, epoch=step / 40)
        telemetry.append(make.saved(3 + number, run=run, process=f"{run}-0", checkpoint=saved))
        metric = events.Metric(
            name="exact_match", value=value, stderr=0.04, low=value - 0.08, high=value + 0.08, count=100
        )
        outcome = events.EvalOutcome(
            status="done", metrics=[metric], items=100, cost=events.Cost(seconds=1.5)
        )
        telemetry.append(
            make.accepted(
                number + 10 * day, run=run, step=step, checkpoint=saved, outcome=outcome, requested_us=at,
                accepted_us=at + 2_000_000, request=f"{run}-{number}", lease=f"{run}-{number}",
            )
        )  # fmt: skip
    for rank in range(ranks):
        ended = events.ProcessEnded(run=run, process=f"{run}-{rank}", seq=9, time_us=at + 130_000_000)
        telemetry.append(events.encode(ended))
    store.put("telemetry", *telemetry)
    spike = {"run": run, "alert": f"{run}/spike", "metric": "loss", "step": 60, "last_step": 62, "value": 6.0}
    store.put(
        "alerts",
        make.alert(1, **spike, explanation="loss is 6 at step 60: 5.4 above the normal 0.6"),
        make.alert(
            2, "resolved", **spike, explanation="loss is back at 0.6", resolved_us=make.t0 + 70_000_000
        ),
    )


def hostile(store: Any, make: Any, names: list[str]) -> None:
    """A run whose names, texts and configuration are whatever somebody sent."""
    run = "<script>alert('run')</script>"
    telemetry = [
        make.started(
            run=run, process="h", rank=0, name="<img src=x onerror=alert(1)>", config={n: n for n in names}
        ),
        make.frame(1, {name: [1.0, 2.0, float("inf")] for name in names}, run=run, process="h"),
    ]
    store.put("telemetry", *telemetry)
    store.put("alerts", *[
        make.alert(9 + at, run=run, alert=f"h{at}", rule=name, metric=name, step=1, explanation=f"</p>{name}")
        for at, name in enumerate(names)
    ])  # fmt: skip
    store.put("facts", make.fact(9, run=run, what="gap", text="<b>gone</b> & 'quoted' \x1b[31m"))


@pytest.fixture(scope="session")
def stores() -> Any:
    """The module that makes tables by their own sink."""
    return _loaded(Path(__file__).parents[1] / "storage" / "conftest.py")


@pytest.fixture(scope="session")
def root(made_once: Any, stores: Any) -> Path:
    """A storage root with all runs; the newest is ``bare``, which has one metric without a step."""

    def fill(folder: Path) -> None:
        store, make = stores.Store(folder / "data"), stores.Make()
        train(store, make, run="01a-first", ranks=4, lr=0.001, day=0, base=4.0)
        train(store, make, run="01b-again", ranks=2, lr=0.002, day=1, base=3.0)
        hostile(store, make, _support("hostile").NAMES)
        day_us = 3 * 86_400_000_000
        bare = make.started(run="bare", process="b", rank=0, name="bare", time_us=make.t0 + day_us)
        store.put("telemetry", bare)

    where: Path = made_once("analysis", fill)
    return where / "data"


@pytest.fixture(scope="session")
def catalog(root: Path) -> Iterator[Catalog]:
    with open_catalog(root) as opened:
        yield opened


@pytest.fixture(scope="session")
def answered(catalog: Catalog) -> Any:
    """The answer to a question of the trained runs; each is asked once."""

    @functools.cache
    def answer(name: str) -> tuple[Asked, Answer]:
        question = QUESTIONS[name]
        metric = ["loss"] if question.metrics[0] else []
        runs = ["01a-first", "01b-again"][: max(1, question.runs[0])]
        return ask(catalog, question, [*runs, *metric], {})

    return answer


@pytest.fixture(scope="session")
def pages_checked() -> Any:
    """What holds of every page: well-formed, no script, nothing from elsewhere."""
    return _loaded(Path(__file__).parent / "test_picture.py").checked


@pytest.fixture
def browser(tmp_path: Path) -> Any:
    """Looks at a page with a headless Chromium."""
    support = _support("browser")
    found = support.chromium()
    if found is None:
        pytest.skip("no Chromium here: install one, or name it in DRIFTLINE_TEST_BROWSER")
    return functools.partial(support.look, found, folder=tmp_path)
