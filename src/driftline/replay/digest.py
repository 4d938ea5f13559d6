"""Digests of rows that do not depend on their order: tables of any size are compared as they stream by.

Each row is reduced to 128 bits over the exact bits of all its columns (NaN payloads and the sign of zero
count, null is not zero), and the rows of a group are added up. Equal rows in any order, and any division into
files, give equal digests; the same on every machine. It finds differences, it is no protection against
forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U64 = npt.NDArray[np.uint64]
_NULL = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_OF_ANY_LENGTH = (pa.types.is_map, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)


class Digest:
    """Rows of one group so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums = [0, 0]

    def add(self, rows: int, first: int, second: int) -> None:
        self.rows += rows
        self._sums = [(have + more) % 2**64 for have, more in zip(self._sums, (first, second), strict=True)]

    def __str__(self) -> str:
        return f"{self._sums[0]:016x}{self._sums[1]:016x}" if self.rows else "-"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.rows, self._sums) == (other.rows, other._sums)

    __hash__ = None  # type: ignore[assignment]


class Digests:
    """Rows of a table by group (the run); ``columns`` are those that count."""

    def __init__(self, group: str, columns: Sequence[str]) -> None:
        self._group = group
        self._columns = list(columns)
        self.of: dict[str, Digest] = {}

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        """Adds rows; a missing column counts as null."""
        if not table.num_rows:
            return
        first, second = (row_hashes(table, self._columns, seed) for seed in range(2))
        groups = _plain(table.column(self._group)).dictionary_encode()
        codes = groups.indices.to_numpy()
        for code, name in enumerate(groups.dictionary.to_pylist()):
            chosen = codes == code
            sums = (int(np.add.reduce(hashes[chosen])) for hashes in (first, second))
            self.of.setdefault(name, Digest()).add(int(np.count_nonzero(chosen)), *sums)


def row_hashes(table: pa.Table | pa.RecordBatch, columns: Sequence[str], seed: int = 0) -> U64:
    """64 bits for each row."""
    made = np.full(table.num_rows, _SEEDS[seed], np.uint64)
    for name in columns:
        if name in table.schema.names:
            lane = _lane(_plain(table.column(name)), seed)
        else:
            lane = np.full(table.num_rows, _NULL[seed], np.uint64)
        made = _mixed((made ^ lane) + np.uint64(_SEEDS[1 - seed]))
    return made


def _mixed(x: U64) -> U64:
    """SplitMix64's finisher."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = x ^ (x >> np.uint64(31))
    return mixed


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _lane(column: pa.Array, seed: int) -> U64:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if any(is_kind(kind) for is_kind in _OF_ANY_LENGTH):
        lane = _texts(column, seed)
    elif pa.types.is_floating(kind):
        lane = column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64).view(np.uint64)
    else:
        wide = column.view(pa.int64()) if pa.types.is_timestamp(kind) else column.cast(pa.int64())
        lane = wide.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    if not column.null_count:
        return lane
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    filled: U64 = np.where(there, lane, np.uint64(_NULL[seed]))
    return filled


def _texts(column: pa.Array, seed: int) -> U64:
    """Hashes of texts, bytes and maps: each different one once."""
    if pa.types.is_map(column.type):
        lengths = np.diff(column.offsets.to_numpy())
        made = np.full(len(column), _hash(b"[]", seed), np.uint64)
        for at in np.flatnonzero(lengths).tolist():
            pairs = sorted((key, np.float64(value)) for key, value in column[at].as_py())
            text = b"".join(key.encode() + b"\0" + value.tobytes() for key, value in pairs)
            made[at] = _hash(text, seed)
        return made
    coded = column.dictionary_encode()
    known = np.array([_hash(value, seed) for value in coded.dictionary.to_pylist()] or [0], np.uint64)
    codes: U64 = known[coded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return codes


def _hash(value: str | bytes | None, seed: int) -> int:
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value or b""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, key=bytes([seed])).digest(), "little")
