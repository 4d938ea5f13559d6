"""A folder of parts as processes, made by :mod:`tests.support.parts`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


def _load(name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def support() -> Callable[[str], ModuleType]:
    """A module of tests/support by its name."""
    return _load


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a folder in which Driftline's parts run as processes; all of them end with the test."""
    made: list[Any] = []

    def make(settings: dict[str, Any], **environ: str) -> Any:
        made.append(_load("parts").Parts(tmp_path / f"parts-{len(made)}", settings, environ))
        return made[-1]

    yield make
    for each in made:
        each.close()
        print(each.told())
