"""The report of a run as one HTML file that needs nothing else: no network, no script; light, dark, print."""

from __future__ import annotations

from collections.abc import Sequence

from driftline.analysis.page import document, escape, html_table, tiles
from driftline.demo import figure
from driftline.demo.findings import Findings
from driftline.demo.questions import Answer
from driftline.demo.wording import command, open_for, rank_of, steps_of, toll_lines, with_interval

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
        f"<h2>Curves</h2><figure>{figure.svg(found)}</figure>",
        f'<p class="note">{_MARKS}</p>',
        _alerts(found),
        _evaluations(found),
        _toll(found),
        _questions(answers, found),
    ]
    return document(f"Driftline: run {found.run}", parts)


def _tiles(found: Findings) -> str:
    boxes = [
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
        boxes.insert(0, (f"{last.value:.1%}", says))
    return tiles(boxes)


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
    return "<h2>Alerts</h2>" + (html_table(heads, rows) if rows else "<p>None.</p>")


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
    return f'<h2>Evaluations</h2>{html_table(heads, rows)}<p class="note">{_ITEMS}</p>'


def _toll(found: Findings) -> str:
    first, how = toll_lines(found.toll)
    return (
        f"<h2>Time that evaluation took from training</h2><p>{escape(first)}</p>"
        f'<p class="note">{escape(how)}</p>'
    )


def _questions(answers: Sequence[Answer], found: Findings) -> str:
    parts = ["<h2>Three questions to the tables</h2>"]
    for answer in answers:
        table = html_table(answer.columns, [tuple(map(escape, row)) for row in answer.rows])
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
