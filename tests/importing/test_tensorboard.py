"""TensorBoard's event files, written here by a small writer of the test's own."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from driftline.errors import BadData
from driftline.importing import tensorboard
from driftline.importing.items import Tally

SAMPLES = "SELECT metric, step, value FROM samples ORDER BY metric, step"
_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def crc(data: bytes) -> bytes:
    """Masked CRC32C, bit by bit from its polynomial."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + crc(length) + data + crc(data)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = b""
    while value > 0x7F:
        made += bytes([value & 0x7F | 0x80])
        value >>= 7
    return made + bytes([value])


def sized(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def event(step: int, *values: bytes, time: float = 100.0, more: bytes = b"") -> bytes:
    summary = sized(5, b"".join(sized(1, value) for value in values)) if values else b""
    return record(b"\x09" + struct.pack("<d", time) + whole(2, step) + summary + more)


def simple(tag: str, value: float) -> bytes:
    return sized(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, dtype: int, data: bytes, shape: Iterable[int] = ()) -> bytes:
    dims = b"".join(sized(2, whole(1, size)) for size in shape)
    return sized(1, tag.encode()) + sized(8, whole(1, dtype) + sized(2, dims) + data)


VERSION = record(b"\x09" + struct.pack("<d", 99.0) + sized(3, b"brain.Event:2"))


def file_of(folder: Path, *records: bytes, name: str = "events.out.tfevents.1.host.1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(VERSION + b"".join(records))
    return folder / name


def test_scalars_of_all_kinds_come_with_step_and_time_and_the_rest_is_counted(
    tmp_path: Path, place: Any
) -> None:
    file_of(
        tmp_path / "run",
        event(-1, simple("a/b(损失)", 0.1), time=100.25),
        event(
            2**40,
            tensor("float", 1, sized(4, struct.pack("<f", 0.1))),
            tensor("list", 1, sized(5, struct.pack("<f", 2.5)), [1]),
            tensor("double", 2, b"\x31" + struct.pack("<d", 0.1)),
            tensor("long", 9, sized(10, varint(-7))),
            tensor("unsigned", 23, sized(17, varint(2**63 + 2**12))),
            tensor("unsigned bytes", 23, sized(4, struct.pack("<Q", 2**64 - 2**12))),
            tensor("unsigned small", 22, sized(16, varint(2**32 - 1))),
            tensor("half", 19, sized(13, varint(0x3C00))),
            tensor("bf16", 14, sized(13, varint(0x3FC0))),
            tensor("zero", 1, b""),
            tensor("many", 1, sized(4, struct.pack("<ff", 1, 2)), [2]),
            tensor("words", 7, sized(8, b"hello")),
            sized(1, b"picture") + sized(4, b"png"),
        ),
        event(3, simple("nan", math.nan), simple("inf", -math.inf)),
    )
    made = place.imported(tmp_path / "run")
    found = {metric: (step, value) for metric, step, value in place.rows(SAMPLES)}
    assert math.isnan(found.pop("nan")[1])
    tenth = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert found == {
        "a/b(损失)": (-1, tenth),
        "float": (2**40, tenth),
        "list": (2**40, 2.5),
        "double": (2**40, 0.1),
        "long": (2**40, -7.0),
        "unsigned": (2**40, float(2**63 + 2**12)),
        "unsigned bytes": (2**40, float(2**64 - 2**12)),
        "unsigned small": (2**40, float(2**32 - 1)),
        "half": (2**40, 1.0),
        "bf16": (2**40, 1.5),
        "zero": (2**40, 0.0),
        "inf": (3, -math.inf),
    }
    assert made.tally.refused == {"elements": 1, "text": 1, "kind": 1}
    assert place.rows("SELECT epoch_us(min(time)), epoch_us(max(time)) FROM samples") == [
        (100_000_000, 100_250_000)
    ]


@pytest.mark.parametrize("cut", [1, 4, 9, 13, 30])
def test_a_last_record_that_is_not_whole_waits_until_it_is(tmp_path: Path, place: Any, cut: int) -> None:
    path = file_of(tmp_path / "run", *(event(step, simple("loss", step)) for step in range(3)))
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    made = place.imported(tmp_path / "run")
    assert made.samples == 2
    assert any("no whole record" in note for note in made.tally.notes)
    path.write_bytes(data + event(3, simple("loss", 3)))
    assert place.imported(tmp_path / "run").rows["samples"] == 2
    assert place.rows(SAMPLES) == [("loss", step, float(step)) for step in range(4)]


def test_a_file_that_was_emptied_or_is_gone_is_said(tmp_path: Path, place: Any) -> None:
    path = file_of(tmp_path / "run", *(event(step, simple("loss", step)) for step in range(3)))
    file_of(tmp_path / "run", event(1, simple("x", 1)), name="events.out.tfevents.2.host.1.0")
    place.imported(tmp_path / "run")
    path.write_bytes(b"")
    with pytest.raises(BadData, match="no longer says"):
        place.imported(tmp_path / "run")
    path.unlink()
    with pytest.raises(BadData, match="is gone"):
        place.imported(tmp_path / "run")


def test_a_bad_checksum_at_the_end_waits_and_in_the_middle_costs_its_record_alone(
    tmp_path: Path, place: Any
) -> None:
    events = [event(step, simple("loss", step)) for step in range(6)]
    path = file_of(tmp_path / "run", *events)
    size = len(events[0])
    data = bytearray(path.read_bytes())
    start = len(VERSION)
    data[start + size + 30] ^= 1  # data of step 1
    data[start + 3 * size + 1] ^= 1  # length of step 3
    data[-6] ^= 1  # data of step 5
    path.write_bytes(data)
    made = place.imported(tmp_path / "run")
    assert [step for _, step, _ in place.rows(SAMPLES)] == [0, 2, 4]
    assert made.tally.refused == {"record": 2}
    data[-6] ^= 1
    path.write_bytes(data)
    assert place.imported(tmp_path / "run").rows["samples"] == 1
    assert [step for _, step, _ in place.rows(SAMPLES)] == [0, 2, 4, 5]


def test_sub_folders_are_writers_or_ranks_of_the_run_above_or_runs_of_their_own(
    tmp_path: Path, place: Any
) -> None:
    files = {
        "keras/train": [event(1, simple("loss", 1))],
        "keras/validation": [event(1, simple("loss", 2))],
        "lightning/version_0": [event(1, simple("loss", 3))],
        "lightning/version_1": [event(1, simple("loss", 4))],
        "ranks": [event(1, simple("loss", 5))],
        "ranks/rank_0": [event(1, simple("t", 6))],
        "ranks/rank_1": [event(1, simple("t", 7))],
        "ranks/pair_a": [event(1, simple("t", 8))],
    }
    for name, records in files.items():
        file_of(tmp_path / name, *records)
    for name in ("keras", "lightning", "ranks"):
        place.imported(tmp_path / name)
    found = place.rows(
        "SELECT name, metric, s.rank, value FROM samples s JOIN runs USING (run) ORDER BY value"
    )
    assert found == [
        ("keras", "train/loss", None, 1.0),
        ("keras", "validation/loss", None, 2.0),
        ("version_0", "loss", None, 3.0),
        ("version_1", "loss", None, 4.0),
        ("ranks", "loss", None, 5.0),
        ("ranks", "t", 0, 6.0),
        ("ranks", "t", 1, 7.0),
        ("ranks", "pair_a/t", None, 8.0),
    ]


def test_a_later_session_that_goes_on_from_an_earlier_step_is_an_attempt(tmp_path: Path, place: Any) -> None:
    first = [event(step, simple("loss", 1), time=100 + step) for step in range(20)]
    start = event(12, time=200, more=sized(7, whole(1, 1)))
    second = [event(step, simple("loss", 2), time=200 + step) for step in range(12, 16)]
    file_of(tmp_path / "run", *first)
    place.imported(tmp_path / "run")
    file_of(tmp_path / "run", start, *second, name="events.out.tfevents.2.host.1.0")
    assert place.imported(tmp_path / "run").rows["samples"] == 4
    found = place.rows("SELECT attempt, count(*), min(step) FROM sample_attempts GROUP BY attempt ORDER BY 1")
    assert found == [(0, 20, 0), (1, 4, 12)]
    assert place.rows("SELECT value FROM curves WHERE step IN (11, 12) ORDER BY step") == [(1.0,), (2.0,)]


def test_no_bytes_whatever_make_the_reader_fail_or_run_away(tmp_path: Path) -> None:
    """Every single byte of a file changed, and every length cut."""
    data = VERSION + event(1, simple("a", 1.0), tensor("b", 1, sized(5, struct.pack("<f", 2.5)), [1]))
    path = tmp_path / "events.out.tfevents.1"
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]):
            path.write_bytes(changed + event(2, simple("a", 3.0)))
            source = tensorboard.EventSource(tmp_path, [path], Tally())
            for name, limit in source.limits().items():
                items = list(source.part(name).upto(limit, whole=True))
                assert len(items) <= 2
    body = event(1, simple("a", 1.0), tensor("b", 1, sized(5, struct.pack("<f", 2.5)), [1]))[12:-4]
    for at in range(len(body)):
        for value in (0, 0x7F, 0x80, 0xFF):
            path.write_bytes(VERSION + record(body[:at] + bytes([value]) + body[at + 1 :]))
            source = tensorboard.EventSource(tmp_path, [path], Tally())
            for name, limit in source.limits().items():
                list(source.part(name).upto(limit, whole=True))


def test_a_record_behind_seventy_megabytes_of_zeros_is_found_in_no_time(tmp_path: Path) -> None:
    """A crash of the host leaves such holes; they are skipped, not searched byte by byte."""
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(VERSION + event(1, simple("a", 1.0)))
    with path.open("ab") as file:
        file.truncate(file.tell() + 70_000_000)
        file.seek(0, os.SEEK_END)
        file.write(event(2, simple("a", 2.0)))
    tally = Tally()
    source = tensorboard.EventSource(tmp_path, [path], tally)
    items = [
        item for name, limit in source.limits().items() for item in source.part(name).upto(limit, whole=True)
    ]
    assert [(item.step, item.values) for item in items] == [(1, [("a", 1.0)]), (2, [("a", 2.0)])]  # type: ignore[union-attr]
    assert tally.refused == {"record": 1}


def test_thousands_of_runs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    """Each by its own folder; the work grows with their number, not with its square."""
    for number in range(600):
        folder = tmp_path / f"sweep{number % 3}" / f"run{number}" / "validation"
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1").touch()
    found = tensorboard.runs(tmp_path, one=False)
    assert len(found) == 600
    assert {root.name for root in found} == {f"run{number}" for number in range(600)}
