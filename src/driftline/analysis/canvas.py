"""A plot in characters: Braille dots for lines, shades for bands, bars for errors, signs for gaps and marks.

Own code, since the library for this (plotext) keeps one global figure and draws no bands, gaps or marks.
Without colours several lines are told apart by their glyphs, since Braille dots of two lines look alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rich.text import Text

from driftline.analysis.chart import Frame, Line, Mark, Plot, frame, ticks
from driftline.visible import visible

COLOURS = ("bright_blue", "green", "magenta", "yellow", "cyan", "bright_red")
GLYPHS = "•×+○*#"
MARKS = {"alert": "▲", "checkpoint": "◆", "note": "┃"}
MARK_STYLES = {"alert": "red", "checkpoint": "cyan", "note": "yellow"}
GAP = "!"
NAME_MAX = 60
SAID_MAX = 6
"""Marks that are named below a plot."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Cell(NamedTuple):
    glyph: str
    style: str


class Canvas:
    """The inside of a plot: ``rows`` by ``columns`` cells of 4 by 2 dots, row 0 on top."""

    def __init__(self, seen: Frame, columns: int, rows: int, *, colour: bool, single: bool) -> None:
        self.seen = seen
        self.columns, self.rows = columns, rows
        self.braille = colour or single
        self.behind: dict[tuple[int, int], Cell] = {}
        self.front: dict[tuple[int, int], Cell] = {}
        self._bits: dict[tuple[int, int], int] = {}
        self._styles: dict[tuple[int, int], Cell] = {}

    def place(self, x: float, y: float) -> tuple[int, int] | None:
        """The dot at ``(x, y)``; None if it has no place."""
        if not (math.isfinite(x) and math.isfinite(y)) or (self.seen.log and y <= 0):
            return None
        y = math.log10(y) if self.seen.log else y
        across = self._part(x, *self.seen.x) * (2 * self.columns - 1)
        down = (1 - self._part(y, *self.seen.y)) * (4 * self.rows - 1)
        return round(across), round(down)

    @staticmethod
    def _part(value: float, low: float, high: float) -> float:
        return min(1.0, max(0.0, (value / 2 - low / 2) / (high / 2 - low / 2)))

    def column(self, x: float) -> int:
        return round(self._part(x, *self.seen.x) * (2 * self.columns - 1)) // 2

    def draw(self, series: Line, style: str, glyph: str) -> None:
        """One line or cloud of points."""
        if series.low and series.high:
            self._sides(series, style)
        before: tuple[int, int] | None = None
        for x, y in zip(series.x, series.y, strict=True):
            here = self.place(x, y)
            if here is not None and series.form in ("points", "both"):
                self.front[here[0] // 2, here[1] // 4] = Cell("●" if self.braille else glyph, style)
            if here is not None and series.form in ("line", "both"):
                self._stroke(before or here, here, Cell(glyph, style))
            before = here

    def level(self, y: float) -> None:
        """A horizontal line behind the rest."""
        if (here := self.place(self.seen.x[0], y)) is not None:
            for column in range(self.columns):
                self.behind.setdefault((column, here[1] // 4), Cell("┄", "dim"))

    def _sides(self, series: Line, style: str) -> None:
        """The band of a line from dot to dot, or the error bars of points."""
        band = series.form == "line"
        cell = Cell("░", f"dim {style}") if band else Cell("│", style)
        before: tuple[int, int, int] | None = None
        for x, low, high in zip(series.x, series.low or (), series.high or (), strict=True):
            bottom, top = self.place(x, low), self.place(x, high)
            if bottom is None or top is None:
                before = None
                continue
            here = top[0] // 2, top[1] // 4, bottom[1] // 4
            for column, first, last in _between(before if band else None, here):
                for row in range(first, last + 1):
                    self.behind[column, row] = cell
            before = here

    def _stroke(self, start: tuple[int, int], end: tuple[int, int], cell: Cell) -> None:
        count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for at in range(count + 1):
            x = round(start[0] + (end[0] - start[0]) * at / count)
            y = round(start[1] + (end[1] - start[1]) * at / count)
            spot = x // 2, y // 4
            self._bits[spot] = self._bits.get(spot, 0) | _DOTS[x % 2][y % 4]
            self._styles[spot] = cell

    def cell(self, column: int, row: int) -> Cell:
        spot = column, row
        if spot in self.front:
            return self.front[spot]
        if spot in self._bits:
            drawn = self._styles[spot]
            return Cell(chr(0x2800 + self._bits[spot]), drawn.style) if self.braille else drawn
        return self.behind.get(spot, Cell(" ", ""))


def _between(before: tuple[int, int, int] | None, here: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """The columns after ``before`` up to ``here`` with their first and last rows: a band has no slits."""
    if before is None or here[0] <= before[0]:
        return [here]
    width = here[0] - before[0]
    parts = [(at, (at - before[0]) / width) for at in range(before[0] + 1, here[0] + 1)]
    return [
        (at, round(before[1] + (here[1] - before[1]) * part), round(before[2] + (here[2] - before[2]) * part))
        for at, part in parts
    ]


def plot(chart: Plot, width: int, *, colour: bool, height: int = 14) -> list[Text]:
    """The plot as lines of text, none wider than ``width`` where that is at least 30."""
    seen = frame(chart)
    labels = {tick: _number(10**tick if seen.log else tick) for tick in ticks(*seen.y, most=height // 3)}
    margin = max([len(text) for text in labels.values()], default=0)
    columns = max(10, width - margin - 2)
    canvas = Canvas(seen, columns, height, colour=colour, single=len(chart.lines) <= 1)
    if chart.level is not None:
        canvas.level(chart.level)
    for at, series in sorted(enumerate(chart.lines), key=lambda pair: not pair[1].faint):
        style = COLOURS[at % len(COLOURS)] + (" dim" if series.faint else "")
        canvas.draw(series, style, glyph_of(at, series))
    at_row = {
        round((1 - Canvas._part(tick, *seen.y)) * (4 * height - 1)) // 4: text
        for tick, text in labels.items()
    }
    lines = [Text(visible(chart.title, 2 * width), style="bold", overflow="ellipsis", no_wrap=True)]
    lines += _legend(chart, canvas)
    lines.append(Text(f"{'':{margin}} {visible(chart.y.label, columns)}", style="dim"))
    for row in range(height):
        text = Text(f"{at_row.get(row, ''):>{margin}} {'┤' if row in at_row else '│'}", style="dim")
        for column in range(columns):
            cell = canvas.cell(column, row)
            text.append(cell.glyph, cell.style)
        lines.append(text)
    indent = " " * (margin + 1)
    lines += [*_below(canvas, chart, indent), *_said(chart)]
    for text in lines:
        text.rstrip()
    return lines


def glyph_of(at: int, series: Line) -> str:
    """What stands for a line where there are no colours."""
    return "·" if series.faint else GLYPHS[at % len(GLYPHS)]


def _legend(chart: Plot, canvas: Canvas) -> list[Text]:
    if len(chart.lines) < 2 and not (chart.lines and chart.lines[0].low):
        return []
    text = Text()
    for at, series in enumerate(chart.lines):
        sign = ("●" if series.form == "points" else "━") if canvas.braille else glyph_of(at, series)
        style = COLOURS[at % len(COLOURS)] + (" dim" if series.faint else "")
        text.append("  " * (at > 0)).append(sign, style).append(" " + visible(series.name, NAME_MAX))
    return [text]


def _below(canvas: Canvas, chart: Plot, indent: str) -> list[Text]:
    """The axis, its numbers and title, and the rows of signs."""
    axis = ["─"] * canvas.columns
    numbers: list[str] = []
    for tick in ticks(*canvas.seen.x, most=max(2, canvas.columns // 12)):
        column, text = canvas.column(tick), _number(tick)
        start = max(0, min(column - len(text) // 2, canvas.columns - len(text)))
        written = len("".join(numbers))
        if start >= written + (2 if numbers else 0):
            axis[column] = "┬"
            numbers.append(" " * (start - written) + text)
    said = "".join(numbers)
    title = visible(chart.x.label, canvas.columns)
    lines = [Text(f"{indent}└{''.join(axis)}", style="dim"), Text(f"{indent} {said}", style="dim")]
    if len(said) + len(title) + 2 <= canvas.columns:
        room = canvas.columns - len(said) - len(title)
        lines[-1].append(" " * room + title)
    else:
        lines.append(Text(f"{indent} {title:>{canvas.columns}}", style="dim"))
    gaps = {canvas.column(x) for series in chart.lines for x in series.gaps}
    if gaps:
        row = "".join(GAP if column in gaps else " " for column in range(canvas.columns))
        lines.insert(0, Text(f"{indent} {row}", style="bold red"))
    marks = _mark_row(canvas, chart.marks)
    return [*lines, Text(f"{indent} ").append_text(marks)] if marks else lines


def _mark_row(canvas: Canvas, marks: tuple[Mark, ...]) -> Text:
    cells: dict[int, Cell] = {}
    for mark in sorted(marks, key=lambda m: m.kind == "alert"):
        column, style = canvas.column(mark.x), MARK_STYLES[mark.kind]
        for between in range(column + 1, canvas.column(mark.until if mark.until is not None else mark.x) + 1):
            cells[between] = Cell("─", style)
        cells[column] = Cell(MARKS[mark.kind], style)
    text = Text()
    for column in range(canvas.columns if cells else 0):
        text.append(*cells.get(column, Cell(" ", "")))
    return text


def _said(chart: Plot) -> list[Text]:
    """What the signs mean."""
    lines: list[Text] = []
    gaps = sum(len(series.gaps) for series in chart.lines)
    if gaps:
        points = "point is" if gaps == 1 else "points are"
        lines.append(Text(f"{GAP} {gaps} {points} NaN or infinite", style="red"))
    for kind in ("alert", "note"):
        named = [mark for mark in chart.marks if mark.kind == kind]
        for mark in named[:SAID_MAX]:
            until = "" if mark.until in (None, mark.x) else f"-{_number(mark.until or 0)}"
            head = f"{MARKS[kind]} {_number(mark.x)}{until}"
            lines.append(
                Text(head, style=MARK_STYLES[kind]).append(f" {visible(mark.label, 200)}", "default")
            )
        if len(named) > SAID_MAX:
            lines.append(Text(f"{MARKS[kind]} and {len(named) - SAID_MAX} more", style=MARK_STYLES[kind]))
    checkpoints = sum(mark.kind == "checkpoint" for mark in chart.marks)
    if checkpoints:
        sign = MARKS["checkpoint"]
        lines.append(Text(f"{sign} {checkpoints} checkpoint{'s' * (checkpoints != 1)}", style="cyan"))
    return lines


def _number(value: float) -> str:
    """A number on an axis.

    >>> _number(20000.0), _number(0.00012), _number(2.5), _number(3_000_000.0)
    ('20,000', '0.00012', '2.5', '3e+06')
    """
    if value == int(value) and abs(value) < 1_000_000:
        return f"{int(value):,}"
    return f"{value:.4g}"
