"""The stories in ``scenarios/``: what a training sends, how time goes on, what must be said by then."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from driftline import events
from driftline.config import PipelineConfig, WindowSpec
from driftline.streams.pipeline import Pipeline

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
SECOND = 1_000_000
UNITS = {"us": 1, "ms": 1_000, "s": SECOND, "m": 60 * SECOND, "h": 3_600 * SECOND}
DURATIONS = {
    "lateness": "allowed_lateness_us",
    "idle": "idle_us",
    "grace": "start_grace_us",
    "skew": "future_skew_us",
    "expire": "expire_us",
    "hole": "hole_us",
}


def duration(text: str) -> int:
    """Microseconds of "5s", or the number itself on the step axis."""
    found = re.fullmatch(r"([+-]?[0-9.]+)(us|ms|s|m|h)?", text)
    assert found, f"not a time: {text}"
    return round(float(found[1]) * UNITS[found[2]]) if found[2] else int(found[1])


def settings(words: dict[str, str]) -> PipelineConfig:
    fields: dict[str, Any] = {DURATIONS[k]: duration(v) for k, v in words.items() if k in DURATIONS}
    for name in ("per_rank", "per_host", "per_role"):
        if name in words:
            fields[name] = words[name].split(",")
    if "windows" in words:
        specs = re.findall(r"(time|step):([^/]+)/([^,]+)", words["windows"])
        fields["windows"] = [
            WindowSpec(axis, 0 if size == "run" else duration(size), duration(hop))
            for axis, size, hop in specs
        ]
    if "quantiles" in words:
        pairs = re.findall(r"([^:,]+):([^,]+)", words["quantiles"])
        fields["quantiles"] = {metric: [float(q) for q in some.split("+")] for metric, some in pairs}
    unknown = words.keys() - DURATIONS.keys() - fields.keys()
    assert not unknown, f"not settings: {unknown}"
    return PipelineConfig(**fields)


def who(text: str) -> list[tuple[str, int]]:
    """Processes and their ranks: "a0..7" are eight."""
    found = re.fullmatch(r"([a-z]+)(\d+)(?:\.\.(\d+))?", text)
    assert found, f"not processes: {text}"
    return [(f"{found[1]}{rank}", rank) for rank in range(int(found[2]), int(found[3] or found[2]) + 1)]


def samples(metric: str, item: str, step: int | None, now_us: int) -> Iterator[tuple[Any, ...]]:
    """Samples of "0..4=1", "5=nan", "0.25*12", "1@+24h"."""
    found = re.fullmatch(r"(?:(-?\d+)(?:\.\.(-?\d+))?=)?([^*@]+)(?:\*([^@]+))?(?:@(.+))?", item)
    assert found, f"not a sample: {item}"
    first, last, value, weight, dated = found.groups()
    steps = [step] if first is None else range(int(first), int(last or first) + 1)
    at_us = now_us + (duration(dated) if dated else 0)
    for place in steps:
        yield metric, place, at_us, float(value), float(weight or 1)


class Story:
    """Plays one file, statement by statement."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.run = "r"
        self.config = PipelineConfig()
        self.ticked_us: int | None = None

    def play(self, text: str) -> None:
        for line, statement, below in statements(text):
            try:
                name, *words = shlex.split(statement)
                getattr(self, f"do_{name}")(*words, below=below) if below else getattr(self, f"do_{name}")(
                    *words
                )
            except AssertionError as error:
                raise AssertionError(f"line {line}: {statement}\n{error}") from error

    # --- what happens --------------------------------------------------------------------------------------

    def do_config(self, *words: str) -> None:
        self.config = settings(fields(words))
        self.log.configure(self.config)

    def do_at(self, time: str) -> None:
        self.log.now_us = duration(time)

    def do_tick(self) -> None:
        self.ticked_us = self.log.now_us
        self.log.tick(self.log.now_us)

    def do_ticks(self, span: str) -> None:
        first, last = span.split("..")
        for at in range(duration(first), duration(last) + 1, SECOND):
            self.log.now_us = at
            self.do_tick()

    def do_run(self, name: str) -> None:
        self.run = name

    def do_start(self, names: str, *words: str) -> None:
        given = fields(words)
        dated = duration(given.pop("dated", "0s"))
        more = {k: given[k] for k in given.keys() & {"host", "parent", "role"}}
        for key, name in (("world", "world_size"), ("hint", "restart_hint")):
            if key in given:
                more[name] = int(given[key])
        for process, rank in who(names):
            seq = self.log.seq(self.run, process)
            time_us = self.log.now_us + dated
            event = events.ProcessStarted(
                run=self.run, process=process, seq=seq, time_us=time_us, rank=rank, **more
            )
            self.log.put(events.encode(event))

    def _each(self, names: str, kind: Any, **more: Any) -> None:
        for process, _ in who(names):
            self.log.event(kind, process=process, run=self.run, **more)

    def do_end(self, names: str) -> None:
        self._each(names, events.ProcessEnded)

    def do_rewind(self, names: str, to: str) -> None:
        self._each(names, events.RunRewound, step=int(fields([to])["to"]))

    def do_beat(self, names: str, step: str) -> None:
        self._each(names, events.Heartbeat, step=int(fields([step])["step"]))

    def do_log(self, names: str, metric: str, *items: str) -> None:
        for process, rank in who(names):
            some = [s for item in items for s in samples(metric, item, None, self.log.now_us)]
            self.log.frame(some, process=process, rank=rank, run=self.run)

    def do_again(self) -> None:
        self.log.put(self.log.records[-1].value)

    def do_lose(self, name: str, number: str) -> None:
        ((process, _),) = who(name)
        for _ in range(int(number)):
            self.log.seq(self.run, process)

    def do_restart(self) -> None:
        self.log.state = self.log.pipeline.load(self.log.pipeline.dump(self.log.state))

    def do_play(self, *words: str, below: list[str]) -> None:
        every = duration(words[words.index("every") + 1])
        step = int(words[words.index("step") + 1]) if "step" in words else None
        begin = self.log.now_us
        rows = [(line.split("|")[0].split(), line.split("|")[1].split()) for line in below]
        for column in range(max(len(tokens) for _, tokens in rows)):
            at = begin + column * every
            if "unwatched" not in words:
                last = begin - SECOND if self.ticked_us is None else self.ticked_us
                for tick in range(last // SECOND + 1, at // SECOND + 1):
                    self.log.now_us = tick * SECOND
                    self.do_tick()
            self.log.now_us = at
            self._column(rows, column, None if step is None else step + column)

    def _column(self, rows: list[tuple[list[str], list[str]]], column: int, step: int | None) -> None:
        frames: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
        for (names, metric), tokens in rows:
            if column < len(tokens) and tokens[column] != ".":
                for each in who(names):
                    some = samples(metric, tokens[column], step, self.log.now_us)
                    frames.setdefault(each, []).extend(some)
        for (process, rank), some in frames.items():
            self.log.frame(some, process=process, rank=rank, run=self.run)

    # --- what must be so -----------------------------------------------------------------------------------

    def do_windows(self, axis: str, metric: str, *words: str, below: list[str] | tuple[()] = ()) -> None:
        where: dict[str, Any] = {"attempt": "0", "group": "", "span": None} | fields(words)
        where["attempt"] = int(where["attempt"])
        found = {
            (row["start"], row["end"]): row
            for row in self.log.rows(run=self.run, axis=axis, metric=metric, **where)
        }
        wanted: dict[tuple[int, int], dict[str, str]] = {}
        for line in below:
            span, *columns = line.split()
            wanted |= dict.fromkeys(spans(span), fields(columns)) if span != "..." else {}
        others = sorted(found.keys() - wanted.keys())
        assert "..." in below or not others, f"not expected: {others}"
        for span, columns in wanted.items():
            assert span in found, f"lacking: {span} among {sorted(found)}"
            for name, text in columns.items():
                value = found[span][name] if name in found[span] else dict(found[span]["quantiles"])[name]
                assert agrees(value, text), f"{span} {name}: {value} is not {text}"

    def do_facts(self, kind: str, below: list[str] | tuple[()] = ()) -> None:
        self._listed([fact for fact in self.log.facts(kind) if fact.run == self.run], below)

    def do_alerts(self, below: list[str] | tuple[()] = ()) -> None:
        self._listed([a for a in self.log.of("alerts") if a.run == self.run and a.state != "update"], below)

    def _listed(self, found: list[Any], below: list[str] | tuple[()]) -> None:
        assert len(found) == len(below), f"{len(found)} are said: {found}"
        for said, line in zip(found, below, strict=True):
            for name, text in fields(shlex.split(line)).items():
                value = said.detail[name] if name not in said.__struct_fields__ else getattr(said, name)
                assert str(value) == text or agrees(value, text), f"{name}: {value} is not {text} in {said}"

    def do_no(self, what: str, *kinds: str) -> None:
        said = self.log.of("alerts") if what == "alerts" else [f for f in self.log.facts() if f.what in kinds]
        assert not said, f"said: {said}"

    def do_runs(self, number: str) -> None:
        assert len(self.log.state.runs) == int(number), f"{len(self.log.state.runs)} runs"

    def do_counter(self, name: str, number: str) -> None:
        found = self.log.state.counters.get(name, 0)
        assert found == int(number), f"it is {found}"


def fields(words: Any) -> dict[str, str]:
    """key=value words; a value may have = in it."""
    assert all("=" in word for word in words), f"not key=value: {words}"
    return dict(word.split("=", 1) for word in words)


def spans(text: str) -> list[tuple[int, int]]:
    """[a,b), or all windows from one to another that lie side by side."""
    pairs = [tuple(map(duration, pair)) for pair in re.findall(r"\[([^,]+),([^)]+)\)", text)]
    (first, end), (last, _) = pairs[0], pairs[-1]
    return [(at, at + end - first) for at in range(first, last + 1, end - first)]


def agrees(value: Any, text: str) -> bool:
    """Whole numbers and null exactly, floats to 12 digits, times with their unit."""
    if value is None or text == "null":
        return value is None and text == "null"
    if isinstance(value, str):
        return value == text
    if re.fullmatch(r"[+-]?[0-9.]+(us|ms|s|m|h)", text):
        return bool(value == duration(text))
    return bool(value == pytest.approx(float(text), rel=1e-12, abs=0, nan_ok=True))


def statements(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Line number, statement, and the lines that belong to it."""
    found: list[tuple[int, str, list[str]]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].rstrip()
        if line and line[0] == " ":
            found[-1][2].append(line.strip())
        elif line:
            found.append((number, line, []))
    return iter(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_story_comes_out_as_written(silent: Any, naive: ModuleType, path: Path) -> None:
    """However the log is cut, with a restart between any two records; the windows are the oracle's, too."""
    story = Story(silent.log(Pipeline()))
    story.play(path.read_text(encoding="utf-8"))
    log = story.log
    assert naive.differences(naive.run(log.records, story.config), log.outputs) == []
    assert log.pipeline.step(log.pipeline.fresh("uuid", 0), log.records) == log.outputs
    state, outputs = log.pipeline.fresh("uuid", 0), []
    every = 1 if len(log.records) < 300 else 17
    for at in range(0, len(log.records), every):
        outputs += log.pipeline.step(state, log.records[at : at + every])
        state = log.pipeline.load(log.pipeline.dump(state))
    assert outputs == log.outputs


@pytest.mark.parametrize(
    "wrong",
    [
        "windows step x\n  [0,1) count=2",
        "windows step x\n  [0,1)\n  [1,2)",
        "windows step x",
        "facts late\n  metric=x",
        "no facts run_started",
        "alerts\n  rule=non-finite",
        "runs 2",
        "counter samples 7",
    ],
)
def test_a_story_with_another_end_fails(silent: Any, wrong: str) -> None:
    """What a file expects is held: each kind of expectation, written wrong, is noticed, with its line."""
    told = "config windows=step:1/1\nlog a0 x 0=1\nend a0\n"
    Story(silent.log(Pipeline())).play(told + "windows step x\n  [0,1) count=1 mean=1 first=1 std=0")
    with pytest.raises(AssertionError, match="line 4"):
        Story(silent.log(Pipeline())).play(told + wrong)
