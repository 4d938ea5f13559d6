"""The examples in docstrings of the contract, the settings and the command line are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "driftline"
MODULES = sorted(
    ".".join(("driftline", *path.relative_to(SOURCE).with_suffix("").parts))
    for folder in (SOURCE, SOURCE / "cli", SOURCE / "streams", SOURCE / "producers")
    for path in folder.glob("*.py")
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
