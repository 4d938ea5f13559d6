"""The one module that knows the tables: their columns, units, order of rows, and which topic feeds them.

Each table is a Delta Lake table of its own folder under the storage root. Times are UTC instants with
microseconds, durations are seconds, sizes are bytes, steps are counts. Every column may be null, since
formats only grow. ``topic_uuid, partition, offset`` say where a row comes from: in ``samples``, ``log``,
``checkpoints``, ``evals``, ``processes``, ``metrics`` and ``eval_items`` the record that carried it, in
``windows``, ``facts`` and ``alerts`` (with ``ordinal``) the telemetry record that caused it, which is their
output id.

No float column has Parquet statistics: those leave NaN out, readers trust them, and a search for NaN would
find nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from driftline import window_rows
from driftline.topics import TopicName

TableName = Literal[
    "samples",
    "log",
    "windows",
    "alerts",
    "facts",
    "checkpoints",
    "evals",
    "eval_items",
    "processes",
    "metrics",
    "gaps",
]
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)

FEEDS: dict[TopicName, tuple[TableName, ...]] = {
    "telemetry": ("samples", "log", "checkpoints", "evals", "processes", "metrics"),
    "windows": ("windows",),
    "facts": ("facts",),
    "alerts": ("alerts",),
    "eval-items": ("eval_items",),
}
"""What one record of a topic can give rows to. No table has two topics, and ``gaps`` none."""
ROWS_OF: dict[str, TableName] = {
    "frame": "samples",
    "checkpoint_saved": "checkpoints",
    "process_started": "processes",
    "process_ended": "processes",
    "run_rewound": "processes",
    "metric_defined": "metrics",
}
"""The table beside ``log`` that a numbered record of a process has rows in, by its kind; others have none."""
OUTPUT_TABLES: tuple[TableName, ...] = ("windows", "facts", "alerts")
"""What the stream workers put out, each row with its output id."""

TIME = pa.timestamp("us", "UTC")
_TEXT, _INT, _LONG, _FLOAT, _BYTES = pa.utf8(), pa.int32(), pa.int64(), pa.float64(), pa.binary()


class Column(NamedTuple):
    """A column: name, Arrow type, what it means with its unit."""

    name: str
    type: pa.DataType
    says: str
    later: bool = False
    """Tables of earlier versions lack it; it is added to them, null in their rows."""


class Table(NamedTuple):
    """A table: what a row is, its columns, and the columns by which each commit's rows are sorted."""

    name: TableName
    row: str
    columns: tuple[Column, ...]
    order: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type, metadata={"comment": c.says}) for c in self.columns])


_RUN = Column("run", _TEXT, "id of the run")
_ATTEMPT = Column("attempt", _INT, "restart of the run, from 0")
_PROCESS = Column("process", _TEXT, "id of the SDK process")
_RANK = Column("rank", _INT, "rank of the process, null if it has none")
_UUID = Column("topic_uuid", _TEXT, "UUID of the topic that the position speaks of")
_PARTITION = Column("partition", _INT, "partition of that topic")
_OFFSET = Column("offset", _LONG, "offset in that partition")
_AT = (_UUID, _PARTITION, _OFFSET)
_CAUSE = (*_AT, Column("ordinal", _INT, "which output of that telemetry record, from 0"))

_SAMPLES = Table(
    "samples",
    "one value of one metric, as the training process logged it",
    (
        _RUN,
        _PROCESS,
        _RANK,
        Column("metric", _TEXT, "name, exactly as logged"),
        Column("step", _LONG, "training step, null if the sample belongs to none"),
        Column("time", TIME, "when it was logged, by the clock of its host"),
        Column("value", _FLOAT, "NaN and infinities are data"),
        Column("weight", _FLOAT, "weight in means over ranks, 1 if none was given"),
        *_AT,
        Column("ordinal", _INT, "place in its frame, from 0"),
    ),
    ("run", "metric", "rank", "step"),
)

_LOG = Table(
    "log",
    "one record of the telemetry topic, duplicates and undecodable ones too",
    (
        *_AT,
        Column("received", TIME, "the record's time, set by the broker (milliseconds)"),
        Column("kind", _TEXT, '"frame", the kind of the event, or null if undecodable'),
        Column("outcome", _TEXT, '"stored", "duplicate", "unknown" or "undecodable"'),
        Column("reason", _TEXT, "why it is undecodable"),
        _RUN,
        _PROCESS,
        Column("seq", _LONG, "the process's own count of its records"),
        _RANK,
        Column("samples", _INT, "samples in the frame, null for events"),
        Column("counters", _TEXT, "the SDK's counters, a JSON object"),
        Column("payload", _BYTES, "the record's bytes, null for frames (their content is in samples)"),
        Column("oldest", TIME, "smallest time of the frame's samples, by which they expire", later=True),
        Column("newest", TIME, "largest time of the frame's samples", later=True),
    ),
    ("partition", "offset"),
)

_WINDOW_SAYS = {
    "axis": '"time" or "step"',
    "start": "inclusive: microseconds since 1970 (UTC) or steps",
    "end": "exclusive",
    "group": 'empty for the whole run, else "rank=3", "host=a", ...',
    "metric": "name, exactly as logged",
    "revision": "0 live, higher from a repair; views take the highest",
    "count": "samples, non-finite ones too; 0 in a repair's revision: there is no such window any more",
    "weight": "sum of the weights of the finite samples",
    "sum": "sum of the finite samples, without weights; null in rows of versions that did not have it",
    "nan": "samples that are NaN",
    "inf": "samples that are infinite",
    "mean": "weighted, finite samples",
    "std": "weighted, population",
    "min": "smallest finite value",
    "max": "largest finite value",
    "p50": "median of the finite samples, unweighted (from a histogram)",
    "p95": "95th percentile, likewise",
    "p99": "99th percentile, likewise",
    "min_rank": "rank that gave the smallest value",
    "max_rank": "rank that gave the largest value",
    "first": "in log order, finite or not",
    "last": "in log order, finite or not",
    "quantiles": "quantiles asked for in the settings, by name",
    "present": "processes that gave a sample",
    "expected": "processes that should have",
    "extra": "values of custom aggregates, by name",
    "span": '"run" for the whole run so far, null for windows of a fixed size',
}

_WINDOWS = Table(
    "windows",
    "one closed window of one metric",
    (
        _RUN,
        _ATTEMPT,
        *(
            Column(field.name, field.type, _WINDOW_SAYS[field.name], later=field.name in window_rows.LATER)
            for field in window_rows.SCHEMA
            if field.name not in ("run", "attempt")
        ),
        *_CAUSE,
    ),
    ("run", "axis", "metric", "group", "start"),
)

_ALERTS = Table(
    "alerts",
    "one change of one alert: opened, updated, resolved",
    (
        Column("id", _TEXT, "output id of the change"),
        Column("alert", _TEXT, "the alert, the same from opening to resolution"),
        _RUN,
        _ATTEMPT,
        Column("rule", _TEXT, "rule or detector settings, by name"),
        Column("detector", _TEXT, "kind of the detector"),
        Column("severity", _TEXT, '"info", "warn", "error" or "page"'),
        Column("state", _TEXT, '"open", "update" or "resolved"'),
        Column("time", TIME, 'the run\'s "now" at the change'),
        Column("opened", TIME, "when it opened"),
        Column("resolved", TIME, "when it was resolved, null while it is open"),
        Column("metric", _TEXT, "metric it speaks of, if one"),
        Column("rank", _INT, "rank it speaks of, if one"),
        Column("step", _LONG, "step at which it began"),
        Column("last_step", _LONG, "last step at which it was seen"),
        Column("value", _FLOAT, "what was measured, in the metric's unit"),
        Column("expected", _FLOAT, "what the detector thought normal"),
        Column("score", _FLOAT, "how far from normal, in the detector's own measure"),
        Column("explanation", _TEXT, "one sentence"),
        Column("evidence", _TEXT, "JSON object"),
        *_CAUSE,
    ),
    ("run", "alert", "offset", "ordinal"),
)

_FACTS = Table(
    "facts",
    "one thing that the pipeline concluded about a run",
    (
        Column("id", _TEXT, "output id"),
        _RUN,
        _ATTEMPT,
        Column("what", _TEXT, "kind of the fact, e.g. attempt_started, late, missing, gap"),
        Column("time", TIME, 'the run\'s "now"'),
        Column("text", _TEXT, "one sentence"),
        Column("metric", _TEXT, "if it speaks of one"),
        Column("process", _TEXT, "if it speaks of one"),
        Column("rank", _INT, "if it speaks of one"),
        Column("axis", _TEXT, '"time" or "step", the unit of start and end'),
        Column("start", _LONG, "inclusive: microseconds since 1970 (UTC) or steps"),
        Column("end", _LONG, "exclusive"),
        Column("count", _LONG, "how many"),
        Column("detail", _TEXT, "JSON object"),
        *_CAUSE,
    ),
    ("run", "offset", "ordinal"),
)

_CHECKPOINTS = Table(
    "checkpoints",
    "one checkpoint that was saved",
    (
        _RUN,
        _PROCESS,
        _RANK,
        Column("seq", _LONG, "the process's own count of its records"),
        Column("time", TIME, "when the save was complete"),
        Column("step", _LONG, "training step"),
        Column("epoch", _FLOAT, "epoch, may be a fraction"),
        Column("digest", _TEXT, "names the content (sampled)"),
        Column("uri", _TEXT, "where it was saved"),
        Column("format", _TEXT, 'e.g. "safetensors"'),
        Column("files", _INT, "number of files"),
        Column("bytes", _LONG, "size of all files"),
        Column("manifest", _TEXT, "JSON list of [path, bytes]; empty where it was too long to travel"),
        *_AT,
    ),
    ("run", "step"),
)

_EVALS = Table(
    "evals",
    "one metric of one accepted evaluation; a failed evaluation is one row without metric",
    (
        Column("id", _TEXT, "output id of the acceptance"),
        Column("request", _TEXT, "id of the evaluation: checkpoint, suite and settings"),
        _RUN,
        _ATTEMPT,
        Column("suite", _TEXT, "name of the suite"),
        Column("suite_version", _TEXT, "its version"),
        Column("metric", _TEXT, "null if the evaluation gave none"),
        Column("value", _FLOAT, "in the metric's unit"),
        Column("stderr", _FLOAT, "standard error"),
        Column("low", _FLOAT, "lower end of the 95 % interval"),
        Column("high", _FLOAT, "upper end of the 95 % interval"),
        Column("count", _LONG, "items (or tokens) that the value rests on"),
        Column("unit", _TEXT, "unit of the value"),
        Column("step", _LONG, "training step of the checkpoint"),
        Column("epoch", _FLOAT, "epoch of the checkpoint"),
        Column("status", _TEXT, '"done", "failed", "incomplete", "gone" or "unreadable"'),
        Column("reason", _TEXT, "why it is not done"),
        Column("trigger", _TEXT, 'why it was asked for: "epochs", "steps", "seconds", "start", "end"'),
        Column("checkpoint", _TEXT, "digest of the checkpoint (sampled)"),
        Column("uri", _TEXT, "where the checkpoint was saved"),
        Column("weights_digest", _TEXT, "hash of the weights as loaded"),
        Column("suite_digest", _TEXT, "hash of the suite's items as loaded"),
        Column("evaluator", _TEXT, "who did it"),
        Column("lease", _TEXT, "the lease whose result was accepted; names its eval_items"),
        Column("tries", _INT, "leases it took"),
        Column("requested", TIME, "when it was asked for"),
        Column("accepted", TIME, "when the result was accepted"),
        Column("items", _LONG, "items in eval_items"),
        Column("seconds", _FLOAT, "duration of the evaluation"),
        Column("wait_seconds", _FLOAT, "of which waiting for the checkpoint to be whole"),
        Column("device", _TEXT, "device it ran on"),
        Column("tokens", _LONG, "tokens generated or scored"),
        Column("peak_memory_bytes", _LONG, "null if not known"),
        Column("settings", _TEXT, "JSON object: backend, dtype, batch size, versions"),
        *_AT,
    ),
    ("run", "suite", "metric", "step"),
)

_EVAL_ITEMS = Table(
    "eval_items",
    "the outcome of one evaluated item; items of leases whose result was not accepted too",
    (
        _RUN,
        Column("request", _TEXT, "id of the evaluation"),
        Column("lease", _TEXT, "lease under which it was evaluated"),
        Column("position", _LONG, "place of the item in its evaluation, from 0"),
        Column("item", _TEXT, "the item's id within the suite"),
        Column("status", _TEXT, "correct, wrong, no_answer, truncated, ..., or scored (no verdict)"),
        Column("score", _FLOAT, "reward, likelihood or 1/0"),
        Column("response", _TEXT, "what the model answered"),
        Column("response_length", _LONG, "in tokens"),
        Column("expected", _TEXT, "the right answer"),
        *_AT,
    ),
    ("run", "request", "lease", "position"),
)

_PROCESSES = Table(
    "processes",
    "one event of an SDK process: it started, ended, or rewound its run",
    (
        _RUN,
        _PROCESS,
        Column("event", _TEXT, '"started", "ended" or "rewound"'),
        Column("time", TIME, "by the clock of its host"),
        Column("seq", _LONG, "the process's own count of its records"),
        Column("name", _TEXT, "started: free-text name of the run, as typed"),
        Column("parent", _TEXT, "started: process that it was forked from"),
        _RANK,
        Column("world_size", _INT, "started: number of ranks"),
        Column("local_rank", _INT, "started: rank on its host"),
        Column("role", _TEXT, "started: trainer, rollout, evaluator, node"),
        Column("host", _TEXT, "started: name of its host"),
        Column("pid", _LONG, "started: process id on its host"),
        Column("restart_hint", _INT, "started: the launcher's restart count, if told"),
        Column("config", _TEXT, "started: JSON object given to init"),
        Column("sdk", _TEXT, "started: version of driftline"),
        Column("step", _LONG, "rewound: step to go on from"),
        Column("outcome", _TEXT, 'ended: "finished", "exception" or "signal"'),
        Column("counters", _TEXT, "ended: the SDK's counters, a JSON object"),
        *_AT,
    ),
    ("run", "offset"),
)

_METRICS = Table(
    "metrics",
    "one declaration of a metric by a process (run.define); what it does not say is null",
    (
        _RUN,
        _PROCESS,
        Column("seq", _LONG, "the process's own count of its records"),
        Column("time", TIME, "by the clock of its host"),
        Column("metric", _TEXT, "name, exactly as logged"),
        Column("goal", _TEXT, '"max" or "min", which way it gets better'),
        Column("unit", _TEXT, "as declared"),
        Column("reduce", _TEXT, 'how values at one step become one: "mean", "sum", "max", "min" or "last"'),
        Column("description", _TEXT, "a sentence for people"),
        *_AT,
    ),
    ("run", "metric", "offset"),
)

_GAPS = Table(
    "gaps",
    "offsets of one partition that its broker had deleted before the sink could store their rows",
    (
        Column("topic", _TEXT, "short name of the topic"),
        _UUID,
        _PARTITION,
        Column("first", _LONG, "first offset that is missing"),
        Column("last", _LONG, "last offset that is missing"),
        Column("tables", _TEXT, "tables that lack the rows, with spaces between"),
        Column("found", TIME, "when the sink noticed, by the clock of its host"),
    ),
    ("topic", "partition", "first"),
)

TABLES: dict[TableName, Table] = {
    table.name: table
    for table in (
        _SAMPLES,
        _LOG,
        _WINDOWS,
        _ALERTS,
        _FACTS,
        _CHECKPOINTS,
        _EVALS,
        _EVAL_ITEMS,
        _PROCESSES,
        _METRICS,
        _GAPS,
    )
}


def sorts_well(column: Column) -> bool:
    """Whether Parquet statistics of the column are safe and useful: never for floats, maps and bytes."""
    return bool(
        pa.types.is_integer(column.type) or pa.types.is_string(column.type) or column.type.equals(TIME)
    )
