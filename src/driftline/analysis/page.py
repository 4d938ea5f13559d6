"""Pages as one HTML file that needs nothing else: no network, no script; light, dark, print, narrow."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape as html_escape

from driftline.analysis.answer import Answer, Table
from driftline.analysis.chart import Chart, Heat
from driftline.visible import visible

CSS = """
:root { --ink: #1f2933; --soft: #5b6875; --faint: #c9d1d9; --paper: #fff; --card: #f5f7f9;
  --line: #e1e6eb; --alert: #b93446; --good: #177a5a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b4; --faint: #4a5561;
  --paper: #14191f; --card: #1c232b; --line: #2d3640; --alert: #f0808e; --good: #53c79e; } }
@media print { :root { --ink: #111; --soft: #444; --faint: #bbb; --paper: #fff; --card: #fff;
  --line: #ccc; --alert: #a02030; --good: #146b4e; }
  main { max-width: none !important; padding: 0 !important; }
  tr, figure, .tile { break-inside: avoid; } h2 { break-after: avoid; }
  .bar { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; overflow-wrap: anywhere; }
@media (max-width: 600px) { main { padding: 20px 14px 40px; } }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 10px; }
h3 { font-size: 15px; margin: 20px 0 6px; }
p { margin: 6px 0; max-width: 82ch; }
.sub, .note { color: var(--soft); }
.note { font-size: 13.5px; }
.verdict { border-left: 4px solid var(--good); background: var(--card); padding: 12px 16px; margin: 18px 0;
  border-radius: 0 8px 8px 0; }
.verdict.troubled { border-color: var(--alert); } .warn { color: var(--alert); }
.verdict ul { margin: 0; padding-left: 18px; } .verdict li { margin: 3px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 22px 0 8px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; }
.tile b { display: block; font-size: 22px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr));
  gap: 12px 20px; }
.charts .whole { grid-column: 1 / -1; }
figure { margin: 12px 0; min-width: 0; }
figure svg { width: 100%; height: auto; display: block; }
.whole { overflow-x: auto; } .whole svg { min-width: 520px; max-width: 900px; }
.wide { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: 14px; }
caption { text-align: left; font-weight: 600; padding: 6px 0; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 6px 18px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { max-width: 60ch; overflow-wrap: break-word; }
.number { text-align: right; white-space: nowrap; }
.bar { display: inline-block; height: 9px; border-radius: 2px; background: var(--good);
  vertical-align: middle; }
.bad { color: var(--alert); font-weight: 600; white-space: nowrap; }
.answer table { width: auto; margin-bottom: 22px; }
pre, code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
h1 code { font-size: 22px; font-weight: 400; color: var(--soft); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; overflow-x: auto; margin: 8px 0; white-space: pre-wrap; }
details { margin: 6px 0; } summary { color: var(--soft); cursor: pointer; font-size: 13.5px; }
"""
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M1 13L6 7l3 3 6-8" fill="none" '
    'stroke="#1f9d74" stroke-width="2"/></svg>'
)
ROWS_MAX = 100
"""Rows of a table on a page."""
CELL_MAX = 2_000


def escape(text: str) -> str:
    """Text for HTML: what is stored can neither be markup nor turn the direction of writing."""
    return html_escape(visible(text, CELL_MAX))


def document(title: str, parts: Iterable[str]) -> str:
    """The whole file around its parts, which are HTML already."""
    icon = "data:image/svg+xml;base64," + base64.b64encode(_ICON.encode()).decode()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="{icon}">'
        f"<style>{CSS}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def page_of(answer: Answer, footer: Sequence[str] = ()) -> str:
    """One answer as a page."""
    foot = "".join(f'<p class="note">{escape(line)}</p>' for line in footer)
    return document(answer.title, [f"<h1>{escape(answer.title)}</h1>", body_of(answer, prefix="a"), foot])


def body_of(answer: Answer, *, prefix: str, rows_max: int = ROWS_MAX) -> str:
    """What an answer says, its charts, its tables and its SQL."""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in answer.says)
    if answer.empty:
        said += f'<p class="note">{escape(answer.empty)}</p>'
    said += "".join(f'<p class="note">{escape(note)}</p>' for note in answer.notes)
    tables = "".join(table_of(each, rows_max=rows_max) for each in answer.tables if each.rows)
    sql = "\n".join(answer.sql)
    asked = f"<details><summary>SQL</summary><pre>{escape(sql)}</pre></details>" if sql else ""
    return said + charts_of(answer.charts, prefix=prefix) + tables + asked


def charts_of(charts: Sequence[Chart], *, prefix: str) -> str:
    """Charts side by side where there is room."""
    from driftline.analysis.picture import svg

    figures = []
    for at, chart in enumerate(charts):
        whole = isinstance(chart, Heat) or (len(charts) % 2 == 1 and at == len(charts) - 1)
        drawn = svg(chart, prefix=f"{prefix}{at}-", wide=whole)
        kind = ' class="whole"' if whole else ""
        figures.append(f"<figure{kind}>{drawn}</figure>")
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def table_of(table: Table, *, rows_max: int = ROWS_MAX) -> str:
    """A table, cut at ``rows_max``, which it says."""
    rows = []
    for row in table.rows[:rows_max]:
        rows.append([(escape(c.text(row)), _is_number(row.get(c.name))) for c in table.columns])
    numeric = [any(row[at][1] for row in rows) for at in range(len(table.columns))]
    left = len(table.rows) - rows_max
    more = f'<p class="note">and {left:,} more rows</p>' if left > 0 else ""
    heads = [column.head for column in table.columns]
    texts = [[text for text, _ in row] for row in rows]
    text = html_table(heads, texts, caption=table.title, numeric=numeric) + more
    if not table.drawn:
        return text
    return f"<details><summary>{escape(table.title or 'the numbers')}</summary>{text}</details>"


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", numeric: Sequence[bool] = ()
) -> str:
    """A table; the cells are HTML already, the heads and the caption are text."""
    kinds = [' class="number"' if at < len(numeric) and numeric[at] else "" for at in range(len(heads))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(text)}</th>' for text, kind in zip(heads, kinds, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    titled = f"<caption>{escape(caption)}</caption>" if caption else ""
    inside = f"{titled}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table>{inside}</table></div>'


def tiles(boxes: Iterable[tuple[str, str]]) -> str:
    """Key figures: a number, and what it is."""
    drawn = "".join(f'<div class="tile"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in boxes)
    return f'<div class="tiles">{drawn}</div>'


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
