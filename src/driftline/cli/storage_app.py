"""The commands ``driftline storage check``, ``repair``, ``compact`` and ``vacuum``."""

from __future__ import annotations

from typing import Annotated

import typer

from driftline.cli.lazy_command import command
from driftline.cli.options import Bootstrap, Config, LogLevel, Prefix, Root, settings_of
from driftline.cli.outcome import Level, finish, set_up_logging

storage_app = typer.Typer(
    help="Look after the tables. A sink does so by itself; all of it is safe beside one.",
    no_args_is_help=True,
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Tables = Annotated[
    list[str] | None, typer.Option("--table", help="Only this table; may be repeated.", show_default=False)
]


@command(storage_app)
def check(
    quick: Annotated[
        bool, typer.Option("--quick", help="Open the files without reading them whole.")
    ] = False,
    as_json: Json = False,
    root: Root = None,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Verify that files are whole and that rows equal what the offsets promise.

    Every file of every table is read; every record has its rows once, but for what is known to be missing
    (retention, the table gaps). Changes nothing. Exit code 1 if something is wrong, each with its remedy.
    """

    def go() -> int:
        from driftline.cli.storage import print_check

        set_up_logging(log_level, role="storage")
        return print_check(settings_of(config, root=root).storage.root, quick=quick, as_json=as_json)

    finish(go, name="storage check", debug=log_level is Level.DEBUG)


@command(storage_app)
def repair(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore",
            help="Have the sink store lost records again where the topic still has them (asks the broker); "
            "count the others as lost, in gaps.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
    root: Root = None,
    config: Config = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Mend what a check finds: torn commits, missing and broken files, foreign files.

    Nothing is deleted: broken and foreign files move to the folder quarantine. Says which offsets are lost.
    With --restore the sink reads them again from the topic, each record once; until it has, queries lack all
    rows of that table and partition behind the first lost one. Asks first. Exit code 1 if something is still
    wrong afterwards.
    """

    def go() -> int:
        from driftline.cli.storage import mend

        set_up_logging(log_level, role="storage")
        settings = settings_of(config, bootstrap, prefix, root)

        def confirm(question: str) -> bool:
            return yes or typer.confirm(question)

        return mend(settings, dry_run=dry_run, restore=restore, as_json=as_json, confirm=confirm)

    finish(go, name="storage repair", debug=log_level is Level.DEBUG)


@command(storage_app)
def compact(
    table: Tables = None,
    as_json: Json = False,
    root: Root = None,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Merge small files now. Readers see every row once meanwhile; the old files stay for an hour."""

    def go() -> int:
        from driftline.cli.storage import merge

        set_up_logging(log_level, role="storage")
        return merge(settings_of(config, root=root).storage.root, table or [], as_json=as_json)

    finish(go, name="storage compact", debug=log_level is Level.DEBUG)


@command(storage_app)
def vacuum(
    keep_hours: Annotated[
        int,
        typer.Option(
            min=0, max=24 * 365, help="Keep what was replaced within so many hours: running queries read it."
        ),
    ] = 1,
    table: Tables = None,
    as_json: Json = False,
    root: Root = None,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Delete files that compaction or retention replaced, and trim the tables' logs. No row is lost."""

    def go() -> int:
        from driftline.cli.storage import clean

        set_up_logging(log_level, role="storage")
        where = settings_of(config, root=root).storage.root
        return clean(where, table or [], keep_hours=keep_hours, as_json=as_json)

    finish(go, name="storage vacuum", debug=log_level is Level.DEBUG)
