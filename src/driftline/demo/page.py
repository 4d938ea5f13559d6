"""The report of a run as one HTML file that needs nothing else: no network, no script; light, dark, print."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from driftline.demo import figure
from driftline.demo.findings import Findings
from driftline.demo.questions import Answer
from driftline.demo.wording import command, open_for, rank_of, steps_of, toll_lines, with_interval

_CSS = """
:root { --ink: #1f2933; --soft: #5b6875; --faint: #c9d1d9; --paper: #fff; --card: #f5f7f9;
  --line: #e1e6eb; --alert: #b93446; --good: #177a5a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --soft: #9aa7b4; --faint: #4a5561;
  --paper: #14191f; --card: #1c232b; --line: #2d3640; --alert: #f0808e; --good: #53c79e; } }
@media print { :root { --ink: #111; --soft: #444; --faint: #bbb; --paper: #fff; --card: #fff;
  --line: #ccc; --alert: #a02030; --good: #146b4e; }
  main { max-width: none !important; padding: 0 !important; }
  section, tr, figure, .tile { break-inside: avoid; } h2 { break-after: avoid; }
  .bar { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 10px; }
p { margin: 6px 0; max-width: 82ch; }
.sub, .note { color: var(--soft); }
.note { font-size: 13.5px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 22px 0 8px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; }
.tile b { display: block; font-size: 22px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
figure { margin: 12px 0; }
figure svg { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 6px 18px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.bar { display: inline-block; height: 9px; border-radius: 2px; background: var(--good);
  vertical-align: middle; }
.bad { color: var(--alert); font-weight: 600; white-space: nowrap; }
.answer table { width: auto; margin-bottom: 22px; }
pre, code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
h1 code { font-size: 22px; font-weight: 400; color: var(--soft); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; overflow-x: auto; margin: 8px 0; }
"""
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M1 13L6 7l3 3 6-8" fill="none" '
    'stroke="#1f9d74" stroke-width="2"/></svg>'
)
_INTRODUCTION = (
    "A transformer of two layers learns to add numbers, on four data-parallel ranks. Everything on this page "
    "was read from the tables that Driftline wrote while it trained."
)
_MARKS = (
    "Red: what the detectors found, at the steps that they name. They know nothing of the faults that the "
    "demonstration causes: one rank is slow for a while, and the learning rate is too high for two steps."
)
_ITEMS = (
    "300 sums that training never sees, answered greedily by each checkpoint in a process of its own. The "
    "interval of accuracy is Wilson's. The length of a response is counted in tokens until it stops."
)


def html(found: Findings, answers: Sequence[Answer]) -> str:
    """The page."""
    parts = [
        f"<h1>Driftline demonstration <code>{escape(found.run)}</code></h1>",
        f'<p class="sub">{_INTRODUCTION}</p>',
        _tiles(found),
        f'<h2>Curves</h2><figure aria-label="Curves over training steps">{figure.svg(found)}</figure>',
        f'<p class="note">{_MARKS}</p>',
        _alerts(found),
        _evaluations(found),
        _toll(found),
        _questions(answers, found),
    ]
    icon = "data:image/svg+xml;base64," + base64.b64encode(_ICON.encode()).decode()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Driftline: run {escape(found.run)}</title><link rel="icon" href="{icon}">'
        f"<style>{_CSS}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(found: Findings) -> str:
    tiles = [
        (f"{found.last_step:,}", f"steps in {found.seconds:.0f} s, on {found.ranks} ranks"),
        (f"{found.samples:,}", "samples stored"),
        (str(found.evaluations), f"evaluations, of {found.evaluated} of {found.checkpoints} checkpoints"),
        (str(len(found.alerts)), "alerts"),
        (f"{max(0.0, found.toll.total):.1f} s", "taken from training by evaluation"),
    ]
    scores = found.scores.get("accuracy", [])
    if scores:
        first, last = scores[0], scores[-1]
        says = f"accuracy at the end [{last.low:.1%}, {last.high:.1%}], from {first.value:.1%}"
        tiles.insert(0, (f"{last.value:.1%}", says))
    boxes = "".join(f'<div class="tile"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in tiles)
    return f'<div class="tiles">{boxes}</div>'


def _alerts(found: Findings) -> str:
    rows = [
        (
            f'<span class="bad">{escape(alert.rule)}</span>',
            escape(alert.severity),
            rank_of(alert),
            steps_of(alert),
            open_for(alert),
            escape(alert.explanation),
        )
        for alert in found.alerts
    ]
    heads = ("alert", "severity", "rank", "steps", "open for", "what")
    return "<h2>Alerts</h2>" + (_table(heads, rows) if rows else "<p>None.</p>")


def _evaluations(found: Findings) -> str:
    def cell(metric: str, step: int, digits: int) -> str:
        scores = [score for score in found.scores.get(metric, []) if score.step == step]
        return with_interval(scores[0], digits) if scores else "-"

    rows = [
        (
            str(score.step),
            with_interval(score),
            f'<span class="bar" style="width:{round(120 * score.value)}px"></span>',
            cell("response_length", score.step, 2),
            cell("perplexity", score.step, 3),
        )
        for score in found.scores.get("accuracy", [])
    ]
    heads = ("step", "accuracy [95 % interval]", "", "response length, tokens", "perplexity of right answers")
    return f'<h2>Evaluations</h2>{_table(heads, rows)}<p class="note">{_ITEMS}</p>'


def _toll(found: Findings) -> str:
    first, how = toll_lines(found.toll)
    return (
        f"<h2>Time that evaluation took from training</h2><p>{escape(first)}</p>"
        f'<p class="note">{escape(how)}</p>'
    )


def _questions(answers: Sequence[Answer], found: Findings) -> str:
    parts = ["<h2>Three questions to the tables</h2>"]
    for answer in answers:
        table = _table(answer.columns, [tuple(map(escape, row)) for row in answer.rows])
        parts.append(
            f'<section class="answer"><p>{escape(answer.question.asks)}</p>'
            f"<pre>{escape(answer.question.sql)}</pre>{table}</section>"
        )
    root = escape(str(found.root))
    parts.append(
        "<p>Ask your own, with nothing else running:</p>"
        f'<pre>{escape(command(absolute=True))} sql --root {root} "SELECT * FROM run_summary"\n'
        f"duckdb -readonly {root}/catalog.duckdb</pre>"
    )
    return "".join(parts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the cells are HTML already."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
