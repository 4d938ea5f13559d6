"""What the tests of the window engine share: the oracle, a log writer, silent detectors."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from driftline import config, events, frames
from driftline.records import Output, Record
from driftline.streams.attempts import PartitionState
from driftline.streams.pipeline import Pipeline
from driftline.streams.views import CheckpointView

SECOND = 1_000_000


def _oracle() -> ModuleType:
    known = sys.modules.get("driftline_tests_naive")
    if known is None:
        path = Path(__file__).parent.parent / "naive.py"
        spec = importlib.util.spec_from_file_location("driftline_tests_naive", path)
        assert spec is not None
        assert spec.loader is not None
        known = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = known
        spec.loader.exec_module(known)
    return known


@pytest.fixture(scope="session")
def naive() -> ModuleType:
    return _oracle()


class Silent:
    """Detectors and triggers that note what they are shown and say nothing (or what ``picks`` says)."""

    seen: list[Any]
    watched: frozenset[str] = frozenset()
    picks: tuple[str, ...] = ()

    def __init__(self, settings: config.PipelineConfig, dumped: Any = None) -> None:
        self.seen = [] if dumped is None else list(dumped)

    def wants(self, axis: config.Axis, metrics: Sequence[str]) -> Any:
        return np.ones(len(metrics), np.bool_)

    def per_rank(self) -> frozenset[str]:
        return self.watched

    def non_finite(self, seen: Any) -> list[Any]:
        self.seen.append(["non_finite", *seen[:3]])
        return []

    def pane(self, view: Any) -> list[Any]:
        self.seen.append(
            ["pane", view.axis, view.metric, view.start, view.samples, view.mean, dict(view.by_rank)]
        )
        return []

    def tick(self, now_us: int, processes: list[Any]) -> list[Any]:
        self.seen.append(["tick", now_us, [[p.process, p.last_seen_us] for p in processes]])
        return []

    def end(self, now_us: int) -> list[Any]:
        self.seen.append(["end", now_us])
        return []

    def started(self, now_us: int) -> None: ...

    def checkpoint(self, view: CheckpointView) -> list[Any]:
        return [(reason, view) for reason in self.picks]

    def ended(self, now_us: int) -> list[Any]:
        return []

    def dump(self) -> Any:
        return self.seen


class Log:
    """Writes a log, one call per record, and runs a pipeline over it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.state: PartitionState = pipeline.fresh("uuid", 0)
        self.records: list[Record] = []
        self.outputs: list[Output] = []
        self.seqs: dict[tuple[str, str], int] = {}
        self.now_us = 0

    def put(self, value: bytes | None, at_us: int | None = None) -> list[Output]:
        if at_us is not None:
            self.now_us = at_us
        record = Record(0, len(self.records), self.now_us // 1000, value)
        self.records.append(record)
        outputs = self.pipeline.step(self.state, [record])
        self.outputs += outputs
        return outputs

    def seq(self, run: str, process: str) -> int:
        self.seqs[(run, process)] = self.seqs.get((run, process), -1) + 1
        return self.seqs[(run, process)]

    def frame(
        self,
        samples: list[tuple[str, int | None, int, float, float]],
        *,
        process: str = "p0",
        rank: int | None = 0,
        run: str = "r",
        at_us: int | None = None,
    ) -> list[Output]:
        """Samples are (metric, step, time_us, value, weight)."""
        seq = self.seq(run, process)
        return self.put(_oracle().make_frame(run, process, seq, rank, samples), at_us)

    def event(
        self, kind: type[Any], *, process: str = "p0", run: str = "r", at_us: int | None = None, **fields: Any
    ) -> list[Output]:
        if at_us is not None:
            self.now_us = at_us
        seq = self.seq(run, process)
        event = kind(run=run, process=process, seq=seq, time_us=self.now_us, **fields)
        return self.put(events.encode(event))

    def tick(self, at_us: int) -> list[Output]:
        return self.put(events.encode(events.Tick(worker="w", time_us=at_us)), at_us)

    def configure(self, settings: config.PipelineConfig) -> list[Output]:
        body = config.encode(settings)
        import msgspec

        event = events.ConfigChanged(
            worker="w", time_us=self.now_us, digest=config.digest(body), body=msgspec.Raw(body)
        )
        return self.put(events.encode(event))

    def rows(self, **where: Any) -> list[dict[str, Any]]:
        rows = _oracle().rows_of(self.outputs)
        return [row for row in rows if all(row[name] == value for name, value in where.items())]

    def facts(self, what: str | None = None) -> list[events.Fact]:
        decoded = [events.decode(o.value) for o in self.outputs if o.topic == "facts"]
        return [f for f in decoded if isinstance(f, events.Fact) and what in (None, f.what)]

    def of(self, topic: str) -> list[Any]:
        return [events.decode(o.value) for o in self.outputs if o.topic == topic]

    def detection(self, run: str = "r") -> list[Any]:
        seen: list[Any] = self.state.runs[run].attempt.detection.dump()
        return seen


@pytest.fixture
def silent() -> type[Silent]:
    return type("Own", (Silent,), {"log": Log})


@pytest.fixture
def log(silent: type[Silent]) -> Log:
    return Log(Pipeline(silent, silent))


NO_STEP = frames.NO_STEP


@pytest.fixture
def any_cut() -> Callable[[list[Record], int], list[Output]]:
    """Holds that a log gives the same bytes however it is cut; the outputs.

    One batch, batches of 1, 20 and 500, and random cuts (by a seed) with dump and load between.
    """

    def same(records: list[Record], seed: int) -> list[Output]:
        pipeline = Pipeline()
        whole = pipeline.step(pipeline.fresh("uuid", 0), records)
        for size in (1, 20, 500):
            state = pipeline.fresh("uuid", 0)
            cuts = range(0, len(records), size)
            assert [o for at in cuts for o in pipeline.step(state, records[at : at + size])] == whole, size
        chance = random.Random(seed)
        state, parts, at = pipeline.fresh("uuid", 0), [], 0
        while at < len(records):
            size = chance.choice([1, 2, 7, 40])
            parts += pipeline.step(state, records[at : at + size])
            state = pipeline.load(pipeline.dump(state))
            at += size
        assert parts == whole
        return whole

    return same
