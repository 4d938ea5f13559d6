"""Events -> rows of the tables, one dict per row. Pure.

Times are integer microseconds here; Arrow makes instants of them. A row whose integer does not fit its column
is a bad record, since one such value would otherwise spoil the whole batch.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from driftline import events
from driftline.errors import BadRecord
from driftline.records import OutputId
from driftline.storage.tables import TABLES, TIME, TableName

Row = dict[str, Any]


def check(table: TableName, row: Row) -> Row:
    """The row, if every integer fits its column. Raises BadRecord."""
    for name, bits in _BITS[table]:
        value = row.get(name)
        if value is not None and not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise BadRecord(f"{name} {value} does not fit {bits} bits")
    return row


def _bits(table: TableName) -> list[tuple[str, int]]:
    columns = TABLES[table].columns
    return [
        (column.name, column.type.bit_width)
        for column in columns
        if pa.types.is_integer(column.type) or column.type.equals(TIME)
    ]


_BITS = {name: _bits(name) for name in TABLES}


def process(event: events.FromProcess) -> list[tuple[TableName, Row]]:
    """Rows of an event that an SDK process sent; a heartbeat has none of its own (it is in the log)."""
    row: Row = {"run": event.run, "process": event.process, "seq": event.seq, "time": event.time_us}
    if isinstance(event, events.ProcessStarted):
        plain = (
            "name",
            "parent",
            "rank",
            "world_size",
            "local_rank",
            "role",
            "host",
            "pid",
            "restart_hint",
            "sdk",
        )
        row |= {name: getattr(event, name) for name in plain}
        row |= {"event": "started", "config": _json(event.config)}
    elif isinstance(event, events.ProcessEnded):
        row |= {"event": "ended", "outcome": event.outcome, "counters": _json(event.counters)}
    elif isinstance(event, events.RunRewound):
        row |= {"event": "rewound", "step": event.step}
    elif isinstance(event, events.CheckpointSaved):
        return [("checkpoints", row | {"rank": event.rank} | _checkpoint(event.checkpoint))]
    elif isinstance(event, events.MetricDefined):
        said = {name: getattr(event, name) for name in ("metric", "goal", "unit", "reduce", "description")}
        return [("metrics", row | said)]
    else:
        return []
    return [("processes", row)]


def _checkpoint(saved: events.Checkpoint) -> Row:
    return {
        "step": saved.step,
        "epoch": saved.epoch,
        "digest": saved.digest,
        "uri": saved.uri,
        "format": saved.format,
        "files": saved.count or len(saved.files),
        "bytes": saved.size or sum(file.size for file in saved.files),
        "manifest": _json(saved.files),
    }


def accepted(event: events.EvalAccepted) -> list[tuple[TableName, Row]]:
    """One row per metric; one without metric where the evaluation gave none."""
    outcome, saved = event.outcome, event.checkpoint
    row: Row = {
        "id": event.id,
        "request": event.request,
        "run": event.run,
        "attempt": event.attempt,
        "suite": event.suite.name,
        "suite_version": event.suite.version,
        "step": saved.step,
        "epoch": saved.epoch,
        "status": outcome.status,
        "reason": outcome.reason or None,
        "trigger": event.reason,
        "checkpoint": saved.digest,
        "uri": saved.uri,
        "weights_digest": outcome.weights_digest or None,
        "suite_digest": outcome.suite_digest or None,
        "evaluator": event.evaluator,
        "lease": event.lease,
        "tries": event.tries,
        "requested": event.requested_us,
        "accepted": event.accepted_us,
        "items": outcome.items,
        "seconds": outcome.cost.seconds,
        "wait_seconds": outcome.cost.wait_seconds,
        "device": outcome.cost.device,
        "tokens": outcome.cost.tokens,
        "peak_memory_bytes": outcome.cost.peak_memory_bytes,
        "settings": _json(outcome.settings),
    }
    return [("evals", row | _metric(metric)) for metric in outcome.metrics] or [("evals", row)]


def _metric(metric: events.Metric) -> Row:
    row: Row = {name: _float(getattr(metric, name)) for name in ("value", "stderr", "low", "high")}
    return row | {"metric": metric.name, "count": metric.count, "unit": metric.unit or None}


def fact(event: events.Fact, output: OutputId) -> Row:
    plain = (
        "id",
        "run",
        "attempt",
        "what",
        "text",
        "metric",
        "process",
        "rank",
        "axis",
        "start",
        "end",
        "count",
    )
    row: Row = {name: getattr(event, name) for name in plain}
    return row | {"time": event.time_us, "detail": _json(event.detail)} | output._asdict()


def alert(event: events.Alert, output: OutputId) -> Row:
    plain = ("id", "alert", "run", "attempt", "rule", "detector", "severity", "state", "metric", "rank")
    row: Row = {name: getattr(event, name) for name in (*plain, "step", "last_step", "explanation")}
    row |= {name: _float(getattr(event, name)) for name in ("value", "expected", "score")}
    row |= {"time": event.time_us, "opened": event.opened_us, "resolved": event.resolved_us}
    return row | {"evidence": _json(event.evidence)} | output._asdict()


def items(event: events.EvalItems, fresh: list[int]) -> list[Row]:
    """Rows of the items at the positions ``fresh``."""
    rows = []
    for position in fresh:
        item = event.items[position - event.first]
        row: Row = {"run": event.run, "request": event.request, "lease": event.lease, "position": position}
        row |= {"item": item.item, "status": item.status, "score": _float(item.score)}
        row |= {"response": item.response, "response_length": item.response_length, "expected": item.expected}
        rows.append(row)
    return rows


def _float(value: events.Number | None) -> float | None:
    return None if value is None else events.to_float(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
