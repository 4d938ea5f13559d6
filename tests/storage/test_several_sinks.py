"""Several sinks on the same tables: each partition is read by one, and nobody can store what is another's."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driftline.records import Record
from driftline.storage.core import SinkCore, Spot
from driftline.storage.lake import Lake
from driftline.storage.open import open_catalog
from driftline.storage.store import Conflict
from driftline.storage.tables import FEEDS

UUID = "11111111-1111-1111-1111-111111111111"
_SLOW = """
import sys, time
from driftline.storage import lake, sink
commit = lake.Lake.commit
def slow(self, name, rows, expected, moves):
    if name == "samples":
        print("committing", file=sys.stderr, flush=True)
        time.sleep(0.5)
    commit(self, name, rows, expected, moves)
lake.Lake.commit = slow
sys.exit(sink.main())
"""
"""A sink that stands a while, with its rows in hand, right before it commits samples."""


class Process:
    """A sink of its own process; its lines as they come."""

    def __init__(self, harness: Any, code: str | None = None, **storage: str) -> None:
        environ = {
            "DRIFTLINE_KAFKA__BOOTSTRAP": harness.kafka.bootstrap,
            "DRIFTLINE_KAFKA__PREFIX": harness.kafka.prefix,
            "DRIFTLINE_KAFKA__PARTITIONS": str(harness.kafka.partitions),
            "DRIFTLINE_STORAGE__ROOT": str(harness.root),
            "DRIFTLINE_STORAGE__SESSION_TIMEOUT": "6s",
            "DRIFTLINE_STORAGE__COMMIT": "100ms",
            "PYTHONUNBUFFERED": "1",
        }
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, *(["-c", code] if code else ["-m", "driftline.storage.sink"])],
            env=os.environ | environ | storage,
            cwd=harness.root.parent,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                print(f"{self._process.pid}: {line.rstrip()}", file=sys.stderr)  # shown where a test fails

    @property
    def share(self) -> str | None:
        """What it said last that it reads."""
        said = [line.rpartition(": ")[2] for line in self.lines if "reading from" in line]
        return said[-1] if said else None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal, waits for the end; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        code = self._process.wait(120)
        self._reader.join()
        return code


@contextlib.contextmanager
def producing(harness: Any, make: Any) -> Iterator[list[int]]:
    """Sends a frame of 10 samples to each partition, again and again; gives how many so far."""
    done, sent = threading.Event(), [0]

    def produce() -> None:
        while not done.is_set():
            seq = sent[0]
            for partition in range(harness.kafka.partitions):
                frame = make.frame(seq, {"x": [float(seq)] * 10}, step=seq * 10, process=f"p{partition}")
                harness.send("telemetry", frame, partition=partition)
                harness.send("facts", make.fact(seq, id=f"{UUID}/{partition}/{seq}/0"), partition=partition)
            sent[0] += 1
            done.wait(0.05)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield sent
    finally:
        done.set()
        thread.join()


def assert_exact(harness: Any, sent: int) -> None:
    """Every row of ``producing`` is there once."""
    partitions = harness.kafka.partitions
    assert harness.rows("SELECT count(*), count(DISTINCT (process, step)), sum(value) FROM samples") == [
        (10 * sent * partitions, 10 * sent * partitions, partitions * 10.0 * sent * (sent - 1) / 2)
    ]
    for table in ("log", "facts"):
        found = harness.rows(f'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM {table}')
        assert found == [(sent * partitions, sent * partitions)], table


def divided(*sinks: Process) -> bool:
    """Whether the sinks' shares are disjoint and complete, four partitions in all."""
    shares = [sink.share for sink in sinks]
    if len(sinks) == 1:
        return shares == ["all partitions"]
    mine = [re.findall(r"\d+", share) for share in shares if share and share.startswith("partitions")]
    return len(mine) == len(sinks) and sorted(p for share in mine for p in share) == ["0", "1", "2", "3"]


@pytest.mark.kafka
def test_partitions_move_when_a_sink_comes_is_stopped_or_killed_and_every_row_is_stored_once(
    real: Any, make: Any
) -> None:
    sinks: list[Process] = []
    try:
        with producing(real, make) as sent:
            for count in (1, 2, 3):
                sinks.append(Process(real))
                real.wait_for(lambda: divided(*sinks))
                assert len(sinks) == count
            assert sinks.pop(0).end() == 0
            real.wait_for(lambda: divided(*sinks))
            sinks.pop(0).end(signal.SIGKILL)
            real.wait_for(lambda: divided(*sinks))
            at = sent[0]
            real.wait_for(lambda: real.rows("SELECT max(step) FROM samples")[0][0] > at * 10)
    finally:
        codes = [sink.end() for sink in sinks]
    assert codes == [0]
    assert not any("Traceback" in line for sink in sinks for line in sink.lines)
    real.drain()
    assert_exact(real, sent[0])


@pytest.mark.kafka
def test_a_sink_that_is_paused_in_a_commit_and_woken_when_another_has_its_partitions_is_refused(
    real: Any, make: Any
) -> None:
    """The zombie's handle shows the positions from before the pause: the tables refuse it, it starts again
    with what the group leaves to it."""
    sinks = [Process(real, _SLOW)]
    try:
        with producing(real, make) as sent:
            zombie = sinks[0]
            real.wait_for(lambda: zombie.lines.count("committing") >= 2)
            said = zombie.lines.count("committing")
            real.wait_for(lambda: zombie.lines.count("committing") > said)
            zombie.send(signal.SIGSTOP)
            sinks.append(Process(real))
            real.wait_for(lambda: divided(sinks[1]))
            at = sent[0]
            real.wait_for(lambda: real.rows("SELECT max(step) FROM samples")[0][0] > at * 10)
            zombie.send(signal.SIGCONT)
            real.wait_for(lambda: any("another sink wrote" in line for line in zombie.lines))
            real.wait_for(lambda: divided(*sinks))
    finally:
        codes = [sink.end() for sink in sinks]
    assert codes == [0, 0]
    real.drain()
    assert_exact(real, sent[0])


@pytest.mark.embedded
def test_on_the_embedded_broker_two_sinks_share_and_one_goes_on_alone(quick: Any, make: Any) -> None:
    with producing(quick, make) as sent, quick.sink(commit_us=50_000):
        with quick.sink(commit_us=50_000):
            quick.wait_for(lambda: sum("partitions " in line for line in quick.lines) >= 2)
        parted = len(quick.lines)
        quick.wait_for(lambda: any("all partitions" in line for line in quick.lines[parted:]))
    quick.drain()
    assert_exact(quick, sent[0])


@pytest.mark.embedded
def test_sinks_of_other_tables_are_another_group_and_get_everything(
    quick: Any, make: Any, harness_on: Any
) -> None:
    quick.send("telemetry", *[make.frame(seq, {"x": [1.0]}) for seq in range(3)])
    other = quick.root.parent / "other"
    with quick.sink(), quick.sink(root=str(other)):
        for root in (quick.root, other):
            quick.wait_for(lambda root=root: _count(root) == 3)


def _count(root: Path) -> int:
    if not (root / "log" / "_delta_log").exists():
        return 0
    with open_catalog(root) as catalog:
        return int(catalog.rows("SELECT count(*) FROM log")[0][0])


# --- every point between two commits, on disk ------------------------------------------------------------

SPOTS = [Spot(topic, UUID, partition) for topic in FEEDS for partition in (0, 1)]


def records(make: Any, partition: int, upto: int) -> dict[str, list[bytes]]:
    """What the topics hold of a partition: each kind that has a table of its own."""
    who = {"process": f"p{partition}"}
    telemetry = [
        payload
        for seq in range(0, 3 * upto, 3)
        for payload in (
            make.started(seq, **who),
            make.frame(seq + 1, {"x": [1.0, 2.0]}, step=seq, **who),
            make.accepted(seq, id=f"evals/{partition}/{seq}/0", request=f"{partition}-{seq}"),
        )
    ]
    ids = [f"{UUID}/{partition}/{seq}/0" for seq in range(upto)]
    return {
        "telemetry": telemetry,
        "windows": [make.windows(seq) for seq in range(upto)] if partition == 0 else [],
        "facts": [make.fact(0, id=one) for one in ids],
        "alerts": [make.alert(0, id=one) for one in ids],
        "eval-items": [make.items(f"l{partition}", 2 * seq, 2) for seq in range(upto)],
    }


def feed(core: SinkCore, starts: dict[Spot, int], make: Any, upto: int) -> None:
    for spot, start in starts.items():
        values = records(make, spot.partition, upto)[spot.topic]
        core.take(spot, [Record(spot.partition, at, 0, v) for at, v in enumerate(values) if at >= start])


ALL = """SELECT (SELECT count(*) FROM samples), (SELECT count(*) FROM log),
    (SELECT count(*) FROM log WHERE outcome <> 'stored'), (SELECT count(*) FROM process_events),
    (SELECT count(*) FROM evals), (SELECT count(*) FROM windows), (SELECT count(*) FROM facts),
    (SELECT count(*) FROM alerts), (SELECT count(*) FROM eval_items)"""


def assert_all(root: Path, upto: int) -> None:
    with open_catalog(root) as catalog:
        assert catalog.rows(ALL) == [
            (4 * upto, 6 * upto, 0, 2 * upto, 2 * upto, upto, 2 * upto, 2 * upto, 4 * upto)
        ]


COMMITS = 8
"""Tables that get rows of ``records``."""


@pytest.mark.parametrize("point", range(COMMITS + 1))
def test_killed_after_any_commit_a_sink_goes_on_without_loss_or_double(
    tmp_path: Path, make: Any, point: int
) -> None:
    for upto in (1, 2):
        core = SinkCore(Lake(tmp_path))
        feed(core, core.resume(dict.fromkeys(SPOTS, 0)), make, upto)
        commits = core.commits()
        done = [next(commits) for _ in range(point)]
        assert len(done) == point
    core = SinkCore(Lake(tmp_path))
    feed(core, core.resume(dict.fromkeys(SPOTS, 0)), make, 3)
    assert len(list(core.commits())) == COMMITS
    assert_all(tmp_path, 3)


@pytest.mark.parametrize("point", range(COMMITS))
def test_paused_before_any_commit_and_taken_over_a_sink_can_commit_nothing_more(
    tmp_path: Path, make: Any, point: int
) -> None:
    """One of two partitions went to another sink, which has already stored more."""
    zombie = SinkCore(Lake(tmp_path))
    feed(zombie, zombie.resume(dict.fromkeys(SPOTS, 0)), make, 2)
    commits = zombie.commits()
    for _ in range(point):
        next(commits)
    heir = SinkCore(Lake(tmp_path))
    starts = heir.resume({spot: 0 for spot in SPOTS if spot.partition == 0})
    feed(heir, starts, make, 3)
    list(heir.commits(empty=True))
    with pytest.raises(Conflict):
        next(commits)
    left = [spot for spot in SPOTS if spot.partition == 1]
    feed(zombie, zombie.resume(dict.fromkeys(left, 0)), make, 3)
    list(zombie.commits())
    assert_all(tmp_path, 3)
