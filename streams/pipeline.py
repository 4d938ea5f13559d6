"""The pure pipeline: telemetry records in, windows, facts, alerts, evaluation requests and dead letters out.

Implements ``Core``. What a record does is decided record by record; frames between two events are applied
together, which gives the same (``arrivals``). So however the log is cut into batches, and wherever the state
is dumped and loaded, the outputs are the same bytes. No clock, no randomness, no order of sets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from driftline import events, frames
from driftline import records as wire
from driftline.config import PipelineConfig
from driftline.errors import BadRecord, SettingsError
from driftline.records import Framed, Output, Record
from driftline.streams import arrivals, definitions, lifecycle, memory, processes, snapshot, ticks
from driftline.streams.arrivals import Arrival
from driftline.streams.attempts import Attempt, PartitionState, Run
from driftline.streams.closing import Moment
from driftline.streams.outputs import Outbox
from driftline.streams.views import Detection, TriggerState
from driftline.topics import TopicName

MAX_REASON = 2_000


class DetectionFactory(Protocol):
    def __call__(self, config: PipelineConfig, dumped: object | None = None) -> Detection: ...


class TriggersFactory(Protocol):
    def __call__(self, config: PipelineConfig, dumped: object | None = None) -> TriggerState: ...


class Pipeline:
    """The pipeline as a ``Core[PartitionState]``; the factories default to the package's own."""

    source: TopicName = "telemetry"

    def __init__(
        self, detection: DetectionFactory | None = None, triggers: TriggersFactory | None = None
    ) -> None:
        if detection is None:
            from driftline.streams.detectors import Detectors

            detection = Detectors
        if triggers is None:
            from driftline.streams.triggers import RunTriggers

            triggers = RunTriggers
        self._make = _Make(detection, triggers)

    def fresh(self, topic_uuid: str, partition: int) -> PartitionState:
        """State before the first record of the partition."""
        return PartitionState(topic_uuid, partition)

    def prime(self, state: PartitionState, record: Record) -> None:
        """The first configuration of the log holds from its beginning."""
        assert not state.runs, "primed before the first record"
        event = wire.decode(record.value)
        if isinstance(event, events.ConfigChanged):
            with contextlib.suppress(SettingsError):  # refused, and told, when the record comes by
                outbox = Outbox(state.topic_uuid, state.partition)
                lifecycle.apply_config(state, outbox, record.offset, event, self._make)

    def step(self, state: PartitionState, records: Sequence[Record | Framed]) -> list[Output]:
        """Applies records in offset order, changing ``state``; returns outputs in the order of the log.

        A decoded frame (``Framed``) gives the same as its bytes would, without the work of decoding them.
        """
        outbox = Outbox(state.topic_uuid, state.partition)
        waiting = _Waiting(state, outbox)
        for record in records:
            state.count("records")
            if isinstance(record, Framed):
                self._frame(state, outbox, waiting, record, record.frame)
                continue
            try:
                content = wire.decode(record.value)
            except BadRecord as error:
                state.count("bad_records")
                outbox.dead_letter(self.source, record, str(error))
                continue
            if isinstance(content, frames.Frame):
                self._frame(state, outbox, waiting, record, content)
            elif isinstance(content, events.Unknown):
                state.count("unknown")
                if content.seq >= 0:
                    waiting.apply()
                    self._of_process(state, outbox, record.offset, record.time_ms * 1000, content)
            else:
                waiting.apply()
                self._event(state, outbox, record, content)
        waiting.apply()
        return outbox.sorted()

    def gap(self, state: PartitionState, start: int, end: int) -> list[Output]:
        """The log no longer has offsets [start, end): a fact for every live run (or one without a run)."""
        outbox = Outbox(state.topic_uuid, state.partition)
        state.count("gaps")
        state.count("records_lost", end - start)
        text = f"the log no longer has offsets {start} to {end - 1}: {end - start} records are lost"
        names = [name for name, run in state.runs.items() if not run.ended] or [""]
        for name in names:
            run = state.runs.get(name)
            attempt, now_us = (run.current, run.now_us) if run else (0, state.last_tick_us or 0)
            outbox.fact(start, name, attempt, "gap", now_us, text, start=start, end=end, count=end - start)
        return outbox.sorted()

    def config_digest(self, state: PartitionState) -> str | None:
        """Digest of the configuration that the log last set."""
        return state.config_digest

    def notices(self, state: PartitionState) -> list[str]:
        """A configuration that was refused."""
        return [] if state.config_refused is None else [state.config_refused]

    def dump(self, state: PartitionState) -> bytes:
        """The state as bytes."""
        return snapshot.dump(state)

    def load(self, data: bytes) -> PartitionState:
        """Reads what :meth:`dump` wrote. Raises BadData."""
        return snapshot.load(data, self._make)

    # --- frames --------------------------------------------------------------------------------------------

    def _frame(
        self,
        state: PartitionState,
        outbox: Outbox,
        waiting: _Waiting,
        record: Record | Framed,
        frame: frames.Frame,
    ) -> None:
        """Admits a frame; it waits for others of its attempt unless it brings in something new."""
        state.count("frames")
        size = len(frame.metric)
        newest_us = None
        if size and state.forgotten_us is not None:  # only then does it matter
            newest_us = int(np.maximum.reduce(frame.time_us))
        if self._known_before(state, frame.run, frame.process, frame.seq, newest_us):
            if newest_us is not None and not memory.repeated(state, frame.run, frame.process, frame.seq):
                memory.note_late(state, frame.run, 0, _times(frame))
            return
        record_us = processes.record_time(state, record.time_ms * 1000)
        run = processes.run_of(state, outbox, record.offset, frame.run, record_us, self._make)
        if run is None:
            return
        process = run.processes.get(frame.process)
        if process is None:
            waiting.apply()
            process = processes.first_frame(state, run, frame)
            if process is None:
                state.count("records_of_refused_processes")
                return
            if process.attempt:  # else tables take it to be of the first one, as it is
                outbox.fact(
                    record.offset,
                    run.name,
                    process.attempt,
                    "process_joined",
                    run.now_us,
                    f"process {process.name} (rank {process.rank}) joined: its start is not in the log",
                    process=process.name,
                    rank=process.rank,
                )
        if process.seq + 1 == frame.seq and not (process.idle or process.ended or process.parked):
            process.seq = frame.seq
            process.last_seen_us = run.last_us = run.now_us
        else:
            waiting.apply()
            moment = Moment(state, outbox, record.offset, run, run.now_us)
            if not processes.counts(moment, process, frame.seq):
                return
        if not size:
            return
        state.count("samples", size)
        if process.parked:  # its attempt is gone
            memory.note_late(state, run.name, process.attempt, _times(frame))
            return
        attempt = run.attempts[process.attempt]
        key = (frame.rank, *frame.names)
        found, new = process.maps.get(key), None
        if found is None:
            found, new = processes.map_names(state.config, attempt, process, frame, key)
        newest = int(frame.step[-1])
        if newest != frames.NO_STEP:
            process.last_step = newest
        waiting.add(run, attempt, Arrival(record.offset, run.now_us, record_us, process, frame, found, new))

    def _known_before(
        self, state: PartitionState, run: str, process: str, seq: int, time_us: int | None
    ) -> bool:
        """Whether a record is a duplicate of an expired run's, or of a process that is forgotten."""
        if memory.repeated(state, run, process, seq):
            state.count("duplicates")
            return True
        if time_us is not None and memory.may_have_counted(state, run, process, time_us):
            state.count("records_of_forgotten_processes")
            return True
        return False

    # --- events --------------------------------------------------------------------------------------------

    def _event(self, state: PartitionState, outbox: Outbox, record: Record, event: events.Event) -> None:
        time_us = record.time_ms * 1000
        if isinstance(event, events.Tick):
            state.append_time = event.append_time
            self._tick(state, outbox, record.offset, time_us)
        elif isinstance(event, events.ConfigChanged):
            try:
                lifecycle.apply_config(state, outbox, record.offset, event, self._make)
            except SettingsError as error:
                state.count("bad_configs")
                state.config_refused = f"configuration {event.digest} is refused: {error}"[:MAX_REASON]
                outbox.dead_letter(self.source, record, f"configuration not usable: {error}")
        elif isinstance(
            event,
            events.ProcessStarted
            | events.ProcessEnded
            | events.Heartbeat
            | events.RunRewound
            | events.CheckpointSaved
            | events.MetricDefined,
        ):
            self._of_process(state, outbox, record.offset, time_us, event)
        else:
            state.count("other_events")

    def _of_process(
        self,
        state: PartitionState,
        outbox: Outbox,
        offset: int,
        time_us: int,
        event: events.FromProcess | events.Unknown,
    ) -> None:
        said_us = None if isinstance(event, events.Unknown) else event.time_us
        if self._known_before(state, event.run, event.process, event.seq, said_us):
            return
        record_us = processes.record_time(state, time_us)
        run = processes.run_of(state, outbox, offset, event.run, record_us, self._make)
        if run is None:
            return
        moment = Moment(state, outbox, offset, run, run.now_us)
        if isinstance(event, events.ProcessStarted):
            lifecycle.started(moment, event, self._make)
            return
        process = run.processes.get(event.process)
        if process is None:
            if processes.full(state, run):
                state.count("records_of_refused_processes")
                return
            process = processes.join(run, run.attempt, event.process)
        if not processes.counts(moment, process, event.seq):
            return
        if isinstance(event, events.MetricDefined):
            definitions.defined(moment, event, process)
            return
        if process.parked:  # its attempt is gone: only its checkpoints mean something
            if isinstance(event, events.CheckpointSaved):
                lifecycle.checkpoint(moment, event, process)
            return
        if isinstance(event, events.ProcessEnded):
            lifecycle.ended(moment, process, state.config)
        elif isinstance(event, events.Heartbeat):
            lifecycle.heartbeat(moment, event, process)
        elif isinstance(event, events.RunRewound):
            lifecycle.rewound(moment, event, process, self._make)
        elif isinstance(event, events.CheckpointSaved):
            lifecycle.checkpoint(moment, event, process)

    def _tick(self, state: PartitionState, outbox: Outbox, offset: int, time_us: int) -> None:
        """Time moves on for every run of the partition."""
        last = state.last_tick_us
        state.last_tick_us = time_us if last is None else max(last, time_us)
        hole_us = time_us - last if last is not None and time_us - last > state.config.hole_us else 0
        for name in list(state.runs):
            run = state.runs[name]
            run.now_us = max(run.now_us, time_us)
            moment = Moment(state, outbox, offset, run, run.now_us)
            ticks.tick_run(moment, state.config, hole_us)
            if ticks.expire(moment, state.config):
                del state.runs[name]
                state.count("runs_expired")
                state.runs_refused_told = False
        memory.tell_late(state, outbox, offset, state.last_tick_us)
        memory.forget(state, state.last_tick_us)


def _times(frame: frames.Frame) -> tuple[int, int, int]:
    """How many samples, their first and last time."""
    return len(frame.metric), int(frame.time_us.min()), int(frame.time_us.max())


class _Make:
    """The factories by name."""

    def __init__(self, detection: DetectionFactory, triggers: TriggersFactory) -> None:
        self._detection = detection
        self._triggers = triggers

    def detection(self, config: PipelineConfig, dumped: object | None = None) -> Detection:
        return self._detection(config, dumped)

    def triggers(self, config: PipelineConfig, dumped: object | None = None) -> TriggerState:
        return self._triggers(config, dumped)


class _Waiting:
    """Admitted frames, by attempt, in the order of the log."""

    def __init__(self, state: PartitionState, outbox: Outbox) -> None:
        self._state = state
        self._outbox = outbox
        self._frames: dict[tuple[str, int], tuple[Run, Attempt, list[Arrival]]] = {}

    def add(self, run: Run, attempt: Attempt, arrival: Arrival) -> None:
        key = (run.name, attempt.number)
        entry = self._frames.get(key)
        if entry is None:
            entry = self._frames[key] = (run, attempt, [])
        entry[2].append(arrival)

    def apply(self) -> None:
        for run, attempt, some in self._frames.values():
            moment = Moment(self._state, self._outbox, some[0].offset, run, some[0].now_us)
            arrivals.take(moment, attempt, some, self._state.config.future_skew_us)
        self._frames = {}
