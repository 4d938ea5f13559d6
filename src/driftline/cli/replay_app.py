"""The command ``driftline replay``."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from driftline.cli.options import LogLevel, Root, settings_of
from driftline.cli.outcome import Level, finish, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from driftline.config import PipelineConfig
    from driftline.connection import KafkaSettings
    from driftline.replay.checkpoint import Folder
    from driftline.replay.kafka_log import KafkaLog
    from driftline.replay.labels import Labels
    from driftline.replay.proof import Window
    from driftline.settings import Settings
    from driftline.storage.recorded.compare import Stored
    from driftline.storage.recorded.source import Part, TableLog

    Log = TableLog | KafkaLog
    Reaches = Callable[[Part], tuple[int, int]]

WAIT_S = 10.0
"""How long a table that ends before the others is waited for, where something still writes."""
Runs = Annotated[list[str] | None, typer.Argument(help="Run ids or names. Default: all.", show_default=False)]
From = Annotated[
    str | None,
    typer.Option(
        "--from", help='First offset, or time ("2026-11-30T02:00", UTC), whose results are looked at.'
    ),
]
To = Annotated[str | None, typer.Option("--to", help="The same, exclusive. Default: the end.")]


def replay(
    runs: Runs = None,
    root: Root = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(help="Read the log from Kafka, not from the tables; with --to-prefix: write there."),
    ] = None,
    begin: From = None,
    end: To = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file: what would have been said with its windows, rules, triggers ..."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Incidents that happened (CSV or JSON): how many alerts were right."),
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(
            "--what-if",
            help='Another evaluation frequency, "steps=200" or "epochs=1,end": cost, losses.',
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Compute windows again that late data touched; higher revision.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --repair: write nothing.")] = False,
    to_prefix: Annotated[
        str | None, typer.Option(help='Write the log into topics under this prefix, such as "replay1.".')
    ] = None,
    speed: Annotated[
        str, typer.Option(help='With --to-prefix: "10x" is ten times real time, "max" as fast as may be.')
    ] = "max",
    outputs: Annotated[
        bool, typer.Option("--outputs", help="With --to-prefix: also what the pipeline says of it.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the progress of a proof: the same command goes on from there."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Partitions of the tables proven at once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="With --config: a line per difference.")] = False,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Run the past again: prove that it gives the same, or see what other rules would have said.

    Reads the input log back from the tables and feeds it through the same code, at full speed. What is stored
    of it must come out again, row by row; exit code 1 where it does not. With --config it shows what that
    configuration would have said instead.
    """

    def run() -> int:
        set_up_logging(log_level, role="replay")
        modes = {"--repair": repair, "--what-if": what_if is not None, "--to-prefix": to_prefix is not None}
        chosen_modes = [name for name, given in modes.items() if given]
        _refuse_together(
            chosen_modes,
            {
                "--from": begin is not None,
                "--to": end is not None,
                "--labels": labels is not None,
                "--dry-run": dry_run and not repair,
                "--bootstrap": bootstrap is not None and to_prefix is None,
                "--outputs": outputs and to_prefix is None,
                "--resume": resume is not None,
                "--jobs": jobs > 1,
                "--speed": speed != "max" and to_prefix is None,
                "--csv": as_csv and (config is None or as_json or bool(chosen_modes)),
                "--json": as_json and to_prefix is not None,
            },
        )
        from driftline.errors import SettingsError
        from driftline.storage.recorded.source import TableLog, run_ids
        from driftline.streams import extensions

        settings = settings_of(config, bootstrap, root=root)
        extensions.trust(settings.pipeline)
        if labels is not None and config is None:
            raise SettingsError("--labels", str(labels), "name the configuration to be tested with --config")
        where = settings.storage.root
        chosen = run_ids(where, runs or [])
        if repair:
            return _repair(where, chosen, commit=not dry_run, as_json=as_json)
        if what_if is not None:
            return _what_if(where, chosen, what_if, as_json=as_json)
        if to_prefix is not None:
            return _into_topics(TableLog(where, chosen), settings.kafka, to_prefix, speed, outputs)
        for option, given in (("--resume", resume is not None), ("--jobs", jobs > 1)):
            if given and config is not None:
                raise SettingsError("", None, f"{option} belongs to a proof: leave --config out")
        log = _log(settings, chosen, kafka=bootstrap is not None)
        window = within(log, bounds(begin, end))
        if config is None:
            told = _told(settings, log, chosen, begin, end)
            with _folder(resume, told) as folder:
                return _prove(where, log, chosen, window, jobs, folder, as_json=as_json)
        judged_by = None if labels is None else _labels(where, labels)
        form = "json" if as_json else "csv" if as_csv else "table"
        return _backtest(log, settings.pipeline, chosen, window, judged_by, form)

    finish(run, name="replay", debug=log_level is Level.DEBUG)


_BELONGS = {
    "--dry-run": "--repair",
    "--outputs": "--to-prefix",
    "--speed": "--to-prefix",
    "--csv": "--config, without --json",
}


def _refuse_together(modes: list[str], others: dict[str, bool]) -> None:
    """What would be passed over without a word. Raises SettingsError."""
    from driftline.errors import SettingsError

    if len(modes) > 1:
        raise SettingsError("", None, f"{modes[0]} and {modes[1]} cannot be had together")
    for name, given in others.items():
        if not given:
            continue
        if modes:
            raise SettingsError("", None, f"{name} means nothing together with {modes[0]}: leave it out")
        if name in _BELONGS:
            raise SettingsError("", None, f"{name} belongs to {_BELONGS[name]}")


def _log(settings: Settings, runs: list[str], *, kafka: bool) -> Log:
    from driftline.storage.recorded.source import TableLog

    if not kafka:
        return TableLog(settings.storage.root, runs)
    from driftline.replay.kafka_log import KafkaLog

    return KafkaLog(settings.kafka, runs)


def _into_topics(log: TableLog, live: KafkaSettings, prefix: str, speed: str, outputs: bool) -> int:
    from driftline.replay.into_topics import SAID, copy, speed_of, target_of

    done = copy(log, target_of(live, prefix), speed=speed_of(speed), said=SAID if outputs else ())
    before = f", after offset {done.there - 1:,} of before" if done.there else ""
    print(f"{done.sent:,} records are written to {prefix}telemetry on {live.bootstrap}{before}")
    if outputs:
        print(f"{done.outputs:,} windows, facts and alerts are written to topics of {prefix}")
    for note in log.notes:
        print(f"note: {note}")
    return 0


def _told(
    settings: Settings, log: Log, runs: list[str], begin: str | None, end: str | None
) -> dict[str, str | list[str] | None]:
    """What is replayed, and by what: kept progress is of this only."""
    from importlib.metadata import version

    from driftline import config as configuration
    from driftline.storage.objects import is_remote, place
    from driftline.storage.recorded.source import TableLog

    where, tables = settings.storage.root, isinstance(log, TableLog)
    return {
        "driftline": version("driftline"),
        "root": str(place(where) if is_remote(where) else Path(where).absolute()),
        "log": "tables" if tables else f"{settings.kafka.prefix}telemetry on {settings.kafka.bootstrap}",
        "runs": runs,
        "from": begin,
        "to": end,
        "extensions": configuration.digest(configuration.encode(settings.pipeline)),
    }


@contextlib.contextmanager
def _folder(path: Path | None, told: dict[str, str | list[str] | None]) -> Iterator[Folder | None]:
    """Where progress is kept; says how to go on when it is interrupted."""
    if path is None:
        yield None
        return
    from driftline.replay.checkpoint import Folder

    with Folder.held(path, told) as folder:
        if folder.begun:
            print(f"going on with the replay in {path}", file=sys.stderr)
        try:
            yield folder
        except KeyboardInterrupt:
            print(f"interrupted; the same command goes on: --resume {path}", file=sys.stderr)
            raise


def _prove(
    where: str,
    log: Log,
    runs: list[str],
    window: Reaches,
    jobs: int,
    folder: Folder | None,
    *,
    as_json: bool,
) -> int:
    from driftline.cli import replay_view
    from driftline.errors import SettingsError
    from driftline.replay.proof import prove
    from driftline.storage.recorded.compare import Stored
    from driftline.storage.recorded.source import TableLog

    tables = isinstance(log, TableLog)
    if jobs > 1 and not tables:
        raise SettingsError("--jobs", jobs, "partitions are read from Kafka one after another: leave it out")
    stored = Stored(where, runs, log.snapshot if isinstance(log, TableLog) else None)
    with replay_view.progress(log.parts()) as tell:
        proof = prove(
            *(log, stored),
            runs=runs,
            window=window,
            tell=tell,
            jobs=jobs,
            folder=folder,
            newer=_Newer(),
        )
        seconds = tell.seconds()
    replay_view.show_proof(proof, seconds, as_json=as_json)
    return 0 if proof.identical else 1


class _Newer:
    """The tables after the next commit, if one comes within a while."""

    def __init__(self) -> None:
        self._deadline_s: float | None = None

    def __call__(self, stored: Stored) -> Stored | None:
        self._deadline_s = self._deadline_s or time.monotonic() + WAIT_S
        while time.monotonic() < self._deadline_s:
            time.sleep(0.2)
            if not stored.snapshot.is_newest():
                return stored.anew()
        return None


def _backtest(
    log: Log,
    other: PipelineConfig,
    runs: list[str],
    window: Reaches,
    judged_by: Labels | None,
    form: str,
) -> int:
    from driftline.cli import replay_diff_view, replay_view
    from driftline.replay.backtest import backtest

    with replay_view.progress(log.parts()) as tell:
        found = backtest(log, other, runs=runs, window=window, judged_by=judged_by, tell=tell)
        seconds = tell.seconds()
    replay_diff_view.show(found, seconds, form=form)
    judged = judged_by is None or any(one.incidents or one.alerts for one in found.scores_after)
    return 0 if judged else 1


def _repair(where: str, runs: list[str], *, commit: bool, as_json: bool) -> int:
    from driftline.cli import replay_repair_view, replay_view
    from driftline.errors import Unavailable
    from driftline.replay.repair import Repair, repair
    from driftline.storage.recorded.source import TableLog
    from driftline.storage.recorded.window_repair import WindowRepair
    from driftline.storage.store import Conflict

    windows = WindowRepair(where)
    late = windows.runs_with_late_data()
    chosen = [run for run in late if not runs or run in runs]
    if not chosen:
        replay_repair_view.show(Repair(), as_json=as_json, written=commit)
        return 0
    log = TableLog(where, chosen)
    try:
        with replay_view.progress(log.parts()) as tell:
            done = repair(log, windows, commit=commit, tell=tell)
    except Conflict as error:
        raise Unavailable(f"another repair came between ({error}): run it again") from error
    replay_repair_view.show(done, as_json=as_json, written=commit)
    return 0


def _what_if(where: str, runs: list[str], text: str, *, as_json: bool) -> int:
    from driftline.cli import replay_what_if_view
    from driftline.replay import what_if
    from driftline.storage.recorded.compare import Stored
    from driftline.storage.recorded.source import TableLog

    triggers = what_if.triggers_of(text)
    own = what_if.asked(TableLog(where, runs), None, runs)
    other = what_if.asked(TableLog(where, runs), triggers, runs)
    stored = Stored(where, runs)
    found = what_if.compare(own, other, stored.evaluations(), stored.goals(), stored.log_seconds())
    replay_what_if_view.show(found, text, as_json=as_json)
    return 0


def _labels(where: str, file: Path) -> Labels:
    """Labels with the ids of their runs. Raises SettingsError."""
    from driftline.errors import SettingsError
    from driftline.replay.labels import read
    from driftline.storage.recorded.source import run_ids

    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError("--labels", str(file), f"the file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError("--labels", str(file), "the file is no UTF-8 text") from error
    found = read(text, str(file))
    ids = {}
    for run in sorted(found.runs):
        try:
            ids[run] = run_ids(where, [run])[0]
        except SettingsError as error:
            raise SettingsError("--labels", str(file), f"no run {run!r} is stored: {error.remedy}") from error
    return found.renamed(ids)


def bounds(begin: str | None, end: str | None) -> tuple[Window, ...]:
    """What ``--from`` and ``--to`` mean. Raises SettingsError."""
    from driftline.errors import SettingsError
    from driftline.replay.proof import Window

    places = []
    for option, text in (("--from", begin), ("--to", end)):
        if text is None:
            continue
        value, unit = position(option, text)
        start = option == "--from"
        places.append(Window(value if start else None, None if start else value, unit))
    if len({place.unit for place in places}) < len(places):
        (first, _, _), (_, last, _) = places
        if first is not None and last is not None and last <= first:
            raise SettingsError("--to", end, f"nothing lies before it and not before --from {begin}")
    return tuple(places)


def position(option: str, text: str) -> tuple[int, Literal["offset", "time_us"]]:
    """An offset, or a time in microseconds since 1970. Raises SettingsError."""
    from driftline.errors import SettingsError

    if text.isascii() and text.isdigit():
        return int(text), "offset"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(option, text, 'give an offset, or a time like "2026-11-30T02:00"') from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000), "time_us"


def within(log: Log, places: tuple[Window, ...]) -> Reaches:
    """The offsets of a partition that the places mean."""

    def reach(part: Part) -> tuple[int, int]:
        start, end = part.start, part.end
        for place in places:
            for value, first in ((place.start, True), (place.end, False)):
                if value is None:
                    continue
                offset = value if place.unit == "offset" else log.offset_at(part, value)
                start, end = (max(start, offset), end) if first else (start, min(end, offset))
        return start, max(start, end)

    return reach
