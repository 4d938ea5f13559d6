"""Records of the topics -> rows of the tables, each record once. Pure: no clock, files or Kafka.

    telemetry    frame                             -> samples, log
                 process started/ended, rewound    -> processes, log
                 checkpoint saved                  -> checkpoints, log
                 metric defined                    -> metrics, log
                 evaluation accepted               -> evals, log
                 anything else, known or not       -> log
    windows, facts, alerts                         -> the table of the same name
    eval-items                                     -> eval_items

What was sent again is recognised by ``seen`` and gives no row (its record is in ``log``, marked). What cannot
be decoded is counted and, outside telemetry, handed back as a dead letter (telemetry's own dead letters are
sent by the stream worker, and ``log`` keeps the bytes and the reason). After a restart a record may be read
again for one table while another has it: ``floors`` says per table up to which offset rows are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftline import events, records, window_rows
from driftline.errors import BadRecord
from driftline.frames import Frame
from driftline.records import OutputId, Record
from driftline.storage import event_rows
from driftline.storage.event_rows import Row, check
from driftline.storage.sample_rows import SampleRows
from driftline.storage.seen import Seen
from driftline.storage.tables import FEEDS, TABLES, TableName
from driftline.topics import TopicName

_INT32 = range(-(1 << 31) + 1, 1 << 31)
_INT64_MAX = (1 << 63) - 1
_LOG_COLUMNS = tuple(column.name for column in TABLES["log"].columns)


class Source(NamedTuple):
    """The topic that a record comes from, with its identity."""

    topic: TopicName
    uuid: str


class Rows:
    """Rows waiting to be committed, and counters of everything that was read.

    ``counts``: received, stored, duplicates, undecodable, unknown (records) and samples.
    """

    def __init__(self, seen: Seen | None = None) -> None:
        self.seen = seen or Seen()
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        """Size of what waits, about."""
        self.pressing = 0
        """Rows that someone waits for: all but ticks."""
        self._samples = SampleRows()
        self._log: list[tuple[Any, ...]] = []
        self._rows: dict[TableName, list[Row]] = {}
        self._windows: list[tuple[OutputId, pa.RecordBatch]] = []

    def add(
        self, source: Source, record: Record, floors: Mapping[TableName, int] | None = None
    ) -> BadRecord | None:
        """Takes one record; returns why, if it cannot be decoded and must go to the dead letters."""
        self.counts["received"] += 1
        tables = FEEDS[source.topic]
        if floors:
            tables = tuple(name for name in tables if record.offset > floors.get(name, -1))
        self.bytes += len(record.value or b"")
        if source.topic == "telemetry":
            self._telemetry(source, record, tables)
            return None
        try:
            self._output(source, record, tables)
        except BadRecord as error:
            self.counts["undecodable"] += 1
            return error
        return None

    @property
    def waiting(self) -> int:
        """Rows not yet taken."""
        windows = sum(int(batch.num_rows) for _, batch in self._windows)
        return self._samples.count + len(self._log) + windows + sum(map(len, self._rows.values()))

    def take(self) -> dict[TableName, pa.Table]:
        """The tables that have rows, each sorted by its order; afterwards nothing waits."""
        taken: dict[TableName, pa.Table] = {}
        if self._samples.count:
            taken["samples"] = self._samples.take()
        if self._log:
            columns = zip(*self._log, strict=True)
            arrays = {
                name: pa.array(column, kind)
                for name, column, kind in zip(_LOG_COLUMNS, columns, TABLES["log"].schema.types, strict=True)
            }
            taken["log"] = _sorted("log", pa.table(arrays))
        if self._windows:
            taken["windows"] = _sorted("windows", _window_table(self._windows))
        for name, rows in self._rows.items():
            taken[name] = _sorted(name, pa.Table.from_pylist(rows, _bare(name)))
        self._log, self._rows, self._windows, self.bytes, self.pressing = [], {}, [], 0, 0
        return taken

    # --- telemetry -----------------------------------------------------------------------------------------

    def _telemetry(self, source: Source, record: Record, tables: tuple[TableName, ...]) -> None:
        kind, outcome, reason = None, "stored", None
        decoded: Frame | events.Event | events.Unknown | None = None
        rows: list[tuple[TableName, Row]] = []
        try:
            decoded = records.decode(record.value)
            if isinstance(decoded, events.Unknown):
                kind, outcome = decoded.kind, "unknown"
            elif isinstance(decoded, Frame):
                kind = "frame"
                _check_frame(decoded)
            else:
                kind = events.kind_of(decoded)
                rows = _event_rows(decoded, source, record)
        except BadRecord as error:
            decoded, outcome, reason = None, "undecodable", str(error)
        if decoded is not None and outcome == "stored" and not self._is_new(decoded, record):
            outcome = "duplicate"
        self.counts[outcome] += 1
        if outcome == "stored":
            if isinstance(decoded, Frame):
                self.counts["samples"] += len(decoded.metric)
                if "samples" in tables:
                    self._samples.add(
                        decoded, topic_uuid=source.uuid, partition=record.partition, offset=record.offset
                    )
            for name, row in rows:
                if name in tables:
                    self._rows.setdefault(name, []).append(row)
        if kind != "tick":
            self.pressing += 1
        if "log" in tables:
            self._log.append(_log_row(source, record, decoded, kind, outcome, reason))

    def _is_new(self, decoded: Frame | events.Event | events.Unknown, record: Record) -> bool:
        if isinstance(decoded, Frame | events.FromProcess):
            return self.seen.processes.is_new(decoded.run, decoded.process, decoded.seq)
        if isinstance(decoded, events.EvalAccepted):
            return self.seen.outputs.is_new(f"telemetry/{record.partition}", OutputId.parse(decoded.id))
        return True

    # --- topics of outputs ---------------------------------------------------------------------------------

    def _output(self, source: Source, record: Record, tables: tuple[TableName, ...]) -> None:
        if source.topic == "windows":
            output, batch = window_rows.decode(record.value or b"")
            check("windows", dict(output._asdict()))
            if self._unseen(source, output) and tables:
                self._windows.append((output, batch))
            return
        decoded = events.decode(record.value or b"")
        if isinstance(decoded, events.Unknown):
            self.counts["unknown"] += 1
        elif isinstance(decoded, events.Fact) and source.topic == "facts":
            output = OutputId.parse(decoded.id)
            self._one("facts", check("facts", event_rows.fact(decoded, output)), source, output, tables)
        elif isinstance(decoded, events.Alert) and source.topic == "alerts":
            output = OutputId.parse(decoded.id)
            self._one("alerts", check("alerts", event_rows.alert(decoded, output)), source, output, tables)
        elif isinstance(decoded, events.EvalItems) and source.topic == "eval-items":
            self._items(decoded, source, record, tables)
        else:
            raise BadRecord(f"{events.kind_of(decoded)} does not belong on {source.topic}")

    def _one(
        self, name: TableName, row: Row, source: Source, output: OutputId, tables: tuple[TableName, ...]
    ) -> None:
        if self._unseen(source, output) and tables:
            self._rows.setdefault(name, []).append(row)

    def _unseen(self, source: Source, output: OutputId) -> bool:
        is_new = self.seen.outputs.is_new(source.topic, output)
        self.counts["stored" if is_new else "duplicate"] += 1
        self.pressing += is_new
        return is_new

    def _items(
        self, event: events.EvalItems, source: Source, record: Record, tables: tuple[TableName, ...]
    ) -> None:
        if event.first < 0:
            raise BadRecord(f"first {event.first} is negative")
        at = {"topic_uuid": source.uuid, "partition": record.partition, "offset": record.offset}
        every = list(range(event.first, event.first + len(event.items)))
        rows = {row["position"]: check("eval_items", row | at) for row in event_rows.items(event, every)}
        fresh = self.seen.items.new(event.lease, event.first, len(event.items))
        self.counts["stored" if fresh or not every else "duplicate"] += 1
        self.pressing += len(fresh)
        if fresh and tables:
            self._rows.setdefault("eval_items", []).extend(rows[position] for position in fresh)


def _event_rows(event: events.Event, source: Source, record: Record) -> list[tuple[TableName, Row]]:
    """Rows of a telemetry event, checked. Raises BadRecord."""
    at = {"topic_uuid": source.uuid, "partition": record.partition, "offset": record.offset}
    rows: list[tuple[TableName, Row]] = []
    if isinstance(event, events.FromProcess):
        if not 0 <= event.seq <= _INT64_MAX:
            raise BadRecord(f"seq {event.seq} does not fit 64 bits")
        rows = event_rows.process(event)
    elif isinstance(event, events.EvalAccepted):
        OutputId.parse(event.id)
        rows = event_rows.accepted(event)
    return [(name, check(name, row | at)) for name, row in rows]


def _check_frame(frame: Frame) -> None:
    if frame.rank is not None and frame.rank not in _INT32:
        raise BadRecord(f"rank {frame.rank} does not fit 32 bits")
    if frame.seq > _INT64_MAX:
        raise BadRecord(f"seq {frame.seq} does not fit 64 bits")
    if None in frame.names:
        raise BadRecord("frame has a metric without a name")


def _log_row(
    source: Source,
    record: Record,
    decoded: Frame | events.Event | events.Unknown | None,
    kind: str | None,
    outcome: str,
    reason: str | None,
) -> tuple[Any, ...]:
    """One row of ``log``, in the order of its columns."""
    run = process = seq = rank = samples = counters = oldest = newest = None
    payload = record.value
    if isinstance(decoded, Frame):
        run, process, seq, rank, samples = (
            decoded.run,
            decoded.process,
            decoded.seq,
            decoded.rank,
            len(decoded.metric),
        )
        counters = decoded.counters or None
        payload = None
        if samples:
            oldest, newest = int(decoded.time_us.min()), int(decoded.time_us.max())
    elif isinstance(decoded, events.FromProcess):
        run, process, seq = decoded.run, decoded.process, decoded.seq
    elif isinstance(decoded, events.EvalAccepted):
        run = decoded.run
    return (
        source.uuid,
        record.partition,
        record.offset,
        record.time_ms * 1000,
        kind,
        outcome,
        reason,
        run,
        process,
        seq,
        rank,
        samples,
        counters,
        payload,
        oldest,
        newest,
    )


def _window_table(windows: list[tuple[OutputId, pa.RecordBatch]]) -> pa.Table:
    table = pa.Table.from_batches([batch for _, batch in windows])
    sizes = [batch.num_rows for _, batch in windows]
    ids = [output for output, _ in windows]
    for name, kind in (
        ("topic_uuid", pa.utf8()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("ordinal", pa.int32()),
    ):
        values = pa.array([getattr(output, name) for output in ids], kind)
        table = table.append_column(name, values.take(pa.array(np.repeat(np.arange(len(ids)), sizes))))
    return table


def _bare(name: TableName) -> pa.Schema:
    return pa.schema([pa.field(c.name, c.type) for c in TABLES[name].columns])


def _sorted(name: TableName, table: pa.Table) -> pa.Table:
    """By the table's order, rows without a value first."""
    keys = [(column, "ascending", "at_start") for column in TABLES[name].order]
    return table.take(pc.sort_indices(table, sort_keys=keys))
