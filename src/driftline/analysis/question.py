"""What a question is: SQL over the views of the tables, and a pure function from its rows to an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from driftline.analysis.answer import Answer, Row

Of = Literal["samples", "evals", "spans", "any"]
"""Where the metrics of a question are known from."""
Rows = Mapping[str, Sequence[Row]]
"""Answers of a question's queries, by their names."""


class Run(NamedTuple):
    """A run, as it is named and spoken of."""

    run: str
    name: str
    started: datetime | None = None
    outcome: str | None = None

    @property
    def spoken(self) -> str:
        return f"{self.name} ({self.run})" if self.name else self.run

    @property
    def called(self) -> str:
        return self.name or self.run

    @property
    def short(self) -> str:
        """For legends: the name with the end of the id, since names need not be unique."""
        return f"{self.name} …{self.run[-6:]}" if self.name else self.run[-24:]


def labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """For legends and heads of columns: the names, with the ends of the ids where a name is not unique.

    >>> labels([Run("id-000001", "muon"), Run("id-000002", "adam")])
    ('muon', 'adam')
    >>> labels([Run("id-000001", "muon"), Run("id-000002", "muon")])
    ('muon …000001', 'muon …000002')
    """
    names = [run.name for run in runs]
    unique = all(names) and len(set(names)) == len(names)
    return tuple(run.name if unique else run.short for run in runs)


class Query(NamedTuple):
    """SQL with ``$names``, and what they stand for."""

    sql: str
    parameters: Mapping[str, Any] = {}

    @property
    def literal(self) -> str:
        """The SQL as one may type it, on one line.

        >>> Query("FROM curve($run, $metric)", {"run": "it's", "metric": "loss"}).literal
        "FROM curve('it''s', 'loss')"
        """
        text = " ".join(self.sql.split())
        return re.sub(r"\$(\w+)", lambda found: _literal(self.parameters[found[1]]), text)


@dataclass(frozen=True)
class Asked:
    """What was asked: of which runs and metrics, with which options; ``notes`` is what to say about it."""

    runs: tuple[Run, ...]
    metrics: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    """The words that named runs, by their ids: a name may stand for several runs."""

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def metric(self) -> str:
        return self.metrics[0]

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "runs": [{"run": run.run, "name": run.name} for run in self.runs],
            "metrics": list(self.metrics),
            "options": {name: value for name, value in self.options.items() if value is not None},
        }


@dataclass(frozen=True)
class Question:
    """One question.

    ``runs`` and ``metrics`` say how many of each may be named: (least, most). Fewer runs than ``least`` are
    filled up with the newest; fewer metrics with those that have a declared goal. ``of`` says where its
    metrics are known from.
    """

    name: str
    queries: Callable[[Asked], Mapping[str, Query]]
    show: Callable[[Asked, Rows], Answer]
    then: Callable[[Asked, Rows], Mapping[str, Query]] | None = None
    """Queries that depend on the answers of the first ones."""
    timed: Callable[[Asked], bool] = lambda asked: False
    """Whether the answer rests on times: those of an import that had none mean nothing."""
    runs: tuple[int, int] = (1, 1)
    metrics: tuple[int, int] = (0, 0)
    of: Of = "samples"


def arguments(given: Mapping[str, Any], **names: str) -> str:
    """The named arguments of a macro for which there is a value.

    >>> arguments({"over": 5, "target": None}, over_steps="over", target="target")
    ', over_steps := $over'
    """
    return "".join(f", {name} := ${key}" for name, key in names.items() if given.get(key) is not None)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "'" + str(value).replace("'", "''") + "'"
