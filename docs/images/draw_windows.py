"""Draws the pictures of docs/windows.md: small trainings go through the real pipeline, what it says is drawn.

    python docs/images/draw_windows.py [FOLDER]      # writes windows-*.svg, by default beside this file

The same bytes each time; ``tests/streams/test_docs.py`` holds that the pictures in the repository are these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from driftline import config, events, frames, window_rows
from driftline.config import PipelineConfig, WindowSpec
from driftline.records import Output, Record
from driftline.streams.attempts import PartitionState
from driftline.streams.pipeline import Pipeline

SECOND = 1_000_000
RUN = "r"
STYLE = """
  svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --faint: #8c959f; --grid: #d0d7de;
        --a: #0969da; --b: #bc4c00; --mark: #1a7f37; --bad: #cf222e; --bar: #ddf4ff; --page: #ffffff; }
  @media (prefers-color-scheme: dark) {
    svg { --ink: #e6edf3; --faint: #8d96a0; --grid: #3d444d;
          --a: #58a6ff; --b: #f0883e; --mark: #3fb950; --bad: #ff7b72; --bar: #12304f; --page: #0d1117; } }
  text { fill: var(--ink); } .faint { fill: var(--faint); } .small { font-size: 11px; }
  .grid { stroke: var(--grid); stroke-width: 1; } .now { stroke: var(--faint); stroke-dasharray: 3 4; }
  .mark { stroke: var(--mark); stroke-width: 2.5; fill: none; } .markt { fill: var(--mark); }
  .a { fill: var(--a); } .b { fill: var(--b); } .badt { fill: var(--bad); }
  .late { fill: var(--page); stroke: var(--bad); stroke-width: 2; }
  .bar { fill: var(--bar); stroke: var(--a); stroke-width: 1; }
  .live { fill: var(--a); } .live1 { fill: var(--b); }
  .idle { fill: none; stroke: var(--bad); stroke-dasharray: 4 3; }
  .halo { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
"""


class Story:
    """A log that is written and worked on record by record."""

    def __init__(self, settings: PipelineConfig) -> None:
        self.pipeline = Pipeline()
        self.state: PartitionState = self.pipeline.fresh("uuid", 0)
        self.now_us = 0
        self.outputs: list[tuple[int, Output]] = []
        """With the log time of each."""
        self.marks: list[tuple[int, int]] = []
        """Log time and watermark of :attr:`axis`, after each record."""
        self.axis: Any = settings.windows[0].axis
        self._offset = 0
        self._seqs: dict[str, int] = {}
        body = config.encode(settings)
        digest = config.digest(body)
        self._put(
            events.encode(events.ConfigChanged(worker="w", time_us=0, digest=digest, body=msgspec.Raw(body)))
        )

    def tick(self, now_us: int) -> None:
        self.now_us = now_us
        self._put(events.encode(events.Tick(worker="w", time_us=now_us)))

    def event(self, kind: Any, process: str, **fields: Any) -> None:
        event = kind(run=RUN, process=process, seq=self._seq(process), time_us=self.now_us, **fields)
        self._put(events.encode(event))

    def log(self, process: str, rank: int, *samples: tuple[int | None, int]) -> None:
        """Samples as (step, time in microseconds), all of the metric x and of value 1."""
        count = len(samples)
        frame = frames.Frame(
            run=RUN,
            process=process,
            rank=rank,
            seq=self._seq(process),
            names=["x"],
            metric=np.zeros(count, np.int16),
            step=np.array([frames.NO_STEP if step is None else step for step, _ in samples], np.int64),
            time_us=np.array([at for _, at in samples], np.int64),
            value=np.ones(count),
            weight=np.ones(count),
        )
        self._put(frames.encode(frame))

    def windows(self) -> list[tuple[int, dict[str, Any]]]:
        """Rows of the metric with the log time at which they came."""
        rows: list[tuple[int, dict[str, Any]]] = []
        for now_us, output in self.outputs:
            if output.topic == "windows":
                rows += [(now_us, row) for row in window_rows.decode(output.value)[1].to_pylist()]
        return [(now_us, row) for now_us, row in rows if row["axis"] == self.axis]

    def facts(self, *kinds: str) -> list[events.Fact]:
        found = [events.decode(o.value) for _, o in self.outputs if o.topic == "facts"]
        return [fact for fact in found if isinstance(fact, events.Fact) and fact.what in kinds]

    def _seq(self, process: str) -> int:
        self._seqs[process] = self._seqs.get(process, -1) + 1
        return self._seqs[process]

    def _put(self, value: bytes) -> None:
        record = Record(0, self._offset, self.now_us // 1000, value)
        self._offset += 1
        self.outputs += [(self.now_us, output) for output in self.pipeline.step(self.state, [record])]
        run = self.state.runs.get(RUN)
        mark = run.attempt.axes[self.axis].watermark.value if run else None
        if mark is not None:
            self.marks.append((self.now_us, mark))


class Plane(NamedTuple):
    """Positions across, log time downwards."""

    x: Callable[[float], float]
    y: Callable[[float], float]


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    size = f'viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def dot(x: float, y: float, kind: str, rank: int) -> str:
    if rank == 0:
        return f'<circle cx="{x:g}" cy="{y:g}" r="5" class="{kind}"/>'
    return f'<rect x="{x - 5:g}" y="{y - 5:g}" width="10" height="10" class="{kind}"/>'


def frame_of(plane: Plane, across: list[int], down: list[int], name: str, unit: str) -> list[str]:
    left, right, top, bottom = plane.x(across[0]), plane.x(across[-1]), plane.y(down[0]), plane.y(down[-1])
    parts = [line(plane.x(at), top, plane.x(at), bottom, "grid") for at in across]
    parts += [text(plane.x(at), top - 8, f"{at}{unit}", "faint small", "middle") for at in across]
    parts += [text(left - 10, plane.y(at) + 4, f"{at} s", "faint small", "end") for at in down]
    parts += [text((left + right) / 2, top - 28, name, "", "middle")]
    return [*parts, text(4, top - 28, "log time", "")]


def bars(plane: Plane, rows: list[tuple[int, dict[str, Any]]], scale: int) -> list[str]:
    """Windows where they came, in turns a little lower where several came at once."""
    parts, before, shift = [], -1, 0
    for now_us, row in rows:
        shift = shift + 22 if now_us == before else 0
        before = now_us
        left, right = plane.x(row["start"] / scale), plane.x(row["end"] / scale)
        y = plane.y(now_us / SECOND) + shift
        parts.append(
            f'<rect x="{left:g}" y="{y - 9:g}" width="{right - left:g}" height="18" rx="3" class="bar"/>'
        )
        words = f"[{row['start'] // scale}, {row['end'] // scale})  count {row['count']}"
        if scale == 1:
            words += f", {row['present']} of {row['expected']}"
        parts.append(text((left + right) / 2, y + 4, words, "small", "middle"))
    return parts


def stairs(plane: Plane, marks: list[tuple[int, int]], scale: int, until: float) -> str:
    points: list[str] = []
    for now_us, mark in marks:
        x, y = plane.x(mark / scale), plane.y(now_us / SECOND)
        if points:
            points.append(f"{points[-1].split(',')[0]},{y:g}")
        points.append(f"{x:g},{y:g}")
    points.append(f"{points[-1].split(',')[0]},{plane.y(until):g}")
    return f'<polyline points="{" ".join(dict.fromkeys(points))}" class="mark"/>'


def legend(x: float, y: float, *entries: tuple[str, str]) -> list[str]:
    parts = []
    for at, (sign, words) in enumerate(entries):
        here = y + 22 * at
        parts += [sign.format(x=x, y=here), text(x + 16, here + 4, words, "small")]
    return parts


DOT_A, DOT_B = (
    '<circle cx="{x}" cy="{y}" r="5" class="a"/>',
    ('<rect x="{x}" y="{y}" width="10" height="10" class="b" transform="translate(-5 -5)"/>'),
)
LATE = '<rect x="{x}" y="{y}" width="10" height="10" class="late" transform="translate(-5 -5)"/>'
MARK = '<path d="M{x},{y}m-7,0h14" class="mark"/>'


def time_axis() -> str:
    """Two ranks, windows of 10 s every 5 s, lateness 2 s: a late sample, and one dated ahead."""
    lateness, skew = 2 * SECOND, 5 * SECOND
    windows = [WindowSpec("time", 10 * SECOND, 5 * SECOND)]
    story = Story(PipelineConfig(windows=windows, allowed_lateness_us=lateness, future_skew_us=skew))
    story.event(events.ProcessStarted, "a", rank=0, world_size=2)
    story.event(events.ProcessStarted, "b", rank=1, world_size=2)
    dots: list[tuple[float, float, str, int]] = []
    odd = {12: 10.5, 15: 25.0, 20: 6.0}
    for second in range(1, 25):
        story.tick(second * SECOND)
        for rank in (0, 1):
            if second % 2 == rank and second != 15 + rank - 1:
                dated = float(second)
                story.log("ab"[rank], rank, (None, round(dated * SECOND)))
                dots.append((dated, second, "ab"[rank], rank))
        if second in odd:
            story.log("b", 1, (None, round(odd[second] * SECOND)))
            kind = "b" if second == 12 else "late"
            dots.append((odd[second], second, kind, 1))
    story.tick(25 * SECOND)
    story.event(events.ProcessEnded, "a")
    story.event(events.ProcessEnded, "b")
    (late,), (ahead,) = story.facts("late"), story.facts("future")
    plane = Plane(lambda at: 190 + at * 20, lambda at: 70 + at * 19)
    parts = frame_of(
        plane, list(range(-5, 36, 5)), list(range(0, 26, 5)), "time of the sample (event time)", " s"
    )
    parts += [line(plane.x(0), plane.y(0), plane.x(25), plane.y(25), "now")]
    parts += [stairs(plane, story.marks, SECOND, 25)]
    parts += bars(plane, story.windows(), SECOND)
    parts += [dot(plane.x(x), plane.y(y), kind, rank) for x, y, kind, rank in dots]
    assert (late.start, late.count, ahead.start) == (6 * SECOND, 1, 25 * SECOND), (
        "the story is as the text says"
    )
    parts += [
        text(plane.x(6) - 10, plane.y(20) - 9, "late: [5, 10) is closed", "badt small", "end"),
        text(plane.x(25) + 12, plane.y(15) + 4, "dated ahead: moves no watermark", "badt small"),
        text(plane.x(10.5) - 9, plane.y(12) + 4, "older, in time", "small halo", "end"),
        text(plane.x(15) - 8, plane.y(25) + 4, "both ranks end: what is left comes", "faint small", "end"),
        text(plane.x(25) + 8, plane.y(25) - 14, "now", "faint small"),
    ]
    parts += legend(
        640,
        plane.y(2),
        (DOT_A, "sample of rank 0, where its record came"),
        (DOT_B, "sample of rank 1"),
        (LATE, "in no window, or moves nothing"),
        (MARK, "watermark: slowest rank - 2 s"),
    )
    return picture(900, 620, "Windows over time: samples, watermark, and when each window closes", parts)


def step_axis() -> str:
    """Two ranks, one slower: the slower one holds the axis, an allowed lateness later a window closes."""
    settings = PipelineConfig(windows=[WindowSpec("step", 4, 2)], allowed_lateness_us=2 * SECOND)
    story = Story(settings)
    story.event(events.ProcessStarted, "a", rank=0, world_size=2)
    story.event(events.ProcessStarted, "b", rank=1, world_size=2)
    dots: list[tuple[float, float, str, int]] = []
    for second in range(1, 17):
        story.tick(second * SECOND)
        for rank, step in ((0, second - 1), (1, (second - 2) * 2 // 3)):
            fresh = rank == 0 or (step != (second - 3) * 2 // 3 and step >= 0)
            if fresh and step < 11:
                story.log("ab"[rank], rank, (step, second * SECOND))
                dots.append((step, second, "ab"[rank], rank))
    story.tick(17 * SECOND)
    story.tick(18 * SECOND)
    plane = Plane(lambda at: 150 + at * 44, lambda at: 70 + at * 27)
    parts = frame_of(plane, list(range(-2, 13, 2)), list(range(0, 19, 2)), "training step", "")
    parts += [stairs(plane, story.marks, 1, 18)]
    parts += bars(plane, story.windows(), 1)
    parts += [dot(plane.x(x), plane.y(y), kind, rank) for x, y, kind, rank in dots]
    parts += legend(
        700,
        plane.y(1),
        (DOT_A, "rank 0, a step each second"),
        (DOT_B, "rank 1, slower"),
        (MARK, "watermark: slowest rank,"),
    )
    parts += [text(716, plane.y(1) + 66, "as it was 2 s ago", "small")]
    parts += [text(700, plane.y(1) + 100, "bar: window, where it came,", "small")]
    parts += [text(700, plane.y(1) + 118, "with ranks present of expected", "small")]
    return picture(900, 600, "Windows over steps: the slower rank holds the axis", parts)


def processes() -> str:
    """Three ranks: one joins late and falls silent; then a restart with two. Who counts, and when."""
    settings = PipelineConfig(
        windows=[WindowSpec("time", 5 * SECOND, 5 * SECOND)],
        allowed_lateness_us=SECOND,
        idle_us=6 * SECOND,
        start_grace_us=12 * SECOND,
    )
    story = Story(settings)
    lives = {"a0": (0, 32), "a1": (0, 32), "a2": (8, 17), "b0": (36, 50), "b1": (37, 50)}
    for second in range(51):
        story.tick(second * SECOND)
        for process, (first, last) in lives.items():
            rank, world = int(process[1]), 3 if process[0] == "a" else 2
            if second == first:
                story.event(events.ProcessStarted, process, rank=rank, world_size=world)
            if first <= second < last:
                story.log(process, rank, (None, second * SECOND))
            if second == 50 and process[0] == "b":
                story.event(events.ProcessEnded, process)
    idle = {fact.process: fact.time_us / SECOND for fact in story.facts("process_idle")}
    (attempt,) = story.facts("attempt_started")
    plane = Plane(lambda at: 130 + at * 14.4, lambda lane: 84 + lane * 34)
    restarted = plane.x(attempt.time_us / SECOND)
    parts = [text(plane.x(at), 52, f"{at} s", "faint small", "middle") for at in range(0, 51, 5)]
    parts += [line(plane.x(at), 60, plane.x(at), plane.y(7.4), "grid") for at in range(0, 51, 5)]
    parts += [text(plane.x(25), 24, "log time", "", "middle")]
    for lane, (process, (first, last)) in enumerate(lives.items()):
        y = plane.y(lane)
        parts.append(text(plane.x(0) - 14, y + 5, f"rank {process[1]}", "small", "end"))
        kind = "live" if process[0] == "a" else "live1"
        parts.append(
            f'<rect x="{plane.x(first):g}" y="{y - 8:g}" width="{plane.x(last) - plane.x(first):g}" '
            f'height="16" rx="3" class="{kind}"/>'
        )
        if process in idle:
            until = idle[process]
            parts.append(
                f'<rect x="{plane.x(last):g}" y="{y - 8:g}" width="{plane.x(until) - plane.x(last):g}" '
                'height="16" rx="3" class="idle"/>'
            )
            parts.append(text(plane.x(until) + 6, y + 4, "idle", "badt small"))
    parts += [
        text(plane.x(10), plane.y(2) + 25, "joins 8 s late, dies at 17 s", "small"),
        line(restarted, 60, restarted, plane.y(7.4), "mark"),
        text(restarted + 6, plane.y(2) - 2, "rank 0 starts again:", "markt small"),
        text(restarted + 6, plane.y(2) + 14, "attempt 1", "markt small"),
        text(plane.x(0) - 14, plane.y(5.6) + 4, "attempt 0", "small", "end"),
        text(plane.x(0) - 14, plane.y(6.6) + 4, "attempt 1", "small", "end"),
        text(plane.x(0), plane.y(7.4) + 24, "present of expected, in windows of 5 s", "faint small"),
    ]
    for _, row in story.windows():
        left, right = plane.x(row["start"] / SECOND), plane.x(row["end"] / SECOND)
        y = plane.y(5.6 + row["attempt"])
        wide = right - left - 2
        parts.append(
            f'<rect x="{left + 1:g}" y="{y - 10:g}" width="{wide:g}" height="20" rx="3" class="bar"/>'
        )
        words = f"{row['present']} of {row['expected']}"
        parts.append(text((left + right) / 2, y + 4, words, "small", "middle"))
    return picture(900, 380, "Who counts: processes that join late, fall silent, start again", parts)


PICTURES = {"windows-time": time_axis, "windows-steps": step_axis, "windows-processes": processes}


def main(folder: Path) -> None:
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
