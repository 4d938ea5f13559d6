"""``driftline spool``: shows what waits, sends it once and in order, touches nothing of the living."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from driftline.cli.app import app
from driftline.cli.spool import drop, print_status, send
from driftline.clock import ManualClock
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.producers.counters import Counters, Notes
from driftline.producers.disk import Disk, FileDisk
from driftline.producers.memory_disk import MemoryDisk
from driftline.producers.spool import Spool
from driftline.producers.spool_format import Header
from driftline.producers.transport import MemoryTransport

KAFKA = KafkaSettings(bootstrap="k1:9092", prefix="x.")
runner = CliRunner()


def spool(disk: Disk, count: int, *, process: str = "p1", **header: Any) -> Spool:
    """A process's spool with ``count`` records of ten samples."""
    given = {"run": "r1", "name": "my run", "rank": 3, "host": socket.gethostname()} | header
    where = {"bootstrap": "k1:9092", "prefix": "x."} | given
    made = Spool(
        disk,
        Header(process=process, **where),
        limit_bytes=1 << 30,
        reserve_bytes=0,
        counters=Counters(),
        notes=Notes(),
        clock=ManualClock(now_us=1_700_000_000_000_000),
    )
    for seq in range(count):
        assert made.append(seq, f"{process}:{seq}".encode(), samples=10)
    return made


class Ways:
    """A transport per run, remembered."""

    def __init__(self) -> None:
        self.by_run: dict[str, MemoryTransport] = {}
        self.away = False

    def __call__(self, kafka: KafkaSettings, run: str) -> MemoryTransport:
        way = self.by_run.setdefault(run, MemoryTransport())
        way.away = self.away
        return way

    def arrived(self, run: str) -> list[str]:
        return [payload.decode() for _, payload in self.by_run[run].log]


def sent(disk: Disk, ways: Ways, **options: Any) -> int:
    asked = {"run": None, "other_brokers": False, "patience_us": 200_000} | options
    return send(disk, KAFKA, connect=ways, **asked)


def test_status_shows_who_left_what_for_whom(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    spool(disk, 3).close()
    living = spool(disk, 2, process="p2", rank=None)
    shown = runner.invoke(app, ["spool", "status", "--spool", str(tmp_path)])
    assert shown.exit_code == 0
    dead = next(line for line in shown.output.splitlines() if "p1 rank 3" in line)
    for part in ("my run r1", " 3 ", " 30 ", "2023-11-14 22:13:20Z", "dead", "k1:9092 x."):
        assert part in dead
    assert "alive" in next(line for line in shown.output.splitlines() if "p2" in line)
    assert f"30 samples of 1 dead process wait in {tmp_path}" in shown.output
    rows = runner.invoke(app, ["spool", "status", "--spool", str(tmp_path), "--json"]).output.splitlines()
    found = {row["header"]["process"]: row for row in map(json.loads, rows)}
    assert (found["p1"]["alive"], found["p1"]["records"], found["p1"]["samples"]) == (False, 3, 30)
    assert found["p2"]["alive"]
    living.close()


def test_status_of_nothing_is_no_error(tmp_path: Path) -> None:
    shown = runner.invoke(app, ["spool", "status", "--spool", str(tmp_path / "none")])
    assert (shown.exit_code, "nothing waits in" in shown.output) == (0, True)
    assert not (tmp_path / "none").exists()


def test_status_names_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool(FileDisk(tmp_path), 3).close()
    (file,) = tmp_path.rglob("*.seg")
    data = bytearray(file.read_bytes())
    data[data.index(b"p1:1")] ^= 1
    file.write_bytes(bytes(data))
    print_status(FileDisk(tmp_path), as_json=False)
    assert f"damaged: {file.parent.name}/{file.name}: " in capsys.readouterr().out


def test_send_sends_the_dead_in_order_once_and_leaves_the_living(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, ways = FileDisk(tmp_path), Ways()
    spool(disk, 5).close()
    spool(disk, 4, run="r2", process="p3").close()
    living = spool(disk, 2, process="p2")
    assert sent(disk, ways) == 0
    assert ways.arrived("r1") == [f"p1:{at}" for at in range(5)]
    assert ways.arrived("r2") == [f"p3:{at}" for at in range(4)]
    said = capsys.readouterr()
    assert "sent 90 samples in 9 records of 2 dead processes to k1:9092" in said.out
    assert "p2 of run r1 lives" in said.err
    assert len(disk.names()) == 1
    assert living.find(0) is not None
    living.close()


@pytest.mark.parametrize("by", ["r1", "my run"])
def test_send_of_one_run_by_id_or_name(by: str) -> None:
    disk, ways = MemoryDisk(), Ways()
    spool(disk, 2).close()
    spool(disk, 2, run="r2", name="other", process="p3").close()
    assert sent(disk.another_process(), ways, run=by) == 0
    assert list(ways.by_run) == ["r1"]
    assert len(disk.names()) == 1


def test_what_was_written_for_another_broker_is_sent_only_if_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk, ways = MemoryDisk(), Ways()
    spool(disk, 2, bootstrap="k7:9092").close()
    assert sent(disk, ways) == 0
    assert ways.by_run == {}
    assert "it is for k7:9092 with prefix x. (--all sends it all the same)" in capsys.readouterr().err
    assert sent(disk, ways, other_brokers=True) == 0
    assert ways.arrived("r1") == ["p1:0", "p1:1"]
    assert disk.names() == []


def test_a_broker_that_takes_nothing_ends_it_and_everything_stays() -> None:
    disk, ways = MemoryDisk(), Ways()
    spool(disk, 3).close()
    ways.away = True
    with pytest.raises(Unavailable, match=r"k1:9092 took nothing for 0\.2 s"):
        sent(disk, ways)
    ways.away = False
    assert sent(disk, ways) == 0
    assert ways.arrived("r1") == ["p1:0", "p1:1", "p1:2"]


def test_a_process_of_another_host_that_may_live_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    disk, ways = MemoryDisk(), Ways()
    spool(disk, 2, host="far").close()
    now = ManualClock(now_us=1_700_000_000_000_000)
    disk.faults.changed_us = {disk.names()[0]: now.now_us()}
    assert sent(disk, ways, clock=now) == 0
    assert "its process may live there" in capsys.readouterr().err
    assert drop(disk, run=None, confirm=lambda _: True, clock=now) == 0
    assert len(disk.names()) == 1


def test_drop_asks_and_spares_the_living() -> None:
    disk = MemoryDisk()
    spool(disk, 3).close()
    spool(disk, 2, process="p2")
    asked: list[str] = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    assert drop(disk.another_process(), run=None, confirm=refuse) == 1
    assert "30 samples of 1 dead process" in asked[0]
    assert len(disk.names()) == 2
    assert drop(disk.another_process(), run=None, confirm=lambda _: True) == 0
    assert len(disk.names()) == 1
    assert drop(disk.another_process(), run=None, confirm=refuse) == 0
