"""A run over the in-memory transport, and what arrived there, decoded."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import driftline
from driftline import frames, records
from driftline.producers.transport import MemoryTransport
from driftline.settings import SdkSettings, Settings


class Sdk:
    """A started run, its transport, and views of what the "broker" has."""

    def __init__(self, run: driftline.Run, way: MemoryTransport) -> None:
        self.run, self.way = run, way

    def records(self) -> list[Any]:
        return [records.decode(payload) for _, payload in self.way.log]

    def frames(self) -> list[frames.Frame]:
        return [record for record in self.records() if isinstance(record, frames.Frame)]

    def events(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records() if isinstance(record, kind)]

    def samples(self) -> list[tuple[str, int | None, float, float]]:
        """(name, step, value, weight) in the order of arrival."""
        found = []
        for frame in self.frames():
            for at, number in enumerate(frame.metric.tolist()):
                step = int(frame.step[at])
                found.append(
                    (
                        frame.names[number],
                        None if step == frames.NO_STEP else step,
                        float(frame.value[at]),
                        float(frame.weight[at]),
                    )
                )
        return found

    def values(self) -> dict[str, float]:
        """The newest value by name."""
        return {name: value for name, _, value, _ in self.samples()}


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Waits until the condition holds; fails after the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.005)


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., None]:
    return wait_for


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Sdk]]:
    """Makes runs; settings of the SDK by keyword, further arguments of ``init`` under ``init``."""
    for variable in ("DRIFTLINE_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    made: list[Sdk] = []

    def start(*, init: dict[str, Any] | None = None, way: MemoryTransport | None = None, **sdk: Any) -> Sdk:
        way = way or MemoryTransport()
        quiet: dict[str, Any] = {"flush_us": 10_000, "system": (), "exit_us": 60_000_000}
        quiet["spool"] = str(tmp_path / "spool")
        settings = Settings(sdk=SdkSettings(**(quiet | sdk)))
        arguments: dict[str, Any] = {"name": "test", "settings": settings, "transport": way} | (init or {})
        made.append(Sdk(driftline.init(**arguments), way))
        return made[-1]

    yield start
    for each in made:
        each.way.away = False
        each.run.finish()
