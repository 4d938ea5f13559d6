"""The bytes of a spool: as in the golden file, and whatever happens to them, what is whole is found."""

from __future__ import annotations

import os
import random
from pathlib import Path

import crc32c
import pytest

from driftline.producers import spool_format
from driftline.producers.spool_format import Header

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "spool.seg"
HEADER = Header(
    run="01jrun",
    process="p7",
    name="a/../../b",
    rank=3,
    host="node-1",
    pid=42,
    bootstrap="k1:9092,k2:9092",
    prefix="driftline.",
    created_us=5,
)


def segment(payloads: list[bytes], first: int = 4) -> bytes:
    records = [
        spool_format.encode_record(seq=first + at, time_us=10 + at, samples=at, payload=payload)
        for at, payload in enumerate(payloads)
    ]
    return spool_format.encode_header(HEADER) + b"".join(records)


def numbers(data: bytes) -> list[int]:
    return [entry.seq for entry in spool_format.read(data).entries]


def test_the_golden_segment_is_written_and_read_as_ever() -> None:
    data = segment([b"\xff\xff\xff\xffframe", b'{"kind":"x"}', b""])
    data += spool_format.encode_acknowledged(below=5, time_us=20)
    if not GOLDEN.exists() and os.environ.get("DRIFTLINE_WRITE_GOLDEN"):
        GOLDEN.write_bytes(data)
    assert GOLDEN.read_bytes() == data
    found = spool_format.read(data)
    assert found.header == HEADER
    assert [(entry.seq, entry.time_us, entry.samples) for entry in found.entries] == [(5, 11, 1), (6, 12, 2)]
    assert [data[entry.offset :][: entry.size] for entry in found.entries] == [b'{"kind":"x"}', b""]
    assert (found.acknowledged, found.damages, found.torn) == (1, [], 0)


def test_a_header_with_fields_of_a_later_version_is_read() -> None:
    data = spool_format.encode_header(HEADER)
    body = data[data.index(b"{") : -1] + b',"later":1}'
    grown = (
        spool_format.MAGIC
        + len(body).to_bytes(4, "little")
        + crc32c.crc32c(body).to_bytes(4, "little")
        + body
    )
    assert spool_format.read(grown).header == HEADER


def test_a_later_format_is_left_alone() -> None:
    data = spool_format.encode_header(Header(format=2, run="r", process="p"))
    found = spool_format.read(data + segment([b"x"])[len(spool_format.encode_header(HEADER)) :])
    assert found.foreign
    assert found.entries == []
    assert "newer" in found.trouble


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_torn_end_costs_only_the_record_that_was_not_finished(cut: int) -> None:
    data = segment([b"a" * 30, b"b" * 30])
    found = spool_format.read(data[:-cut])
    assert [entry.seq for entry in found.entries] == [4]
    assert found.damages == []
    assert found.torn > 0


def test_every_flipped_bit_is_noticed_and_costs_one_record() -> None:
    """No damage is ever taken for a record, and reading goes on behind it."""
    data = segment([b"a" * 20, b"b" * 20, b"c" * 20])
    start = len(spool_format.encode_header(HEADER))
    size = (len(data) - start) // 3
    for at in range(start, len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            left = [seq for seq in (4, 5, 6) if seq != 4 + (at - start) // size]
            found = spool_format.read(bytes(bad))
            assert [entry.seq for entry in found.entries] == left
            assert found.damages or found.torn


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_overwritten_only_whole_records_are_found(seed: int) -> None:
    chance = random.Random(seed)
    payloads = [chance.randbytes(chance.randrange(200)) for _ in range(20)]
    data = bytearray(segment(payloads))
    for _ in range(chance.randrange(1, 5)):
        at, size = chance.randrange(len(data)), chance.randrange(300)
        data[at : at + size] = chance.choice([bytes(size), chance.randbytes(size), b""])
    found = spool_format.read(bytes(data))
    assert [entry.seq for entry in found.entries] == sorted({entry.seq for entry in found.entries})
    for entry in found.entries:
        assert data[entry.offset : entry.offset + entry.size] == payloads[entry.seq - 4]


def test_a_damaged_header_does_not_cost_the_records() -> None:
    data = bytearray(segment([b"a", b"b"]))
    data[30] ^= 1
    found = spool_format.read(bytes(data))
    assert found.header is None
    assert [entry.seq for entry in found.entries] == [4, 5]


@pytest.mark.parametrize("data", [b"", b"x", b"DRIFTLINE SPOOL\n", os.urandom(3) * 1000, bytes(5000)])
def test_what_is_no_segment_is_said_to_be_none(data: bytes) -> None:
    found = spool_format.read(data)
    assert found.header is None
    assert found.entries == []
    assert found.trouble
