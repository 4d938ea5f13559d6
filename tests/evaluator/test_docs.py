"""The example of docs/evaluation.md runs as it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import save_file

from driftline.clock import ManualClock
from driftline.evaluator.job import Runner, SuiteShelf
from driftline.events import Checkpoint, EvalStatus, ItemStatus, SuiteRef
from driftline.settings import EvaluatorSettings, load

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The suites that the page's YAML names, its module importable."""
    text = PAGE.read_text(encoding="utf-8")
    (python,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (yaml,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    (tmp_path / "my_suites.py").write_text(python)
    (tmp_path / "driftline.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield load(tmp_path / "driftline.yaml", env={}).pipeline.suites
    sys.modules.pop("my_suites", None)


def test_the_example_runs(suites: list[SuiteRef], tmp_path: Path) -> None:
    folder = tmp_path / "step-10"
    folder.mkdir()
    save_file(
        {"table": torch.randn(40, 40, generator=torch.Generator().manual_seed(0))},
        folder / "model.safetensors",
    )
    runner = Runner(EvaluatorSettings(), SuiteShelf(suites), device="cpu", clock=ManualClock())
    got = {}
    for ref in suites:
        job = runner.run(
            ref,
            Checkpoint(digest="d", uri=str(folder)),
            progress=lambda done, total: None,
            sleep=lambda length_us: None,
        )
        assert (job.outcome.status, job.outcome.reason) == ("done", "")
        got[ref.name] = (job.outcome.items, [metric.name for metric in job.outcome.metrics])
    assert got == {"sums": (200, ["exact_match", "response_length"]), "words": (2, ["perplexity"])}


def test_every_status_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for status in (*get_args(EvalStatus), *get_args(ItemStatus)):
        assert f"`{status}`" in text
