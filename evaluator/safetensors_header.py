"""The header of a safetensors file: how long the file must be, and which tensors it holds.

The format is an 8-byte little-endian length N, N bytes of JSON, then the data; each tensor names its
half-open byte range of the data. Only the header is read, with bounds; nothing is unpickled. A file that is
shorter than its header says is being written or was cut.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

import msgspec

from driftline.errors import BadData

HEADER_MAX_BYTES = 100_000_000  # the format's own limit
TENSORS_MAX = 1_000_000
_LENGTH_BYTES = 8


class Cut(BadData):
    """The file is shorter than its header says."""


class Header(NamedTuple):
    """Names of the tensors, and the size in bytes that the file must have."""

    tensors: frozenset[str]
    size: int


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> Header:
    """Reads the header and checks it against the file's size.

    Raises:
        Cut: empty, or shorter than the header says: it may become whole.
        BadData: not a safetensors file, or longer than its header says.
        OSError: the file cannot be read.
    """
    check_regular(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH_BYTES:
            raise Cut(f"{path.name} has only {size} bytes")
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > HEADER_MAX_BYTES:
            raise BadData(f"{path.name} is no safetensors file: its header would have {length} bytes")
        if _LENGTH_BYTES + length > size:
            raise Cut(f"{path.name} ends inside its header ({size} bytes)")
        header = parse(file.read(length), name=path.name)
    if size < header.size:
        raise Cut(f"{path.name} has {size} of {header.size} bytes")
    if size > header.size:
        raise BadData(f"{path.name} has {size} bytes, {size - header.size} more than its header says")
    return header


def check_regular(path: Path) -> None:
    """Raises BadData for a pipe, a device or a folder: to open one could wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise BadData(f"{path.name} is no regular file")


def parse(raw: bytes, *, name: str) -> Header:
    """Checks the JSON of a header: byte ranges must follow each other without holes. Raises BadData."""
    try:
        entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        tensors = {key: msgspec.json.decode(value, type=_Tensor) for key, value in entries.items()}
    except msgspec.MsgspecError as error:
        raise BadData(f"{name} is no safetensors file: {error}") from error
    if len(tensors) > TENSORS_MAX:
        raise BadData(f"{name} names {len(tensors)} tensors; at most {TENSORS_MAX} are read")
    at = 0
    for start, end in sorted(tensor.data_offsets for tensor in tensors.values()):
        if start != at or end < start:
            raise BadData(f"{name} is broken: its data ranges overlap or leave holes at byte {at}")
        at = end
    return Header(frozenset(tensors), _LENGTH_BYTES + len(raw) + at)
