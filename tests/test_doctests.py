"""The examples in docstrings are true, of all modules."""

from __future__ import annotations

import doctest
import importlib
import os
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "driftline"
MODULES = sorted(
    ".".join(("driftline", *path.relative_to(SOURCE).with_suffix("").parts))
    for folder, _, files in os.walk(SOURCE, followlinks=True)
    for path in (Path(folder, file) for file in files if file.endswith(".py"))
    if ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
