"""Items -> the records of a log, as live training would have sent them. Pure: the same items, the same bytes.

    segment   begun, tick, configuration, [process started, frames, rewinds, evaluations] ...,
              process ended ... (where the source is whole), done

A log is a function of the source and of where its imports ended (:class:`driftline.events.ImportSegment`), so
an import that is run again makes the same records at the same offsets, and the sink's rules let each become
rows once. Offsets count from 0; the time of a record is the newest time so far. One process per run and rank,
which
goes on, with its numbers, from segment to segment. There is one tick in a segment: a file tells nothing of
silence, so nobody is found to be silent.

A run whose steps of one metric go back is taken to have been resumed there: it is rewound, which opens an
attempt, at most ``MAX_REWINDS`` times. Other ranks that go back after it (or say the
same step again) follow into that attempt.

What has no time gets one second after another from the start of the reading on, a new one with each new step.

``SAMPLES_MAX`` and whatever else decides bytes must not change: what was imported before could not be gone on
with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from driftline import config, events, frames
from driftline.identity import MAX_NAME_CHARS, new_process_id, safe_id
from driftline.importing.items import Evaluated, Item, Rewound, Row, Tally
from driftline.importing.reading import Reading, slug
from driftline.producers.naming import metric_name
from driftline.records import OutputId, Record
from driftline.topics import TopicName

SAMPLES_MAX = 2_000
"""Of one frame, as the SDK has it."""
NAMES_BYTES_MAX = 200_000
BUFFERED_MAX = 2_000_000
"""Samples of all processes that wait for their frames to be full."""
MAX_REWINDS = 100
MAX_RUNS = 10_000
MAX_PROCESSES = 100_000
"""Ranks of all runs."""
MAX_NAMES = 100_000
"""Metrics of all runs."""
ITEMS_MAX = 200
ITEMS_BYTES_MAX = 400_000
WORKER = "import"
_SECOND_US = 1_000_000
_FIRST_PARTITION = 1 << 20
"""Partitions of imported logs are none that a topic has, so no sink of a broker holds up an import."""


class Log(NamedTuple):
    """Identity of the log of one source."""

    telemetry: str
    """Stands for the topic's UUID."""
    partition: int

    @classmethod
    def of(cls, key: str) -> Log:
        """The log of the source that ``key`` names.

        >>> Log.of("a").partition == Log.of("a").partition >= 1 << 20
        True
        """
        number = int.from_bytes(
            hashlib.sha256(f"driftline import {key}".encode(errors="surrogatepass")).digest()[:4], "big"
        )
        partition = _FIRST_PARTITION + number % ((1 << 31) - _FIRST_PARTITION)
        return cls(_uuid(key, "telemetry"), partition)

    def other(self, topic: TopicName) -> str:
        """UUID of another topic of the same log."""
        return _uuid(self.telemetry, topic)


class Told(NamedTuple):
    """One record, and its topic."""

    topic: TopicName
    record: Record


@dataclass
class _Process:
    """One process of a run, and the samples of its next frame."""

    run: _Run
    id: str
    rank: int | None
    seq: int = 0
    alive: bool = False
    attempt: int = 0
    """How often its run had gone back when it last did so, or began."""
    logged: int = 0
    last: dict[str, int] = field(default_factory=dict)
    """Newest step of each metric."""
    names: dict[str, int] = field(default_factory=dict)
    names_bytes: int = 0
    metric: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    time_us: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq - 1


@dataclass
class _Run:
    id: str
    name: str
    processes: dict[int | None, _Process] = field(default_factory=dict)
    time_us: int | None = None
    """Of its newest row."""
    seconds: int = -1
    """Made up so far, for rows without a time."""
    step: int | None = None
    highest: int = -(1 << 63)
    rewinds: int = 0
    rewound_to: int = 0


class Telling:
    """The log of one source, from its first record on."""

    def __init__(self, log: Log, reading: Reading, tally: Tally) -> None:
        self.log = log
        self._reading = reading
        self._tally = tally
        self._runs: dict[str, _Run] = {}
        self._offsets: dict[TopicName, int] = {"telemetry": 0, "eval-items": 0}
        self._hash = hashlib.blake2b(digest_size=16)
        self._now_us: int | None = None
        self._config = ""
        self._buffered = 0
        self._evaluations = self._processes = 0
        self._names: dict[str, str] = {}
        self._seen: set[str] = set()
        self._timed = reading.time is not None or reading.elapsed is not None
        self.samples = 0
        self.first_us: int | None = None
        self.last_us: int | None = None

    @property
    def runs(self) -> dict[str, str]:
        """Names of the runs so far, by id."""
        return {run.id: run.name for run in self._runs.values()}

    @property
    def evaluations(self) -> int:
        return self._evaluations

    @property
    def rewinds(self) -> int:
        return sum(run.rewinds for run in self._runs.values())

    def segment(
        self, items: Iterable[Item], limits: dict[str, int], *, whole: bool, config_body: str, digest: str
    ) -> Iterator[Told]:
        """The records of one segment. Without ``whole`` its runs go on: they are not ended, so that windows
        at the border wait for what comes."""
        source = iter(items)
        first = next(source, None)
        if first is not None and first.time_us is not None:
            self._move(first.time_us)
        elif self._now_us is None:
            self._move(self._reading.start_us)
        yield self._event(self._mark("begun", limits, whole, config_body, digest))
        yield self._event(events.Tick(worker=WORKER, time_us=self._now()))
        if config_body != self._config:
            self._config = config_body
            body = config_body.encode()
            digest = config.digest(body)
            yield self._event(
                events.ConfigChanged(
                    worker=WORKER, time_us=self._now(), digest=digest, body=msgspec.Raw(body)
                )
            )
        if first is not None:
            yield from self._item(first)
        for item in source:
            yield from self._item(item)
        yield from self._frames(self._runs.values())
        if whole:
            yield from self._end()
        yield self._event(self._mark("done", limits, whole, config_body, self._hash.hexdigest()))

    def _mark(
        self, state: str, limits: dict[str, int], whole: bool, body: str, digest: str
    ) -> events.ImportSegment:
        done = state == "done"
        return events.ImportSegment(
            time_us=self._now(),
            state="done" if done else "begun",
            limits=limits,
            whole=whole,
            reading={} if done else msgspec.to_builtins(self._reading),
            config="" if done else body,
            digest=digest,
            refused=dict(self._tally.refused) if done else {},
        )

    # --- items ---------------------------------------------------------------------------------------------

    def _item(self, item: Item) -> Iterator[Told]:
        run = self._run(item.run)
        if run is None or not self._seated(run, item):
            return
        time_us = self._time(run, item)
        self.first_us = time_us if self.first_us is None else min(self.first_us, time_us)
        self.last_us = time_us if self.last_us is None else max(self.last_us, time_us)
        if isinstance(item, Row):
            yield from self._row(run, item, time_us)
        elif isinstance(item, Rewound):
            if run.highest < item.step:
                return
            process = yield from self._process(run, item.rank, item.step, time_us)
            yield from self._rewind(process, item.step, time_us)
        else:
            yield from self._evaluated(run, item, time_us)

    def _row(self, run: _Run, row: Row, time_us: int) -> Iterator[Told]:
        if not all(pair[0] in self._seen for pair in row.values):
            row = row._replace(values=[pair for pair in row.values if self._known(pair[0])])
            if not row.values:
                return
        process = yield from self._process(run, row.rank, row.step, time_us)
        fresh = process.logged == 0
        if row.step is not None:
            last = process.last
            behind = process.attempt < run.rewinds and row.step >= run.rewound_to
            limit = row.step - 1 if behind else row.step
            if any(last.get(name, limit) > limit for name, _ in row.values):
                yield from self._rewind(process, run.rewound_to if behind else row.step, time_us)
            for name, _ in row.values:
                last[name] = row.step
            run.highest = max(run.highest, row.step)
        step = frames.NO_STEP if row.step is None else row.step
        for name, value in row.values:
            if len(process.metric) >= SAMPLES_MAX or process.names_bytes > NAMES_BYTES_MAX:
                yield self._frame(process)
            at = process.names.get(name)
            if at is None:
                at = process.names[name] = len(process.names)
                process.names_bytes += len(self._stored(name)) * 4
            process.metric.append(at)
            process.step.append(step)
            process.time_us.append(time_us)
            process.value.append(value)
        process.logged += len(row.values)
        self._buffered += len(row.values)
        self.samples += len(row.values)
        if fresh:  # at once: from then on the windows wait for it
            yield self._frame(process)
        elif self._buffered > BUFFERED_MAX:
            yield from self._frames(self._runs.values())

    def _known(self, name: str) -> bool:
        """Whether the name is one of the first ``MAX_NAMES`` of the source."""
        if name in self._seen:
            return True
        if len(self._seen) >= MAX_NAMES:
            self._tally.refuse("", 0, "names", f"more than {MAX_NAMES:,} names: {name!r}", once="names")
            return False
        self._seen.add(name)
        return True

    def _time(self, run: _Run, item: Item) -> int:
        """The item's time, or the best that can be said of it."""
        if item.time_us is not None:
            run.time_us = item.time_us
        elif self._timed:
            run.time_us = self._reading.start_us if run.time_us is None else run.time_us
        else:
            if item.step is None or item.step != run.step or run.seconds < 0:
                run.seconds += 1
            run.time_us = self._reading.start_us + run.seconds * _SECOND_US
        run.step = item.step
        return run.time_us

    def _run(self, name: str) -> _Run | None:
        found = self._runs.get(name)
        if found is None:
            if len(self._runs) >= MAX_RUNS:
                self._tally.refuse("", 0, "runs", f"more than {MAX_RUNS:,} runs: {name!r}", once="runs")
                return None
            found = self._runs[name] = _Run(self._run_id(name), name or self._reading.name)
        return found

    def _seated(self, run: _Run, item: Item) -> bool:
        """Whether the item's process is there or may start."""
        rank = None if isinstance(item, Evaluated) else item.rank
        if rank in run.processes:
            return True
        if self._processes >= MAX_PROCESSES:
            self._tally.refuse("", 0, "ranks", f"more than {MAX_PROCESSES:,} ranks of runs", once="ranks")
            return False
        self._processes += 1
        return True

    def _run_id(self, name: str) -> str:
        base = self._reading.run
        return base if not name or self._reading.given_run else safe_id(f"{slug(name)}-{_short(base, name)}")

    def _stored(self, name: str) -> str:
        known = self._names.get(name)
        if known is None:
            known, cut = metric_name(name)
            if cut:
                self._tally.note(f"a name was cut (over 600 bytes, or no UTF-8): {name[:60]!r}...")
            if len(self._names) < 100_000:
                self._names[name] = known
        return known

    # --- processes -----------------------------------------------------------------------------------------

    def _process(
        self, run: _Run, rank: int | None, step: int | None, time_us: int, role: str = "trainer"
    ) -> Generator[Told, None, _Process]:
        """The process of the rank; started, if this is its first item in the log."""
        found = run.processes.get(rank)
        if found is None:
            seed = hashlib.sha256(f"{self.log.telemetry} {run.id} {rank}".encode()).digest()
            found = run.processes[rank] = _Process(run, new_process_id(seed), rank, attempt=run.rewinds)
            if len(run.processes) > 1 and step is not None and run.highest - step > SAMPLES_MAX:
                self._tally.note(
                    f"{run.name}: rows of rank {rank} begin after others have reached step {run.highest:,}: "
                    "what comes so late is in no window (sort the rows by step)"
                )
            self._move(time_us)
            yield self._event(
                events.ProcessStarted(
                    run=run.id,
                    process=found.id,
                    seq=found.next_seq(),
                    time_us=time_us,
                    name=run.name[:MAX_NAME_CHARS],
                    rank=rank,
                    role=role,
                    config={"import": msgspec.to_builtins(self._reading)},
                    sdk=WORKER,
                )
            )
        found.alive = True
        return found

    def _rewind(self, process: _Process, step: int, time_us: int) -> Iterator[Told]:
        """The process goes back: it opens an attempt, or follows another rank into the newest one."""
        run = process.run
        process.last.clear()
        follows = process.attempt < run.rewinds and step == run.rewound_to
        if not follows and run.rewinds >= MAX_REWINDS:
            self._tally.note(
                f"{run.name}: steps go back more than {MAX_REWINDS} times; from there on they make no "
                f"attempts "
                "(sort the rows, or name another --step-column)"
            )
            return
        if not follows:
            run.rewinds += 1
            run.highest = run.rewound_to = step
        process.attempt = run.rewinds
        yield from self._frames([run])
        self._move(time_us)
        yield self._event(
            events.RunRewound(
                run=run.id, process=process.id, seq=process.next_seq(), time_us=time_us, step=step
            )
        )

    def _end(self) -> Iterator[Told]:
        for run in self._runs.values():
            for process in run.processes.values():
                if process.alive:
                    process.alive = False
                    yield self._event(
                        events.ProcessEnded(
                            run=run.id,
                            process=process.id,
                            seq=process.next_seq(),
                            time_us=run.time_us or 0,
                            counters={"samples_logged": process.logged},
                        )
                    )

    # --- evaluations ---------------------------------------------------------------------------------------

    def _evaluated(self, run: _Run, item: Evaluated, time_us: int) -> Iterator[Told]:
        yield from self._process(run, None, None, time_us, role="evaluator")
        number = self._evaluations
        self._evaluations += 1
        self._move(time_us)
        uri = item.uri or f"import:{run.id}"
        seed = f"{self.log.telemetry} {number} {run.id} {item.suite} {item.version} {item.step}"
        request = hashlib.sha256(seed.encode()).hexdigest()[:32]
        lease, count = f"{request}.1", 0
        for some in _chunks(item.items or iter(())):
            part = events.EvalItems(run=run.id, request=request, lease=lease, first=count, items=some)
            yield self._told("eval-items", events.encode(part))
            count += len(some)
        yield self._event(
            events.EvalAccepted(
                id=str(OutputId(self.log.other("evals"), 0, number, 0)),
                request=request,
                run=run.id,
                attempt=0,
                suite=events.SuiteRef(name=item.suite, target=f"{WORKER}:{item.suite}", version=item.version),
                checkpoint=events.Checkpoint(
                    digest=hashlib.sha256(f"{run.id} {uri} {item.step}".encode()).hexdigest(),
                    uri=uri,
                    format="unknown",
                    step=item.step,
                ),
                reason=WORKER,
                evaluator=WORKER,
                lease=lease,
                tries=1,
                requested_us=time_us,
                accepted_us=time_us,
                outcome=events.EvalOutcome(
                    status="done",
                    metrics=item.metrics,
                    items=count,
                    cost=events.Cost(seconds=item.seconds, device="unknown"),
                    settings=dict(item.settings),
                ),
            )
        )

    # --- records -------------------------------------------------------------------------------------------

    def _frames(self, runs: Iterable[_Run]) -> Iterator[Told]:
        for run in runs:
            for process in run.processes.values():
                if process.metric:
                    yield self._frame(process)

    def _frame(self, process: _Process) -> Told:
        count = len(process.metric)
        self._move(max(process.time_us))
        value = frames.encode(
            frames.Frame(
                run=process.run.id,
                process=process.id,
                rank=process.rank,
                seq=process.next_seq(),
                names=[self._stored(name) for name in process.names],
                metric=np.array(process.metric, np.int16),
                step=np.array(process.step, np.int64),
                time_us=np.array(process.time_us, np.int64),
                value=np.array(process.value, np.float64),
                weight=np.ones(count),
            )
        )
        process.metric, process.step, process.time_us, process.value = [], [], [], []
        process.names, process.names_bytes = {}, 0
        self._buffered -= count
        return self._told("telemetry", value)

    def _event(self, event: events.Event) -> Told:
        return self._told("telemetry", events.encode(event))

    def _told(self, topic: TopicName, value: bytes) -> Told:
        offset = self._offsets[topic]
        self._offsets[topic] = offset + 1
        self._hash.update(value)
        return Told(topic, Record(self.log.partition, offset, self._now() // 1000, value))

    def _move(self, time_us: int) -> None:
        self._now_us = time_us if self._now_us is None else max(self._now_us, time_us)

    def _now(self) -> int:
        return max(self._now_us or 0, 0)


def _chunks(items: Iterator[events.Item]) -> Iterator[list[events.Item]]:
    some: list[events.Item] = []
    size = 0
    for item in items:
        some.append(item)
        size += len(item.response) + len(item.expected) + 100
        if len(some) >= ITEMS_MAX or size > ITEMS_BYTES_MAX:
            yield some
            some, size = [], 0
    if some:
        yield some


def _short(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:8]


def _uuid(*texts: str) -> str:
    """A UUID that stands for the texts (version 8: made by a rule of one's own)."""
    digest = bytearray(hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
