"""How a source is read: what was guessed or told, kept in the import's own log so that it stays the same."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Format = Literal["csv", "jsonl", "tensorboard", "trainer_state", "lm_eval"]
FORMATS: tuple[Format, ...] = ("csv", "jsonl", "tensorboard", "trainer_state", "lm_eval")
Form = Literal["wide", "long", "evals"]
"""A column per metric; a row per value; a row per value of an evaluation."""


def slug(name: str) -> str:
    """The part of an id of a run that people know it by.

    >>> slug("org/my model (1)"), slug("../..")
    ('org-my-model-1', 'run')
    """
    return re.sub(r"[^A-Za-z0-9_.=+]+|\.{2,}", "-", name)[:60].strip("-.") or "run"


class Reading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that decides which items a reader gives. Column names; None where there is no such column."""

    format: Format
    run: str
    """Id of the run, or what ids of runs are made of where a column names them."""
    name: str
    """Name of the run, for people."""
    given_run: bool = False
    """The id was given: of one run, whatever the source says."""
    form: Form = "wide"
    delimiter: str = ","
    step: str | None = None
    time: str | None = None
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    """None: the column holds dates."""
    time_zone: str = "UTC"
    elapsed: str | None = None
    elapsed_unit: Literal["s", "ms", "us", "ns"] = "s"
    rank: str | None = None
    run_column: str | None = None
    metric: str | None = None
    value: str | None = None
    task: str | None = None
    stderr: str | None = None
    nested: bool = False
    """verl: the numbers are in "data"."""
    step_given: int | None = None
    """The step of everything in the source."""
    start_us: int = 0
    """Of what has no time: when the run is taken to have started."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said; None where nothing."""

    format: Format | None = None
    form: Form | None = None
    run: str | None = None
    source: str | None = None
    """Names the source within the run; else its file name does."""
    name: str | None = None
    step_column: str | None = None
    time_column: str | None = None
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    time_zone: str = "UTC"
    elapsed_column: str | None = None
    rank_column: str | None = None
    run_column: str | None = None
    metric_column: str | None = None
    value_column: str | None = None
    step: int | None = None
    start_us: int | None = None
