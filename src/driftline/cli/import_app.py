"""``driftline import`` and ``export``: from the files of other tools into the tables, and from them to "
"files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftline.cli.options import Config, LogLevel, Root, settings_of
from driftline.cli.outcome import Level, finish, set_up_logging

if TYPE_CHECKING:
    from driftline.importing.reading import Options

_Column = str | None


def import_command(
    sources: Annotated[
        list[Path], typer.Argument(help="Files or folders.", metavar="SOURCE...", show_default=False)
    ],
    root: Root = None,
    run: Annotated[
        str | None,
        typer.Option(help="Id of the run; one that exists gets the rows. Default: of name and path."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="With --run: name of the source, where two have the same file name."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run. Default: that of file or folder.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="csv, jsonl, tensorboard, trainer_state or lm_eval. Default: by the content."
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--form",
            help="Of CSV and JSON lines: wide (a column per metric), long (a row per value) or evals.",
        ),
    ] = None,
    step_column: Annotated[_Column, typer.Option(help='Column of steps; "-" for none, as below.')] = None,
    time_column: Annotated[_Column, typer.Option(help="Column of times: ISO 8601 or a number.")] = None,
    time_unit: Annotated[
        str | None, typer.Option(help="Of numbers in it: s, ms, us or ns. Default: by size.")
    ] = None,
    time_zone: Annotated[str, typer.Option(help="Of times that have none.")] = "UTC",
    elapsed_column: Annotated[
        _Column, typer.Option(help="Column of time since the start (s; ms where the name ends in _ms).")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="When the run began, where the source has no times (ISO 8601).")
    ] = None,
    rank_column: Annotated[_Column, typer.Option(help="Column of ranks.")] = None,
    run_column: Annotated[_Column, typer.Option(help="Column that names the run of each row.")] = None,
    metric_column: Annotated[_Column, typer.Option(help="Long form: column of names.")] = None,
    value_column: Annotated[_Column, typer.Option(help="Long form: column of values.")] = None,
    step: Annotated[int | None, typer.Option(help="Step of all that has none.")] = None,
    finished: Annotated[
        bool,
        typer.Option("--finished", help="Nothing more comes. Default: taken so when unchanged for a minute."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would come; write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON object a source.")] = False,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Bring finished or running trainings of other tools into the tables.

    TensorBoard folders, trainer_state.json, verl's jsonl, results of lm-evaluation-harness, CSV, JSON lines.
    Needs no broker, may run beside a sink, and adds each row once: run it again when a source has grown, or
    after it was killed. Windows and alerts are made as they would have been live.
    """

    def load() -> int:
        set_up_logging(log_level, role="import")
        from driftline.cli.importing import run_import

        options = _options(
            format=form,
            form=layout,
            run=run,
            source=source,
            name=name,
            step_column=step_column,
            time_column=time_column,
            time_unit=time_unit,
            time_zone=time_zone,
            elapsed_column=elapsed_column,
            rank_column=rank_column,
            run_column=run_column,
            metric_column=metric_column,
            value_column=value_column,
            step=step,
            start_us=_start(start, time_zone),
        )
        settings = settings_of(config, root=root)
        return run_import(sources, options, settings, finished=finished, dry_run=dry_run, as_json=as_json)

    finish(load, name="import", debug=log_level is Level.DEBUG)


def export_command(
    file: Annotated[
        Path,
        typer.Argument(help="Ends in .parquet, .csv or .arrow; - is standard output.", show_default=False),
    ],
    query: Annotated[
        str | None, typer.Option(help="SQL whose answer is written; without it, rows of --view.")
    ] = None,
    view: Annotated[str, typer.Option(help="A view or table: curves, windows, evals, ...")] = "samples",
    run: Annotated[
        list[str] | None, typer.Option(help="Only this run (id or name); may be repeated.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Only this metric; may be repeated.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="parquet, csv or arrow. Default: by the ending.")
    ] = None,
    root: Root = None,
    config: Config = None,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Write rows of the tables, or the answer to a query, to a Parquet, CSV or Arrow file.

    Streams; the file appears when it is whole. NaN, infinities and nulls stay apart; times are UTC.
    """

    def write() -> int:
        set_up_logging(log_level, role="export")
        from driftline.cli.exporting import run_export

        settings = settings_of(config, root=root)
        return run_export(
            settings.storage.root,
            file,
            query=query,
            view=view,
            runs=run or [],
            metrics=metric or [],
            said=form,
        )

    finish(write, name="export", debug=log_level is Level.DEBUG)


def _options(**said: object) -> Options:
    import msgspec

    from driftline.errors import SettingsError
    from driftline.importing.reading import Options

    try:
        return msgspec.convert(said, Options)
    except msgspec.ValidationError as error:
        option, _, path = str(error).rpartition(" - at `$.")
        key = "--" + path.rstrip("`").replace("_", "-").replace("start-us", "start")
        raise SettingsError(key, said.get(path.rstrip("`")), option or str(error)) from error


def _start(text: str | None, zone: str) -> int | None:
    from driftline.errors import SettingsError
    from driftline.importing.columns import check_zone
    from driftline.importing.values import instant

    if text is None:
        return None
    check_zone(zone)
    found = instant(text, None, zone)
    if found is None:
        raise SettingsError("--start", text, "give an ISO 8601 time such as 2026-01-31T12:00:00Z")
    return found
