"""The commands ``driftline spool status``, ``send`` and ``drop``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.cli.lazy_command import command
from driftline.cli.options import Bootstrap, Config, LogLevel, Prefix, settings_of
from driftline.cli.outcome import Level, finish, set_up_logging

if TYPE_CHECKING:
    from driftline.producers.disk import Disk
    from driftline.settings import SdkSettings

spool_app = typer.Typer(
    help="What trainers spooled to this host's disk while their broker was away.", no_args_is_help=True
)
Folder = Annotated[
    str | None,
    typer.Option(
        "--spool",
        help="Folder of the spools. Default: `sdk.spool`, else ~/.local/state/driftline/spool.",
        show_default=False,
    ),
]
OfRun = Annotated[str | None, typer.Option("--run", help="Only this run, by id or name.")]


def _disk(sdk: SdkSettings, folder: str | None) -> Disk:
    from driftline.producers.disk import FileDisk, place

    return FileDisk(place(folder or sdk.spool, os.environ))


@command(spool_app)
def status(
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per spool.")] = False,
    config: Config = None,
) -> None:
    """Show what waits, of which run, for which broker, and whether its process lives.

    Reads only; needs no broker.
    """

    def show() -> int:
        from driftline.cli.spool import print_status

        return print_status(_disk(settings_of(config).sdk, folder), as_json=as_json)

    finish(show, name="spool status", debug=False)


@command(spool_app)
def send(
    run: OfRun = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what was written for another broker or prefix.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(min=0.1, max=86_400, help="Give up when the broker takes nothing for so many seconds."),
    ] = 30.0,
    folder: Folder = None,
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Send what dead processes left, in order, and delete it once the broker has it.

    What a live process spooled is left to it. Stopped or killed in the middle, start it again: nothing is
    lost, and readers drop what comes twice.
    """

    def go() -> int:
        from driftline.cli.spool import send as send_all

        set_up_logging(log_level, role="spool")
        settings = settings_of(config, bootstrap, prefix)
        return send_all(
            _disk(settings.sdk, folder),
            settings.kafka,
            run=run,
            other_brokers=everything,
            patience_us=int(wait * 1_000_000),
        )

    finish(go, name="spool send", debug=log_level is Level.DEBUG)


@command(spool_app)
def drop(
    run: OfRun = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: Folder = None,
    config: Config = None,
) -> None:
    """Delete what dead processes left, without sending it. Asks first."""

    def go() -> int:
        from driftline.cli.spool import drop as drop_all

        def confirm(question: str) -> bool:
            return yes or typer.confirm(question)

        return drop_all(_disk(settings_of(config).sdk, folder), run=run, confirm=confirm)

    finish(go, name="spool drop", debug=False)
