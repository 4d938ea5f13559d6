"""The command ``driftline replay``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from driftline.cli.options import LogLevel, Root, settings_of
from driftline.cli.outcome import Level, finish, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftline.replay.proof import Window
    from driftline.storage.replay_source import Part, TableLog

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
    begin: From = None,
    end: To = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    log_level: LogLevel = Level.WARNING,
) -> None:
    """Run the past again: prove that it gives the same, or see what other rules would have said.

    Reads the input log back from the tables and feeds it through the same code, at full speed. What is stored
    of it must come out again, row by row; exit code 1 where it does not.
    """

    def run() -> int:
        set_up_logging(log_level, role="replay")
        from driftline.cli import replay_view
        from driftline.replay.proof import prove
        from driftline.storage.replay_compare import Stored
        from driftline.storage.replay_source import TableLog, run_ids

        from driftline.streams import extensions

        settings = settings_of(None, root=root)
        extensions.trust(settings.pipeline)
        where = settings.storage.root
        chosen = run_ids(where, runs or [])
        log, stored = TableLog(where, chosen), Stored(where, chosen)
        with replay_view.progress(log.parts()) as tell:
            proof = prove(log, stored, runs=chosen, window=within(log, bounds(begin, end)), tell=tell)
            seconds = tell.seconds()
        replay_view.show_proof(proof, seconds, as_json=as_json)
        return 0 if proof.identical else 1

    finish(run, name="replay", debug=log_level is Level.DEBUG)


def bounds(begin: str | None, end: str | None) -> tuple[Window, ...]:
    """What ``--from`` and ``--to`` mean. Raises SettingsError."""
    from driftline.replay.proof import Window

    places = []
    for option, text in (("--from", begin), ("--to", end)):
        if text is None:
            continue
        value, unit = position(option, text)
        start = option == "--from"
        places.append(Window(value if start else None, None if start else value, unit))
    return tuple(places)


def position(option: str, text: str) -> tuple[int, Literal["offset", "time_us"]]:
    """An offset, or a time in microseconds since 1970. Raises SettingsError."""
    from driftline.errors import SettingsError

    if text.isdigit():
        return int(text), "offset"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(option, text, 'give an offset, or a time like "2026-11-30T02:00"') from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000), "time_us"


def within(log: TableLog, places: tuple[Window, ...]) -> Callable[[Part], tuple[int, int]]:
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
