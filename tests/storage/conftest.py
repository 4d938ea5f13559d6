"""Makers of records for the tests of storage, and a sink that runs in a thread."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

from driftline import admin, events, frames, window_rows
from driftline.connection import KafkaSettings, kafka_python
from driftline.records import OutputId, Record
from driftline.settings import Settings, StorageSettings
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.lakes import open_lake
from driftline.storage.open import open_catalog
from driftline.storage.rows import Rows, Source
from driftline.storage.sink import run_sink
from driftline.storage.store import App

T0 = 1_700_000_000_000_000
UUID = "11111111-1111-1111-1111-111111111111"


class Make:
    """Payloads, with defaults for what a test does not care about."""

    t0 = T0
    uuid = UUID

    def frame(self, seq: int, values: dict[str, list[float]], **changes: Any) -> bytes:
        """A frame of rank 0: each metric's values at steps ``step``, ``step + 1``, ..."""
        names = list(values)
        count = len(next(iter(values.values())))
        step = int(changes.pop("step", 0))
        rows = [(name, at, values[name][at]) for at in range(count) for name in names]
        whole = {
            "run": "run",
            "process": "p0",
            "rank": 0,
            "seq": seq,
            "names": names,
            "metric": np.array([names.index(name) for name, _, _ in rows], np.int16),
            "step": np.array([step + at for _, at, _ in rows]),
            "time_us": np.array([T0 + (step + at) * 1_000_000 for _, at, _ in rows]),
            "value": np.array([value for _, _, value in rows], np.float64),
            "weight": np.ones(len(rows)),
        }
        return frames.encode(frames.Frame(**(whole | changes)))

    def windows(self, offset: int, ordinal: int = 0, rows: int = 1, **columns: Any) -> bytes:
        values: dict[str, Any] = {}
        for field in window_rows.SCHEMA:
            plain = {"run": "run", "axis": "time", "group": "", "metric": "loss", "count": 1}.get(field.name)
            values[field.name] = [plain if plain is not None else 0 if not field.nullable else None] * rows
        values |= {"start": [T0 + at * 1_000_000 for at in range(rows)]}
        values |= {"end": [T0 + (at + 10) * 1_000_000 for at in range(rows)]} | columns
        return window_rows.encode(values, OutputId(UUID, 0, offset, ordinal))

    def fact(self, offset: int, ordinal: int = 0, **changes: Any) -> bytes:
        whole: dict[str, Any] = {
            "id": str(OutputId(UUID, 0, offset, ordinal)),
            "run": "run",
            "attempt": 0,
            "what": "note",
            "time_us": T0,
            "text": "a note",
        }
        return events.encode(events.Fact(**(whole | changes)))

    def alert(self, offset: int, state: str = "open", **changes: Any) -> bytes:
        whole: dict[str, Any] = {
            "id": str(OutputId(UUID, 0, offset, 0)),
            "alert": "a",
            "run": "run",
            "attempt": 0,
            "rule": "loss-spike",
            "detector": "loss_spike",
            "severity": "warn",
            "state": state,
            "time_us": T0 + offset,
            "opened_us": T0,
            "explanation": "loss jumped",
        }
        return events.encode(events.Alert(**(whole | changes)))

    def started(self, seq: int = 0, **changes: Any) -> bytes:
        whole: dict[str, Any] = {"run": "run", "process": "p0", "seq": seq, "time_us": T0, "rank": 0}
        return events.encode(events.ProcessStarted(**(whole | changes)))

    def saved(self, seq: int, **changes: Any) -> bytes:
        whole: dict[str, Any] = {"run": "run", "process": "p0", "seq": seq, "time_us": T0}
        checkpoint = events.Checkpoint(digest=f"d{seq}", uri=f"/c/{seq}", step=seq, epoch=1.0)
        return events.encode(events.CheckpointSaved(**({"checkpoint": checkpoint} | whole | changes)))

    def tick(self, time_us: int = T0) -> bytes:
        return events.encode(events.Tick(worker="w", time_us=time_us))

    def accepted(self, offset: int, **changes: Any) -> bytes:
        step = int(changes.pop("step", 100))
        outcome = changes.pop("outcome", None) or events.EvalOutcome(
            status="done",
            metrics=[events.Metric(name="accuracy", value=0.5, low=0.4, high=0.6, count=100)],
            items=100,
            cost=events.Cost(seconds=6.0, tokens=1000),
        )
        whole: dict[str, Any] = {
            "id": str(OutputId("evals-uuid", 0, offset, 0)),
            "request": f"request-{offset}",
            "run": "run",
            "attempt": 0,
            "suite": events.SuiteRef(name="sums", target="m:a"),
            "checkpoint": events.Checkpoint(digest=f"d{step}", uri=f"/c/{step}", step=step, epoch=1.0),
            "reason": "steps",
            "evaluator": "e",
            "lease": f"lease-{offset}",
            "tries": 1,
            "requested_us": T0,
            "accepted_us": T0 + 10_000_000,
            "outcome": outcome,
        }
        return events.encode(events.EvalAccepted(**(whole | changes)))

    def items(self, lease: str, first: int, count: int) -> bytes:
        made = [events.Item(item=f"i{at}", status="correct", score=1.0) for at in range(first, first + count)]
        return events.encode(events.EvalItems(run="run", request="q", lease=lease, first=first, items=made))


@pytest.fixture
def make() -> Make:
    return Make()


class Store:
    """Tables without Kafka: what a sink would have written of these records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lake = Lake(root)
        self.rows = Rows()
        self._next: dict[str, int] = {}

    def put(self, topic: Any, *values: bytes | None) -> None:
        """Commits records of one partition of ``topic``, in one commit per table."""
        app = App.id(UUID, 0)
        first = self._next.get(topic, 0)
        for offset, value in enumerate(values, first):
            self.rows.add(Source(topic, UUID), Record(0, offset, T0 // 1000 + offset, value))
        self._next[topic] = first + len(values)
        for name, rows in self.rows.take().items():
            before = self.lake.version(name, app)
            self.lake.commit(name, rows, {app: before}, {app: first + len(values) - 1})

    def ask(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        with open_catalog(self.root) as catalog:
            return catalog.rows(sql, parameters)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


class Written:
    """Tables that a sink wrote of two partitions, a commit for each record: 40 frames and events of each."""

    RECORDS = 40

    def __init__(self, root: Any, make: Any, copy_of: Path | None = None) -> None:
        self.root = root
        self.spots = [
            Spot(topic, make.uuid, p) for topic in ("telemetry", "facts", "eval-items") for p in (0, 1)
        ]
        self.log = {spot: list(self._values(make, spot)) for spot in self.spots}
        if copy_of is None:
            self.sink(step=10)
        else:
            shutil.copytree(copy_of, root)

    def _values(self, make: Any, spot: Spot) -> Any:
        one = {"process": f"p{spot.partition}", "run": f"run{spot.partition}"}
        for at in range(self.RECORDS):
            if spot.topic == "facts":
                yield make.fact(at, id=f"{make.uuid}/{spot.partition}/{at}/0")
            elif spot.topic == "eval-items":
                yield make.items(f"lease-{spot.partition}-{at}", 0, 3)
            elif at % 8 == 1:
                yield make.saved(at, **one)
            elif at % 8 == 2:
                yield make.tick()
            elif at == 3:
                yield b"\x00"
            elif at == 4:
                yield make.frame(0, {"loss": [1.0]}, **one)  # sent again: number 0 is known
            else:
                yield make.frame(at, {"loss": [1.0] * 5, "kl": [2.0] * 5}, step=at * 5, **one)

    def sink(self, *, step: int = 1000, oldest: int = 0) -> SinkCore:
        """A sink from where the last one stood to the end of the log, which begins at ``oldest``."""
        core = SinkCore(open_lake(self.root))
        starts = core.resume(dict.fromkeys(self.spots, oldest))
        for first in range(0, self.RECORDS, step):
            for spot, values in self.log.items():
                at = max(first, starts[spot])
                records = [
                    Record(spot.partition, n, n, values[n]) for n in range(at, min(first + step, len(values)))
                ]
                core.take(spot, records)
            core.letters.clear()
            list(core.commits(empty=True))
        return core


@pytest.fixture
def written(tmp_path: Path, made_once: Any, make: Any) -> Written:
    """Written once, and a copy of it for each test."""
    original = made_once("written", lambda folder: Written(folder / "data", make))
    return Written(tmp_path / "data", make, original / "data")


class Harness:
    """A sink on a real broker, and a producer for what it reads."""

    def __init__(self, kafka: KafkaSettings, root: Path) -> None:
        storage = StorageSettings(
            root=str(root), commit_us=300_000, catalog_us=300_000, session_timeout_us=6_000_000
        )
        self.kafka = kafka
        self.root = root
        self.settings = Settings(kafka=kafka, storage=storage)
        self.uuids = admin.ensure_topics(kafka)
        self.lines: list[str] = []
        self._producer = KafkaProducer(**kafka_python(kafka), acks="all")

    def send(self, topic: Any, *values: bytes | None, partition: int = 0, at_ms: int | None = None) -> None:
        """Sends, dated ``at_ms`` if given, and waits until the broker has it."""
        name, where = self.kafka.topics[topic], {"partition": partition, "timestamp_ms": at_ms}
        for future in [self._producer.send(name, value, **where) for value in values]:
            future.get(timeout=120)

    @contextlib.contextmanager
    def sink(self, **storage: Any) -> Iterator[threading.Event]:
        """A sink in a thread; at the end it is stopped in order and must return 0."""
        settings = msgspec.structs.replace(
            self.settings, storage=msgspec.structs.replace(self.settings.storage, **storage)
        )
        stop, codes = threading.Event(), []

        def work() -> None:
            codes.append(run_sink(settings, stop=stop, say=self.lines.append))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield stop
        finally:
            stop.set()
            thread.join(120)
        assert codes == [0], self.lines

    def drain(self, **storage: Any) -> None:
        """Runs a sink that stops as soon as it has read what is there."""
        with self.sink(**storage) as stop:
            self.wait_for(lambda: any("reading" in line for line in self.lines))
            stop.set()
        self.lines.clear()

    @staticmethod
    def wait_for(condition: Any, seconds: float = 120) -> None:
        """Polls until the condition holds."""
        waiting = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if condition():
                return
            waiting.wait(0.05)
        raise AssertionError("condition did not come true")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with open_catalog(self.root) as catalog:
            return catalog.rows(sql)

    def close(self) -> None:
        self._producer.close(timeout=5)


@pytest.fixture
def real(kafka: Any, tmp_path: Path) -> Iterator[Harness]:
    """A harness on Apache Kafka."""
    with contextlib.closing(Harness(kafka.settings(), tmp_path / "data")) as harness:
        yield harness


@pytest.fixture
def quick(embedded: Any, tmp_path: Path) -> Iterator[Harness]:
    """A harness on the embedded broker."""
    with contextlib.closing(Harness(embedded.settings(), tmp_path / "data")) as harness:
        yield harness


@pytest.fixture
def harness_on(tmp_path: Path) -> Any:
    """Makes a harness on any broker."""
    return lambda settings: contextlib.closing(Harness(settings, tmp_path / "data"))
