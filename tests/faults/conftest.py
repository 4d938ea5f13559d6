"""The kill loop, loaded as a package by its path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

CHAOS = Path(__file__).parents[1] / "support" / "chaos" / "__init__.py"


@pytest.fixture(scope="session")
def chaos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", CHAOS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module
    spec.loader.exec_module(module)
    return module
