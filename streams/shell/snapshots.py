"""Snapshots on the compacted ``state`` topic, each under keys of its own: nobody overwrites another's.

    key                                                value
    app/uuid/partition/offset/writer/0000 ...          a chunk (at most 400 KiB) of the LZ4 frame of the state
    app/uuid/partition/offset/writer/manifest          JSON: v, chunks, size, sha256 (of the frame)

``uuid`` is the source topic's, ``offset`` (20 digits) is the first one that the state has not seen. The
manifest is written last, after the chunks are delivered; a snapshot without one, with a chunk missing or with
another digest does not count. State is a pure function of the log below ``offset``, so *any* complete
snapshot is right, whoever wrote it and when; the one with the highest offset only saves work.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import lz4.frame
import msgspec

CHUNK_BYTES = 400 * 1024
STATE_BYTES_MAX = 2 << 30
"""Of a state that is read, whatever its snapshot says."""
OFFSET_MAX = 2**63 - 1
_OFFSET = re.compile("[0-9]{20}")
_MANIFEST = "manifest"


class Source(NamedTuple):
    """Whose state: Faust app id, UUID of the input topic, input partition."""

    app: str
    topic_uuid: str
    partition: int

    @property
    def prefix(self) -> str:
        return f"{self.app}/{self.topic_uuid}/{self.partition}/"


class SnapshotId(NamedTuple):
    """Orders by offset."""

    offset: int
    writer: str


class Snapshot(NamedTuple):
    """A complete snapshot, as read."""

    id: SnapshotId
    data: bytes


class Written(NamedTuple):
    """The records of a snapshot; chunks go out first, the manifest once they are delivered."""

    chunks: list[tuple[bytes, bytes]]
    manifest: tuple[bytes, bytes]

    @property
    def keys(self) -> list[bytes]:
        return [self.manifest[0], *(key for key, _ in self.chunks)]


class _Manifest(msgspec.Struct):
    chunks: int
    size: int
    sha256: str
    v: int = 1


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Manifest)


def write(source: Source, snapshot: SnapshotId, data: bytes) -> Written:
    """The records of a snapshot."""
    frame: bytes = lz4.frame.compress(data)
    pieces = [frame[at : at + CHUNK_BYTES] for at in range(0, len(frame), CHUNK_BYTES)]
    manifest = _Manifest(len(pieces), len(frame), hashlib.sha256(frame).hexdigest())
    return Written(
        [(_key(source, snapshot, f"{at:04d}"), piece) for at, piece in enumerate(pieces)],
        (_key(source, snapshot, _MANIFEST), _ENCODER.encode(manifest)),
    )


class Collected:
    """Puts the snapshots of one source together from records of ``state`` in log order.

    Holds only what can still become useful: once a snapshot is complete, the chunks of lower ones are let go.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._parts: dict[SnapshotId, dict[str, bytes]] = {}
        self.complete: dict[SnapshotId, bytes] = {}
        self.keys: dict[SnapshotId, list[bytes]] = {}
        """All keys that hold a value, to be made tombstones when they are no longer needed."""
        self._foreign: dict[bytes, None] = {}

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Takes one record of ``state``; records of others are passed over."""
        parsed = _parse(self._source, key)
        if parsed is None or key is None:
            self._note_foreign(key, value)
            return
        snapshot, part = parsed
        if value is None:
            self._forget(snapshot, key)
            return
        held = self.keys.setdefault(snapshot, [])
        if key not in held:
            held.append(key)
        self._parts.setdefault(snapshot, {})[part] = value
        if part == _MANIFEST and (data := _assemble(self._parts[snapshot])) is not None:
            self.complete[snapshot] = data
            del self._parts[snapshot]

    @property
    def foreign(self) -> list[bytes]:
        """Keys that hold a value of the same app and partition, but of an input topic with another UUID."""
        return list(self._foreign)

    def ranked(self, end: int) -> list[Snapshot]:
        """Complete snapshots with offsets up to ``end``, the best first."""
        best = sorted((found for found in self.complete if found.offset <= end), reverse=True)
        return [Snapshot(found, self.complete[found]) for found in best]

    def _note_foreign(self, key: bytes | None, value: bytes | None) -> None:
        if key is None or not _of_another_topic(self._source, key):
            return
        if value is None:
            self._foreign.pop(key, None)
        else:
            self._foreign[key] = None

    def _forget(self, snapshot: SnapshotId, key: bytes) -> None:
        self._parts.pop(snapshot, None)
        self.complete.pop(snapshot, None)
        held = self.keys.get(snapshot, [])
        if key in held:
            held.remove(key)
        if not held:
            self.keys.pop(snapshot, None)


def _key(source: Source, snapshot: SnapshotId, part: str) -> bytes:
    return f"{source.prefix}{snapshot.offset:020d}/{snapshot.writer}/{part}".encode()


def _of_another_topic(source: Source, key: bytes) -> bool:
    app, _, rest = key.decode(errors="replace").partition("/")
    parts = rest.split("/")
    return app == source.app and len(parts) == 5 and parts[1] == str(source.partition)


def _parse(source: Source, key: bytes | None) -> tuple[SnapshotId, str] | None:
    text = (key or b"").decode(errors="replace")
    if not text.startswith(source.prefix):
        return None
    parts = text[len(source.prefix) :].split("/")
    if len(parts) != 3 or not _OFFSET.fullmatch(parts[0]) or int(parts[0]) > OFFSET_MAX:
        return None
    return SnapshotId(int(parts[0]), parts[1]), parts[2]


def _assemble(parts: dict[str, bytes]) -> bytes | None:
    """The state's bytes, or None if anything is missing or broken."""
    try:
        manifest = _DECODER.decode(parts[_MANIFEST])
        frame = b"".join(parts[f"{at:04d}"] for at in range(manifest.chunks))
    except (KeyError, msgspec.DecodeError):
        return None
    if not frame or len(frame) != manifest.size or hashlib.sha256(frame).hexdigest() != manifest.sha256:
        return None
    try:
        size = int(lz4.frame.get_frame_info(frame)["content_size"])
        if size > STATE_BYTES_MAX:
            return None
        reader = lz4.frame.LZ4FrameDecompressor()
        data: bytes = reader.decompress(frame, max_length=size + 1)
    except (RuntimeError, EOFError, ValueError):
        return None
    return data if len(data) == size else None
