"""Digests of rows that do not depend on their order: tables of any size are compared as they stream by.

Each row is reduced to 128 bits over the exact bits of all its columns (NaN payloads and the sign of zero
count, null is not zero), and the rows of a group are added up. Equal rows in any order, and any division into
files, give equal digests; the same on every machine. It finds differences, it is no protection against
forgery.
"""

from __future__ import annotations

import functools
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
_ADDED = tuple(np.uint64(_SEEDS[1 - seed]) for seed in range(2))
_NULLS = np.uint64(_NULL[0]), np.uint64(_NULL[1])
AT_ONCE = 50_000


class Digest:
    """Rows of one group so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums = [0, 0]

    def add(self, rows: int, first: int, second: int) -> None:
        self.rows += rows
        self._sums = [(have + more) % 2**64 for have, more in zip(self._sums, (first, second), strict=True)]

    def numbers(self) -> tuple[int, int, int]:
        """What :meth:`add` takes to make the same of an empty one."""
        return self.rows, self._sums[0], self._sums[1]

    def __str__(self) -> str:
        return f"{self._sums[0]:016x}{self._sums[1]:016x}" if self.rows else "-"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.rows, self._sums) == (other.rows, other._sums)

    __hash__ = None  # type: ignore[assignment]


class Digests:
    """Rows of a table by group (the run); ``columns`` are those that count.

    Small batches wait for others, up to ``AT_ONCE`` rows: what a batch costs is mostly the same for any size.
    """

    def __init__(self, group: str, columns: Sequence[str]) -> None:
        self._group = group
        self._columns = list(columns)
        self._of: dict[str, Digest] = {}
        self._waiting: list[pa.Table | pa.RecordBatch] = []
        self._rows = 0

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        """Adds rows; a missing column counts as null."""
        if not table.num_rows:
            return
        if self._waiting and self._waiting[-1].schema != table.schema:
            self._take()
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= AT_ONCE:
            self._take()

    @property
    def of(self) -> dict[str, Digest]:
        """The digest of each group so far."""
        self._take()
        return self._of

    def _take(self) -> None:
        if not self._waiting:
            return
        parts = [pa.table(part) if isinstance(part, pa.RecordBatch) else part for part in self._waiting]
        self._waiting, self._rows = [], 0
        table = pa.concat_tables(parts).combine_chunks()
        both = row_hashes(table, self._columns)
        groups = _plain(table.column(self._group)).dictionary_encode()
        codes = groups.indices.to_numpy()
        for code, name in enumerate(groups.dictionary.to_pylist()):
            chosen = codes == code
            sums = (int(np.add.reduce(hashes[chosen])) for hashes in both)
            self._of.setdefault(name, Digest()).add(int(np.count_nonzero(chosen)), *sums)


def row_hashes(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> tuple[U64, U64]:
    """Two times 64 bits for each row."""
    made = [np.full(table.num_rows, seed, np.uint64) for seed in _SEEDS]
    for name in columns:
        lanes = _lanes(_plain(table.column(name))) if name in table.schema.names else _NULLS
        for at, lane in enumerate(lanes):
            made[at] = _mixed((made[at] ^ lane) + _ADDED[at])
    return made[0], made[1]


def _mixed(x: U64) -> U64:
    """SplitMix64's finisher."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = x ^ (x >> np.uint64(31))
    return mixed


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _lanes(column: pa.Array) -> tuple[U64 | np.uint64, U64 | np.uint64]:
    """What the values of a column are to each of the two hashes."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if column.null_count == len(column):
        return _NULLS
    if any(is_kind(kind) for is_kind in _OF_ANY_LENGTH):
        first, second = _texts(column)
    else:
        first = second = _numbers(column)
    if not column.null_count:
        return first, second
    there = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return np.where(there, first, _NULLS[0]), np.where(there, second, _NULLS[1])


def _numbers(column: pa.Array) -> U64:
    kind = column.type
    if pa.types.is_floating(kind):
        floats: npt.NDArray[np.float64] = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        return floats.astype(np.float64, copy=False).view(np.uint64)
    wide = column.view(pa.int64()) if pa.types.is_timestamp(kind) else column.cast(pa.int64())
    whole: npt.NDArray[np.int64] = wide.fill_null(0).to_numpy(zero_copy_only=False)
    return whole.view(np.uint64)


def _texts(column: pa.Array) -> tuple[U64, U64]:
    """Hashes of texts, bytes and maps: each different one once."""
    if pa.types.is_map(column.type):
        return _maps(column)
    coded = column.dictionary_encode()
    values = coded.dictionary.to_pylist()
    codes = coded.indices.fill_null(0) if coded.indices.null_count else coded.indices
    at = codes.to_numpy(zero_copy_only=False)
    first, second = (np.array([_hash(value, seed) for value in values], np.uint64)[at] for seed in range(2))
    return first, second


def _maps(column: pa.Array) -> tuple[U64, U64]:
    made = [np.full(len(column), _hash(b"[]", seed), np.uint64) for seed in range(2)]
    lengths = np.diff(column.offsets.to_numpy())
    for at in np.flatnonzero(lengths).tolist():
        pairs = sorted((key, np.float64(value)) for key, value in column[at].as_py())
        text = b"".join(key.encode() + b"\0" + value.tobytes() for key, value in pairs)
        for seed in range(2):
            made[seed][at] = _hash(text, seed)
    return made[0], made[1]


@functools.lru_cache(maxsize=4096)
def _hash(value: str | bytes | None, seed: int) -> int:
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value or b""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, key=bytes([seed])).digest(), "little")
