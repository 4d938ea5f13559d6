"""A snapshot counts when it is complete, and nobody can overwrite another's."""

from __future__ import annotations

import hashlib
import json
import os

import lz4.frame
import pytest

from driftline.streams.shell import snapshots
from driftline.streams.shell.snapshots import Collected, SnapshotId, Source

SOURCE = Source("dev.streams", "uuid-1", 3)
BIG = os.urandom(3 * snapshots.CHUNK_BYTES)


def collected(*records: tuple[bytes, bytes | None], source: Source = SOURCE) -> Collected:
    found = Collected(source)
    for key, value in records:
        found.add(key, value)
    return found


def all_of(written: snapshots.Written) -> list[tuple[bytes, bytes | None]]:
    return [*written.chunks, written.manifest]


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "several chunks"])
def test_a_snapshot_reads_back(data: bytes) -> None:
    written = snapshots.write(SOURCE, SnapshotId(7, "w1"), data)
    assert all(len(value) <= 512 * 1024 for _, value in written.chunks)
    (found,) = collected(*all_of(written)).ranked(100)
    assert found == (SnapshotId(7, "w1"), data)


@pytest.mark.parametrize("missing", range(5), ids=lambda at: f"record {at} missing")
def test_an_incomplete_snapshot_does_not_count(missing: int) -> None:
    records = all_of(snapshots.write(SOURCE, SnapshotId(7, "w1"), BIG))
    assert len(records) == 5
    del records[missing]
    assert collected(*records).ranked(100) == []


def test_a_snapshot_with_a_changed_chunk_does_not_count() -> None:
    written = snapshots.write(SOURCE, SnapshotId(7, "w1"), BIG)
    key, value = written.chunks[1]
    broken = [written.chunks[0], (key, value[:-1] + b"!"), *written.chunks[2:], written.manifest]
    assert collected(*broken).ranked(100) == []


def manifest_of(frame: bytes, chunks: int) -> bytes:
    digest = hashlib.sha256(frame).hexdigest()
    return json.dumps({"chunks": chunks, "size": len(frame), "sha256": digest}).encode()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no frame of LZ4",
        lz4.frame.compress(b"x" * 1000)[:-7],
        lz4.frame.compress(bytes(1 << 28), store_size=False),
        lz4.frame.compress(b"x")[:6] + (1 << 62).to_bytes(8, "little") + lz4.frame.compress(b"x")[14:],
    ],
    ids=["no chunks", "no frame", "cut", "of a size that it does not say", "of 4 EiB"],
)
def test_what_its_digest_says_and_is_no_state_does_not_count(frame: bytes) -> None:
    """F19: trainers of old had the right to write there; recovery passes over whatever is no snapshot."""
    records = [(f"{SOURCE.prefix}{7:020d}/w/0000".encode(), frame)] if frame else []
    key = f"{SOURCE.prefix}{7:020d}/w/manifest".encode()
    assert collected(*records, (key, manifest_of(frame, len(records)))).ranked(100) == []


@pytest.mark.parametrize("offset", ["9" * 5_000, "9" * 20, "7", "٧" * 20, "-" + "1" * 19])
def test_an_offset_that_is_none_is_passed_over(offset: str) -> None:
    key = f"{SOURCE.prefix}{offset}/w/manifest".encode()
    assert collected((key, manifest_of(b"", 0))).ranked(100) == []


def test_the_highest_offset_comes_first_whatever_the_order_in_the_log() -> None:
    zombie = snapshots.write(SOURCE, SnapshotId(5, "zombie"), b"old")
    newer = snapshots.write(SOURCE, SnapshotId(9, "w2"), b"new")
    ranked = collected(*all_of(newer), *all_of(zombie)).ranked(100)
    assert [(s.id.offset, s.data) for s in ranked] == [(9, b"new"), (5, b"old")]


def test_two_workers_at_one_offset_do_not_mix() -> None:
    one = snapshots.write(SOURCE, SnapshotId(9, "w1"), BIG)
    two = snapshots.write(SOURCE, SnapshotId(9, "w2"), BIG[::-1])
    mixed = [*one.chunks[:2], *two.chunks[:3], *one.chunks[2:], one.manifest]
    (found,) = collected(*mixed).ranked(100)
    assert found.data == BIG


def test_a_snapshot_beyond_the_end_of_the_log_is_not_offered() -> None:
    written = snapshots.write(SOURCE, SnapshotId(50, "w1"), b"x")
    assert collected(*all_of(written)).ranked(49) == []


def test_tombstones_take_a_snapshot_away() -> None:
    written = snapshots.write(SOURCE, SnapshotId(7, "w1"), b"x")
    found = collected(*all_of(written), *[(key, None) for key in written.keys])
    assert found.ranked(100) == []
    assert found.keys == {}


@pytest.mark.parametrize(
    "other",
    [SOURCE._replace(app="dev.scheduler"), SOURCE._replace(topic_uuid="u2"), SOURCE._replace(partition=30)],
    ids=["app", "topic made again", "partition"],
)
def test_snapshots_of_others_are_passed_over(other: Source) -> None:
    written = snapshots.write(other, SnapshotId(7, "w1"), b"x")
    assert collected(*all_of(written)).ranked(100) == []


@pytest.mark.parametrize("rest", [b"", b"/", b"x/y/z", b"7/w1", b"7/w1/0000/more"])
def test_foreign_keys_are_passed_over(rest: bytes) -> None:
    found = Collected(SOURCE)
    for key in (None, rest, b"\xff", SOURCE.prefix.encode() + rest):
        found.add(key, b"x")
    assert found.keys == {}
