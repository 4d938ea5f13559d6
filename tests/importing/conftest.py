"""Imports into tables of a test's own, and what they then hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.importing import detect, load
from driftline.importing.load import Loading, Made
from driftline.importing.reading import Options
from driftline.settings import Settings, StorageSettings
from driftline.storage.lake import Lake
from driftline.storage.open import Catalog

Import = Callable[..., Made]


class Place:
    """One root: imports into it, questions to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings(storage=StorageSettings(root=str(root)))

    def imported(self, path: Path, *, lake: Lake | None = None, settled: bool = True, **options: Any) -> Made:
        """The last of the sources at ``path``, imported as the command does it."""
        lake = lake or Lake(self.root)
        said = Options(**options)
        for found in detect.find(path, said):
            opened = detect.open_source(found, said, lambda key: load.earlier(lake, key))
            changed_s = opened.changed_s if not settled else time.time() - 3600
            made = Loading(
                opened.source,
                opened.reading,
                opened.key,
                settings=self.settings,
                lake=lake,
                changed_s=changed_s,
            ).run()
        return made

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with Catalog(self.root) as catalog:
            return catalog.rows(sql)

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables, in one order, as text (NaN equals itself)."""
        with Catalog(self.root) as catalog:
            return {
                name: sorted(str(row) for row in catalog.rows(f"FROM {name}"))
                for name in ("samples", "log", "windows", "facts", "alerts", "evals", "process_events")
            }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "tables")


@pytest.fixture
def realdata() -> Path:
    """The folder of real curves; a test without it is skipped."""
    default = Path(__file__).parents[2].parent / "shared" / "realdata"
    folder = Path(os.environ.get("DRIFTLINE_REALDATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder} (DRIFTLINE_REALDATA)")
    return folder
