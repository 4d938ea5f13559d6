"""TensorBoard's event files -> items, without TensorBoard.

A file is a row of TFRecords: length (8 bytes, little endian), masked CRC32C of these 8 bytes, data, masked
CRC32C of
the data. The data is an ``Event`` in protobuf's wire format; here its fields 1 wall_time (double), 2 step
(int64),
5 summary and 7 session_log are read, and of each value of a summary 1 tag, 2 simple_value (float) and 8
tensor.

A record whose data fails its CRC is counted, and those after it are kept; where a length fails its CRC, the
next
place with a right one is looked for. What is not a whole, right record at the end of a file is left for a
later import: it may be in the middle of being written.

Sub-folders are writers of the same run: a folder called ``rank_3`` (or ``rank3``, ``rank-3``) gives the rank,
any other one begins the names of its metrics ("validation/loss"), since tags repeat in each. A session that
starts at a step (``purge_step``) rewinds the run.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import re
import struct
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import crc32c

from driftline.importing.items import Item, Rewound, Row, Tally
from driftline.importing.unpacked import digest

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MASK = 0xA282EAD8
MAX_RECORD = 1024 * 1024 * 1024
MAX_SEARCH = 64 * 1024 * 1024
"""Bytes that are searched for the next record after a broken length."""
WRITERS = frozenset(("train", "training", "validation", "valid", "val", "eval", "evaluation", "test", "dev"))
"""Names of sub-folders that belong to the run of the folder above."""
_RANK = re.compile(r"(?:^|.*[._/-])rank[._-]?(\d{1,9})", re.IGNORECASE)
_NOT_ZERO = re.compile(rb"[^\0]")
_FORMATS = {
    1: "<f",
    2: "<d",
    3: "<i",
    4: "<B",
    5: "<h",
    6: "<b",
    9: "<q",
    10: "<?",
    19: "<e",
    22: "<I",
    23: "<Q",
}
"""Of one element, by TensorFlow's number of the type; 7 is text, 14 is bfloat16."""
_LISTS = {5: "<f", 6: "<d"}
"""Fields of a tensor that hold packed elements of a fixed size; the others are varints."""
_VARINTS = (7, 10, 11, 16, 17)
_UNSIGNED = (16, 17)


def masked_crc(data: bytes | memoryview) -> int:
    """The checksum of a TFRecord.

    >>> masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32
    True
    """
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + _MASK) & 0xFFFFFFFF


def looks_like(head: bytes) -> bool:
    """Whether a file begins with a record."""
    if len(head) < _HEADER.size:
        return False
    length, crc = _HEADER.unpack_from(head)
    return bool(length < MAX_RECORD and crc == masked_crc(head[:8]))


def runs(folder: Path, *, one: bool) -> dict[Path, tuple[Path, ...]]:
    """Event files below a folder, by the folder that is their run; with ``one`` all are of one run."""
    files = sorted(path for path in folder.rglob("*tfevents*") if path.is_file())
    below: dict[Path, set[str]] = {}
    for path in files:
        inside = path.relative_to(folder).parts
        for depth, name in enumerate(inside):
            below.setdefault(folder.joinpath(*inside[:depth]), set()).add(name)
    holders = {file.parent for file in files}
    roots = {
        parent
        for parent, names in below.items()
        if parent in holders or all(name.lower() in WRITERS or _RANK.fullmatch(name) for name in names)
    }
    grouped: dict[Path, list[Path]] = {}
    for path in files:
        grouped.setdefault(folder if one else _run_of(folder, path, roots), []).append(path)
    return {root: tuple(found) for root, found in grouped.items()}


def _run_of(folder: Path, path: Path, roots: Container[Path]) -> Path:
    """The nearest folder to the top that has event files itself, or only such sub-folders as writers have."""
    inside = path.relative_to(folder).parts
    above = (folder.joinpath(*inside[:depth]) for depth in range(len(inside)))
    return next(parent for parent in above if parent in roots)


class Span(NamedTuple):
    """Where a record lies, and where its data does."""

    start: int
    data: int
    end: int


def spans(buffer: mmap.mmap | bytes, start: int, limit: int) -> Iterator[Span | int]:
    """The records in ``buffer[start:limit]`` whose lengths are right; a number is where a broken one "
    "begins."""
    at = start
    while at + _HEADER.size <= limit:
        length, crc = _HEADER.unpack_from(buffer, at)
        if crc != masked_crc(buffer[at : at + 8]) or length > MAX_RECORD:
            found = _search(buffer, at + 1, limit)
            if found is None:
                return
            yield at
            at = found
            continue
        end = at + _HEADER.size + length + _CRC.size
        if end > limit:
            return
        yield Span(at, at + _HEADER.size, end)
        at = end


def _search(buffer: mmap.mmap | bytes, start: int, limit: int) -> int | None:
    end = min(limit - _HEADER.size, start + MAX_SEARCH)
    at = start
    while at < end:
        head = buffer[at : at + _HEADER.size]
        if not any(head):  # a crash leaves whole gigabytes of zeros
            found = _NOT_ZERO.search(buffer, at, limit)
            if found is None:
                return None
            at = max(at + 1, found.start() - _HEADER.size + 1)
            end = min(limit - _HEADER.size, max(end, at + MAX_SEARCH))
            continue
        length, crc = _HEADER.unpack(head)
        if length <= limit - at and crc == masked_crc(head[:8]):
            return at
        at += 1
    return None


def whole(buffer: mmap.mmap | bytes, span: Span) -> bool:
    """Whether the data is what was written."""
    (crc,) = _CRC.unpack_from(buffer, span.end - _CRC.size)
    return bool(crc == masked_crc(buffer[span.data : span.end - _CRC.size]))


class EventSource:
    """The event files of one run. A limit is the end of the last whole record."""

    def __init__(self, root: Path, files: Sequence[Path], tally: Tally) -> None:
        folder = root.parent if root.is_file() else root
        self.tally = tally
        self._files = {_shown(path, folder): (path, path.parent.relative_to(folder)) for path in files}

    def limits(self) -> dict[str, int]:
        return {name: self._limit(name, path) for name, (path, _) in sorted(self._files.items())}

    def _limit(self, name: str, path: Path) -> int:
        size = path.stat().st_size
        if not size:
            return 0
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            last = Span(0, 0, 0)
            for span in spans(buffer, 0, len(buffer)):
                if isinstance(span, Span):
                    last = span
            end = last.start if last.end and not whole(buffer, last) else last.end
        if end < size:
            self.tally.note(f"{name}: the last {size - end:,} bytes are no whole record (yet): left out")
        return end

    def digest(self, limits: dict[str, int]) -> str:
        hashed = hashlib.blake2b(digest_size=16)
        for name, limit in sorted(limits.items()):
            if name not in self._files:
                return "gone"
            hashed.update(digest(self._files[name][0], limit))
        return hashed.hexdigest()

    torn = False

    @property
    def finished(self) -> bool:
        return False

    def part(self, name: str) -> EventPart:
        path, inside = self._files[name]
        return EventPart(name, path, inside.as_posix(), self.tally)


def _shown(path: Path, folder: Path) -> str:
    text = path.relative_to(folder).as_posix()
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class EventPart:
    """One event file."""

    def __init__(self, name: str, path: Path, inside: str, tally: Tally) -> None:
        self._name, self._path, self._tally = name, path, tally
        ranked = _RANK.fullmatch(inside)
        self._rank = int(ranked[1]) if ranked else None
        inside = inside.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self._before = "" if ranked or inside == "." else f"{inside}/"
        self._record = 0
        self.position = 0

    def upto(self, limit: int, *, whole: bool) -> Iterator[Item]:
        if limit <= self.position or not self._path.stat().st_size:
            return
        with open(self._path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            limit = min(limit, len(buffer))
            for span in spans(buffer, self.position, limit):
                self._record += 1
                if isinstance(span, int):
                    self._tally.refuse(self._name, self._record, "record", f"broken length at byte {span:,}")
                    continue
                self.position = span.end
                yield from self._event(buffer, span)
        self.position = max(self.position, limit)

    def _event(self, buffer: mmap.mmap, span: Span) -> Iterator[Item]:
        if not whole(buffer, span):
            what = f"wrong checksum at byte {span.start:,}"
            self._tally.refuse(self._name, self._record, "record", what)
            return
        try:
            yield from self._items(buffer[span.data : span.end - _CRC.size])
        except (ValueError, struct.error, IndexError) as error:
            self._tally.refuse(self._name, self._record, "record", f"no Event: {error}")

    def _items(self, data: bytes) -> list[Item]:
        time_us, step, items = None, 0, list[Item]()
        summaries: list[bytes] = []
        starts = False
        for number, value in fields(data):
            if number == 1 and isinstance(value, bytes):
                wall = struct.unpack("<d", value)[0]
                time_us = round(wall * 1e6) if math.isfinite(wall) and abs(wall) < 1e12 else None
            elif number == 2 and isinstance(value, int):
                step = signed(value)
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
            elif number == 7 and isinstance(value, bytes):
                starts = dict(fields(value)).get(1) == 1
        if starts and step > 0:
            items.append(Rewound(step, time_us, self._rank))
        values = [found for summary in summaries for found in self._values(summary)]
        if values:
            items.append(Row(values, step, time_us, self._rank))
        return items

    def _values(self, summary: bytes) -> Iterator[tuple[str, float]]:
        for number, value in fields(summary):
            if number != 1 or not isinstance(value, bytes):
                continue
            tag, found = _value(value)
            if isinstance(found, float):
                yield self._before + tag, found
            else:
                self._tally.refuse(self._name, self._record, found, f"{tag}: no scalar", once=tag)


def _value(data: bytes) -> tuple[str, float | str]:
    """Tag and number of a value, or why it is none."""
    tag, found = "", "kind"
    made: float | None = None
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            made = float(struct.unpack("<f", value)[0])
        elif number == 8 and isinstance(value, bytes):
            scalar = _scalar(value)
            if isinstance(scalar, float):
                made = scalar
            else:
                found = scalar
    return tag, found if made is None else made


def _scalar(data: bytes) -> float | str:
    """The number in a tensor of one element, or why there is none."""
    dtype, size, content, held = 0, 1, b"", list[float]()
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 2 and isinstance(value, bytes):
            size = _size(value)
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in _LISTS:
            form = _LISTS[number]
            raw = value if isinstance(value, bytes) else b""
            held += [float(one) for (one,) in struct.iter_unpack(form, raw)]
        elif number in _VARINTS:
            whole = [value] if isinstance(value, int) else list(varints(value))
            held += [float(one if number in _UNSIGNED else signed(one)) for one in whole]
        elif number == 13:  # bits of half and bfloat16
            bits = [value] if isinstance(value, int) else list(varints(value))
            content = b"".join(struct.pack("<H", one) for one in bits)
    if dtype == 7:
        return "text"
    if size != 1:
        return "elements"
    if held:
        return held[0]
    if dtype == 14 and len(content) == 2:
        return float(struct.unpack("<f", b"\0\0" + content)[0])
    if dtype not in _FORMATS:
        return "kind"
    return float(struct.unpack(_FORMATS[dtype], content)[0]) if content else 0.0


def _size(shape: bytes) -> int:
    size = 1
    for number, value in fields(shape):
        if number == 2 and isinstance(value, bytes):
            one = dict(fields(value)).get(1, 0)
            size *= signed(one) if isinstance(one, int) else 0
    return size


# --- protobuf's wire format --------------------------------------------------------------------------------


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields: varints as int, all else as bytes. Raises ValueError."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 1:
            size = 8
        elif kind == 5:
            size = 4
        elif kind == 2:
            size, at = _varint(data, at)
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > end:
            raise ValueError("a field is longer than its message")
        yield number, data[at : at + size]
        at += size


def varints(data: bytes) -> Iterator[int]:
    """The numbers of a packed field."""
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut or too long")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """A 64-bit two's complement.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
