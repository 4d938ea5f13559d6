"""The settings file of the demonstration is an ordinary one that every role accepts."""

from __future__ import annotations

from pathlib import Path

from driftline.demo import settings as demo_settings
from driftline.settings import load


def test_the_file_says_what_the_demonstration_needs(tmp_path: Path) -> None:
    root = tmp_path / "a folder: with 'odd' characters"
    demo_settings.write(tmp_path / "d.yaml", root=root, embedded=True, evaluate_every=40)
    found = load(tmp_path / "d.yaml", {})
    assert found.storage.root == str(root)
    assert [suite.name for suite in found.pipeline.suites] == list(demo_settings.SUITES)
    assert found.pipeline.triggers.steps == 40
    assert (found.pipeline.triggers.at_start, found.pipeline.triggers.at_end) == (True, True)
    assert found.notes == ()


def test_detectors_are_those_that_everyone_has_but_for_one_number(tmp_path: Path) -> None:
    demo_settings.write(tmp_path / "d.yaml", root=tmp_path, embedded=False)
    found, plain = load(tmp_path / "d.yaml", {}).pipeline, load(None, {}).pipeline
    assert [(d.name, d.kind, d.metrics) for d in found.detectors] == [
        (d.name, d.kind, d.metrics) for d in plain.detectors
    ]
    assert {d.name: d.params for d in found.detectors if d.params} == {"slow-rank": {"ratio": 2.0}}
