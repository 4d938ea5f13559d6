"""Batches that score like single items: order, padding, masks, positions, and halving when memory runs out.

Pure: plans are lists of item indices, padded rows are NumPy arrays; the torch side only copies them. Rows
go longest first, so that rows of one batch have similar lengths and a batch that does not fit shows at
once. Equal input gives equal batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

R = TypeVar("R")


class Padded(NamedTuple):
    """Rows as rectangles [rows, longest], int64."""

    tokens: npt.NDArray[np.int64]
    mask: npt.NDArray[np.int64]
    """1 at real tokens, 0 at padding."""
    positions: npt.NDArray[np.int64]
    """Counts real tokens from 0; 0 at padding."""


def plan(lengths: Sequence[int], *, rows: int, tokens: int | None = None) -> list[list[int]]:
    """Cuts items into batches of at most ``rows``, and at most ``tokens`` with padding (one row always fits).

    >>> plan([3, 9, 4, 1], rows=2)
    [[1, 2], [0, 3]]
    >>> plan([3, 9, 4, 1], rows=4, tokens=9)
    [[1], [2, 0], [3]]
    """
    batches: list[list[int]] = []
    order = sorted(range(len(lengths)), key=lambda at: (-lengths[at], at))
    for at in order:
        last = batches[-1] if batches else None
        if last and len(last) < rows and (tokens is None or lengths[last[0]] * (len(last) + 1) <= tokens):
            last.append(at)
        else:
            batches.append([at])
    return batches


def pad(rows: Sequence[Sequence[int]], *, side: Literal["left", "right"], token: int) -> Padded:
    """Fills rows to one length: left for generation (all rows end at their last token), right for scoring."""
    width = max(len(row) for row in rows)
    tokens = np.full((len(rows), width), token, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for at, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        tokens[at, place] = row
        mask[at, place] = 1
    return Padded(tokens, mask, positions(mask))


def positions(mask: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Position of each real token in its row.

    >>> positions(np.array([[0, 0, 1, 1]])).tolist()
    [[0, 0, 0, 1]]
    """
    counted: npt.NDArray[np.int64] = (np.cumsum(mask, axis=1) - 1) * mask
    return counted


def run_halving(
    batches: Sequence[Sequence[int]],
    run: Callable[[Sequence[int]], R],
    *,
    is_out_of_memory: Callable[[Exception], bool],
    free: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Sequence[int], R]]:
    """Runs each batch; one that does not fit into memory is cut in two, and no later one is larger than what
    fitted. Yields (indices, result).

    Raises what ``run`` raises, and its out-of-memory error when not even one row fits.
    """
    limit: int | None = None
    waiting = [list(batch) for batch in reversed(batches)]
    while waiting:
        batch = waiting.pop()
        if limit is not None and len(batch) > limit:
            waiting += _cut(batch, limit)
            continue
        result = _try(batch, run, is_out_of_memory)
        if result is None:
            free()
            limit = len(batch) // 2
            waiting.append(batch)
        else:
            yield batch, result[0]


def _try(
    batch: Sequence[int], run: Callable[[Sequence[int]], R], is_out_of_memory: Callable[[Exception], bool]
) -> tuple[R] | None:
    """The result, or None if memory ran out: returned, not raised, since a traceback holds the tensors."""
    try:
        return (run(batch),)
    except Exception as error:
        if len(batch) == 1 or not is_out_of_memory(error):
            raise
        return None


def _cut(batch: Sequence[int], limit: int) -> list[list[int]]:
    """Parts of at most ``limit`` rows, last part first."""
    return [list(batch[at : at + limit]) for at in range(0, len(batch), limit)][::-1]
