"""After the loop, when nothing writes any more: compares everything with everything.

- The log of each partition goes through the pure pipeline in one go (in big pieces, which gives the same),
  the log of ``evals`` through the pure scheduler. What readers keep of windows, facts, alerts, requests,
  leases and acceptances must be just that, byte for byte.
- The naive oracle works out the windows of all runs of the SDK, and of the first ``naive_records`` records of
  each partition, which are mostly the raw ranks'.
- What the ranks were told the broker has must be in the log, with the values they sent; every table must have
  just the rows of what the topics hold, each once.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from kafka.errors import KafkaError

from driftline import admin, events, frames, records, window_rows
from driftline.admin import ensure_topics
from driftline.config import PipelineConfig
from driftline.errors import BadRecord
from driftline.records import Output, OutputId, Record
from driftline.streams.core import beginning, is_configuration
from driftline.streams.pipeline import Pipeline
from driftline.streams.scheduler import Scheduler
from driftline.topics import partition_of

from . import logs, ranks, trainer
from .logs import Outputs, Source, as_records
from .plan import PARTITIONS, Plan, Report
from .tables import Tables

OF_TELEMETRY = ("windows", "facts", "alerts")
SHOWN = 20
"""Problems of one kind that are written out."""


def judge(plan: Plan, report: Report, *, taken: dict[str, int], said: list[dict[str, Any]]) -> None:
    """Fills in the report."""
    case = Judge(plan, report, taken, said)
    case.follow_the_log()
    case.follow_evals()
    case.read_outputs()
    case.compare()


class Judge:
    def __init__(self, plan: Plan, report: Report, taken: dict[str, int], said: list[dict[str, Any]]) -> None:
        self._plan, self._report = plan, report
        self._kafka, self._topics = plan.kafka, plan.kafka.topics
        self._uuids = uuids = ensure_topics(plan.kafka)
        self._telemetry, self._evals = uuids[self._topics["telemetry"]], uuids[self._topics["evals"]]
        self._outputs = Outputs()
        self._tables = Tables(plan.folder / "tables", report)
        self._seqs: dict[str, int] = {}
        """Newest seq by process, of all that the log has."""
        self._samples: dict[str, int] = {}
        """Samples by process."""
        self._taken, self._said = taken, said
        self._naive = Naive(plan, report)
        self._checkpoints = 0
        self._asked: set[tuple[str, str]] = set()
        """(request, run)"""
        self._accepted: dict[tuple[str, str], list[events.EvalAccepted]] = {}

    # --- the log and what follows from it -----------------------------------------------------------------

    def follow_the_log(self) -> None:
        """Pure pipeline and naive oracle over each partition of ``telemetry``; samples and log compared."""
        for partition in range(PARTITIONS):
            core, state = Pipeline(), None
            waiting: list[Record] = []
            for chunk in logs.read(self._kafka, self._topics["telemetry"], partition):
                some = as_records(chunk)
                self._plan.say(f"partition {partition}: comparing from offset {some[0].offset}")
                waiting += some
                if state is None:
                    if not any(is_configuration(record.value) for record in waiting):
                        continue
                    state = beginning(core, self._telemetry, partition, waiting)
                self._naive.take(waiting)
                for output in core.step(state, waiting):
                    self._follows(partition, output)
                self._tables.compare_log(self._telemetry, partition, self._new(partition, waiting))
                waiting = []
            assert not waiting, "a log without a configuration"
            self._naive.end_of(partition)

    def _follows(self, partition: int, output: Output) -> None:
        """An output of the pure pipeline."""
        if output.topic == "dead-letter":
            self._problem(f"the core makes a dead letter of {output.id}")
            return
        self._outputs.want(output.topic, 0 if output.topic == "evals" else partition, output.id, output.value)
        self._naive.follows(output)
        if output.topic in OF_TELEMETRY:
            self._tables.want_output(output)
        if output.topic == "evals":
            event = events.decode(output.value)
            assert isinstance(event, events.EvalRequested)
            self._asked.add((event.request, event.run))

    def _new(self, partition: int, some: list[Record]) -> Iterable[tuple[Record, Any, bool]]:
        """Each record decoded, and whether it counts (was not sent before)."""
        for record in some:
            content = records.decode(record.value)
            new = True
            if isinstance(content, frames.Frame | events.FromProcess):
                name = f"{content.run}/{content.process}"
                new = content.seq > self._seqs.get(name, -1)
                self._in_order(name, content, new)
                if isinstance(content, events.CheckpointSaved):
                    self._checkpoints += new
            elif isinstance(content, events.EvalAccepted):
                id_ = OutputId.parse(content.id)
                new = self._outputs.take("telemetry", partition, id_, record.value or b"")
                if new:
                    self._accepted.setdefault((content.request, content.run), []).append(content)
            yield record, content, new

    def _in_order(self, name: str, content: Any, new: bool) -> None:
        if not new:
            return
        before = self._seqs.get(name)
        if before is not None and content.seq != before + 1:
            self._problem(f"{name}: seq {content.seq} comes after {before} in the log")
        self._seqs[name] = content.seq
        if isinstance(content, frames.Frame):
            self._report.frames += 1
            self._samples[content.process] = self._samples.get(content.process, 0) + len(content.metric)
            rank = ranks.BY_PROCESS.get(content.process)
            if rank is not None:
                same = ranks.values_of(rank.number, content.seq).tobytes() == content.value.tobytes()
                if not same or (content.step != ranks.steps_of(content.seq)).any():
                    self._problem(f"{name} seq {content.seq}: not what the rank sent")

    def follow_evals(self) -> None:
        """The pure scheduler over ``evals``."""
        log = [r for chunk in logs.read(self._kafka, self._topics["evals"], 0) for r in as_records(chunk)]
        core = Scheduler()
        state = beginning(core, self._evals, 0, log)
        for output in core.step(state, log):
            if output.topic == "dead-letter":
                self._problem(f"the scheduler makes a dead letter of {output.id}")
                continue
            at = partition_of(output.run, PARTITIONS) if output.topic == "telemetry" else 0
            self._outputs.want(output.topic, at, output.id, output.value)
        for record in log:
            event = events.decode(record.value or b"")
            if isinstance(event, events.EvalRequested):
                self._outputs.take("evals", 0, OutputId.parse(event.id), record.value or b"")

    def read_outputs(self) -> None:
        """Windows, facts, alerts and leases as they stand in the topics; items into the tables' wants."""
        for topic in OF_TELEMETRY:
            for partition in range(PARTITIONS):
                for chunk in logs.read(self._kafka, self._topics[topic], partition):
                    for record in chunk:
                        self._outputs.take(topic, partition, _id(topic, record.value), record.value)
        for chunk in logs.read(self._kafka, self._topics["assignments"], 0):
            for record in chunk:
                event: Any = events.decode(record.value)
                self._outputs.take("assignments", 0, OutputId.parse(event.id), record.value)
        for partition in range(PARTITIONS):
            for chunk in logs.read(self._kafka, self._topics["eval-items"], partition):
                for record in chunk:
                    self._tables.want_items(self._uuids[self._topics["eval-items"]], record)
        dead = sum(len(chunk) for chunk in logs.read(self._kafka, self._topics["dead-letter"], 0))
        if dead:
            self._problem(f"{dead} dead letters")

    # --- the verdict --------------------------------------------------------------------------------------

    def compare(self) -> None:
        report, covered = self._report, self._covered()
        report.problems += self._outputs.problems(covered)[:SHOWN]
        report.contradictions = self._outputs.contradictions
        report.repeated = self._outputs.repeated
        report.outputs = sum(map(len, self._outputs.kept.values()))
        self._what_ranks_say()
        self._evaluations()
        kept = {
            (p.topic, p.partition): {(t.offset, t.ordinal) for t in some}
            for p, some in self._outputs.kept.items()
        }
        self._tables.compare_outputs(kept)
        self._tables.compare_items(self._accepted)
        self._tables.compare_rest()
        report.stored = self._tables.count("samples")

    def _covered(self) -> dict[Source, int]:
        """Up to where workers and scheduler had saved when they ended, after all outputs were delivered."""
        client = admin.connect(self._kafka)
        found: dict[Source, int] = {}
        try:
            for role, topic, uuid in (
                ("streams", "telemetry", self._telemetry),
                ("scheduler", "evals", self._evals),
            ):
                for offsets in client.list_group_offsets({f"{self._kafka.prefix}{role}": None}).values():
                    for tp, at in offsets.items():
                        if tp.topic == self._kafka.prefix + topic:
                            found[Source(uuid, tp.partition)] = at.offset
        except KafkaError as error:
            self._problem(f"no offsets of the groups: {error!r}")
        finally:
            client.close()
        return found

    def _what_ranks_say(self) -> None:
        """What they were told the broker has is in the log, and nothing else is."""
        told = {process: count * ranks.SAMPLES for process, count in self._taken.items()}
        for one in self._said:
            counters = one["counters"]
            told[one["process"]] = counters["samples_delivered"]
            if counters["samples_logged"] != counters["samples_delivered"]:
                self._problem(f"{one['run']} rank {one['rank']}: not all was delivered: {counters}")
            self._tables.compare_trainer(one, trainer)
        self._report.accepted = sum(told.values())
        for process, samples in told.items():
            missing = samples - self._samples.get(process, 0)
            if missing > 0:
                self._report.lost += missing
                self._problem(f"{process}: the broker took {missing} samples that the log does not have")
            elif missing < 0:
                self._problem(f"{process}: the log has {-missing} samples more than the broker took")

    def _evaluations(self) -> None:
        """One accepted result per checkpoint and suite, none forgotten."""
        self._report.evaluations = len(self._asked)
        if self._checkpoints != len(self._asked):
            self._problem(
                f"{self._checkpoints} checkpoints were saved, {len(self._asked)} evaluations asked for"
            )
        for asked in sorted(self._asked):
            found = self._accepted.get(asked, [])
            if len(found) != 1 or found[0].outcome.status != "done":
                states = [event.outcome.status for event in found]
                self._problem(f"evaluation {asked}: accepted results {states}")
        if strange := set(self._accepted) - self._asked:
            self._problem(f"results that nobody asked for: {sorted(strange)[:3]}")

    def _problem(self, text: str) -> None:
        if len(self._report.problems) < 200:
            self._report.problems.append(text)


class Naive:
    """Feeds the slow oracle with as much as it can work on."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan, self._report = plan, report
        self._oracle = _load_oracle()
        self._config: PipelineConfig | None = None
        self._start: list[Record] = []
        self._ticks_and_sdk: list[Record] = []
        self._outputs: list[Output] = []
        self._bound = 0

    def take(self, some: list[Record]) -> None:
        """Records of the partition's log in order."""
        for record in some:
            if self._config is None and is_configuration(record.value):
                event = events.decode(record.value or b"")
                assert isinstance(event, events.ConfigChanged)
                self._config = msgspec.json.decode(event.body, type=PipelineConfig)
            if len(self._start) < self._plan.naive_records:
                self._start.append(record)
                self._bound = record.offset
            if not _is_raw(record):
                self._ticks_and_sdk.append(record)

    def follows(self, output: Output) -> None:
        """An output of the pure pipeline, of records that were taken before."""
        if output.topic == "windows" and (output.run not in ranks.RUNS or output.id.offset <= self._bound):
            self._outputs.append(output)

    def end_of(self, partition: int) -> None:
        """Compares, and forgets the partition."""
        sdk = [output for output in self._outputs if output.run not in ranks.RUNS]
        begun = [output for output in self._outputs if output.id.offset <= self._bound]
        for log, outputs, what in ((self._ticks_and_sdk, sdk, "SDK"), (self._start, begun, "beginning")):
            wanted = self._oracle.run(log, self._config)
            self._report.naive_windows += len(wanted)
            wrong = self._oracle.differences(wanted, outputs)
            self._report.problems += [f"naive oracle, {what} of {partition}: {one}" for one in wrong[:SHOWN]]
        self._start, self._ticks_and_sdk, self._outputs, self._bound = [], [], [], 0


def _is_raw(record: Record) -> bool:
    """Whether it is a raw rank's. (Ticks, configurations and what the SDK sent are not.)"""
    value = record.value or b""
    return any(run.encode() in value for run in ranks.RUNS)


def _id(topic: str, value: bytes) -> OutputId:
    if topic == "windows":
        return window_rows.decode(value)[0]
    event: Any = events.decode(value)
    if isinstance(event, events.Unknown):
        raise BadRecord(f"unknown event on {topic}")
    return OutputId.parse(event.id)


def _load_oracle() -> ModuleType:
    name, path = "chaos_naive", Path(__file__).parents[2] / "naive.py"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
