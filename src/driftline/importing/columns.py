"""Header and first rows of a table -> how it is read. Pure; every guess is said.

A column's name is compared in lower case with ``_`` for spaces. The first name of each list that is there is
taken:

    step        step, global_step, iteration, iter, timestep, timesteps, _step
    time        time, timestamp, wall_time, walltime, datetime, date, ts, _timestamp
    rank        rank, global_rank
    run         run, run_id, run_name        (of tables of evaluations also: model, model_name)
    long form   metric, metric_name, tag, key, name   and   value
    evaluations task, suite, benchmark        and   metric   and   value  (stderr, if there)

A "time" of small numbers is time since the start where it only grows, else a metric.
"-" as a column's name in the options means that there is none, whatever its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from driftline.errors import SettingsError
from driftline.importing.reading import Form, Options, Reading
from driftline.importing.values import cell, instant, is_number, plain, unit_of
from driftline.metric_names import close_to

STEP = ("step", "global_step", "iteration", "iter", "timestep", "timesteps", "_step")
TIME = ("time", "timestamp", "wall_time", "walltime", "datetime", "date", "ts", "_timestamp")
RANK = ("rank", "global_rank")
RUN = ("run", "run_id", "run_name")
MODEL = ("model", "model_name")
METRIC = ("metric", "metric_name", "tag", "key", "name")
VALUE = ("value",)
TASK = ("task", "suite", "benchmark")
STDERR = ("stderr", "std_err", "standard_error")
_NO_DATE = 1e8
"""Seconds since 1970 until 1973."""
_ELAPSED_UNITS = ("ms", "us", "ns", "s")


class Table:
    """The columns of a table, and values of its first rows."""

    def __init__(self, names: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
        self.names = list(names)
        self._rows = rows
        self._plain = {name.strip().lower().replace(" ", "_"): name for name in reversed(self.names)}

    def find(self, wanted: Sequence[str]) -> str | None:
        return next((self._plain[name] for name in wanted if name in self._plain), None)

    def told(self, option: str, said: str | None, wanted: Sequence[str]) -> str | None:
        """The column that an option names, else the one that has such a name. Raises SettingsError."""
        if said is None:
            return self.find(wanted)
        if said == "-":
            return None
        if said in self.names:
            return said
        if said.lower() in self._plain:
            return self._plain[said.lower()]
        listed = ", ".join(repr(name) for name in self.names[:30])
        raise SettingsError(option, said, f"the columns are {listed}{close_to(said, self.names)}")

    def values(self, column: str) -> list[object]:
        """Those of the first rows, without empty ones."""
        return [row[column] for row in self._rows if row.get(column) not in (None, "")]


def guess(reading: Reading, table: Table, options: Options) -> tuple[Reading, list[str]]:
    """The reading with its columns, and what was guessed, a line each. Raises SettingsError."""
    check_zone(options.time_zone)
    task, stderr = table.find(TASK), table.find(STDERR)
    metric = table.told("--metric-column", options.metric_column, METRIC)
    value = table.told("--value-column", options.value_column, VALUE)
    form = options.form or _form(table, task, metric, value, options)
    if form != "wide" and (metric is None or value is None):
        raise SettingsError("--form", form, "name its columns with --metric-column and --value-column")
    if form == "evals" and task is None:
        raise SettingsError("--form", form, f"it takes a column of tasks ({', '.join(TASK)})")
    runs = RUN + MODEL if form == "evals" else RUN
    elapsed = table.told("--elapsed-column", options.elapsed_column, ())
    time = table.told("--time-column", options.time_column, () if options.elapsed_column else TIME)
    if time is not None and options.time_column is None and options.time_unit is None:
        time, elapsed = _since(table, time, elapsed)
    reading = msgspec.structs.replace(
        reading,
        form=form,
        step=table.told("--step-column", options.step_column, STEP),
        time=time,
        time_unit=_time_unit(table, time, options),
        time_zone=options.time_zone,
        elapsed=elapsed,
        elapsed_unit=_elapsed_unit(elapsed),
        rank=table.told("--rank-column", options.rank_column, RANK),
        run_column=None if reading.given_run else table.told("--run-column", options.run_column, runs),
        metric=metric if form != "wide" else None,
        value=value if form != "wide" else None,
        task=task if form == "evals" else None,
        stderr=stderr if form == "evals" else None,
    )
    return reading, _said(reading, table, options)


def check_zone(zone: str) -> None:
    """Raises SettingsError for a time zone that nobody knows."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SettingsError("--time-zone", zone, "name one such as Europe/Berlin or UTC") from error


def _form(table: Table, task: str | None, metric: str | None, value: str | None, options: Options) -> Form:
    if metric is None or value is None:
        return "wide"
    if options.metric_column is None and any(_number(text) for text in table.values(metric)):
        return "wide"  # a column that is called "metric" or "name", and holds numbers
    return "long" if task is None else "evals"


def _since(table: Table, time: str, elapsed: str | None) -> tuple[str | None, str | None]:
    """A column called "time" of numbers that are no dates: time since the start if they only grow, else a
    duration, which is a metric like others."""
    found = [cell(str(value)) for value in table.values(time)]
    numbers = [value for value in found if isinstance(value, float)]
    if not numbers or len(numbers) < len(found) or max(map(abs, numbers)) >= _NO_DATE:
        return time, elapsed
    grows = all(a <= b for a, b in itertools.pairwise(numbers)) and numbers[0] < numbers[-1]
    return None, time if grows else elapsed


def _number(value: object) -> bool:
    return isinstance(cell(value) if isinstance(value, str) else plain(value), float)


def _time_unit(table: Table, column: str | None, options: Options) -> str | None:
    """The unit of a column of numbers, None of dates. Raises SettingsError where it is neither."""
    if column is None:
        return None
    found = table.values(column)
    if not found or options.time_unit is not None:
        return options.time_unit
    if is_number(found[0]):
        return unit_of(found[0])  # type: ignore[arg-type]
    if instant(found[0], None, options.time_zone) is None:
        raise SettingsError(
            "--time-column", column, f"{found[0]!r} is no ISO 8601 date and no number (- for no time column)"
        )
    return None


def _elapsed_unit(column: str | None) -> str:
    """By the end of the column's name; seconds without one.

    >>> _elapsed_unit("train_time_ms"), _elapsed_unit("runtime")
    ('ms', 's')
    """
    end = (column or "").rpartition("_")[2]
    return end if end in _ELAPSED_UNITS else "s"


def _said(reading: Reading, table: Table, options: Options) -> list[str]:
    said = []
    if options.form is None and reading.form != "wide":
        shown = "a value of an evaluation" if reading.form == "evals" else "one value of one metric"
        said.append(f"each row is {shown}: {reading.metric!r} names it, {reading.value!r} is it")
    for option, column, what in (
        (options.step_column, reading.step, "step"),
        (options.rank_column, reading.rank, "rank"),
        (options.run_column, reading.run_column, "run"),
    ):
        if column is not None and option is None:
            said.append(f"{what}: column {column!r}")
    if reading.step is None and options.step_column is None:
        said.append("no column of steps: rows have a time only (--step-column NAME)")
    if reading.time is not None:
        unit = f"numbers in {reading.time_unit}" if reading.time_unit else f"dates, {reading.time_zone}"
        if options.time_column is None or (options.time_unit is None and reading.time_unit):
            said.append(f"time: column {reading.time!r}, {unit}")
    elif reading.elapsed is not None:
        said.append(f"time: the start and {reading.elapsed!r} in {reading.elapsed_unit}")
    return said
