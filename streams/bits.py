"""Sets of processes, one per row: bit p of a row's 64-bit words stands for process p."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]


def widen(bits: U64, words: int) -> U64:
    """With at least so many words."""
    more = words - bits.shape[1]
    return np.pad(bits, ((0, 0), (0, more))) if more > 0 else bits


def pick(bits: U64, kept: npt.NDArray[np.int64]) -> U64:
    """The bits of these processes, in this order, as the first ones."""
    flat = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), axis=1, bitorder="little")
    out = np.zeros((len(bits), max(1, (len(kept) + 63) // 64) * 64), np.uint8)
    known = kept < flat.shape[1]
    out[:, np.flatnonzero(known)] = flat[:, kept[known]]
    return np.packbits(out, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def trimmed(bits: U64) -> U64:
    """Without the last words where nobody's bit is set: the same, however wide the array has become."""
    used = np.flatnonzero(bits.any(axis=0))
    return bits[:, : int(used[-1]) + 1 if len(used) else 1]


def named(bits: U64) -> set[int]:
    """The processes that any of the rows names."""
    if not len(bits):
        return set()
    every = np.bitwise_or.reduce(bits, axis=0, keepdims=True)
    return set(np.flatnonzero(np.unpackbits(every.view(np.uint8), bitorder="little")).tolist())
