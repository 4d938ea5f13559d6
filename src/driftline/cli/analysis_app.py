"""The commands that answer questions: ``driftline curve``, ``compare``, ``goodput``, ``report``, ..."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from driftline.cli.lazy_command import command
from driftline.cli.options import Config, LogLevel, Root, settings_of
from driftline.cli.outcome import Level, finish, set_up_logging

PANEL = "Ask"
Options = dict[str, Any]


class Way(StrEnum):
    """Which way is better."""

    MAX = "max"
    MIN = "min"


_METRIC = "[RUN] [METRIC]"
_HELP = {
    _METRIC: "A run, by id or name, and a metric. Default: the newest run, and its first metric with a goal.",
    "[RUN]": "A run, by id or name. Default: the newest.",
    "[RUN]...": "Runs, by id or name.",
    "[RUN] [RUN] [METRIC]": "Two runs, by id or name, and a metric. Default: the two newest runs, and the "
    "first metric with a goal.",
    "[RUN] [METRIC] [METRIC]": "A run, by id or name; then nothing for all pairs of metrics, one metric for "
    "all others against it, or two.",
    "[RUN] [SPAN]": "A run, by id or name, and a span. Default: the newest run and all its spans.",
}


def _shared(
    *,
    root: Root = None,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with all rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="The first table as CSV, all rows.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write the answer as an HTML page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write its charts as a PNG picture.")] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows of a table that are printed.")] = 20,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """The options of every question."""


def _asks(app: typer.Typer, words: str) -> Callable[[Callable[..., Options]], Callable[..., Options]]:
    """Makes a command of a function that turns the question's own options into a dictionary."""

    def with_options(function: Callable[..., Options]) -> Callable[..., None]:
        name = function.__name__
        own = list(inspect.signature(function, eval_str=True).parameters.values())
        shared = list(inspect.signature(_shared, eval_str=True).parameters.values())
        named = inspect.Parameter(
            "words",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[str] | None, typer.Argument(metavar=words, help=_HELP[words], show_default=False)
            ],
        )
        parameters = [named, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *shared]

        @wraps(function)
        def asking(**given: Any) -> None:
            _finish(name, given, lambda: function(**{p.name: given[p.name] for p in own}))

        asking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        asking.__annotations__ = {p.name: p.annotation for p in parameters}
        return asking

    return command(app, panel=PANEL, with_options=with_options)


def _finish(name: str, given: dict[str, Any], own: Callable[[], Options]) -> None:
    def go() -> int:
        set_up_logging(given["log_level"], role=name)
        options = own()
        from driftline.cli.analysis import print_answer

        return print_answer(
            name,
            given["words"] or [],
            options,
            root=settings_of(given["config"], root=given["root"]).storage.root,
            form="json" if given["as_json"] else "csv" if given["as_csv"] else "text",
            html=given["html"],
            png=given["png"],
            max_rows=given["max_rows"],
        )

    finish(go, name=name, debug=given["log_level"] is Level.DEBUG)


def _refuse(why: str, **options: object) -> None:
    """What would be passed over without a word. Raises SettingsError where one of ``options`` was given."""
    from driftline.errors import SettingsError

    for name, value in options.items():
        if value is not None and value is not False:
            raise SettingsError("", None, f"--{name.replace('_', '-')} {why}: leave it out")


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Runs, by id or name. Default: the newest.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric whose curve to show; several times for several.")
    ] = None,
    root: Root = None,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Write one HTML page of a run, or of several compared, to send to a colleague.

    The file needs nothing else: no network, no script.
    """

    def go() -> int:
        set_up_logging(log_level, role="report")
        from driftline.cli.analysis import write_report

        return write_report(
            runs or [], metric or [], root=settings_of(config, root=root).storage.root, out=out
        )

    finish(go, name="report", debug=log_level is Level.DEBUG)


def add_questions(app: typer.Typer) -> None:
    """Adds the commands to ``app``."""
    command(app, panel=PANEL)(report)

    @_asks(app, _METRIC)
    def curve(
        smooth: Annotated[
            float, typer.Option(min=0, help="Weight of the past (0 to 1), or a window of steps (from 1).")
        ] = 0.0,
        points: Annotated[int, typer.Option(min=0, help="Thin to about so many points; 0: all.")] = 1000,
        log: Annotated[bool, typer.Option("--log", help="Logarithmic axis.")] = False,
        ranks: Annotated[
            bool, typer.Option("--ranks", help="How its ranks spread at each step, and which is at the edge.")
        ] = False,
    ) -> Options:
        """A metric over the steps of a run, with its alerts and checkpoints."""
        if ranks:
            _refuse("means nothing with --ranks", smooth=smooth or None)
        return {"smooth": smooth, "points": points, "log": log, "ranks": ranks or None}

    @_asks(app, "[RUN] [SPAN]")
    def ranks() -> Options:
        """Which rank is slow, by how much, and whether it is always the same one."""
        return {}

    @_asks(app, "[RUN]")
    def steps(
        factor: Annotated[float, typer.Option(min=1, help="How many times as fast a span would be.")] = 2.0,
    ) -> Options:
        """What a step is made of, who holds it up, and what a faster span would give."""
        return {"factor": factor}

    @_asks(app, "[RUN] [METRIC]")
    def evals(
        better: Annotated[Way | None, typer.Option(help="Default: the declared goal.")] = None,
        mismatch: Annotated[
            str | None,
            typer.Option(
                help="A metric of the training: does the evaluated METRIC fall while this one improves?",
                metavar="METRIC",
            ),
        ] = None,
        train_better: Annotated[
            Way | None, typer.Option(help="Of that metric. Default: its declared goal, else max.")
        ] = None,
    ) -> Options:
        """Evaluation curves with their intervals, the best checkpoint, and what they cost."""
        if mismatch is None:
            _refuse("belongs to --mismatch", train_better=train_better)
        options = {"better": better and better.value, "mismatch": mismatch}
        return {**options, "train_better": train_better and train_better.value}

    @_asks(app, _METRIC)
    def trend(
        target: Annotated[float | None, typer.Option(help="When will it be reached?")] = None,
        over: Annotated[int | None, typer.Option(min=1, help="Last steps looked at. Default: half.")] = None,
        ahead: Annotated[int | None, typer.Option(min=1, help="Steps to look ahead.")] = None,
        better: Annotated[
            Way | None, typer.Option(help="Default: the declared goal, else the way it went.")
        ] = None,
    ) -> Options:
        """Where a metric is going: slope, forecast, time to a target, plateau."""
        return {"target": target, "over": over, "ahead": ahead, "better": better and better.value}

    @_asks(app, "[RUN] [RUN] [METRIC]")
    def compare(
        axis: Annotated[
            str | None, typer.Option(help="step, time, or a metric to align by. Default: step.")
        ] = None,
        running: Annotated[
            bool, typer.Option("--running", help="Align by that metric's running sum, e.g. of tokens.")
        ] = False,
        last: Annotated[
            float | None, typer.Option(min=0, max=1, help="Part that is judged. Default: the last half.")
        ] = None,
        better: Annotated[Way | None, typer.Option(help="Default: the declared goal.")] = None,
        final: Annotated[
            bool,
            typer.Option(
                "--final",
                help="Groups of repeated runs by their last values (Welch's test); a name stands for all "
                "of its runs.",
            ),
        ] = False,
        first: Annotated[
            list[str] | None,
            typer.Option(help="With --final: a further run of the first group.", metavar="RUN"),
        ] = None,
        second: Annotated[
            list[str] | None,
            typer.Option(help="With --final: a further run of the second group.", metavar="RUN"),
        ] = None,
        last_points: Annotated[
            int, typer.Option(min=1, help="With --final: the last value is the mean of so many points.")
        ] = 1,
    ) -> Options:
        """How the second run differs from the first, with an interval."""
        options: Options = {"axis": axis, "running": running or None, "last": last}
        options |= {"better": better and better.value, "final": final or None}
        if not final:
            several = last_points if last_points > 1 else None
            _refuse("belongs to --final", first=first, second=second, last_points=several)
            return options
        _refuse("means nothing with --final", axis=axis, running=running, last=last, better=better)
        return {**options, "first": first, "second": second, "last_points": last_points}

    @_asks(app, "[RUN] [METRIC] [METRIC]")
    def correlate(
        lag: Annotated[int | None, typer.Option(min=0, help="Try lags up to so many steps.")] = None,
        since: Annotated[int | None, typer.Option(help="From this step on.")] = None,
        until: Annotated[int | None, typer.Option(help="Up to this step.")] = None,
    ) -> Options:
        """Which metrics move together, beyond chance and beyond drift."""
        return {"lag": lag, "since": since, "until": until}

    @_asks(app, _METRIC)
    def drivers(
        at: Annotated[
            int | None, typer.Option(help="Step of the change. Default: where the level changed most.")
        ] = None,
        back: Annotated[int | None, typer.Option(min=1, help="Steps before it to learn from.")] = None,
    ) -> Options:
        """Which metrics left their course before a change of one."""
        return {"at": at, "back": back}

    @_asks(app, "[RUN] [RUN] [METRIC]")
    def cost(
        price: Annotated[float | None, typer.Option(min=0, help="Money for an hour of one device.")] = None,
        tokens: Annotated[str | None, typer.Option(help="Metric that counts tokens.")] = None,
        last: Annotated[
            float | None, typer.Option(min=0, max=1, help="Part that is judged. Default: the last half.")
        ] = None,
        better: Annotated[Way | None, typer.Option(help="Default: the declared goal.")] = None,
    ) -> Options:
        """What the second run bought over the first: metric gained against time and money."""
        return {"price": price, "tokens": tokens, "last": last, "better": better and better.value}

    @_asks(app, "[RUN]")
    def goodput() -> Options:
        """Where the wall time of a run went: a ledger that adds up."""
        return {}

    @_asks(app, "[RUN]")
    def utilisation(
        every: Annotated[int | None, typer.Option(min=1, help="Seconds over which means are taken.")] = None,
        below: Annotated[
            float | None, typer.Option(min=0, max=100, help="A GPU used less (percent) is idle.")
        ] = None,
    ) -> Options:
        """What GPU, memory and network did, against throughput; GPU time paid for and not used."""
        return {"every": every, "below": below}

    @_asks(app, "[RUN]")
    def scaling(
        skip: Annotated[int | None, typer.Option(min=0, help="First steps left out.")] = None,
    ) -> Options:
        """Throughput and efficiency against the number of ranks, over the runs of the run's name."""
        return {"skip": skip}

    @_asks(app, _METRIC)
    def lineage(
        step: Annotated[int | None, typer.Option(help="Step of the number. Default: the last.")] = None,
    ) -> Options:
        """From a number back to its records, offsets and configuration, and what rests on it."""
        return {"step": step}
