"""No record stops the worker: what an array, a snapshot or Kafka cannot hold is refused and counted.

A record that raises out of ``step``, or leaves a state that cannot be dumped, is read again after every start
and stops the partition for ever.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from driftline import events, frames
from driftline.config import PipelineConfig, Rule, SuiteRef, Triggers, WindowSpec
from driftline.frames import Frame
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
FAR = 10**30
SUITES = [SuiteRef(name="s", target="x:y")]
CHECKPOINT = {"digest": "d", "uri": "/c", "step": 7, "epoch": 1.0}


def frame(**changes: Any) -> bytes:
    base: dict[str, Any] = {
        "run": "r",
        "process": "p",
        "rank": 0,
        "seq": 0,
        "names": ["loss"],
        "metric": np.array([0], np.int16),
        "step": np.array([1], np.int64),
        "time_us": np.array([1], np.int64),
        "value": np.array([1.0]),
        "weight": np.array([1.0]),
    }
    return frames.encode(Frame(**(base | changes)))


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps(
        {"kind": kind, "v": 1, "run": "r", "process": "p", "seq": 1, "time_us": 0} | fields
    ).encode()


def goes_on(log: Any, *values: bytes) -> None:
    """The records, then ordinary ones; time passes; the state can be saved and read."""
    for value in (frame(seq=0), *values, frame(process="q"), frame(process="q", seq=1, step=np.array([9]))):
        log.put(value)
    for second in range(1, 8):
        log.tick(second * SECOND)
    log.pipeline.load(log.pipeline.dump(log.state))
    log.put(event("process_ended", seq=9))
    log.put(event("process_ended", seq=9, process="q"))
    assert {row["metric"] for row in log.rows()} == {"loss"}


@pytest.fixture
def real(silent: Any) -> Any:
    """A log with the package's own detectors and triggers."""
    return silent.log(Pipeline())


@pytest.mark.parametrize(
    "value",
    [
        frame(seq=1, rank=2**40),
        frame(seq=1, rank=-(2**40)),
        frame(seq=FAR),
        frame(run="r" * 300_000),
        frame(process="p" * 300_000),
        frame(seq=1, names=["n" * 601]),
        frame(seq=1, names=["ü" * 301]),
        *[event("process_started", **{k: v}) for k in ("rank", "world_size", "seq") for v in (FAR, -FAR)],
        event("process_started", world_size=2**40),
        event("process_started", host="h" * 300_000),
        event("heartbeat", step=FAR),
        event("heartbeat", step=2**64 - 1),
        event("run_rewound", step=FAR),
        event("checkpoint_saved", checkpoint=CHECKPOINT | {"step": FAR}),
    ],
)
def test_what_no_array_holds_is_a_dead_letter(real: Any, value: bytes) -> None:
    goes_on(real, value)
    assert real.state.counters["bad_records"] == 1
    assert len(real.of("dead-letter")) == 1


@pytest.mark.parametrize("position", [2**62, 2**63 - 1, -(2**62), -(2**63) + 1])
@pytest.mark.parametrize("axis", ["step", "time_us"])
def test_positions_whose_windows_would_overflow_are_refused(real: Any, axis: str, position: int) -> None:
    """Wide panes reach where the end of a window has more than 64 bits."""
    real.configure(
        PipelineConfig(
            windows=[WindowSpec("time", 10 * SECOND, 10 * SECOND), WindowSpec("step", 2**21, 2**20)]
        )
    )
    goes_on(real, frame(seq=1, **{axis: np.array([position], np.int64)}))
    assert real.state.counters[f"refused_{axis.removesuffix('_us')}"] == 1


def test_a_heartbeat_from_nowhere_closes_nothing(real: Any) -> None:
    goes_on(real, event("heartbeat", step=2**63 - 1), event("heartbeat", seq=2, step=-(2**63)))
    assert "late_step" not in real.state.counters


@pytest.mark.parametrize("epoch", [1e308, -1e308, 1e300, 2.0**60])
def test_absurd_epochs_pick_once_and_can_be_saved(real: Any, epoch: float) -> None:
    real.configure(PipelineConfig(triggers=Triggers(epochs=0.1), suites=SUITES))
    goes_on(real, event("checkpoint_saved", checkpoint=CHECKPOINT | {"epoch": epoch}))
    assert len(real.of("evals")) == 1  # by its epoch, or as the last one


@pytest.mark.parametrize(
    "settings",
    [
        PipelineConfig(triggers=Triggers(steps=0), suites=SUITES),
        PipelineConfig(triggers=Triggers(epochs=0.0), suites=SUITES),
        PipelineConfig(triggers=Triggers(epochs=-1.0), suites=SUITES),
        PipelineConfig(triggers=Triggers(every_us=-1), suites=SUITES),
        PipelineConfig(future_skew_us=2**63 - 1),
        PipelineConfig(allowed_lateness_us=-1),
        PipelineConfig(allowed_lateness_us=FAR),
        PipelineConfig(idle_us=FAR),
        PipelineConfig(windows=[WindowSpec("step", FAR, FAR)]),
        PipelineConfig(windows=[WindowSpec("step", 2**62, 2**62)]),
        PipelineConfig(windows=[WindowSpec("step", -5, 5)]),
        PipelineConfig(rules=[Rule(name="r", metric="loss", op=">", bound=1.0, for_us=-1)]),
    ],
)
def test_a_configuration_that_would_stop_the_worker_is_refused(real: Any, settings: PipelineConfig) -> None:
    """The one before stays; a checkpoint afterwards is judged by that."""
    real.configure(settings)
    goes_on(real, event("checkpoint_saved", checkpoint=CHECKPOINT))
    refused = real.state.counters
    assert refused.get("bad_configs", 0) + refused.get("bad_records", 0) == 1
    assert real.state.config == PipelineConfig()


def test_a_metric_without_a_name_is_a_dead_letter(real: Any) -> None:
    schema = frames.SCHEMA.with_metadata({"format": "1", "run": "r", "process": "p", "rank": "0", "seq": "1"})
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int16()), pa.array([None, "loss"], pa.utf8()))
    columns = [names, pa.array([1, 1]), pa.array([0, 0]).view(pa.timestamp("us", "UTC"))]
    columns += [pa.array([1.0, 1.0]), pa.array([1.0, 1.0])]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    goes_on(real, sink.getvalue().to_pybytes())
    assert real.state.counters["bad_records"] == 1


def test_damaged_frames_crash_nothing(real: Any) -> None:
    """Arrow does not check offsets unless asked to: a damaged one ended the process by a signal."""
    random_bytes = random.Random(5)
    good = frame(names=["loss", "kl", "准确率"], metric=np.array([2], np.int16))
    for _ in range(1_500):
        damaged = bytearray(good)
        for _ in range(random_bytes.choice((1, 1, 3))):
            damaged[random_bytes.randrange(len(damaged))] = random_bytes.randrange(256)
        real.put(bytes(damaged))
    assert real.state.counters["bad_records"] > 100
    real.pipeline.load(real.pipeline.dump(real.state))


def test_an_integer_of_any_size_in_a_runs_own_config_is_fine() -> None:
    """Seeds have 64 bits and more: no reason to lose the start of a process."""
    started = events.decode(event("process_started", config={"seed": FAR}))
    assert isinstance(started, events.ProcessStarted)
    assert started.config == {"seed": FAR}
