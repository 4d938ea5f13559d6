"""What a run of the demonstration found, at its end: tables to read, a picture, a page, SQL to try."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

from driftline.demo import figure, page
from driftline.demo.findings import AlertFound, Findings, find
from driftline.demo.questions import Answer, ask, questions
from driftline.demo.wording import command, open_for, steps_of, toll_lines, with_interval

ROWS_MAX = 14
"""Rows of an answer that are printed."""


def present(root: Path, run: str, *, console: Console) -> None:
    """Prints the summary, writes ``report.png`` and ``report.html`` beside the run's other files.

    Raises:
        BadData: the run is not in the tables.
    """
    found = find(root, run)
    answers = ask(root, questions(run))
    folder = root / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.png").write_bytes(figure.png(found))
    (folder / "report.html").write_text(page.html(found, answers), encoding="utf-8")
    _print(found, answers, folder, console)


def _print(found: Findings, answers: Sequence[Answer], folder: Path, console: Console) -> None:
    def say(text: str = "") -> None:
        console.print(text, highlight=False, soft_wrap=True)

    say()
    say(
        f"[bold]Run {found.run}[/]: {found.ranks} ranks, {found.last_step} steps in {found.seconds:.0f} s, "
        f"{found.samples:,} samples, {found.evaluations} evaluations of {found.evaluated} of "
        f"{found.checkpoints} checkpoints, "
        f"{len(found.alerts)} alerts"
    )
    say("\n[bold]Evaluations[/]")
    console.print(_evaluations(found))
    say("\n[bold]Alerts[/]")
    for alert in found.alerts:
        _print_alert(alert, console)
    if not found.alerts:
        say("  none")
    say("\n[bold]Time that evaluation took from training[/]")
    for line in toll_lines(found.toll):
        console.print(Padding(line, (0, 0, 0, 2), expand=False), highlight=False)
    say("\n[bold]Three questions to the tables[/]")
    for answer in answers:
        _print_answer(answer, console)
    root = _relative(found.root)
    say("[bold]Ask your own[/], with nothing else running:")
    say(f'  {escape(command())} sql --root {escape(root)} "SELECT * FROM run_summary"')
    say(f"  duckdb -readonly {escape(root)}/catalog.duckdb   [dim](or any other DuckDB client)[/]")
    say()
    for what, path in (
        ("The curves", folder / "report.png"),
        ("The report", folder / "report.html"),
        ("Logs of all processes", found.root / "logs" / found.run),
    ):
        console.print(f"{what}: [bold]{escape(_relative(path))}[/]", highlight=False, soft_wrap=True)


def _evaluations(found: Findings) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("step", "accuracy, 95 % int.", "", "response length", "perplexity"):
        table.add_column(column, justify="right" if column in ("step", "perplexity") else "left")
    accuracy, length, perplexity = (
        {score.step: score for score in found.scores.get(metric, [])}
        for metric in ("accuracy", "response_length", "perplexity")
    )
    for step in sorted({*accuracy, *length, *perplexity}):
        table.add_row(
            str(step),
            with_interval(accuracy[step]) if step in accuracy else "-",
            "█" * round(12 * accuracy[step].value) if step in accuracy else "",
            with_interval(length[step], 2) if step in length else "-",
            f"{perplexity[step].value:.3f}" if step in perplexity else "-",
        )
    return table


def _print_alert(alert: AlertFound, console: Console) -> None:
    whose = "all ranks" if alert.rank is None else f"rank {alert.rank}"
    end = "still open" if alert.seconds is None else f"resolved after {open_for(alert)}"
    head = f"  [bold]{escape(alert.rule)}[/] ({alert.severity}), {whose}, steps {steps_of(alert)}, {end}"
    console.print(head, highlight=False)
    console.print(Padding(escape(alert.explanation), (0, 0, 0, 4), expand=False), highlight=False)


def _print_answer(answer: Answer, console: Console) -> None:
    console.print(Padding(answer.question.asks, (1, 0, 0, 2), expand=False), highlight=False)
    if console.is_terminal:
        code = Syntax(answer.question.sql, "sql", background_color="default", word_wrap=True)
        console.print(Padding(code, (0, 0, 0, 4), expand=False))
    else:
        console.print(Padding(escape(answer.question.sql), (0, 0, 0, 4), expand=False), highlight=False)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in answer.columns:
        table.add_column(column, justify="right")
    for row in answer.rows[:ROWS_MAX]:
        table.add_row(*map(escape, row))
    if len(answer.rows) > ROWS_MAX:
        table.add_row(f"and {len(answer.rows) - ROWS_MAX} more")
    console.print(Padding(table, (0, 0, 1, 4), expand=False))


def _relative(path: Path) -> str:
    """The path as one would type it here."""
    text = os.path.relpath(path)
    return str(path) if text.startswith("..") else text
