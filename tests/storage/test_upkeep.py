"""Whatever goes wrong in the upkeep of the tables is said once, counted, tried again, and ends no sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError

from driftline.clock import SECOND_US, ManualClock
from driftline.errors import BadData
from driftline.settings import StorageSettings
from driftline.storage import catalog, retention
from driftline.storage.patience import FIRST_US, KNOWN_US, LONGEST_US
from driftline.storage.tables import TABLE_NAMES
from driftline.storage.upkeep import EVERY_US, TRIM_US, Upkeep

DAY_US = 86_400 * SECOND_US


class Panic(BaseException):
    """As delta-rs raises it where one of its threads panicked: no Exception."""


class Tables:
    """A lake in which there always is something to do, and all is done at once."""

    root = Path("/nowhere")

    def compact(self, name: Any, **_: Any) -> bool:
        return True

    def delete(self, name: Any, predicate: str, **_: Any) -> int | None:
        return 1

    def vacuum(self, name: Any) -> tuple[int, int]:
        return 0, 0

    def trim_log(self, name: Any) -> int:
        return 0

    def set_aside(self, name: Any) -> list[Any]:
        return []


class Kept:
    """The upkeep of a lake, in which rows have expired."""

    def __init__(self, lake: Any, make: Any, merger: Any = None) -> None:
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self.clock = ManualClock(now_us=make.t0 + 9 * DAY_US)
        settings = StorageSettings(retention_us=DAY_US, catalog_us=SECOND_US)
        self.upkeep = Upkeep(
            lake, settings, counts=self.counts, say=self.lines.append, clock=self.clock, merger=merger
        )
        self._make = make
        self.clock.advance(20 * SECOND_US)

    def round(self) -> None:
        """What a sink does after a commit."""
        self.upkeep.expire(self._make.uuid, 1)
        self.upkeep.tidy()
        self.upkeep.compact(at_least=2)
        self.upkeep.trim()


@pytest.fixture(autouse=True)
def late_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have expired whenever that is due."""
    monkeypatch.setattr(retention, "now", lambda lake, host_us: host_us)
    monkeypatch.setattr(retention, "expired", lambda *_: [retention.Expired("true", {})])


CHORES: dict[str, tuple[Any, str, int]] = {
    "merging": (Tables, "compact", SECOND_US),
    "retention": (Tables, "delete", EVERY_US),
    "retention, reading": (retention, "expired", EVERY_US),
    "retention, cleaning": (Tables, "vacuum", EVERY_US),
    "trimming": (Tables, "trim_log", TRIM_US),
    "tidying": (Tables, "set_aside", EVERY_US),
}
"""What is done, where it fails, and how often it is done when all is well."""
FAULTS = [AssertionError("2 of 3 rows"), KeyError("run"), Panic("called unwrap on None"), RecursionError()]


@pytest.mark.parametrize("chore", CHORES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_fault_of_ours_is_said_once_counted_and_tried_again_more_and_more_rarely(
    make: Any, monkeypatch: pytest.MonkeyPatch, chore: str, fault: BaseException
) -> None:
    owner, method, every_us = CHORES[chore]
    kept = Kept(Tables(), make)
    tries: list[int] = []

    def broken(*_: Any, **__: Any) -> Any:
        tries.append(kept.clock.steady_us())
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, broken)
        for _ in range(60):
            kept.round()
            kept.clock.advance(FIRST_US // 2)
    tables = len({line.partition(" of table ")[2].split()[0] for line in kept.lines})
    assert len(kept.lines) == tables >= 1, "each table's once"
    for line in kept.lines:
        assert "rows are safe" in line
        assert type(fault).__name__ in line
        assert "test_upkeep.py:" in line
        assert "trying again in a minute" in line
        assert not set(line) & set("\n\x1b")
    assert kept.counts["upkeep errors"] == len(tries) <= 7 * tables, "half an hour: 1, 2, 4, ... minutes"
    for _ in range(3):
        kept.clock.advance(max(LONGEST_US, every_us))
        kept.round()
    assert sum("works again" in line for line in kept.lines) == tables
    assert len(kept.lines) == 2 * tables


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(28, "No space left on device"), "free some space on that disk"),
        (DeltaError("Generic error: Permission denied"), "mend the folder's permissions"),
        (BadData("a log is broken"), "a log is broken"),
    ],
)
def test_what_lies_outside_is_said_with_its_remedy_and_tried_again_in_ten_minutes(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    kept = Kept(store.lake, make)
    for seq in range(3):
        store.put("telemetry", make.frame(seq, {"x": [1.0]}, step=seq))
    with monkeypatch.context() as patch:
        patch.setattr("driftline.storage.compaction.replacing.merge", _raise(error))
        for _ in range(2):
            kept.upkeep.compact(at_least=2)
            kept.clock.advance(SECOND_US)
        assert len(kept.lines) == kept.counts["upkeep errors"] == 2, "of samples and log"
        assert all(said in line and "trying again in 10 minutes" in line for line in kept.lines)
        kept.clock.advance(KNOWN_US)
        kept.upkeep.compact(at_least=2)
        assert len(kept.lines) == 4
    kept.clock.advance(KNOWN_US)
    kept.upkeep.compact(at_least=2)
    assert sum("works again" in line for line in kept.lines) == 2
    assert len(store.lake.files("log")) == 1
    assert store.ask("SELECT count(*) FROM log") == [(3,)]


@pytest.mark.parametrize("fault", [*FAULTS, MemoryError()], ids=lambda fault: type(fault).__name__)
def test_a_catalog_that_cannot_be_written_ends_no_sink(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    kept = Kept(store.lake, make)
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "write", _raise(fault))
        for _ in range(3):
            kept.clock.advance(2 * SECOND_US)
            kept.upkeep.renew_catalog()
    (line,) = kept.lines
    assert "catalog.duckdb was not renewed (rows are safe)" in line
    assert kept.counts["catalog_errors"] == 3
    kept.clock.advance(2 * SECOND_US)
    kept.upkeep.renew_catalog()
    assert (store.root / "catalog.duckdb").exists()


def _raise(error: BaseException) -> Callable[..., Any]:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    return broken


class Helper:
    """A merger of which one table is asked at a time, and that cannot be stopped."""

    merging = ("items", 40)

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = 0

    def news(self) -> tuple[()]:
        return ()

    def ask(self, name: Any, at_least: int) -> None:
        self.asked.append(name)

    def close(self) -> bool:
        self.closed += 1
        return False


def test_a_table_that_cannot_be_loaded_anew_just_then_ends_no_sink_and_others_are_merged(
    store: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake loads its tables anew every few minutes, also those that get no rows."""
    helper = Helper()
    kept = Kept(store.lake, make, merger=helper)

    def count(name: Any) -> int:
        if name == "gaps":
            raise BadData("gaps cannot be opened as a table: Input/output error")
        return 5

    monkeypatch.setattr(store.lake, "count", count)
    kept.upkeep.compact(at_least=4)
    assert set(helper.asked) == {*TABLE_NAMES} - {"gaps"}
    assert kept.counts["upkeep errors"] == 1
    assert "Input/output error" in kept.lines[0]


def test_a_merge_that_cannot_be_stopped_is_waited_for_once(store: Any, make: Any) -> None:
    """The end of a sink closes it, and so does the last upkeep; each time would be 20 seconds."""
    helper = Helper()
    kept = Kept(store.lake, make, merger=helper)
    kept.upkeep.close()
    kept.upkeep.finish(within_s=0)
    assert helper.closed == 1
    assert len(kept.lines) == 1
