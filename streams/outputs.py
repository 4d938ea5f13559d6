"""Collects what one ``step`` puts out, with ids made from the input position, in the order of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from driftline import events, window_rows
from driftline.records import Output, OutputId, Record
from driftline.streams.extras import Row
from driftline.streams.kernels.merge import popcount
from driftline.streams.participants import Presence, Series, expected
from driftline.streams.views import AlertChange
from driftline.streams.windowing import STANDARD_QUANTILES, WindowCells
from driftline.topics import TopicName

MAX_KEPT_BYTES = 64 * 1024
MAX_OUTPUT_BYTES = 400 * 1024
"""Aimed at for one output; Kafka takes 1 MiB, and rows with long names weigh more than others."""
READER = "pipeline"
_OF_ANY_LENGTH = ("run", "axis", "group", "metric", "quantiles", "span", "extra")
_FIXED_BYTES = 8 * (len(window_rows.SCHEMA) - len(_OF_ANY_LENGTH))
"""Of a row in all other columns, at most."""
_QUANTILES = pa.map_(pa.utf8(), pa.float64())
_NO_ENTRIES = pa.array([], pa.utf8()), pa.array([], pa.float64())


class Outbox:
    """Outputs of a batch; ids count up within each input record."""

    def __init__(self, topic_uuid: str, partition: int) -> None:
        self.topic_uuid = topic_uuid
        self.partition = partition
        self._next: dict[int, int] = {}
        self._outputs: list[tuple[int, int, Output]] = []

    def claim(self, offset: int) -> OutputId:
        ordinal = self._next.get(offset, 0)
        self._next[offset] = ordinal + 1
        return OutputId(self.topic_uuid, self.partition, offset, ordinal)

    def put(self, topic: TopicName, run: str, value: bytes, made: OutputId) -> None:
        self._outputs.append((made.offset, made.ordinal, Output(topic, run, value, made)))

    def fact(
        self,
        offset: int,
        run: str,
        attempt: int,
        what: events.FactKind,
        time_us: int,
        text: str,
        **fields: Any,
    ) -> None:
        made = self.claim(offset)
        fact = events.Fact(
            id=str(made), run=run, attempt=attempt, what=what, time_us=time_us, text=text, **fields
        )
        self.put("facts", run, events.encode(fact), made)

    def alert(self, offset: int, run: str, attempt: int, time_us: int, change: AlertChange) -> None:
        made = self.claim(offset)
        fields = change._asdict()
        for name in ("value", "expected", "score"):
            if fields[name] is not None:
                fields[name] = events.number(float(fields[name]))
        alert = events.Alert(id=str(made), run=run, attempt=attempt, time_us=time_us, **fields)
        self.put("alerts", run, events.encode(alert), made)

    def dead_letter(self, topic: TopicName, record: Record, reason: str) -> None:
        value = record.value or b""
        letter = events.DeadLetter(
            topic=topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            reader=READER,
            time_us=record.time_ms * 1000,
            value=value[:MAX_KEPT_BYTES],
            size=len(value),
        )
        self.put("dead-letter", "", events.encode(letter), self.claim(record.offset))

    def sorted(self) -> list[Output]:
        return [output for _, _, output in sorted(self._outputs, key=lambda item: item[:2])]


class WindowBlock(NamedTuple):
    """Windows of one spec that one record closed."""

    axis: str
    attempt: int
    series: Series
    cells: WindowCells
    presence: Presence
    span: str | None = None
    further: Mapping[int, Row] = {}
    """By place in ``cells``: what custom aggregates and weighted quantiles give."""


def put_windows(outbox: Outbox, offset: int, run: str, blocks: list[WindowBlock]) -> None:
    """The rows of all blocks: one output, or several where Kafka would not take so large a record."""
    if not blocks:
        return
    parts = [_columns(run, block) for block in blocks]
    columns = {
        name: parts[0][name] if len(parts) == 1 else pa.concat_arrays([part[name] for part in parts])
        for name in parts[0]
    }
    rows = len(columns["run"])
    size = rows * _FIXED_BYTES + sum(columns[name].nbytes for name in _OF_ANY_LENGTH)
    pieces = 1 + size // MAX_OUTPUT_BYTES
    rows_each = max(1, -(-rows // pieces))
    for at in range(0, rows, rows_each):
        part = {name: column.slice(at, rows_each) for name, column in columns.items()}
        made = outbox.claim(offset)
        outbox.put("windows", run, window_rows.encode(part, made), made)


def _columns(run: str, block: WindowBlock) -> dict[str, pa.Array]:
    cells, series = block.cells, block.series
    number = len(cells.start)
    empty = cells.samples == cells.nan + cells.inf
    unweighted = np.isnan(cells.mean) & ~(cells.weight > 0)
    mask = block.presence.mask(cells.start, cells.end)
    should = expected(series, cells.series, cells.bits, mask, block.presence.awaited)

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), number)

    def floats(values: np.ndarray, missing: np.ndarray) -> pa.Array:
        return pa.array(values, mask=missing) if missing.any() else pa.array(values)

    def ranks(values: np.ndarray) -> pa.Array:
        return pa.array(values.astype(np.int32), mask=empty | (values < 0))

    if series.texts is None:
        series.texts = pa.array(series.groups, pa.utf8()), pa.array(series.metrics, pa.utf8())
    groups, metrics = series.texts
    text = pa.array(cells.series)
    return {
        "run": same(run, pa.utf8()),
        "attempt": same(block.attempt, pa.int32()),
        "axis": same(block.axis, pa.utf8()),
        "start": pa.array(cells.start),
        "end": pa.array(cells.end),
        "group": groups.take(text),
        "metric": metrics.take(text),
        "revision": same(0, pa.int32()),
        "count": pa.array(cells.samples),
        "weight": pa.array(cells.weight),
        "sum": floats(cells.sum, empty | np.isnan(cells.sum)),
        "nan": pa.array(cells.nan),
        "inf": pa.array(cells.inf),
        "mean": floats(cells.mean, unweighted),
        "std": floats(cells.std, unweighted),
        "min": floats(cells.min, empty),
        "min_rank": ranks(cells.min_rank),
        "max": floats(cells.max, empty),
        "max_rank": ranks(cells.max_rank),
        "first": pa.array(cells.first),
        "last": pa.array(cells.last),
        **{
            f"p{round(q * 100)}": floats(cells.quantiles[q], np.isnan(cells.quantiles[q]))
            for q in STANDARD_QUANTILES
        },
        "quantiles": _with(_named(cells, number), {at: row.quantiles for at, row in block.further.items()}),
        "present": pa.array(popcount(np.ascontiguousarray(cells.bits)).astype(np.int32)),
        "expected": pa.array(should.astype(np.int32)),
        "span": same(block.span, pa.utf8()),
        "extra": _with(_no_names(number), {at: row.extra for at, row in block.further.items()}),
    }


def quantile_name(quantile: float) -> str:
    """
    >>> quantile_name(0.999), quantile_name(0.1)
    ('p99.9', 'p10')
    """
    return f"p{quantile * 100:.10g}"


def _named(cells: WindowCells, number: int) -> pa.Array:
    """The map of the quantiles that were asked for by name; empty where none was."""
    further = sorted(q for q in cells.quantiles if q not in STANDARD_QUANTILES)
    if not further:
        return _no_names(number)
    table = np.stack([cells.quantiles[q] for q in further], axis=1)
    given = ~np.isnan(table)
    offsets = pa.array(np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32))
    names = pa.array([quantile_name(q) for q in further], pa.utf8())
    keys = names.take(pa.array(np.nonzero(given)[1]))
    return pa.MapArray.from_arrays(offsets, keys, pa.array(table[given]), type=_QUANTILES)


def _no_names(number: int) -> pa.Array:
    """So many empty maps."""
    offsets = pa.array(np.zeros(number + 1, np.int32))
    return pa.MapArray.from_arrays(offsets, *_NO_ENTRIES, type=_QUANTILES)


def _with(maps: pa.Array, more: Mapping[int, Mapping[str, float]]) -> pa.Array:
    """The maps, those of some rows with further entries."""
    if not any(more.values()):
        return maps
    rows = [list(pairs) for pairs in maps.to_pylist()]
    for at, named in more.items():
        rows[at] += named.items()
    return pa.array(rows, maps.type)
