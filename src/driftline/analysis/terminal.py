"""An answer as text: sentences, plots, tables; as wide as the terminal, without colour in a pipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from driftline.analysis.answer import Answer, Table
from driftline.analysis.canvas import COLOURS, plot
from driftline.analysis.chart import Bars, Chart, Heat, Plot, span
from driftline.analysis.values import quantity
from driftline.visible import visible

FOLD_WIDTH = 24
"""Where columns are folded to fit a terminal, none becomes narrower than this."""
WIDTH_MAX = 110
"""Plots are not wider than this: a longer line says no more."""
CELL_MAX = 100_000
_FILLS = "█▓▒░▚▞"
_SHADES = " ░▒▓█"
_LABEL_MAX = 28
LEAST_SKEW = 0.3
"""What is less above the middle of a heat map is not told from it: noise is no picture."""
NUMBERS_MAX = 16
"""Columns up to which a heat map is written in numbers, where they fit."""
_WIDE = 6
_ROWS_MAX = 32
"""Rows of a heat map, beyond which neighbours share one."""


def show(answer: Answer, console: Console, *, max_rows: int) -> None:
    """Prints the answer."""
    colour = console.color_system is not None
    width = min(console.width, WIDTH_MAX)
    _say(console, answer.title, style="bold")
    for sentence in answer.says:
        _say(console, sentence)
    if answer.empty:
        _say(console, answer.empty)
    for note in answer.notes:
        _say(console, f"note: {note}", style="dim")
    for chart in answer.charts:
        console.print()
        for line in drawn(chart, width, colour=colour):
            console.print(line, overflow="ellipsis" if cell_len(line.plain) > width else None)
    for table in answer.tables:
        if table.rows and not table.drawn:
            console.print()
            print_table(table, console, max_rows=max_rows)
    for sql in answer.sql:
        console.print()
        console.print(Text(f"in SQL: {visible(sql)}", style="dim"), soft_wrap=True)


def _say(console: Console, text: str, style: str = "") -> None:
    """A sentence; in a pipe it is one line."""
    console.print(Text(visible(text), style=style), soft_wrap=not console.is_terminal)


def drawn(chart: Chart, width: int, *, colour: bool) -> list[Text]:
    """A chart as lines of text."""
    if isinstance(chart, Plot):
        return plot(chart, width, colour=colour)
    return _bars(chart, width, colour=colour) if isinstance(chart, Bars) else _heat(chart, width)


def print_table(table: Table, console: Console, *, max_rows: int) -> None:
    """A table of an answer, cut at ``max_rows``."""
    names = [column.head for column in table.columns]
    rows = [[visible(c.text(row), CELL_MAX) for c in table.columns] for row in table.rows[:max_rows]]
    right = [
        any(isinstance(row.get(c.name), int | float) for row in table.rows[:max_rows]) for c in table.columns
    ]
    if table.title:
        _say(console, table.title, style="bold")
    print_rows(console, names, rows, right)
    left = len(table.rows) - max_rows
    if left > 0:
        _say(console, f"{left:,} more rows: use --max-rows, --csv or --json", style="dim")


def print_rows(
    console: Console, names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
) -> None:
    """Cells under their heads; on a terminal too narrow for it, each row as a list. A pipe has no width.

    The cells are ``visible`` already.
    """
    widths = [max(cell_len(text) for text in column) for column in zip(names, *rows, strict=True)]
    keep = console.width
    if not console.is_terminal:
        console.width = max(console.width, sum(widths) + 2 * len(widths))
    if rows and sum(min(width, FOLD_WIDTH) + 2 for width in widths) > console.width:
        _print_records(console, names, rows)
    else:
        table = RichTable(box=None, padding=(0, 1), header_style="bold")
        for name, to_right in zip(names, right, strict=True):
            table.add_column(Text(visible(name)), justify="right" if to_right else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    console.width = keep


def _print_records(console: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for number_of_row, row in enumerate(rows, start=1):
        console.print(Text(f"row {number_of_row}", style="bold"))
        record = RichTable(box=None, padding=(0, 1), show_header=False)
        record.add_column(style="dim", overflow="fold")
        record.add_column(overflow="fold")
        for name, text in zip(names, row, strict=True):
            record.add_row(Text(visible(name)), Text(text))
        console.print(record)


def _bars(chart: Bars, width: int, *, colour: bool) -> list[Text]:
    """One bar a line, as long as its sum."""
    sums = [sum(abs(p.values[at]) for p in chart.parts if math.isfinite(p.values[at]))
            for at in range(len(chart.labels))]  # fmt: skip
    values = [quantity(sum(p.values[at] for p in chart.parts), chart.axis.unit) for at in range(len(sums))]
    names = [visible(label, _LABEL_MAX) for label in chart.labels]
    margin = max(map(cell_len, names), default=0)
    room = max(8, width - margin - max(map(len, values), default=0) - 2)
    top = max(sums, default=0.0) or 1.0
    lines = [Text(visible(f"{chart.title}, {chart.axis.unit or chart.axis.title}", 2 * width), style="bold")]
    fills = "█" * len(_FILLS) if colour else _FILLS
    if len(chart.parts) > 1:
        legend = Text()
        for at, part in enumerate(chart.parts):
            legend.append("  " * (at > 0)).append(fills[at % len(fills)], COLOURS[at % len(COLOURS)])
            legend.append(" " + visible(part.name, _LABEL_MAX))
        lines.append(legend)
    for at, name in enumerate(names):
        text = Text(name + " " * (margin - cell_len(name)) + " ")
        drawn_to = total = 0.0
        for number, part in enumerate(chart.parts):
            value = abs(part.values[at])
            total += value if math.isfinite(value) else 0.0
            cells = round(room * total / top) - round(drawn_to)
            drawn_to += cells
            fill = "▒" if part.values[at] < 0 else fills[number % len(fills)]
            text.append(fill * cells, COLOURS[number % len(COLOURS)])
        lines.append(text.append(f" {values[at]}"))
    return lines


def _heat(chart: Heat, width: int) -> list[Text]:
    """Shades; neighbours that have no place of their own share one and show the largest."""
    names = [visible(name, _LABEL_MAX) for name in chart.rows]
    cells = [list(row) for row in chart.cells]
    together = math.ceil(len(cells) / _ROWS_MAX) or 1
    if together > 1:
        names = names[::together]
        cells = [_largest(cells[at : at + together]) for at in range(0, len(cells), together)]
    margin = max(map(cell_len, names), default=0)
    room = max(8, width - margin - 3)
    count = len(chart.columns)
    if count > room:
        cuts = [count * at // room for at in range(room + 1)]
        cells = [[_top(row[a:b]) for a, b in pairwise(cuts)] for row in cells]
    wide = max(1, min(_WIDE, room // max(1, min(count, room))))
    numbers = count <= NUMBERS_MAX and wide == _WIDE
    low, high = span(value for row in cells for value in row)
    if chart.middle is not None:
        low, high = chart.middle, max(high, chart.middle + LEAST_SKEW)
    lines = [Text(visible(chart.title, 2 * width), style="bold")]
    for name, row in zip(names, cells, strict=True):
        text = Text(f"{' ' * (margin - cell_len(name))}{name} │", style="dim")
        for value in row:
            text.append(*_written(value) if numbers else _shade(value, low, high, wide))
        lines.append(text)
    inside = wide * (len(cells[0]) if cells else 0)
    first, last = (visible(n, 20) for n in (chart.columns[0], chart.columns[-1])) if count else ("", "")
    gap = max(1, inside - cell_len(first) - cell_len(last))
    below = [f"{'':{margin}}  {first}{' ' * gap}{last}", f"{'':{margin}}  {visible(chart.x.label, room)}"]
    if len(below[0]) + len(chart.x.label) + 2 <= width:
        below = [f"{below[0]}  {chart.x.label}"]
    scale = "" if numbers else f"{_SHADES[1]} {low:.4g}  {_SHADES[-1]} {high:.4g}  "
    below.append(scale + visible(chart.value.label, width - 20))
    if together > 1:
        below.append(f"a row is {together} {chart.y.title}s, their largest"[:width])
    return [*lines, *(Text(visible(text), style="dim") for text in below)]


def _written(value: float) -> tuple[str, str]:
    """A cell as a number, where there is room for it."""
    if not math.isfinite(value):
        return f"{'·':>{_WIDE}}", "dim"
    return f"{value:>{_WIDE}.2f}", "default"


def _shade(value: float, low: float, high: float, wide: int) -> tuple[str, str]:
    if not math.isfinite(value):
        return "·" * wide if math.isnan(value) else "!" * wide, "dim"
    part = max(0.0, (value - low) / (high - low)) if high > low else 0.0
    level = min(4, 1 + int(4 * part))
    return _SHADES[level] * wide, "red" if level == 4 else "yellow" if level == 3 else "default"


def _largest(rows: Sequence[Sequence[float]]) -> list[float]:
    return [_top(column) for column in zip(*rows, strict=True)]


def _top(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return max(finite) if finite else float("nan")
