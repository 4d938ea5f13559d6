"""What the demonstration shows while it runs: a live view on a terminal, lines elsewhere.

Both come from the records on the topics alone (:class:`~driftline.cli.watch_state.WatchState`), as in
``driftline watch``; only the progress bar above knows how many steps there will be.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from driftline.cli.watch_state import WatchState
from driftline.cli.watch_view import line, render, summary

SUMMARY_SECONDS = 10.0
PICTURE_SECONDS = 0.5


class Screen(Protocol):
    """Where progress is shown."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """What the demonstration itself is doing now."""
        ...

    def show(self, state: WatchState, *, steps: int) -> None:
        """Shows what is known; call it often."""
        ...


class LiveScreen:
    """The whole view, redrawn in place."""

    def __init__(self, console: Console, run: str, steps_max: int) -> None:
        self._console = console
        self._run = run
        self._said = ""
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=40),
            TaskProgressColumn(),
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[said]}"),
        )
        self._task = self._progress.add_task("driftline demo", total=steps_max, said="")
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop", transient=True)
        self._due = 0.0

    def say(self, text: str) -> None:
        self._said = text
        self._due = 0.0

    def show(self, state: WatchState, *, steps: int) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PICTURE_SECONDS
        known = self._run in state.runs
        # Without a run below it the line has room of its own: beside the bar it would push out the clock.
        self._progress.update(self._task, completed=steps, said=self._said if known else "")
        height = self._console.height - 1
        now_us = time.time_ns() // 1000
        view = (
            render(state, now_us=now_us, run=self._run, height=height)
            if known
            else Text(self._said, style="dim")
        )
        self._live.update(Group(self._progress, view), refresh=True)

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class LineScreen:
    """A line for each event, and one of numbers every ten seconds."""

    def __init__(self, console: Console, run: str, steps_max: int) -> None:
        self._console = console
        self._run = run
        self._steps_max = steps_max
        self._due = time.monotonic() + SUMMARY_SECONDS

    def say(self, text: str) -> None:
        self._print(f"{time.strftime('%H:%M:%S')} {text}")

    def show(self, state: WatchState, *, steps: int) -> None:
        for entry in state.take_news():
            if entry.run == self._run:
                self._print(line(entry, name="-"))
        view = state.runs.get(self._run)
        if view is not None and not view.outcome and time.monotonic() >= self._due:
            self._due = time.monotonic() + SUMMARY_SECONDS
            self._print(summary(view, now_us=time.time_ns() // 1000))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> LineScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
