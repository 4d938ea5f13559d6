"""The bytes of a spool: segments of a header and records, each with a checksum. Pure; the only module that
knows them.

A spool is a folder with segments ``00000001.seg``, ``00000002.seg``, ...; integers are little-endian,
checksums CRC-32C.

    segment = "DRIFTLINE SPOOL\\n", size of the header (u32), checksum of the header (u32),
              header (a JSON object, see :class:`Header`), then entries
    entry   = mark (4 bytes), checksum of all that follows (u32), payload size (u32), seq (u64),
              time in microseconds since 1970 (u64), samples (u32), payload
    mark    = D7 "DR" 01: a record as it goes to Kafka; D7 "DA" 01: acknowledged is everything below seq

Numbers grow from entry to entry and from segment to segment. A process that is killed while it writes leaves
a torn entry at the end; it is left out. Damage elsewhere costs the entries it touches: reading goes on at the
next mark with a right checksum.
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import NamedTuple

import crc32c
import msgspec

MAGIC = b"DRIFTLINE SPOOL\n"
FORMAT = 1
_HEAD = struct.Struct("<II")
_ENTRY = struct.Struct("<4sIIQQI")
_CHECKED_FROM = 8
_FOLDER = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-[0-9]+")
_RECORD, _ACKNOWLEDGED = b"\xd7DR\x01", b"\xd7DA\x01"
ENTRY_BYTES = _ENTRY.size
HEADER_BYTES_MAX = 64 * 1024
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""What is read of a segment; they have 8 MiB, and what one record is longer."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Whose records these are, and where they belong. New fields have defaults; others are never changed."""

    format: int = FORMAT
    run: str
    process: str
    name: str = ""
    """Name of the run, as typed."""
    rank: int | None = None
    host: str = ""
    pid: int = 0
    bootstrap: str = ""
    prefix: str = ""
    created_us: int = 0


class Entry(NamedTuple):
    """A record in a segment."""

    seq: int
    time_us: int
    samples: int
    offset: int
    """Of the payload."""
    size: int


class Damage(NamedTuple):
    """Bytes in which no entry can be found."""

    offset: int
    size: int


class Segment(NamedTuple):
    """What is in the bytes of a segment."""

    header: Header | None
    """None: damaged (the entries are read all the same), or of a later format (they are not)."""
    entries: list[Entry]
    """Records whose checksum is right and that are not acknowledged."""
    acknowledged: int
    """Entries left out because the broker has them."""
    damages: list[Damage]
    torn: int
    """Bytes of the entry at the end that was not finished."""
    trouble: str = ""
    """What is wrong with the header, in words."""
    foreign: bool = False
    """Of a format that this build cannot read: leave it where it is."""


def folder_of(run: str, process: str, number: int) -> str:
    """The folder of a process's spool (its first is 1): hashes, whatever the ids are.

    >>> folder_of("a/../../b", "/etc/x", 1)
    'feddf1677abcb2f8-4074fa014f8d9a3a-1'
    """
    return f"{run_part(run)}-{_hash(process)}-{number}"


def is_folder(name: str) -> bool:
    """Whether a folder's name is one that :func:`folder_of` makes."""
    return _FOLDER.fullmatch(name) is not None


def run_part(run: str) -> str:
    """What the folders of all processes of a run begin with."""
    return _hash(run)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def segment_name(number: int) -> str:
    return f"{number:08d}.seg"


def encode_header(header: Header) -> bytes:
    """The beginning of a segment."""
    body = msgspec.json.encode(header)
    return MAGIC + _HEAD.pack(len(body), crc32c.crc32c(body)) + body


def encode_record(*, seq: int, time_us: int, samples: int, payload: bytes) -> bytes:
    """A record as an entry; its payload begins at :data:`ENTRY_BYTES`."""
    return _entry(_RECORD, seq, time_us, samples, payload)


def encode_acknowledged(*, below: int, time_us: int) -> bytes:
    """Says that the broker has everything below a number."""
    return _entry(_ACKNOWLEDGED, below, time_us, 0, b"")


def _entry(mark: bytes, seq: int, time_us: int, samples: int, payload: bytes) -> bytes:
    head = _ENTRY.pack(mark, 0, len(payload), seq, time_us, samples)
    crc = crc32c.crc32c(payload, crc32c.crc32c(head[_CHECKED_FROM:]))
    return b"".join((head[:4], crc.to_bytes(4, "little"), head[_CHECKED_FROM:], payload))


def payload_in(entry: bytes) -> bytes | None:
    """The payload of an entry of which nothing is missing; None if it is damaged."""
    if len(entry) < ENTRY_BYTES or entry[:4] != _RECORD or not _is_right(entry, 0, len(entry)):
        return None
    return entry[ENTRY_BYTES:]


def read(data: bytes) -> Segment:
    """Everything that can be read of a segment, however it ends or is damaged. Never raises."""
    header, at, trouble = _header(data)
    if at is None:
        return Segment(None, [], 0, [], 0, trouble, foreign=True)
    entries: list[Entry] = []
    damages: list[Damage] = []
    below = torn = 0
    while at < len(data):
        size = _size_at(data, at)
        if size is None:
            after = _next_entry(data, at)
            if after is None and _is_torn(data, at):
                torn = len(data) - at
                break
            after = len(data) if after is None else after
            damages.append(Damage(at, after - at))
            at = after
            continue
        mark, _, payload, seq, time_us, samples = _ENTRY.unpack_from(data, at)
        if mark == _ACKNOWLEDGED:
            below = max(below, seq)
        else:
            entries.append(Entry(seq, time_us, samples, at + ENTRY_BYTES, payload))
        at += size
    waiting = [entry for entry in entries if entry.seq >= below]
    return Segment(header, waiting, len(entries) - len(waiting), damages, torn, trouble)


def _header(data: bytes) -> tuple[Header | None, int | None, str]:
    """The header, where the entries begin (None: they are not to be read), and what is wrong with it."""
    start = len(MAGIC) + _HEAD.size
    if len(data) < start or not data.startswith(MAGIC):
        return None, 0, "it does not begin as a segment does"
    size, crc = _HEAD.unpack_from(data, len(MAGIC))
    body = data[start : start + size]
    if size > HEADER_BYTES_MAX or len(body) < size or crc32c.crc32c(body) != crc:
        return None, 0, "its header is damaged"
    try:
        header = msgspec.json.decode(body, type=Header)
    except msgspec.DecodeError as error:
        return None, None, f"its header is not understood: {error}"
    if header.format > FORMAT:
        return None, None, f"it has format {header.format}, of a newer driftline"
    return header, start + size, ""


def _size_at(data: bytes, at: int) -> int | None:
    """The size of the whole, right entry at a position; None if there is none."""
    if data[at : at + 4] not in (_RECORD, _ACKNOWLEDGED) or len(data) - at < ENTRY_BYTES:
        return None
    size: int = ENTRY_BYTES + _ENTRY.unpack_from(data, at)[2]
    return size if at + size <= len(data) and _is_right(data, at, size) else None


def _is_right(data: bytes, at: int, size: int) -> bool:
    crc = int.from_bytes(data[at + 4 : at + _CHECKED_FROM], "little")
    return crc32c.crc32c(memoryview(data)[at + _CHECKED_FROM : at + size]) == crc


def _next_entry(data: bytes, at: int) -> int | None:
    """The position of the first right entry after ``at``."""
    while True:
        places = [place for mark in (_RECORD, _ACKNOWLEDGED) if (place := data.find(mark, at + 1)) >= 0]
        if not places:
            return None
        at = min(places)
        if _size_at(data, at) is not None:
            return at


def _is_torn(data: bytes, at: int) -> bool:
    """Whether the bytes from ``at`` on are the beginning of an entry that goes on behind the end."""
    rest = len(data) - at
    if rest < ENTRY_BYTES:
        return True
    return (
        data[at : at + 4] in (_RECORD, _ACKNOWLEDGED) and _ENTRY.unpack_from(data, at)[2] > rest - ENTRY_BYTES
    )
