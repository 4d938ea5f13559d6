"""Checks for those who extend driftline; each raises AssertionError that says which promise is broken.

from driftline.testing import check_aggregate

def test_my_aggregate() -> None:
    check_aggregate(MyAggregate)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from driftline.aggregate import Aggregate, Floats, check_plain

_SIZES = (1, 2, 3, 10, 200)


def check_aggregate(make: Callable[[], Aggregate], *, tolerance: float = 1e-9, seed: int = 7) -> None:
    """Runs the contract of :class:`~driftline.aggregate.Aggregate` on objects that ``make`` makes.

    ``tolerance``: how far (relative) the value of merged parts may be from the value of the whole.
    """
    chance = random.Random(seed)
    assert _number(make()) is None, "without a sample there is no value: value() must give None or NaN"
    for size in _SIZES:
        for values in _samples(chance, size):
            weights = np.array([chance.choice([1.0, 1.0, 0.0, 3.5]) for _ in range(size)])
            _check_samples(make, values, weights, tolerance, chance)


def _samples(chance: random.Random, size: int) -> list[Floats]:
    """Usual ones, constants, and those that lie far apart."""
    kinds = (
        lambda: chance.gauss(5.0, 2.0),
        lambda: 3.25,
        lambda: chance.choice([-1.0, 1.0]) * 10.0 ** chance.uniform(-20, 20),
    )
    return [np.array([kind() for _ in range(size)]) for kind in kinds]


def _check_samples(
    make: Callable[[], Aggregate], values: Floats, weights: Floats, tolerance: float, chance: random.Random
) -> None:
    given = values.copy(), weights.copy()
    whole = _fed(make, values, weights)
    expected = _number(whole)
    assert all(np.array_equal(a, b) for a, b in zip(given, (values, weights), strict=True)), (
        "update() changed its arguments: they belong to others too"
    )
    assert _same(_number(_fed(make, values, weights)), expected, 0.0), "the same samples gave two values"
    for cut in sorted({0, len(values), chance.randrange(len(values) + 1), len(values) // 2}):
        left, right = _fed(make, values[:cut], weights[:cut]), _fed(make, values[cut:], weights[cut:])
        before = _plain(right.dump())
        left.merge(right)
        text = f"two parts of {cut} and {len(values) - cut} samples, merged"
        assert _same(_number(left), expected, tolerance), f"{text}, gave {left.value()!r}, not {expected!r}"
        left.update(values, weights)
        assert _plain(right.dump()) == before, "an object that was merged into another one changed"
    _check_thirds(make, values, weights, tolerance)
    again = make()
    again.load(_restored(whole.dump()))
    assert _same(_number(again), expected, 0.0), "what load() made of dump() has another value"
    more = (again, whole)
    for each in more:
        each.update(values, weights)
    assert _same(_number(again), _number(whole), 0.0), (
        "after dump() and load() further samples count otherwise"
    )


def _check_thirds(make: Callable[[], Aggregate], values: Floats, weights: Floats, tolerance: float) -> None:
    a, b = len(values) // 3, 2 * len(values) // 3
    spans = (slice(0, a), slice(a, b), slice(b, None))
    one, two, three = (_fed(make, values[span], weights[span]) for span in spans)
    late, early = _fed(make, values[spans[0]], weights[spans[0]]), one
    two_and_three = _fed(make, values[spans[1]], weights[spans[1]])
    two_and_three.merge(three)
    late.merge(two_and_three)
    early.merge(two)
    early.merge(three)
    assert _same(_number(early), _number(late), tolerance), "(a + b) + c is not a + (b + c)"


def _fed(make: Callable[[], Aggregate], values: Floats, weights: Floats) -> Aggregate:
    made = make()
    if len(values):
        made.update(values, weights)
    return made


def _number(made: Aggregate) -> float | None:
    value = made.value()
    assert value is None or isinstance(value, int | float), f"value() gave {value!r}: give a float or None"
    return None if value is None or math.isnan(value) else float(value)


def _same(a: float | None, b: float | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-12)


def _plain(data: Any) -> bytes:
    """Plain data as bytes, to be compared. Raises AssertionError for what is none."""
    try:
        check_plain(data)
    except TypeError as error:
        raise AssertionError(str(error)) from error
    return msgspec.msgpack.encode(data, enc_hook=_array)


def _array(value: object) -> object:
    assert isinstance(value, np.ndarray)
    return [value.dtype.str, list(value.shape), value.tobytes()]


def _restored(data: Any) -> Any:
    """What comes back of a snapshot: tuples as lists, arrays as arrays of their own."""
    if isinstance(data, np.ndarray):
        return data.copy()
    if isinstance(data, list | tuple):
        return [_restored(item) for item in data]
    if isinstance(data, dict):
        return {key: _restored(item) for key, item in data.items()}
    _plain(data)
    return data
