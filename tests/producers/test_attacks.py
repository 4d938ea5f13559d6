"""What odd file systems, other people's files and odd brokers do to the SDK: nothing that lasts."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftline import handshake
from driftline.clock import ManualClock
from driftline.connection import KafkaSettings
from driftline.errors import Unavailable
from driftline.producers import recovery, spool_format
from driftline.producers.buffer import Outbox
from driftline.producers.counters import Counters, Notes
from driftline.producers.delivery import RETRY_US, Delivery
from driftline.producers.disk import FileDisk
from driftline.producers.transport import MemoryTransport

NAME = spool_format.folder_of("r", "dead", 1)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def left_behind(disk: FileDisk) -> Path:
    """A spool of a dead process with one record; its folder."""
    folder = disk.create(NAME)
    header = spool_format.Header(run="r", process="dead", host="here", bootstrap="k:1", prefix="p.")
    folder.append(spool_format.segment_name(1), spool_format.encode_header(header))
    record = spool_format.encode_record(seq=0, time_us=1, samples=1, payload=b"x")
    folder.append(spool_format.segment_name(1), record)
    folder.release()
    return Path(disk.where, NAME)


class Rig:
    """A live process of the run, well connected."""

    def __init__(self, disk: FileDisk) -> None:
        self.clock, self.way = ManualClock(now_us=1), MemoryTransport()
        self.counters, self.notes, outbox = Counters(), Notes(), Outbox(limit_bytes=1 << 20)
        told = {"counters": self.counters, "notes": self.notes, "clock": self.clock}
        delivery = Delivery(outbox, self.way, notify=lambda: None, **told)  # type: ignore[arg-type]
        outbox.put(b"mine", samples=1)
        broker = recovery.Broker("k:1", "p.", "here")
        self.recovery = recovery.Recovery(disk, delivery, run="r", broker=broker, **told)  # type: ignore[arg-type]
        self.delivery = delivery

    def turn(self, times: int) -> None:
        for _ in range(times):
            self.delivery.pump(1000)
            self.recovery.round()
            self.clock.advance(RETRY_US)


@pytest.mark.parametrize("call", ["rename", "stat"])
def test_an_operation_that_fails_for_hours_costs_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A spool is tried each second while it cannot be made: a night of that takes all descriptors."""
    disk = FileDisk(tmp_path)
    left_behind(disk)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(os, call, fails)
    before = descriptors()
    for at in range(20):
        with pytest.raises(OSError, match="planted"):
            disk.create(f"b{at}") if call == "rename" else disk.claim(NAME)
    assert descriptors() == before


@pytest.mark.parametrize("file", ["lock", spool_format.segment_name(1)])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_a_link_in_a_spool_holds_up_nobody_and_is_not_followed(
    tmp_path: Path, kind: str, file: str
) -> None:
    """In a folder that several people share: to open a pipe waits for its other end, for ever."""
    disk = FileDisk(tmp_path / "spool")
    place = left_behind(disk) / file
    place.unlink()
    elsewhere = tmp_path / "elsewhere"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(elsewhere)
    rig = Rig(disk)
    thread = threading.Thread(target=rig.turn, args=(3,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert rig.way.log == [(0, b"mine")]
    assert not elsewhere.exists()


def test_a_spool_that_cannot_be_deleted_is_sent_once_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder without the right to write: it would be sent again each minute."""
    disk = FileDisk(tmp_path)
    left_behind(disk)

    def fails(path: str) -> None:
        raise PermissionError(errno.EACCES, "planted", path)

    monkeypatch.setattr(os, "unlink", fails)
    rig = Rig(disk)
    rig.turn(300)
    assert [payload for _, payload in rig.way.log] == [b"mine", b"x"]
    rig.notes.write()
    assert any("delete it by hand" in message for message in caplog.messages)


@contextlib.contextmanager
def dripping(answer: bytes) -> Iterator[str]:
    """A server that sends its answer byte by byte, each in time for a limit on single reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = server.accept()
                    with link, contextlib.suppress(OSError):
                        for at in range(len(answer)):
                            link.sendall(answer[at : at + 1])
                            time.sleep(0.2)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_broker_that_answers_byte_by_byte_holds_up_nobody() -> None:
    """The limit is one for the whole of a handshake, not for each byte."""
    with dripping(b"\x00\x00\x10\x00" + bytes(4096)) as server:
        settings = KafkaSettings(
            bootstrap=server,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="u",
            sasl_password="p",
        )
        before = time.monotonic()
        with pytest.raises(Unavailable):
            handshake.let_in(settings, timeout_s=1.0)
        assert time.monotonic() - before < 60, "byte by byte it would take 14 minutes"


def test_what_others_say_forges_no_line_in_the_trainers_log(caplog: pytest.LogCaptureFixture) -> None:
    """Errors quote what a broker says and what files are called."""
    notes = Notes()
    notes.once("x", "the broker offers \x1b[2J\nERROR training failed")
    notes.write()
    (line,) = caplog.messages
    assert line.isprintable()
