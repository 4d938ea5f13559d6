"""``driftline watch``: the live view of whatever a broker holds, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.live import Live

from driftline.cli.watch_feed import Feed
from driftline.cli.watch_state import WatchState
from driftline.cli.watch_view import line, render, summary
from driftline.connection import KafkaSettings
from driftline.errors import Refused, Unavailable
from driftline.visible import visible

RETRY_S = 2.0
SUMMARY_S = 10.0
ONCE_S = 20.0
"""The longest that ``--once`` reads before it shows what it has."""


class Stop:
    """Set by SIGTERM and Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def on_signals(self) -> Iterator[Stop]:
        def ask(number: int, frame: object) -> None:
            self.asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not past the wish to stop."""
        until = time.monotonic() + seconds
        while not self.asked and time.monotonic() < until:
            time.sleep(min(0.05, seconds))


class Wish(NamedTuple):
    """What to show."""

    run: str | None
    since_s: float | None
    interval_s: float
    first: Sequence[str]


def watch(
    settings: KafkaSettings,
    *,
    run: str | None = None,
    since_s: float | None = 3600.0,
    once: bool = False,
    lines: bool = False,
    interval_s: float = 1.0,
    first: Sequence[str] = (),
    console: Console | None = None,
) -> int:
    """Shows the live view until stopped; returns the exit code.

    ``once`` reads what is there, shows it and ends. ``lines`` (the default where stdout is no terminal)
    prints a line per event and a summary per run every ten seconds. ``first`` names metrics to show before
    the others.
    """
    console = console or Console()
    wish = Wish(run, since_s, interval_s, first)
    state = WatchState()
    with Stop().on_signals() as stop:
        if once:
            _once(settings, state, stop, wish, console)
        elif lines or not console.is_terminal:
            _lines(settings, state, stop, wish)
        else:
            with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="crop") as live:
                for trouble in _polls(settings, state, stop, wish):
                    live.update(_picture(state, wish, _now_us(), trouble, console.height), refresh=True)
    return 0


def _polls(settings: KafkaSettings, state: WatchState, stop: Stop, wish: Wish) -> Iterator[str]:
    """Feeds the state; after each interval yields what is wrong with the broker, or nothing.

    Raises Refused if the broker never let us in.
    """
    feed: Feed | None = None
    let_in = False
    since_us = _since_us(wish)
    while not stop.asked:
        trouble = ""
        try:
            feed = feed or Feed(settings, since_us=since_us)
            until = time.monotonic() + wish.interval_s
            while not stop.asked and (left := until - time.monotonic()) > 0:
                if not feed.poll(state, min(left, 0.2)) and feed.missing:
                    stop.sleep(min(left, 0.2))
            if feed.missing and not state.runs:
                missing = ", ".join(feed.missing)
                trouble = f"waiting for the topics {missing} (made by the first role that starts)"
            let_in = True
        except Unavailable as error:
            if isinstance(error, Refused) and not let_in:
                raise
            trouble = f"waiting for the broker: {error}"
            if feed:
                feed.close()
            feed = None  # the next one reads all again; the state knows what it saw
        yield trouble
        if feed is None:
            stop.sleep(RETRY_S)
    if feed:
        feed.close()


def _once(settings: KafkaSettings, state: WatchState, stop: Stop, wish: Wish, console: Console) -> None:
    feed = Feed(settings, since_us=_since_us(wish))
    until = time.monotonic() + ONCE_S
    quiet = 0
    while not stop.asked and quiet < 3 and time.monotonic() < until:
        quiet = 0 if feed.poll(state, 0.3) or not feed.caught_up() else quiet + 1
        if feed.missing:
            break
    feed.close()
    console.print(_picture(state, wish, state.now_us or _now_us(), _absent(state, wish)))


def _absent(state: WatchState, wish: Wish) -> str:
    """For a picture that nothing follows: that the run is not there, and which ones are."""
    if _named(state, wish.run) in state.runs or (wish.run is None and state.runs):
        return ""
    what = f"no run {wish.run!r}" if wish.run else "no run"
    known = ", ".join(f"{view.name} ({view.run})" for view in list(state.runs.values())[:5])
    remedy = "--since all reads further back; " if wish.since_s is not None else ""
    return (
        f"{what} on this broker: {remedy}{'there are: ' + known if known else 'nothing was logged here yet'}"
    )


def _lines(settings: KafkaSettings, state: WatchState, stop: Stop, wish: Wish) -> None:
    last_trouble = ""
    pause_s = max(SUMMARY_S, wish.interval_s)
    due = time.monotonic() + pause_s
    for trouble in _polls(settings, state, stop, wish):
        if trouble and trouble != last_trouble:
            print(visible(trouble), file=sys.stderr, flush=True)
        last_trouble = trouble
        chosen = _named(state, wish.run)
        for entry in state.take_news():
            if chosen in (None, entry.run):
                view = state.runs.get(entry.run)
                print(line(entry, name=view.name if view else ""), flush=True)
        if time.monotonic() >= due:
            due = time.monotonic() + pause_s
            for view in state.runs.values():
                if chosen in (None, view.run) and not view.outcome:
                    print(summary(view, now_us=_now_us(), first=wish.first), flush=True)


def _picture(
    state: WatchState, wish: Wish, now_us: int, trouble: str, height: int | None = None
) -> RenderableType:
    return render(
        state, now_us=now_us, run=_named(state, wish.run), trouble=trouble, first=wish.first, height=height
    )


def _since_us(wish: Wish) -> int | None:
    return None if wish.since_s is None else _now_us() - int(wish.since_s * 1e6)


def _now_us() -> int:
    return time.time_ns() // 1000


def _named(state: WatchState, run: str | None) -> str | None:
    """A run by its id or, of those with this name, the newest."""
    if run is None or run in state.runs:
        return run
    named = [view for view in state.runs.values() if view.name == run]
    return max(named, key=lambda view: view.first_us).run if named else run
