"""Everything on the topics that is not a metric frame or a window: typed events as JSON objects.

Each event is ``{"kind": ..., "v": 1, ...}``. Formats only grow: a new field has a default, no field changes
its type, ``v`` rises only for what an older reader must not read. Unknown kinds and newer versions decode to
:class:`Unknown`. Times are integer microseconds since 1970, UTC.

JSON has no NaN: a float that may be non-finite is a :data:`Number` ("NaN", "Infinity", "-Infinity" as text);
convert with :func:`number` and :func:`to_float`.

Who writes what (topic):

    telemetry    ProcessStarted, ProcessEnded, Heartbeat, CheckpointSaved, RunRewound,
                 MetricDefined   (the SDK)
                 Tick, ConfigChanged (stream workers), EvalAccepted (scheduler)
                 ImportSegment   (driftline import, in logs of its own that are in no broker)
    facts        Fact            (pipeline)
    alerts       Alert           (pipeline)
    evals        EvalRequested (pipeline), EvaluatorPresent, EvaluatorGone, EvalProgress, EvalResult
                 (evaluators), Tick, ConfigChanged (scheduler's worker)
    assignments  Lease, RequestClosed (scheduler)
    eval-items   EvalItems       (evaluators)
    dead-letter  DeadLetter      (any reader)
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from driftline.errors import BadRecord

VERSION = 1
MANIFEST_BYTES_MAX = 32 * 1024
"""About 500 files."""

Number: TypeAlias = float | Literal["NaN", "Infinity", "-Infinity"]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""JSON's integers have no bound; what is kept in arrays, tables and snapshots has one."""
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Id = Annotated[str, msgspec.Meta(max_length=256)]
"""Names of runs, processes, evaluators and the like: they are repeated in every output."""
Severity = Literal["info", "warn", "error", "page"]
Goal = Literal["max", "min"]
"""Which way a metric gets better."""
Reduce = Literal["mean", "sum", "max", "min", "last"]
"""How the values of several ranks and samples at one step become one number for people."""


class Unknown(NamedTuple):
    """A well-formed record of a kind or version that this build does not know: skip it and count it.

    If it names the process that sent it, as all that the SDK sends does, its place in that process's sequence
    is known, so that it is not taken for a lost record.
    """

    kind: str
    version: int | str
    run: str = ""
    process: str = ""
    seq: int = -1


def number(value: float) -> Number:
    """A float as it travels in JSON.

    >>> number(float("nan")), number(1.5)
    ('NaN', 1.5)
    """
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_float(value: Number) -> float:
    """Reads what :func:`number` wrote."""
    return float(value)


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base of all events."""


class _FromProcess(_Event, frozen=True, kw_only=True):
    """Sent by an SDK process; (run, process, seq) is shared with its frames and identifies the record."""

    run: Id
    process: Id
    seq: Int64
    time_us: Int64


# --- telemetry -------------------------------------------------------------------------------------------


class ProcessStarted(_FromProcess, frozen=True, kw_only=True, tag="process_started"):
    """The first record of an SDK process."""

    name: str = ""
    """Free-text name of the run, as typed; never part of a path."""
    parent: str | None = None
    """Process that this one was forked from."""
    rank: Int32 | None = None
    world_size: Int32 | None = None
    local_rank: Int32 | None = None
    role: Id = "trainer"
    host: Id = ""
    pid: Int64 = 0
    restart_hint: Int64 | None = None
    """The launcher's restart count, if it told one. Ranks may disagree."""
    config: dict[str, Any] = {}
    """What the user passed to ``init(config=...)``, plain JSON values."""
    sdk: str = ""
    """Version of driftline in the process."""


class ProcessEnded(_FromProcess, frozen=True, kw_only=True, tag="process_ended"):
    """The last record of a process that ended in order."""

    outcome: Literal["finished", "exception", "signal"] = "finished"
    counters: dict[str, Int64] = {}


class Heartbeat(_FromProcess, frozen=True, kw_only=True, tag="heartbeat"):
    """A process that had nothing to log says that it lives, and where it is."""

    step: Int64 | None = None
    counters: dict[str, Int64] = {}


class RunRewound(_FromProcess, frozen=True, kw_only=True, tag="run_rewound"):
    """``run.rewind(step)``: the run goes on from ``step`` as a new attempt."""

    step: Int64


class MetricDefined(_FromProcess, frozen=True, kw_only=True, tag="metric_defined"):
    """``run.define(...)``: what a metric means. What was not said is None, and stays as it was said before.

    Each rank may say it. Of contradictory ones the newest in the log counts, field by field.
    """

    metric: Annotated[str, msgspec.Meta(max_length=600)]
    goal: Goal | None = None
    unit: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    reduce: Reduce | None = None
    description: Annotated[str, msgspec.Meta(max_length=1000)] | None = None


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """One file of a checkpoint: path relative to the checkpoint, size in bytes."""

    path: str
    size: Size


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A saved checkpoint: where, what, and a digest that samples the content of its files."""

    digest: str
    uri: str
    """Absolute path (or file:// URI) of the folder or file."""
    format: str = "safetensors"
    step: Int64 | None = None
    epoch: float | None = None
    files: list[FileEntry] = []
    """Left out (with ``count`` and ``size`` in its place) where it would be longer than
    :data:`MANIFEST_BYTES_MAX`: a checkpoint travels in five kinds of events."""
    count: Size | msgspec.UnsetType = msgspec.UNSET
    """Number of files, where ``files`` is left out."""
    size: Size | msgspec.UnsetType = msgspec.UNSET
    """Bytes of all files, where ``files`` is left out."""
    sampling: str | msgspec.UnsetType = msgspec.UNSET
    """How ``digest`` was made (``checkpoint_files.SAMPLING``): a reader that knows the way can check it."""
    copy: str | msgspec.UnsetType = msgspec.UNSET
    """Absolute path of links to the same files that stay when the trainer removes ``uri``; for a while."""

    def __post_init__(self) -> None:
        if sum(file.size for file in self.files) >= 2**63:
            raise ValueError("the files of a checkpoint have more than 2^63 bytes")


class CheckpointSaved(_FromProcess, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint is complete on disk."""

    checkpoint: Checkpoint
    rank: Int32 | None = None


class Tick(_Event, frozen=True, kw_only=True, tag="tick"):
    """Time as an event: once a second from the worker that is assigned the partition."""

    worker: str
    time_us: Int64
    append_time: bool = True
    """The broker stamps records (``LogAppendTime``). False where it leaves that to the writers' clocks."""


class ConfigChanged(_Event, frozen=True, kw_only=True, tag="config_changed"):
    """From here on this configuration holds for the partition. ``body`` is the config as JSON values."""

    worker: str
    time_us: Int64
    digest: str
    body: msgspec.Raw


class ImportSegment(_Event, frozen=True, kw_only=True, tag="import_segment"):
    """A log that ``driftline import`` made of files: what it covers, before its records and after them.

    It is told before which parts of the source, as far as which limit, the records up to the end of the
    segment
    come from; so an import that was killed is gone on with as it was meant, though the source may have grown.
    """

    time_us: Int64
    state: Literal["begun", "done"]
    limits: dict[str, Int64]
    """Per part of the source how far it is read, in the reader's own unit."""
    whole: bool = False
    """What has no end before its limit was taken as it is."""
    reading: dict[str, Any] = {}
    """How the source is read: format, columns, time zone, and so on."""
    config: str = ""
    """The pipeline's configuration in this segment, as JSON text."""
    digest: str = ""
    """Begun: hash of the source as far as the limits; done: of all records of the log before this one."""
    refused: dict[str, Int64] = {}
    """Done: what was refused so far, by reason."""


# --- evaluation ------------------------------------------------------------------------------------------


class SuiteRef(msgspec.Struct, frozen=True, kw_only=True):
    """A suite as the YAML names it. ``target`` is an entry point name or ``module:attribute``."""

    name: str
    target: str
    version: str = "1"
    """Raise it when code or data of the suite changed: a checkpoint is evaluated once per version."""
    settings: dict[str, Any] = {}


class EvalRequested(_Event, frozen=True, kw_only=True, tag="eval_requested"):
    """A trigger picked a checkpoint: evaluate it with this suite."""

    id: str
    """Output id."""
    request: Id
    """Hash of checkpoint, suite and settings, without the run (``request_id``)."""
    run: Id
    attempt: Int64
    suite: SuiteRef
    checkpoint: Checkpoint
    reason: str
    """Which trigger: "epochs", "steps", "seconds", "start", "end", ..."""
    time_us: Int64
    """The run's "now" when it was asked for."""


class EvaluatorPresent(_Event, frozen=True, kw_only=True, tag="evaluator_present"):
    """An evaluator says, every few seconds, that it lives; ``lease`` is what it works on."""

    evaluator: Id
    time_us: Int64
    host: str = ""
    device: str = "cpu"
    suites: list[str] = []
    """Names of suites it can run; empty means any."""
    lease: Id | None = None


class EvaluatorGone(_Event, frozen=True, kw_only=True, tag="evaluator_gone"):
    """An evaluator stops in order."""

    evaluator: Id
    time_us: Int64


class EvalProgress(_Event, frozen=True, kw_only=True, tag="eval_progress"):
    """Renews a lease."""

    evaluator: Id
    lease: Id
    request: Id
    time_us: Int64
    done: Int64
    total: Int64


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One number of an evaluation with how sure it is."""

    name: str
    value: Number
    stderr: Number | None = None
    low: Number | None = None
    """Lower end of the 95 % interval."""
    high: Number | None = None
    count: Int64 = 0
    """Items (or tokens) it rests on."""
    unit: str = ""


EvalStatus = Literal["done", "failed", "incomplete", "gone", "unreadable"]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation cost."""

    seconds: float = 0.0
    wait_seconds: float = 0.0
    """Waiting for the checkpoint to be complete."""
    device: str = "cpu"
    tokens: Size = 0
    peak_memory_bytes: Int64 | None = None


class EvalOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluator found out; ``status`` other than "done" carries a reason and no metrics."""

    status: EvalStatus
    reason: str = ""
    metrics: list[Metric] = []
    items: Int64 = 0
    """Items that went to ``eval-items`` before this result."""
    weights_digest: str = ""
    """Full content hash of the weights as loaded."""
    suite_digest: str = ""
    """Content hash of the suite's items, as loaded."""
    cost: Cost = Cost()
    settings: dict[str, Any] = {}
    """Backend, dtype, batch size, library versions, self-check: what a comparison needs to be fair."""


class EvalResult(_Event, frozen=True, kw_only=True, tag="eval_result"):
    """An evaluator's result, before it is accepted."""

    evaluator: Id
    lease: Id
    request: Id
    time_us: Int64
    outcome: EvalOutcome


class EvalAccepted(_Event, frozen=True, kw_only=True, tag="eval_accepted"):
    """The one result of a request, copied to the log of each run that asked."""

    id: str
    request: Id
    run: Id
    attempt: Int64
    suite: SuiteRef
    checkpoint: Checkpoint
    reason: str
    evaluator: Id
    lease: Id
    tries: Int64
    requested_us: Int64
    accepted_us: Int64
    outcome: EvalOutcome


class Lease(_Event, frozen=True, kw_only=True, tag="lease"):
    """This evaluator works on this request until ``expires_us`` unless it reports progress."""

    id: str
    lease: Id
    request: Id
    evaluator: Id
    tried: Int64
    """1 for the first try."""
    run: Id
    suite: SuiteRef
    checkpoint: Checkpoint
    expires_us: Int64


class RequestClosed(_Event, frozen=True, kw_only=True, tag="request_closed"):
    """No more work on this request: an evaluator that still works on it may stop."""

    id: str
    request: Id
    lease: Id
    """The lease whose result was accepted."""
    status: EvalStatus


ItemStatus = Literal[
    "correct",
    "wrong",
    "no_answer",
    "truncated",
    "gold_unparseable",
    "grader_timeout",
    "grader_error",
    "scored",  # no verdict by itself: a likelihood or a reward
]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one evaluated item."""

    item: str
    """The item's id within the suite."""
    status: ItemStatus
    score: Number | None = None
    response: str = ""
    response_length: Int64 | None = None
    """In tokens."""
    expected: str = ""


class EvalItems(_Event, frozen=True, kw_only=True, tag="eval_items"):
    """Some items of one lease; ``first`` is the position of the first of them."""

    run: Id
    request: Id
    lease: Id
    first: Int64
    items: list[Item]


# --- what the pipeline says ------------------------------------------------------------------------------

FactKind = Literal[
    "run_started",
    "run_ended",
    "attempt_started",
    "world_changed",
    "process_joined",
    "process_idle",
    "process_left",
    "late",
    "future",
    "missing",
    "gap",
    "hole",
    "refused",
    "config",
    "note",
]


class Fact(_Event, frozen=True, kw_only=True, tag="fact"):
    """Something that the pipeline concluded about a run; fields that do not apply are left out."""

    id: str
    run: Id
    attempt: Int64
    what: FactKind
    time_us: Int64
    text: str
    """One sentence for people."""
    metric: str | None = None
    process: Id | None = None
    rank: Int32 | None = None
    axis: Literal["time", "step"] | None = None
    start: Int64 | None = None
    end: Int64 | None = None
    count: Int64 | None = None
    detail: dict[str, Any] = {}


AlertState = Literal["open", "update", "resolved"]


class Alert(_Event, frozen=True, kw_only=True, tag="alert"):
    """A change of one alert; ``alert`` stays the same from opening to resolution."""

    id: str
    alert: str
    run: Id
    attempt: Int64
    rule: str
    """Name of the rule or detector settings, unique in the configuration."""
    detector: str
    severity: Severity
    state: AlertState
    time_us: Int64
    opened_us: Int64
    resolved_us: Int64 | None = None
    metric: str | None = None
    rank: Int32 | None = None
    step: Int64 | None = None
    """Step at which it began."""
    last_step: Int64 | None = None
    """Last step at which it was seen."""
    value: Number | None = None
    expected: Number | None = None
    """What the detector thought normal."""
    score: Number | None = None
    explanation: str
    """One sentence for people: what, where, how far from normal."""
    evidence: dict[str, Any] = {}


class DeadLetter(_Event, frozen=True, kw_only=True, tag="dead_letter"):
    """A record that could not be used: where it lies and why.

    It is a function of that record, and may be sent more than once; (reader, topic, topic_uuid, partition,
    offset) tells copies.
    """

    topic: str
    partition: Int64
    offset: Int64
    reason: str
    reader: str
    time_us: Int64
    value: bytes = b""
    """The record's first 64 KiB (base64 in JSON)."""
    size: Int64 = 0
    topic_uuid: str | msgspec.UnsetType = msgspec.UNSET
    """UUID of the topic; left out where the reader does not say it."""


Event: TypeAlias = (
    ProcessStarted
    | ProcessEnded
    | Heartbeat
    | RunRewound
    | CheckpointSaved
    | MetricDefined
    | Tick
    | ConfigChanged
    | ImportSegment
    | EvalRequested
    | EvaluatorPresent
    | EvaluatorGone
    | EvalProgress
    | EvalResult
    | EvalAccepted
    | Lease
    | RequestClosed
    | EvalItems
    | Fact
    | Alert
    | DeadLetter
)
FromProcess: TypeAlias = (
    ProcessStarted | ProcessEnded | Heartbeat | RunRewound | CheckpointSaved | MetricDefined
)


class _Head(msgspec.Struct):
    kind: str
    v: int = VERSION


class _Sender(msgspec.Struct):
    run: Id
    process: Id
    seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


_LONG = re.compile(rb"[0-9]{20}")
_HEAD = msgspec.json.Decoder(_Head)
_SENDER = msgspec.json.Decoder(_Sender)
_ENCODER = msgspec.json.Encoder(order="deterministic")
_KINDS: dict[str, type[_Event]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()}


def encode(event: Event) -> bytes:
    """An event as JSON bytes, equal for equal events."""
    body = _ENCODER.encode(event)
    return body[:1] + b'"v":%d,' % VERSION + body[1:]


def decode(value: bytes) -> Event | Unknown:
    """The event in ``value``, or :class:`Unknown`.

    Raises:
        BadRecord: not JSON, no kind, or fields missing or of the wrong type.
    """
    try:
        head = _HEAD.decode(value)
        if head.kind not in _DECODERS or head.v > VERSION:
            return _unknown(head, value)
        event: Event = _DECODERS[head.kind].decode(value)  # type: ignore[assignment]
        if _LONG.search(value) and not isinstance(event, ProcessStarted):
            _check_integers(msgspec.json.decode(value))
        return event
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"not an event: {error}") from error


def _unknown(head: _Head, value: bytes) -> Unknown:
    try:
        sender = _SENDER.decode(value)
    except msgspec.ValidationError:
        return Unknown(head.kind, head.v)
    return Unknown(head.kind, head.v, sender.run, sender.process, sender.seq)


def _check_integers(plain: object) -> None:
    """Free-form settings end up in snapshots, which hold 64 bits. (A run's own config is only passed on.)"""
    if isinstance(plain, dict):
        plain = list(plain.values())
    if isinstance(plain, list):
        for part in plain:
            _check_integers(part)
    elif isinstance(plain, int) and not -(2**63) <= plain < 2**64:
        raise BadRecord("an integer has more than 64 bits")


def with_bounded_manifest(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as it may travel: without the list of its files where that is too long.

    >>> long = Checkpoint(digest="d", uri="/c", files=[FileEntry(f"{n:0100}", 2) for n in range(1000)])
    >>> short = with_bounded_manifest(long); short.files, short.count, short.size
    ([], 1000, 2000)
    """
    files = checkpoint.files
    if sum(len(entry.path.encode(errors="replace")) + 24 for entry in files) <= MANIFEST_BYTES_MAX:
        return checkpoint
    size = sum(entry.size for entry in files)
    return msgspec.structs.replace(checkpoint, files=[], count=len(files), size=size)


def kind_of(event: Event) -> str:
    """The tag of an event, e.g. "checkpoint_saved"."""
    return str(event.__struct_config__.tag)
