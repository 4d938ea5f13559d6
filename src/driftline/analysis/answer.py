"""An answer: what it says in words, its tables, its charts, and the SQL that gave it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.analysis.chart import Chart
from driftline.analysis.values import shown

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its key in rows, its title, and how :func:`driftline.analysis.values.shown` writes it."""

    name: str
    title: str = ""
    form: str = ""
    unit: str = ""

    @property
    def head(self) -> str:
        return self.title or self.name.replace("_", " ")

    def text(self, row: Row) -> str:
        """The cell of ``row`` for people; a unit "@key" is the one that the row has under that key."""
        unit = str(row.get(self.unit[1:]) or "") if self.unit.startswith("@") else self.unit
        return shown(row.get(self.name), self.form, unit)


@dataclass(frozen=True)
class Table:
    """Rows with the columns that people see; programs get all of a row's keys."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    drawn: bool = False
    """A chart shows the same: the terminal does not print it, a page folds it."""


@dataclass(frozen=True)
class Answer:
    """What a question gave; with no rows ``empty`` says why, and what to log to get some."""

    question: str
    title: str
    says: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    empty: str = ""
    sql: tuple[str, ...] = ()


def table(name: str, title: str, rows: Sequence[Row], *columns: Column, drawn: bool = False) -> Table:
    """A table of ``rows``; columns that no row has a value for are not shown."""
    used = tuple(c for c in columns if any(row.get(c.name) is not None for row in rows)) or columns
    return Table(name, title, used, tuple(rows), drawn)
