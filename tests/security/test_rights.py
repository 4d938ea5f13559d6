"""The rights that SECURITY.md lists are enough; without them all wait, say so, and go on with them again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import driftline
from driftline.demo import model
from driftline.settings import SdkSettings, Settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
ROLES = ("streams", "scheduler", "sink", "evaluator")
LACKING = "this login lacks a right"


def test_rights_that_are_taken_away_and_given_back_lose_nothing(
    secure_kafka: Any,
    support: Any,
    parts: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While all parts run; the training, which knows nothing of it, goes on."""
    caplog.set_level(logging.INFO, "driftline")
    made, ask, until = support("secure_kafka"), support("parts").ask, support("parts").until
    settings = secure_kafka.sasl("rights.", sasl_mechanism="SCRAM-SHA-256")
    here = parts(support("parts").written(settings), DRIFTLINE_KAFKA__SASL_PASSWORD=made.PASSWORD)
    root = here.folder / "driftline-data"
    secure_kafka.limit("rights.")
    try:
        for role in ROLES:
            here.start(role)
        sdk = SdkSettings(system=(), spool=str(tmp_path / "spool"))
        run = driftline.init(settings=Settings(kafka=settings, sdk=sdk), rank=0)
        model.save(model.Adder(width=8, layers=1, heads=1), here.folder / "step-9")
        for step in range(10):
            run.log({"loss": 1.0}, step=step)
        run.checkpoint(here.folder / "step-9", step=9)
        assert run.flush(240), run.counters()
        until(lambda: ask(root, "SELECT * FROM facts"), "the stream worker's facts are stored")

        secure_kafka.deny("rights.")
        for role in ROLES:
            until(lambda role=role: LACKING in here.lines(role).read_text(), f"{role} says what it lacks")
        for step in range(10, 20):
            run.log({"loss": 1.0}, step=step)
        until(lambda: any(LACKING in line for line in caplog.messages), "the SDK says what it lacks")
        assert not run.flush(0.5)
        secure_kafka.allow("rights.")
        assert run.flush(240), run.counters()
        run.finish()
        steps = "SELECT count(*), count(DISTINCT step) FROM samples WHERE metric = 'loss'"
        until(lambda: ask(root, steps) == [(20, 20)], "all steps are stored, once")
        until(
            lambda: ask(root, "SELECT DISTINCT status FROM evals") == [("done",)], "the evaluation is stored"
        )
        assert [here.stop(role) for role in ROLES] == [0, 0, 0, 0]
    finally:
        secure_kafka.allow("rights.")
        secure_kafka.unlimit("rights.")
