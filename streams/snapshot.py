"""A partition's state as bytes and back: MessagePack, arrays as raw bytes, checked by a digest, versioned.

Layout: ``MAGIC``, 32 bytes of SHA-256 of the rest, then a map with ``version``. Caches are left out: they
come back by themselves. Reading runs no code from the data; anything broken is BadData.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from driftline.config import PipelineConfig
from driftline.errors import BadData, DriftlineError
from driftline.streams import derived
from driftline.streams.attempts import (
    AXES,
    Attempt,
    AxisState,
    Definition,
    PartitionState,
    Process,
    Remembered,
    Run,
)
from driftline.streams.participants import MissingNotes
from driftline.streams.views import Factories

MAGIC = b"DLPS"
VERSION = 2
_ARRAY = 1
_PROCESS = (
    "name",
    "attempt",
    "number",
    "rank",
    "role",
    "host",
    "seq",
    "last_seen_us",
    "last_step",
    "ended",
    "idle",
    "started_us",
    "heard_us",
    "parked",
    "stray",
    "child",
)


def dump(state: PartitionState) -> bytes:
    """The state as bytes."""
    plain = {
        "version": VERSION,
        "topic_uuid": state.topic_uuid,
        "partition": state.partition,
        "config": state.config_body,
        "digest": state.config_digest,
        "config_refused": state.config_refused,
        "last_tick_us": state.last_tick_us,
        "append_time": state.append_time,
        "runs_refused_told": state.runs_refused_told,
        "remembered": state.remembered,
        "forgotten_us": state.forgotten_us,
        "late_untold": [[*key, *told] for key, told in state.late_untold.items()],
        "counters": dict(sorted(state.counters.items())),
        "runs": [_dump_run(run) for run in state.runs.values()],
    }
    body = msgspec.msgpack.encode(plain, enc_hook=_encode_array)
    return MAGIC + hashlib.sha256(body).digest() + body


def load(data: bytes, make: Factories) -> PartitionState:
    """Reads what :func:`dump` wrote.

    Raises:
        BadData: not a snapshot, damaged, or of a newer version.
    """
    head, digest, body = data[:4], data[4:36], data[36:]
    if head != MAGIC or hashlib.sha256(body).digest() != digest:
        raise BadData("snapshot of the pipeline's state is damaged: delete it, the log will be read again")
    try:
        plain = msgspec.msgpack.decode(body, ext_hook=_decode_array)
        if plain["version"] != VERSION:
            which = "newer" if plain["version"] > VERSION else "older"
            raise BadData(
                f"snapshot has version {plain['version']}, this build reads {VERSION}: use the {which} "
                "build, or delete it (the log will be read again)"
            )
        return _load(plain, make)
    except (msgspec.DecodeError, KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise BadData(f"snapshot of the pipeline's state is not readable: {error!r}") from error


def _load(plain: dict[str, Any], make: Factories) -> PartitionState:
    body: bytes = plain["config"]
    config = msgspec.json.decode(body, type=PipelineConfig) if body else PipelineConfig()
    state = PartitionState(plain["topic_uuid"], plain["partition"], config, plain["digest"], body)
    state.last_tick_us, state.config_refused = plain["last_tick_us"], plain["config_refused"]
    state.append_time = plain["append_time"]
    state.runs_refused_told = plain["runs_refused_told"]
    state.remembered = msgspec.convert(plain["remembered"], dict[str, Remembered])
    state.forgotten_us = plain["forgotten_us"]
    state.late_untold = {(run, attempt): told for run, attempt, *told in plain["late_untold"]}
    state.counters = plain["counters"]
    try:
        for some in plain["runs"]:
            run = _load_run(some, config, make)
            state.runs[run.name] = run
    except DriftlineError as error:
        raise BadData(f"snapshot of the pipeline's state is not usable: {error}") from error
    return state


def _dump_run(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "now_us": run.now_us,
        "last_us": run.last_us,
        "current": run.current,
        "ended": run.ended,
        "title": run.title,
        "defined": run.defined,
        "triggers": run.triggers.dump(),
        "processes": [[*(getattr(p, name) for name in _PROCESS), p.ahead] for p in run.processes.values()],
        "attempts": [_dump_attempt(attempt) for attempt in run.attempts.values()],
    }


def _load_run(plain: dict[str, Any], config: PipelineConfig, make: Factories) -> Run:
    run = Run(plain["name"], plain["now_us"], plain["last_us"], make.triggers(config, plain["triggers"]))
    run.current, run.ended, run.title = plain["current"], plain["ended"], plain["title"]
    run.defined = msgspec.convert(plain["defined"], dict[str, Definition])
    for fields in plain["processes"]:
        process = Process(**dict(zip((*_PROCESS, "ahead"), fields, strict=True)))
        run.processes[process.name] = process
    for some in plain["attempts"]:
        attempt = _load_attempt(some, config, make)
        run.attempts[attempt.number] = attempt
    return run


_ATTEMPT = (
    "world_size",
    "world_role",
    "hints",
    "taken_over",
    "rewound_to",
    "processes",
    "left",
    "finished",
    "grace_over",
)


def _dump_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "started_us": attempt.started_us,
        **{name: getattr(attempt, name) for name in _ATTEMPT},
        "seats": attempt.seats,
        "parked": sorted(attempt.parked),
        "refused_told": attempt.refused_told,
        "crowded_told": attempt.crowded_told,
        "faults_told": attempt.faults_told,
        "series": attempt.series.dump(),
        "missing": attempt.missing.dump(),
        "detection": attempt.detection.dump(),
        "late": [[*key, *told] for key, told in attempt.late.items()],
        "non_finite": [list(key) for key in attempt.seen_non_finite],
        "axes": {name: _dump_axis(attempt.axes[name]) for name in AXES},
    }


def _load_attempt(plain: dict[str, Any], config: PipelineConfig, make: Factories) -> Attempt:
    detection = make.detection(config, plain["detection"])
    attempt = Attempt(plain["number"], plain["started_us"], detection, config)
    for name in (*_ATTEMPT, "refused_told", "crowded_told", "faults_told"):
        setattr(attempt, name, plain[name])
    for seat, process in plain["seats"].items():
        attempt.sit(seat, process)
    attempt.parked = set(plain["parked"])
    attempt.series.restore(plain["series"])
    attempt.missing = MissingNotes()
    attempt.missing.restore(plain["missing"])
    attempt.late = {(axis, metric): told for axis, metric, *told in plain["late"]}
    attempt.seen_non_finite = dict.fromkeys(tuple(key) for key in plain["non_finite"])
    for name in AXES:
        _load_axis(attempt, attempt.axes[name], plain["axes"][name])
    return attempt


def _dump_axis(axis: AxisState) -> dict[str, Any]:
    return {
        "watermark": axis.watermark.dump(),
        "open": axis.open.dump(),
        "log": axis.log.dump(),
        "closed": axis.closed,
        "out": axis.out,
        "derived": derived.dump(axis.memories),
        "held": axis.held.dump(),
        "so_far": [growing.dump() for growing in axis.so_far.values()],
    }


def _load_axis(attempt: Attempt, axis: AxisState, plain: dict[str, Any]) -> None:
    axis.watermark.restore(plain["watermark"])
    axis.open.restore(plain["open"])
    axis.log.restore(plain["log"])
    axis.closed, axis.out = plain["closed"], plain["out"]
    axis.memories = derived.restore(plain["derived"])
    axis.held.restore(plain["held"], attempt.extras, attempt.series)
    for growing, dumped in zip(axis.so_far.values(), plain["so_far"], strict=True):
        growing.restore(dumped)


def _encode_array(value: object) -> object:
    if isinstance(value, np.ndarray):
        head = msgspec.msgpack.encode([value.dtype.str, list(value.shape)])
        return msgspec.msgpack.Ext(_ARRAY, bytes([len(head)]) + head + np.ascontiguousarray(value).tobytes())
    raise NotImplementedError(f"state holds a {type(value)}, which has no plain form")


def _decode_array(code: int, data: memoryview) -> np.ndarray:
    if code != _ARRAY:
        raise ValueError(f"unknown extension {code}")
    size = data[0]
    kind, shape = msgspec.msgpack.decode(data[1 : 1 + size])
    return np.frombuffer(data[1 + size :], np.dtype(kind)).reshape(shape).copy()
