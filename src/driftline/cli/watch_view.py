"""Draws a :class:`~driftline.cli.watch_state.WatchState`: a rich renderable, or plain lines for a pipe.

``render(state, now_us=...)`` reads the state and the given time and nothing else: a test can hold its text.
``line(news, ...)`` is one line of the plain form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from driftline import events, metric_names
from driftline.analysis.values import quantity, sparkline
from driftline.cli.watch_state import Curve, Evaluation, News, RunView, WatchState
from driftline.visible import visible

_SEVERITY = {"info": "cyan", "warn": "yellow", "error": "red", "page": "bold white on red"}
NAME_MAX = 200
"""Characters of a name that are shown."""
FULL_HEIGHT = 46
"""Lines from which the view shows all parts in full."""
LOW_HEIGHT = 27
"""Lines that it needs without news."""
_HOST_GROUPS = frozenset(metric_names.SYSTEM_GROUPS)


def render(
    state: WatchState,
    *,
    now_us: int,
    run: str | None = None,
    news: int = 8,
    trouble: str = "",
    first: Sequence[str] = (),
    height: int | None = None,
) -> RenderableType:
    """The whole view: the run heard of last (or ``run``) in full, the other runs as a line each.

    ``trouble`` is shown below, e.g. that the broker is away; ``first`` names metrics to show before the
    others. Where ``height`` (lines) is too little for all, there is less of each part.
    """
    low = height is not None and height < FULL_HEIGHT
    if low and height is not None:
        news = min(news, max(0, height - LOW_HEIGHT))
    shown = state.runs.get(run) if run else state.newest_run
    if shown is None:
        waiting = trouble or f"waiting for the first record of {run or 'a run'}"
        return Panel(_text(waiting, style="dim"), title="driftline")
    parts: list[RenderableType] = [_head(shown, now_us)]
    others = [view for view in state.runs.values() if view is not shown]
    if others:
        parts.append(_others(others, now_us))
    side = Table.grid(expand=True, padding=(0, 1))
    side.add_column(ratio=3)
    side.add_column(ratio=2)
    side.add_row(_curves(shown, first, rows=3 if low else 12), Group(*_readings(shown, host=not low)))
    parts += [side, _evaluations(shown, rows=3 if low else 8), _alerts(shown, now_us, rows=2 if low else 6)]
    lines = [entry for entry in state.news() if entry.run == shown.run][-news:] if news else []
    if lines:
        parts.append(
            Panel(Group(*(_news_text(entry) for entry in lines)), title="what happened", title_align="left")
        )
    for text in (_trouble(state), trouble):
        if text:
            parts.append(_text(text, style="yellow"))
    return Group(*parts)


class _Spark:
    """A sparkline as wide as there is room: it gives way, so that names and numbers keep their width."""

    def __init__(self, values: Sequence[float], most: int = 40, style: str = "blue") -> None:
        self._values, self._most, self._style = list(values), most, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, min(self._most, len(self._values))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, min(self._most, options.max_width))
        yield Text(sparkline(self._values, width)[:width], style=self._style, no_wrap=True)


def line(entry: News, *, name: str = "") -> str:
    """One line of the plain form: ``22:41:07 run-name alert opened: ...``."""
    return f"{_clock(entry.time_us)} {visible(name or entry.run, NAME_MAX)} {visible(entry.text)}"


def summary(view: RunView, *, now_us: int, first: Sequence[str] = ()) -> str:
    """One line of numbers for the plain form."""
    samples, frame_rate = view.rate.per_second(now_us)
    numbers = [f"{name} {_plain(view.curves[name])}" for name in _main(view, first)[:4]]
    parts = [
        f"step {view.step}" if view.step is not None else "no step yet",
        f"{samples:,.0f} samples/s",
        f"{frame_rate:.1f} frames/s",
        _ranks(view),
        *numbers,
    ]
    if view.open_alerts:
        parts.append(f"{len(view.open_alerts)} open alerts")
    return f"{_clock(now_us)} {visible(view.name or view.run, NAME_MAX)} " + visible(", ".join(parts))


def _ranks(view: RunView) -> str:
    """How many ranks were heard of; a run whose processes know no rank is told by its processes."""
    if not view.ranks and view.processes:
        return f"processes {len(view.processes)}"
    return f"ranks {len(view.ranks)}" + (f" of {view.world_size}" if view.world_size else "")


def _head(view: RunView, now_us: int) -> Panel:
    samples, frame_rate = view.rate.per_second(now_us)
    grid = Table.grid(padding=(0, 2))
    for _ in range(6):
        grid.add_column(no_wrap=True)
    grid.add_column()
    state = view.outcome or "running"
    style = {"running": "green", "finished": "cyan"}.get(state, "red")
    grid.add_row(
        _text(state, style=style),
        f"step [bold]{view.step if view.step is not None else '-'}[/]",
        _ranks(view),
        f"[bold]{samples:,.0f}[/] samples/s",
        f"{frame_rate:.1f} frames/s",
        f"{view.samples:,} samples",
        _Spark(view.rate.history(now_us), 30, "green"),
    )
    title = _text(f"{view.name} " if view.name else "", style="bold").append(visible(view.run), style="dim")
    return Panel(grid, title=title, title_align="left")


def _others(views: list[RunView], now_us: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for view in sorted(views, key=lambda v: -v.last_us)[:5]:
        samples, _ = view.rate.per_second(now_us)
        table.add_row(
            _text(view.name or view.run, style="dim"),
            _text(
                f"{view.outcome or 'running'}, step {view.step if view.step is not None else '-'}",
                style="dim",
            ),
            _text(f"{samples:,.0f} samples/s", style="dim"),
        )
    return table


def _main(view: RunView, first: Sequence[str] = ()) -> list[str]:
    """Names of the training metrics: ``first``, then the usual ones, then the others."""
    usual = [name for name in dict.fromkeys((*first, *metric_names.SHOWN_FIRST)) if name in view.curves]
    rest = sorted(
        name for name in view.curves if name not in usual and _group(name) not in (*_HOST_GROUPS, "span")
    )
    return usual + rest


def _group(name: str) -> str:
    entry = metric_names.known(name)
    return entry.group if entry and entry.name == name else ""


def _unit(curve: Curve, name: str) -> str:
    """As declared; else that of the documented names."""
    if curve.said.unit is not None:
        return curve.said.unit
    entry = metric_names.known(name)
    return entry.unit if entry and entry.name == name else ""


def _curves(view: RunView, first: Sequence[str], rows: int = 12) -> Panel:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    names = _main(view, first)
    for name in names[:rows]:
        curve = view.curves[name]
        table.add_row(
            _text(f"{name} ({curve.said.reduce})" if curve.said.reduce else name),
            _newest(curve, name),
            _Spark([p.value for p in curve.points()]),
        )
    if len(names) > rows:
        table.add_row(_text(f"and {len(names) - rows} more", style="dim"), "", "")
    return Panel(table, title="metrics, mean over ranks or as declared", title_align="left")


def _plain(curve: Curve) -> str:
    """The newest number of the plain form: a sample, or what was declared of the newest step."""
    points = curve.points() if curve.said.reduce and math.isfinite(curve.newest) else []
    return quantity(points[-1].value if points else curve.newest, curve.said.unit or "")


def _newest(curve: Curve, name: str) -> Text:
    points = curve.points()
    if not math.isfinite(curve.newest):
        return _text(str(curve.newest), style="bold red")
    value = points[-1].value if points else curve.newest
    return _text(quantity(value, _unit(curve, name)), style="bold")


def _readings(view: RunView, *, host: bool) -> list[RenderableType]:
    """Spans of a step with their slowest rank, and host readings where asked for."""
    spans, readings = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 1))
    for table in (spans, readings):
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
        table.add_column(no_wrap=True)
    spans.add_column()
    for name in sorted(n for n in view.curves if _group(n) == "span")[:8]:
        curve = view.curves[name]
        spans.add_row(
            _text(name.removeprefix(metric_names.SPAN_PREFIX)), _typical(curve, name), _slowest(curve)
        )
    for name in [
        m.name for m in metric_names.METRIC_NAMES if m.group in _HOST_GROUPS and m.name in view.curves
    ]:
        readings.add_row(_text(name), _newest(view.curves[name], name))
    parts: list[RenderableType] = []
    if spans.row_count:
        parts.append(Panel(spans, title="time of a step", title_align="left"))
    if host and readings.row_count:
        parts.append(Panel(readings, title="host", title_align="left"))
    return parts


def _typical(curve: Curve, name: str) -> Text:
    """The mean over the ranks' newest values, which the slowest of them, shown beside it, is never below."""
    values = [value for value in curve.by_rank.values() if math.isfinite(value)]
    if len(values) < 2:
        return _newest(curve, name)
    return _text(quantity(sum(values) / len(values), _unit(curve, name) or "s"), style="bold")


def _slowest(curve: Curve) -> Text:
    if len(curve.by_rank) < 2:
        return _text("")
    rank, value = max(curve.by_rank.items(), key=lambda pair: (pair[1], -pair[0]))
    middle = sorted(curve.by_rank.values())[len(curve.by_rank) // 2 - (len(curve.by_rank) % 2 == 0)]
    style = "red" if middle > 0 and value > 1.5 * middle else "dim"
    return _text(f"rank {rank}: {quantity(value, 's')}", style=style)


def _evaluations(view: RunView, rows: int = 8) -> RenderableType:
    waiting = [e for e in view.evaluations.values() if e.accepted_us is None]
    shown = sorted(view.evaluations.values(), key=lambda e: (e.step if e.step is not None else -1, e.suite))[
        -rows:
    ]
    if not shown:
        return _text("no evaluation yet", style="dim")
    table = Table(expand=True, box=None, padding=(0, 1))
    for column in ("step", "suite", "why", "state", "result (95 % interval)", "length", "took"):
        table.add_column(column, justify="right" if column in ("step", "length", "took") else "left")
    for entry in shown:
        table.add_row(*_evaluation_row(entry))
    title = f"evaluations: {len(view.results)} done" + (f", {len(waiting)} to come" if waiting else "")
    parts: list[RenderableType] = [table]
    for suite in sorted({entry.suite for entry in view.results})[:4]:
        scores = [m for m in (_score(e) for e in view.results if e.suite == suite) if m is not None]
        curve = sparkline([events.to_float(metric.value) for metric in scores], 40)
        if len(scores) > 1:
            parts.append(_text(f" {suite}: {scores[-1].name} {curve}", style="magenta"))
    return Panel(Group(*parts), title=title, title_align="left")


def _score(entry: Evaluation) -> events.Metric | None:
    return entry.metric("accuracy", "exact_match", "reward", "perplexity") or next(iter(entry.metrics), None)


def _evaluation_row(entry: Evaluation) -> tuple[RenderableType, ...]:
    score, length = _score(entry), entry.metric("response_length")
    style = "" if entry.state in ("done", "waiting", "running") else "red"
    if score is not None:
        result = f"{score.name} {events.to_float(score.value):.3f}"
        if score.low is not None and score.high is not None:
            result += f" [{events.to_float(score.low):.3f}, {events.to_float(score.high):.3f}]"
    elif entry.state == "running" and entry.total:
        result = f"{entry.done} of {entry.total} items"
    else:
        result = entry.why
    return (
        str(entry.step) if entry.step is not None else "-",
        _text(entry.suite),
        _text(entry.reason),
        _text(entry.state, style=style),
        _text(result, style=style or ("bold" if score else "dim")),
        f"{events.to_float(length.value):.1f}" if length else "",
        f"{entry.seconds:.1f} s" if entry.accepted_us is not None else "",
    )


def _alerts(view: RunView, now_us: int, rows: int = 6) -> RenderableType:
    if not view.alerts:
        return _text("no alerts", style="dim")
    ordered = sorted(view.alerts.values(), key=lambda a: (a.state != "resolved", a.time_us))[-rows:]
    table = Table.grid(expand=True, padding=(0, 1))
    for alert in ordered:
        open_ = alert.state != "resolved"
        end = alert.resolved_us if alert.resolved_us is not None else now_us
        style = _SEVERITY.get(alert.severity, "") if open_ else "dim"
        table.add_row(
            _text("OPEN" if open_ else "resolved", style=style),
            _text(alert.severity, style=style),
            _text(alert.rule, style=style),
            _text(alert.explanation, style="" if open_ else "dim"),
            _text(f"{max(0, end - alert.opened_us) / 1e6:.0f} s", style="dim"),
        )
    title = f"alerts: {len(view.open_alerts)} open of {len(view.alerts)}"
    return Panel(table, title=title, title_align="left", border_style="red" if view.open_alerts else "none")


def _trouble(state: WatchState) -> str:
    counts = (
        (state.bad_records, "undecodable records"),
        (state.unknown_records, "records of unknown kinds"),
        (state.left_out, "things that did not fit this view"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def _news_text(entry: News) -> Text:
    style = {"alert": "yellow", "evaluation": "magenta", "run": "cyan", "checkpoint": "dim"}[entry.kind]
    return _text(f"{_clock(entry.time_us)} ", style="dim").append(
        visible(entry.text), style="red" if entry.bad else style
    )


def _clock(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).astimezone().strftime("%H:%M:%S")


def _text(text: str, style: str = "") -> Text:
    """All text of the view: names and reasons come from elsewhere and must not steer the terminal."""
    return Text(visible(text), style=style)
