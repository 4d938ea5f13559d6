"""The tables against the rows that must be in them, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from driftline import events, frames, window_rows
from driftline.records import Output, Record
from driftline.storage import event_rows
from driftline.storage.listing import read_files
from driftline.storage.tables import TABLES, TableName

from .plan import Report

SAMPLE_COLUMNS = ("run", "process", "rank", "metric", "step", "time", "value", "weight", "offset", "ordinal")
LOG_COLUMNS = ("offset", "kind", "outcome", "process", "seq", "samples", "payload")
OF_EVENTS: tuple[TableName, ...] = ("processes", "checkpoints", "evals")
OF_OUTPUTS: tuple[TableName, ...] = ("windows", "facts", "alerts")


class Tables:
    """``want_...`` and ``compare_log`` take what must be there; ``compare_...`` writes what differs into the
    report."""

    def __init__(self, root: Path, report: Report) -> None:
        self._report = report
        self._db = duckdb.connect()
        self._db.execute("set timezone = 'UTC'; set threads = 2")
        for name, files in read_files(root).items():
            if files:
                self._db.read_parquet(files).create_view(f"t_{name}")
            else:
                self._db.register(f"t_{name}", TABLES[name].schema.empty_table())
        self._rows: dict[TableName, list[dict[str, Any]]] = {
            name: [] for name in (*OF_EVENTS, "facts", "alerts")
        }
        self._windows: list[pa.Table] = []
        self._spans: list[str] = []
        """Conditions that hold for rows of the records that were compared."""
        self._items: dict[tuple[str, int], dict[str, Any]] = {}
        """Rows of evaluated items by (lease, position), the first that stands in the topic."""

    def count(self, name: TableName) -> int:
        return self._one(f"select count(*) from t_{name}")

    # --- telemetry ------------------------------------------------------------------------------------------

    def compare_log(self, uuid: str, partition: int, some: Iterable[tuple[Record, Any, bool]]) -> None:
        """A piece of the log, record by record: samples and log must have just its rows, each once."""
        new_frames: list[tuple[int, frames.Frame]] = []
        log: list[tuple[Any, ...]] = []
        for record, content, new in some:
            at = {"topic_uuid": uuid, "partition": partition, "offset": record.offset}
            outcome = "stored" if new else "duplicate"
            if isinstance(content, frames.Frame):
                if new:
                    new_frames.append((record.offset, content))
                log.append(
                    (record.offset, "frame", outcome, content.process, content.seq, len(content.metric), None)
                )
                continue
            process = seq = None
            if isinstance(content, events.FromProcess):
                process, seq = content.process, content.seq
                rows = event_rows.process(content) if new else []
            else:
                rows = (
                    event_rows.accepted(content) if new and isinstance(content, events.EvalAccepted) else []
                )
            for name, row in rows:
                self._rows[name].append(row | at)
            log.append((record.offset, events.kind_of(content), outcome, process, seq, None, record.value))
        wanted = pa.table(
            {
                name: pa.array(column, TABLES["log"].schema.field(name).type)
                for name, column in zip(LOG_COLUMNS, zip(*log, strict=True), strict=True)
            }
        )
        span = f'"offset" between {log[0][0]} and {log[-1][0]}'
        bounds = f"topic_uuid = '{uuid}' and \"partition\" = {partition} and {span}"
        self._spans.append(f"({bounds})")
        self._compare("log", wanted, bounds)
        self._compare_samples(_samples_of(new_frames), bounds)

    def _compare_samples(self, wanted: pa.Table, bounds: str) -> None:
        """Counts what is lost and doubled by the place of a sample in the log, then compares the contents."""
        self._db.register("w", wanted)
        self._db.execute(f"create or replace temp table a as select * from t_samples where {bounds}")
        key = '"offset", ordinal'
        lost = self._one(f"select count(*) from (select {key} from w except select {key} from a)")
        doubled = self._one(f"select count(*) - count(distinct ({key})) from a")
        extra = self._one(f"select count(*) from (select {key} from a except select {key} from w)")
        self._db.unregister("w")
        self._report.lost += lost
        self._report.doubled += doubled
        if extra:
            self._problem(f"samples: {extra} rows of records that hold no new samples, {bounds}")
        if not (lost or doubled or extra):
            self._compare("samples", wanted, bounds)

    def compare_rest(self) -> None:
        """Rows of samples and log that come from no record of the log, and gaps, of which none can be."""
        for name in ("samples", "log"):
            if strays := self._one(
                f"select count(*) from t_{name} where ({' or '.join(self._spans)}) is not true"
            ):
                self._problem(f"{name}: {strays} rows of records that the log does not have")
        if gaps := self.count("gaps"):
            self._problem(f"gaps: {gaps} rows, though no topic deleted anything")

    # --- outputs --------------------------------------------------------------------------------------------

    def want_output(self, output: Output) -> None:
        """An output of the pure pipeline: its rows must be in the table of its topic."""
        if output.topic == "windows":
            id_, batch = window_rows.decode(output.value)
            table = pa.Table.from_batches([batch])
            for name, value in zip(("topic_uuid", "partition", "offset", "ordinal"), id_, strict=True):
                kind = TABLES["windows"].schema.field(name).type
                table = table.append_column(name, pa.array([value] * table.num_rows, kind))
            self._windows.append(table)
            return
        event = events.decode(output.value)
        if isinstance(event, events.Fact):
            self._rows["facts"].append(event_rows.fact(event, output.id))
        elif isinstance(event, events.Alert):
            self._rows["alerts"].append(event_rows.alert(event, output.id))

    def compare_outputs(self, kept: dict[tuple[str, int], set[tuple[int, int]]]) -> None:
        """All tables but samples, log and items. ``kept``: by topic and partition the (offset, ordinal) of
        the outputs that stand in the topic; of others there are no rows."""
        for name in OF_EVENTS:
            self._compare(name, _table(name, self._rows[name]))
        for name in ("facts", "alerts"):
            rows = [
                row
                for row in self._rows[name]
                if (row["offset"], row["ordinal"]) in kept.get((name, row["partition"]), ())
            ]
            self._compare(name, _table(name, rows))
        if not self._windows:
            self._problem("no windows at all")
            return
        windows = pa.concat_tables(self._windows)
        places = zip(
            *(windows.column(name).to_pylist() for name in ("partition", "offset", "ordinal")), strict=True
        )
        there = [(offset, ordinal) in kept.get(("windows", p), ()) for p, offset, ordinal in places]
        windows = windows.filter(pa.array(there, pa.bool_()))
        self._report.windows = windows.num_rows
        self._compare("windows", windows)

    def want_items(self, uuid: str, record: Any) -> None:
        """A record of ``eval-items``: an item counts once for its lease, whoever sent it again."""
        event = events.decode(record.value)
        assert isinstance(event, events.EvalItems)
        at = {"topic_uuid": uuid, "partition": record.partition, "offset": record.offset}
        for row in event_rows.items(event, list(range(event.first, event.first + len(event.items)))):
            self._items.setdefault((event.lease, row["position"]), row | at)

    def compare_items(self, accepted: dict[tuple[str, str], list[events.EvalAccepted]]) -> None:
        """The items of every lease as they stand in the topic, each once; those of each accepted result are
        as many as it says."""
        self._compare("eval_items", _table("eval_items", list(self._items.values())))
        found = Counter(lease for lease, _ in self._items)
        for event in (event for some in accepted.values() for event in some):
            items, wanted = found[event.lease], event.outcome.items
            if items != wanted:
                self._problem(f"eval_items: {items} of {wanted} items of {event.lease}")

    def compare_trainer(self, said: dict[str, Any], trainer: ModuleType) -> None:
        """Every step that a rank logged through the SDK is there once, with its value."""
        rank, steps = said["rank"], said["steps"]
        found = self._db.execute(
            "select metric, step, value from t_samples where run = ? and process = ? and metric in ? "
            "order by all",
            [said["run"], said["process"], list(trainer.METRICS)],
        ).fetchall()
        wanted = sorted(
            (metric, step, trainer.value_of(rank, step, metric))
            for metric in trainer.METRICS
            for step in range(steps)
        )
        if found != wanted:
            self._problem(f"{said['run']} rank {rank}: {len(found)} rows of {len(wanted)}, or other values")

    # --- how ------------------------------------------------------------------------------------------------

    def _compare(self, name: TableName, wanted: pa.Table, bounds: str = "true") -> None:
        """NaN equals NaN, and null null."""
        self._db.register("wanted", wanted)
        columns = ", ".join(f'"{column}"' for column in wanted.column_names)
        want, have = f"select {columns} from wanted", f"select {columns} from t_{name} where {bounds}"
        missing = self._one(f"select count(*) from ({want} except all {have})")
        extra = self._one(f"select count(*) from ({have} except all {want})")
        self._db.unregister("wanted")
        if missing or extra:
            self._problem(f"{name}: {missing} rows missing, {extra} rows too many, {bounds}")

    def _one(self, query: str) -> int:
        ((found,),) = self._db.execute(query).fetchall()  # DuckDB 2 wants a result read to its end
        return int(found)

    def _problem(self, text: str) -> None:
        if len(self._report.problems) < 200:
            self._report.problems.append(text)


def _samples_of(some: list[tuple[int, frames.Frame]]) -> pa.Table:
    """The rows of ``samples`` that frames at these offsets make."""
    schema = pa.schema([TABLES["samples"].schema.field(name) for name in SAMPLE_COLUMNS]).remove_metadata()
    if not some:
        return schema.empty_table()
    sizes = [len(frame.metric) for _, frame in some]
    which = np.repeat(np.arange(len(some)), sizes)
    step = np.concatenate([frame.step for _, frame in some])
    columns = {
        "run": pa.array([frame.run for _, frame in some]).take(pa.array(which)),
        "process": pa.array([frame.process for _, frame in some]).take(pa.array(which)),
        "rank": pa.array([frame.rank for _, frame in some], pa.int32()).take(pa.array(which)),
        "metric": pa.array([frame.names[at] for _, frame in some for at in frame.metric]),
        "step": pa.array(step, mask=step == frames.NO_STEP),
        "time": pa.array(np.concatenate([frame.time_us for _, frame in some])).cast(
            pa.timestamp("us", "UTC")
        ),
        "value": pa.array(np.concatenate([frame.value for _, frame in some])),
        "weight": pa.array(np.concatenate([frame.weight for _, frame in some])),
        "offset": pa.array(np.array([offset for offset, _ in some])[which]),
        "ordinal": pa.array(np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])),
    }
    return pa.table(columns)


def _table(name: TableName, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([pa.field(c.name, c.type) for c in TABLES[name].columns]))
