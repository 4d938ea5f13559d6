"""Records go in once, in order, or not at all."""

from __future__ import annotations

from types import ModuleType

import pytest

from driftline.records import Record
from driftline.streams.shell.cursor import Cursor


def records(*offsets: int) -> list[Record]:
    return [Record(0, offset, 1000 + offset, b"v%d" % offset) for offset in offsets]


CASES = [
    # next, delivered, plain -> applied, repeated, ahead, next after
    ("in order", 5, [5, 6, 7], False, 3, 0, [], 8),
    ("nothing", 5, [], False, 0, 0, [], 5),
    ("all seen before", 5, [3, 4], False, 0, 2, [], 5),
    ("rewound by a rebalance", 5, [3, 4, 5, 6], False, 2, 2, [], 7),
    ("rewound in the middle of a batch", 5, [5, 6, 5, 6, 7], False, 3, 2, [], 8),
    ("skipped at the start", 5, [9, 10], False, 0, 0, [9, 10], 5),
    ("skipped in the middle", 5, [5, 6, 9, 10], False, 2, 0, [9, 10], 7),
    ("a hole of the log's own", 5, [5, 9, 10], True, 3, 0, [], 11),
    ("plain, rewound", 5, [4, 6], True, 1, 1, [], 7),
]


@pytest.mark.parametrize(
    ("name", "following", "delivered", "plain", "applied", "repeated", "ahead", "after"), CASES
)
def test_cursor_applies_only_what_comes_next(
    toy: ModuleType,
    name: str,
    following: int,
    delivered: list[int],
    plain: bool,
    applied: int,
    repeated: int,
    ahead: list[int],
    after: int,
) -> None:
    core = toy.ToyCore()
    cursor = Cursor(core, core.fresh("u", 0), following)
    fed = cursor.feed(records(*delivered), plain=plain)
    assert (fed.applied, fed.repeated, [r.offset for r in fed.ahead]) == (applied, repeated, ahead), name
    assert cursor.next == after
    assert len(fed.outputs) == applied


def test_batch_boundaries_do_not_show_in_the_outputs(toy: ModuleType) -> None:
    core = toy.ToyCore()
    log = records(*range(50))
    whole = Cursor(core, core.fresh("u", 0), 0).feed(log).outputs
    pieces = Cursor(core, core.fresh("u", 0), 0)
    cut = [output for at in range(0, 50, 7) for output in pieces.feed(log[at : at + 7]).outputs]
    assert cut == whole


def test_a_gap_moves_the_cursor_and_tells_the_core(toy: ModuleType) -> None:
    core = toy.ToyCore()
    cursor = Cursor(core, core.fresh("u", 0), 5)
    (output,) = cursor.gap(9)
    assert output.id.offset == 5
    assert cursor.next == 9
