"""What benchmarks share with the tests: modules and packages of ``tests/support``, loaded by their path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"


def load(name: str) -> ModuleType:
    """A module or package of tests/support."""
    path = SUPPORT / name / "__init__.py" if (SUPPORT / name).is_dir() else SUPPORT / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
