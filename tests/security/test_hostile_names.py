"""Names and paths from the wire are data: they come back as sent and are never a path, SQL, code or control
of a terminal (case S13)."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from rich.console import Console

import driftline
from driftline import admin, config, events, frames
from driftline.cli.outcome import set_up_logging
from driftline.cli.sql import print_answer
from driftline.cli.watch import watch
from driftline.cli.watch_feed import Feed
from driftline.cli.watch_state import WatchState
from driftline.cli.watch_view import line, render, summary
from driftline.clock import SystemClock
from driftline.connection import KafkaSettings, kafka_python
from driftline.evaluator.job import Runner, SuiteShelf
from driftline.records import Record
from driftline.settings import EvaluatorSettings, SdkSettings, Settings, StorageSettings
from driftline.storage.open import open_catalog
from driftline.storage.sink import run_sink
from driftline.streams.core import beginning
from driftline.streams.pipeline import Pipeline
from driftline.visible import visible

RICH_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def metrics(support: Any) -> list[str]:
    found: list[str] = support("hostile").NAMES
    return found


@pytest.fixture
def names(metrics: list[str]) -> list[str]:
    """Those that are short enough for a run or a host."""
    return [name for name in metrics if len(name) <= 240]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; at the end nothing but ``data`` was made around it."""
    work = tmp_path / "a" / "b" / "work"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    yield work
    made = {path.relative_to(tmp_path).parts for path in tmp_path.rglob("*")}
    outside = {parts for parts in made if parts[:4] != ("a", "b", "work", "data")}
    assert outside == {("a",), ("a", "b"), ("a", "b", "work")}
    assert not Path("/tmp/escaped").exists()
    assert not Path("/etc/x").exists()


def records_of(name: str, metrics: list[str], at: int) -> list[tuple[str, bytes]]:
    """What a process of a run of this name sends, and an evaluator for it."""
    common: dict[str, Any] = {"run": name, "process": f"{name}{at}"}
    now = 1_700_000_000_000_000
    point = events.Checkpoint(digest=f"d{at}", uri=name, format="safetensors", step=1)
    suite = events.SuiteRef(name=name, target=name)
    started = events.ProcessStarted(
        **common, seq=0, time_us=now, name=name, rank=0, world_size=1, host=name, config={name: name}
    )
    count = len(metrics)
    frame = frames.Frame(
        **common, rank=0, seq=1, names=metrics,
        metric=np.arange(count, dtype=np.int16), step=np.full(count, 1, np.int64),
        time_us=np.full(count, now), value=np.arange(count, dtype=np.float64), weight=np.ones(count),
    )  # fmt: skip
    saved = events.CheckpointSaved(**common, seq=2, time_us=now, checkpoint=point, rank=0)
    accepted = events.EvalAccepted(
        id=f"evals-uuid/0/{at}/0", request=f"q{at}", run=name, attempt=0, suite=suite, checkpoint=point,
        reason=name, evaluator=name, lease=f"l{at}", tries=1, requested_us=now, accepted_us=now,
        outcome=events.EvalOutcome(status="failed", reason=name),
    )  # fmt: skip
    items = events.EvalItems(
        run=name, request=f"q{at}", lease=f"l{at}", first=0,
        items=[events.Item(item=name, status="wrong", response=name, expected=name)],
    )  # fmt: skip
    alert = events.Alert(
        id=f"telemetry-uuid/0/{at}/0", alert=name, run=name, attempt=0, rule=name, detector="d",
        severity="warn", state="open", time_us=now, opened_us=now, explanation=name,
    )  # fmt: skip
    return [
        ("telemetry", events.encode(started)),
        ("telemetry", frames.encode(frame)),
        ("telemetry", events.encode(saved)),
        ("telemetry", events.encode(accepted)),
        ("eval-items", events.encode(items)),
        ("alerts", events.encode(alert)),
    ]


class Wire:
    """Topics of one partition each."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self.uuids = admin.ensure_topics(kafka)
        self._producer = KafkaProducer(**kafka_python(kafka))

    def send(self, *records: tuple[str, bytes]) -> None:
        sent = [
            self._producer.send(self.kafka.prefix + topic, value, partition=0) for topic, value in records
        ]
        for future in sent:
            future.get(30)

    def read(self, topic: str) -> list[Record]:
        spot = TopicPartition(self.kafka.prefix + topic, 0)
        found: list[Record] = []
        with contextlib.closing(KafkaConsumer(**kafka_python(self.kafka), auto_offset_reset="earliest")) as c:
            c.assign([spot])
            end = c.end_offsets([spot])[spot]
            while len(found) < end:
                for raw in c.poll(timeout_ms=200).get(spot, []):
                    found.append(Record(0, raw.offset, raw.timestamp, raw.value))
        return found

    def pipeline(self) -> None:
        """What the stream workers make of the log."""
        core, log = Pipeline(), self.read("telemetry")
        state = beginning(core, self.uuids[self.kafka.topics["telemetry"]], 0, log)
        self.send(*((output.topic, output.value) for output in core.step(state, log)))

    def sink(self, root: str) -> None:
        """Reads what is there into the tables."""
        stop, lines = threading.Event(), []

        def say(line: str) -> None:
            lines.append(line)
            if "reading" in line:
                stop.set()

        settings = Settings(kafka=self.kafka, storage=StorageSettings(root=root, commit_us=100_000))
        assert run_sink(settings, stop=stop, say=say) == 0, lines

    def close(self) -> None:
        self._producer.close()


@pytest.fixture
def wire(kafka: Any) -> Iterator[Wire]:
    with contextlib.closing(Wire(kafka.settings(partitions=1))) as made:
        yield made


@pytest.mark.kafka
def test_names_from_the_wire_come_back_from_tables_and_views_as_they_were_sent(
    wire: Wire,
    sandbox: Path,
    names: list[str],
    metrics: list[str],
    support: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = config.encode(config.PipelineConfig(per_rank=metrics, per_host=metrics))
    changed = events.ConfigChanged(worker="w", time_us=1, digest=config.digest(body), body=body.decode())
    wire.send(("telemetry", events.encode(changed)))
    for at, name in enumerate(names):
        wire.send(*records_of(name, metrics, at))
    wire.pipeline()
    wire.sink("data")
    with open_catalog("data") as catalog:

        def column(sql: str, *parameters: object) -> list[Any]:
            return [row[0] for row in catalog.rows(sql, list(parameters))]

        assert sorted(column("SELECT DISTINCT run FROM samples")) == sorted(names)
        assert sorted(column("SELECT DISTINCT metric FROM samples")) == sorted(metrics)
        assert column("SELECT count(*) FROM samples") == [len(names) * len(metrics)]
        assert sorted(column("SELECT name FROM runs")) == sorted(names)
        assert sorted(column("SELECT DISTINCT host FROM processes")) == sorted(names)
        assert sorted(column("SELECT uri FROM checkpoints")) == sorted(names)
        assert sorted(column("SELECT DISTINCT suite FROM evals")) == sorted(names)
        assert sorted(column("SELECT item FROM eval_items")) == sorted(names)
        assert sorted(column("SELECT explanation FROM alerts")) == sorted(names)
        for name in names:
            assert column("SELECT count(*) FROM curves WHERE run = ? AND metric = ?", name, name) == [1]
    with duckdb.connect("data/catalog.duckdb", read_only=True) as plain:
        assert plain.execute("SELECT count(DISTINCT metric) FROM samples").fetchall() == [(len(metrics),)]

    for form in ("json", "csv", "table"):
        query = "SELECT DISTINCT run FROM samples ORDER BY run"
        assert print_answer("data", query, form=form, max_rows=100) == 0
        text = capsys.readouterr().out
        if form == "json":
            assert [json.loads(line)["run"] for line in text.split("\n")[:-1]] == sorted(names)
        elif form == "csv":  # csv's reader of lines has no way to keep a lone carriage return apart
            read = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
            assert read == ["run", *sorted(names)]
        else:
            assert not set(text) & set(support("hostile").STEERING)


@pytest.mark.kafka
def test_the_live_view_shows_names_and_lets_none_of_them_steer_the_terminal(
    wire: Wire, names: list[str], metrics: list[str], support: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for at, name in enumerate(names):
        wire.send(*records_of(name, metrics, at))
    steering = set(support("hostile").STEERING)
    state, feed = WatchState(), Feed(wire.kafka)
    with contextlib.closing(feed):
        while feed.missing or not feed.caught_up():
            feed.poll(state, 0.2)
    lines = [line(entry, name=state.runs[entry.run].name) for entry in state.news()]
    lines += [summary(view, now_us=state.now_us) for view in state.runs.values()]
    assert len(lines) > 3 * len(names)
    assert not set("".join(lines)) & steering
    assert not any("\n" in told for told in lines)
    for name in names:
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=True, width=4_000, height=200)
        console.print(render(state, now_us=state.now_us, run=name, height=200))
        text = RICH_COLOURS.sub("", shown.getvalue())
        assert visible(name) in text
        assert not set(text) & steering
        assert "\n2026 sink: forged" not in text
    shown = io.StringIO()
    watch(wire.kafka, run=names[10], since_s=None, once=True, console=Console(file=shown, width=4_000))
    assert visible(names[10]) in shown.getvalue()
    assert not (set(shown.getvalue()) | set(capsys.readouterr().err)) & steering


class Suites:
    """The wire's side of an evaluator."""

    def __init__(self) -> None:
        self.known = events.SuiteRef(name="sums", target="driftline.demo.suite:addition")
        settings = EvaluatorSettings(wait_us=0, poll_us=1_000)
        self.runner = Runner(settings, SuiteShelf([self.known]), device="cpu", clock=SystemClock())

    def run(self, suite: events.SuiteRef, checkpoint: events.Checkpoint) -> events.EvalOutcome:
        return self.runner.run(suite, checkpoint, progress=lambda *_: None, sleep=lambda _: None).outcome


def test_a_suite_from_the_wire_is_never_imported(sandbox: Path, names: list[str]) -> None:
    """Only what the evaluator's own settings name is run, with the settings that stand there."""
    (sandbox / "planted.py").write_text("open('imported', 'w')")
    checkpoint = events.Checkpoint(digest="d", uri="/nowhere", format="safetensors")
    suites = Suites()
    targets = [*names, "planted:x", "os:getcwd", "driftline.demo.suite:answers"]
    asked = [events.SuiteRef(name=target, target=target) for target in targets]
    asked += [events.SuiteRef(name="sums", target=target) for target in targets]
    asked += [
        events.SuiteRef(name="sums", target=suites.known.target, settings={"count": name}) for name in names
    ]
    for suite in asked:
        outcome = suites.run(suite, checkpoint)
        assert outcome.status == "failed"
        assert "settings" in outcome.reason
    assert "planted" not in sys.modules
    (sandbox / "planted.py").unlink()


def test_a_path_from_the_wire_leads_nowhere_but_to_an_absolute_checkpoint(
    sandbox: Path, names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither the URI nor a name in manifest or index leaves its place; nothing is made or written."""
    suites = Suites()
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.safetensors"
    secret.write_bytes(b"not for you")
    uris = [
        *names,
        f"file://{names[0]}",
        "http://x/y",
        "s3://b/k",
        f"{secret.parent}/../{secret.parent.name}",
    ]
    for uri in uris:
        outcome = suites.run(suites.known, events.Checkpoint(digest="d", uri=uri, format="safetensors"))
        assert outcome.status in ("unreadable", "gone"), uri
    for name in [*names, str(secret), f"../{secret.parent.name}/{secret.name}"]:
        folder = tmp_path_factory.mktemp("checkpoint")
        point = events.Checkpoint(
            digest="d", uri=str(folder), format="safetensors", files=[events.FileEntry(name, 11)]
        )
        assert suites.run(suites.known, point).status in ("unreadable", "incomplete"), name
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        point = events.Checkpoint(digest="d", uri=str(folder), format="safetensors")
        assert suites.run(suites.known, point).status in ("unreadable", "incomplete"), name
        assert [path.name for path in folder.iterdir()] == ["model.safetensors.index.json"]
    assert secret.read_bytes() == b"not for you"


def test_names_given_to_the_sdk_are_sent_as_typed_and_are_no_paths(
    sandbox: Path, names: list[str], monkeypatch: pytest.MonkeyPatch, support: Any
) -> None:
    """With the broker away, so that the samples go to the spool, whose folder is named after the run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(sandbox / "data"))
    kafka = KafkaSettings(bootstrap="127.0.0.1:1")
    sdk = SdkSettings(system=(), flush_us=1_000, exit_us=50_000, spool_reserve_bytes=0)
    for name in [*names, "\udc80", "x" * 10_000_000]:
        settings = Settings(sdk=sdk, kafka=kafka)
        run = driftline.init(name, run_id=name, role=name, settings=settings, rank=0)
        run.log({name: 1.0}, step=1)
        run.finish()
        assert run.name == name
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]*", run.id)
    spooled = [path for path in (sandbox / "data").rglob("*") if path.is_file()]
    assert len(spooled) >= len(names), "something was really written"


def test_a_log_line_stays_one_line_whatever_it_quotes(
    names: list[str], support: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    ours = logging.getLogger("driftline")
    before = (list(ours.handlers), ours.level, ours.propagate)
    from driftline.cli.outcome import Level

    try:
        ours.addHandler(
            logging.StreamHandler(io.StringIO())
        )  # whose formatter leaves its trace in the record
        set_up_logging(Level.INFO, role="evaluator")
        set_up_logging(Level.INFO, role="evaluator")
        for name in names:
            ours.info("%s of step %s: begins", name, 1)
        try:
            raise ValueError(names[10])
        except ValueError:
            ours.exception("it broke")
    finally:
        ours.handlers[:], ours.propagate = before[0], before[2]
        ours.setLevel(before[1])
    text = capsys.readouterr().err
    assert not set(text) & set(support("hostile").STEERING)
    lines = text.splitlines()
    assert [line for line in lines[: len(names)] if " evaluator: " not in line] == []
    assert sum("begins" in line for line in lines) == len(names), "each line once, however often it is set up"
