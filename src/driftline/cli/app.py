"""All commands and their options; each loads what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.cli.analysis_app import add_questions
from driftline.cli.import_app import export_command, import_command
from driftline.cli.lazy_command import MARKUP, command
from driftline.cli.options import Bootstrap, Config, LogLevel, Prefix, Root, settings_of
from driftline.cli.outcome import Level, entry, finish, set_up_logging
from driftline.cli.replay_app import replay
from driftline.cli.spool_app import spool_app
from driftline.cli.storage_app import storage_app

if TYPE_CHECKING:
    from driftline.settings import Settings

app = typer.Typer(
    help="Metrics, checkpoints and evaluations of model training as one replayable stream.",
    epilog="A first look: driftline demo. On a Kafka of your own: start streams, scheduler, sink and "
    "evaluator, each with --bootstrap or DRIFTLINE_BOOTSTRAP, then driftline watch.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check the settings file, show what is in effect.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(spool_app, name="spool")
app.add_typer(storage_app, name="storage")
command(app, panel="Look")(replay)
command(app, "import", panel="Files")(import_command)
command(app, "export", panel="Files")(export_command)
add_questions(app)


def _role(
    name: str,
    module: str,
    function: str,
    *,
    config: Path | None,
    bootstrap: str | None,
    prefix: str | None,
    root: str | None = None,
    log_level: Level,
) -> None:
    """Runs a role's entry function with the settings until it is stopped."""

    def run() -> int:
        set_up_logging(log_level, role=name)
        settings = settings_of(config, bootstrap, prefix, root)
        role: Callable[[Settings], int] = entry(module, function)
        return role(settings)

    finish(run, name=name, debug=log_level is Level.DEBUG)


@command(app, panel="Roles: one process each")
def streams(
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    log_level: LogLevel = Level.INFO,
) -> None:
    """Stream worker: windows, detectors, triggers.

    Reads telemetry, writes windows, facts, alerts and evaluation requests. Start as many as you like: they
    share the partitions. Ends in order on SIGTERM and Ctrl-C; killed, it loses and doubles nothing.
    """
    _role(
        "streams",
        "driftline.streams.worker",
        "run_streams",
        config=config,
        bootstrap=bootstrap,
        prefix=prefix,
        log_level=log_level,
    )


@command(app, panel="Roles: one process each")
def scheduler(
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    log_level: LogLevel = Level.INFO,
) -> None:
    """Scheduler: gives evaluation requests to evaluators.

    One works at a time; further ones stand by. Ends in order on SIGTERM and Ctrl-C.
    """
    _role(
        "scheduler",
        "driftline.streams.worker",
        "run_scheduler",
        config=config,
        bootstrap=bootstrap,
        prefix=prefix,
        log_level=log_level,
    )


@command(app, panel="Roles: one process each")
def evaluator(
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    log_level: LogLevel = Level.INFO,
) -> None:
    """Evaluator: loads checkpoints and runs the suites on them.

    One per GPU, on any host that sees the checkpoints; suites are imported from its Python path. Ends in
    order on SIGTERM and Ctrl-C: what it was evaluating goes to another one.
    """
    _role(
        "evaluator",
        "driftline.evaluator.service",
        "run_evaluator",
        config=config,
        bootstrap=bootstrap,
        prefix=prefix,
        log_level=log_level,
    )


@command(app, panel="Roles: one process each")
def sink(
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    root: Root = None,
    log_level: LogLevel = Level.INFO,
) -> None:
    """Sink: writes everything to tables of Parquet files, once.

    Ends in order on SIGTERM and Ctrl-C; killed, it goes on where the tables end.
    """
    _role(
        "sink",
        "driftline.storage.sink",
        "run_sink",
        config=config,
        bootstrap=bootstrap,
        prefix=prefix,
        root=root,
        log_level=log_level,
    )


@command(app, panel="Roles: one process each")
def broker(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 9092,
    log_level: LogLevel = Level.INFO,
) -> None:
    """Embedded broker, for a first look and for development.

    Speaks Kafka's protocol, keeps everything in memory: what it holds ends with it. For real use take Apache
    Kafka (docker compose up).
    """

    def run() -> int:
        set_up_logging(log_level, role="broker")
        serve: Callable[..., int] = entry("driftline.broker", "serve")
        return serve(port=port)

    finish(run, name="broker", debug=log_level is Level.DEBUG)


@command(app, panel="Look")
def watch(
    run: Annotated[str | None, typer.Argument(help="Run id or name. Default: the one heard of last.")] = None,
    since: Annotated[str, typer.Option(help='How far back to read: "10m", "2h", or "all".')] = "1h",
    once: Annotated[bool, typer.Option("--once", help="Show what is there now and end.")] = False,
    lines: Annotated[bool, typer.Option("--lines", help="A line per event, as in a pipe.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between pictures.")] = 1.0,
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Live view of the runs on a broker: progress, curves, evaluations, alerts.

    Only reads; start and stop it as you like. Where the output is no terminal it prints lines instead.
    """

    def show() -> int:
        set_up_logging(log_level, role="watch")
        from driftline.cli.watch import watch as live

        settings = settings_of(config, bootstrap, prefix)
        return live(
            settings.kafka,
            run=run,
            since_s=_seconds(since),
            once=once,
            lines=lines,
            interval_s=interval,
            first=settings.metrics,
        )

    finish(show, name="watch", debug=log_level is Level.DEBUG)


def _seconds(since: str) -> float | None:
    from driftline import units
    from driftline.errors import SettingsError

    if since == "all":
        return None
    try:
        return units.duration_us(since) / 1_000_000
    except ValueError as error:
        raise SettingsError("--since", since, f'{error}, or "all"') from None


@command(app, panel="Look")
def sql(
    query: Annotated[str, typer.Argument(help='The query, or "-" to read it from standard input.')],
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header.")] = False,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows shown in a table; JSON and CSV have all.")] = 100,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Answer an SQL query (DuckDB) from the tables.

    Needs no broker and no other process. Try: driftline sql "show tables".
    """

    def answer() -> int:
        set_up_logging(log_level, role="sql")
        from driftline.cli.sql import print_answer

        text = sys.stdin.read() if query == "-" else query
        form = "json" if as_json else "csv" if as_csv else "table"
        return print_answer(settings_of(config, root=root).storage.root, text, form=form, max_rows=max_rows)

    finish(answer, name="sql", debug=log_level is Level.DEBUG)


@command(app, panel="Look")
def demo(
    root: Annotated[str, typer.Option(help="Folder for tables, checkpoints, logs and the report.")] = (
        "./driftline-data"
    ),
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps; the default takes one to two minutes on two cores."),
    ] = None,
    seconds_max: Annotated[
        float | None, typer.Option(min=1, help="The training ends in order after so long, however far it is.")
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Kafka broker to use. Default: an embedded one is started.")
    ] = None,
    plain: Annotated[
        bool | None,
        typer.Option("--plain/--live", help="Lines instead of the live view. Default: live on a terminal."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare what was found with what was caused; fail if it differs.")
    ] = False,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """A real training, watched, evaluated and stored, in about two minutes.

    Starts an embedded broker, one process of each role and four training ranks on this machine. One rank is
    really slowed and one loss spike really caused: both must be found. Everything stays in the root folder.
    """

    def run() -> int:
        set_up_logging(log_level, role="demo")
        options = {"steps": steps, "seconds_max": seconds_max}
        run_demo: Callable[..., int] = entry("driftline.demo.orchestrate", "run_demo")
        given = {name: value for name, value in options.items() if value is not None}
        return run_demo(root=root, bootstrap=bootstrap, plain=plain, check=check, **given)

    finish(run, name="demo", debug=log_level is Level.DEBUG)


@command(app, panel="Look")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    print(installed("driftline"))


@command(config_app, "check")
def config_check(
    file: Annotated[
        Path | None, typer.Argument(help="Default: $DRIFTLINE_CONFIG, else ./driftline.yaml.")
    ] = None,
) -> None:
    """Check a settings file together with the environment; exit code 2 if something is wrong."""

    def check() -> int:
        settings = settings_of(file)
        print(f"{settings.source or 'the defaults'}: fine")
        return 0

    finish(check, name="config check", debug=False)


@command(config_app, "show")
def config_show(
    file: Annotated[
        Path | None, typer.Argument(help="Default: $DRIFTLINE_CONFIG, else ./driftline.yaml.")
    ] = None,
) -> None:
    """Print the settings in effect as YAML, every default written out, secrets hidden."""

    def show() -> int:
        from driftline.settings_docs import in_effect

        print(in_effect(file, os.environ), end="")
        return 0

    finish(show, name="config show", debug=False)


@command(config_app, "docs")
def config_docs() -> None:
    """Print the reference of all settings (docs/settings.md)."""

    def show() -> int:
        from driftline.settings_docs import markdown

        print(markdown(), end="")
        return 0

    finish(show, name="config docs", debug=False)
