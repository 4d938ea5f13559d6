"""The sink on real brokers: every record's rows exactly once, whatever stops it and however often."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from driftline import admin, events, records
from driftline.clock import ManualClock
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.settings import Settings, StorageSettings
from driftline.storage import reading
from driftline.storage.lake import Lake
from driftline.storage.sink import Sink, run_sink
from driftline.storage.store import App
from driftline.storage.tables import FEEDS, TABLE_NAMES

BROKERS = [
    pytest.param("real", marks=pytest.mark.kafka),
    pytest.param("quick", marks=pytest.mark.embedded),
]


def send_all_kinds(harness: Any, make: Any, seq: int, partition: int = 0) -> None:
    """One record of each topic, and each kind that has rows of its own."""
    process = f"p{partition}"
    harness.send(
        "telemetry",
        make.started(seq * 2, process=process),
        make.frame(seq * 2 + 1, {"loss": [1.0, 2.0]}, process=process, step=seq * 2),
        make.accepted(seq),
        partition=partition,
    )
    harness.send("windows", make.windows(seq), partition=partition)
    harness.send("facts", make.fact(seq), partition=partition)
    harness.send("alerts", make.alert(seq), partition=partition)
    harness.send("eval-items", make.items(f"l{partition}", seq * 3, 3), partition=partition)


COUNTS = """SELECT (SELECT count(*) FROM samples), (SELECT count(*) FROM log),
    (SELECT count(*) FROM process_events), (SELECT count(*) FROM evals), (SELECT count(*) FROM windows),
    (SELECT count(*) FROM facts), (SELECT count(*) FROM alerts), (SELECT count(*) FROM eval_items)"""


def check_all_kinds_over_restarts(harness: Any, make: Any) -> None:
    for seq in range(3):
        send_all_kinds(harness, make, seq)
        harness.drain()
        n = seq + 1
        assert harness.rows(COUNTS) == [(2 * n, 3 * n, n, n, n, n, n, 3 * n)]
    # what is sent again after a restart is dropped by marks read back from the tables
    for seq in range(3):
        send_all_kinds(harness, make, seq)
    harness.drain()
    assert harness.rows(COUNTS) == [(6, 18, 3, 3, 3, 3, 3, 9)]
    assert harness.rows("SELECT count(*) FROM log WHERE outcome = 'duplicate'") == [(9,)]


@pytest.mark.kafka
def test_every_table_is_fed_once_over_restarts_and_resends(real: Any, make: Any) -> None:
    check_all_kinds_over_restarts(real, make)


@pytest.mark.embedded
def test_the_same_on_the_embedded_broker(quick: Any, make: Any) -> None:
    check_all_kinds_over_restarts(quick, make)


@pytest.mark.kafka
def test_partitions_are_kept_apart_and_stored_in_one_commit(real: Any, make: Any) -> None:
    for partition in range(4):
        send_all_kinds(real, make, 0, partition)
    real.drain()
    found = real.rows('SELECT "partition", count(*), max("offset") FROM log GROUP BY 1 ORDER BY 1')
    assert found == [(partition, 3, 2) for partition in range(4)]
    app = [App.id(real.uuids[real.kafka.topics["telemetry"]], partition) for partition in range(4)]
    lake = Lake(real.root)
    assert [lake.version("samples", one) for one in app] == [2, 2, 2, 2]
    assert len(lake.files("samples")) == 1


@pytest.mark.kafka
@pytest.mark.parametrize("behind", ["samples", "log"])
def test_a_crash_between_the_commits_of_two_tables_neither_loses_nor_doubles(
    real: Any, make: Any, behind: Any
) -> None:
    """A table that is behind gets its rows, the others skip them; and no record is its own duplicate."""
    send_all_kinds(real, make, 0)
    real.drain()
    _forget(real, behind, make)
    send_all_kinds(real, make, 1)
    real.drain()
    assert real.rows(COUNTS) == [(4, 6, 2, 2, 2, 2, 2, 6)]
    assert real.rows("SELECT count(*) FROM log WHERE outcome <> 'stored'") == [(0,)]
    assert real.rows('SELECT count(DISTINCT (topic_uuid, "partition", "offset")) FROM log') == [(6,)]


def _forget(real: Any, name: Any, make: Any) -> None:
    """Makes one table as it was before its last commit: empty, at no position."""
    import shutil

    shutil.rmtree(real.root / name)


@pytest.mark.kafka
def test_a_killed_sink_resumes_without_loss_or_double(real: Any, make: Any) -> None:
    """kill -9 at arbitrary moments, while records come and commits happen all the time."""
    env = os.environ | {
        "DRIFTLINE_KAFKA__BOOTSTRAP": real.kafka.bootstrap,
        "DRIFTLINE_KAFKA__PREFIX": real.kafka.prefix,
        "DRIFTLINE_KAFKA__PARTITIONS": str(real.kafka.partitions),
        "DRIFTLINE_STORAGE__ROOT": str(real.root),
        "DRIFTLINE_STORAGE__COMMIT": "50ms",
        "DRIFTLINE_STORAGE__SESSION_TIMEOUT": "6s",
        "PYTHONUNBUFFERED": "1",
    }
    done = threading.Event()
    sent = [0]

    def produce() -> None:
        while not done.is_set():
            seq = sent[0]
            real.send("telemetry", make.frame(seq, {"loss": [float(seq)] * 10}, step=seq * 10))
            real.send("windows", make.windows(seq))
            sent[0] += 1

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(4):
            before = sent[0]
            sink = subprocess.Popen(
                [sys.executable, "-m", "driftline.storage.sink"],
                env=env,
                cwd=real.root.parent,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                _wait_for_reading(sink)
                real.wait_for(lambda before=before: sent[0] > before + 40)
            finally:
                sink.send_signal(signal.SIGKILL)
                sink.communicate(timeout=120)
    finally:
        done.set()
        producer.join()
    real.drain()
    n = sent[0]
    assert real.rows("SELECT count(*), count(DISTINCT step), sum(value) FROM samples") == [
        (10 * n, 10 * n, 10.0 * n * (n - 1) / 2)
    ]
    assert real.rows('SELECT count(*), count(DISTINCT "offset") FROM windows') == [(n, n)]
    assert real.rows('SELECT count(*), count(DISTINCT "offset") FROM log') == [(n, n)]


def _wait_for_reading(sink: Any) -> None:
    """A broker that is slow to answer costs a line before it."""
    for line in sink.stderr:
        assert "Traceback" not in line
        if "reading from" in line:
            return
    raise AssertionError(f"the sink ended with {sink.wait()}")


@pytest.mark.kafka
def test_two_sinks_on_the_same_tables_double_nothing(real: Any, make: Any) -> None:
    with real.sink(commit_us=50_000), real.sink(commit_us=50_000):
        for seq in range(60):
            real.send("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
    real.drain()
    assert real.rows("SELECT count(*), count(DISTINCT step) FROM samples") == [(60, 60)]
    assert real.rows('SELECT count(*), count(DISTINCT "offset") FROM log') == [(60, 60)]


@pytest.mark.embedded
def test_a_write_that_fails_stops_nothing_and_doubles_nothing(
    quick: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Direction of case 39: the disk is full between the commits of two tables, for a while."""
    commit, failed = Lake.commit, []

    def full(lake: Lake, name: Any, rows: Any, expected: Any, reached: Any) -> None:
        if name == "log" and len(failed) < 3:
            failed.append(name)
            raise Unavailable("No space left on device")
        commit(lake, name, rows, expected, reached)

    monkeypatch.setattr(Lake, "commit", full)
    with quick.sink(commit_us=50_000):
        for seq in range(10):
            quick.send("telemetry", make.frame(seq, {"loss": [float(seq)]}, step=seq))
        quick.wait_for(lambda: len(failed) == 3)
    assert quick.rows("SELECT count(*), sum(value) FROM samples") == [(10, 45.0)]
    assert quick.rows('SELECT count(*), count(DISTINCT "offset") FROM log') == [(10, 10)]
    assert len([line for line in quick.lines if "No space left" in line]) <= 3


@pytest.mark.kafka
def test_undecodable_records_become_dead_letters_or_log_rows_and_the_stream_goes_on(
    real: Any, make: Any
) -> None:
    """Case 27: 5 valid, 1 of raw bytes, 1 with a missing field, 5 valid, on two topics."""
    bad = [b"\x00\x01raw", b'{"kind":"fact","v":1,"run":"r"}']
    real.send("facts", *[make.fact(at) for at in range(5)], *bad, *[make.fact(at) for at in range(5, 10)])
    frames = [make.frame(at, {"loss": [1.0]}, step=at) for at in range(10)]
    real.send("telemetry", *frames[:5], *bad[:1], b'{"kind":"tick"}', *frames[5:])
    real.drain()
    assert real.rows("SELECT count(*) FROM facts") == [(10,)]
    assert real.rows("SELECT count(*) FROM samples") == [(10,)]
    found = real.rows("SELECT \"offset\", payload FROM log WHERE outcome = 'undecodable' ORDER BY 1")
    assert found == [(5, bad[0]), (6, b'{"kind":"tick"}')]
    letters = [records.decode(value) for value in _read(real, "dead-letter", 2)]
    assert all(isinstance(letter, events.DeadLetter) for letter in letters)
    assert [(letter.offset, letter.value, letter.topic) for letter in letters] == [
        (5, bad[0], "facts"),
        (6, bad[1], "facts"),
    ]
    assert all(letter.reason for letter in letters)


def _read(harness: Any, topic: Any, count: int) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    from driftline.connection import kafka_python

    found: list[bytes] = []
    consumer = KafkaConsumer(**kafka_python(harness.kafka), auto_offset_reset="earliest", group_id=None)
    spot = TopicPartition(harness.kafka.topics[topic], 0)
    consumer.assign([spot])
    harness.wait_for(
        lambda: found.extend(r.value for r in consumer.poll(200).get(spot, [])) or len(found) >= count
    )
    consumer.close()
    return found


@pytest.mark.kafka
def test_everything_sent_before_the_stop_is_stored(real: Any, make: Any) -> None:
    with real.sink(commit_us=60_000_000) as stop:
        real.wait_for(lambda: any("reading" in line for line in real.lines))
        for seq in range(50):
            real.send("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq), partition=seq % 4)
        stop.set()
    assert real.rows("SELECT count(*) FROM log") == [(50,)]
    assert any("behind 0" in line for line in real.lines)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_slow_disk_does_not_shorten_the_last_reading(
    broker: str, request: pytest.FixtureRequest, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that take longer than everything else: what no fetch has told of by then is stored as well."""
    harness = request.getfixturevalue(broker)
    monkeypatch.setattr(reading, "_POLL_RECORDS", 1)
    commit = Lake.commit

    def slow(lake: Lake, name: Any, *arguments: Any) -> None:
        if name == "facts":
            time.sleep(0.7)
        commit(lake, name, *arguments)

    for partition in range(4):
        harness.send("facts", make.fact(partition), partition=partition)
    monkeypatch.setattr(Lake, "commit", slow)
    with harness.sink(commit_us=1) as stop:
        stop.set()
    assert harness.rows("SELECT count(*) FROM facts") == [(4,)]
    assert [line for line in harness.lines if "waiting" in line] == []


@pytest.mark.embedded
def test_a_stop_that_comes_before_the_first_read_still_stores_what_is_there(quick: Any, make: Any) -> None:
    quick.send("telemetry", make.frame(0, {"loss": [1.0]}))
    with quick.sink() as stop:
        stop.set()
    assert quick.rows("SELECT count(*) FROM log") == [(1,)]


@pytest.mark.kafka
def test_the_catalog_follows_the_tables_and_works_from_any_folder(
    real: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = real.root / "catalog.duckdb"

    def count() -> int:
        if not catalog.exists():
            return -1
        with duckdb.connect(str(catalog), read_only=True) as db:
            return int(db.execute("SELECT count(*) FROM curves").fetchall()[0][0])

    with real.sink():
        for seq in range(3):
            real.send("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq))
            real.wait_for(lambda seq=seq: count() == seq + 1)
    assert count() == 3
    assert list(real.root.glob(".catalog*")) == []


@pytest.mark.kafka
def test_readers_and_the_sink_do_not_lock_each_other_out(real: Any, make: Any) -> None:
    """Case S19, scaled: three readers in a loop while the sink writes and replaces the catalog."""
    real.send("telemetry", make.frame(0, {"loss": [1.0]}))
    real.drain()
    done, errors, reads = threading.Event(), [], []

    def read(how: str) -> None:
        try:
            while not done.is_set():
                if how == "catalog":
                    with duckdb.connect(str(real.root / "catalog.duckdb"), read_only=True) as db:
                        reads.append(db.execute("SELECT count(*) FROM samples").fetchall()[0][0])
                else:
                    reads.append(real.rows("SELECT count(*) FROM samples")[0][0])
        except Exception as error:
            errors.append(error)
            raise

    readers = [threading.Thread(target=read, args=(how,)) for how in ("catalog", "catalog", "open")]
    with real.sink(commit_us=50_000, catalog_us=50_000):
        for reader in readers:
            reader.start()
        for seq in range(1, 30):
            real.send("telemetry", make.frame(seq, {"loss": [1.0]}, step=seq))
        real.wait_for(lambda: len(reads) > 10 or errors)
    done.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert reads[-1] >= 1
    assert real.rows("SELECT count(*) FROM samples") == [(30,)]


@pytest.mark.kafka
def test_a_topic_made_anew_starts_at_its_beginning_and_keeps_the_old_rows(real: Any, make: Any) -> None:
    real.send("facts", make.fact(1), make.fact(2))
    real.drain()
    client = admin.connect(real.kafka)
    client.delete_topics([real.kafka.topics["facts"]])
    client.close()
    real.wait_for(lambda: admin.partitions(real.kafka, real.kafka.topics["facts"]) is None)
    admin.ensure_topics(real.kafka)
    real.send("facts", make.fact(3))
    real.drain()
    assert real.rows('SELECT "offset" FROM facts ORDER BY 1') == [(1,), (2,), (3,)]


def test_without_a_broker_it_says_so_once_and_stops_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        kafka = KafkaSettings(bootstrap=f"127.0.0.1:{unused.getsockname()[1]}")
        settings = Settings(kafka=kafka, storage=StorageSettings(root=str(tmp_path)))
        lines: list[str] = []
        stop, attempts = threading.Event(), []
        connect = admin.connect

        def attempt(kafka: KafkaSettings) -> Any:
            attempts.append(threading.active_count())
            if len(attempts) == 3:
                stop.set()
            return connect(kafka)

        monkeypatch.setattr(admin, "connect", attempt)
        assert run_sink(settings, stop=stop, say=lines.append) == 0
    waiting = [line for line in lines if "waiting" in line]
    assert len(waiting) == 1
    assert kafka.bootstrap in waiting[0]
    assert all("\n" not in line and "Traceback" not in line for line in lines)
    assert attempts[2] <= attempts[1], "each attempt leaves a thread"


def test_a_folder_that_cannot_be_written_is_named_and_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    settings = Settings(storage=StorageSettings(root=str(tmp_path / "file" / "data")))
    assert run_sink(settings, say=lines.append) == 2
    assert len(lines) == 1
    assert "file/data" in lines[0]


@pytest.mark.kafka
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_the_process_with_0_after_a_last_commit(real: Any, make: Any, number: int) -> None:
    real.send("telemetry", make.frame(0, {"loss": [1.0]}))
    env = os.environ | {
        "DRIFTLINE_KAFKA__BOOTSTRAP": real.kafka.bootstrap,
        "DRIFTLINE_KAFKA__PREFIX": real.kafka.prefix,
        "DRIFTLINE_KAFKA__PARTITIONS": str(real.kafka.partitions),
        "DRIFTLINE_STORAGE__ROOT": str(real.root),
    }
    sink = subprocess.Popen(
        [sys.executable, "-m", "driftline.storage.sink"],
        env=env,
        cwd=real.root.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for_reading(sink)
    sink.send_signal(number)
    _, rest = sink.communicate(timeout=120)
    assert sink.returncode == 0, rest
    assert "Traceback" not in rest
    assert real.rows("SELECT count(*) FROM samples") == [(1,)]


class _Group:
    """A group that gives nothing and says nothing."""

    partitions = None
    trouble = None
    group = "sinks"

    def beat(self) -> None:
        pass


def test_a_sink_counts_its_time_without_partitions_from_when_they_went(tmp_path: Path) -> None:
    """After a calm of hours it waits as long for the group's new division as at its start."""
    clock = ManualClock(now_us=0)
    settings = Settings(storage=StorageSettings(root=str(tmp_path)))
    sink = Sink(settings, say=print, clock=clock)
    sink._mine = frozenset({0})
    clock.advance(3_600 * 1_000_000)
    reader: Any = None
    group: Any = _Group()
    sink._turn(reader, group)
    clock.advance(20 * 1_000_000)
    sink._turn(reader, group)
    clock.advance(1)
    with pytest.raises(Unavailable, match="group sinks is being divided anew"):
        sink._turn(reader, group)


@pytest.mark.kafka
def test_retention_shorter_than_the_sink_needs_is_said_before_rows_are_lost_and_counted_after(
    real: Any, make: Any
) -> None:
    """The broker keeps two minutes; a sink comes after more than half of that, the next one too late."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource

    topic = real.kafka.topics["facts"]
    client = admin.connect(real.kafka)
    client.alter_configs([ConfigResource("TOPIC", topic, {"retention.ms": "120000"})])
    now_ms = int(time.time() * 1000)
    real.send("facts", make.fact(0), at_ms=now_ms - 90_000)
    real.send("alerts", make.alert(0), at_ms=now_ms - 90_000)
    with real.sink():
        real.wait_for(lambda: any("rows will be lost" in line for line in real.lines))
    (said,) = [line for line in real.lines if "rows will be lost" in line]
    assert f"{topic}/0 has records of" in said
    assert "retention.ms=120000" in said
    assert real.rows("SELECT count(*) FROM gaps") == [(0,)]
    real.send("facts", *[make.fact(at) for at in range(1, 5)], at_ms=now_ms)
    client.delete_records({TopicPartition(topic, 0): 3})
    client.close()
    for _ in range(2):
        real.lines.clear()
        with real.sink() as stop:
            real.wait_for(lambda: any("reading" in line for line in real.lines))
            stop.set()
    assert real.rows('SELECT topic, "partition", first, last, tables FROM gaps') == [
        ("facts", 0, 1, 2, "facts")
    ]
    assert real.rows('SELECT "offset" FROM facts ORDER BY 1') == [(0,), (3,), (4,)]


def test_every_topic_that_feeds_a_table_feeds_it_alone() -> None:
    names = [name for tables in FEEDS.values() for name in tables]
    assert len(names) == len(set(names))


@pytest.mark.kafka
def test_a_run_named_like_a_path_writes_nothing_outside(real: Any, make: Any) -> None:
    """Case S13."""
    odd = ["a/../../b", "/etc/x", "'; DROP VIEW samples; --"]
    for at, run in enumerate(odd):
        real.send("telemetry", make.started(0, run=run, process=f"p{at}", name=run))
        real.send("telemetry", make.frame(1, {"loss": [1.0]}, run=run, process=f"p{at}"))
    before = {path for path in real.root.parent.iterdir() if path != real.root}
    real.drain()
    assert {path for path in real.root.parent.iterdir() if path != real.root} == before
    assert real.rows("SELECT run, name FROM runs ORDER BY 1") == sorted((run, run) for run in odd)
    inside = {path.name for path in real.root.iterdir()}
    assert inside == {*TABLE_NAMES, "catalog.duckdb"}


@pytest.mark.long
@pytest.mark.kafka
def test_a_broker_that_goes_and_comes_back_costs_two_lines_and_no_row(
    jvm_kafka: Any, make: Any, harness_on: Any
) -> None:
    settings = KafkaSettings(bootstrap=jvm_kafka.bootstrap, prefix="away.", partitions=2)
    with harness_on(settings) as harness, harness.sink():
        harness.send("telemetry", make.frame(0, {"loss": [1.0]}))
        harness.wait_for(lambda: _count(harness) == 1)
        jvm_kafka.kill()
        harness.wait_for(lambda: any("waiting" in line for line in harness.lines))
        jvm_kafka.start()
        harness.send("telemetry", make.frame(0, {"loss": [1.0]}), make.frame(1, {"loss": [1.0]}, step=1))
        harness.wait_for(lambda: _count(harness) == 2)
        assert len([line for line in harness.lines if "waiting" in line]) <= 3
        assert all("Traceback" not in line for line in harness.lines)


def _count(harness: Any) -> int:
    return int(harness.rows("SELECT count(*) FROM samples")[0][0])
