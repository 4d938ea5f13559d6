"""A training that was watched and stored, without Kafka: a log, what the pipeline said of it, the tables."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from driftline import config, events, frames
from driftline.records import Output, Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline

T0 = 1_700_000_000_000_000
SECOND = 1_000_000
SUITE = events.SuiteRef(name="sums", target="m:a")
SETTINGS = config.PipelineConfig(
    per_rank=["norm"], suites=[SUITE], triggers=config.Triggers(steps=100, at_start=True)
)
UUID = "11111111-1111-1111-1111-111111111111"


class Log:
    """Writes the records of one partition; "now" is what the broker stamps."""

    def __init__(self, uuid: str = UUID, partition: int = 0, settings: config.PipelineConfig | None = None):
        self.uuid, self.partition = uuid, partition
        self.records: list[Record] = []
        self.now_us = T0
        self._seqs: dict[tuple[str, str], int] = {}
        self.configure(settings or config.PipelineConfig())

    def put(self, value: bytes | None) -> None:
        self.records.append(Record(self.partition, len(self.records), self.now_us // 1000, value))

    def seq(self, run: str, process: str) -> int:
        self._seqs[run, process] = self._seqs.get((run, process), -1) + 1
        return self._seqs[run, process]

    def event(self, kind: type[Any], run: str, process: str, **fields: Any) -> None:
        seq = self.seq(run, process)
        self.put(events.encode(kind(run=run, process=process, seq=seq, time_us=self.now_us, **fields)))

    def frame(self, run: str, process: str, rank: int | None, samples: Sequence[tuple[Any, ...]]) -> None:
        """Samples are (metric, step, time_us, value, weight)."""
        names = list(dict.fromkeys(sample[0] for sample in samples))
        names.reverse()  # another order than that of the first samples
        columns = list(zip(*samples, strict=True))
        step = [frames.NO_STEP if at is None else at for at in columns[1]]
        frame = frames.Frame(
            run,
            process,
            rank,
            self.seq(run, process),
            names,
            np.array([names.index(name) for name in columns[0]], np.int16),
            np.array(step, np.int64),
            np.array(columns[2], np.int64),
            np.array(columns[3], np.float64),
            np.array(columns[4], np.float64),
            '{"dropped": 1}' if self._seqs[run, process] % 2 else "",
        )
        self.put(frames.encode(frame))

    def tick(self) -> None:
        self.put(events.encode(events.Tick(worker="w", time_us=self.now_us)))

    def configure(self, settings: config.PipelineConfig) -> None:
        body = config.encode(settings)
        event = events.ConfigChanged(
            worker="w", time_us=self.now_us, digest=config.digest(body), body=msgspec.Raw(body)
        )
        self.put(events.encode(event))

    def train(self, run: str, steps: range, *, ranks: int = 3, attempt: int = 0, seed: int = 1) -> None:
        """Ranks log two metrics a step of 0.25 s, with a NaN, a spike and a checkpoint now and then."""
        chance = random.Random(seed)
        for rank in range(ranks):
            self.event(
                *(events.ProcessStarted, run, f"{run}-{attempt}-{rank}"),
                rank=rank,
                world_size=ranks,
                name=f"the {run}",
            )
        for step in steps:
            self.now_us += SECOND // 4
            if step % 4 == 0:
                self.tick()
            for rank in range(ranks):
                spike = 40.0 if step % 97 == 60 else 0.0
                loss = 2.0 + chance.gauss(0, 0.05) + spike
                samples = [
                    ("loss", step, self.now_us - chance.randrange(20_000), loss, chance.choice([1.0, 3.0])),
                    ("norm", step, self.now_us, float("nan") if step % 151 == 7 else chance.random(), 1.0),
                    ("free", None, self.now_us, -0.0 if rank else chance.random(), 1.0),
                ]
                self.frame(run, f"{run}-{attempt}-{rank}", rank, samples)
            if step % 50 == 49:
                saved = events.Checkpoint(digest=f"{run}{attempt}{step}", uri=f"/c/{step}", step=step)
                self.event(events.CheckpointSaved, run, f"{run}-{attempt}-0", checkpoint=saved)

    def end(self, run: str, *, ranks: int = 3, attempt: int = 0) -> None:
        for rank in range(ranks):
            self.event(events.ProcessEnded, run, f"{run}-{attempt}-{rank}")

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_us += SECOND
            self.tick()

    @classmethod
    def odd(cls) -> Log:
        return odd(cls)


def outputs_of(log: Log) -> list[Output]:
    core = Pipeline()
    return core.step(beginning(core, log.uuid, log.partition, log.records), log.records)


def store(
    root: Path, *logs: Log, commits: int = 4, seed: int = 5, skip: Callable[[Any], bool] | None = None
) -> Path:
    """What sinks store of the logs and of what the pipeline says of them, in some commits."""
    lake = Lake(root)
    chance = random.Random(seed)
    streams: dict[Spot, list[Record]] = {}
    for log in logs:
        streams[Spot("telemetry", log.uuid, log.partition)] = log.records
        outputs = [output for output in outputs_of(log) if not (skip and skip(output))]
        for topic in ("windows", "facts", "alerts"):
            said = [output.value for output in outputs if output.topic == topic]
            spot = Spot(topic, f"{topic}-uuid", log.partition)  # type: ignore[arg-type]
            streams[spot] = [Record(log.partition, at, 0, value) for at, value in enumerate(said)]
    core = SinkCore(lake)
    core.resume(dict.fromkeys(streams, 0))
    cuts = {
        spot: sorted(chance.randrange(len(records) + 1) for _ in range(commits - 1))
        for spot, records in streams.items()
    }
    for number in range(commits):
        for spot, records in streams.items():
            marks = [0, *cuts[spot], len(records)]
            core.take(spot, records[marks[number] : marks[number + 1]])
        core.letters.clear()
        assert list(core.commits(empty=True))
    return root


@pytest.fixture(scope="session")
def log() -> type[Log]:
    return Log


@pytest.fixture(scope="session", name="store")
def _store() -> Callable[..., Path]:
    return store


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Path]:
    return lambda *logs, **how: store(tmp_path / "data", *logs, **how)


def odd(log: Any) -> Any:
    """Two runs, one with a restart that goes back, junk, duplicates, empty and late frames, a change."""
    one = log(settings=SETTINGS)
    one.train("a", range(120))
    one.put(b"junk")
    one.put(None)
    one.put(b'{"kind": "from_the_future", "v": 9, "run": "a", "process": "a-0-0", "seq": 100000}')
    one.put(one.records[-8].value)
    one.frame("a", "stranger", None, [("loss", 119, one.now_us, float("inf"), 1.0)])
    one.put(frames.encode(frames.Frame("a", "nothing", 5, 0, [], *_nothing())))
    one.configure(config.PipelineConfig(windows=[config.WindowSpec("step", 20, 5)], suites=[SUITE]))
    one.train("a", range(100, 200), attempt=1, seed=3)
    one.train("b", range(60), seed=4)
    one.end("a", attempt=1)
    one.wait(40)
    one.frame("b", "b-0-0", 0, [("loss", 3, one.now_us - 30_000_000, 1.0, 1.0)])
    one.wait(2)
    one.end("b")
    one.wait(20)
    return one


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, log: Any, store: Any) -> tuple[Any, Path]:
    """The odd trainings, and the tables of them."""
    one = odd(log)
    return one, store(tmp_path_factory.mktemp("odd") / "data", one)


@pytest.fixture
def own(whole: tuple[Any, Path], tmp_path: Path) -> tuple[Any, Path]:
    """A copy of them that may be changed."""
    return whole[0], Path(shutil.copytree(whole[1], tmp_path / "own"))


def _nothing() -> tuple[Any, ...]:
    empty = np.empty(0, np.int64)
    return empty.astype(np.int16), empty, empty, np.empty(0), np.empty(0)
