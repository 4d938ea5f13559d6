"""What a view or macro of the tables is."""

from __future__ import annotations

from typing import NamedTuple


class View(NamedTuple):
    """``CREATE VIEW name AS sql`` or, where ``macro`` is set, ``CREATE MACRO name(macro) AS sql``."""

    name: str
    says: str
    """One line: what a row is, or what the macro gives."""
    sql: str
    example: str
    """A query that shows its use; ``docs/sql.md`` has its answer."""
    macro: str | None = None
    """Its parameters. None may be named as a column of a view: DuckDB then takes the view's column for it."""
    columns: tuple[tuple[str, str], ...] = ()
    """What each column of the answer means, in order."""
