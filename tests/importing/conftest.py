"""Imports into tables of a test's own, and what they then hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline import events
from driftline.events import ImportSegment
from driftline.importing import detect, load
from driftline.importing.load import Loading, Made
from driftline.importing.reading import Options
from driftline.importing.telling import Log
from driftline.settings import Settings, StorageSettings
from driftline.storage.lake import Lake
from driftline.storage.memory_lake import Faults, MemoryLake, MemoryRoot
from driftline.storage.open import Catalog
from driftline.storage.store import Tables
from driftline.storage.tables import TABLE_NAMES

Before = Callable[[str], list[ImportSegment]]


def imported(
    tables: Tables, before: Before, settings: Settings, path: Path, *, settled: bool, options: Options
) -> Made:
    for found in detect.find(path, options):
        opened = detect.open_source(found, options, lambda key: load.reading_of(before(key)))
        made = Loading(
            opened.source,
            opened.reading,
            opened.key,
            settings=settings,
            tables=tables,
            before=before(opened.key),
            changed_s=time.time() - 3600 if settled else opened.changed_s,
        ).run()
    return made


class Memory:
    """Tables in memory: imports that are killed a hundred times in a second."""

    def __init__(self) -> None:
        self.root = MemoryRoot()

    def imported(self, path: Path, faults: Faults = lambda moment, name: None) -> Made:
        lake = MemoryLake(self.root, faults)
        return imported(lake, self._before, Settings(), path, settled=True, options=Options())

    def _before(self, key: str) -> list[ImportSegment]:
        uuid = Log.of(key).telemetry
        rows = self.root.rows("log").sort_by("offset").to_pylist()
        found = [
            row["payload"] for row in rows if row["kind"] == "import_segment" and row["topic_uuid"] == uuid
        ]
        return [events.decode(payload) for payload in found]  # type: ignore[misc]

    def everything(self) -> dict[str, list[str]]:
        """All rows of all tables, in one order, as text (NaN equals itself)."""
        return {name: sorted(map(str, self.root.rows(name).to_pylist())) for name in TABLE_NAMES}


class Place:
    """One root: imports into it, questions to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings(storage=StorageSettings(root=str(root)))

    def imported(self, path: Path, *, lake: Any = None, settled: bool = True, **options: Any) -> Made:
        """The last of the sources at ``path``, imported as the command does it."""
        return imported(
            lake or self.open(), self.before, self.settings, path, settled=settled, options=Options(**options)
        )

    def open(self) -> Lake:
        return Lake(self.root)

    def before(self, key: str) -> list[ImportSegment]:
        return load.before(self.open(), key)

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
def memory() -> type[Memory]:
    """Makes tables in memory."""
    return Memory


@pytest.fixture
def realdata() -> Path:
    """The folder of real curves; a test without it is skipped."""
    default = Path(__file__).parents[2].parent / "shared" / "realdata"
    folder = Path(os.environ.get("DRIFTLINE_REALDATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder} (DRIFTLINE_REALDATA)")
    return folder
